"""Formats have the numbers of PyTorch's dtypes, and rounding to them is PyTorch's cast, or exact arithmetic's."""

import math
from fractions import Fraction
from itertools import pairwise

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.training import formats
from backpass.training.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, decoded, rounded, scaled
from backpass.verify.mutation import compiled, mutants

TORCH = {FP32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}
TORCH |= {E5M2: torch.float8_e5m2, E4M3: torch.float8_e4m3fn}
INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
ALL = (FP32, TF32, BF16, FP16, E5M2, E4M3)
E2M1 = Format("E2M1", 2, 1)  # smaller than any that is used, so all cases can be listed


def by_name(items):
    return pytest.mark.parametrize("format", items, ids=lambda format: format.name)


def every_number(format):
    """The finite numbers of a format of few bits, ascending."""
    return sorted({x for x in (decoded(c, format) for c in range(2**format.bits)) if math.isfinite(x)})


def drawn(format, dtype=np.float64, seed=0):
    """Numbers of all sizes around the format's range, those half-way between two numbers, and their neighbours."""
    rng = np.random.default_rng(seed)
    low, high = math.log2(format.smallest) - 3, math.log2(format.largest)
    spread = rng.choice([-1, 1], 1500) * 2.0 ** rng.uniform(low, high, 1500)
    on = rounded(spread, format)
    half = on + np.sign(on) * [format.gap(abs(x)) / 2 for x in on]
    half = half[np.abs(half) < format.largest]
    near = np.concatenate([half, half * (1 + 2**-20), half * (1 - 2**-20)])
    edges = [0.0, -0.0, 1.0, format.largest, -format.largest, format.smallest, format.smallest / 2]
    numbers = np.concatenate([spread, on, near, edges, [format.smallest_normal, 1.5 * format.smallest]])
    return numbers[np.abs(numbers) <= format.largest].astype(dtype)


class TestFormat:
    @by_name(TORCH)
    def test_the_limits_of_torch(self, format):
        its = torch.finfo(TORCH[format])
        assert (format.largest, format.smallest_normal, format.epsilon) == (its.max, its.tiny, its.eps)
        assert format.smallest == its.smallest_normal * its.eps
        assert format.bits == its.bits

    def test_tf32_has_the_range_of_fp32_and_the_gaps_of_fp16(self):
        assert TF32.bits == 19
        assert (TF32.smallest_normal, TF32.epsilon) == (FP32.smallest_normal, FP16.epsilon)

    @by_name([E5M2, E4M3])
    def test_every_code(self, format):
        codes = torch.arange(256, dtype=torch.uint8)
        expected = codes.view(TORCH[format]).double().numpy()
        np.testing.assert_array_equal([decoded(code, format) for code in range(256)], expected)

    @by_name([BF16, FP16])
    def test_every_code_of_16_bits(self, format):
        codes = np.arange(2**16).astype(np.uint16).view(np.int16)
        expected = torch.from_numpy(codes).view(TORCH[format]).double().numpy()
        np.testing.assert_array_equal([decoded(code, format) for code in range(2**16)], expected)

    def test_codes_of_32_bits(self):
        codes = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)
        expected = codes.view(np.float32)
        np.testing.assert_array_equal([decoded(int(code), FP32) for code in codes], expected)

    @by_name([E5M2, E4M3, FP16, E2M1])
    def test_the_gap_is_the_distance_to_the_next_number(self, format):
        numbers = [x for x in every_number(format) if x >= 0]
        for x, following in pairwise(numbers):
            assert format.gap(x) == format.gap(-x) == following - x
            assert format.gap((x + following) / 2) == following - x

    @pytest.mark.parametrize(
        ("bits", "message"),
        [
            ((1, 3), "exponent: expected from 2 to 8 bits; got 1"),
            ((9, 3), "exponent: expected from 2 to 8 bits; got 9"),
            ((4, 24), "mantissa: expected from 1 to 23 bits; got 24"),
            ((4, 0), "mantissa: expected an integer of at least 1; got 0"),
            ((8, 3, False), r"infinite: expected True with 8 exponent bits, .* exceed float32; got False"),
        ],
    )
    def test_bits_out_of_range(self, bits, message):
        with pytest.raises(ValueError, match=message):
            Format("odd", *bits)

    def test_of_another_type(self):
        with pytest.raises(TypeError, match="mantissa: expected an integer; got float"):
            Format("odd", 4, 3.0)
        with pytest.raises(TypeError, match="infinite: expected True or False; got int"):
            Format("odd", 4, 3, 1)
        with pytest.raises(TypeError, match="code: expected an integer; got float"):
            decoded(1.0, E4M3)
        with pytest.raises(TypeError, match="code: expected an integer; got bool"):
            decoded(True, E4M3)
        assert decoded(np.uint8(200), E4M3) == decoded(200, E4M3)
        for code in (-1, 256):
            with pytest.raises(ValueError, match=f"8 bits, an integer from 0 to 255; got {code}"):
                decoded(code, E4M3)


class TestRounded:
    @by_name(TORCH)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("form", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
    def test_the_casts_of_torch(self, format, dtype, form):
        x = drawn(format, dtype)
        # PyTorch casts float64 to most formats by way of float32, which rounds twice; here x is float32 already.
        x = x.astype(np.float32).astype(dtype)
        expected = torch.from_numpy(x).to(TORCH[format]).to(torch.float64).numpy()
        got = rounded(form(x), format)
        assert type(got) is type(form(x)) and str(got.dtype).endswith(x.dtype.name)
        np.testing.assert_array_equal(np.asarray(got), expected)
        np.testing.assert_array_equal(np.signbit(np.asarray(got)), np.signbit(expected))

    @by_name([E2M1, TF32, E4M3, E5M2])
    def test_the_nearest_by_exact_arithmetic(self, format):
        """The candidates are multiples of the gap; of two equally near ones the even multiple is right."""
        for x in drawn(format, seed=1)[::5]:
            gap = Fraction(format.gap(abs(x)))
            whole = math.floor(Fraction(x) / gap)
            off = Fraction(x) / gap - whole
            up = off > Fraction(1, 2) or (off == Fraction(1, 2) and whole % 2 == 1)
            assert rounded(np.asarray(x), format) == (whole + up) * gap

    @by_name(ALL)
    def test_numbers_of_the_format_stay(self, format):
        x = rounded(drawn(format), format)
        np.testing.assert_array_equal(rounded(x, format), x)

    @by_name([BF16, FP16, E5M2])
    def test_overflow_to_infinity(self, format):
        half = format.gap(format.largest) / 2
        x = np.array([format.largest + half * t for t in (0.99, 1.0, 1.5, 2.0, 3.0)] + [math.inf, math.nan])
        x = np.concatenate([x, -x])
        expected = torch.from_numpy(x).to(TORCH[format]).double().numpy()
        np.testing.assert_array_equal(rounded(x, format), expected)
        limit = format.largest
        saturated = [limit] * 6 + [math.nan] + [-limit] * 6 + [math.nan]
        np.testing.assert_array_equal(rounded(x, format, saturate=True), saturated)

    def test_without_infinity_overflow_is_nan(self):
        x = np.array([448.0, 464.0, 464.1, 480.0, 1e30, -500.0, math.inf])
        np.testing.assert_array_equal(rounded(x, E4M3), [448, 448, *[math.nan] * 5])
        np.testing.assert_array_equal(rounded(x, E4M3, saturate=True), [448] * 5 + [-448, 448])

    @by_name(ALL)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_stochastic_rounding_goes_to_a_neighbour(self, format, dtype):
        """Further from 0 exactly if the share of the gap that it has covered exceeds the noise, in exact arithmetic."""
        x, rng = drawn(format, dtype)[::7], np.random.default_rng(2)
        noise = rng.random(x.shape).astype(dtype)
        noise[:50] = 0.0
        for each, u, got in zip(x, noise, rounded(x, format, noise=noise), strict=True):
            gap = Fraction(format.gap(float(abs(each))))
            steps = abs(Fraction(float(each))) / gap
            whole = math.floor(steps)
            size = (whole + (steps - whole > Fraction(float(u)))) * gap
            assert abs(got) == size or size > format.largest
            assert np.signbit(got) == np.signbit(each)

    def test_stochastic_rounding_of_shares_that_1_minus_them_rounds(self):
        """The share of −0.25 − 3·2⁻⁵⁴ is counted from 0, not from −1, because 0.75 − 3·2⁻⁵⁴ is not a number of float64."""
        share = 0.25 + 3 * 2.0**-54
        noise = np.array([share, math.nextafter(share, 0), math.nextafter(share, 1), 0.0])
        x = E2M1.smallest * np.array([share, share, share, 0.0])
        for sign in (1, -1):
            got = rounded(sign * x, E2M1, noise=noise)
            np.testing.assert_array_equal(got, sign * E2M1.smallest * np.array([0, 1, 0, 0]))
            np.testing.assert_array_equal(np.signbit(got), np.full(4, sign < 0))

    def test_stochastic_rounding_is_unbiased(self):
        """The mean over noise that is spread evenly is the number, to the noise's spacing."""
        count = 4096
        noise = (np.arange(count) + 0.5) / count
        for x in (1.0003, -1.0003, 0.7, 3e-6, 200.3):
            mean = rounded(np.full(count, x), BF16, noise=noise).mean()
            assert abs(mean - x) <= BF16.gap(x) / count
            assert abs(rounded(np.asarray(x), BF16) - x) > 20 * abs(mean - x)

    def test_stochastic_rounding_of_what_is_not_finite(self):
        x = np.array([math.inf, -math.inf, math.nan])
        np.testing.assert_array_equal(rounded(x, FP16, noise=np.full(3, 0.5)), x)

    def test_arrays_are_not_modified(self):
        x, noise = drawn(E5M2), np.random.default_rng(0).random(drawn(E5M2).shape)
        before = x.copy(), noise.copy()
        rounded(x, E5M2, noise=noise)
        scaled(x, E5M2)
        assert (x == before[0]).all() and (noise == before[1]).all()

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
    def test_shapes(self, shape):
        x = np.full(shape, 1.3)
        assert rounded(x, E4M3).shape == scaled(x, E4M3).shape == shape
        assert (rounded(x, E4M3) == 1.25).all()

    def test_what_does_not_fit(self):
        with pytest.raises(TypeError, match="x: expected an array; got float"):
            rounded(1.0, E4M3)
        with pytest.raises(TypeError, match="x: expected float32 or float64; got float16"):
            rounded(np.ones(3, np.float16), E4M3)
        with pytest.raises(TypeError, match="noise: expected an array; got float"):
            rounded(np.ones(3), E4M3, noise=0.5)
        message = r"noise: expected shape \[3\] of numpy cpu float64, as x has; got shape \[2\] of numpy cpu float64"
        with pytest.raises(ValueError, match=message):
            rounded(np.ones(3), E4M3, noise=np.ones(2))
        with pytest.raises(ValueError, match="as x has; got shape"):
            rounded(np.ones(3), E4M3, noise=np.ones(3, np.float32))
        with pytest.raises(ValueError, match=r"of numpy cpu float64, as x has; got shape \[3\] of torch cpu"):
            rounded(np.ones(3), E4M3, noise=torch.ones(3, dtype=torch.float64) / 2)
        for value in (-0.1, 1.0, math.nan):
            with pytest.raises(ValueError, match="noise: expected numbers of at least 0 and below 1"):
                rounded(np.ones(3), E4M3, noise=np.array([0.0, 0.5, value]))
        for function in (rounded, scaled, lambda x, format: decoded(1, format)):
            with pytest.raises(TypeError, match=r"format: expected a Format such as formats\.E4M3; got str"):
                function(np.ones(3), "E4M3")
        with pytest.raises(TypeError, match="saturate: expected True or False; got int"):
            rounded(np.ones(3), E4M3, saturate=1)


def by_fractions(block, format, fits):
    """A block under its scale, as the specification says it, in exact arithmetic."""
    largest = max(abs(Fraction(x)) for x in block)
    if largest == 0:
        return [0.0] * len(block)
    exponent = math.frexp(float(largest))[1] - 1 - format.highest
    if fits and largest > Fraction(format.largest) * Fraction(2) ** exponent:
        exponent += 1
    scale = Fraction(2) ** max(exponent, -127)
    values = []
    for x in block:
        limit = Fraction(format.largest)
        within = float(max(-limit, min(limit, Fraction(x) / scale)))
        values.append(float(Fraction(float(rounded(np.asarray(within), format))) * scale))
    return values


class TestScaled:
    @by_name([E4M3, E5M2, E2M1])
    @pytest.mark.parametrize("fits", [False, True])
    @pytest.mark.parametrize("form", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
    def test_by_exact_arithmetic(self, format, fits, form):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((7, 96)) * 2.0 ** rng.integers(-30, 30, (7, 96))
        x[0] *= 1e-30
        x[1, :32] = 0.0
        x[2, 32:64] = 448.0 * 2.0 ** np.arange(32)  # the largest number itself, which fits
        x[3, 5] = 1.9 * 2.0**31
        for dtype in (np.float64, np.float32):
            values = x.astype(dtype)
            got = np.asarray(scaled(form(values), format, block=32, fits=fits))
            assert got.dtype == dtype
            for row, of_row in zip(values, got, strict=True):
                for at in range(0, 96, 32):
                    expected = by_fractions([float(v) for v in row[at : at + 32]], format, fits)
                    np.testing.assert_array_equal(of_row[at : at + 32], expected)

    @pytest.mark.parametrize("fits", [False, True])
    def test_one_scale_for_all(self, fits):
        x = np.random.default_rng(1).standard_normal((5, 9)) * 1e-4
        expected = by_fractions([float(v) for v in x.ravel()], E4M3, fits)
        np.testing.assert_array_equal(scaled(x, E4M3, fits=fits).ravel(), expected)

    def test_only_fits_keeps_the_largest(self):
        x = np.array([1.9, 1.0, 0.25, 0.0])
        np.testing.assert_array_equal(scaled(x, E4M3), [1.75, 1.0, 0.25, 0.0])
        np.testing.assert_array_equal(scaled(x, E4M3, fits=True), [1.875, 1.0, 0.25, 0.0])

    def test_along_an_axis(self):
        x = np.random.default_rng(2).standard_normal((64, 3, 5)) * np.logspace(-6, 6, 64)[:, None, None]
        expected = np.moveaxis(scaled(np.moveaxis(x, 0, -1).copy(), E4M3, block=32), -1, 0)
        for axis in (0, -3):
            np.testing.assert_array_equal(scaled(x, E4M3, block=32, axis=axis), expected)
        assert (scaled(x, E4M3, block=5, axis=2) == scaled(x, E4M3, block=5)).all()
        assert (scaled(x, E4M3, block=32, axis=0) != scaled(x, E4M3, block=5)).any()

    def test_what_is_not_finite_spoils_its_block_only(self):
        for value in (math.inf, -math.inf, math.nan):
            x = np.ones(8)
            x[5] = value
            np.testing.assert_array_equal(scaled(x, E4M3, block=4), [1, 1, 1, 1, *[math.nan] * 4])

    def test_what_does_not_fit(self):
        with pytest.raises(ValueError, match="block: expected a divisor of 9, the length of axis -1; got 4"):
            scaled(np.ones((4, 9)), E4M3, block=4)
        with pytest.raises(ValueError, match="axis: expected one of 2 axes; got 2"):
            scaled(np.ones((4, 9)), E4M3, block=3, axis=2)
        with pytest.raises(ValueError, match="axis: expected one of 2 axes; got 2"):
            scaled(np.ones((4, 9)), E4M3, axis=2)
        with pytest.raises(TypeError, match="axis: expected an integer; got float"):
            scaled(np.ones((4, 9)), E4M3, block=3, axis=1.0)
        with pytest.raises(ValueError, match="axis: expected an axis of x to divide; x has none"):
            scaled(np.ones(()), E4M3, block=1)
        with pytest.raises(ValueError, match="block: expected an integer of at least 1; got 0"):
            scaled(np.ones(4), E4M3, block=0)
        with pytest.raises(TypeError, match="fits: expected True or False"):
            scaled(np.ones(4), E4M3, fits=None)
        with pytest.raises(TypeError, match="x: expected float32 or float64; got int64"):
            scaled(np.ones(4, int), E4M3)


def test_is_plain_array_code():
    x, noise = drawn(E4M3), np.random.default_rng(0).random(drawn(E4M3).shape)
    strict, strict_noise = (array_api_strict.asarray(values) for values in (x, noise))
    for format in (E4M3, BF16):
        got = rounded(strict, format), rounded(strict, format, noise=strict_noise)
        expected = rounded(x, format), rounded(x, format, noise=noise)
        np.testing.assert_array_equal(np.asarray(got), expected)
    blocks, strict = x[:64].reshape(32, 2), array_api_strict.asarray(x[:64].reshape(32, 2))
    for options in ({}, {"block": 2}, {"block": 16, "axis": 0, "fits": True}):
        np.testing.assert_array_equal(
            np.asarray(scaled(strict, E4M3, **options)), scaled(blocks, E4M3, **options)
        )


# Changes that compute the same, by the reason.
EQUIVALENT = {
    "the truth of a condition stays": [
        "top = -(field == 2 ** format.exponent - 1)",
        "top = 2 * (field == 2 ** format.exponent - 1)",
        "xp.where(xp.isfinite(sizes), sizes, 0.0) → xp.where(xp.isfinite(sizes), sizes, -0.0)",
    ],
    "NaN and ∞ stay what they are": [
        "→ return 2 * (math.nan if fraction else sign * math.inf)",
        "→ return -math.nan",
        "→ return 2 * math.nan",
        "→ limit = 2 * (math.inf if format.infinite else math.nan)",
    ],
    "the order of operands does not matter": [
        "→ 2 ** format.exponent - 1 & code >> format.mantissa",
        "max(field, 1) → max(1, field)",
    ],
    "one more entry, which is not reached or means the same": [
        "= 2 * [2.0 ** (e - format.mantissa) for e in (format.lowest, *exponents)]",
        "format.lowest + 1 → format.lowest",
        "format.lowest + 1 → format.lowest + 0",
        "format.highest + 1 → format.highest + 2",
        "128 - format.highest → 128",
        "128 - format.highest → 128 + format.highest",
        "128 - format.highest → 129 - format.highest",
    ],
    "noise equals the covered share with probability 0": [
        "finite - xp.floor(finite) > noise → finite - xp.floor(finite) >= noise"
    ],
    "finite together with the sizes; and NaN, which ∞ − ∞ is, exceeds no noise": [
        "xp.isfinite(sizes) → sizes",
        *(f"xp.isfinite(sizes) → xp.isfinite({name})" for name in ("x", "at", "gap", "steps")),
        "finite - xp.floor(finite) → sizes - xp.floor(finite)",
        "xp.floor(finite) → xp.floor(sizes)",
    ],
    "x and its steps have one sign": [
        "x.dtype), x) → xp.copysign(xp.floor(sizes) + xp.astype(further, x.dtype), steps)"
    ],
    "the sign of a scale cancels, because rounding is symmetric": [
        "→ scale = -_entries(_table([2.0 ** exponent for exponent in exponents], x), at)",
        "→ scale = -xp.where(xp.isfinite(largest), scale, math.nan)",
        "2.0 ** exponent → -2.0 ** exponent",
    ],
    "only the dtype, or the shape that reshape infers": [
        "xp.astype(further, x.dtype) → further",
        *(f"x.dtype → {name}.dtype" for name in ("at", "gap", "steps", "sizes", "finite", "further")),
        "_table(limits, x) → limits",
        "xp.reshape(x, (-1,)) → x",
        "xp.reshape(at, (-1,)) → at",
        "xp.take(table, xp.reshape(at, (-1,)), axis=0) → xp.take(table, xp.reshape(at, (-1,)))",
        "axis=0 → axis=-1",
        "xp.reshape(x, (-1,)), side=side) | -1 → -2",
        "axis=0), at.shape) | -1 → -2",
        "exponents], x) → _table([2.0 ** exponent for exponent in exponents], largest)",
    ],
}
VALIDATION = ("raise", "check_", "_check_", "if noise.", "if not")


def results(module):
    """What the functions of a module return, on arrays that show each part of them."""
    found = []
    for format in (E2M1, E4M3, E5M2, BF16):
        x = drawn(format)[::2]
        x = np.concatenate([x, [1.06 * format.largest, -2 * format.largest, math.inf, -math.inf, math.nan]])
        noise = np.random.default_rng(0).random(x.shape)
        found += [module["rounded"](x, format), module["rounded"](x, format, saturate=True)]
        found += [module["rounded"](x, format, noise=noise)]
        pairs = [
            (format.largest / 8, format.smallest / 8),  # only with the smaller scale neither changes
            (2.0**-5, 1.9 * 2.0**-5),
            (2.0**-5, 2.0**-5 * 0.7),
            (1.0, math.inf),
            (math.nan, 1.0),
            (0.0, 0.0),
            (1.5 * 2.0**127, 2.0**120),
            (1.5 * 2.0**126, 2.0**120),
            (1.3e-39, 1.7e-40),
            (-3.1, 0.3),
        ]
        blocks = np.concatenate([x[:60], x[:40] * 1e-30, np.ravel(pairs)])
        for fits in (False, True):
            found += [module["scaled"](blocks, format, block=2, fits=fits)]
            found += [module["scaled"](blocks.reshape(-1, 2).T, format, block=2, axis=0, fits=fits)]
            found += [module["scaled"](np.array([-7.3, 1.1, 0.013]), format, fits=fits)]
        found += [module["scaled"](np.zeros((0, 4)), format)]
    codes = [
        module["decoded"](code, format) for format in (E4M3, E5M2) for code in (*range(256), np.uint8(200))
    ]
    return [*found, np.array(codes)]


@pytest.mark.parametrize(
    "name", ["decoded", "rounded", "scaled", "_under_scale", "_bounded", "_count_reached", "_entries"]
)
def test_every_change_is_noticed(name, proof):
    """Apart from validation, which the tests above look at."""
    proved = tuple(change for changes in EQUIVALENT.values() for change in changes)
    with np.errstate(all="ignore"):
        right, survivors = results(vars(formats)), []
        function = vars(formats)[name]
        for mutant in proof.part(f"training.formats.{name}", mutants(function), of=[function], share=0.1):
            text = f"{mutant.line} | {mutant.change}"
            if text.startswith(VALIDATION) or text.endswith(proved):
                continue
            try:
                got = results(compiled(mutant, formats))
                same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, right, strict=True))
            except Exception:
                same = False
            if same:
                survivors.append(text)
    assert survivors == [], "\n".join(survivors)
