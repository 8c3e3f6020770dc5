"""Bounds of rounding errors hold for every run, and are no looser than they have to be.

``ROUNDING_DRAWS=10000 pytest -s tests/interpreters/test_rounding.py -k draws`` takes that many draws in all, and
prints by dtype the largest share of a bound that an error reached, and the median of bound over error.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from backpass import ops  # noqa: E402
from backpass.contract.shapes import parse  # noqa: E402
from backpass.interpreters import rounding  # noqa: E402
from backpass.interpreters.closed_world import NotOffered  # noqa: E402
from backpass.ops import gelu, rms_norm, softmax  # noqa: E402
from backpass.verify.convert import to_numpy, to_torch  # noqa: E402
from backpass.verify.drawing import cases, draw, options_for  # noqa: E402

DTYPES = ["float32", "float16", "bfloat16"]
RNG = np.random.default_rng(0)


def _one_large(a):
    a.reshape(-1)[: a.size > 0] *= 300
    return a


# What random numbers of one size would not show: errors that all have one sign, terms that cancel, numbers that nearly
# overflow and that are nearly 0, rows that one element rules.
STRESS = {
    "as drawn": lambda a: a,
    "small": lambda a: 1e-3 * a,
    "nearly nothing": lambda a: 1e-7 * a,
    "large": lambda a: 30 * a,
    "far from 0": lambda a: 100 + a,
    "constant": lambda a: np.full_like(a, a.reshape(-1)[0] if a.size else 0.0),
    "signs": np.sign,
    "one large": _one_large,
    "zeros": lambda a: a * (np.abs(a) > 0.7),
}
COTANGENTS = {
    "as drawn": lambda dy: dy,
    "ones": np.ones_like,
    "one": lambda dy: dy * (np.arange(dy.size).reshape(dy.shape) == 0),
    "small": lambda dy: 1e-4 * dy,
}


def errors_and_bounds(op, inputs, options, dtype, of_dy=lambda dy: dy, rng=RNG):
    """For y and each gradient, how far PyTorch's run of the lines is from float64, and the bound."""
    tensors = [to_torch(value, dtype=getattr(torch, dtype)) for value in inputs]
    y, saved = op.forward(*tensors, **options)
    dy = torch.from_numpy(np.asarray(of_dy(rng.standard_normal(tuple(y.shape))))).to(y.dtype)
    returned = op.backward(dy, saved)
    got = (y, *(returned if isinstance(returned, tuple) else (returned,)))
    exact = [v if v is None else to_numpy(v) for v in tensors]
    y, gradients = rounding.run(op, exact, to_numpy(dy), dtype, options)
    for found, bounded in zip(got, (y, *gradients), strict=True):
        if found is not None:
            exact = bounded.to_numpy()
            known = np.isfinite(exact) & np.isfinite(bounded.d)
            yield np.abs(to_numpy(found) - exact)[known], bounded.d[known]


@pytest.fixture(scope="module")
def tally():
    """Of the draws of every operation, by dtype: the largest share of a bound in each, and the median of bound over error."""
    shares, ratios = {dtype: [] for dtype in DTYPES}, {dtype: [] for dtype in DTYPES}
    yield shares, ratios
    for dtype in DTYPES:
        if ratios[dtype]:
            most, median = max(shares[dtype]), np.median(ratios[dtype])
            print(f"\n{dtype}: at most {most:.3f} of the bound; median of bound over error {median:.1f}")


@pytest.mark.parametrize("stem", ops.STEMS)
def test_no_right_run_exceeds_the_bound_in_many_draws(stem, tally):
    draws = int(os.environ.get("ROUNDING_DRAWS", 0)) // len(ops.STEMS) or 9
    rng, op, ran = np.random.default_rng(draws), ops.load(stem), 0
    shares, ratios = tally
    while ran < draws:
        for inputs, options in cases(op, rng):
            how = rng.choice(list(STRESS)) if ran % 2 else "as drawn"
            positive = [spec.name in getattr(op, "POSITIVE", ()) for spec in parse(op.SHAPES).inputs]
            given = [
                value if value is None or value.dtype.kind != "f" else STRESS[how](value.copy())
                for value in inputs
            ]
            given = [
                np.abs(value) if plus and value is not None else value
                for value, plus in zip(given, positive, strict=True)
            ]
            of_dy = COTANGENTS[rng.choice(list(COTANGENTS))]
            dtype = DTYPES[ran % 3]
            ran += 1
            try:
                with np.errstate(all="ignore"):
                    found = list(errors_and_bounds(op, given, options, dtype, of_dy, rng))
            except ValueError as error:  # sums that have to be positive
                assert "sum" in str(error)
                continue
            for error, bound in found:
                assert (error <= bound).all(), (
                    f"{stem}, {dtype}, {how}: {(error / bound).max():.3f} of the bound"
                )
                if error.any():
                    with np.errstate(over="ignore"):  # an error may be denormal
                        ratio = bound[error > 0] / error[error > 0]
                    shares[dtype].append(1 / ratio.min())
                    ratios[dtype].append(np.median(ratio))
            if ran >= draws:
                break


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stem", ["softmax", "log_softmax", "rms_norm", "layer_norm", "cross_entropy"])
@pytest.mark.parametrize("how", ["as drawn", "constant"])
def test_long_rows(stem, dtype, how):
    op = ops.load(stem)
    lengths = {"V" if "cross" in stem else "n": 4096}
    drawn = draw(op, np.random.default_rng(1), lengths=lengths)
    given = [STRESS[how](value) if value.dtype.kind == "f" else value for value in drawn]
    for of_dy in (COTANGENTS["as drawn"], COTANGENTS["ones"]):
        for error, bound in errors_and_bounds(op, given, options_for(op), dtype, of_dy):
            assert (error <= bound).all()


class TestValues:
    @pytest.mark.parametrize("stem", ops.STEMS)
    def test_are_those_of_float64(self, stem):
        op, rng = ops.load(stem), np.random.default_rng(3)
        inputs = [a if a.dtype.kind in "iub" else a.astype(np.float32).astype(float) for a in draw(op, rng)]
        y, saved = op.forward(*inputs, **options_for(op))
        dy = rng.standard_normal(y.shape).astype(np.float32).astype(float)
        expected = op.backward(dy, saved)
        got_y, got = rounding.run(op, inputs, dy, "float32", options_for(op))
        np.testing.assert_allclose(got_y.to_numpy(), y, rtol=1e-5)  # ε of float32 and of float64 differ
        for e, g in zip(expected if isinstance(expected, tuple) else (expected,), got, strict=True):
            np.testing.assert_allclose(g.to_numpy(), e, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rounded_is_pytorchs(self, dtype):
        numbers = np.concatenate(
            [RNG.standard_normal(500) * 10.0 ** RNG.integers(-45, 45, 500), [0.0, -np.inf]]
        )
        expected = torch.from_numpy(numbers).to(getattr(torch, dtype)).double().numpy()
        np.testing.assert_array_equal(rounding.rounded(numbers, dtype), expected)

    def test_what_is_not_listed_raises(self):
        x = rounding.array([1.0, 2.0], "bfloat16")
        with pytest.raises(NotOffered, match="does not offer 'mean'"):
            x.__array_namespace__().mean(x)
        with pytest.raises(TypeError, match=r"x \* x rather than x \*\* 2"):
            x**2
        with pytest.raises(TypeError, match="NumPy array"):
            np.asarray(x)

    def test_a_dtype_that_it_does_not_know_is_rejected(self):
        with pytest.raises(ValueError, match="dtype: expected float32, float16, bfloat16; got 'float64'"):
            rounding.array([1.0], "float64")

    def test_arrays_of_two_worlds_do_not_meet(self):
        with pytest.raises(TypeError, match="expected an array of"):
            rounding.array([1.0], "float32") + rounding.Namespace().array([1.0], "float32")


class TestBounds:
    def test_one_product_is_rounded_once(self):
        x = rounding.array([3.0], "bfloat16")
        assert (x * x).d == pytest.approx(9 * 2.0**-8)
        assert (x + 0.0).d == 0
        assert x.d == 0

    def test_a_sum_of_16_bits_is_rounded_once(self):
        x = rounding.array(np.ones(4096), "bfloat16")
        total = x.__array_namespace__().sum(x)
        assert total.d == pytest.approx(4096 * (2.0**-8 + 4095 * 2.0**-24), rel=1e-2)

    def test_numpy_rounds_every_sum_of_rows(self):
        rows = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float16)
        error = np.abs(np.sum(rows, axis=0).astype(float) - rows.astype(float).sum(axis=0))
        once, each = (rounding.Namespace(short_sums=short).array(rows, "float16") for short in (False, True))
        once, each = (x.__array_namespace__().sum(x, axis=0).d for x in (once, each))
        assert (error > 2 * once).any()
        assert (error <= each).all()

    def test_overflow_has_no_bound(self):
        x = rounding.array([300.0, 2.0], "float16")
        assert np.isinf((x * x).d).tolist() == [True, False]

    def test_a_divisor_that_may_be_0_has_no_bound(self):
        x = rounding.array([1.0], "bfloat16")
        assert np.isinf((x / (x * 1.001 - x)).d).all()

    def test_operands_of_tensor_cores(self):
        """Weights are rounded to 16 bits before they are multiplied; 16-bit inputs, scaled or not, are not rounded again."""
        kernel = rounding.Namespace(operands="bfloat16")
        for xp, times in ((rounding.xp, 0), (kernel, 1)):
            x = xp.astype(xp.array(np.ones((1, 4)), "bfloat16"), xp.float32)
            assert ((0.3 * x) @ xp.matrix_transpose(x)).d < 1e-5
            weights = xp.exp(x)
            assert (weights @ xp.matrix_transpose(x)).d > 4 * 2.0**-8 * times

    def test_a_machine_that_truncates_has_twice_the_unit(self):
        world = rounding.Namespace(units={"bfloat16": 2.0**-7})
        x, y = rounding.array([3.0], "bfloat16"), world.array([3.0], "bfloat16")
        assert (y * y).d == pytest.approx(2 * (x * x).d)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("dtype, times", [("bfloat16", 3), ("float16", 3), ("float32", 15)])
    def test_p_is_of_the_size_of_the_errors(self, dtype, times, seed):
        """Of random numbers: p is at least their root mean square and at most three times that. In float32, where sums make
        most of the error, it is 8 to 12 times: PyTorch adds pairs, and p allows for one term after the other."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((16, 512))
        tensor = torch.from_numpy(x).to(getattr(torch, dtype))
        _, saved = softmax.forward(tensor)
        dy = torch.from_numpy(rng.standard_normal(x.shape)).to(tensor.dtype)
        dx = to_numpy(softmax.backward(dy, saved))
        _, (bounded,) = rounding.run(softmax, [to_numpy(tensor)], to_numpy(dy), dtype)
        rms = np.sqrt(np.mean((dx - bounded.to_numpy()) ** 2) / np.mean(bounded.squares))
        assert 1 / times < rms < 1

    def test_dropped_terms_exceed_it(self):
        """At n = 4096 in bfloat16, where a fixed tolerance of 4 units sees neither."""
        x = to_numpy(torch.from_numpy(RNG.standard_normal((4, 4096))).bfloat16())
        dy = to_numpy(torch.from_numpy(RNG.standard_normal((4, 4096))).bfloat16())
        for op, dropped in ((softmax, lambda y: y * dy), (rms_norm, lambda y: dy * y / x)):
            y, (dx,) = rounding.run(op, [x], dy, "bfloat16")[0], rounding.run(op, [x], dy, "bfloat16")[1][:1]
            assert (np.abs(dropped(y.to_numpy()) - dx.to_numpy()) > 3 * dx.d).any()


class TestByLine:
    def test_shares_add_to_1(self):
        x, dy = RNG.standard_normal((2, 3, 50))
        lines = rounding.by_line(softmax, [x], dy, "bfloat16")
        assert np.sum([line.shares for line in lines], axis=0) == pytest.approx([1, 1], abs=0.02)

    def test_the_line_that_loses_the_digits(self):
        """The mean of squares less the square of the mean, far from 0."""

        def forward(x):
            xp = x.__array_namespace__()
            mean = xp.sum(x, axis=-1, keepdims=True) / x.shape[-1]
            squares = xp.sum(x * x, axis=-1, keepdims=True) / x.shape[-1]
            variance = squares - mean * mean
            return x / xp.sqrt(variance), (x, variance)

        op = SimpleNamespace(forward=forward, backward=lambda dy, saved: dy)
        x = 10 + RNG.standard_normal((4, 64))
        first, second, *_ = rounding.by_line(op, [x], np.ones_like(x), "float32")
        assert {first.source.split()[0], second.source.split()[0]} == {"mean", "squares"}
        assert first.place.startswith("test_rounding.py:")
        assert first.shares[0] + second.shares[0] > 0.9

    def test_gelu_loses_them_in_its_sum_where_x_is_negative(self):
        x = -3 - np.abs(RNG.standard_normal(64))
        worst = rounding.by_line(gelu, [x], np.ones_like(x), "float32")[0]
        assert "erf(" in worst.source


def test_on_a_gpu_dividing_by_a_number_is_multiplying_by_its_inverse():
    """Which is rounded itself: a right result is farther off than one rounding explains, and within two."""
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    for number in (0.75, 3, 49.0, 0.5):
        inverse = np.float32(1 / number)
        error = np.abs((x * inverse).astype(np.float64) - x.astype(np.float64) / number)
        on_cpu, on_gpu = (
            rounding.Namespace(inverses=inverses).array(x, "float32") / number for inverses in (False, True)
        )
        assert np.all(error <= on_gpu.d)
        assert np.all(error <= 6 * on_gpu.p)
        exact = inverse.astype(np.float64) == 1 / number
        assert np.all(error <= on_cpu.d) == exact
        assert np.array_equal(on_cpu.d, on_gpu.d) == exact
        assert np.allclose(on_gpu.to_numpy(), on_cpu.to_numpy(), rtol=1e-15)
