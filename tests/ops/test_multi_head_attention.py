"""What the attention block promises beside the contract: PyTorch's own block where there is one, every choice of biases, a
memory or none, nothing saved twice, and a keys' bias without a gradient."""

import itertools

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import attention, linear
from backpass.ops import multi_head_attention as block
from backpass.verify import check

NAMES = ("x", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "memory")
BIASES = NAMES[5:9]
G, N_KV, D, D_V, S, T, H = 2, 3, 4, 5, 3, 6, 7
SHAPES = {
    "x": (2, S, H),
    "w_q": (H, G * N_KV, D),
    "w_k": (H, N_KV, D),
    "w_v": (H, N_KV, D_V),
    "w_o": (G * N_KV, D_V, H),
    "b_q": (G * N_KV, D),
    "b_k": (N_KV, D),
    "b_v": (N_KV, D_V),
    "b_o": (H,),
    "memory": (2, T, H),
}


def drawn(without=(), shapes=SHAPES, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return [None if name in without else arrays[name] for name in NAMES]


def gradients_of(inputs, dy, **options):
    """y and the gradients by name."""
    y, saved = block.forward(*inputs, **options)
    return y, dict(zip(NAMES, block.backward(dy, saved), strict=True))


def in_torch(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, memory, *, causal):
    """The block in PyTorch's functions, written here a second time: weights as matrices, heads by unflatten."""
    functional = torch.nn.functional

    def heads(rows, w, b):
        flat = functional.linear(rows, w.flatten(1).T, None if b is None else b.flatten())
        return flat.unflatten(-1, w.shape[1:]).transpose(-3, -2)

    rows = x if memory is None else memory
    q, k, v = heads(x, w_q, b_q), heads(rows, w_k, b_k), heads(rows, w_v, b_v)
    o = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return functional.linear(o.transpose(-3, -2).flatten(-2), w_o.flatten(0, 1).T, b_o)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("memory", [True, False], ids=["cross", "self"])
@pytest.mark.parametrize(
    "biases",
    [c for n in (0, 1, 4) for c in itertools.combinations(BIASES, n)],
    ids=lambda part: "-".join(part),
)
def test_it_and_its_gradients_are_pytorchs(biases, memory, causal):
    without = {*BIASES} - {*biases} | (set() if memory else {"memory"})
    inputs = drawn(without)
    leaves = [a if a is None else torch.tensor(a, requires_grad=True) for a in inputs]
    expected = in_torch(*leaves, causal=causal)
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"])
    expected.backward(torch.tensor(dy))

    y, gradients = gradients_of(inputs, dy, causal=causal)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-12, atol=1e-12)
    for name, leaf in zip(NAMES, leaves, strict=True):
        assert (leaf is None) == (gradients[name] is None)
        if leaf is not None:
            np.testing.assert_allclose(gradients[name], leaf.grad, rtol=1e-11, atol=1e-12)


def in_torchs_own_block(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, memory):
    """PyTorch's multi-head attention: rows [s, b, h], weights [out, in], the three projections in one."""
    heads, width = w_q.shape[1], w_q.shape[0]
    rows = (x if memory is None else memory).transpose(0, 1)
    y, _ = torch.nn.functional.multi_head_attention_forward(
        x.transpose(0, 1),
        rows,
        rows,
        embed_dim_to_check=width,
        num_heads=heads,
        in_proj_weight=torch.cat([w.flatten(1).T for w in (w_q, w_k, w_v)]),
        in_proj_bias=torch.cat([b.flatten() for b in (b_q, b_k, b_v)]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=w_o.flatten(0, 1).T,
        out_proj_bias=b_o,
        need_weights=False,
    )
    return y.transpose(0, 1)


@pytest.mark.parametrize("memory", [True, False], ids=["cross", "self"])
def test_at_one_width_it_is_pytorchs_own_block(memory):
    heads, d = 3, 2
    h, projection, bias = heads * d, (heads * d, heads, d), (heads, d)
    shapes = dict(
        zip(NAMES, [(2, S, h), *[projection] * 3, (heads, d, h), *[bias] * 3, (h,), (2, T, h)], strict=True)
    )
    inputs = drawn(() if memory else ("memory",), shapes)
    leaves = [a if a is None else torch.tensor(a, requires_grad=True) for a in inputs]
    expected = in_torchs_own_block(*leaves)
    dy = np.random.default_rng(1).standard_normal((2, S, h))
    expected.backward(torch.tensor(dy))

    y, gradients = gradients_of(inputs, dy)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-12, atol=1e-12)
    for gradient, leaf in zip(gradients.values(), leaves, strict=True):
        if leaf is not None:
            np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-11, atol=1e-12)


def test_symbols_prove_it_with_two_heads_of_width_two_and_keys_of_their_own():
    """`backpass verify` proves it with one key head and values of width one."""
    projection = dict.fromkeys(("w_q", "w_k", "w_v"), (1, 2, 2))
    inputs = drawn((*BIASES, "memory"), SHAPES | projection | {"x": (2, 1), "w_o": (2, 2, 1)})

    class AtItsOwnShape:  # without SHAPES, which the symbolic method would cut down
        forward, backward = block.forward, block.backward

    report = check(AtItsOwnShape, *inputs[:5], methods=["symbolic"])
    assert [row.error for row in report.rows] == [0.0] * 5


def test_self_attention_is_attention_to_itself_and_its_gradient_is_the_sum():
    inputs = drawn(("memory",))
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"])
    y, alone = gradients_of(inputs, dy)
    its_own_memory = [*inputs[:-1], inputs[0]]
    same, apart = gradients_of(its_own_memory, dy)
    np.testing.assert_array_equal(y, same)
    np.testing.assert_allclose(alone["x"], apart["x"] + apart["memory"], rtol=1e-14)
    for name in NAMES[1:9]:
        np.testing.assert_array_equal(alone[name], apart[name])


def test_it_is_the_sum_of_its_heads():
    """Each head is a block of one head, with its own slice of every weight; the output is their sum."""
    x, *weights = drawn((*BIASES, "memory"), SHAPES | {"w_q": (H, 3, D), "w_o": (3, D_V, H)})[:5]
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"])
    y, together = gradients_of([x, *weights, *[None] * 5], dy)
    total = total_dx = 0
    for i in range(3):
        slices = [w[:, i : i + 1] for w in weights[:3]] + [weights[3][i : i + 1]]
        part, gradients = gradients_of([x, *slices, *[None] * 5], dy)
        total, total_dx = total + part, total_dx + gradients["x"]
        for name in ("w_q", "w_k", "w_v"):
            np.testing.assert_allclose(together[name][:, i : i + 1], gradients[name], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(together["w_o"][i : i + 1], gradients["w_o"], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(y, total, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(together["x"], total_dx, rtol=1e-11, atol=1e-13)


def test_splitting_and_merging_undo_each_other_and_are_adjoint():
    rng = np.random.default_rng(0)
    rows, heads = rng.standard_normal((2, S, 3 * D)), rng.standard_normal((2, 3, S, D))
    split = block.split_heads(rows, 3, D)
    assert split.shape == heads.shape
    np.testing.assert_array_equal(split[1, 2, 1], rows[1, 1, 2 * D :])
    np.testing.assert_array_equal(block.merge_heads(split), rows)
    np.testing.assert_allclose((split * heads).sum(), (rows * block.merge_heads(heads)).sum(), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_keys_bias_has_gradient_exactly_zero_at_no_flop(dtype):
    inputs = [a.astype(dtype) for a in drawn()]
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"]).astype(dtype)
    _, gradients = gradients_of(inputs, dy)
    np.testing.assert_array_equal(gradients["b_k"], np.zeros((N_KV, D), dtype))
    assert gradients["b_k"].dtype == dtype
    with_b_k, without = (cost.count(block, *drawn(names)).backward.total for names in ((), ("b_k",)))
    assert with_b_k == without


def test_the_keys_bias_changes_nothing():
    inputs, moved = drawn(), drawn()
    moved[6] = moved[6] + 3
    y, _ = block.forward(*inputs, causal=True)
    same, _ = block.forward(*moved, causal=True)
    np.testing.assert_allclose(same, y, rtol=1e-12, atol=1e-13)


def test_the_keys_gradients_sum_to_zero_so_a_common_row_of_the_memory_has_none_in_w_k():
    """What all keys have in common moves no weight: dw_k is that of the memory less its mean."""
    inputs = drawn()
    inputs[9][0] += 2.0
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"])
    dy[1] = 0  # one sequence, whose mean is subtracted below
    _, saved = block.forward(*inputs)
    _, _, dw_k, *_ = block.backward(dy, saved)
    do, *_ = linear.backward(dy, linear.Saved(saved.o, inputs[4].reshape(-1, H), ("x", "w")))
    _, dk, *_ = attention.backward(block.split_heads(do, G * N_KV, D_V), saved.attended)
    np.testing.assert_allclose(dk.sum(axis=-2), 0, atol=1e-12)
    centred = inputs[9][0] - inputs[9][0].mean(axis=0)
    np.testing.assert_allclose(dw_k, np.einsum("th,ntd->hnd", centred, dk[0]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("memory", [True, False], ids=["cross", "self"])
def test_it_saves_each_array_once(memory):
    inputs = [None if a is None else a.astype(np.float32) for a in drawn(() if memory else ("memory",))]
    kept = cost.count(block, *inputs).memory
    rows, t = 2 * S, T if memory else S
    arrays = rows * H + (2 * t * H if memory else 0)
    arrays += rows * G * N_KV * D + 2 * t * N_KV * (D + D_V) + G * N_KV * rows * t + rows * G * N_KV * D_V
    assert kept.activations == 4 * arrays
    parameters = sum(a.nbytes for a, name in zip(inputs, NAMES, strict=True) if name[0] == "w")
    assert kept.parameters == parameters


def test_weights_that_are_views_themselves_are_parameters_still():
    """As PyTorch has them, [out, in] transposed: to view these as matrices takes a copy, and no copy is saved."""
    inputs = drawn()
    lying = list(inputs)
    for at in range(1, 5):
        lying[at] = np.asfortranarray(inputs[at])
    assert not any(w.flags.c_contiguous for w in lying[1:5])
    assert cost.count(block, *lying).memory == cost.count(block, *inputs).memory


@pytest.mark.parametrize(
    "biases", [(), ("b_q",), ("b_k",), ("b_v",), ("b_o",), BIASES], ids=lambda part: "-".join(part)
)
@pytest.mark.parametrize("memory", [True, False], ids=["cross", "self"])
def test_the_formulas_are_the_counts(biases, memory):
    without = {*BIASES} - {*biases} | (set() if memory else {"memory"})
    table = cost.table(block, *drawn(without), causal=True)
    assert table.agrees, table


def test_a_query_that_sees_no_key_has_the_output_of_its_biases_alone():
    inputs = drawn(shapes=SHAPES | {"x": (2, 5, H), "memory": (2, 2, H)})
    dy = np.random.default_rng(1).standard_normal((2, 5, H))
    y, gradients = gradients_of(inputs, dy, causal=True, causal_variant="lower_right")
    np.testing.assert_array_equal(y[:, :3], np.broadcast_to(inputs[8], (2, 3, H)))
    np.testing.assert_array_equal(gradients["x"][:, :3], 0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"w_q": (H, 4, D)},
            ValueError,
            r"^w_q: expected w_q\[h, g\*n_kv, d\] with g\*n_kv a multiple of n_kv = 3",
        ),
        ({"w_o": (3, D_V, H)}, ValueError, r"^w_o: expected w_o\[g\*n_kv, d_v, h\] with g\*n_kv = 6"),
        ({"w_k": (H, N_KV, 3)}, ValueError, r"^w_k: expected .*with d = 4, as in w_q; got shape \[7, 3, 3\]"),
        ({"b_v": (N_KV, D)}, ValueError, r"^b_v: expected .*with d_v = 5, as in w_v; got shape \[3, 4\]"),
        (
            {"memory": (1, T, H)},
            ValueError,
            r"^memory: expected .*leading axes \[2\], as in x; got shape \[1, 6, 7\]",
        ),
        ({"memory": (2, 0, H)}, ValueError, r"^memory: expected .*with t of at least 1"),
        ({"x": (2, 0, H)}, ValueError, r"^x: expected .*with s of at least 1"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected_before_any_arithmetic(changes, error, message):
    inputs = [counting.array(a) for a in drawn(shapes=SHAPES | changes)]
    with counting.tally() as t, pytest.raises(error, match=message):
        block.forward(*inputs)
    assert t.total == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal_variant": "left"}, "^causal_variant: expected"),
        ({"head_order": "random"}, "^head_order: expected"),
    ],
)
def test_unknown_words_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        block.forward(*drawn(), **options)
