"""What attention promises beside the contract: masks, biases of every shape, heads that share keys, and what changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from transformers.masking_utils import sliding_window_causal_mask_function
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from backpass import cost, ops
from backpass.verify import cases

SDPA = torch.nn.functional.scaled_dot_product_attention


def draw(s_q=5, s_k=7, n_kv=3, g=2, d=4, d_v=6, leading=(2,), seed=0):
    """q, k, v and a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(g * n_kv, s_q, d), (n_kv, s_k, d), (n_kv, s_k, d_v), (g * n_kv, s_q, d_v)]
    return [torch.randn(*leading, *shape, generator=generator, dtype=torch.float64) for shape in shapes]


def by_autograd(function, inputs, dy):
    """The function's value and its gradients with respect to the inputs."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    return y.detach(), torch.autograd.grad(y, inputs, dy)


def by_hand(inputs, dy, **options):
    y, saved = ops.attention.forward(*inputs, **options)
    return y, ops.attention.backward(dy, saved)[: len(inputs)]


def assert_same(found, expected):
    torch.testing.assert_close(found[0], expected[0])
    for a, b in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(a, b)


# Which keys a query sees


@pytest.mark.parametrize(("s_q", "s_k"), [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1)])
def test_causal_is_pytorchs(s_q, s_k):
    *inputs, dy = draw(s_q, s_k, g=1)
    sdpa = by_autograd(lambda q, k, v: SDPA(q, k, v, is_causal=True), inputs, dy)
    assert_same(by_hand(inputs, dy, causal=True), sdpa)


@pytest.mark.parametrize(("s_q", "s_k"), [(5, 5), (3, 7)])
@pytest.mark.parametrize(
    ("variant", "mask"), [("upper_left", causal_upper_left), ("lower_right", causal_lower_right)]
)
def test_causal_variants_are_pytorchs(s_q, s_k, variant, mask):
    *inputs, dy = draw(s_q, s_k, g=1)
    sdpa = by_autograd(lambda q, k, v: SDPA(q, k, v, attn_mask=mask(s_q, s_k)), inputs, dy)
    assert_same(by_hand(inputs, dy, causal=True, causal_variant=variant), sdpa)


def test_the_last_query_sees_every_key_from_the_lower_right():
    q, k, v, _ = draw(3, 7)
    y, _ = ops.attention.forward(q, k, v, causal=True, causal_variant="lower_right")
    full, _ = ops.attention.forward(q, k, v)
    torch.testing.assert_close(y[..., -1, :], full[..., -1, :])
    assert not torch.allclose(y[..., -2, :], full[..., -2, :])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_a_query_that_sees_nothing_has_output_and_gradient_zero(make):
    q, k, v, dy = (make(x.numpy()) for x in draw(s_q=7, s_k=3))
    y, saved = ops.attention.forward(q, k, v, causal=True, causal_variant="lower_right")
    dq, dk, dv, dbias, _ = ops.attention.backward(dy, saved)
    assert dbias is None
    assert not y[..., :4, :].any() and not dq[..., :4, :].any()
    assert (
        y[..., 4:, :].all() and dq[..., 5:, :].all()
    )  # the fifth sees one key, of weight 1 whatever its score

    # The queries that see something are the only ones there are.
    y, saved = ops.attention.forward(q[..., 4:, :], k, v, causal=True, causal_variant="lower_right")
    _, dk_alone, dv_alone, *_ = ops.attention.backward(dy[..., 4:, :], saved)
    np.testing.assert_allclose(dk, dk_alone, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dv, dv_alone, rtol=1e-12, atol=1e-14)


# The bias


@pytest.mark.parametrize(
    "shape",
    [(5, 7), (6, 5, 7), (1, 5, 7), (2, 6, 5, 7), (2, 1, 1, 7), (2, 1, 5, 7), (1, 6, 5, 1), (1, 7), (7,), ()],
    ids=str,
)
@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
def test_a_bias_of_any_shape_that_broadcasts(shape, head_order):
    q, k, v, dy = draw()
    bias = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    repeat = {
        "consecutive": torch.repeat_interleave,
        "interleaved": lambda x, n, dim: torch.cat([x] * n, dim),
    }

    def reference(q, k, v, bias):
        k, v = (repeat[head_order](x, 2, dim=-3) for x in (k, v))
        p = q @ k.mT / q.shape[-1] ** 0.5 + bias
        return p.softmax(-1) @ v

    expected = by_autograd(reference, (q, k, v, bias), dy)
    assert_same(by_hand((q, k, v, bias), dy, head_order=head_order), expected)


def test_a_bias_of_minus_infinity_hides_a_key():
    q, k, v, dy = draw()
    seen = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    seen[2] = False
    bias = torch.zeros(5, 7, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    y, saved = ops.attention.forward(q, k, v, bias)
    dq, _, _, dbias, _ = ops.attention.backward(dy, saved)
    assert not y[..., 2, :].any() and not dq[..., 2, :].any()
    assert not dbias[~seen].any()
    assert dbias[seen & (seen.sum(-1, keepdim=True) > 1)].all()

    mask = seen.clone()
    mask[2] = True  # PyTorch's answers for an empty row differ among its ways to compute it
    expected = SDPA(q, k, v, attn_mask=mask, enable_gqa=True)
    rows = [0, 1, 3, 4]
    torch.testing.assert_close(y[..., rows, :], expected[..., rows, :])


def test_the_bias_gradient_of_each_row_sums_to_zero():
    """A number added to all scores of a query changes nothing."""
    q, k, v, dy = draw()
    bias = torch.randn(2, 6, 5, 7, dtype=torch.float64)
    _, saved = ops.attention.forward(q, k, v, bias)
    dbias = ops.attention.backward(dy, saved)[3]
    torch.testing.assert_close(dbias.sum(-1), torch.zeros(2, 6, 5, dtype=torch.float64))
    assert dbias.abs().max() > 0.01


# The mask


@pytest.mark.parametrize("shape", [(5, 7), (6, 1, 7), (2, 1, 1, 7), (2, 6, 5, 1), (7,), ()], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_of_any_shape_is_pytorchs(shape, causal):
    """Also where it hides all keys of a query: PyTorch's output and gradients are 0 there too."""
    *inputs, dy = draw()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
    seen = mask & torch.ones(5, 7, dtype=torch.bool).tril(0 if causal else 7)
    expected = by_autograd(lambda q, k, v: SDPA(q, k, v, attn_mask=seen, enable_gqa=True), inputs, dy)
    y, saved = ops.attention.forward(*inputs, mask=mask, causal=causal)
    assert_same((y, ops.attention.backward(dy, saved)[:3]), expected)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=str)
def test_a_query_whose_keys_are_masked_has_output_and_gradient_zero(backend):
    *inputs, dy = draw(g=1, d_v=4)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    y, saved = ops.attention.forward(*inputs, mask=mask, sink=torch.ones(3, dtype=torch.float64))
    dq, *_ = ops.attention.backward(dy, saved)
    assert not y[..., 2, :].any() and not dq[..., 2, :].any()
    assert y[..., [0, 1, 3, 4], :].all() and dq[..., [0, 1, 3, 4], :].all()
    with sdpa_kernel(backend):
        y, (dq, *_) = by_autograd(lambda q, k, v: SDPA(q, k, v, attn_mask=mask), inputs, dy)
    assert not y[..., 2, :].any() and not dq[..., 2, :].any()


def test_a_mask_is_not_saved():
    q, k, v, _ = draw()
    mask = torch.ones(5, 7, dtype=torch.bool)
    assert cost.saved_bytes("attention", q, k, v, None, mask) == cost.saved_bytes("attention", q, k, v)


# The window


@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("s", [1, 5, 8])
def test_a_window_is_hugging_faces(window, s):
    *inputs, dy = draw(s, s)
    allowed = sliding_window_causal_mask_function(window)
    mask = torch.tensor(
        [[bool(allowed(0, 0, torch.tensor(i), torch.tensor(j))) for j in range(s)] for i in range(s)]
    )
    expected = by_autograd(lambda q, k, v: SDPA(q, k, v, attn_mask=mask, enable_gqa=True), inputs, dy)
    assert_same(by_hand(inputs, dy, causal=True, window=window), expected)


def test_a_window_from_the_lower_right_ends_at_the_last_key():
    """As where a cache holds the keys before the queries; the last query sees the last keys."""
    q, k, v, _ = draw(3, 7)
    options = {"causal": True, "causal_variant": "lower_right"}
    y, _ = ops.attention.forward(q, k, v, window=2, **options)
    last, _ = ops.attention.forward(q[..., 2:, :], k[..., 5:, :], v[..., 5:, :])
    torch.testing.assert_close(y[..., 2:, :], last)


def test_a_window_of_one_key_is_the_value():
    q, k, v, _ = draw(7, 7, g=1)
    y, _ = ops.attention.forward(q, k, v, causal=True, window=1)
    torch.testing.assert_close(y, v)


# The softcap and the sink


def by_hugging_face(family, inputs, sinks=None, **options):
    """What a family's layer computes between its projections, with a causal mask."""
    q, k, v = inputs
    hidden = torch.full((q.shape[-2], k.shape[-2]), -torch.inf, dtype=q.dtype).triu(1)
    layer = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    scaling = q.shape[-1] ** -0.5
    return family.eager_attention_forward(layer, q, k, v, hidden, scaling=scaling, **options)[0].transpose(
        1, 2
    )


def test_a_softcap_is_gemmas():
    """Gemma's softmax is computed in float32."""
    q, k, v, dy = draw(7, 7)
    inputs = 4 * q, k, v
    expected = by_autograd(lambda *x: by_hugging_face(modeling_gemma2, x, softcap=1.5), inputs, dy)
    y, gradients = by_hand(inputs, dy, causal=True, softcap=1.5)
    for found, its in zip((y, *gradients), (expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(found, its, rtol=1e-5, atol=1e-6)
    assert (y - by_hand(inputs, dy, causal=True)[0]).abs().max() > 0.1


def test_a_sink_is_gpt_osss():
    q, k, v, dy = draw(7, 7)
    sink = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = by_autograd(
        lambda q, k, v, sink: by_hugging_face(modeling_gpt_oss, (q, k, v), sink), (q, k, v, sink), dy
    )
    y, saved = ops.attention.forward(q, k, v, sink=sink, causal=True)
    dq, dk, dv, dbias, dsink = ops.attention.backward(dy, saved)
    assert dbias is None
    assert_same((y, (dq, dk, dv, dsink)), expected)


def test_a_sink_is_a_key_without_a_value():
    q, k, v, _ = draw()
    sink = torch.linspace(-1, 1, 6, dtype=torch.float64)
    y, _ = ops.attention.forward(q, k, v, sink=sink)
    bias = torch.cat([torch.zeros(6, 5, 7), sink[:, None, None].expand(6, 5, 1)], dim=-1)
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    torch.testing.assert_close(y, ops.attention.forward(q, k, v, bias)[0])


def test_a_sink_of_minus_infinity_is_none():
    q, k, v, dy = draw()
    y, saved = ops.attention.forward(q, k, v, sink=torch.full((6,), -torch.inf, dtype=torch.float64))
    *gradients, dsink = ops.attention.backward(dy, saved)
    assert_same((y, gradients[:3]), by_hand((q, k, v), dy))
    assert not dsink.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_softcap_of_half_precision_keeps_the_slope_of_large_scores(dtype):
    """Where the capped score rounds to the cap, the slope would be 0."""
    q = torch.full((1, 1, 1), 3.5, dtype=dtype)
    k, v = torch.tensor([[[1.0], [0.0]]], dtype=dtype), torch.tensor([[[1.0], [-1.0]]], dtype=dtype)
    y, saved = ops.attention.forward(q, k, v, softcap=0.75, scale=1.0)
    dq, *_ = ops.attention.backward(torch.ones_like(y), saved)
    assert dq.item() > 0
    exact = by_autograd(
        lambda q: ops.attention.forward(q, k.double(), v.double(), softcap=0.75, scale=1.0)[0],
        [q.double()],
        torch.ones_like(y).double(),
    )[1][0]
    torch.testing.assert_close(dq.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_what_the_options_save():
    """A softcap doubles the arrays of s_q · s_k numbers, of which dv needs one; a sink adds a column."""
    q, k, v, _ = draw()
    weights, rows = 8 * 2 * 6 * 5 * 7, 8 * 2 * 6 * 5
    plain = cost.saved_bytes("attention", q, k, v)
    assert cost.saved_bytes("attention", q, k, v, softcap=2.0) == plain + weights
    sink = torch.zeros(6, dtype=torch.float64)
    assert cost.saved_bytes("attention", q, k, v, None, None, sink) == plain + rows
    assert cost.saved_bytes("attention", q, k, v, softcap=2.0, wanted=["v"]) == weights


# Heads


@pytest.mark.parametrize(("n_kv", "g"), [(3, 1), (3, 2), (1, 4), (2, 3)])
def test_key_heads_serve_groups_as_pytorchs_do(n_kv, g):
    *inputs, dy = draw(n_kv=n_kv, g=g)
    expected = by_autograd(lambda q, k, v: SDPA(q, k, v, enable_gqa=True), inputs, dy)
    assert_same(by_hand(inputs, dy), expected)


def test_interleaved_heads_are_consecutive_ones_rearranged():
    q, k, v, dy = draw(n_kv=3, g=2)
    order = torch.tensor(
        [0, 3, 1, 4, 2, 5]
    )  # of six heads that read keys 0 1 2 0 1 2: those of key 0, of key 1, of key 2
    y, (dq, dk, dv) = by_hand((q, k, v), dy, head_order="interleaved")
    other_y, (other_dq, other_dk, other_dv) = by_hand((q[:, order], k, v), dy[:, order])
    torch.testing.assert_close(y[:, order], other_y)
    torch.testing.assert_close(dq[:, order], other_dq)
    torch.testing.assert_close(dk, other_dk)
    torch.testing.assert_close(dv, other_dv)


def test_the_same_vector_added_to_every_key_changes_nothing():
    q, k, v, dy = draw()
    shift = torch.randn(3, 1, 4, dtype=torch.float64)
    y, (_, dk, _) = by_hand((q, k, v), dy)
    shifted, _ = by_hand((q, k + shift, v), dy)
    torch.testing.assert_close(shifted, y)
    torch.testing.assert_close(dk.sum(-2), torch.zeros(2, 3, 4, dtype=torch.float64))


def test_scores_of_any_size_stay_finite():
    q, k, v, dy = draw()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        inputs = [(x * size).to(dtype) for x, size in ((q, 1e3), (k, 1e3), (v, 1))]
        y, gradients = by_hand(inputs, dy.to(dtype))
        assert all(torch.isfinite(x).all() for x in (y, *gradients))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_16_bits_are_as_exact_as_pytorchs(dtype, size):
    """Scores of 16 bits would not be, where they are large."""
    inputs = [(x * f).to(dtype) for x, f in zip(draw(40, 50, 2, 2, 16, 16), (size, 1, 1, 1), strict=True)]
    *inputs, dy = inputs
    wide = [x.double() for x in inputs]
    expected = by_autograd(lambda q, k, v: SDPA(q, k, v, enable_gqa=True), wide, dy.double())
    theirs = by_autograd(lambda q, k, v: SDPA(q, k, v, enable_gqa=True), inputs, dy)
    y, gradients = by_hand(inputs, dy)
    found = zip((y, *gradients), (theirs[0], *theirs[1]), (expected[0], *expected[1]), strict=True)
    for ours, other, exact in found:
        unit = torch.finfo(dtype).eps * exact.abs().max()
        assert (ours - exact).abs().max() <= 2 * (other - exact).abs().max() + unit


def test_the_gradient_of_a_bias_of_16_bits_sums_in_float32():
    """4096 queries whose gradient is the same: NumPy adds float16 one by one."""
    q, k = np.zeros((1, 4096, 1), np.float16), np.zeros((1, 2, 1), np.float16)
    v, bias = np.array([[[1], [-1]]], np.float16), np.zeros(2, np.float16)
    y, saved = ops.attention.forward(q, k, v, bias)
    dbias = ops.attention.backward(np.ones_like(y), saved)[3]
    assert dbias.tolist() == [2048, -2048]


# Dropout of the weights


@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
def test_dropped_weights_are_those_of_dropout(head_order):
    """The same as dropout between softmax and the product, composed by hand."""
    q, k, v, _ = draw()
    plain, saved = ops.attention.forward(q, k, v, head_order=head_order)
    weights, dropped = ops.dropout.forward(saved.a, p=0.3, seed=5)
    assert 0 < dropped.mask.sum() < dropped.mask.size

    options = {"head_order": head_order, "dropout_p": 0.3, "seed": 5}
    y, saved = ops.attention.forward(q, k, v, **options)
    assert np.array_equal(saved.dropped.mask, dropped.mask)
    y_with, _ = ops.attention.forward(q, k, v, **options | {"seed": 6})
    assert not torch.equal(y, plain) and not torch.equal(y, y_with)
    dv = ops.attention.backward(torch.ones_like(y), saved)[2]
    # v's gradient for dy = 1 is the sum of each key's weights over the queries.
    torch.testing.assert_close(dv, weights.sum(-2)[..., None].expand(dv.shape), rtol=1e-12, atol=0)


def test_no_mask_of_dropout_is_saved():
    q, k, v, _ = draw()
    plain, dropped = (cost.saved_bytes("attention", q, k, v, dropout_p=p) for p in (0.0, 0.25))
    assert dropped == plain


def test_no_weight_is_left_with_probability_1():
    q, k, v, _ = draw()
    y, saved = ops.attention.forward(q, k, v, dropout_p=1.0)
    gradients = ops.attention.backward(torch.ones_like(y), saved)[:3]
    assert not any(x.any() for x in (y, *gradients))


# What is saved, and what is rejected


@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
def test_the_saved_queries_are_the_scaled_ones_in_their_own_order(head_order):
    q, k, v, _ = draw()
    _, saved = ops.attention.forward(q, k, v, scale=0.25, head_order=head_order)
    torch.testing.assert_close(saved.q, 0.25 * q)
    assert saved.k is k and saved.v is v
    assert saved.dropped.mask is None
    assert saved.a_sink is None and saved.capped is None
    assert saved[7:] == (0.25, head_order, (), ("q", "k", "v"))


def test_the_weights_are_most_of_what_is_saved():
    b, n_kv, g, s, d = 2, 3, 2, 64, 8
    q, k, v, _ = draw(s, s, n_kv, g, d, d, leading=(b,))
    expected = 8 * b * (g * n_kv * s * d + 2 * n_kv * s * d + g * n_kv * s * s)
    assert cost.saved_bytes("attention", q, k, v) == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"causal_variant": "top_left"},
            ValueError,
            "causal_variant: expected 'upper_left' or 'lower_right'; got 'top_left'",
        ),
        (
            {"head_order": "tiled"},
            ValueError,
            "head_order: expected 'consecutive' or 'interleaved'; got 'tiled'",
        ),
        ({"dropout_p": 1.5}, ValueError, "dropout_p: expected a probability from 0 to 1; got 1.5"),
        ({"seed": -1}, ValueError, "seed: expected an integer of at least 0; got -1"),
        ({"window": 3}, ValueError, "window: expected None without causal=True; got 3"),
        ({"window": 0, "causal": True}, ValueError, "window: expected at least 1 key; got 0"),
        (
            {"window": 2.0, "causal": True},
            TypeError,
            "window: expected an integer, or None for no limit; got float",
        ),
        (
            {"window": True, "causal": True},
            TypeError,
            "window: expected an integer, or None for no limit; got bool",
        ),
        ({"softcap": 0}, ValueError, "softcap: expected a positive number; got 0"),
        ({"softcap": "50"}, TypeError, "softcap: expected a positive number; got str"),
        ({"causal": "False"}, TypeError, "causal: expected True or False; got str"),
        ({"scale": "half"}, TypeError, "scale: expected a real number, or None for 1/√d; got str"),
        (
            {"scale": torch.tensor(0.5)},
            TypeError,
            "scale: expected a real number, or None for 1/√d; got Tensor",
        ),
    ],
    ids=str,
)
def test_options_are_rejected(options, error, message):
    q, k, v, _ = draw()
    with pytest.raises(error, match=message):
        ops.attention.forward(q, k, v, **options)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("bias", torch.bool, r"bias: expected floating-point numbers; got dtype torch\.bool; booleans are given as mask"),
        ("mask", torch.float64, r"mask: expected booleans; got dtype torch\.float64; floating-point numbers are given as bias"),
        ("mask", torch.int64, r"mask: expected booleans; got dtype torch\.int64$"),
    ],
)  # fmt: skip
def test_a_bias_and_a_mask_are_not_exchanged(name, dtype, message):
    q, k, v, _ = draw()
    with pytest.raises(TypeError, match=message):
        ops.attention.forward(q, k, v, **{name: torch.ones(5, 7, dtype=dtype)})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q", (2, 7, 5, 4), r"q: expected q\[\*, g\*n_kv, s_q, d\] with g\*n_kv a multiple of n_kv = 3, as in k; got shape \[2, 7, 5, 4\]"),
        ("v", (2, 6, 7, 6), r"v: expected .* with n_kv = 3, as in k; got shape \[2, 6, 7, 6\]"),
        ("k", (2, 0, 7, 4), r"k: expected .* with n_kv of at least 1; got shape \[2, 0, 7, 4\]"),
        ("bias", (5, 6), r"bias: expected .* with s_k = 7, as in k, or 1; got shape \[5, 6\]"),
        ("bias", (3, 5, 7), r"bias: expected .* with g\*n_kv = 6, as in q, or 1; got shape \[3, 5, 7\]"),
        ("mask", (5, 6), r"mask: expected .* with s_k = 7, as in k, or 1; got shape \[5, 6\]"),
        ("sink", (3,), r"sink: expected sink\[g\*n_kv\] with g\*n_kv = 6, as in q; got shape \[3\]"),
        ("sink", (2, 6), r"sink: expected .*, which has exactly 1 axis; got shape \[2, 6\]"),
        ("bias", (3, 6, 5, 7), r"bias: expected .* with leading axes that broadcast to \[2\], those of q; got shape \[3, 6, 5, 7\]"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_rejected(name, shape, message):
    q, k, v, _ = draw()
    inputs = {"q": q, "k": k, "v": v} | {
        name: torch.zeros(shape, dtype=torch.bool if name == "mask" else torch.float64)
    }
    with pytest.raises(ValueError, match=message):
        ops.attention.forward(**inputs)


def test_the_cases_reach_every_way_to_broadcast():
    shapes = [
        inputs[3].shape for inputs, _ in cases("attention", np.random.default_rng(0)) if inputs[3] is not None
    ]
    ones = {len(shape) - at for shape in shapes for at, length in enumerate(shape) if length == 1}
    assert ones >= {2, 3} and {len(shape) for shape in shapes} == {2, 3, 4, 6}
