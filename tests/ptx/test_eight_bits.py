"""Floating-point numbers of eight bits, against PyTorch's."""

import numpy as np
import pytest

from backpass.ptx import Unsupported
from backpass.ptx.arithmetic import compute
from backpass.ptx.eight_bits import LARGEST, NUMBERS, saturated
from backpass.ptx.formats import bits_of, values_of
from backpass.ptx.values import Value, known

torch = pytest.importorskip("torch")
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def drawn(n=3000, seed=0):
    """Numbers of all magnitudes of both formats, and numbers half-way between two of either."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=n) * 2.0 ** rng.integers(-20, 9, n), [0.0, -0.0]]
    for numbers in NUMBERS.values():
        size = np.unique(np.abs(numbers[np.isfinite(numbers)].astype(np.float64)))
        size = size[size <= 448]
        x += [(size[1:] + size[:-1]) / 2, -(size[1:] + size[:-1]) / 2, size, -size]
    found = np.concatenate(x).astype(np.float32)
    return found[np.abs(found) <= 448]


@pytest.mark.parametrize("type", NUMBERS)
def test_all_256_numbers(type):
    expected = torch.arange(256, dtype=torch.uint8).view(DTYPES[type]).float().numpy()
    np.testing.assert_array_equal(values_of(np.arange(256, dtype=np.uint8), type), expected)


@pytest.mark.parametrize("type", NUMBERS)
def test_conversions_are_rounded_to_the_nearest(type):
    x = drawn()
    expected = torch.as_tensor(x).to(DTYPES[type]).view(torch.uint8).numpy()
    np.testing.assert_array_equal(saturated(x, type), expected)


@pytest.mark.parametrize("type", NUMBERS)
def test_numbers_beyond_the_largest_are_the_largest(type):
    largest = float(NUMBERS[type][LARGEST[type]])
    assert largest == torch.finfo(DTYPES[type]).max
    x = np.float32([1e30, -1e30, np.inf, -np.inf, largest * 1.01])
    np.testing.assert_array_equal(NUMBERS[type][saturated(x, type)], [largest, -largest] * 2 + [largest])
    assert np.isnan(NUMBERS[type][saturated(np.float32([np.nan]), type)]).all()


@pytest.mark.parametrize("type", NUMBERS)
def test_pairs_have_the_first_operand_in_the_upper_half(type):
    x, y = drawn(), drawn(seed=1)
    n = min(len(x), len(y))
    x, y = x[:n], y[:n]
    (pair,) = compute(f"cvt.rn.satfinite.{type}x2.f32", [bits_of(x, "f32"), bits_of(y, "f32")])
    assert pair.dtype == np.uint16
    np.testing.assert_array_equal(pair >> np.uint16(8), saturated(x, type))
    np.testing.assert_array_equal(pair & np.uint16(0xFF), saturated(y, type))
    (halves,) = compute(f"cvt.rn.f16x2.{type}x2", [pair])
    for by, given in ((16, x), (0, y)):
        own = values_of((halves >> np.uint32(by)).astype(np.uint16), "f16")
        np.testing.assert_array_equal(own, NUMBERS[type][saturated(given, type)])
    (back,) = compute(f"cvt.rn.satfinite.{type}x2.f16x2", [halves])
    np.testing.assert_array_equal(back, pair)


@pytest.mark.parametrize(
    "name", ["cvt.rn.e4m3x2.f32", "cvt.rz.satfinite.e4m3x2.f32", "cvt.rn.relu.f16x2.e4m3x2"]
)
def test_other_modifiers_are_not_supported(name):
    with pytest.raises(Unsupported, match=r"not supported"):
        compute(name, [np.zeros(2, np.uint32)] * 2)


def test_each_half_of_a_pair_is_defined_by_its_own_operand():
    bits = np.zeros(3, np.uint32)
    one, other = (
        Value(bits, np.uint32(mask)) for mask in ([2**32 - 1, 2**32 - 1, 0], [2**32 - 1, 7, 2**32 - 1])
    )
    assert known("cvt.rn.satfinite.e4m3x2.f32", [one, other]).tolist() == [0xFFFF, 0xFF00, 0x00FF]
    halves = Value(bits, np.uint32([0xFFFFFFFF, 0xFFFF7FFF, 0x7FFFFFFF]))
    assert known("cvt.rn.satfinite.e5m2x2.f16x2", [halves]).tolist() == [0xFFFF, 0xFF00, 0x00FF]
    pair = Value(bits.astype(np.uint16), np.uint16([0xFFFF, 0xFF7F, 0x7FFF]))
    assert known("cvt.rn.f16x2.e4m3x2", [pair]).tolist() == [0xFFFFFFFF, 0xFFFF0000, 0x0000FFFF]
