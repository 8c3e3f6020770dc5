"""What linear_cross_entropy promises beside the contract: the plain form's results at every chunk, without its array."""


import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import cross_entropy, linear, linear_cross_entropy

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])
M, H, V = 7, 4, 5


def drawn(m=M, h=H, V=V, seed=0):
    rng = np.random.default_rng(seed)
    x, w, b = rng.standard_normal((m, h)), rng.standard_normal((h, V)), rng.standard_normal(V)
    t = rng.integers(0, V, m)
    t[1::3] = -100
    return x, w, t, b


def plain(x, w, t, b, dy, **options):
    """The head, then the loss: y, dx, dw and db."""
    scores, head = linear.forward(x, w, b)
    y, loss = cross_entropy.forward(scores, t, **options)
    return y, *linear.backward(cross_entropy.backward(dy, loss), head)


def chunked(x, w, t, b, dy, *, op=linear_cross_entropy, **options):
    y, saved = op.forward(x, w, t, b, **options)
    return y, *op.backward(dy, saved)


def agree(found, expected, rtol=1e-12):
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-14)


@REDUCTIONS
@pytest.mark.parametrize("has_b", [True, False])
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("chunk", [None, *range(1, M + 2), 10**9])
def test_it_is_the_head_and_the_loss_at_every_chunk(chunk, make, has_b, reduction):
    x, w, t, b = map(make, drawn())
    arguments = (x, w, t, b if has_b else None, make(np.array(-1.75)))
    agree(chunked(*arguments, reduction=reduction, chunk=chunk), plain(*arguments, reduction=reduction))


@REDUCTIONS
@pytest.mark.parametrize("ignored", [[], range(3), range(M)], ids=["none", "a chunk", "all"])
def test_ignored_targets_count_for_nothing(ignored, reduction):
    x, w, t, b = drawn()
    t = np.abs(t) % V
    t[list(ignored)] = 2
    arguments = (x, w, t, b, np.array(-1.75))
    found = chunked(*arguments, reduction=reduction, ignore_index=2, chunk=3)
    agree(found, plain(*arguments, reduction=reduction, ignore_index=2))
    assert not found[1][list(ignored)].any()
    if len(ignored) == M:
        assert not any(g.any() for g in found[1:]) and np.isnan(found[0]) == (reduction == "mean")


class Made(TorchDispatchMode):
    """Counts the elements of each tensor that PyTorch makes, views and what is changed in place apart."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.sizes.append(tensor.numel())
        return found


def test_no_array_is_larger_than_x_or_w_and_one_alone_is_as_large_as_w():
    m, h, V = 60, 7, 40
    x, w, t, b = (torch.tensor(a) for a in drawn(m, h, V))
    with Made() as made:
        _, saved = linear_cross_entropy.forward(x, w, t, b)
    assert max(made.sizes) <= m * h
    assert made.sizes.count(h * V) == 1  # dw, to which later chunks are added in place
    assert (
        sum(size == m * h // V * V for size in made.sizes) >= 4
    )  # a chunk's scores, and what follows from them

    with Made() as made:
        linear_cross_entropy.backward(torch.tensor(2.0, dtype=x.dtype), saved)
    assert sorted(size for size in made.sizes if size > 1) == sorted([m * h, h * V, V])


def test_the_plain_form_does_make_that_array():
    x, w, t, b = (torch.tensor(a) for a in drawn(60, 7, 40))
    with Made() as made:
        plain(x, w, t, b, torch.tensor(2.0, dtype=x.dtype))
    assert made.sizes.count(60 * 40) >= 4


@pytest.mark.parametrize("chunk", [1, 2, 3, M, None])
@REDUCTIONS
def test_no_cost_depends_on_the_chunk(chunk, reduction):
    counted = cost.count(linear_cross_entropy, *drawn(), chunk=chunk, reduction=reduction)
    formula = cost.formula(linear_cross_entropy, *drawn(), reduction=reduction)
    assert (counted.forward.total, counted.backward.total) == formula


def test_it_keeps_gradients_and_no_scores():
    kept = cost.memory(linear_cross_entropy, *drawn())
    assert {part.name: part.bytes for part in kept.arrays} == {"dx": 8 * M * H, "dw": 8 * H * V, "db": 8 * V}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_16_bits_are_summed_over_chunks_in_float32(dtype):
    """4096 chunks of one token each, all of which push one weight the same way."""
    m = 4096
    x, w = torch.ones(m, 1, dtype=dtype), torch.tensor([[0.0, 1.0]]).to(dtype)
    t = torch.zeros(m, dtype=torch.int64)
    arguments = x, w, t, None
    found = chunked(*arguments, torch.ones((), dtype=dtype), chunk=1)
    expected = plain(*(a if a is t or a is None else a.double() for a in arguments), torch.ones(()).double())
    eps = torch.finfo(dtype).eps
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=2 * eps, atol=torch.finfo(dtype).smallest_normal)

    stalled = torch.zeros((), dtype=dtype)
    for _ in range(m):
        stalled += torch.tensor(1 / m, dtype=dtype)
    assert stalled < 0.6  # what a sum in 16 bits would have made of 1


def test_a_loss_scale_arrives_before_float16_rounds_small_gradients_to_zero():
    """At 2¹⁴ tokens a scores' gradient over their number is below float16's least; times 2¹⁰ it is not."""
    m, V = 2**14, 2**12
    x = torch.ones(m, 1, dtype=torch.float16)
    w = torch.zeros(1, V, dtype=torch.float16)
    t = torch.zeros(m, dtype=torch.int64)
    t[:] = -100
    t[: m // 2] = 0
    _, saved = linear_cross_entropy.forward(x, w, t, chunk=m // 4)
    _, dw, _ = linear_cross_entropy.backward(torch.tensor(2.0**10, dtype=torch.float16), saved)
    torch.testing.assert_close(
        dw[0, 1:].double(), torch.full((V - 1,), 2.0**10 / V).double(), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize(("m", "h", "V"), [(0, 3, 4), (1, 1, 1), (5, 3, 1), (5, 0, 4), (1, 6, 2)])
def test_edge_shapes(make, m, h, V):
    rng = np.random.default_rng(0)
    arrays = (
        rng.standard_normal((m, h)),
        rng.standard_normal((h, V)),
        rng.integers(0, V, m),
        rng.standard_normal(V),
    )
    found = chunked(*map(make, arrays), make(np.array(2.0)))
    found = [a.to_numpy() if hasattr(a, "to_numpy") else np.asarray(a) for a in found]
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(arrays[0] @ arrays[1] + arrays[3]), torch.tensor(arrays[2])
    )
    np.testing.assert_allclose(found[0], expected, rtol=1e-13, atol=1e-15)
    assert [a.shape for a in found[1:]] == [(m, h), (h, V), (V,)]
    if m == 0 or V == 1:
        assert not any(a.any() for a in found[1:])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chunk": 0}, ValueError, "chunk: expected at least 1 token at a time; got 0"),
        ({"chunk": -3}, ValueError, "chunk: expected at least 1 token at a time; got -3"),
        ({"chunk": 2.0}, TypeError, "chunk: expected an integer; got float"),
        ({"reduction": "none"}, ValueError, "reduction: expected 'mean' or 'sum'; got 'none'"),
        ({"ignore_index": 2.0}, TypeError, "ignore_index: expected an integer; got float"),
    ],
)
def test_bad_options_are_refused_before_any_arithmetic(options, error, message):
    inputs = [counting.array(a) for a in drawn()]
    with counting.tally() as tally, pytest.raises(error, match=message):
        linear_cross_entropy.forward(*inputs, **options)
    assert tally.total == 0


def test_a_target_outside_the_vocabulary_is_refused_before_any_arithmetic():
    x, w, t, b = drawn()
    t[5] = V
    message = "t: expected targets from 0 to 4, or -100 to ignore; got 5"
    with counting.tally() as tally, pytest.raises(IndexError, match=message):
        linear_cross_entropy.forward(*map(counting.array, (x, w, t, b)))
    assert tally.total == 0
