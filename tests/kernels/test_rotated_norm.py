"""RMS norm and the RoPE after it in one kernel, forward and backward, against the two operations in float64."""

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import launch, rms_norm, sums_over_rows  # noqa: E402
from backpass.ops import rms_norm as norm_op  # noqa: E402
from backpass.ops import rope as rope_op  # noqa: E402

from .support import DTYPES, STRIDED, assert_rounded_once, draw, draw_view, in_tiles  # noqa: E402

both_forms = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 2)


def drawn(*shape, dtype, device, of_tables=None):
    """x, w, random tables, which do not belong to a rotation, and dy."""
    *_, s, d = shape
    shapes = shape, (d,), *[of_tables or (s, d // 2)] * 2, shape
    return [draw(*each, dtype=dtype, device=device, seed=seed) for seed, each in enumerate(shapes)]


def in_float64(x, w, cos, sin, dy, interleaved):
    """y, dx, and dw of the operations, one after the other."""
    x, w, cos, sin, dy = (each.double() for each in (x, w, cos, sin, dy))
    normed, of_norm = norm_op.forward(x, w, eps=0.25)
    y, of_rope = rope_op.forward(normed, cos, sin, interleaved=interleaved)
    return y, *norm_op.backward(rope_op.backward(dy, of_rope), of_norm)


def check(x, w, cos, sin, dy, interleaved, whole=True):
    """Each result is rounded once, unless the rows are not ``whole``: two kernels then run, and round twice."""
    given = x, w, cos, sin, dy
    before = [each.clone() for each in given]
    y, saved = rms_norm.forward_rotated(*given[:-1], eps=0.25, interleaved=interleaved)
    dx, dw = rms_norm.backward(dy, saved)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))
    assert (y.dtype, dx.dtype, dw.dtype) == (x.dtype, x.dtype, w.dtype)
    for got, exact in zip((y, dx, dw), in_float64(*given, interleaved), strict=True):
        if whole:
            assert_rounded_once(got, exact)
        else:
            assert (got.double() - exact).abs().max() <= 4 * torch.finfo(x.dtype).eps * exact.abs().max()
    return y, dx, dw


def launches(monkeypatch):
    """Return a list to which each launch is added."""
    ran, run = [], launch.Launch.run
    monkeypatch.setattr(launch.Launch, "run", lambda self: (ran.append(self), run(self)))
    return ran


@both_forms
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 2), (3, 5, 66), (2, 3, 2, 1, 10), (2, 5, 256)], ids=str)
def test_odd_sizes(shape, dtype, interleaved, device, poisoned):
    check(*drawn(*shape, dtype=dtype, device=device), interleaved)


@both_forms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_beside_half_precision(dtype, interleaved, device, poisoned):
    """The weight, and so its gradient, and the tables."""
    x, *factors, dy = drawn(2, 3, 5, 34, dtype=dtype, device=device)
    _, _, dw = check(x, *(each.float() * 1.001 for each in factors), dy, interleaved)
    assert dw.dtype == torch.float32


@both_forms
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_a_program_does_not_hold(dtype, interleaved, device, poisoned, monkeypatch):
    in_tiles(rms_norm, monkeypatch)
    check(*drawn(3, 5, 66, dtype=dtype, device=device), interleaved, whole=False)


@both_forms
@pytest.mark.parametrize("view", STRIDED)
def test_any_strides(view, interleaved, device, poisoned):
    strided = [
        torch.cat([draw_view(view, device=device, seed=seed)] * 2, dim=-1)[..., :34] for seed in (0, 1)
    ]
    views = [draw_view(view, device=device, seed=seed)[..., :34] for seed in (2, 3)]
    _, w, cos, sin, _ = drawn(*views[0].shape, dtype=torch.float32, device=device)
    for x, dy in itertools.product((strided[0], views[0]), (strided[1], views[1])):
        check(x, w, cos, sin, dy, interleaved)


@both_forms
def test_heads_are_read_and_written_where_they_lie(interleaved, device, poisoned, monkeypatch):
    """[b, s, n_h, d] seen as [b, n_h, s, d], as a projection leaves it: to merge dx copies nothing."""
    x, w, cos, sin, dy = drawn(2, 5, 3, 34, dtype=torch.float32, device=device, of_tables=(3, 17))
    x, dy = x.transpose(1, 2), dy.transpose(1, 2)
    cos, sin = (draw(1, 1, 5, 34, dtype=torch.float32, device=device, seed=at)[..., :17] for at in (5, 6))
    ran = launches(monkeypatch)
    y, dx, _ = check(x, w, cos, sin, dy, interleaved)
    assert y.stride() == dx.stride() == x.stride()
    for found, names in zip(ran, (("x", "y"), ("x", "dy", "dx")), strict=False):
        tensors = {"x": x, "dy": dy, "y": y, "dx": dx, "cos": cos, "sin": sin}
        for name in (*names, "cos", "sin"):
            assert found.arguments[f"{name}_ptr"].data_ptr() == tensors[name].data_ptr()
        # The heads of one position share the rows of the tables.
        assert found.arguments["cos_stride_2"] == found.arguments["sin_stride_2"] == 0


# Leading axes of x and of a table. The third has four axes that do not merge.
SHARED = [((2, 3), (2, 1)), ((2, 3), (1, 3)), ((2, 3, 2, 3), (3, 1, 3)), ((3, 2), (3, 2))]


@both_forms
@pytest.mark.parametrize(("leading", "shared"), SHARED, ids=str)
def test_tables_of_some_axes(leading, shared, interleaved, device, poisoned):
    given = drawn(*leading, 5, 14, dtype=torch.float32, device=device, of_tables=(*shared, 5, 7))
    check(*given, interleaved)
    x, w, cos, sin, dy = given
    check(x, w, cos, sin[..., :1, :, :], dy, interleaved)  # of strides that differ from the cosines'


def test_one_launch_and_one_more_for_the_weights_sums(device, monkeypatch):
    ran = launches(monkeypatch)
    check(*drawn(3, 5, 6, dtype=torch.float64, device=device), False)
    assert [each.kernel.fn.__name__ for each in ran] == [
        "_forward_rotated",
        "_backward_rotated",
        "_backward_totals",
    ]


@both_forms
def test_no_rows(interleaved, device):
    x, w, cos, sin, dy = drawn(0, 5, 6, dtype=torch.float32, device=device)
    y, saved = rms_norm.forward_rotated(x, w, cos, sin, interleaved=interleaved)
    dx, dw = rms_norm.backward(dy, saved)
    assert y.shape == dx.shape == x.shape
    assert torch.equal(dw, torch.zeros_like(w))


def test_the_default_eps_is_that_of_the_norm(device):
    x, w, cos, sin, _ = drawn(3, 6, dtype=torch.float64, device=device)
    y, _ = rms_norm.forward_rotated(1e-8 * x, w, cos, sin)
    exact, _ = rope_op.forward(norm_op.forward(1e-8 * x, w)[0], cos, sin)
    torch.testing.assert_close(y, exact)


def test_what_does_not_fit_is_rejected(device):
    x, w, cos, sin, dy = drawn(3, 5, 6, dtype=torch.float32, device=device)
    forward = rms_norm.forward_rotated
    with pytest.raises(ValueError, match=r"^w: expected w\[n\]"):
        forward(x, w[:4], cos, sin)
    with pytest.raises(ValueError, match=r"^cos: .* pass backpass\.ops\.rope\.narrow\(cos\)"):
        forward(x, w, x, x)
    with pytest.raises(ValueError, match=r"^x: "):
        forward(x[..., :5], w[:5], cos, sin)
    with pytest.raises(ValueError, match=r"^x: .* n of at least 1"):
        forward(x[..., :0], w[:0], cos[..., :0], sin[..., :0])
    with pytest.raises(TypeError, match=r"^sin: expected x's dtype"):
        forward(x, w, cos, sin.double())
    with pytest.raises(TypeError, match=r"^interleaved: expected"):
        forward(x, w, cos, sin, interleaved=1)
    with pytest.raises(ValueError, match=r"^eps: "):
        forward(x, w, cos, sin, eps=-1.0)
    with pytest.raises(TypeError, match=r"^w: expected a torch tensor; got NoneType"):
        forward(x, None, cos, sin)
    with pytest.raises(ValueError, match=r"^dy: expected the output's shape"):
        rms_norm.backward(dy[:1], forward(x, w, cos, sin)[1])
    with pytest.raises(ValueError, match=r"^saved: expected what forward_of_sum returned"):
        rms_norm.backward_of_sum(dy, dy, forward(x, w, cos, sin)[1])
