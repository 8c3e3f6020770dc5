"""The declaration of shapes: read, bound, and rejected where it does not fit."""

import numpy as np
import pytest

from backpass.contract.shapes import check_cotangent, check_inputs, parse
from backpass.contract.spec import axis_length
from backpass.contract.values import check_natural

LINEAR = "x[*, n], w[n, p], b[p]? -> y[*, p]"
MATMUL = "a[*a, s, n], b[*b, n, p] -> y[*, s, p]"
MASKED = "x[*, n], bias[*, n]:broadcast?, mask[*, n]:bool:broadcast?, i[*]:int? -> y[*, n]"
HEADS = "q[*, g*n, s], k[*, n>0, t], bias[*, g*n, s, t]:broadcast? -> y[*, g*n, s]"
SHARED = "x[*, s, n], c[*, s, n]:shared -> y[*, s, n]"


def zeros(**shapes):
    return {name: np.zeros(shape) for name, shape in shapes.items()}


def test_parse():
    shapes = parse("tokens[*]:int, table[v>0, h], scale[]? -> y[*, h]")
    tokens, table, scale = shapes.inputs
    assert (tokens.name, tokens.axes, tokens.integer, tokens.group) == ("tokens", ("*",), True, 0)
    assert (table.axes, table.least, table.group) == (("v", "h"), (("v", 1),), None)
    assert (scale.axes, scale.optional) == ((), True)
    assert [str(spec) for spec in (*shapes.inputs, *shapes.outputs)] == [
        "tokens[*]",
        "table[v, h]",
        "scale[]",
        "y[*, h]",
    ]
    assert shapes.letters == ("v", "h")
    assert parse(LINEAR) is parse(LINEAR)


def test_values_are_parsed():
    shapes = parse(
        "x[b, n], t[b]:int<V,-100, -1, w[V, n]?, cu[g+1]:offsets<b, m[b, 2]:mask=0|-inf, c[b, n]:halves:shared"
        " -> y[b]; options reduction=mean|'sum', causal=True|False, eps=1e-5; dtypes float32; kinks x=0|-0.7"
    )
    x, t, w, cu, m, c = shapes.inputs
    assert (t.integer, t.below, t.sentinels, t.offsets) == (True, "V", (-100, -1), False)
    assert (cu.integer, cu.below, cu.offsets, cu.axes) == (True, "b", True, ("g+1",))
    assert (m.structure, m.choices, m.axes) == ("mask", (0.0, -np.inf), ("b", "2"))
    assert (c.structure, c.shared, c.floating) == ("halves", True, True)
    assert not (x.structure or x.below or w.below) and w.optional
    assert dict(shapes.options) == {"reduction": ("mean", "sum"), "causal": (True, False), "eps": (1e-5,)}
    assert (shapes.dtypes, dict(shapes.kinks)) == (("float32",), {"x": (0.0, -0.7)})
    assert (shapes.tables, shapes.multiples) == (("m", "c"), {"n": 2})
    assert shapes.letters == ("b", "n", "V", "g")
    plain = parse("x[b, n], t[b]:int -> y[b]")
    assert not (plain.options or plain.dtypes or plain.kinks or plain.tables or plain.multiples)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t[b]:int<Q -> y[b]", r"a number or the letter of an axis after t\[b\]'s <; got Q"),
        ("t[b]:integer -> y[b]", r"cannot read :integer after t\[b\]; expected :int, :int<V"),
        ("t[b]:offsets -> y[b]", r"cannot read :offsets after t\[b\]"),
        ("t[b]:offsets<b,-1 -> y[b]", r"cannot read :offsets<b,-1 after t\[b\]"),
        ("t[b, n]:offsets<b -> y[b]", r"expected one axis of offsets; got t\[b, n\]"),
        ("m[b]:mask=a -> y[b]", r"cannot read :mask=a after m\[b\]"),
        ("c[]:halves -> y[]", r"expected an axis in an array of halves; got c\[\]"),
        ("x[b]:some -> y[b]", r"expected :some after :bool or :mask of x\[b\]; got :some"),
        ("m[]:bool:some -> y[]", r"expected an axis in an array of rows; got m\[\]"),
        ("t[b]:int:table -> y[b]", r"expected one kind of values for t\[b\]; got :int:table"),
        ("x[b] -> y[b]:table", r"expected values of inputs only; got those of the output y\[b\]"),
        ("x[b] -> y[b]; option a=1", "cannot read the clause 'option a=1'; expected one each of 'options"),
        ("x[b] -> y[b]; kinks x=0; kinks x=1", "cannot read the clause 'kinks x=1'; expected one each"),
        ("x[b] -> y[b]; options", "cannot read the clause 'options'"),
        ("x[b] -> y[b]; options a", "cannot read 'a' in the clause 'options a'; expected reduction=mean"),
        ("x[b] -> y[b]; options a=1|b c", r"cannot read 'a=1\|b c' in the clause"),
        ("x[b] -> y[b]; kinks x=a", "cannot read 'x=a' in the clause 'kinks x=a'; expected numbers, as in"),
        ("x[b, n%2] -> y[b]", r"x\[b, n%2\]: expected a letter, a number, \*, .* for each axis, .*; got n%2"),
        ("x[b, n<5] -> y[b]", r"x\[b, n<5\]: expected a letter, .*; got n<5"),
        ("x[b, 2*k] -> y[b]", r"x\[b, 2\*k\]: expected a letter, .*; got 2\*k"),
        ("x[b, n>=2] -> y[b]", r"x\[b, n>=2\]: expected a letter before > .*; got n>=2: write n>1"),
        ("x[b, n>m] -> y[b]", r"x\[b, n>m\]: expected a letter before > and a number after it, .*; got n>m$"),
        ("x[b, n+1>2] -> y[b]", r"expected a letter before > .*; got n\+1>2$"),
        ("x[b, 3>2] -> y[b]", r"expected a letter before > .*; got 3>2$"),
        ("x[b] -> y[b]; dtypes half", "expected some of float64, .* in the clause 'dtypes half'; got 'half'"),
    ],
)
def test_values_that_cannot_be_read_are_named(text, message):
    with pytest.raises(ValueError, match=f"^SHAPES: .*{message}"):
        parse(text)


def test_a_least_length():
    shapes = parse("x[b, n>1], w[ n > 2 ], c[b>0]:broadcast -> y[b]")
    assert [spec.axes for spec in shapes.inputs] == [("b", "n"), ("n",), ("b",)]
    assert shapes.least == {"n": 3, "b": 1} and parse("x[b, n] -> y[b]").least == {}
    assert parse("x[n>1] -> y[]").bind(zeros(x=(2,))) == {"n": 2}
    for length in (0, 1):
        with pytest.raises(
            ValueError, match=rf"^x: expected x\[n\] with n of at least 2; got shape \[{length}\]"
        ):
            parse("x[n>1] -> y[]").bind(zeros(x=(length,)))
    assert parse("t[b]:int<V, x[b, V>1] -> y[b]").inputs[0].below == "V"


@pytest.mark.parametrize(
    "text", ["x[n]", "x -> y[n]", "x[n] -> ", "-> y[n]", "x[n] + w[n] -> y[n]", "x[n -> y[n]"]
)
def test_what_is_not_a_declaration_is_rejected(text):
    with pytest.raises(ValueError, match="declaration of shapes"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        (LINEAR, {"x": (5,), "w": (5, 4)}, {"*": (), "n": 5, "p": 4}),
        (LINEAR, {"x": (2, 3, 5), "w": (5, 4), "b": (4,), "y": (2, 3, 4)}, {"*": (2, 3), "n": 5, "p": 4}),
        (
            MATMUL,
            {"a": (2, 1, 3, 4), "b": (5, 4, 6)},
            {"*a": (2, 1), "*b": (5,), "*": (2, 5), "s": 3, "n": 4, "p": 6},
        ),
        ("x[*] -> y[k, *]", {"x": (3,), "y": (2, 3)}, {"*": (3,), "k": 2}),
        ("x[*, 2k], w[k] -> y[*, 2k]", {"x": (3, 8), "w": (4,), "y": (3, 8)}, {"*": (3,), "k": 4}),
        ("q[*, s, d], w[h, d] -> y[*]", {"q": (7, 2, 4), "w": (3, 4)}, {"*": (7,), "s": 2, "d": 4, "h": 3}),
        (
            HEADS,
            {"q": (7, 6, 4), "k": (7, 3, 5), "bias": (6, 1, 5), "y": (7, 6, 4)},
            {"*": (7,), "g": 2, "n": 3, "s": 4, "t": 5},
        ),
        (HEADS, {"q": (0, 4), "k": (3, 5)}, {"*": (), "g": 0, "n": 3, "s": 4, "t": 5}),
        ("x[n, 3], c[g+1] -> y[g]", {"x": (4, 3), "c": (3,), "y": (2,)}, {"n": 4, "g": 2}),
        (SHARED, {"x": (3, 2, 5, 4), "c": (5, 4)}, {"*": (3, 2), "s": 5, "n": 4}),
        (SHARED, {"x": (3, 2, 5, 4), "c": (3, 1, 5, 4)}, {"*": (3, 2), "s": 5, "n": 4}),
    ],
)
def test_bind(text, shapes, expected):
    assert parse(text).bind(zeros(**shapes)) == expected


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (
            LINEAR,
            {"x": (), "w": (5, 4)},
            r"x: expected x\[\*, n\], which has at least 1 axis; got shape \[\]",
        ),
        ("x[n, 3] -> y[n]", {"x": (4, 2)}, r"x: expected x\[n, 3\]; got shape \[4, 2\]"),
        (
            "c[g+1] -> y[g]",
            {"c": (0,)},
            r"c: expected c\[g\+1\] with g\+1 of at least 1; got shape \[0\]",
        ),
        ("c[g+1], y[g] -> z[]", {"c": (3,), "y": (3,)}, r"y: expected y\[g\] with g = 2, as in c"),
        (LINEAR, {"x": (5,), "w": (5,)}, r"w: expected w\[n, p\], which has exactly 2 axes; got shape \[5\]"),
        (LINEAR, {"x": (5,), "w": (6, 4)}, r"w: expected w\[n, p\] with n = 5, as in x; got shape \[6, 4\]"),
        (
            LINEAR,
            {"x": (5,), "w": (5, 4), "b": (1,)},
            r"b: expected b\[p\] with p = 4, as in w; got shape \[1\]",
        ),
        (
            LINEAR,
            {"x": (5,), "w": (5, 4), "y": (2, 4)},
            r"y: expected y\[\*, p\] with leading axes \[\], as in x",
        ),
        (
            MATMUL,
            {"a": (2, 3, 4), "b": (5, 4, 6)},
            r"a, b: expected leading axes that broadcast together; got \[2\] and \[5\]",
        ),
        ("x[n>0] -> y[n]", {"x": (0,)}, r"x: .*n.*; got shape \[0\]"),
        (
            "x[*, s], w[s+r] -> y[*, s]",
            {"x": (2, 5), "w": (4,)},
            r"w: expected w\[s\+r\] with s\+r of at least s = 5, as in x; got shape \[4\]",
        ),
        (
            HEADS,
            {"q": (5, 4), "k": (3, 5)},
            r"q: expected q\[\*, g\*n, s\] with g\*n a multiple of n = 3, as in k; got shape \[5, 4\]",
        ),
        (
            HEADS,
            {"q": (6, 4), "k": (3, 5), "y": (3, 4)},
            r"y: expected y\[\*, g\*n, s\] with g\*n = 6, as in q; got shape \[3, 4\]",
        ),
        (
            HEADS,
            {"q": (6, 4), "k": (3, 5), "bias": (4, 6)},
            r"bias: expected bias\[\*, g\*n, s, t\] with t = 5, as in k, or 1; got shape \[4, 6\]",
        ),
        (
            HEADS,
            {"q": (7, 6, 4), "k": (7, 3, 5), "bias": (2, 1, 1, 5)},
            r"bias: .* with leading axes that broadcast to \[7\], those of q; got shape \[2, 1, 1, 5\]",
        ),
        (
            HEADS,
            {"q": (6, 4), "k": (3, 5), "bias": (1, 1, 1, 5)},
            r"bias: .* with leading axes that broadcast to \[\], those of q",
        ),
        (
            SHARED,
            {"x": (3, 5, 4), "c": (5, 1)},
            r"c: expected c\[\*, s, n\] with n = 4, as in x; got shape \[5, 1\]",
        ),
        (
            SHARED,
            {"x": (3, 5, 4), "c": (1, 4)},
            r"c: expected c\[\*, s, n\] with s = 5, as in x; got shape \[1, 4\]",
        ),
        (SHARED, {"x": (3, 5, 4), "c": (4,)}, r"c: .* which has at least 2 axes; got shape \[4\]"),
        (
            SHARED,
            {"x": (3, 5, 4), "c": (2, 5, 4)},
            r"c: .* with leading axes that broadcast to \[3\], those of x; got shape \[2, 5, 4\]",
        ),
    ],
)
def test_what_does_not_fit_is_named(text, shapes, message):
    with pytest.raises(ValueError, match=message):
        parse(text).bind(zeros(**shapes))


def test_an_input_may_be_wider_than_half_precision():
    x, b = np.ones((2, 5), np.float16), np.ones(4, np.float16)
    for w in (np.ones((5, 4), np.float16), np.ones((5, 4), np.float32)):
        check_inputs(LINEAR, ("w",), x=x, w=w, b=b)
    with pytest.raises(TypeError, match="w: expected x's dtype, float16, or float32; got float64"):
        check_inputs(LINEAR, ("w",), x=x, w=np.ones((5, 4)), b=b)
    with pytest.raises(TypeError, match="b: expected x's dtype, float16; got float32"):
        check_inputs(LINEAR, ("w",), x=x, w=w, b=b.astype(np.float32))
    with pytest.raises(TypeError, match="w: expected x's dtype, float64; got float32"):
        check_inputs(LINEAR, ("w",), x=x.astype(np.float64), w=w, b=None)
    with pytest.raises(TypeError, match="w: expected x's dtype, float16; got float32"):
        check_inputs(LINEAR, x=x, w=w, b=b)


def test_dimensions_are_what_the_formulas_ask_for():
    assert parse(LINEAR).dimensions({"x": np.zeros((2, 3, 5)), "w": np.zeros((5, 4)), "b": None}) == {
        "has_b": False,
        "m": 6,
        "n": 5,
        "p": 4,
    }
    found = parse(MATMUL).dimensions(zeros(a=(2, 1, 3, 4), b=(5, 4, 6)))
    assert found == {"m": 10, "m_a": 2, "m_b": 5, "s": 3, "n": 4, "p": 6}
    assert parse("x[*, n] -> y[*, n]").dimensions(zeros(x=(7,))) == {"m": 1, "n": 7}
    found = parse(HEADS).dimensions(zeros(q=(6, 4), k=(3, 5), bias=(4, 1)))
    assert found == {"m": 1, "g": 2, "n": 3, "s": 4, "t": 5, "has_bias": True, "size_bias": 4}
    assert parse(HEADS).dimensions(zeros(q=(6, 4), k=(3, 5)))["size_bias"] == 0


def test_an_axis_may_be_a_product():
    shapes = parse(HEADS)
    assert shapes.letters == ("g", "n", "s", "t") and shapes.factors == {"g", "n"}
    assert shapes.inputs[2].broadcast and not shapes.inputs[0].broadcast
    assert axis_length("g*n", {"g": 5, "n": 2}) == 10
    assert parse(MATMUL).factors == frozenset()


def test_an_axis_may_be_as_long_as_another_and_more():
    shapes = parse("x[*, s], w[s+r] -> y[*, s]")
    assert shapes.letters == ("s", "r")
    assert [shapes.dimensions(zeros(x=(2, 5), w=(n,)))["r"] for n in (5, 7)] == [0, 2]
    assert axis_length("s+r", {"s": 5, "r": 2}) == 7
    assert [axis_length(axis, {"s": 5}) for axis in ("s+1", "2s", "3", "22")] == [6, 10, 3, 22]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (1.0, TypeError, "offset: expected an integer; got float"),
        (-1, ValueError, "offset: expected an integer of at least 0; got -1"),
    ],
)
def test_lengths_and_positions_are_integers_of_at_least_0(value, error, message):
    check_natural(s=0, h=np.int32(3))
    with pytest.raises(error, match=message):
        check_natural(s=0, offset=value)


def test_check_inputs_returns_the_namespace():
    x, w = np.zeros((2, 5)), np.zeros((5, 4))
    assert check_inputs(LINEAR, x=x, w=w, b=None).exp(x).shape == x.shape


def test_integers_are_asked_for_where_declared():
    text = "tokens[*]:int, table[v, h] -> y[*, h]"
    table = np.zeros((7, 2))
    check_inputs(text, tokens=np.zeros(3, dtype=np.int32), table=table)
    with pytest.raises(TypeError, match="tokens: expected integers; got dtype float64"):
        check_inputs(text, tokens=np.zeros(3), table=table)


def test_booleans_are_asked_for_where_declared():
    x = np.zeros((2, 3))
    mask = parse(MASKED).inputs[2]
    assert mask.boolean and mask.broadcast and mask.optional and not mask.floating and not mask.integer
    assert [spec.floating for spec in parse(MASKED).inputs] == [True, True, False, False]
    given = {"bias": None, "mask": None, "i": None}
    check_inputs(MASKED, x=x.astype(np.float32), **given | {"mask": np.ones(3, bool)})
    for wrong, message in [
        (
            {"mask": np.ones(3)},
            r"^mask: expected booleans; got dtype float64; floating-point numbers are given as bias$",
        ),
        (
            {"bias": np.ones(3, bool)},
            r"^bias: expected floating-point numbers; got dtype bool; booleans are given as mask$",
        ),
        ({"mask": np.ones(3, int)}, r"^mask: expected booleans; got dtype int64$"),
        ({"i": np.ones(2, bool)}, r"^i: expected integers; got dtype bool$"),
    ]:
        with pytest.raises(TypeError, match=message):
            check_inputs(MASKED, x=x, **given | wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"x": np.ones((1, 1)).view(np.matrix)},
            r"x: expected an array; got matrix, .*: pass numpy\.asarray\(x\)",
        ),
        ({"x": np.ma.array([[1.0]])}, r"x: expected an array; got MaskedArray, .*: pass numpy\.asarray\(x\)"),
    ],
)
def test_arrays_that_would_compute_something_else_are_rejected(given, message):
    with pytest.raises(TypeError, match=message):
        check_inputs("x[m, n], t[m]:int -> y[]", **({"x": np.ones((1, 1)), "t": np.zeros(1, int)} | given))


def test_the_cotangent_of_a_number_is_one():
    with pytest.raises(TypeError, match=r"dy: expected an array dy\[\]; got float"):
        check_cotangent(1.0, (), like=np.zeros(()))


def test_check_cotangent():
    y = np.zeros((2, 3))
    check_cotangent(np.ones((2, 3)), (2, 3), like=y)
    for dy, error, message in [
        (np.ones((3, 2)), ValueError, r"dy: expected the output's shape \[2, 3\]; got shape \[3, 2\]"),
        (np.ones((2, 3), dtype=np.float32), TypeError, "dy: expected forward's dtype, float64; got float32"),
        (np.ones((2, 3), dtype=int), TypeError, "dy: expected floating-point numbers; got dtype int64"),
        (1.0, TypeError, "dy: expected an array .*; got float"),
    ]:
        with pytest.raises(error, match=message):
            check_cotangent(dy, (2, 3), like=y)


def test_a_factor_other_than_2_is_an_error():
    with pytest.raises(
        ValueError, match=r"w\[n, 4p\]: expected no factor but 2 before a letter; got 4p: write g\*p"
    ):
        parse("x[b, n], w[n, 4p] -> y[b, p]")
