"""In float32 and bfloat16 the error of each gradient, against float64, is at most twice the error of autograd's gradient
through Hugging Face's model, which rounds where Hugging Face rounds."""

import pytest
import torch

from .hugging_face import gpt2_case, llama_case, loss_and_gradients, precise

WIDE = {"hidden_size": 48, "intermediate_size": 80, "vocab_size": 61, "head_dim": 12}
CASES = [
    gpt2_case("gpt2", 24, n_positions=32, n_embd=48, n_head=4, vocab_size=61),
    *(llama_case(family.lower(), family, 24, **WIDE) for family in ("Llama", "Qwen2", "Qwen3")),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_exact_as_autograd(case, dtype, monkeypatch):
    batch, model = case.batch(), case.model(dtype)
    autograd_loss, autograd = loss_and_gradients(model, *batch)
    precise(monkeypatch)
    loss, exact = loss_and_gradients(case.model(dtype).double(), *batch)
    for options in ({}, {"flash": False, "chunked": False}):
        ours, saved = case.module.forward(model.state_dict(), *batch, config=case.ours(), **options)
        gradients = case.module.backward(saved)
        unit = torch.finfo(dtype).eps * loss  # of the loss, which is rounded once
        assert abs(ours.double() - loss) <= 2 * max(abs(autograd_loss.double() - loss), unit)
        assert ours.dtype == torch.float32
        assert gradients.keys() == exact.keys()
        for name, gradient in gradients.items():
            assert gradient.dtype == dtype
            error, allowed = (
                torch.linalg.norm(d[name].double() - exact[name]) for d in (gradients, autograd)
            )
            assert error <= 2 * allowed, name
