"""Approximate units: their results are as far from the exact ones as the manual allows, and no farther."""

import numpy as np
import pytest

from backpass.ptx.approximate import ABSOLUTE, RELATIVE
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


@pytest.mark.parametrize(("operation", "type"), [key for key in (RELATIVE | ABSOLUTE) if key[0] != "div"])
def test_errors_reach_what_is_allowed_and_do_not_exceed_it(operation, type):
    rng = np.random.default_rng(0)
    low, high = (0.1, 0.5) if operation == "lg2" else (0.3, 3)
    x = values_of(bits_of(rng.uniform(low, high, 20_000).astype(np.float32), type), type)
    exact = EXACT[operation](x.astype(np.longdouble))
    off = np.abs(results(operation, type, x, seed=5) - exact)
    allowed = (
        ABSOLUTE[operation, type]
        if (operation, type) in ABSOLUTE
        else RELATIVE[operation, type] * np.abs(exact)
    )
    assert (off <= allowed).all()
    assert (off / allowed).max() > 0.5
    exactly = np.abs(results(operation, type, x) - exact)
    assert (exactly <= allowed / 2 + 2.0**-60).all() or (operation, type) not in {
        ("ex2", "f32"),
        ("sin", "f32"),
    }


def test_a_quotient_is_within_two_units():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(1, 2, (2, 20_000)).astype(np.float32)
    found, settled = results("div", "f32", x, y, seed=5), results("div", "f32", x, y)
    units = np.spacing((x / y).astype(np.float32)).astype(np.longdouble)
    exact = x.astype(np.longdouble) / y
    assert (np.abs(found - exact) <= 2 * units).all() and (found != settled).any()
    assert (np.abs(settled - exact) <= units / 2).all()


def test_the_logarithm_near_1_has_an_absolute_error():
    x = np.linspace(0.6, 1.9, 10_000).astype(np.float32)
    off = np.abs(results("lg2", "f32", x, seed=2) - np.log2(x.astype(np.longdouble)))
    assert 2.0**-23 < off.max() <= 2.0**-22


@pytest.mark.parametrize(
    ("operation", "x", "expected"),
    [("ex2", 0.0, 1.0), ("ex2", -np.inf, 0.0), ("ex2", np.inf, np.inf), ("rcp", np.inf, 0.0), ("rcp", 0.0, np.inf),
     ("sqrt", 0.0, 0.0), ("sqrt", -1.0, np.nan), ("lg2", 0.0, -np.inf), ("lg2", 1.0, 0.0), ("tanh", 0.0, 0.0), ("cos", 0.0, 1.0)],
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
