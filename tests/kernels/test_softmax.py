"""The softmax kernel against ``ops.softmax`` in float64 and beside PyTorch's operator, element by element.

Inputs are rounded to the dtype first and then widened for the reference, so that an error is the kernel's
own. In each row it may be twice that of PyTorch's operator on the same row. Where PyTorch happens to be
exact that would allow nothing, so there is a floor: one unit in the last place of what is stored, and four
of the arithmetic's (an exponential, a sum, a quotient, and a product or a difference), of the largest term
in the row.
"""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import interpreted  # noqa: E402
from backpass.kernels import softmax as kernel  # noqa: E402
from backpass.kernels.launch import accumulator, rows_of  # noqa: E402
from backpass.ops import softmax as op  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INF = float("inf")


@pytest.fixture(params=["rows", "tiles"])
def path(request, monkeypatch):
    """Both ways through the kernel: rows kept whole, and tiles so small that a short row needs several."""
    if request.param == "tiles":
        monkeypatch.setattr(kernel, "ROW_BYTES", 4)
        monkeypatch.setattr(kernel, "TILE_BYTES", 128)
    return request.param


@pytest.fixture
def poisoned(monkeypatch):
    """What the kernel allocates is full of NaN, and so is the memory around it: an element that it forgets to write
    shows in the result, one that it writes outside shows in that margin."""
    margin = 4096
    margins = []

    def full_of_nan(shape, **options):
        size = torch.Size(shape).numel()
        memory = torch.full((margin + size + margin,), torch.nan, **options)
        margins.extend((memory[:margin], memory[-margin:]))
        return memory[margin:-margin].view(shape)

    monkeypatch.setattr(torch, "empty", full_of_nan)
    yield
    assert margins
    assert all(torch.isnan(each).all() for each in margins), "written outside of the result"


def draw(*shape, dtype, device, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).to(device)


def gradient_by_pytorch(dy, y):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def assert_as_exact_as_pytorch(name, got, theirs, exact, largest_term):
    """``largest_term[*, 1]`` scales each row's floor: where terms cancel, it is larger than any result."""
    assert got.dtype == theirs.dtype
    assert got.shape == exact.shape
    wide = accumulator(got.dtype)
    floor = (torch.finfo(got.dtype).eps + 4 * torch.finfo(wide).eps) * largest_term
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


def check_backward(dy, y, dx):
    """The backward is judged on the ``y`` it was given, the rounded one."""
    dy64, y64 = dy.double(), y.double()
    exact = op.backward(dy64, op.Saved(y64))
    dot_of_sizes = torch.sum(dy64.abs() * y64, dim=-1, keepdim=True)
    largest_term = (y64 * (dy64.abs() + dot_of_sizes)).amax(dim=-1, keepdim=True)
    assert_as_exact_as_pytorch("dx", dx, gradient_by_pytorch(dy, y), exact, largest_term)
    assert exact.abs().max() > 0, "a gradient of zeros would prove nothing"


def check(x, dy):
    """Forward and backward of the kernel on these, of any strides, and neither changed."""
    x_before, dy_before = x.clone(), dy.clone()

    y, saved = kernel.forward(x)
    exact, _ = op.forward(x.double())
    finite = x.max(dim=-1, keepdim=True).values > -INF
    theirs = torch.where(finite, torch.softmax(x, -1), 0.0)
    assert_as_exact_as_pytorch("y", y, theirs, exact, exact.amax(dim=-1, keepdim=True))

    dx = kernel.backward(dy, saved)
    check_backward(dy, y, dx)

    assert torch.equal(x, x_before)
    assert torch.equal(dy, dy_before)
    return y, dx


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (3, 5, 100), (1000,), (2, 1, 3, 31), (33, 2)], ids=str)
def test_odd_sizes(shape, dtype, path, device, poisoned):
    check(draw(*shape, dtype=dtype, device=device), draw(*shape, dtype=dtype, device=device, seed=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_longer_than_a_block(dtype, device, poisoned):
    n = kernel.ROW_BYTES // 4 + 1001
    check(draw(2, n, dtype=dtype, device=device), draw(2, n, dtype=dtype, device=device, seed=1))


def test_the_longest_row_in_one_block(device, poisoned):
    n = kernel.ROW_BYTES // 4
    check(
        draw(2, n, dtype=torch.float32, device=device),
        draw(2, n, dtype=torch.float32, device=device, seed=1),
    )


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


@pytest.mark.parametrize("view", STRIDED)
@pytest.mark.parametrize("strided", ["x", "dy"])
def test_any_strides(view, strided, path, device, poisoned):
    view = STRIDED[view]
    x = view(lambda *shape: draw(*shape, dtype=torch.float32, device=device))
    dy = view(lambda *shape: draw(*shape, dtype=torch.float32, device=device, seed=1))
    if strided == "x":
        check(x, draw(*x.shape, dtype=torch.float32, device=device, seed=1))
    else:
        check(draw(*dy.shape, dtype=torch.float32, device=device), dy)


def test_rows_are_found_without_a_copy():
    heads = torch.empty(2, 5, 3, 35, device="meta")
    assert rows_of(heads)[1]["length_1"] == 1  # contiguous: one axis of 30 rows
    swapped = heads.transpose(1, 2)
    same, walk = rows_of(swapped)
    assert same is swapped
    assert walk == {
        "length_1": 3,
        "length_2": 5,
        "stride_0": 525,
        "stride_1": 35,
        "stride_2": 105,
        "stride_n": 1,
    }
    assert rows_of(torch.empty(35, device="meta").expand(4, 5, 35))[1]["stride_0"] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_minus_infinity_has_weight_and_gradient_zero(dtype, path, device, poisoned):
    x = draw(4, 3, 45, dtype=dtype, device=device)
    x[0, :, ::3] = -INF
    x[1, 1, 1:] = -INF
    x[2] = -INF
    x[3, :, :40] = -INF  # whole tiles of it before the first score
    y, dx = check(x, draw(4, 3, 45, dtype=dtype, device=device, seed=1))
    assert torch.all(y[x == -INF] == 0)
    assert torch.all(dx[x == -INF] == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_of_ten_thousand(dtype, path, device, poisoned):
    x = draw(3, 77, dtype=dtype, device=device)
    dy = draw(3, 77, dtype=dtype, device=device, seed=1)
    check(torch.round(x) + 1e4, dy)
    check(torch.round(x) - 1e4, dy)
    y, _ = kernel.forward(1e4 * x)
    assert torch.equal(y, torch.nn.functional.one_hot(x.argmax(-1), 77).to(dtype))


def test_the_maximum_may_come_last(path, device, poisoned):
    """Each tile raises the maximum, so every sum so far is rescaled."""
    x = torch.arange(90.0, device=device).reshape(1, 90) * torch.tensor([[0.1], [1.0]], device=device)
    check(x, draw(2, 90, dtype=torch.float32, device=device, seed=1))


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
@pytest.mark.parametrize("bad", [torch.nan, INF])
def test_nan_and_infinity_spoil_their_own_row_only(bad, path, device):
    x = draw(3, 50, dtype=torch.float32, device=device)
    x[1, 7] = bad
    y, _ = kernel.forward(x)
    assert torch.isnan(y).any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_runs_agree_to_the_last_bit(dtype, path, device):
    x, dy = (draw(9, 300, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    first, second = (kernel.forward(x)[0] for _ in range(2))
    assert torch.equal(first, second)
    first, second = (kernel.backward(dy, kernel.Saved(first)) for _ in range(2))
    assert torch.equal(first, second)


def test_weights_need_not_be_contiguous(path, device):
    y = torch.softmax(draw(40, 6, dtype=torch.float32, device=device), 0).T
    dy = draw(6, 40, dtype=torch.float32, device=device, seed=1)
    check_backward(dy, y, kernel.backward(dy, kernel.Saved(y)))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (1, 1)], ids=str)
def test_no_rows_and_one_element(shape, device):
    x = draw(*shape, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x)
    assert torch.equal(y, torch.ones(shape, device=device))
    assert torch.equal(kernel.backward(x, saved), torch.zeros(shape, device=device))


def test_the_contract_is_the_operations():
    assert kernel.SHAPES == op.SHAPES
    assert kernel.Saved._fields == op.Saved._fields


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([[1.0]], TypeError, r"x: expected a torch tensor; got list"),
        (torch.ones(3, dtype=torch.int64), TypeError, r"x: expected one of float16, .*int64"),
        (torch.ones(3, dtype=torch.complex64), TypeError, r"x: expected one of float16, .*complex64"),
        (torch.ones(3, device="meta"), TypeError, r"x: expected a tensor on a CUDA device .*; got .*meta"),
        (torch.ones(()), ValueError, r"x: expected x\[\*, n\], which has at least 1 axes; got shape \[\]"),
        (torch.ones(3, 0), ValueError, r"x: expected x\[\*, n\] with n of at least 1; got shape \[3, 0\]"),
    ],
    ids=["list", "int64", "complex64", "meta", "no axis", "empty row"],
)  # fmt: skip
def test_forward_refuses(x, error, message, device):
    if isinstance(x, torch.Tensor) and x.device.type == "cpu":
        x = x.to(device)
    with pytest.raises(error, match=message):
        kernel.forward(x)


@pytest.mark.parametrize(
    ("dy", "error", "message"),
    [
        (1.0, TypeError, r"dy: expected a torch tensor; got float"),
        (torch.ones(3, 5, dtype=torch.float64), TypeError, r"dy: expected forward's dtype, torch\.float32"),
        (torch.ones(5, 3), ValueError, r"dy: expected the output's shape \[3, 5\]; got shape \[5, 3\]"),
    ],
    ids=["float", "float64", "transposed"],
)
def test_backward_refuses(dy, error, message, device):
    _, saved = kernel.forward(torch.ones(3, 5, device=device))
    with pytest.raises(error, match=message):
        kernel.backward(dy.to(device) if isinstance(dy, torch.Tensor) else dy, saved)


def test_cpu_tensors_are_refused_outside_the_interpreter(compiling):
    """In a process of its own: this one may be the interpreter's."""
    code = "import torch; from backpass.kernels import load; load('softmax').forward(torch.ones(3))"
    done = subprocess.run([sys.executable, "-c", code], env=compiling, capture_output=True, text=True)
    assert "TypeError: x: expected a tensor on a CUDA device" in done.stderr
    assert "set TRITON_INTERPRET=1" in done.stderr


@pytest.mark.skipif(interpreted(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(device):
    x = torch.zeros(2**17 + 1, 2**14, dtype=torch.float16, device=device)
    x[-1] = draw(2**14, dtype=torch.float16, device=device)
    y, saved = kernel.forward(x)
    assert torch.equal(y[-1], kernel.forward(x[-1])[0])
    dy = torch.zeros_like(x)
    dy[-1] = draw(2**14, dtype=torch.float16, device=device, seed=1)
    assert torch.equal(kernel.backward(dy, saved)[-1], kernel.backward(dy[-1], kernel.Saved(y[-1])))
