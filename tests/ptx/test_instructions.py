"""Each instruction against its definition in exact arithmetic, or against PyTorch where PyTorch has the same."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from backpass.ptx import Unsupported, arithmetic, block
from backpass.ptx.arithmetic import compute
from backpass.ptx.formats import bits_of, fused, values_of
from backpass.ptx.values import Value, known

SPECIAL = [0.0, -0.0, 1.0, -1.5, 3.4e38, -3.4e38, 1e-45, -1.2e-38, np.inf, -np.inf, np.nan, 65504.0, 6e-8]


def floats(n, seed=0, dtype=np.float32):
    """Numbers of many magnitudes, and special values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n) * 2.0 ** rng.integers(-30, 30, n)
    with np.errstate(over="ignore"):
        return np.concatenate([x, rng.permutation(SPECIAL)]).astype(dtype)


def nearest(exact, type):
    """The number of a format that is nearest to a fraction; of two equally near, the one whose last bit is 0."""
    digits, least, most = {"f16": (11, -24, 65504), "bf16": (8, -133, None), "f32": (24, -149, None)}[type]
    if exact == 0:
        return 0.0
    size = abs(exact)
    power = 0
    while Fraction(2) ** (power + 1) <= size:
        power += 1
    while Fraction(2) ** power > size:
        power -= 1
    unit = Fraction(2) ** max(power - digits + 1, least)
    steps = size / unit
    whole = int(steps)
    rest = steps - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    found = float(whole * unit)
    largest = most or float((2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** 127)
    return float(np.copysign(np.inf if found > largest else found, float(exact)))


def of(bits, type):
    return values_of(bits, type).astype(np.float64)


@pytest.mark.parametrize("type", ["f16", "bf16", "f32"])
def test_conversions_are_rounded_to_the_nearest(type):
    x = floats(400, dtype=np.float64 if type == "f32" else np.float32)
    (bits,) = compute(
        f"cvt.rn.{type}.{'f64' if type == 'f32' else 'f32'}", [bits_of(x, "f64" if type == "f32" else "f32")]
    )
    for given, found in zip(x, of(bits, type), strict=True):
        expected = nearest(Fraction(float(given)), type) if np.isfinite(given) else float(given)
        assert found == expected or (np.isnan(found) and np.isnan(expected))


def test_halves_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    x = floats(2000, seed=1)
    for type, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        (bits,) = compute(f"cvt.rn.{type}.f32", [bits_of(x, "f32")])
        np.testing.assert_array_equal(of(bits, type), torch.as_tensor(x).to(dtype).double().numpy())
        (pair,) = compute(f"cvt.rn.{type}x2.f32", [bits_of(x, "f32"), bits_of(x[::-1].copy(), "f32")])
        np.testing.assert_array_equal(pair >> np.uint32(16), bits)
        np.testing.assert_array_equal(pair & np.uint32(0xFFFF), bits[::-1])


@pytest.mark.parametrize("type", ["f16", "bf16", "f32"])
def test_fused_multiply_add_is_rounded_once(type):
    """Also where the product and the addend almost cancel, and the sum lies between two numbers."""
    rng, most = np.random.default_rng(2), 8 if type == "f16" else 30
    a, b = (values_of(bits_of(rng.normal(size=1500).astype(np.float32), type), type) for _ in range(2))
    near = -(a.astype(np.float64) * b.astype(np.float64)) * (1 + rng.integers(-3, 4, 1500) * 2.0**-9)
    c = values_of(
        bits_of(np.where(rng.random(1500) < 0.5, near, near * 2.0 ** rng.integers(-most, most, 1500)), type),
        type,
    )
    found = of(bits_of(fused(a, b, c, type), type), type)
    for x, y, z, got in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert got == nearest(exact, type), (x, y, z)


def test_fused_multiply_add_of_float64():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 200))
    c = -a * b * (1 + rng.integers(-1, 2, 200) * 2.0**-52)
    found = fused(a, b, c, "f64")
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(found, [float(x) for x in exact])
    assert np.any(found != a * b + c)
    assert np.isnan(fused(np.array([np.inf]), np.array([0.0]), np.array([1.0]), "f64"))[0]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "max", "min", "neg", "abs"])
@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "f64"])
def test_arithmetic_of_floats(name, type):
    wide = np.float64 if type == "f64" else np.float32
    a, b = (values_of(bits_of(floats(200, seed, wide), type), type) for seed in (4, 5))
    unary = name in ("neg", "abs")
    (bits,) = compute(f"{name}.{type}", [bits_of(x, type) for x in ([a] if unary else [a, b])])
    function = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}
    for x, y, found in zip(a, b, values_of(bits, type), strict=True):
        x, y = float(x), float(y)
        if name in function and type != "f64" and np.isfinite([x, y]).all():
            exact = function[name](Fraction(x), Fraction(y))
            assert found == nearest(exact, type)
        elif name == "max":
            assert found == (y if np.isnan(x) else x if np.isnan(y) else max(x, y)) or np.isnan([x, y]).all()
        elif name == "min":
            assert found == (y if np.isnan(x) else x if np.isnan(y) else min(x, y)) or np.isnan([x, y]).all()
        elif unary and not np.isnan(x):
            assert found == (-x if name == "neg" else abs(x))


def integers(n, type, seed=0):
    width = int(type[1:])
    rng = np.random.default_rng(seed)
    edges = [0, 1, 2**width - 1, 2 ** (width - 1), 2 ** (width - 1) - 1, 7]
    random = rng.integers(0, 2**63, n, dtype=np.uint64) >> rng.integers(0, 63, n, dtype=np.uint64)
    return np.array([int(x) % 2**width for x in [*random, *edges, *edges[::-1]]], f"uint{width}")


def signed(x, type):
    width, x = int(type[1:]), int(x)
    return x - 2**width if type[0] == "s" and x >> (width - 1) else x


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "rem": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


@pytest.mark.parametrize("type", ["s32", "u32", "s64", "u64", "s16", "u16"])
@pytest.mark.parametrize("name", EXACT)
def test_arithmetic_of_integers(name, type):
    kind = f"b{type[1:]}" if name in ("and", "or", "xor") else type
    a, b = integers(300, type, 1), integers(300, type, 2)
    (found,) = compute(f"{name}.{kind}", [a, b])
    for x, y, got in zip(a, b, found, strict=True):
        x, y = signed(x, type), signed(y, type)
        if y or name not in ("div", "rem"):
            assert int(got) == EXACT[name](x, y) % 2 ** int(type[1:]), (x, y)


@pytest.mark.parametrize("type", ["s32", "u32", "s16", "u16"])
def test_products_that_are_wider(type):
    a, b, c = (integers(200, type, seed) for seed in (3, 4, 5))
    width = int(type[1:])
    (wide,) = compute(f"mul.wide.{type}", [a, b])
    (sum_,) = compute(f"mad.wide.{type}", [a, b, wide])
    (high,) = compute(f"mul.hi.{type}", [a, b])
    (low,) = compute(f"mad.lo.{type}", [a, b, c])
    for x, y, z, w, s, h, m in zip(a, b, c, wide, sum_, high, low, strict=True):
        product = signed(x, type) * signed(y, type)
        assert int(w) == product % 2 ** (2 * width) and int(s) == 2 * product % 2 ** (2 * width)
        assert int(h) == (product >> width) % 2**width
        assert int(m) == (product + signed(z, type)) % 2**width


@pytest.mark.parametrize("type", ["s32", "u32", "b32", "s64", "u64", "b16"])
def test_shifts(type):
    width = int(type[1:])
    a = integers(100, type, 6)
    by = np.resize(np.array([0, 1, 5, width - 1, width, width + 7], np.uint32), len(a))
    (left,) = compute(f"shl.b{width}", [a, by])
    (right,) = compute(f"shr.{type}", [a, by])
    for x, n, up, down in zip(a, by, left, right, strict=True):
        assert int(up) == (int(x) << int(n)) % 2**width
        assert int(down) == (signed(x, type) >> int(n)) % 2**width


@pytest.mark.parametrize("type", ["s32", "u32"])
def test_fields_of_bits(type):
    a = integers(200, type, 7)
    rng = np.random.default_rng(8)
    position, length = (rng.integers(0, 33, len(a)).astype(np.uint32) for _ in range(2))
    (found,) = compute(f"bfe.{type}", [a, position, length])
    for x, p, n, got in zip(a, position, length, found, strict=True):
        bits = [int(x) >> (int(p) + i) & 1 if int(p) + i < 32 else 0 for i in range(int(n))]
        sign = int(x) >> min(int(p) + int(n) - 1, 31) & 1 if type == "s32" and n else 0
        bits = [b if int(p) + i < 32 else sign for i, b in enumerate(bits)] + [sign] * (32 - int(n))
        assert int(got) == sum(b << i for i, b in enumerate(bits[:32]))


@pytest.mark.parametrize(
    "how", ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
)
def test_comparisons_with_and_without_nan(how):
    a, b = floats(50, 9), floats(50, 10)
    a[:10] = b[:10]
    (found,) = compute(f"setp.{how}.f32", [bits_of(a, "f32"), bits_of(b, "f32")])
    function = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    for x, y, got in zip(a, b, found, strict=True):
        nan = np.isnan(x) or np.isnan(y)
        if how in ("num", "nan"):
            assert got == (nan == (how == "nan"))
        elif nan:
            assert got == (len(how) == 3)
        else:
            assert got == function[how[:2]](x, y)


def test_conversions_of_integers():
    x = np.array([0.5, 1.5, -1.5, 2.5, 1e20, -1e20, np.nan, -0.7], np.float32)
    rounded = {"rzi": [0, 1, -1, 2], "rni": [0, 2, -2, 2], "rmi": [0, 1, -2, 2], "rpi": [1, 2, -1, 3]}
    for way, first in rounded.items():
        (found,) = compute(f"cvt.{way}.s32.f32", [bits_of(x, "f32")])
        assert [signed(v, "s32") for v in found[:4]] == first
        assert [signed(v, "s32") for v in found[4:7]] == [2**31 - 1, -(2**31), 0]
        (found,) = compute(f"cvt.{way}.f32.f32", [bits_of(x, "f32")])
        assert list(values_of(found, "f32")[:4]) == first
    n = np.array([2**40 + 1, 2**63 - 1, 2**53 + 1, 3], np.uint64)
    (found,) = compute("cvt.rn.f32.u64", [n])
    assert [float(v) for v in values_of(found, "f32")] == [nearest(Fraction(int(v)), "f32") for v in n]
    (found,) = compute("cvt.s64.s32", [np.array([2**32 - 5], np.uint32)])
    assert signed(found[0], "s64") == -5
    (found,) = compute("cvt.u64.u32", [np.array([2**32 - 5], np.uint32)])
    assert int(found[0]) == 2**32 - 5


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ex2", np.exp2),
        ("lg2", np.log2),
        ("sqrt", np.sqrt),
        ("rcp", np.reciprocal),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("tanh", np.tanh),
    ],
)
def test_approximations_are_within_a_unit(name, function):
    x = np.abs(np.random.default_rng(11).normal(size=200)).astype(np.float32) + np.float32(0.01)
    (bits,) = compute(f"{name}.approx.f32", [bits_of(x, "f32")])
    exact = function(x.astype(np.float64))
    assert (
        np.max(np.abs(values_of(bits, "f32") - exact) / np.spacing(np.abs(exact).astype(np.float32)))
        <= 0.5001
    )


def test_subnormal_numbers_are_flushed():
    tiny = np.array([1e-40, -1e-40, 1e-38], np.float32)
    bits = bits_of(tiny, "f32")
    (kept,) = compute("mul.f32", [bits, bits_of(np.ones(3, np.float32), "f32")])
    (flushed,) = compute("mul.ftz.f32", [bits, bits_of(np.ones(3, np.float32), "f32")])
    np.testing.assert_array_equal(values_of(kept, "f32"), tiny)
    np.testing.assert_array_equal(values_of(flushed, "f32"), [0, 0, 0])
    assert np.signbit(values_of(flushed, "f32")[1])


def test_bytes_are_permuted():
    a, b = np.array([0x33221100], np.uint32), np.array([0xF7665544], np.uint32)
    assert compute("prmt.b32", [a, b, np.array([0x7520], np.uint32)])[0][0] == 0xF7552200
    assert compute("prmt.b32", [a, b, np.array([0xF000], np.uint32)])[0][0] == 0xFF000000


@pytest.mark.parametrize(
    "name",
    ["frob.f32", "frob.s32", "add.sat.s32", "cvt.rz.f32.s32", "mma.f32", "cvt.rn.tf32.f32", "add.rn.f32x2"],
)
def test_what_is_not_executed_is_named(name):
    with pytest.raises(Unsupported, match=name.partition(".")[0]):
        compute(name, [np.zeros(2, np.uint32)] * 2)


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_a_conversion_towards_zero_is_never_larger(type):
    x = np.concatenate(
        [np.random.default_rng(0).normal(size=5000), [0.0, -0.0, 1.0, 1e9, -1e9, np.inf, -np.inf, np.nan]]
    )
    x = x.astype(np.float32)
    found = values_of(compute(f"cvt.rz.{type}.f32", [x.view(np.uint32)])[0], type).astype(np.float64)
    usual = values_of(compute(f"cvt.rn.{type}.f32", [x.view(np.uint32)])[0], type).astype(np.float64)
    exact = x.astype(np.float64)
    finite = np.isfinite(exact)
    assert (np.abs(found[finite]) <= np.abs(exact[finite])).all()
    step = np.abs(usual[finite] - found[finite])
    assert 0.3 < (step > 0).mean() < 0.7 and (np.signbit(found) == np.signbit(exact))[finite].all()
    assert np.array_equal(found[~finite], exact[~finite], equal_nan=True)
    limit = {"f16": 65504.0, "bf16": 1e9}[type]
    assert limit * 0.99 < found[x == 1e9][0] <= limit


def test_every_instruction_has_a_test():
    texts = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    stems = {*arithmetic._OF_FLOATS, *arithmetic._OF_INTEGERS, *arithmetic._SPECIAL, *block._MEMORY}
    assert {stem for stem in stems if not re.search(rf"\b{stem}[.\"]", texts)} == set()


def test_a_product_beyond_the_largest_number_is_finite():
    """MAX · MAX is finite, so its sum with an infinity is that infinity."""
    most = np.array([np.finfo(np.float64).max])
    for infinity in (np.inf, -np.inf):
        bits = [x.view(np.uint64) for x in (most, most, np.array([infinity]))]
        assert compute("fma.rn.f64", bits)[0].view(np.float64)[0] == infinity


def test_a_saturated_product_is_rejected():
    with pytest.raises(Unsupported, match=r"mad\.hi\.sat\.s32"):
        compute("mad.hi.sat.s32", [np.zeros(2, np.uint32)] * 3)


def test_a_fused_product_and_sum_is_rounded_once():
    x, y, z = (np.random.default_rng(i).normal(size=500).astype(np.float32) for i in range(3))
    z[:250] = -(x * y)[:250]  # the sum is the rounding error of the product
    found = compute("fma.rn.f32", [v.view(np.uint32) for v in (x, y, z)])[0].view(np.float32)
    exact = [
        Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z, strict=True)
    ]
    assert [float(v) for v in found] == [
        float(np.float32(float(v))) if v == 0 else nearest(v, "f32") for v in exact
    ]
    assert (found[:250] != 0).any()


def test_conversions_that_saturate():
    x = np.array([-300, -5, 0, 7, 130, 300], np.int32)
    for to, least, most in (("u8", 0, 255), ("s8", -128, 127), ("u16", 0, 2**16 - 1)):
        (found,) = compute(f"cvt.sat.{to}.s32", [x.view(np.uint32)])
        kind = f"{'int' if to[0] == 's' else 'uint'}{to[1:]}"
        assert list(found.view(kind)) == [max(least, min(most, int(v))) for v in x]
    y = np.array([-3, -0.0, 0.25, 1 / 3, 1, 7, np.inf, -np.inf, np.nan], np.float32)
    (found,) = compute("cvt.rn.sat.f16.f32", [y.view(np.uint32)])
    expected = np.array([0, 0, 0.25, 1 / 3, 1, 1, 1, 0, 0], np.float16)
    assert np.array_equal(found, expected.view(np.uint16))


def test_a_saturated_number_is_as_undefined_as_its_source():
    x = Value(np.array([5, 5], np.uint32), np.array([0xFFFFFFFF, 0xFF], np.uint32))
    assert list(known("cvt.sat.u8.s32", [x])) == [True, False]
    assert list(known("cvt.u8.s32", [x])) == [0xFF, 0xFF]


def test_any_function_of_three_bits_is_looked_up():
    """The table of a function is its value at 0xF0, 0xCC, and 0xAA."""
    a, b, c = np.random.default_rng(0).integers(0, 2**32, (3, 9), dtype=np.uint32)
    for function in (
        lambda a, b, c: a & b | c,
        lambda a, b, c: a ^ b ^ c,
        lambda a, b, c: (a & b) | (~a & c),
        lambda a, b, c: ~(a | b) ^ c,
    ):
        table = np.full(9, function(0xF0, 0xCC, 0xAA) & 0xFF, np.uint32)
        assert np.array_equal(compute("lop3.b32", [a, b, c, table])[0], function(a, b, c))


def test_bits_are_counted_and_inverted():
    x = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x00F0, 12345], np.uint32)
    assert list(compute("popc.b32", [x])[0]) == [int(v).bit_count() for v in x]
    assert list(compute("clz.b32", [x])[0]) == [32 - int(v).bit_length() for v in x]
    assert list(compute("not.b32", [x])[0]) == [2**32 - 1 - int(v) for v in x]
    for width in (32, 64):
        wide = x.astype(f"uint{width}")
        expected = [int(f"{int(v):0{width}b}"[::-1], 2) for v in x]
        assert list(compute(f"brev.b{width}", [wide])[0]) == expected
    truth = np.array([True, False])
    assert list(compute("not.pred", [truth])[0]) == [False, True]


def test_a_sign_is_copied_from_the_first_operand_to_the_second():
    sign, size = np.array([-1.0, 0.0, -0.0], np.float32), np.array([2.0, -3.0, np.inf], np.float32)
    found = compute("copysign.f32", [sign.view(np.uint32), size.view(np.uint32)])[0].view(np.float32)
    assert found.tolist() == [-2.0, 3.0, -np.inf]


def test_two_registers_are_shifted_as_one():
    lower, upper, by = np.random.default_rng(0).integers(0, 2**32, (3, 200), dtype=np.uint32)
    by = by % np.uint32(70)
    for mode in ("wrap", "clamp"):
        for way in "lr":
            found = compute(f"shf.{way}.{mode}.b32", [lower, upper, by])[0]
            for a, b, n, got in zip(*(x.tolist() for x in (lower, upper, by, found)), strict=True):
                steps = n % 32 if mode == "wrap" else min(n, 32)
                both = b << 32 | a
                assert got == ((both << steps >> 32) if way == "l" else both >> steps) % 2**32


def test_operands_of_tensor_cores_in_float32_are_rounded_half_away_from_zero():
    x = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-11 - 2.0**-20, 3.0, 0.0, np.inf], np.float32)
    found = compute("cvt.rna.tf32.f32", [x.view(np.uint32)])[0].view(np.float32)
    assert found.tolist() == [1 + 2.0**-10, -1 - 2.0**-10, 1.0, 3.0, 0.0, np.inf]


def bits32(*x):
    return np.array(x, np.float32).view(np.uint32)


def test_not_a_number_becomes_an_integer():
    """PTX ISA, cvt: NaN becomes 0, unless the source is f64 or the target has 64 bits."""
    nan = {
        "f32": bits32(np.nan),
        "f64": np.array([np.nan]).view(np.uint64),
        "f16": np.array([0x7E00], np.uint16),
    }
    for of, bits in nan.items():
        for to in ("s32", "u32", "s64", "u64", "s16"):
            width = int(to[1:])
            expected = 1 << (width - 1) if of == "f64" or width == 64 else 0
            assert int(compute(f"cvt.rzi.{to}.{of}", [bits])[0][0]) == expected


@pytest.mark.parametrize("how", ["", ".NaN", ".ftz"])
def test_the_sign_of_zero_in_a_maximum(how):
    a, b, zero, minus = bits32(-0.0, 0.0, -0.0, 0.0), bits32(0.0, -0.0, -0.0, 0.0), 0, 0x80000000
    assert compute(f"max{how}.f32", [a, b])[0].tolist() == [zero, zero, minus, zero]
    assert compute(f"min{how}.f32", [a, b])[0].tolist() == [minus, minus, minus, zero]


def test_instructions_return_one_nan():
    nan, one = np.array([0x7FC12345], np.uint32), bits32(1)
    for name in ("add.f32", "max.NaN.f32", "min.NaN.ftz.f32", "mul.rn.f32", "add.rz.f32"):
        assert compute(name, [nan, one])[0][0] == compute(name, [one, nan])[0][0] == 0x7FFFFFFF
    assert compute("max.f32", [nan, nan])[0][0] == 0x7FFFFFFF
    assert compute("max.f32", [nan, one])[0][0] == one[0]
    for type, half in (("f16", 0x7E01), ("bf16", 0x7FC1)):
        assert (
            compute(f"max.NaN.{type}", [np.array([half], np.uint16), np.array([0], np.uint16)])[0][0]
            == 0x7FFF
        )
        assert compute(f"cvt.rn.{type}.f32", [nan])[0][0] == 0x7FFF
    assert compute("cvt.rna.tf32.f32", [np.array([0x7F800001], np.uint32)])[0][0] == 0x7FFFFFFF


@pytest.mark.parametrize("seed", [None, 1])
def test_a_quick_quotient_by_a_large_number_is_zero(seed):
    x, y = bits32(1e38, -1e38, np.inf, 3e38, 1e38), bits32(2.0**127, 2.0**127, 2.0**127, -np.inf, 2.0**126)
    found = compute("div.approx.f32", [x, y], seed)[0]
    assert found.tolist()[:4] == [0, 0x80000000, 0x7FFFFFFF, 0x80000000]
    assert found.view(np.float32)[4] == pytest.approx(1e38 / 2.0**126, rel=1e-6)
    assert compute("div.full.f32", [x, y], seed)[0].view(np.float32)[0] == pytest.approx(
        1e38 / 2.0**127, rel=1e-6
    )


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_results_towards_zero(name):
    """Truncated exact results: each has the sign of the exact result, and the next float32 away from 0 is beyond it."""
    a, b, c = (floats(400, seed) for seed in (6, 7, 8))
    with np.errstate(all="ignore"):
        b[:100], c[:100] = -a[:100] * np.float32(1 + 2.0**-20), -(a * b)[:100]
    operands = [a, b, c][: 3 if name == "fma" else 2]
    found = compute(f"{name}.rz.f32", [x.view(np.uint32) for x in operands])[0].view(np.float32)
    usual = compute(f"{name}.rn.f32", [x.view(np.uint32) for x in operands])[0].view(np.float32)
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "fma": lambda x, y, z: x * y + z,
    }
    for *given, got, near in zip(*operands, found, usual, strict=True):
        if not np.isfinite(given).all():
            assert got == near or (np.isnan(got) and np.isnan(near))
            continue
        value = exact[name](*(Fraction(float(x)) for x in given))
        assert (
            np.isfinite(got) and abs(Fraction(float(got))) <= abs(value) and Fraction(float(got)) * value >= 0
        )
        with np.errstate(over="ignore"):
            beyond = float(np.nextafter(got, np.float32(np.copysign(np.inf, float(value)))))
        assert value == 0 or np.isinf(beyond) or abs(Fraction(beyond)) > abs(value)
    assert 0.1 < (found != usual).mean() < 0.8
    tiny = bits32(1e-38, -1e-38), bits32(-1.01e-38, 1.01e-38)
    assert compute("add.rz.ftz.f32", [*tiny])[0].tolist() == [0, 0]
    with pytest.raises(Unsupported, match=r"add\.rz\.f64"):
        compute("add.rz.f64", [np.zeros(1, np.uint64)] * 2)


def test_sums_with_a_carry():
    """64-bit numbers, added and multiplied in halves of 32 bits."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2**64, (2, 300), dtype=np.uint64)
    b[:50] = a[:50] ^ np.uint64(0xFFFFFFFF)
    low, high = lambda x: x.astype(np.uint32), lambda x: (x >> np.uint64(32)).astype(np.uint32)
    for name, exact in (("add", a + b), ("sub", a - b)):
        first, carry = compute(f"{name}.cc.u32", [low(a), low(b)])
        second, last = compute(f"{name}c.cc.u32", [high(a), high(b), carry])
        assert np.array_equal(first, low(exact)) and np.array_equal(second, high(exact))
        assert np.array_equal(last, exact < a if name == "add" else b > a)
        assert np.array_equal(compute(f"{name}c.u32", [high(a), high(b), carry])[0], second)
    x, y, z = low(a), low(b), high(a)
    first, carry = compute("mad.lo.cc.u32", [x, y, z])
    (second,) = compute("madc.hi.u32", [x, y, np.zeros_like(x), carry])
    exact = x.astype(np.uint64) * y + z
    assert np.array_equal(first, low(exact)) and np.array_equal(second, high(exact)) and carry.any()
    with pytest.raises(Unsupported, match=r"add\.cc\.u64"):
        compute("add.cc.u64", [a, b])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("way", ["rm", "rp"])
def test_directed_rounding_of_sums_and_products(name, way):
    """The result is the number next to the exact one, on the side of the direction."""
    operands = [floats(300, seed)[:300] for seed in (21, 22, 23)][: 3 if name == "fma" else 2]
    operands[1][:100] = operands[0][:100] * np.float32(1 + 2**-20)  # sums that almost cancel
    found = compute(f"{name}.{way}.f32", [x.view(np.uint32) for x in operands])[0].view(np.float32)
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "fma": lambda x, y, z: x * y + z,
    }
    for got, *given in zip(found, *operands, strict=True):
        if not np.isfinite([*given, got]).all():
            continue
        value = exact[name](*(Fraction(float(x)) for x in given))
        beyond = np.nextafter(got, np.float32(np.inf if way == "rm" else -np.inf))
        low, high = (got, beyond) if way == "rm" else (beyond, got)
        assert Fraction(float(low)) <= value and (not np.isfinite(high) or value <= Fraction(float(high)))
        assert Fraction(float(got)) == value or float(low) != float(high)
        assert value not in (Fraction(float(low)), Fraction(float(high)) if np.isfinite(high) else None) or (
            Fraction(float(got)) == value
        )


def test_a_difference_of_equal_numbers_rounded_down_is_minus_zero():
    one = np.float32([1.0]).view(np.uint32)
    assert (
        compute("sub.rm.f32", [one, one])[0][0] == 0x80000000 and compute("sub.rp.f32", [one, one])[0][0] == 0
    )


def test_saturated_sums_are_between_0_and_1():
    x = np.float32([-3.0, -0.0, 0.25, 0.75, np.inf, np.nan]).view(np.uint32)
    y = np.full(6, np.float32(0.5)).view(np.uint32)
    found = compute("add.sat.f32", [x, y])[0].view(np.float32)
    assert found.tolist() == [0.0, 0.5, 0.75, 1.0, 1.0, 0.0]
    assert compute("fma.rn.sat.f32", [x, y, y])[0].view(np.float32).tolist() == [
        0.0,
        0.5,
        0.625,
        0.875,
        1.0,
        0.0,
    ]
    with pytest.raises(Unsupported, match=r"add\.sat\.f16"):
        compute("add.sat.f16", [x.astype(np.uint16)] * 2)


@pytest.mark.parametrize("type", ["s32", "u32", "s64", "u64"])
def test_the_highest_bit_and_absolute_differences(type):
    x, y = integers(100, type, 31), integers(100, type, 32)
    width, none = int(type[1:]), 2**32 - 1
    for bits, place, shift in zip(
        x, compute(f"bfind.{type}", [x])[0], compute(f"bfind.shiftamt.{type}", [x])[0], strict=True
    ):
        value = signed(bits, type)
        digits = (~value if value < 0 else value).bit_length()
        assert (int(place), int(shift)) == ((digits - 1, width - digits) if digits else (none, none))
    if width == 32:
        (found,) = compute(f"sad.{type}", [x, y, y])
        for a, b, c, got in zip(x, y, y, found, strict=True):
            assert int(got) == (abs(signed(a, type) - signed(b, type)) + int(c)) % 2**32
