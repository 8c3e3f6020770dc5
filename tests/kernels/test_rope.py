"""The RoPE kernels against ``ops.rope`` in float64 and beside it at their own dtype: PyTorch has no such operator."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import executed, on_cpu  # noqa: E402
from backpass.kernels import rope as kernel  # noqa: E402
from backpass.ops import rope as op  # noqa: E402

from .support import DTYPES, STRIDED, assert_as_exact_as_pytorch, draw, draw_view  # noqa: E402

both_forms = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


def tables(x, seed=3):
    """Random ones, which do not belong to a rotation: a cosine in a sine's place shows."""
    s, d = x.shape[-2:]
    return (draw(s, d // 2, dtype=x.dtype, device=x.device, seed=seed + at) for at in range(2))


def check(x, dy, cos, sin, interleaved):
    """Forward and backward of the kernel on these, of any strides, and none changed."""
    given = (x, dy, cos, sin)
    before = [value.clone() for value in given]
    y, saved = kernel.forward(x, cos, sin, interleaved=interleaved)
    dx = kernel.backward(dy, saved)
    assert all(torch.equal(value, was) for value, was in zip(given, before, strict=True))

    x64, dy64, cos64, sin64 = (value.double() for value in given)
    exact_y, saved64 = op.forward(x64, cos64, sin64, interleaved=interleaved)
    their_y, their_saved = op.forward(x, cos, sin, interleaved=interleaved)
    judge("y", y, their_y, exact_y, x64, cos64, sin64)
    judge("dx", dx, op.backward(dy, their_saved), op.backward(dy64, saved64), dy64, cos64, sin64)
    assert exact_y.abs().max() > 0
    return y, dx


def judge(name, got, theirs, exact, x, cos, sin):
    largest_factor = torch.maximum(cos.abs(), sin.abs()).amax(dim=-1, keepdim=True)
    largest_term = x.abs().amax(dim=-1, keepdim=True) * largest_factor
    assert_as_exact_as_pytorch(name, got, theirs, exact, largest_term)


@both_forms
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 2), (3, 5, 66), (2, 3, 2, 1, 10), (2, 5, 256)], ids=str)
def test_odd_sizes(shape, dtype, interleaved, device, poisoned):
    x, dy = (draw(*shape, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    check(x, dy, *tables(x), interleaved)


@both_forms
def test_rows_longer_than_a_program(interleaved, device, poisoned):
    x, dy = (draw(3, 2 * kernel.PAIRS + 26, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    check(x, dy, *tables(x), interleaved)


@both_forms
@pytest.mark.parametrize("view", STRIDED)
def test_any_strides(view, interleaved, device, poisoned):
    x, dy = (torch.cat([draw_view(view, device=device, seed=seed)] * 2, dim=-1) for seed in (0, 1))
    strided = [draw_view(view, device=device, seed=seed)[..., :34] for seed in (2, 3)]
    x, dy = x[..., :34], dy[..., :34]
    check(strided[0], dy, *tables(x), interleaved)
    check(x, strided[1], *tables(x), interleaved)


@both_forms
def test_heads_are_read_where_they_lie(interleaved, device, poisoned):
    """[b, s, n_h, d] seen as [b, n_h, s, d], as a projection leaves it."""
    x, dy = (
        draw(2, 5, 3, 34, dtype=torch.float32, device=device, seed=seed).transpose(1, 2) for seed in (0, 1)
    )
    cos, sin = tables(x)
    launch = kernel.launch(x, cos, sin, torch.empty_like(x), interleaved, 1)
    assert launch.arguments["x_ptr"] is x
    check(x, dy, cos, sin, interleaved)


@both_forms
def test_tables_need_not_be_contiguous(interleaved, device, poisoned):
    x, dy = (draw(2, 5, 14, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    cos = draw(7, 5, dtype=torch.float32, device=device, seed=2).T
    sin = draw(1, 7, dtype=torch.float32, device=device, seed=3).expand(5, 7)
    check(x, dy, cos, sin, interleaved)


# Leading axes of x and of a table. The third has four axes that do not merge.
SHARED = [((2, 3), (2, 1)), ((2, 3), (1, 3)), ((2, 3, 2, 3), (3, 1, 3)), ((3, 2), (3, 2))]


@both_forms
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("leading", "shared"), SHARED, ids=str)
def test_tables_of_some_axes(leading, shared, dtype, interleaved, device, poisoned):
    x, dy = (draw(*leading, 5, 14, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    cos, sin = (draw(*shared, 5, 7, dtype=dtype, device=device, seed=seed) for seed in (2, 3))
    check(x, dy, cos, sin, interleaved)
    check(x, dy, cos, sin[..., :1, :, :], interleaved)  # of strides that differ from the cosines'


@both_forms
def test_tables_are_read_where_they_lie(interleaved, device, poisoned):
    """One half of tables of twice the width, shared by the heads that a projection left."""
    x, dy = (
        draw(2, 5, 3, 34, dtype=torch.float32, device=device, seed=seed).transpose(1, 2) for seed in (0, 1)
    )
    full = [draw(2, 1, 5, 34, dtype=torch.float32, device=device, seed=seed) for seed in (2, 3)]
    cos, sin = (table[..., :17] for table in full)
    launch = kernel.launch(x, cos, sin, torch.empty_like(x), interleaved, 1)
    assert [launch.arguments[f"{name}_ptr"].data_ptr() for name in ("x", "cos", "sin")] == [
        tensor.data_ptr() for tensor in (x, cos, sin)
    ]
    assert launch.arguments["cos_stride_1"] == 0
    check(x, dy, cos, sin, interleaved)


@both_forms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tables_of_float32_are_used_in_float32(dtype, interleaved, device, poisoned):
    """Nothing is rounded but the result: what the kernel writes is the rounding of float64."""
    x, dy = (draw(2, 3, 5, 34, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    cos, sin = tables(x.float())
    y, dx = check(x, dy, cos, sin, interleaved)
    assert y.dtype == dx.dtype == dtype
    exact_y, saved64 = op.forward(x.double(), cos.double(), sin.double(), interleaved=interleaved)
    apart = {"rtol": torch.finfo(dtype).eps / 2 * 1.001, "atol": 1e-6}
    if on_cpu() and not executed() and dtype == torch.bfloat16:  # Triton's interpreter truncates
        apart["rtol"] *= 2
    torch.testing.assert_close(y.double(), exact_y, **apart)
    torch.testing.assert_close(dx.double(), op.backward(dy.double(), saved64), **apart)


def test_a_table_of_twice_the_width_is_rejected(device):
    x = torch.ones(3, 4, device=device)
    with pytest.raises(ValueError, match=r"^cos: .* pass backpass\.ops\.rope\.narrow\(cos\)"):
        kernel.forward(x, x, x)


@both_forms
def test_turned_forth_and_back_is_where_it_was(interleaved, device):
    x = draw(2, 3, 9, 32, dtype=torch.float64, device=device)
    cos, sin = op.tables(9, 32, offset=100_000, like=x)
    y, saved = kernel.forward(x, cos, sin, interleaved=interleaved)
    assert not torch.allclose(y, x)
    torch.testing.assert_close(kernel.backward(y, saved), x)


@both_forms
@pytest.mark.parametrize("shape", [(0, 5, 4), (3, 0, 4), (3, 5, 0), (1, 2)], ids=str)
def test_nothing_to_turn_and_one_pair(shape, interleaved, device, poisoned):
    x = draw(*shape, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x, *tables(x), interleaved=interleaved)
    assert y.shape == kernel.backward(x, saved).shape == x.shape
    if x.numel():
        check(x, x + 1, *tables(x), interleaved)


def test_an_odd_width_is_rejected(device):
    x = torch.ones(3, 5, device=device)
    with pytest.raises(ValueError, match=r"^x: "):
        kernel.forward(x, x[:, :2], x[:, :2])


@both_forms
@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(interleaved, device):
    s, d = 2**15, 256
    x = torch.zeros(2**8 + 1, s, d, dtype=torch.float16, device=device)
    x[-1] = draw(s, d, dtype=torch.float16, device=device)
    cos, sin = op.tables(s, d, like=x)
    y, saved = kernel.forward(x, cos, sin, interleaved=interleaved)
    assert torch.equal(y[-1], kernel.forward(x[-1], cos, sin, interleaved=interleaved)[0])
    dx = kernel.backward(x, saved)
    alone = saved._replace(shape=(s, d))
    assert torch.equal(dx[-1], kernel.backward(x[-1], alone))
