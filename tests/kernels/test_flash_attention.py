"""The attention kernels against ``ops.flash_attention`` in float64 and beside PyTorch's operator."""

import math

import pytest

from pairwise import pairs

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import flash_attention as kernel  # noqa: E402
from backpass.kernels import on_cpu  # noqa: E402
from backpass.ops import flash_attention as op  # noqa: E402
from backpass.verify import check as verify  # noqa: E402

from .support import DTYPES, INF, assert_as_exact_as_pytorch, draw, gradients_by_autograd  # noqa: E402

# What a query may see: every key, or those up to its own position, counted from the first token or from the last.
SEEN = {
    "all": {},
    "from the first": {"causal": True},
    "from the last": {"causal": True, "causal_variant": "lower_right"},
}
each_way = pytest.mark.parametrize("options", SEEN.values(), ids=SEEN)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
on_a_gpu = pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes")


def draw_all(s_q, s_k, d, d_v, device, dtype=torch.float32, leading=(), g=1, n_kv=1):
    """q, k, v and dy."""
    shapes = (g * n_kv, s_q, d), (n_kv, s_k, d), (n_kv, s_k, d_v), (g * n_kv, s_q, d_v)
    return [draw(*leading, *shape, dtype=dtype, device=device, seed=at) for at, shape in enumerate(shapes)]


def run(q, k, v, dy, **options):
    """y and the gradients."""
    y, saved = kernel.forward(q, k, v, **options)
    return y, *kernel.backward(dy, saved)[:3]


def check(q, k, v, dy, **options):
    """y and the gradients, as exact as PyTorch's, and nothing given changed."""
    before = [x.clone() for x in (q, k, v, dy)]
    found = run(q, k, v, dy, **options)
    assert all(torch.equal(x, was) for x, was in zip((q, k, v, dy), before, strict=True))

    options = {name: value for name, value in options.items() if name != "tile"}
    *wide, wide_dy = (x.double() for x in (q, k, v, dy))
    exact_y, saved = op.forward(*wide, **options)
    exact = exact_y, *op.backward(wide_dy, saved)[:3]
    *largest, score = sizes(*wide, wide_dy, **options)
    their_y = by_pytorch(q, k, v, **options)
    theirs = gradients_by_autograd(lambda *inputs: by_pytorch(*inputs, **options), dy, q, k, v)
    for name, got, their, exactly, size in zip(
        ("y", "dq", "dk", "dv"),
        found,
        (their_y, *theirs),
        exact,
        largest,
        strict=True,
    ):
        # Of 16 bits the weights, and the gradients of scores, are rounded before they are multiplied, and the Δ of a row is
        # that of a y which is: by as much as the largest sum of terms without their signs. A score that is rounded in
        # its last place changes its weight by that times the score.
        row = size.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        assert_as_exact_as_pytorch(name, got, their, exactly, row, roundings=8 + score, largest_stored=row)
    return found


def by_pytorch(q, k, v, *, head_order="consecutive", scale=None, **options):
    """A query that sees no key is left out: PyTorch's ways to compute it differ."""
    k, v = (x[..., key_heads(q, k, head_order), :, :] for x in (k, v))
    mask = visible(q, k, **options)
    blind = ~mask.any(dim=-1, keepdim=True)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask | blind, scale=scale)
    return y.masked_fill(blind, 0.0)


def visible(q, k, causal=False, causal_variant="upper_left"):
    """Booleans ``[s_q, s_k]``."""
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    ahead = k.shape[-2] - q.shape[-2] if causal_variant == "lower_right" else 0
    return mask.tril(ahead) if causal else mask


def key_heads(q, k, head_order):
    """The key head of each query head."""
    n_h, n_kv = q.shape[-3], k.shape[-3]
    heads = torch.arange(n_h, device=q.device)
    return heads // (n_h // n_kv) if head_order == "consecutive" else heads % n_kv


def sizes(q, k, v, dy, *, head_order="consecutive", scale=None, **options):
    """What y and the gradients sum, without its signs, and the largest score without its."""
    heads = key_heads(q, k, head_order)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    keys, values = k[..., heads, :, :], v[..., heads, :, :]
    scores = scale * q @ keys.mT
    a = torch.softmax(scores.masked_fill(~visible(q, k, **options), -INF), dim=-1).nan_to_num()
    da = dy.abs() @ values.mT.abs()
    dp = abs(scale) * a * (da + (a * da).sum(dim=-1, keepdim=True))
    dk = torch.zeros_like(k).index_add_(-3, heads, dp.mT @ q.abs())
    dv = torch.zeros_like(v).index_add_(-3, heads, a.mT @ dy.abs())
    return a @ values.abs(), dp @ keys.abs(), dk, dv, float(scores.abs().max())


@each_way
@each_dtype
@pytest.mark.parametrize("lengths", [(20, 37), (37, 20)], ids=str)
def test_several_tiles(lengths, dtype, options, device, poisoned):
    """Of which the last are not full, and where there are more queries than keys the first see none, or the last all."""
    check(*draw_all(*lengths, 24, 40, device, dtype), **options, tile=16)


@pytest.mark.parametrize(
    "widths", [(16, 16), (5, 3), (80, 80), (96, 20), (20, 96), (256, 256), (1, 1)], ids=str
)
def test_heads_of_any_width(widths, device, poisoned):
    check(*draw_all(9, 11, *widths, device), causal=True)


@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
@pytest.mark.parametrize("heads", [(3, 2), (4, 1), (1, 2)], ids=str)
def test_heads_that_share_keys(heads, head_order, device, poisoned):
    """Of several tiles of queries, of which some are cut and some are not."""
    g, n_kv = heads
    given = draw_all(35, 20, 16, 8, device, leading=(2,), g=g, n_kv=n_kv)
    check(*given, causal=True, head_order=head_order, tile=16)


@pytest.mark.parametrize("leading", [(), (2,), (2, 1, 2)], ids=str)
def test_leading_axes(leading, device, poisoned):
    check(*draw_all(5, 7, 16, 8, device, leading=leading, g=2), causal=True)


@each_way
@pytest.mark.parametrize("lengths", [(1, 1), (1, 40), (40, 1), (16, 16), (32, 16)], ids=str)
def test_one_query_one_key_and_full_tiles(lengths, options, device, poisoned):
    check(*draw_all(*lengths, 16, 16, device), **options, tile=16)


@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_tiles_of_the_kernels_own_choice(dtype, options, device, poisoned):
    check(*draw_all(150, 139, 16, 16, device, dtype), **options)


@pytest.mark.parametrize("tile", [1, 17, 64, 10**6])
def test_a_tile_is_a_power_of_two_and_no_larger_than_the_kernels_own(tile, device):
    q, k, v, dy = draw_all(70, 75, 16, 16, device, torch.float16)
    wanted = {1: 16, 17: 16, 64: 64, 10**6: 128}[tile]
    assert kernel.tiles_for("forward", q, 16, tile).queries == wanted
    check(q, k, v, dy, causal=True, tile=tile)


@pytest.mark.parametrize("part", ["forward", "keys", "queries"])
def test_with_dropout_half_as_much_is_looped_over_and_nothing_is_spilled(part):
    """The counters of the masks take registers. ``test_resources.py`` compiles the launches."""
    q = torch.empty(2, 2, 128, 128, dtype=torch.bfloat16, device="meta")
    plain, dropped = (kernel.tiles_for(part, q, 128, None, True, drops) for drops in (False, True))
    looped = "queries" if part == "keys" else "keys"
    assert dropped == plain._replace(**{looped: getattr(plain, looped) // 2})
    of_dropout = [each for case, each in kernel.launches(q.dtype) if "dropout" in case]
    assert sum(each.arguments.get("seed_ptr") is not None for each in of_dropout) == 3


@each_way
@pytest.mark.parametrize("scale", [0.75, -0.5, 0.0, 3])
def test_any_scale(scale, options, device, poisoned):
    check(*draw_all(20, 21, 16, 16, device), **options, scale=scale, tile=16)


@each_dtype
def test_scores_of_thousands(dtype, device, poisoned):
    """A query and its key have the score 2048, and other pairs 0: its y is the value, bit for bit. Less query 3 and its
    key, which have −2048: its y is the mean of the other values it sees."""
    q = k = 16 * torch.eye(20, 32, dtype=dtype, device=device)[None]
    q = 8 * q
    q[0, 3] *= -1
    _, _, v, dy = draw_all(20, 20, 32, 16, device, dtype)
    for causal in (False, True):
        y, *gradients = run(q, k, v, dy, scale=1.0, causal=causal, tile=16)
        others = torch.cat([v[:, :3], v[:, 4:]], dim=1)[:, : 3 if causal else 19]
        assert torch.equal(y[:, 4:], v[:, 4:])
        assert torch.equal(y[:, :3], v[:, :3])
        torch.testing.assert_close(y[:, 3].double(), others.double().mean(dim=1), rtol=1e-2, atol=1e-2)
        assert all(torch.all(torch.isfinite(gradient)) for gradient in gradients)


@each_dtype
def test_a_query_that_sees_no_key_has_output_and_gradient_0(dtype, device, poisoned):
    q, k, v, dy = draw_all(40, 7, 16, 16, device, dtype, g=2)
    y, saved = kernel.forward(q, k, v, causal=True, causal_variant="lower_right", tile=16)
    dq, dk, dv, *_ = kernel.backward(dy, saved)
    assert torch.all(y[:, :33] == 0)
    assert torch.all(dq[:, :33] == 0)
    assert torch.all(saved.lse[:, :33] == INF)
    alone = run(q[:, 33:], k, v, dy[:, 33:], causal=True, tile=16)
    for found, expected in zip((y[:, 33:], dq[:, 33:], dk, dv), alone, strict=True):
        torch.testing.assert_close(found, expected)


@each_way
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # which is what it asks for
def test_a_query_whose_scores_are_all_below_every_number_sees_nothing(options, device, poisoned):
    """−10⁵⁰, which is −∞ in float32."""
    q, k, v, dy = draw_all(20, 40, 16, 16, device)
    q[0, 2], k[..., 0] = 0.0, -1e25
    q[..., 0], q[0, 2, 0] = 0.0, 1e25
    y, dq, dk, dv = run(q, k, v, dy, **options, tile=16)
    assert torch.all(y[0, 2] == 0)
    assert torch.all(dq[0, 2] == 0)
    assert all(torch.all(torch.isfinite(x)) for x in (y, dq, dk, dv))


def test_tiles_that_nobody_sees_are_not_read(device, poisoned):
    """Queries 0 … 19 see the keys of two tiles; in the other two there is NaN, which a weight of 0 would not hide."""
    q, k, v, dy = draw_all(20, 60, 16, 16, device)
    k[:, 32:] = v[:, 32:] = torch.nan
    y, dq, dk, dv = run(q, k, v, dy, causal=True, tile=16)
    expected = run(q, k[:, :32], v[:, :32], dy, causal=True, tile=16)
    for found, right in zip((y, dq, dk[:, :32], dv[:, :32]), expected, strict=True):
        assert torch.equal(found, right)
    assert torch.all(dk[:, 32:] == 0)
    assert torch.all(dv[:, 32:] == 0)


# Biases, masks, sinks, softcaps and windows


def draw_more(shape, heads, device, dtype=torch.float32):
    """A bias and a mask of a shape, and the heads' sinks."""
    bias, chance = (draw(*shape, dtype=dtype, device=device, seed=at) for at in (4, 5))
    return bias, chance > -0.5, draw(heads, dtype=dtype, device=device, seed=6)


def assert_right(*inputs, **options):
    """y and the gradients are within the bounds of the rounding error of the operation's lines."""
    report = verify("flash_attention", *inputs, methods=["kernel"], raises=False, options=options)
    assert not report.failed, report
    assert report.of("Triton kernel")


MORE = {
    "no mask": {},
    "a window": {"causal": True, "window": 9},
    "a window from the last": {"causal": True, "causal_variant": "lower_right", "window": 21},
    "a window of one": {"causal": True, "window": 1},
    "a softcap": {"causal": True, "softcap": 1.25, "scale": -0.5},
}


def alone(name, inputs):
    """Return the bias, the mask, and the sinks, with None for those not named; "all" names all three."""
    names = ("bias", "mask", "sink")
    return [x if name in ("all", own) else None for own, x in zip(names, inputs, strict=True)]


@pytest.mark.parametrize(
    ("lengths", "dtype", "option", "given"),
    pairs(
        [(20, 37), (37, 20)],
        DTYPES,
        MORE,
        ["all", "bias", "mask", "sink"],
        of=("backpass.kernels.flash_attention",),
    ),
    ids=str,
)
def test_several_tiles_of_every_input(lengths, dtype, option, given, device, poisoned):
    """Each of a bias, a mask, and sinks alone, and all of them together."""
    q, k, v, _ = draw_all(*lengths, 16, 8, device, dtype, leading=(2,), g=2)
    more = draw_more((2, *lengths), 2, device, dtype)
    assert_right(q, k, v, *alone(given, more), **MORE[option], tile=16)


@pytest.mark.parametrize(
    ("dtype", "option", "head_order"),
    pairs(
        DTYPES,
        ["no mask", "a window from the last", "a softcap"],
        ["consecutive", "interleaved"],
        of=("backpass.kernels.flash_attention",),
    ),
    ids=str,
)
def test_dropout_drops_the_operations_weights(dtype, option, head_order, device, poisoned):
    q, k, v, _ = draw_all(20, 37, 16, 8, device, dtype, leading=(2,), g=2)
    more = draw_more((2, 20, 37), 2, device, dtype)
    options = {**MORE[option], "head_order": head_order, "dropout_p": 0.3, "seed": 9, "tile": 16}
    assert_right(q, k, v, **options)
    assert_right(q, k, v, *more, **options)


def test_the_seed_of_dropout_is_read_on_the_device(device):
    q, k, v, dy = draw_all(20, 37, 16, 8, device)
    seed = torch.tensor(2**62 + 1, device=device)
    y, saved = kernel.forward(q, k, v, dropout_p=0.5, seed=seed)
    assert saved.seed is seed
    expected, _ = kernel.forward(q, k, v, dropout_p=0.5, seed=2**62 + 1)
    assert torch.equal(y, expected)
    seed.fill_(3)
    again = kernel.backward(dy, kernel.forward(q, k, v, dropout_p=0.5, seed=3)[1])
    changed = kernel.backward(dy, saved._replace(y=kernel.forward(q, k, v, dropout_p=0.5, seed=3)[0]))
    assert all(torch.equal(a, b) for a, b in zip(again[:3], changed[:3], strict=True))


def test_no_weight_is_left_with_probability_1(device, poisoned):
    q, k, v, dy = draw_all(20, 37, 16, 8, device)
    y, saved = kernel.forward(q, k, v, dropout_p=1.0, seed=3)
    assert not any(x.any() for x in (y, *kernel.backward(dy, saved)[:3]))


@each_dtype
def test_every_input_beside_a_window(dtype, device, poisoned):
    """One call, which ``tests/compiled`` also runs with the compiled kernel."""
    q, k, v, _ = draw_all(20, 37, 16, 8, device, dtype, leading=(2,), g=2)
    more = draw_more((2, 20, 37), 2, device, dtype)
    assert_right(q, k, v, *more, **MORE["a window from the last"], softcap=1.25, tile=16)


@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
@pytest.mark.parametrize(
    "shape", [(), (20,), (17, 1), (2, 1, 1, 1, 20), (3, 1, 17, 20), (6, 1, 1), (2, 3, 6, 17, 20)], ids=str
)
def test_a_bias_and_a_mask_of_any_shape(shape, head_order, device, poisoned):
    q, k, v, _ = draw_all(17, 20, 16, 8, device, leading=(2, 3), g=2, n_kv=3)
    assert_right(q, k, v, *draw_more(shape, 6, device), head_order=head_order, tile=16)


def test_a_bias_and_a_mask_are_read_where_they_lie(device):
    q, k, v, _ = draw_all(9, 9, 16, 16, device, leading=(2,), g=2)
    bias, mask, _ = draw_more((2, 1, 1, 9), 2, device)
    _, saved = kernel.forward(q, k, v, bias, mask)
    arguments = kernel.forward_launch(saved).arguments
    for name, x in (("bias", bias), ("mask", mask)):
        assert arguments[f"{name}_ptr"].data_ptr() == x.data_ptr()
        assert getattr(arguments["strides"], name) == (9, 0, 0, 1)


@each_dtype
def test_a_query_whose_keys_are_masked_has_output_and_gradient_0(dtype, device, poisoned):
    """With a sink, and with one of −∞."""
    q, k, v, dy = draw_all(20, 20, 16, 16, device, dtype, g=2)
    mask = torch.ones(20, 20, dtype=torch.bool, device=device)
    mask[5] = False
    sink = torch.tensor([0.5, -INF], dtype=dtype, device=device)
    y, saved = kernel.forward(q, k, v, None, mask, sink, tile=16)
    dq, dk, dv, _, dsink = kernel.backward(dy, saved)
    assert torch.all(y[:, 5] == 0)
    assert torch.all(dq[:, 5] == 0)
    assert saved.lse[1, 5] == INF
    assert dsink[0] != 0
    assert dsink[1] == 0
    assert all(torch.all(torch.isfinite(x)) for x in (y, dq, dk, dv))


def test_tiles_outside_the_window_are_not_read(device, poisoned):
    """Queries 40 … 59 see the keys from 33 on; in the tiles before there is NaN, which a weight of 0 would not hide."""
    q, k, v, dy = draw_all(60, 60, 16, 16, device)
    expected = run(q, k, v, dy, causal=True, window=8, tile=16)
    k[:, :32] = v[:, :32] = torch.nan
    found = run(q, k, v, dy, causal=True, window=8, tile=16)
    for x, right in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(x[:, 48:], right[:, 48:])
    for x, right in zip(found[2:], expected[2:], strict=True):
        assert torch.equal(x[:, 48:], right[:, 48:])


@pytest.mark.parametrize("window", [60, 2**40])
def test_a_window_of_everything_is_none(window, device):
    given = draw_all(20, 37, 16, 16, device)
    windowed = run(*given, causal=True, window=window, tile=16)
    for found, expected in zip(windowed, run(*given, causal=True, tile=16), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_bias_has_a_gradient_where_heads_have_no_width(device, poisoned):
    q, k, v, dy = draw_all(5, 7, 0, 8, device)
    bias, *_ = draw_more((5, 7), 1, device)
    y, saved = kernel.forward(q, k, v, bias)
    exact_y, exact = op.forward(q, k, v, bias)
    torch.testing.assert_close(y, exact_y)
    torch.testing.assert_close(kernel.backward(dy, saved)[3], op.backward(dy, exact)[3])


STRIDED = {
    "heads after tokens": lambda a, n, s, d: a(2, s, n, d).transpose(1, 2),
    "tokens innermost": lambda a, n, s, d: a(2, n, d, s).mT,
    "every other element": lambda a, n, s, d: a(2, n, s, 2 * d)[..., ::2],
    "every other token": lambda a, n, s, d: a(2, n, 2 * s, d)[..., ::2, :],
    "a part of each row": lambda a, n, s, d: a(2, n, s, 3 * d)[..., d : 2 * d],
    "expanded over the batch": lambda a, n, s, d: a(1, n, s, d).expand(2, -1, -1, -1),
    "expanded over heads and tokens": lambda a, n, s, d: a(2, 1, 1, d).expand(-1, n, s, -1),
    "expanded over everything": lambda a, n, s, d: a(1).expand(2, n, s, d),
    "negated by a flag": lambda a, n, s, d: torch.complex(a(2, n, s, d), -a(2, n, s, d)).conj().imag,
}


@pytest.mark.parametrize("view", STRIDED)
def test_any_strides(view, device, poisoned):
    """The same to the last bit as of copies."""
    shapes = (4, 9, 8), (2, 11, 8), (2, 11, 16), (4, 9, 16)
    given = [
        STRIDED[view](lambda *shape, at=at: draw(*shape, dtype=torch.float32, device=device, seed=at), *shape)
        for at, shape in enumerate(shapes)
    ]
    found = run(*given, causal=True)
    copies = [x.resolve_neg().contiguous() for x in given]
    for one, other in zip(found, check(*copies, causal=True), strict=True):
        assert torch.equal(one, other)


def test_inputs_are_read_where_they_lie(device):
    q, k, v, _ = (x.transpose(-2, -3) for x in draw_all(9, 9, 16, 16, device, leading=(2, 3), g=2, n_kv=2))
    _, saved = kernel.forward(q, k, v)
    arguments = kernel.forward_launch(saved).arguments
    assert [arguments[f"{name}_ptr"].data_ptr() for name in "qkv"] == [x.data_ptr() for x in (q, k, v)]
    assert saved.q is q
    assert saved.k is k
    assert saved.v is v


@pytest.mark.parametrize(
    "lengths", [(0, 3, 8, 8), (3, 4, 0, 8), (3, 4, 8, 0), (3, 4, 0, 0)], ids=["s_q", "d", "d_v", "d and d_v"]
)
def test_lengths_of_0(lengths, device, poisoned):
    given = draw_all(*lengths, device, leading=(2,), g=2)
    found = run(*given)
    exact_y, saved = op.forward(*given[:3])
    for got, right in zip(found, (exact_y, *op.backward(given[3], saved)[:3]), strict=True):
        assert got.shape == right.shape
        torch.testing.assert_close(got, right)


@each_dtype
def test_no_heads(dtype, device, poisoned):
    found = run(*draw_all(3, 4, 8, 8, device, dtype, g=0))
    assert [x.shape[0] for x in found] == [0, 0, 1, 1]
    assert all(torch.all(x == 0) for x in found)


def test_sums_over_many_queries_of_16_bits_do_not_stall(device):
    """Of one key the weight is 1: dv sums 600 ones, and in bfloat16 would stop at 256."""
    q, k, v, dy = (torch.ones(1, s, 16, dtype=torch.bfloat16, device=device) for s in (600, 1, 1, 600))
    assert torch.all(run(q, k, v, dy)[3] == 600)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tile": 0}, ValueError, "tile: expected at least 1"),
        ({"window": 3}, ValueError, "window: expected None without causal=True; got 3"),
        ({"softcap": -1}, ValueError, "softcap: expected a positive number; got -1"),
        ({"tile": 1.5}, TypeError, "tile: expected an integer; got float"),
        ({"scale": "1"}, TypeError, "scale: expected a real number, or None"),
        ({"causal_variant": "left"}, ValueError, "causal_variant: expected 'upper_left' or 'lower_right'"),
        ({"head_order": "any"}, ValueError, "head_order: expected 'consecutive' or 'interleaved'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_an_option_is_rejected(options, error, message, device):
    q, k, v, _ = draw_all(3, 4, 8, 8, device)
    with pytest.raises(error, match=f"^{message}"):
        kernel.forward(q, k, v, **options)


@pytest.mark.parametrize(("d", "d_v", "name"), [(257, 8, "q"), (8, 300, "v")])
def test_heads_that_are_too_wide_are_rejected(d, d_v, name, device):
    q, k, v, _ = draw_all(3, 4, d, d_v, device)
    with pytest.raises(
        ValueError, match=rf"^{name}: expected heads of a width of at most 256; got {d + d_v - 8}"
    ):
        kernel.forward(q, k, v)


@on_a_gpu
@each_way
@pytest.mark.parametrize("d", [64, 96, 128, 256])
@each_dtype
def test_thousands_of_tokens(d, dtype, options, device, poisoned):
    """At the tiles that run there, of which the interpreter knows nothing: tensor cores and loads that run ahead."""
    check(*draw_all(1000, 1300, d, d, device, dtype, leading=(2,), g=2, n_kv=2), **options)


@on_a_gpu
def test_two_runs_agree_to_the_last_bit_at_length(device):
    given = draw_all(4096, 4096, 128, 128, device, torch.bfloat16, leading=(4,), g=4, n_kv=2)
    first = run(*given, causal=True)
    for _ in range(3):
        for one, other in zip(first, run(*given, causal=True), strict=True):
            assert torch.equal(one, other)


@on_a_gpu
def test_offsets_beyond_32_bits(device):
    """The last of many heads, and the last rows of a head that is spread over more than 2³¹ elements."""
    q, k, v, dy = draw_all(256, 256, 128, 128, device, torch.float16)
    expected = run(q, k, v, dy, causal=True)
    for spread in (
        lambda x: torch.cat([x.new_zeros(2**16, 256, 128), x]),
        lambda x: x.new_zeros(1, 256, 2**24).narrow(-1, 2**24 - 128, 128).copy_(x),
    ):
        found = run(*map(spread, (q, k, v, dy)), causal=True)
        assert all(torch.equal(got[-1], right[-1]) for got, right in zip(found, expected, strict=True))
