"""torch.compile traces a whole network, forward and backward, as one graph, with checks of tokens and targets in it."""

import pytest
import torch

import proofs

from .small import NETWORKS, batch_of, parameters_of

# Inductor takes minutes to compile C++. In tests/functional/test_compiled.py it compiles one block at each push.
EVERYTHING = proofs.proving() == "all"
CASES = {
    "gpt2, untied": ({}, "eager"),
    "qwen3": ({"flash": False, "chunked": False}, "inductor" if EVERYTHING else "aot_eager"),
}


@pytest.mark.rotates(share=0.5, of=lambda name: [proofs.imports("backpass.models", "backpass.ops")])
@pytest.mark.parametrize("name", CASES)
# What Dynamo and Inductor say of themselves and of array_api_compat.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call", "ignore:`torch.jit")
def test_one_graph_has_the_same_gradients_and_rejects_what_is_outside(name):
    options, backend = CASES[name]
    module, config = NETWORKS[name]
    parameters = {name: torch.from_numpy(w) for name, w in parameters_of(module, config).items()}

    def plain(tokens, targets):
        loss, saved = module.forward(parameters, tokens, targets, config=config, **options)
        return loss, module.backward(saved)

    torch.compiler.reset()
    run = torch.compile(plain, backend=backend, fullgraph=True)
    tokens, targets = (torch.from_numpy(x) for x in batch_of(config))
    for given in (targets, torch.full_like(targets, -100)):
        expected_loss, expected = plain(tokens, given)
        loss, gradients = run(tokens, given)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=0, equal_nan=True)
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-11, atol=1e-13)
    with pytest.raises(RuntimeError, match=f"t: expected tokens from 0 to {config.vocabulary - 1}"):
        run(torch.full_like(tokens, config.vocabulary), targets)
    with pytest.raises(RuntimeError, match=r"t: expected targets from 0 .* or -100 to ignore"):
        run(tokens, torch.full_like(targets, -1))
