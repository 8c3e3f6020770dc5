"""Symbols: exact, decided only where it is certain, and a maximum that somebody has to see."""

import math

import numpy as np
import pytest
import sympy

from backpass import ops
from backpass.contract.shapes import parse
from backpass.interpreters import symbolic
from backpass.verify import draw
from backpass.verify.drawing import options_for

xp = symbolic.xp


def at(expressions, known):
    """The expressions' float values. ``known`` has that of each symbol, and receives that of each part."""

    def value(part):
        if part not in known:
            known[part] = part.func(*map(value, part.args)) if part.args else part
        return known[part]

    return np.array([float(value(e)) for e in expressions.flat]).reshape(expressions.shape)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_the_expressions_have_numpys_values(stem):
    op, rng = ops.load(stem), np.random.default_rng(5)
    options = options_for(op)
    lengths = dict(zip(parse(op.SHAPES).letters, (3, 2, 2, 1, 2, 1, 2), strict=False))
    inputs = draw(op, rng, lengths=lengths, leading={"*": (2,), "*a": (2, 1), "*b": (2,)})
    specs = parse(op.SHAPES).inputs
    symbols = [
        symbolic.array(spec.name, x.shape, positive=spec.name in getattr(op, "POSITIVE", ()))
        if spec.floating
        else xp.asarray(x)
        for spec, x in zip(specs, inputs, strict=True)
    ]
    y, saved = op.forward(*inputs, **options)
    dy = np.asarray(rng.standard_normal(y.shape))
    dys = symbolic.array("dy", y.shape)
    numbers = {
        symbol: number
        for array, values in zip([*symbols, dys], [*inputs, dy], strict=True)
        if values.dtype.kind == "f"
        for symbol, number in zip(array.to_numpy().flat, values.flat, strict=True)
    }
    with symbolic.session({symbol: sympy.Rational(number) for symbol, number in numbers.items()}) as s:
        exact_y, exact_saved = op.forward(*symbols, **options)
        exact_gradients = op.backward(dys, exact_saved)
    known = {symbol: sympy.Float(float(number)) for symbol, number in numbers.items()}
    for symbol, of in s.fresh.items():  # a maximum may be among the numbers of a later one
        known[symbol] = sympy.Float(max(at(np.array([*of]), known)))
    np.testing.assert_allclose(at(exact_y.to_numpy(), known), y, rtol=1e-12)
    gradients = op.backward(dy, saved)
    if not isinstance(gradients, tuple):
        gradients, exact_gradients = (gradients,), (exact_gradients,)
    for expected, found in zip(gradients, exact_gradients, strict=True):
        np.testing.assert_allclose(at(found.to_numpy(), known), expected, rtol=1e-10, atol=1e-12)


def test_symbols_are_real_and_named_by_their_place():
    assert [str(s) for s in symbolic.array("x", (2, 2)).to_numpy().flat] == [
        "x_0_0",
        "x_0_1",
        "x_1_0",
        "x_1_1",
    ]
    assert str(symbolic.array("x", ()).to_numpy()[()]) == "x"
    assert all(s.is_real for s in symbolic.array("x", (3,)).to_numpy())
    with pytest.raises(TypeError, match="name: expected a string"):
        symbolic.array(3, (2,))


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (0.5, sympy.Rational(1, 2)),
        (0.1, sympy.Rational(1, 10)),
        (1e-5, sympy.Rational(1, 100000)),
        (3, sympy.Integer(3)),
        (np.float32(0.25), sympy.Rational(1, 4)),
        (np.int64(-2), sympy.Integer(-2)),
        (sympy.sqrt(2), sympy.sqrt(2)),
        (sympy.pi, sympy.pi),
        (math.inf, sympy.oo),
        (-math.inf, -sympy.oo),
    ],
)
def test_constants_are_exact(constant, expected):
    product = (xp.ones(()) * constant).to_numpy()[()]
    assert product == expected
    assert not product.atoms(sympy.Float)


def test_constants_stand_on_either_side():
    x = symbolic.array("x", (2,))
    for constant in (sympy.pi, sympy.sqrt(2), sympy.Rational(1, 3), 2):
        assert (constant * x).to_numpy().tolist() == (x * constant).to_numpy().tolist()
        assert (constant - x).to_numpy().tolist() == (-(x - constant)).to_numpy().tolist()


def test_a_rounded_expression_is_rejected():
    with pytest.raises(TypeError, match=r"expected an exact expression; got .*, in which a number"):
        symbolic.array("x", ()) * sympy.pi.evalf()


def test_dividing_by_an_integer_is_exact():
    x = symbolic.array("x", (3,))
    mean = (xp.sum(x) / 3).to_numpy()[()]
    assert mean == sum(x.to_numpy()) * sympy.Rational(1, 3)


X, Y = (symbolic.array(name, ()) for name in "xy")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: -math.inf == X, False),
        (lambda: X > -math.inf, True),
        (lambda: math.inf <= X, False),
        (lambda: X != -math.inf, True),
        (lambda: xp.exp(X) + xp.exp(Y) == 0, False),
        (lambda: xp.exp(X) + xp.exp(Y) > 0, True),
        (lambda: X * X + 1e-5 > 0, True),
        (lambda: X * X >= 0, True),
        (lambda: X == X, True),
        (lambda: X < X + 1, True),
        (lambda: xp.asarray(-math.inf) == -math.inf, True),
        (lambda: xp.asarray(0.5) < 1, True),
    ],
)
def test_what_is_certain_is_decided(found, expected):
    assert bool(found()) is expected


@pytest.mark.parametrize(
    "compare",
    [
        lambda: X > 0,
        lambda: X == Y,
        lambda: X <= Y,
        lambda: X * X > 0,
        lambda: xp.where(X != 0, X, 0.0),
        lambda: xp.asarray(math.nan) == 0,
    ],
)
def test_what_is_not_certain_raises(compare):
    with pytest.raises(symbolic.Undecided, match="depends on the symbols' values"):
        compare()


def test_in_a_session_an_equation_that_is_not_an_identity_is_false():
    """It holds on a boundary alone. Of a maximum, which equals one of its inputs, nothing is said."""
    with symbolic.session() as s:
        assert not bool(X * X == 0) and bool(X != Y) and not bool(X == Y)
        assert bool((X + Y) * (X + Y) == X * X + 2 * X * Y + Y * Y)
        assert not s.decided
        with pytest.raises(symbolic.Undecided):
            bool(xp.max(xp.stack([X, Y])) == X)


def test_positive_symbols_are_known_to_be_so():
    x = symbolic.array("x", (3,), positive=True)
    assert bool(xp.sum(x) > 0) and bool(xp.all(x != 0))


def test_a_maximum_is_a_fresh_symbol_listed_with_what_it_is_the_maximum_of():
    x = symbolic.array("x", (2, 3))
    with symbolic.session() as s:
        top = xp.max(x, axis=-1, keepdims=True)
        again = xp.max(x, axis=-1)
    assert top.shape == (2, 1)
    assert list(s.fresh) == [*top.to_numpy().flat, *again.to_numpy().flat]
    assert (
        len(s.fresh) == 4
    )  # a second maximum of the same is a different symbol: nothing may rest on their being equal
    assert s.fresh[top.to_numpy()[1, 0]] == tuple(x.to_numpy()[1])
    assert all(symbol.is_real for symbol in s.fresh)


def test_a_maximum_outside_a_session_is_rejected():
    with pytest.raises(RuntimeError, match="which must be recorded"):
        xp.max(symbolic.array("x", (2,)))


def test_sessions_do_not_share_symbols():
    x = symbolic.array("max_0", (2,))
    with symbolic.session() as first:
        a = xp.max(x)
        with symbolic.session() as second:
            b = xp.max(x)
    assert [list(first.fresh), list(second.fresh)] == [[a.to_numpy()[()]], [b.to_numpy()[()]]]
    assert a.to_numpy()[()] != b.to_numpy()[()]


def test_a_maximum_of_numbers_is_their_maximum():
    assert xp.max(xp.asarray([0.5, -math.inf, 3.0])).to_numpy()[()] == 3
    assert xp.max(xp.asarray([-math.inf, -math.inf])).to_numpy()[()] == -sympy.oo
    assert xp.max(xp.stack([X, xp.asarray(math.inf)])).to_numpy()[()] == sympy.oo


def test_masked_scores_drop_out_of_softmax_exactly():
    scores = xp.where(xp.arange(3) < 2, symbolic.array("x", (3,)), -math.inf)
    with symbolic.session() as s:
        y, _ = ops.softmax.forward(scores)
    y0, y1, y2 = y.to_numpy()
    assert y2 == 0
    assert sympy.simplify(y0 + y1) == 1
    (top,) = s.fresh
    assert sympy.simplify(sympy.diff(y0, top)) == 0


def test_a_row_of_minus_infinity_gives_zero_exactly():
    y, saved = ops.softmax.forward(xp.full((3,), -math.inf))
    dx = ops.softmax.backward(symbolic.array("dy", (3,)), saved)
    assert set(y.to_numpy()) == set(dx.to_numpy()) == {sympy.Integer(0)}


def relu(x):
    return xp.where(x > 0, x, 0.0)


def test_a_point_decides_a_branch_and_what_it_decided_is_listed():
    x = symbolic.array("x", (3,))
    x0, x1, x2 = x.to_numpy()
    point = {x0: sympy.Rational(1, 2), x1: sympy.Rational(-3, 7), x2: sympy.Integer(4)}
    with symbolic.session(point) as s:
        y = relu(x - xp.exp(x - 3))
        assert bool(x[1] * x[1] >= 0) and not s.decided.keys() & {x1 * x1}  # certain, so not by the point
    below = [xi - sympy.exp(xi - 3) for xi in (x0, x1, x2)]
    assert y.to_numpy().tolist() == [below[0], 0, below[2]]
    assert s.decided == {below[0]: 1, below[1]: -1, below[2]: 1}


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        ("__lt__", True),
        ("__le__", True),
        ("__gt__", False),
        ("__ge__", False),
        ("__eq__", False),
        ("__ne__", True),
    ],
)
def test_every_relation_follows_from_the_sign(relation, expected):
    with symbolic.session({X.to_numpy()[()]: sympy.Integer(1), Y.to_numpy()[()]: sympy.Integer(2)}):
        assert bool(getattr(X, relation)(Y)) is expected


def test_a_point_on_the_boundary_or_a_maximum_decides_nothing():
    symbol = X.to_numpy()[()]
    with symbolic.session({symbol: sympy.Integer(0)}), pytest.raises(symbolic.Undecided):
        relu(X)
    with symbolic.session({symbol: sympy.Integer(1)}), pytest.raises(symbolic.Undecided):
        relu(X - xp.max(xp.stack([X, 2 * X])))
