"""Moving in a closed world is NumPy's; what is not listed is rejected; nothing computes unseen."""

import re
from fractions import Fraction

import numpy as np
import pytest
import sympy

from backpass.contract.arrays import namespace
from backpass.interpreters import counting, symbolic

HALF = Fraction(1, 2)  # a float to the power of it is a float, a symbol an exact root
INTERPRETERS = pytest.mark.parametrize("interpreter", [counting, symbolic], ids=["counting", "symbolic"])


def values(array):
    return array.to_numpy().astype(float)


def pair(interpreter, shape, seed=0):
    """The same small integers, which both interpreters hold exactly, as an Array and as a NumPy array."""
    numbers = np.random.default_rng(seed).integers(-9, 10, shape).astype(float)
    return interpreter.xp.asarray(numbers), numbers


@INTERPRETERS
@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        (1, 2),
        (1, 2, 3),
        np.int64(1),
        slice(None, None, -2),
        (slice(1, None), None, 0),
        (..., slice(0, 3)),
        None,
        (),
    ],
    ids=str,
)
def test_indexing_is_numpys(interpreter, key):
    x, expected = pair(interpreter, (2, 3, 4))
    assert np.array_equal(values(x[key]), expected[key])
    assert x[key].shape == expected[key].shape


@INTERPRETERS
def test_an_array_of_integers_is_an_index(interpreter):
    x, expected = pair(interpreter, (5, 2))
    tokens = np.array([[4, 0, 4], [1, 1, 3]])
    assert np.array_equal(values(x[interpreter.xp.asarray(tokens)]), expected[tokens])
    assert np.array_equal(
        values(interpreter.xp.take(x, interpreter.xp.asarray(tokens[0]), axis=0)), expected[tokens[0]]
    )


@INTERPRETERS
@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (lambda xp, x: xp.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
        (lambda xp, x: xp.reshape(x, (-1,)), lambda x: x.ravel()),
        (lambda xp, x: xp.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
        (lambda xp, x: xp.matrix_transpose(x), lambda x: x.swapaxes(1, 2)),
        (lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 4)), lambda x: np.broadcast_to(x, (5, 2, 3, 4))),
        (lambda xp, x: xp.expand_dims(x, axis=1), lambda x: x[:, None]),
        (lambda xp, x: xp.squeeze(x[:1], axis=0), lambda x: x[0]),
        (lambda xp, x: xp.stack([x, -x], axis=1), lambda x: np.stack([x, -x], axis=1)),
        (lambda xp, x: xp.concat([x, x[:1]], axis=0), lambda x: np.concatenate([x, x[:1]])),
        (lambda xp, x: xp.where(xp.arange(4) < 2, x, 0.0), lambda x: np.where(np.arange(4) < 2, x, 0)),
        (lambda xp, x: xp.zeros_like(x), np.zeros_like),
        (lambda xp, x: xp.ones_like(x) + xp.full_like(x, 2), lambda x: np.full_like(x, 3)),
        (lambda xp, x: xp.max(x, axis=(0, 2), keepdims=True), lambda x: x.max(axis=(0, 2), keepdims=True)),
        (lambda xp, x: xp.max(x), lambda x: x.max()),
        (lambda xp, x: xp.sum(x, axis=(-1, 0)), lambda x: x.sum(axis=(-1, 0))),
        (lambda xp, x: xp.sum(x, axis=1, keepdims=True), lambda x: x.sum(axis=1, keepdims=True)),
        (lambda xp, x: xp.sum(x), lambda x: x.sum()),
        (lambda xp, x: xp.sum(x[:, :0], axis=1), lambda x: np.zeros((2, 4))),
        (lambda xp, x: xp.divide(1 - x, 2 + x * x), lambda x: (1 - x) / (2 + x * x)),
    ],
)
def test_functions_are_numpys(interpreter, move, expected):
    x, numbers = pair(interpreter, (2, 3, 4))
    found = move(interpreter.xp, x)
    np.testing.assert_allclose(values(found), expected(numbers), rtol=1e-15)
    assert found.shape == expected(numbers).shape
    assert found.dtype == x.dtype


@INTERPRETERS
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((4, 2, 3), (3, 2)),
        ((4, 1, 2, 3), (5, 3, 2)),
        ((2, 0), (0, 3)),
    ],
)
def test_matrix_products_are_numpys(interpreter, a, b):
    a, a_numbers = pair(interpreter, a, 1)
    b, b_numbers = pair(interpreter, b, 2)
    assert np.array_equal(values(a @ b), a_numbers @ b_numbers)


def layer_norm(xp, x, w, b, tokens):
    centred = x - xp.sum(x, axis=-1, keepdims=True) / x.shape[-1]
    variance = xp.sum(centred * centred, axis=-1, keepdims=True) / x.shape[-1]
    return centred / xp.sqrt(variance + 1e-5) * w + b


def gelu_by_tanh(xp, x, w, b, tokens):
    return 0.5 * x * (1 + xp.tanh((2 / xp.pi) ** HALF * (x + 0.044715 * x * x * x)))


def embedding(xp, x, w, b, tokens):
    positions = xp.arange(tokens.shape[-1], device=x.device)
    return x[tokens] + xp.take(x, positions, axis=0)


def causal_attention(xp, x, w, b, tokens):
    positions = xp.arange(x.shape[0], device=x.device)
    scores = x @ xp.matrix_transpose(x) / 2
    scores = xp.where(positions[:, None] >= positions[None, :], scores, -xp.inf)
    exps = xp.exp(scores)
    return exps / xp.sum(exps, axis=-1, keepdims=True) @ x


def log_likelihood(xp, x, w, b, tokens):
    logs = x - xp.log(xp.sum(xp.exp(x), axis=-1, keepdims=True))
    return xp.sum(xp.take_along_axis(logs, xp.reshape(tokens[0], (3, 1)), axis=-1)) / 3


@INTERPRETERS
@pytest.mark.parametrize("run", [layer_norm, gelu_by_tanh, embedding, causal_attention, log_likelihood])
def test_what_a_transformer_computes_is_numpys(interpreter, run):
    """One text for NumPy and for a closed world: the operations to come find what they need."""
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(shape) for shape in [(3, 4), (4,), (4,)]]
    tokens = np.array([[2, 0, 1], [1, 1, 0]])
    found = run(interpreter.xp, *map(interpreter.xp.asarray, [*arrays, tokens]))
    np.testing.assert_allclose(values(found), run(np, *arrays, tokens), rtol=1e-12)


@INTERPRETERS
def test_another_device_is_rejected(interpreter):
    assert interpreter.xp.zeros((2,), device="cpu").device == "cpu"
    for make in (
        lambda: interpreter.xp.arange(3, device="cuda"),
        lambda: interpreter.xp.ones(3, device="cuda"),
    ):
        with pytest.raises(ValueError, match="device: expected 'cpu'; got 'cuda'"):
            make()


@INTERPRETERS
def test_scatter_add_is_numpys_and_counts_what_it_adds(interpreter):
    rows, numbers = pair(interpreter, (6, 2))
    index = np.array([3, 0, 3, 3, 1, 0])
    expected = np.zeros((5, 2))
    np.add.at(expected, index, numbers)
    with counting.tally() as t:
        found = interpreter.xp.scatter_add(rows, interpreter.xp.asarray(index), 5)
    assert np.array_equal(values(found), expected)
    if interpreter is counting:
        assert t.by_kind == {"add": 2 * (6 - 3)}  # six rows reach three places
    with pytest.raises(IndexError, match="from 0 to 2; got 3"):
        interpreter.xp.scatter_add(rows, interpreter.xp.asarray(index), 3)


@INTERPRETERS
@pytest.mark.parametrize("name", ["cumsum", "mean", "einsum", "linalg", "clip", "tensordot", "abs", "random"])
def test_what_is_not_listed_is_rejected(interpreter, name):
    with pytest.raises(
        AttributeError, match=rf"{interpreter.__name__} does not offer '{name}'.*uncounted.*matmul"
    ):
        getattr(interpreter.xp, name)


@pytest.mark.parametrize("name", ["abs", "maximum", "minimum"])
def test_what_is_missing_can_be_written_as_the_message_says(name):
    with pytest.raises(AttributeError) as refused:
        getattr(counting.xp, name)
    (written,) = re.findall(r"is written (where\(.*?\))", str(refused.value))
    (x, ours_x), (a, ours_a), (b, ours_b) = (
        (values, counting.array(values)) for values in np.random.default_rng(0).standard_normal((3, 5))
    )
    ours = eval(written, {"where": counting.xp.where, "x": ours_x, "a": ours_a, "b": ours_b})
    given = (x,) if name == "abs" else (a, b)
    np.testing.assert_array_equal(ours.to_numpy(), getattr(np, name)(*given))


@INTERPRETERS
def test_a_power_is_rejected_in_every_spelling(interpreter):
    x, _ = pair(interpreter, (2,))
    for spelling in (lambda: x**2, lambda: 2.0**x, lambda: interpreter.xp.pow(x, 2)):
        with pytest.raises((TypeError, AttributeError), match="a power is written as products"):
            spelling()


@INTERPRETERS
@pytest.mark.parametrize(
    "escape",
    [
        lambda x: np.asarray(x),
        lambda x: np.exp(x),
        lambda x: np.add(x, 1.0),
        lambda x: np.ones(2) * x,
        lambda x: x + np.ones(2),
        lambda x: float(x[0]),
        lambda x: bool(x[0]),
        lambda x: x[np.array([0])],
        lambda x: x[x > -100],
        lambda x: x + True,
        lambda x: x + "1",
        lambda x: x + 1j,
        lambda x: x[0] // 2,
        lambda x: x.__setitem__(0, 1.0),
    ],
)
def test_nothing_leaves_unseen(interpreter, escape):
    x, _ = pair(interpreter, (2,))
    with pytest.raises((TypeError, AttributeError)):
        escape(x)


def test_worlds_do_not_mix():
    number, symbol = counting.array([1.0, 2.0]), symbolic.array("x", (2,))
    for mix in (lambda: number + symbol, lambda: symbol @ number, lambda: counting.xp.exp(symbol)):
        with pytest.raises(TypeError, match="expected an array of backpass"):
            mix()
    with pytest.raises(TypeError):
        namespace(number, symbol)


@INTERPRETERS
def test_dtypes_do_not_mix(interpreter):
    xp = interpreter.xp
    x, integers, mask = xp.ones((3,)), xp.arange(3), xp.arange(3) > 1
    for mix in (
        lambda: x + integers,
        lambda: integers + 0.5,
        lambda: integers / 2,
        lambda: mask + mask,
        lambda: xp.exp(integers),
        lambda: xp.where(x, x, x),
        lambda: x & mask,
        lambda: integers @ integers,
        lambda: xp.concat([x, integers]),
        lambda: xp.astype(x, xp.int64),
        lambda: xp.asarray(1j),
    ):
        with pytest.raises(TypeError):
            mix()


@INTERPRETERS
def test_integers_and_masks_are_free_and_plain(interpreter):
    xp = interpreter.xp
    rows, columns = xp.arange(3), xp.arange(2, 5)
    with counting.tally() as t:
        mask = (rows[:, None] + 1 >= columns[None, :]) & ~(rows[:, None] == columns[None, :])
        counts = xp.astype(xp.sum(xp.astype(mask, xp.int64)), xp.zeros((1,)).dtype)
    assert mask.to_numpy().tolist() == [[False] * 3, [True, False, False], [False, True, False]]
    assert values(counts) == 2
    assert bool(xp.any(mask)) and not xp.all(mask)
    assert int(xp.max(columns)) == 4
    assert t.total == 0


@INTERPRETERS
def test_the_namespace_is_one_object_with_the_kinds_of_the_standard(interpreter):
    x = interpreter.xp.ones((2,))
    assert namespace(x, interpreter.xp.arange(2)) is interpreter.xp
    assert interpreter.xp.__name__ == interpreter.__name__
    kinds = ("bool", "integral", "real floating", "complex floating", "numeric")
    for array, expected in [
        (x, {"real floating", "numeric"}),
        (interpreter.xp.arange(2), {"integral", "numeric"}),
        (x == x, {"bool"}),
    ]:
        assert {kind for kind in kinds if interpreter.xp.isdtype(array.dtype, kind)} == expected
    assert interpreter.xp.isdtype(x.dtype, ("integral", "real floating"))
    assert not interpreter.xp.isdtype(x.dtype, interpreter.xp.int64)


@INTERPRETERS
def test_an_array_is_a_copy_and_hands_out_copies(interpreter):
    numbers = np.ones(3)
    x = interpreter.xp.asarray(numbers)
    numbers[:] = 7
    x.to_numpy()[:] = 7
    y = x
    y += 1
    assert np.array_equal(values(x), [1, 1, 1])
    assert np.array_equal(values(y), [2, 2, 2])


def test_constants_keep_their_interpreters_pi():
    assert counting.xp.pi == pytest.approx(np.pi)
    assert (symbolic.array("x", ()) * symbolic.xp.pi).to_numpy()[()].has(sympy.pi)
