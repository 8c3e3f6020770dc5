"""A norm with the sum that it reads in one kernel, forward and backward, against the two operations in float64."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import kernels, ops  # noqa: E402
from backpass.kernels import sums_over_rows  # noqa: E402

from .support import DTYPES, apart_from_sums, assert_rounded_once, draw, in_tiles  # noqa: E402

NORMS = {"layer_norm": 2, "rms_norm": 1}  # and their parameters
every_norm = pytest.mark.parametrize("stem", NORMS)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 2)


def drawn(*shape, dtype, device):
    """x, f, dy, and ds."""
    return [draw(*shape, dtype=dtype, device=device, seed=seed) for seed in range(4)]


def parameters(stem, n, dtype, device):
    return [draw(n, dtype=dtype, device=device, seed=seed) for seed in range(4, 4 + NORMS[stem])]


def run(stem, x, f, dy, ds, *parameters):
    """Return y, s, and the gradients."""
    y, s, saved = kernels.load(stem).forward_of_sum(x, f, *parameters, eps=0.25)
    return y, s, *kernels.load(stem).backward_of_sum(dy, ds, saved)


def check(stem, *shape, dtype, device, whole):
    """The sum is rounded before it is normalised. Each gradient is rounded once, unless PyTorch adds ds, because the rows
    are not ``whole``."""
    given = drawn(*shape, dtype=dtype, device=device)
    w = parameters(stem, shape[-1], dtype, device)
    before = [value.clone() for value in (*given, *w)]
    y, s, dx, *others = run(stem, *given, *w)
    for now, then in zip((*given, *w), before, strict=True):
        assert torch.equal(now, then)

    x, f, dy, ds = (value.double() for value in given)
    exact_y, saved = ops.load(stem).forward(s.double(), *(each.double() for each in w), eps=0.25)
    exact_dx, *exact_others = ops.load(stem).backward(dy, saved)
    for got, exact in zip((s, y, *others), (x + f, exact_y, *exact_others), strict=True):
        assert_rounded_once(got, exact)
    if whole:
        assert_rounded_once(dx, exact_dx + ds)
    else:
        allowed = 4 * torch.finfo(dtype).eps * exact_dx.abs().max()
        assert (dx.double() - exact_dx - ds).abs().max() <= allowed
    assert {each.dtype for each in (y, s, dx, *others)} == {dtype}


@every_norm
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2, 3, 100)], ids=str)
def test_of_whole_rows(shape, stem, dtype, device, poisoned):
    check(stem, *shape, dtype=dtype, device=device, whole=True)


@every_norm
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ["apart from sums", "in tiles"])
def test_of_longer_rows(rows, stem, dtype, device, poisoned, monkeypatch):
    kernel = kernels.load(stem)
    if rows == "in tiles":
        in_tiles(kernel, monkeypatch)
    else:
        apart_from_sums(kernel, monkeypatch, 63, dtype)
    check(stem, 7, 63, dtype=dtype, device=device, whole=False)


@every_norm
@pytest.mark.parametrize("strided", range(4), ids=["x", "f", "dy", "ds"])
def test_any_strides(stem, strided, device, poisoned):
    given = drawn(2, 3, 35, dtype=torch.float32, device=device)
    w = parameters(stem, 35, torch.float32, device)
    expected = run(stem, *given, *w)
    given[strided] = given[strided].transpose(0, 1).contiguous().transpose(0, 1)
    for got, right in zip(run(stem, *given, *w), expected, strict=True):
        assert got.is_contiguous()
        assert torch.equal(got, right)


@every_norm
def test_no_parameters_and_no_rows(stem, device):
    given = drawn(3, 5, dtype=torch.float64, device=device)
    none = [None] * NORMS[stem]
    y, s, dx, *others = run(stem, *given)
    exact_y, saved = ops.load(stem).forward(given[0] + given[1], eps=0.25)
    torch.testing.assert_close(y, exact_y)
    torch.testing.assert_close(dx, ops.load(stem).backward(given[2], saved)[0] + given[3])
    assert others == none
    y, s, dx, *others = run(stem, *(each[:0] for each in given))
    assert y.shape == s.shape == dx.shape == (0, 5)


@every_norm
def test_what_does_not_fit_is_rejected(stem, device):
    x, f, dy, ds = drawn(3, 5, dtype=torch.float32, device=device)
    kernel = kernels.load(stem)
    with pytest.raises(ValueError, match=r"^f: expected f\[\*, n\] with .*; got shape \[3, 4\]"):
        kernel.forward_of_sum(x, f[:, :4])
    with pytest.raises(TypeError, match=r"^f: expected x's dtype"):
        kernel.forward_of_sum(x, f.double())
    _, _, saved = kernel.forward_of_sum(x, f)
    with pytest.raises(ValueError, match=r"^ds: expected ds"):
        kernel.backward_of_sum(dy, ds[:1], saved)
    with pytest.raises(TypeError, match=r"^ds: expected dy's dtype"):
        kernel.backward_of_sum(dy, ds.double(), saved)
    with pytest.raises(ValueError, match=r"^dy: expected the output's shape"):
        kernel.backward_of_sum(dy[:1], ds[:1], saved)
