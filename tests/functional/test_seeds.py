"""Dropout without a seed draws one from PyTorch's generator, call by call."""

import pytest
import torch
import torch._dynamo.testing
from torch.utils.checkpoint import checkpoint

from backpass import functional as B

X = torch.randn(64, 8)
Q = torch.randn(1, 2, 16, 4)
CALLS = {
    "dropout": lambda x=X, **options: B.dropout(x, p=0.5, **options),
    "attention": lambda q=Q, **options: B.attention(q, q, q, dropout_p=0.5, **options),
}
BOTH = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@BOTH
def test_two_calls_differ_and_manual_seed_repeats_them(call):
    torch.manual_seed(0)
    first, second = call(), call()
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(call(), first) and torch.equal(call(), second)


@BOTH
def test_a_seed_that_is_given_is_the_operations(call):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert torch.equal(call(seed=7), call(seed=7)) and not torch.equal(call(seed=7), call(seed=8))
    assert torch.equal(torch.get_rng_state(), state)


@BOTH
def test_a_seed_may_be_a_tensor(call):
    for seed in (7, 2**62 + 1):
        source = Q if call is CALLS["attention"] else X
        gradients = []
        for given in (seed, torch.tensor(seed)):
            x = source.clone().requires_grad_()
            assert torch.equal(call(x, seed=given), call(source, seed=seed))
            call(x, seed=given).square().sum().backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)
    with pytest.raises(
        TypeError, match=r"seed: expected an integer, or an int64 array of shape \[\]; got int64"
    ):
        call(seed=torch.tensor([1]))


@BOTH
@pytest.mark.parametrize("seed", [7, 2**62 + 1])  # of which a float64 has not all digits
def test_a_compiled_call_drops_what_the_seed_says(call, seed):
    torch._dynamo.reset()
    source = Q if call is CALLS["attention"] else X
    gradients = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        x = source.clone().requires_grad_()
        y = run(x, seed=seed)
        y.square().sum().backward()
        assert torch.equal(y, call(source, seed=seed))
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@BOTH
def test_a_compiled_call_reads_a_seed_in_a_tensor_each_time(call):
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, seed: call(x, seed=seed), fullgraph=True, backend=graphs)
    source = Q if call is CALLS["attention"] else X
    for seed in (7, 8, 2**62 + 1):
        assert torch.equal(compiled(source, torch.tensor(seed)), call(source, seed=seed))
    assert graphs.frame_count == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: B.dropout(X, p=0.0),
        lambda: B.dropout(X, p=0.5, training=False),
        lambda: B.attention(Q, Q, Q),
    ],
)
def test_nothing_is_drawn_if_nothing_can_be_dropped(call):
    state = torch.get_rng_state()
    call()
    assert torch.equal(torch.get_rng_state(), state)


@BOTH
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_drops_the_same_again(call, reentrant):
    source = Q if call is CALLS["attention"] else X
    gradients = []
    for run in (call, lambda x: checkpoint(call, x, use_reentrant=reentrant, preserve_rng_state=True)):
        torch.manual_seed(3)
        x = source.clone().requires_grad_()
        run(x).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@BOTH
def test_a_compiled_call_has_no_fixed_seed(call):
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: call(x), fullgraph=True, backend=graphs)
    source = Q if call is CALLS["attention"] else X
    torch.manual_seed(0)
    exact = [call(source), call(source)]
    torch.manual_seed(0)
    first, second = compiled(source), compiled(source)
    assert torch.equal(first, exact[0]) and torch.equal(second, exact[1])
    assert graphs.frame_count == 1

    x = source.clone().requires_grad_()
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_two_equal_calls_in_one_graph_drop_different_elements():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (B.dropout(x), B.dropout(x)), fullgraph=True, backend="aot_eager")
    assert not torch.equal(*compiled(X))


def test_the_documentation_says_so():
    assert (
        "PyTorch's default generator" in B.dropout.__doc__
        and "PyTorch's default generator" in B.attention.__doc__
    )
    assert "PyTorch's default generator" not in B.linear.__doc__
