"""Every FLOP formula equals the count, exactly, in integers and in symbols."""

import inspect
from functools import cache

import numpy as np
import pytest
import sympy

from backpass import cost, ops
from backpass.contract.shapes import parse
from backpass.cost.formulas import dimensions, latex
from backpass.operation import Operation
from backpass.verify import draw
from backpass.verify.drawing import leaving_out, options_for

DRAWS = 24


def length(rng):
    return int(rng.choice([1, 1, 2, 3, 4, 5, 7]))


def leading(rng):
    """From no leading axes to three of them."""
    return tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 4)))


def broadcastable(rng):
    """Two groups of leading axes that broadcast together: axes missing or of length 1 on either side."""
    full = leading(rng)
    sides = [tuple(1 if rng.random() < 0.4 else n for n in full) for _ in range(2)]
    return [side[rng.integers(0, len(side) + 1) :] for side in sides]


def drawn(stem, rng):
    """Inputs and options at random: lengths, leading axes, and which optional inputs are given."""
    op = ops.load(stem)
    shapes = parse(op.SHAPES)
    lengths = {letter: length(rng) for letter in shapes.letters}
    a, b = broadcastable(rng)
    groups = {"*": leading(rng), "*a": a, "*b": b}
    without = [spec.name for spec in shapes.inputs if spec.optional and rng.random() < 0.4]
    without, options = leaving_out(op, without)
    if "copies" in options:
        options["copies"] = length(rng)
    return draw(op, rng, lengths=lengths, leading=groups, without=without), options


@pytest.mark.parametrize("stem", ops.STEMS)
def test_formula_equals_count(stem):
    rng = np.random.default_rng(17)
    for _ in range(DRAWS):
        inputs, options = drawn(stem, rng)
        counted = cost.count(stem, *inputs, **options)
        formula = cost.formula(stem, *inputs, **options)
        assert formula == (counted.forward.total, counted.backward.total), (
            f"the FLOP formulas give {formula}, a run counts {counted} at {inputs}, {options}; "
            "the page foundations/counting says what counts"
        )
        assert all(isinstance(value, int) for value in formula)


WITH_WANTED = [stem for stem in ops.STEMS if "wanted" in ops.load(stem).Saved._fields]


@pytest.mark.parametrize("stem", WITH_WANTED)
def test_formula_equals_count_of_what_is_wanted(stem):
    """So what is not wanted is not computed."""
    rng = np.random.default_rng(19)
    names = [spec.name for spec in Operation(stem).differentiable]
    for _ in range(DRAWS):
        inputs, options = drawn(stem, rng)
        wanted = [name for name in names if rng.random() < 0.5]
        counted = cost.count(stem, *inputs, **options, wanted=wanted)
        formula = cost.formula(stem, *inputs, **options, wanted=wanted)
        assert formula == (counted.forward.total, counted.backward.total), (inputs, options, wanted)
        assert all(isinstance(value, int) for value in formula)


@pytest.mark.parametrize("stem", WITH_WANTED)
def test_nothing_wanted_costs_no_backward_and_saves_nothing(stem):
    counted = cost.count(stem, *draw(stem, np.random.default_rng(0)), **options_for(stem), wanted=())
    assert counted.backward.total == 0 and not counted.memory.arrays


symbolic_formula = cache(cost.symbolic_formula)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_symbols_substituted_equal_the_count(stem):
    rng = np.random.default_rng(18)
    for _ in range(DRAWS):
        inputs, options = drawn(stem, rng)
        counted = cost.count(stem, *inputs, **options)
        lengths = dimensions(stem, *inputs, **options)
        no_letters = [
            key for key in lengths if lengths[key] is None or isinstance(lengths[key], (str, bool, float))
        ]
        known = {key: lengths.pop(key) for key in no_letters}
        values = {sympy.Symbol(key, positive=True, integer=True): value for key, value in lengths.items()}
        formula = symbolic_formula(stem, **known)
        assert all(isinstance(f, sympy.Expr) for f in formula)
        assert tuple(f.subs(values) for f in formula) == (counted.forward.total, counted.backward.total)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_formulas_take_bare_symbols(stem):
    """As a chapter calls them: no helper between."""
    op = ops.load(stem)
    for function in (op.forward_flops, op.backward_flops):
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if not isinstance(p.default, (str, bool)) and p.name != "wanted"]
        symbols = {name: sympy.Symbol(name) for name in names}
        assert sympy.sympify(function(**symbols)).free_symbols <= set(symbols.values())


def test_softmax_costs_4n_minus_1_a_row():
    m, n = sympy.symbols("m n", positive=True, integer=True)
    assert cost.symbolic_formula("softmax") == (m * (4 * n - 1), m * (4 * n - 1))


def test_one_product_of_1024_rows():
    """The 1024 × 1600 × 1600 layer: 2mnp is off by the sums that a dot product saves."""
    forward, backward = cost.formula("linear", (1024, 1600), (1600, 1600))
    assert forward == 2 * 1024 * 1600 * 1600 - 1024 * 1600
    assert backward == 4 * 1024 * 1600 * 1600 - 1024 * 1600 - 1600 * 1600


def test_latex_is_of_the_same_formula():
    assert latex("softmax").forward == r"m \left(4 n - 1\right)"
    assert latex("linear", has_b=False).forward == r"m p \left(2 n - 1\right)"
    assert "m_{a}" in latex("matmul").backward


def test_arrays_serve_as_well_as_shapes():
    x = np.zeros((4, 5), dtype=np.float32)
    assert cost.formula("softmax", x) == cost.formula("softmax", (4, 5)) == (4 * 19, 4 * 19)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cost.formula("softmix", (2,)), LookupError, "did you mean 'softmax'"),
        (lambda: cost.formula(object(), (2,)), TypeError, "op: expected a stem or an object with forward"),
        (lambda: cost.formula("linear", (2, 3), (4, 5)), ValueError, r"w: expected w\[n, p\] with n = 3"),
        (lambda: cost.formula("linear", (2, 3)), TypeError, "expected 2 to 3 inputs, x, w, b; got 1"),
        (lambda: cost.count("softmax", (2, 3), (3,)), TypeError, "expected 1 inputs, x; got 2"),
        (
            lambda: cost.count("softmax", 3),
            TypeError,
            r"x: expected an array, a shape such as \(2, 3\), or None",
        ),
        (lambda: cost.count("softmax", (2, 0)), ValueError, "x:"),
        (lambda: cost.count("softmax", None), TypeError, "x: expected an array"),
    ],
)
def test_rejections_name_argument_expectation_and_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_formula_that_asks_for_what_nothing_gives_is_rejected():
    class Op:
        SHAPES = "x[*] -> y[*]"
        forward = staticmethod(lambda x: (x, None))
        backward = staticmethod(lambda dy, saved: dy)
        forward_flops = staticmethod(lambda m, distinct: m)
        backward_flops = staticmethod(lambda m: m)

    with pytest.raises(TypeError, match="expected distinct by name; got none"):
        cost.formula(Op, (2, 3))


def test_what_depends_on_data_is_found_in_integers_or_given():
    t = np.array([3, 0, 3, 3])
    assert cost.formula("embedding", t, (5, 2)) == (0, 4)
    assert cost.formula("embedding", (2, 3), (5, 2), distinct=4) == (0, 4)
    assert dimensions("embedding", t, (5, 2)) == {"m": 4, "h": 2, "distinct": 2}
    with pytest.raises(TypeError, match="expected distinct by name; got none"):
        cost.formula("embedding", (2, 3), (5, 2))


def test_without_formulas_there_is_still_a_count():
    class Double:
        @staticmethod
        def forward(x):
            return x + x, None

        @staticmethod
        def backward(dy, saved):
            return dy + dy

    counted = cost.count(Double, (2, 3))
    assert (counted.forward.total, counted.backward.total, counted.ratio) == (6, 6, 1)
    with pytest.raises(TypeError, match="Double: expected SHAPES, which its FLOP formulas need"):
        cost.formula(Double, (2, 3))


def test_a_letter_that_no_formula_has_is_rejected():
    with pytest.raises(TypeError, match="softmax's formulas have no q"):
        cost.symbolic_formula("softmax", q=3)
