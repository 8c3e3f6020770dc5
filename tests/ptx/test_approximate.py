"""Approximate units: their results are as far from the exact ones as the manual allows, and no farther."""

import numpy as np
import pytest

from backpass.ptx.arithmetic import compute
from backpass.ptx.formats import bits_of, values_of

EXACT = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
}  # fmt: skip


def results(operation, type, x, *others, seed=None):
    how = "full" if operation == "div" else "approx"
    operands = [bits_of(v.astype(np.float32), type) for v in (x, *others)]
    return values_of(compute(f"{operation}.{how}.{type}", operands, seed)[0], type).astype(np.longdouble)


# The errors that PTX ISA 8.7, chapter 9.7.3, states, written out a second time: the largest error of each instruction
# for operands in a range, relative to the exact result, absolute, or in units in the last place.
STATED = [
    ("ex2", "f32", (-3, 3), "relative", 2.0**-22),
    ("ex2", "f16", (-3, 3), "relative", 2.0**-9.9),
    ("ex2", "bf16", (-3, 3), "relative", 2.0**-7),
    ("sqrt", "f32", (0.3, 3), "relative", 2.0**-23),
    ("rsqrt", "f32", (0.3, 3), "relative", 2.0**-22.9),
    ("rcp", "f32", (0.3, 3), "units", 1),
    ("rcp", "f32", (1e30, 3e30), "units", 1),
    ("lg2", "f32", (0.1, 0.5), "relative", 2.0**-22),
    ("lg2", "f32", (2, 1e30), "relative", 2.0**-22),
    ("lg2", "f32", (0.501, 1.999), "absolute", 2.0**-22),
    ("tanh", "f32", (-3, 3), "relative", 2.0**-11),
    ("tanh", "f16", (-3, 3), "absolute", 2.0**-10.987),
    ("tanh", "bf16", (-3, 3), "relative", 2.0**-8),
    *((name, "f32", (-6.28, 6.28), "absolute", 2.0**-20.5) for name in ("sin", "cos")),
    *((name, "f32", (6.29, 314), "absolute", 2.0**-14.7) for name in ("sin", "cos")),
]


def units(exact):
    """The distance between neighbouring float32 numbers at each exact result."""
    return 2.0 ** (np.floor(np.log2(np.abs(exact.astype(np.float64)))) - 23)


@pytest.mark.parametrize(("operation", "type", "between", "how", "most"), STATED)
def test_errors_reach_what_is_allowed_and_do_not_exceed_it(operation, type, between, how, most):
    x = np.random.default_rng(0).uniform(*between, 20_000).astype(np.float32)
    x = values_of(bits_of(x, type), type)
    x = x[x != 0]
    exact = EXACT[operation](x.astype(np.longdouble))
    allowed = most * {"relative": np.abs(exact), "absolute": np.ones_like(exact), "units": units(exact)}[how]
    off = np.abs(results(operation, type, x, seed=5) - exact)
    assert (off <= allowed * (1 + 1e-9)).all()
    assert (off / allowed).max() > 0.8
    # Without a seed, the result is the number nearest to the exact result.
    nearest = values_of(bits_of(exact.astype(np.float64), type), type)
    assert np.array_equal(results(operation, type, x), nearest)


def test_a_quotient_is_within_two_units():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(1, 2, (2, 20_000)).astype(np.float32)
    found, settled = results("div", "f32", x, y, seed=5), results("div", "f32", x, y)
    exact = x.astype(np.longdouble) / y
    for part in (exact < 1, exact >= 1, (exact >= 1) & (exact < 1.1)):
        off = (np.abs(found - exact) / units(exact))[part]
        assert 1.6 < off.max() <= 2
    assert (np.abs(settled - exact) <= units(exact) / 2).all()


def test_no_error_is_stated_for_large_angles():
    x = np.random.default_rng(7).uniform(400, 4000, 1000)
    for name in ("sin", "cos"):
        assert (
            np.abs(
                results(name, "f32", x, seed=1) - EXACT[name](x.astype(np.float32).astype(np.longdouble))
            ).max()
            > 0.9
        )


@pytest.mark.parametrize(
    ("operation", "x", "expected"),
    [("ex2", 0.0, 1.0), ("ex2", -np.inf, 0.0), ("ex2", np.inf, np.inf), ("rcp", np.inf, 0.0), ("rcp", 0.0, np.inf),
     ("sqrt", 0.0, 0.0), ("sqrt", -1.0, np.nan), ("lg2", 0.0, -np.inf), ("lg2", 1.0, 0.0), ("tanh", 0.0, 0.0),
     ("tanh", np.inf, 1.0), ("tanh", -np.inf, -1.0), ("rsqrt", np.inf, 0.0), ("rcp", -np.inf, 0.0), ("sin", np.inf, np.nan), ("lg2", np.inf, np.inf), ("cos", 0.0, 1.0)],
)  # fmt: skip
def test_special_values_are_exact(operation, x, expected):
    found = results(operation, "f32", np.full(100, x), seed=3)
    assert np.array_equal(found.astype(np.float64), np.full(100, expected), equal_nan=True)


def test_instructions_that_are_rounded_are_not_moved():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 1000)).astype(np.float32)
    for name in ("add.f32", "div.rn.f32", "mul.f32"):
        bits = [bits_of(v, "f32") for v in (x, y)]
        assert np.array_equal(compute(name, bits, 7)[0], compute(name, bits)[0])


def test_a_unit_is_a_function_and_the_seed_chooses_which():
    x = np.random.default_rng(6).uniform(1, 2, 500)
    first = results("ex2", "f32", x, seed=1)
    assert np.array_equal(results("ex2", "f32", x[::-1].copy(), seed=1)[::-1], first)
    assert not np.array_equal(results("ex2", "f32", x, seed=2), first)
