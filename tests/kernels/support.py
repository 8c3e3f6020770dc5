"""What every kernel's tests share: drawn tensors, views of every kind of strides, and the bound on an error.

Inputs are rounded to the dtype first and then widened for the reference, so that an error is the kernel's
own. In each row it may be twice that of PyTorch's operator on the same row. Where PyTorch happens to be
exact that would allow nothing, so there is a floor: one unit in the last place of what is stored, of the
largest result in the row, and a few of the arithmetic's, of the largest term.
"""

import pytest
import torch

import proofs
from backpass import kernels
from backpass.contract import stems
from backpass.kernels.launch import accumulator

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INF = float("inf")

STRIDED = {
    "every other element": lambda a: a(4, 3, 70)[..., ::2],
    "every other row": lambda a: a(8, 3, 35)[::2],
    "last axis not innermost": lambda a: a(35, 3, 4).permute(2, 1, 0),
    "heads and queries swapped": lambda a: a(2, 5, 3, 35).transpose(1, 2),
    "four axes that do not merge": lambda a: a(3, 6, 2, 4, 35)[:, ::2].permute(3, 0, 2, 1, 4),
    "expanded over the batch": lambda a: a(1, 5, 35).expand(4, 5, 35),
    "expanded over the row": lambda a: a(4, 5, 1).expand(4, 5, 35),
    "expanded over all leading axes": lambda a: a(35).expand(3, 2, 35),
    "a part of each row": lambda a: a(4, 50)[:, 7:42],
    "negated by a flag": lambda a: torch.complex(a(4, 35), -a(4, 35)).conj().imag,
}


def draw(*shape, dtype, device, seed=0, scale=1.0):
    """Normal numbers, drawn in float64 and rounded."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).to(device)


def draw_view(view, *, device, seed=0, dtype=torch.float32):
    """One of the ``STRIDED``, drawn."""
    return STRIDED[view](lambda *shape: draw(*shape, dtype=dtype, device=device, seed=seed))


def gradients_by_autograd(function, dy, *inputs):
    """What PyTorch's autograd makes of dy, at the dtype of the inputs; None for a None."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs if value is not None]
    with torch.enable_grad():
        given = iter(leaves)
        y = function(*(None if value is None else next(given) for value in inputs))
    found = iter(torch.autograd.grad(y, leaves, dy))
    return tuple(None if value is None else next(found) for value in inputs)


def assert_as_exact_as_pytorch(name, got, theirs, exact, largest_term, roundings=4, largest_stored=None):
    """``largest_term[*, 1]`` scales what each row's floor has of the arithmetic: where terms cancel, it is larger than
    any result. Of its own units in the last place the floor has as many as there are ``roundings``, counted along
    the longest path from an input to the result, a sum for one. ``largest_stored[*, 1]`` is the largest result, unless
    something else is stored, and so rounded, on the way."""
    assert got.dtype == theirs.dtype
    assert got.shape == exact.shape
    wide = accumulator(got.dtype)
    stored = torch.finfo(got.dtype)
    if largest_stored is None:
        largest_stored = exact.abs().amax(dim=-1, keepdim=True).clamp(min=stored.tiny)
    floor = stored.eps * largest_stored + roundings * torch.finfo(wide).eps * largest_term
    twice_theirs = 2 * (theirs.double() - exact).abs().amax(dim=-1, keepdim=True)
    allowed = torch.maximum(twice_theirs, floor).expand_as(exact)
    error = (got.double() - exact).abs()
    wrong = torch.nonzero(~(error <= allowed))  # NaN is wrong too
    if len(wrong) > 0:
        first = tuple(wrong[0].tolist())
        pytest.fail(
            f"{name}: {len(wrong)} elements are off, first {list(first)}: {got[first]} for {exact[first]}, "
            f"by {error[first]:.1e} where {allowed[first]:.1e} is allowed"
        )


def assert_rounded_once(got, exact):
    """The error is that of one rounding to the dtype, and a few of the arithmetic's. Triton's interpreter truncates to
    bfloat16."""
    wide = torch.finfo(accumulator(got.dtype)).eps
    truncated = got.dtype == torch.bfloat16 and kernels.interpreted()
    allowed = (
        torch.finfo(got.dtype).eps / (1 if truncated else 2) * exact.abs() + 32 * wide * exact.abs().max()
    )
    assert got.shape == exact.shape
    assert ((got.double() - exact).abs() <= allowed).all()


def in_tiles(kernel, monkeypatch):
    """Let a kernel read its rows in tiles so small that a short row needs several."""
    read_from = kernel.launches.__globals__  # may be those of a module that kernels share
    monkeypatch.setitem(read_from, "ROW_BYTES", 4)
    monkeypatch.setitem(read_from, "TILE_BYTES", 128)


def apart_from_sums(kernel, monkeypatch, n, dtype):
    """Let a norm's backward hold a row of n elements, but not the sums beside it."""
    monkeypatch.setitem(kernel.launches.__globals__, "ROW_BYTES", n * accumulator(dtype).itemsize)


def verifying():
    """Return the code that checks a kernel."""
    return [proofs.imports("backpass.verify")]


def sources(stem, **_):
    """Return what a kernel's results depend on: its modules, those that kernels share, its operation, and the executor
    of PTX, with all that they import."""
    shared = [each for each in stems.modules_in("kernels") if each not in kernels.STEMS]
    of_kernels = (f"backpass.kernels.{each}" for each in (stem, *shared))
    return [proofs.imports(*of_kernels, f"backpass.ops.{stem}", "backpass.ptx")]
