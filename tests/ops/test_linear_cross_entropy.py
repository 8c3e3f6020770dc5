"""What linear_cross_entropy promises beside the contract: the plain form's results at every chunk, without its array."""

import ast
import warnings
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backpass import cost
from backpass.contract.values import chunk_or_default
from backpass.interpreters import counting
from backpass.ops import cross_entropy, linear, linear_cross_entropy
from backpass.verify.mutation import compiled, mutants

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])
M, H, V = 7, 4, 5


def drawn(m=M, h=H, V=V, seed=0):
    rng = np.random.default_rng(seed)
    x, w, b = rng.standard_normal((m, h)), rng.standard_normal((h, V)), rng.standard_normal(V)
    t = rng.integers(0, V, m)
    t[1::3] = -100
    return x, w, t, b


def plain(x, w, t, b, dy, weight=None, **options):
    """The head, then the loss: y, dx, dw and db."""
    scores, head = linear.forward(x, w, b)
    y, loss = cross_entropy.forward(scores, t, weight, **options)
    return y, *linear.backward(cross_entropy.backward(dy, loss), head)


def chunked(x, w, t, b, dy, weight=None, *, op=linear_cross_entropy, **options):
    y, saved = op.forward(x, w, t, b, weight, **options)
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
        assert not any(g.any() for g in found[1:]) and np.isnan(float(found[0])) == (reduction == "mean")


WEIGHT = np.array([0.5, 0.0, 2.0, 1.25, 0.75])


@REDUCTIONS
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["all equal", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignored", [[], range(3), range(M)], ids=["none", "a chunk", "all"])
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.filterwarnings("error")
def test_class_weights_and_smoothing_are_those_of_the_loss(make, ignored, smoothing, weight, reduction):
    x, w, t, b = drawn()
    t = np.abs(t) % V
    t[list(ignored)] = 2
    arguments = (*map(make, (x, w, t, b, np.array(-1.75))), None if weight is None else make(weight))
    options = {"reduction": reduction, "ignore_index": 2, "label_smoothing": smoothing}
    found = chunked(*arguments, chunk=3, **options)
    agree(found, plain(*arguments, **options))
    if len(ignored) == M:
        assert not any(g.any() for g in found[1:]) and np.isnan(float(found[0])) == (reduction == "mean")


@pytest.mark.parametrize(
    "options", [{"weight": WEIGHT}, {"label_smoothing": 0.1}, {"weight": WEIGHT, "label_smoothing": 0.1}]
)
@pytest.mark.parametrize("chunk", [1, 3, M, None])
def test_no_cost_of_the_options_depends_on_the_chunk(chunk, options):
    weight, rest = options.get("weight"), {k: v for k, v in options.items() if k != "weight"}
    for wanted in (None, ("x",), ()):
        inputs = (*drawn(), weight)
        counted = cost.count(linear_cross_entropy, *inputs, chunk=chunk, wanted=wanted, **rest)
        formula = cost.formula(linear_cross_entropy, *inputs, wanted=wanted, **rest)
        assert (counted.forward.total, counted.backward.total) == formula


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
    # A chunk's scores with the bias, less their largest, and softmax.
    chunk = chunk_or_default(None, m, h, V)
    assert made.sizes.count(chunk * V) == 3 * m // chunk

    with Made() as made:
        linear_cross_entropy.backward(torch.tensor(2.0, dtype=x.dtype), saved)
    assert sorted(size for size in made.sizes if size > 1) == sorted([m * h, h * V, V])


def test_backward_once_returns_the_same_and_makes_no_array():
    x, w, t, b = (torch.tensor(a) for a in drawn(60, 7, 40))
    dy = torch.tensor(-1.75, dtype=x.dtype)
    for wanted in (None, ("x",), ("w", "b"), ()):
        for reduction in ("mean", "sum"):
            _, saved = linear_cross_entropy.forward(x, w, t, b, wanted=wanted, reduction=reduction)
            expected = linear_cross_entropy.backward(dy, saved)
            with Made() as made:
                found = linear_cross_entropy.backward_once(dy, saved)
            agree(found, expected, rtol=0)
            assert all(size == 1 for size in made.sizes)
            assert wanted is not None or found[1] is saved.dw


def test_backward_once_rounds_16_bits_once():
    x, w, t, b = (torch.tensor(a) for a in drawn())
    x, w, b = (a.to(torch.float16) for a in (x, w, b))
    dy = torch.tensor(0.3, dtype=torch.float16)
    _, saved = linear_cross_entropy.forward(x, w, t, b)
    expected = linear_cross_entropy.backward(dy, saved)
    for one, other in zip(linear_cross_entropy.backward_once(dy, saved), expected, strict=True):
        assert one.dtype == torch.float16
        assert torch.equal(one, other)


def test_the_gradient_of_a_turned_weight_is_turned():
    x, w, t, _ = drawn(60, 7, 40)
    turned = torch.tensor(np.ascontiguousarray(w.T)).mT
    _, saved = linear_cross_entropy.forward(torch.tensor(x), turned, torch.tensor(t), chunk=16)
    assert saved.dw.mT.is_contiguous()
    agree((saved.dw,), (linear_cross_entropy.forward(x, w, t)[1].dw,))


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


def test_gradients_of_16_bits_are_summed_over_chunks_in_float32():
    """1024 chunks of one token each, all of which push one weight the same way."""
    m, dtype = 1024, torch.bfloat16
    x, w = torch.ones(m, 1, dtype=dtype), torch.tensor([[0.0, 1.0]]).to(dtype)
    t = torch.zeros(m, dtype=torch.int64)
    dy = torch.ones((), dtype=dtype)
    found = chunked(x, w, t, None, dy, chunk=1)[:3]
    expected = plain(x.double(), w.double(), t, None, dy.double())[:3]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=2 * torch.finfo(dtype).eps, atol=0)

    stalled = torch.zeros((), dtype=dtype)
    for _ in range(m):
        stalled += torch.tensor(1 / m, dtype=dtype)
    assert stalled == 0.25  # what a sum in 16 bits would have made of 1


def test_a_loss_scale_arrives_before_float16_rounds_small_gradients_to_zero():
    """A score's gradient over the number of tokens is below float16's least here; times 2¹⁰ it is not."""
    m, V = 512, 64
    x, w = torch.ones(m, 1, dtype=torch.float16), torch.zeros(1, V, dtype=torch.float16)
    w[0, 0] = 12
    weight = torch.softmax(w[0].double(), dim=0)[1]
    assert (weight / m).to(torch.float16) == 0

    _, saved = linear_cross_entropy.forward(x, w, torch.zeros(m, dtype=torch.int64), chunk=100)
    _, dw, _ = linear_cross_entropy.backward(torch.tensor(2.0**10, dtype=torch.float16), saved)
    torch.testing.assert_close(dw[0, 1:].double(), (2**10 * weight).expand(V - 1), rtol=1e-3, atol=0)


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
        (
            {"reduction": "none"},
            ValueError,
            "^reduction: expected 'mean' or 'sum', whose gradient is one number, a factor of all others; got "
            "'none'; linear and cross_entropy return the loss of each row$",
        ),
        ({"reduction": "average"}, ValueError, "^reduction: expected 'mean' or 'sum'; got 'average'$"),
        ({"label_smoothing": 2}, ValueError, "^label_smoothing: expected a probability from 0 to 1; got 2$"),
        ({"ignore_index": 2.0}, TypeError, "ignore_index: expected an integer; got float"),
    ],
)
def test_bad_options_are_rejected_before_any_arithmetic(options, error, message):
    inputs = [counting.array(a) for a in drawn()]
    with counting.tally() as tally, pytest.raises(error, match=message):
        linear_cross_entropy.forward(*inputs, **options)
    assert tally.total == 0


def test_a_target_outside_the_vocabulary_is_rejected_before_any_arithmetic():
    x, w, t, b = drawn()
    t[5] = V
    message = "t: expected targets from 0 to 4, or -100 to ignore; got 5"
    with counting.tally() as tally, pytest.raises(IndexError, match=message):
        linear_cross_entropy.forward(*map(counting.array, (x, w, t, b)))
    assert tally.total == 0


# The gradients are computed in the forward, so there single changes are to be caught, not in the backward alone.

EQUIVALENT = {
    "min(start + chunk, m) → start + chunk": "A slice in NumPy ends at the end; the array API leaves open what is beyond.",
    "min(start + chunk, m) → min(m, start + chunk)": "The smaller of two is the smaller of two.",
    "max(m, 1) → max(1, m)": "The larger of two numbers is the same in either order.",
    "max(m, 1) → max(m, 2)": "Without tokens there is one chunk more, empty as the first, which adds zeros.",
    "xp.where(t < 0, 0.0, losses) → xp.where(t < 0, -0.0, losses)": "A zero of the other sign is equal to zero.",
    "xp.where(total == 0, 1.0, total) → xp.where(total == 0, 2.0, total)": "A row of −∞ has a loss of ∞ and weights of 0, "
    "whatever its sum.",
    "(:, 0) → (:, -1)": "There is one column.",
    **dict.fromkeys(
        ("(0, :) → (-1, :)", "(0, :) → (1, :)"),
        "Of this row only the shape, the dtype and the device are read.",
    ),
    **dict.fromkeys(
        (
            "_Classes(weight, label_smoothing) → _Classes(weight, w)",
            "_Classes(weight, label_smoothing) → _Classes(weight, weight)",
        ),
        "Without smoothing its share is not read.",
    ),
    "-1 → 1": "There are two axes.",
    **dict.fromkeys(
        (
            *(
                f"like=w → like={name}"
                for name in (
                    "at_class",
                    "classes",
                    "db",
                    "dw",
                    "dx",
                    "dz",
                    "loss",
                    "of_all",
                    "top",
                    "total",
                    "x",
                )
            ),
            "add_product(dw, transpose(widened(x)), dz, like=w) → add_product(dw, transpose(widened(x)), dz)",
        ),
        "Says how the gradient lies in memory, which a test above holds.",
    ),
}


def changes():
    """Those of what computes a chunk, and of the loop over chunks."""
    for name, chosen in (
        ("_add_chunk", lambda node: True),
        ("_less_target", lambda node: True),
        ("_classes", lambda node: True),
        ("forward", lambda node: isinstance(node, ast.For)),
    ):
        yield from mutants(vars(linear_cross_entropy)[name], chosen)


def asked():
    """Inputs, options and what is expected of them: uneven chunks, no bias, several axes, 16 bits, no tokens, one
    gradient alone."""
    x, w, t, b = drawn()
    dy = np.array(-1.75)
    half = [
        torch.tensor(a).to(torch.float16) if a.dtype == float else torch.tensor(a) for a in (x, w, t, b, dy)
    ]
    for inputs, options in (
        ((x, w, t, b, dy), {"chunk": 3}),
        ((x, w, t, None, dy), {}),
        ((x[:6].reshape(2, 3, H), w, t[:6].reshape(2, 3), b, dy), {"chunk": 4, "reduction": "sum"}),
        (half, {"chunk": 3}),
        ((x[:0], w, t[:0], b, dy), {"chunk": 1}),
        ((x, 1000 * w, t, b, dy), {"chunk": 3}),  # whose exponentials overflow
        ((x, w, t, np.full(V, -np.inf), dy), {"chunk": 3}),
        ((x, w, np.where(t == 0, 1, t), np.where(np.arange(V) == 0, -np.inf, b), dy), {}),
        ((x, 0 * w, t, 0 * b, dy), {}),
        *(((x, w, t, b, dy), {"chunk": 3, "wanted": (name,)}) for name in "xwb"),
        ((x, w, t, b, dy, WEIGHT), {"chunk": 3}),
        ((x, w, t, b, dy), {"chunk": 3, "label_smoothing": 0.25}),
        ((x, w, t, b, dy, WEIGHT), {"chunk": 3, "label_smoothing": 0.25}),
    ):
        yield inputs, options, chunked(*inputs, **options)


def same(found, expected):
    if expected is None:
        return found is None
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and bool(
            (
                (found == expected)
                | (abs(found - expected) <= 1e-12)
                | ((found != found) & (expected != expected))
            ).all()
        )
    )


def test_every_change_of_how_the_gradients_are_summed_is_caught(proof):
    cases = list(asked())
    made = list(changes())
    assert set(EQUIVALENT) <= {mutant.change for mutant in made}
    of = [linear_cross_entropy.forward, linear_cross_entropy.backward]
    tried = proof.part("linear_cross_entropy by chunks", made, of=of)

    def passes(op, inputs, options, expected):
        given = deepcopy(inputs)
        found = chunked(*given, op=op, **options)
        return all(map(same, (*found, *given), (*expected, *inputs)))  # the inputs are as they were, too

    def changed(mutant):
        return SimpleNamespace(**compiled(mutant, linear_cross_entropy))

    def survives(op):
        try:
            return all(passes(op, *case) for case in cases)
        except Exception:
            return False

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        assert survives(linear_cross_entropy)
        survivors = {mutant.change for mutant in tried if survives(changed(mutant))}
    assert survivors == set(EQUIVALENT) if proof.whole else survivors <= set(EQUIVALENT)


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_a_wide_loss_of_16_bits_is_float32_and_so_is_its_gradient(make):
    x, w, t, b = drawn()
    arrays = [make(a.astype(np.float16)) for a in (x, w)] + [make(t), make(b.astype(np.float16))]
    narrow, _ = linear_cross_entropy.forward(*arrays)
    y, saved = linear_cross_entropy.forward(*arrays, wide=True)
    assert (str(narrow.dtype)[-7:], str(y.dtype)[-7:]) == ("float16", "float32")
    assert np.asarray(y).astype(np.float16) == np.asarray(narrow) and y != narrow

    scaled = make(np.asarray(2.0**16, dtype=np.float32))  # infinite in float16
    wide = [np.asarray(a).astype(np.float64) for a in arrays]
    exact = plain(*wide[:2], t, wide[3], np.array(2.0**16))
    for got, gradient in zip(linear_cross_entropy.backward(scaled, saved), exact[1:], strict=True):
        assert str(got.dtype).endswith("float16")
        np.testing.assert_allclose(got, gradient, rtol=0, atol=2e-3 * np.abs(gradient).max())
    with pytest.raises(TypeError, match=r"dy: expected forward's dtype, .*float32; got .*float16"):
        linear_cross_entropy.backward(narrow, saved)
    with pytest.raises(TypeError, match="wide: expected True or False; got str"):
        linear_cross_entropy.forward(*arrays, wide="yes")
