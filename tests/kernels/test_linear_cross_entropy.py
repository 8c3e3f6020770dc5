"""The linear_cross_entropy kernel against ``ops.linear_cross_entropy`` in float64 and beside PyTorch's operators."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import linear_cross_entropy as kernel  # noqa: E402
from backpass.kernels import on_cpu  # noqa: E402
from backpass.ops import linear_cross_entropy as op  # noqa: E402

from .support import DTYPES, assert_as_exact_as_pytorch, draw, gradients_by_autograd  # noqa: E402


def draw_all(m, h, V, dtype, device):
    """x, w of a size that keeps scores near 1, t and b."""
    x = draw(m, h, dtype=dtype, device=device)
    w = draw(h, V, dtype=dtype, device=device, seed=1, scale=h**-0.5)
    t = torch.randint(V, (m,), generator=torch.Generator().manual_seed(2)).to(device)
    return x, w, t, draw(V, dtype=dtype, device=device, seed=3)


def check(x, w, t, b=None, weight=None, **options):
    dy = torch.tensor(-1.75, dtype=x.dtype, device=x.device)
    chosen = {name: value for name, value in options.items() if name != "chunk"}

    def theirs(x, w, b):
        scores = torch.nn.functional.linear(x, w.T, b).reshape(-1, w.shape[1])
        return torch.nn.functional.cross_entropy(scores, t.reshape(-1), weight, **chosen)

    y, saved = kernel.forward(x, w, t, b, weight, **options)
    gradients = kernel.backward(dy, saved)
    wide = [None if value is None else value.double() for value in (x, w, b, weight)]
    exact_y, exact_saved = op.forward(*wide[:2], t, *wide[2:], **options)
    exact = op.backward(dy.double(), exact_saved)

    # Scores and their gradients are rounded to what is stored; a gradient of w is a sum over tokens, one of x over
    # classes.
    most = 1 if weight is None else wide[3].max()
    tokens = most * t.numel() / (exact_saved.divisor or 1)
    largest_y = exact_y + tokens
    assert_as_exact_as_pytorch(
        "y", y, theirs(x, w, b), exact_y, largest_y, roundings=8, largest_stored=largest_y
    )
    their_gradients = gradients_by_autograd(theirs, dy, x, w, b)
    each = most * dy.double().abs() / (exact_saved.divisor or 1)
    over_tokens = wide[0].reshape(-1, w.shape[0]).abs().sum(dim=0)[:, None]
    largest = [2 * each * wide[1].abs().max(), each * over_tokens, each * t.numel()]
    for name, got, their, exactly, size in zip(
        ("dx", "dw", "db"), gradients, their_gradients, exact, largest, strict=True
    ):
        if exactly is None:
            assert got is None
        else:
            assert_as_exact_as_pytorch(name, got, their, exactly, size, largest_stored=size)
    return y, gradients


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [None, 1, 4, 100])
def test_chunks_of_every_size(chunk, dtype, device, poisoned):
    x, w, t, b = draw_all(11, 6, 45, dtype, device)
    check(x, w, t, b, chunk=chunk)


@pytest.mark.parametrize("weighted", [False, True], ids=["all equal", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_class_weights_and_smoothing(dtype, smoothing, weighted, device, poisoned):
    x, w, t, b = draw_all(11, 6, 45, dtype, device)
    t[2:7] = 44
    weight = draw(45, dtype=dtype, device=device, seed=4).abs() if weighted else None
    check(x, w, t, b, weight, label_smoothing=smoothing, ignore_index=44, chunk=4)
    y, saved = kernel.forward(x, w, torch.full_like(t, -100), b, weight, label_smoothing=smoothing)
    assert torch.isnan(y) and not any(g.any() for g in kernel.backward(torch.ones_like(y), saved))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_tokens_and_no_bias(reduction, device, poisoned):
    x, w, t, _ = draw_all(12, 6, 45, torch.float32, device)
    t[3:9] = 44  # a whole chunk, and parts of two
    _, (dx, _, _) = check(x, w, t, ignore_index=44, reduction=reduction, chunk=4)
    assert torch.all((dx != 0).any(-1) == (t != 44))


@pytest.mark.parametrize("turned", [False, True], ids=["w[h, V]", "w[V, h] turned"])
def test_a_chunk_adds_to_the_weights_gradient_in_place(turned, device):
    """In one dtype no array as large as w is allocated for a chunk; the sum lies in memory as w does."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Allocated(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **kwargs or {})
            if isinstance(result, torch.Tensor) and result.numel() == w.numel():
                addresses.add(result.untyped_storage().data_ptr())
                alive.append(result)
            return result

    x, w, t, _ = draw_all(12, 6, 45, torch.float32, device)
    w = w.T.contiguous().T if turned else w
    addresses, alive = {w.untyped_storage().data_ptr()}, []
    with Allocated():
        _, saved = kernel.forward(x, w, t, chunk=4)
    assert addresses == {x.untyped_storage().data_ptr() for x in (w, saved.dw)}
    assert saved.dw.stride() == w.stride()


def test_leading_axes_and_any_strides(device, poisoned):
    x, w, t, b = draw_all(12, 10, 45, torch.float32, device)
    check(x.reshape(3, 4, 10).transpose(0, 1)[..., ::2], w[::2], t.reshape(4, 3), b, chunk=5)
    check(x.expand(2, 12, 10), w.T.contiguous().T, t.expand(2, 12), b, chunk=5)


def test_scores_of_ten_thousand(device, poisoned):
    x, w, t, _ = draw_all(7, 6, 45, torch.float32, device)
    check(torch.round(4 * x), 1e4 * torch.round(4 * w), t, chunk=3)


def test_all_tokens_ignored(device):
    x, w, t, b = draw_all(5, 6, 45, torch.float32, device)
    y, saved = kernel.forward(x, w, torch.full_like(t, -100), b, chunk=2)
    assert torch.isnan(y)
    assert all(torch.all(gradient == 0) for gradient in kernel.backward(torch.ones_like(y), saved))


def test_no_tokens(device):
    _, w, t, b = draw_all(5, 6, 45, torch.float32, device)
    y, saved = kernel.forward(torch.ones(2, 0, 6, device=device), w, t[:0].reshape(2, 0), b, reduction="sum")
    dx, dw, db = kernel.backward(torch.ones_like(y), saved)
    assert y == 0
    assert dx.shape == (2, 0, 6)
    assert torch.equal(dw, torch.zeros_like(w))
    assert torch.equal(db, torch.zeros_like(b))


@pytest.mark.parametrize("chunk", [4, 600])
def test_sums_over_many_tokens_of_16_bits_do_not_stall(chunk, device):
    """Two classes of equal scores: each of 600 tokens gives a half, and in bfloat16 the sum would stop at 128."""
    x, w = (torch.ones(shape, dtype=torch.bfloat16, device=device) for shape in ((600, 1), (1, 2)))
    t = torch.zeros(600, dtype=torch.int64, device=device)
    y, saved = kernel.forward(x, w, t, w[0], reduction="sum", chunk=chunk)
    _, dw, db = kernel.backward(torch.ones_like(y), saved)
    assert dw.dtype == db.dtype == torch.bfloat16
    assert dw.tolist() == [[-300, 300]]
    assert db.tolist() == [-300, 300]


def test_scores_of_one_chunk_exist_at_a_time(device, monkeypatch):
    made = []
    empty = torch.empty

    def noting(shape, **options):
        made.append(tuple(shape) if isinstance(shape, (tuple, list)) else (shape,))
        return empty(shape, **options)

    x, w, t, b = draw_all(64, 8, 128, torch.float32, device)
    monkeypatch.setattr(torch, "empty", noting)
    kernel.forward(x, w, t, b)
    assert [shape for shape in made if shape[-1] == 128] == [(3, 128)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_scores_are_aligned(dtype, device, monkeypatch):
    """The library's products are faster on aligned rows."""
    products = []
    mm = torch.mm

    def noting(a, b, *, out):
        products.append(a if a.shape[-1] == 45 else out)
        return mm(a, b, out=out)

    monkeypatch.setattr(torch, "mm", noting)
    kernel.forward(*draw_all(9, 6, 45, dtype, device)[:3], chunk=4)
    assert len(products) == 6
    for scores in products:
        assert scores.shape[-1] == 45 and scores.stride(0) * scores.element_size() % 128 == 0


@pytest.mark.parametrize(("chunk", "error"), [(0, ValueError), (1.5, TypeError)])
def test_a_chunk_of_no_tokens_is_rejected(chunk, error, device):
    with pytest.raises(error, match=r"^chunk: expected"):
        kernel.forward(*draw_all(5, 6, 45, torch.float32, device), chunk=chunk)


@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(device):
    """A chunk's scores past 2³¹ elements: all tokens are alike, so that the gradients are too."""
    m, V = 2**14 + 1, 2**17
    x, w, _, _ = draw_all(1, 16, V, torch.float16, device)
    t = torch.full((m,), V - 1, device=device)
    y, saved = kernel.forward(x.expand(m, 16), w, t, reduction="sum", chunk=m)
    dx, _, _ = kernel.backward(torch.ones_like(y), saved)
    assert torch.equal(dx[0], dx[-1])
    assert torch.all(torch.isfinite(dx))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wide_loss_is_float32(dtype, device):
    x, w, t, b = draw_all(6, 4, 5, dtype, device)
    y, saved = kernel.forward(x, w, t, b, wide=True)
    expected, its = op.forward(x, w, t, b, wide=True)
    assert y.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(y, expected, rtol=torch.finfo(dtype).eps, atol=0)  # of rounded scores
    dy = torch.tensor(2.0**16, device=device)
    for one, other in zip(kernel.backward(dy, saved), op.backward(dy, its), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(
            one, other, rtol=0, atol=4 * torch.finfo(dtype).eps * other.abs().max().item()
        )


def test_the_gradient_of_a_transposed_view_is_one(device):
    """As a model passes its table of tokens."""
    x, w, t, b = draw_all(5, 3, 7, torch.float32, device)
    turned = w.T.contiguous().T
    results = []
    for weight in (w, turned):
        y, saved = kernel.forward(x, weight, t, b, chunk=2)
        results.append((y, *kernel.backward(torch.ones_like(y), saved)))
        assert results[-1][2].stride() == weight.stride()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
