"""The cross_entropy kernel against ``ops.cross_entropy`` in float64 and beside PyTorch's operator, element by element."""

import pytest

from pairwise import pairs

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import cross_entropy as kernel  # noqa: E402
from backpass.kernels import on_cpu  # noqa: E402
from backpass.ops import cross_entropy as op  # noqa: E402

from .support import (  # noqa: E402
    DTYPES,
    INF,
    STRIDED,
    assert_as_exact_as_pytorch,
    draw,
    draw_view,
    gradients_by_autograd,
)


@pytest.fixture(params=["whole rows", "pieces"])
def path(request, monkeypatch):
    """Rows that one program holds whole, and pieces so small that a short row has several."""
    if request.param == "pieces":
        monkeypatch.setattr(kernel, "ROW_BYTES", 128)
    return request.param


def targets(x, seed=3):
    """One of the classes for each row, among them the first and the last."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.randint(x.shape[-1], x.shape[:-1], generator=generator)
    if t.numel() > 1:
        t.view(-1)[:2] = torch.tensor([0, x.shape[-1] - 1])
    return t.to(x.device)


def check(x, t, weight=None, **options):
    """Forward and backward of the kernel on these, of any strides, and none changed."""
    given = [value for value in (x, t, weight) if value is not None]
    before = [value.clone() for value in given]
    unreduced = options.get("reduction") == "none"
    dy = torch.tensor(-1.75, dtype=x.dtype, device=x.device)
    if unreduced:
        dy = draw(*t.shape, dtype=x.dtype, device=x.device, seed=5)

    def theirs(x):
        rows = x.reshape(-1, x.shape[-1])
        y = torch.nn.functional.cross_entropy(rows, t.reshape(-1), weight, **options)
        return y.reshape(t.shape) if unreduced else y

    y, saved = kernel.forward(x, t, weight, **options)
    dx = kernel.backward(dy, saved)
    exact_weight = None if weight is None else weight.double()
    exact_y, exact_saved = op.forward(x.double(), t, exact_weight, **options)
    exact_dx = op.backward(dy.double(), exact_saved)

    # The loss of a row is a logarithm of at least 1, to the digits that 1 has, and what the target lacks of the
    # largest score: neither is below 0, so nothing cancels. Class weights multiply it, and smoothing mixes such losses.
    divisor = exact_saved.divisor or 1
    most = 1 if weight is None else exact_weight.max()
    rows = (1 if unreduced else exact_saved.t.numel() / divisor) * most
    floor = exact_y[..., None] if unreduced else exact_y
    y, their_y, exact = (v[..., None] if unreduced else v for v in (y, theirs(x), exact_y))
    assert_as_exact_as_pytorch("y", y, their_y, exact, floor + rows, roundings=8)
    (their_dx,) = gradients_by_autograd(theirs, dy, x)
    largest_dx = (dy.double().abs() / divisor * most)[..., None] * torch.ones_like(exact_dx[..., :1])
    assert_as_exact_as_pytorch("dx", dx, their_dx, exact_dx, largest_dx)
    assert exact_dx.abs().max() > 0, "a gradient of zeros would prove nothing"

    for now, then in zip(given, before, strict=True):
        assert torch.equal(now, then)
    return y, dx


def class_weights(x, seed=4):
    """A positive weight for each class, one of them 0."""
    weight = draw(x.shape[-1], dtype=x.dtype, device=x.device, seed=seed).abs()
    weight[1] = 0
    return weight


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2, 5, 100), (300,), (33, 2)], ids=str)
def test_odd_sizes(shape, dtype, path, device, poisoned):
    x = draw(*shape, dtype=dtype, device=device)
    check(x, targets(x))


@pytest.mark.parametrize(
    ("row_bytes", "dtype", "reduction", "smoothing", "weighted"),
    pairs(
        [None, 128],
        DTYPES,
        ["mean", "sum", "none"],
        [0.0, 0.1, 1.0],
        [False, True],
        of=("backpass.kernels.cross_entropy",),
    ),
    ids=str,
)
def test_options(row_bytes, dtype, reduction, smoothing, weighted, monkeypatch, device, poisoned):
    """Any two values of two options occur together."""
    if row_bytes:
        monkeypatch.setattr(kernel, "ROW_BYTES", row_bytes)
    x = draw(7, 5, 37, dtype=dtype, device=device)
    t = targets(x)
    t[1, 2] = t[3] = 36
    weight = class_weights(x) if weighted else None
    _, dx = check(x, t, weight, ignore_index=36, reduction=reduction, label_smoothing=smoothing)
    assert torch.all(dx[t == 36] == 0)


@pytest.mark.parametrize("view", STRIDED)
def test_any_strides_of_scores_weights_and_cotangents(view, path, device, poisoned):
    x = draw_view(view, device=device)
    weight = torch.stack([class_weights(x)] * 2, dim=-1)[..., 0]
    t = targets(x)
    check(x, t, weight, label_smoothing=0.3, reduction="none")
    y, saved = kernel.forward(x, t, weight, reduction="none")
    one = torch.ones((), device=device)
    assert torch.equal(
        kernel.backward(one.expand(t.shape), saved), kernel.backward(torch.ones_like(y), saved)
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_rows_count_for_nothing(reduction, path, device, poisoned):
    x = draw(4, 5, 37, dtype=torch.float32, device=device)
    t = targets(x)
    t[1, 2] = t[3] = 36  # the last class; the piece's columns go beyond
    _, dx = check(x, t, ignore_index=36, reduction=reduction)
    assert torch.all(dx[t == 36] == 0)
    assert torch.all((dx != 0).any(-1) == (t != 36))


def test_all_rows_ignored(path, device, poisoned):
    x = draw(4, 37, dtype=torch.float32, device=device)
    t = torch.full((4,), -100, device=device)
    for reduction, expected in (("mean", torch.nan), ("sum", 0.0)):
        y, saved = kernel.forward(x, t, reduction=reduction)
        torch.testing.assert_close(y, torch.tensor(expected, device=device), equal_nan=True)
        assert torch.equal(kernel.backward(torch.ones((), device=device), saved), torch.zeros_like(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_vocabulary_longer_than_a_piece(dtype, device, poisoned):
    n = kernel.ROW_BYTES // 4 + 1001
    x = draw(2, n, dtype=dtype, device=device)
    check(x, targets(x))


@pytest.mark.parametrize("view", STRIDED)
def test_any_strides(view, path, device, poisoned):
    x = draw_view(view, device=device)
    check(x, targets(x))


def test_targets_of_any_strides_and_integers(path, device, poisoned):
    x = draw(6, 3, 37, dtype=torch.float32, device=device)
    t = targets(x)
    y, _ = check(x, t)
    for other in (t.to(torch.int32), t.to(torch.uint8), t.T.contiguous().T, torch.stack([t, t], -1)[..., 0]):
        assert torch.equal(kernel.forward(x, other)[0], y)
    check(x, torch.tensor([5], device=device).expand(6, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_scores_of_ten_thousand(offset, dtype, path, device, poisoned):
    x = torch.round(draw(5, 77, dtype=dtype, device=device)) + offset
    wide = (1e4 * draw(5, 77, dtype=torch.float64, device=device)).to(dtype).clamp(-6e4, 6e4)
    for scores in (x, wide):
        check(scores, targets(scores))
        check(scores, targets(scores), class_weights(scores), label_smoothing=0.1)


def test_a_sure_target_keeps_its_digits(path, device, poisoned):
    """Its weight rounds to 1 in bfloat16; its gradient is not 0."""
    x = torch.zeros(2, 40, dtype=torch.bfloat16, device=device)
    x[:, 7] = 10.0
    t = torch.full((2,), 7, device=device)
    _, dx = check(x, t, reduction="sum")
    exact = -1.75 * -39 * torch.exp(torch.tensor(-10.0, dtype=torch.float64))
    assert abs(dx[0, 7].double() - exact) < 0.01 * exact


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
def test_minus_infinity(path, device):
    x = draw(3, 45, dtype=torch.float32, device=device)
    x[0, 1:] = -INF
    x[1, :40] = -INF  # whole pieces of it before the first score
    x[2] = -INF
    t = torch.tensor([0, 44, 5], device=device)
    assert kernel.forward(x, t)[0] == INF  # the last row gives its target no weight
    y, saved = kernel.forward(x[:2], t[:2])
    exact_y, exact_saved = op.forward(x[:2].double(), t[:2])
    torch.testing.assert_close(y.double(), exact_y)
    dy = torch.tensor(1.5, device=device)
    dx = kernel.backward(dy, saved)
    torch.testing.assert_close(dx.double(), op.backward(dy.double(), exact_saved), rtol=1e-5, atol=1e-7)
    assert torch.all(dx[x[:2] == -INF] == 0)


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
def test_smoothing_gives_a_class_that_is_impossible_its_share(path, device):
    """The loss is infinite, as PyTorch's, and the gradient is minus the share; the gradient of other rows is theirs."""
    x = draw(3, 45, dtype=torch.float32, device=device)
    x[0, 1:] = -INF
    x[1, :40] = -INF
    t = torch.tensor([0, 44, 5], device=device)
    y, saved = kernel.forward(x, t, reduction="none", label_smoothing=0.5)
    exact_y, exact = op.forward(x.double(), t, reduction="none", label_smoothing=0.5)
    torch.testing.assert_close(y.double(), exact_y)
    assert y[:2].tolist() == [INF, INF]
    dy = torch.tensor([1.5, -2.0, 0.5], device=device)
    dx = kernel.backward(dy, saved)
    torch.testing.assert_close(dx.double(), op.backward(dy.double(), exact), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(dx[0, 1:], torch.full((44,), -1.5 * 0.5 / 45, device=device))


def test_the_maximum_may_come_last(path, device, poisoned):
    """Each piece raises the maximum, so every sum so far is rescaled."""
    x = torch.arange(90.0, device=device).reshape(1, 90) * torch.tensor([[0.1], [1.0]], device=device)
    check(x, torch.tensor([30, 88], device=device))


@pytest.mark.skipif(not on_cpu(), reason="an assertion on a CUDA device would stop all later tests")
def test_targets_outside_are_rejected(device):
    x = torch.zeros(2, 5, device=device)
    with pytest.raises(IndexError, match="t: expected targets from 0 to 4, or -100 to ignore; got 5"):
        kernel.forward(x, torch.tensor([1, 5], device=device))
    with pytest.raises(IndexError, match="got -1"):
        kernel.forward(x, torch.tensor([-1, 3], device=device))


def test_options_and_weights_that_do_not_fit_are_rejected(device):
    x = torch.zeros(2, 5, device=device)
    t = torch.tensor([1, 3], device=device)
    with pytest.raises(ValueError, match="reduction: expected 'mean' or 'sum' or 'none'; got 'average'"):
        kernel.forward(x, t, reduction="average")
    with pytest.raises(ValueError, match="label_smoothing: expected a probability from 0 to 1; got 2"):
        kernel.forward(x, t, label_smoothing=2)
    with pytest.raises(
        ValueError, match=r"weight: expected weight\[V\] with V = 5, as in x; got shape \[4\]"
    ):
        kernel.forward(x, t, torch.ones(4, device=device))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_no_rows(shape, device):
    x = draw(*shape, dtype=torch.float32, device=device)
    t = torch.zeros(shape[:-1], dtype=torch.int64, device=device)
    y, saved = kernel.forward(x, t)
    assert torch.isnan(y)
    assert kernel.forward(x, t, reduction="sum")[0] == 0
    assert kernel.backward(y, saved).shape == shape


def test_one_class(path, device):
    x = draw(3, 1, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x, torch.zeros(3, dtype=torch.int64, device=device))
    assert y == 0
    assert torch.equal(kernel.backward(torch.ones((), device=device), saved), torch.zeros_like(x))


@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(device):
    x = torch.zeros(2**14 + 1, 2**17, dtype=torch.float16, device=device)
    x[-1] = draw(2**17, dtype=torch.float16, device=device)
    t = torch.full((len(x),), -100, device=device)
    t[-1] = 2**17 - 1
    y, saved = kernel.forward(x, t)
    last_y, last_saved = kernel.forward(x[-1], t[-1])
    assert torch.equal(y, last_y)
    dy = torch.ones_like(y)
    assert torch.equal(kernel.backward(dy, saved)[-1], kernel.backward(dy, last_saved))
