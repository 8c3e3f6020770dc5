"""What rope promises beside the contract: a rotation that depends on the position, and scores on differences alone."""

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.ops import rope

BOTH = pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])


def drawn(shape=(3, 5, 14), seed=0, like=np.float64):
    x = np.random.default_rng(seed).standard_normal(shape).astype(like)
    return x, *rope.tables(*shape[-2:], like=x)


def turned(x, offset=0, **options):
    y, _ = rope.forward(x, *rope.tables(*x.shape[-2:], offset=offset, like=x), **options)
    return y


# The rotation


@BOTH
def test_it_is_a_multiplication_by_complex_numbers(interleaved):
    """Pairs read as complex numbers, times e^(i · position · frequency): an independent form of both conventions."""
    x, *_ = drawn()
    d = x.shape[-1]
    pairs = x.reshape(3, 5, 7, 2) if interleaved else np.moveaxis(x.reshape(3, 5, 2, 7), -2, -1)
    angles = np.outer(np.arange(5), 10000.0 ** (-np.arange(0, d, 2) / d))
    expected = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
    y = turned(x, interleaved=interleaved)
    y = y.reshape(3, 5, 7, 2) if interleaved else np.moveaxis(y.reshape(3, 5, 2, 7), -2, -1)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, rtol=1e-12, atol=1e-14)


def by_complex_numbers(x, cos, sin):
    """The first Llama's program: neighbours as complex numbers."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)


def by_rotate_half(x, cos, sin):
    """GPT-NeoX's program: the halves exchanged, one of them negated."""
    first, second = x.chunk(2, dim=-1)
    return x * torch.cat((cos, cos), -1) + torch.cat((-second, first), -1) * torch.cat((sin, sin), -1)


@BOTH
@pytest.mark.parametrize("shape", [(5, 14), (2, 5, 14), (2, 3, 4, 2), (2, 1, 3, 4, 6)], ids=str)
def test_programs_of_others_agree_at_two_to_five_axes(shape, interleaved):
    x, cos, sin = drawn(shape)
    leaf, *constants = (torch.tensor(a) for a in (x, cos, sin))
    expected = (by_complex_numbers if interleaved else by_rotate_half)(leaf.requires_grad_(), *constants)
    dy = np.random.default_rng(1).standard_normal(shape)
    expected.backward(torch.tensor(dy))
    y, saved = rope.forward(x, cos, sin, interleaved=interleaved)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(rope.backward(dy, saved), leaf.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_the_two_conventions_are_one_up_to_the_order_of_elements():
    x, cos, sin = drawn()
    to_halves = np.concatenate([np.arange(0, 14, 2), np.arange(1, 14, 2)])
    half_split, _ = rope.forward(x[..., to_halves], cos, sin)
    interleaved, _ = rope.forward(x, cos, sin, interleaved=True)
    assert np.array_equal(half_split, interleaved[..., to_halves])
    assert not np.allclose(half_split, interleaved)


@BOTH
def test_norms_are_kept_and_the_backward_is_the_inverse(interleaved):
    x, cos, sin = drawn()
    y, saved = rope.forward(x, cos, sin, interleaved=interleaved)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-13)
    np.testing.assert_allclose(rope.backward(y, saved), x, rtol=1e-12, atol=1e-14)


@BOTH
def test_scores_depend_on_the_difference_of_positions_alone(interleaved):
    q, k = (np.random.default_rng(seed).standard_normal((1, 14)) for seed in (1, 2))

    def score(at_q, at_k):
        return float(
            np.vdot(turned(q, at_q, interleaved=interleaved), turned(k, at_k, interleaved=interleaved))
        )

    for difference in (0, 1, 17, 400):
        scores = [score(at + difference, at) for at in (0, 3, 100, 5000)]
        np.testing.assert_allclose(scores, scores[0], rtol=1e-10)
    assert abs(score(1, 0) - score(0, 1)) > 1e-3  # the sign of the difference matters


@BOTH
def test_a_decoded_token_is_the_same_token_of_the_whole_sequence(interleaved):
    x, *_ = drawn((2, 3, 9, 14))
    whole = turned(x, interleaved=interleaved)
    for at in range(9):
        one = turned(x[..., at : at + 1, :], offset=at, interleaved=interleaved)
        np.testing.assert_allclose(one, whole[..., at : at + 1, :], rtol=1e-13, atol=1e-15)


def test_position_0_is_left_as_it_is():
    x, *_ = drawn()
    assert np.array_equal(turned(x)[:, 0], x[:, 0])


def test_saved_holds_the_tables_themselves_and_nothing_of_x():
    x, cos, sin = drawn()
    _, saved = rope.forward(x, cos, sin)
    assert saved.cos is cos and saved.sin is sin
    assert saved.shape == (3, 5, 14) and saved.interleaved is False


# Positions of their own


def per_row(positions, shape=(2, 3, 5, 14)):
    """x and the tables of ``positions``, of which each of the two sequences has five."""
    x = np.random.default_rng(0).standard_normal(shape)
    tables = rope.tables(int(positions.max()) + 1, shape[-1], like=x)
    return x, *(table[positions][:, None] for table in tables)


@BOTH
def test_each_sequence_may_have_positions_of_its_own(interleaved):
    """The first is padded on the left, the second holds two texts, each from position 0."""
    positions = np.array([[0, 0, 0, 1, 2], [0, 1, 2, 0, 1]])
    x, cos, sin = per_row(positions)
    assert cos.shape == (2, 1, 5, 7)
    y, saved = rope.forward(x, cos, sin, interleaved=interleaved)
    dy = np.random.default_rng(1).standard_normal(x.shape)
    dx = rope.backward(dy, saved)
    assert saved.cos is cos and saved.sin is sin
    for (b, s), position in np.ndenumerate(positions):
        one = (b, slice(None), slice(s, s + 1))
        tables = rope.tables(1, 14, offset=int(position), like=x)
        own, own_saved = rope.forward(x[one], *tables, interleaved=interleaved)
        np.testing.assert_allclose(y[one], own, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(dx[one], rope.backward(dy[one], own_saved), rtol=1e-13, atol=1e-15)
    assert not np.allclose(y[0], turned(x[0], interleaved=interleaved))


def test_tables_of_every_head_are_the_shared_tables():
    x, cos, sin = drawn((2, 3, 5, 14))
    y, saved = rope.forward(x, cos, sin)
    whole = (np.ascontiguousarray(np.broadcast_to(table, (2, 3, 5, 7))) for table in (cos, sin))
    y_whole, saved_whole = rope.forward(x, *whole)
    assert np.array_equal(y, y_whole)
    assert np.array_equal(rope.backward(x, saved), rope.backward(x, saved_whole))


def test_one_table_may_be_shared_and_the_other_not():
    x, cos, sin = per_row(np.array([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]))
    assert np.array_equal(rope.forward(x, cos[0, 0], sin)[0], rope.forward(x, cos, sin)[0])


# Tables of twice the width


def repeated(table, interleaved):
    return np.repeat(table, 2, axis=-1) if interleaved else np.concatenate([table, table], axis=-1)


@BOTH
@pytest.mark.parametrize("like", [np.zeros(1), torch.zeros(1)], ids=["NumPy", "PyTorch"])
def test_a_table_with_each_number_twice_is_narrowed(like, interleaved):
    cos, sin = rope.tables(5, 14, like=np.zeros(1))
    for table in (cos, sin):
        full = repeated(table, interleaved)
        full = torch.tensor(full) if isinstance(like, torch.Tensor) else full
        found = rope.narrow(full, interleaved=interleaved)
        assert found.shape == (5, 7) and np.array_equal(np.asarray(found), table)
        assert np.shares_memory(np.asarray(found), np.asarray(full))


@pytest.mark.parametrize(
    ("table", "options", "error", "message"),
    [
        (
            (3, 5),
            {},
            ValueError,
            r"table: expected table\[\*, 2k\] with an even length of 2k; got shape \[3, 5\]",
        ),
        ((), {}, ValueError, "table: .* at least 1 axis"),
        (3.0, {}, TypeError, r"table: expected an array table\[\*, 2k\]; got float"),
        ((3, 4), {"interleaved": 1}, TypeError, "interleaved: expected True or False; got int"),
    ],
)
def test_what_cannot_be_narrowed_is_rejected(table, options, error, message):
    table = np.ones(table) if isinstance(table, tuple) else table
    with pytest.raises(error, match=message):
        rope.narrow(table, **options)


@BOTH
def test_a_table_whose_copies_differ_is_rejected(interleaved):
    """One number of one row, and a table in the other layout."""
    table, _ = rope.tables(5, 14, like=np.zeros(1))
    one_off = repeated(table, interleaved)
    one_off[3, -1] += 1e-9
    copies = "neighbours" if interleaved else "halves"
    for wrong in (one_off, repeated(table, not interleaved)):
        with pytest.raises(ValueError, match=f"equal {copies}; got a row whose {copies} differ"):
            rope.narrow(wrong, interleaved=interleaved)


def test_a_model_of_hugging_face_turns_its_padded_batch_alike():
    """Position ids, tables of the whole width, and the gradient: what its Llama computes."""
    transformers = pytest.importorskip("transformers")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = transformers.LlamaConfig(hidden_size=42, num_attention_heads=3, max_position_embeddings=16)
    positions = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 2, 3, 4]]).cumsum(-1)
    x = torch.randn(2, 3, 5, 14, generator=torch.Generator().manual_seed(0)).requires_grad_()
    cos, sin = llama.LlamaRotaryEmbedding(config)(x, positions)
    assert cos.shape == (2, 5, 14)
    theirs, _ = llama.apply_rotary_pos_emb(x, x, cos, sin)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    (dx,) = torch.autograd.grad(theirs, x, dy)
    with pytest.raises(ValueError, match=r"pass backpass\.ops\.rope\.narrow\(cos\)"):
        rope.forward(x.detach(), cos[:, None], sin[:, None])
    y, saved = rope.forward(x.detach(), *(rope.narrow(table)[:, None] for table in (cos, sin)))
    torch.testing.assert_close(y, theirs.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rope.backward(dy, saved), dx, rtol=1e-6, atol=1e-6)


# The tables


def test_tables_follow_their_formula():
    cos, sin = rope.tables(6, 8, base=500.0, offset=3, like=np.zeros(1))
    for at in range(6):
        for i in range(4):
            angle = (3 + at) * 500.0 ** (-2 * i / 8)
            np.testing.assert_allclose([cos[at, i], sin[at, i]], [np.cos(angle), np.sin(angle)], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_tables_of_far_positions_are_rounded_once(dtype):
    """Neither 70,001 nor the angle it makes exists in 16 bits; the angle's cosine does, to half a unit."""
    like = torch.zeros(1, dtype=dtype)
    found = rope.tables(2, 64, offset=70_001, like=like)
    exact = rope.tables(2, 64, offset=70_001, like=np.zeros(1))
    for table, expected in zip(found, exact, strict=True):
        assert table.dtype == dtype and table.shape == (2, 32)
        np.testing.assert_array_equal(table.double(), torch.tensor(expected).to(dtype).double())


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tables_of_16_bits_give_16_bits_within_their_rounding(dtype, interleaved):
    x, *_ = drawn()
    low = torch.tensor(x).to(dtype)
    tables = rope.tables(5, 14, like=low)
    y, saved = rope.forward(low, *tables, interleaved=interleaved)
    dx = rope.backward(low, saved)
    exact = turned(low.double().numpy(), interleaved=interleaved)
    assert {a.dtype for a in (y, dx, *tables)} == {dtype}
    assert np.abs(y.double().numpy() - exact).max() < 4 * torch.finfo(dtype).eps * np.abs(x).max()


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tables_of_float32_are_used_in_float32(dtype, interleaved):
    """y is the rounding of float64's, where tables of 16 bits are themselves off by half a unit."""
    low = torch.tensor(drawn()[0]).to(dtype)
    cos, sin = rope.tables(5, 14, like=low.float())
    y, saved = rope.forward(low, cos, sin, interleaved=interleaved)
    dx = rope.backward(low, saved)
    exact, saved64 = rope.forward(low.double(), cos.double(), sin.double(), interleaved=interleaved)
    exact_dx = rope.backward(low.double(), saved64)
    assert y.dtype == dx.dtype == dtype and saved.cos is cos
    apart = {"rtol": torch.finfo(dtype).eps / 2 * 1.001, "atol": 1e-6}
    torch.testing.assert_close(y.double(), exact, **apart)
    torch.testing.assert_close(dx.double(), exact_dx, **apart)
    rounded, _ = rope.forward(low, cos.to(dtype), sin.to(dtype), interleaved=interleaved)
    assert not torch.allclose(rounded.double(), exact, **apart)


@pytest.mark.parametrize(
    ("x", "cos", "message"),
    [
        (torch.float16, torch.float64, r"x's dtype, torch\.float16, or float32; got torch\.float64"),
        (torch.bfloat16, torch.float16, r"x's dtype, torch\.bfloat16, or float32; got torch\.float16"),
        (torch.float32, torch.bfloat16, r"x's dtype, torch\.float32; got torch\.bfloat16"),
        (torch.float32, torch.float64, r"x's dtype, torch\.float32; got torch\.float64"),
    ],
)
def test_no_other_dtypes_are_mixed(x, cos, message):
    with pytest.raises(TypeError, match=f"cos: expected {message}"):
        rope.forward(torch.ones(3, 4, dtype=x), torch.ones(3, 2, dtype=cos), torch.ones(3, 2, dtype=x))


def test_a_cotangent_has_the_dtype_of_x_and_not_of_the_tables():
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    _, saved = rope.forward(x, torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(TypeError, match=r"dy: expected forward's dtype, torch\.bfloat16; got torch\.float32"):
        rope.backward(x.float(), saved)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_have_the_dtype_of_what_they_are_like(dtype):
    assert {table.dtype for table in rope.tables(3, 4, like=np.zeros(1, dtype))} == {np.dtype(dtype)}


def test_tables_may_be_empty():
    assert [t.shape for t in rope.tables(0, 6, like=np.zeros(1))] == [(0, 3)] * 2
    assert [t.shape for t in rope.tables(4, 0, like=np.zeros(1))] == [(4, 0)] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"d": 7}, ValueError, "d: expected an even width, to be split into pairs; got 7"),
        ({"s": 2.0}, TypeError, "s: expected an integer; got float"),
        ({"offset": -1}, ValueError, "offset: expected an integer of at least 0; got -1"),
        ({"base": 0}, ValueError, "base: expected a finite number above 0; got 0"),
        ({"base": float("nan")}, ValueError, "base: expected a finite number above 0; got nan"),
        ({"base": float("inf")}, ValueError, "base: expected a finite number above 0; got inf"),
        ({"base": "10000"}, ValueError, "base: expected a finite number above 0; got '10000'"),
    ],
)
def test_what_makes_no_tables_is_rejected(arguments, error, message):
    s, d = (arguments.pop(key, default) for key, default in (("s", 3), ("d", 4)))
    with pytest.raises(error, match=message):
        rope.tables(s, d, like=np.zeros(1), **arguments)


# Rejections


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        ((3, 5), (3, 2), (3, 2), r"x: expected x\[\*, s, 2k\] with an even length of 2k; got shape \[3, 5\]"),
        (
            (3, 4),
            (3, 4),
            (3, 4),
            r"cos: expected cos\[\*, s, k\] with k = 2, half the width of x; got .*narrow\(cos\)",
        ),
        ((3, 4), (3, 2), (3, 1), r"sin: expected sin\[\*, s, k\] with k = 2, as in x; got shape \[3, 1\]"),
        ((3, 4), (5, 2), (5, 2), r"cos: expected cos\[\*, s, k\] with s = 3, as in x; got shape \[5, 2\]"),
        ((3, 4), (1, 2), (1, 2), r"cos: expected cos\[\*, s, k\] with s = 3, as in x; got shape \[1, 2\]"),
        (
            (3, 4),
            (2, 3, 2),
            (3, 2),
            r"cos: .* leading axes that broadcast to \[\], those of x; got shape \[2, 3, 2\]",
        ),
        (
            (5, 3, 4),
            (3, 2),
            (2, 3, 2),
            r"sin: .* leading axes that broadcast to \[5\], those of x; got shape \[2, 3, 2\]",
        ),
        (
            (3, 4),
            (3, 2),
            (3, 4),
            r"sin: expected sin\[\*, s, k\] with k = 2, half the width of x; got .*narrow\(sin\)",
        ),
        ((4,), (1, 2), (1, 2), r"x: expected x\[\*, s, 2k\], which has at least 2 axes; got shape \[4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected_before_any_arithmetic(x, cos, sin, message):
    with counting.tally() as t, pytest.raises(ValueError, match=message):
        rope.forward(*(counting.array(np.ones(shape)) for shape in (x, cos, sin)))
    assert t.total == 0


@BOTH
def test_no_rows_and_no_pairs_are_computed(interleaved):
    for shape in ((0, 5, 14), (3, 0, 14), (3, 5, 0)):
        x, cos, sin = drawn(shape)
        y, saved = rope.forward(x, cos, sin, interleaved=interleaved)
        assert y.shape == rope.backward(y, saved).shape == shape


def test_tables_of_integers_are_rejected():
    with pytest.raises(TypeError, match="like: expected a floating-point array; got dtype int64"):
        rope.tables(3, 4, like=np.arange(3))
