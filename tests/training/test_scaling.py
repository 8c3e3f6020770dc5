"""The scale and the gradients are those of torch.amp.GradScaler, and overflow skips the step."""

import math

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.models import gpt2
from backpass.training import adamw, initial, scaling
from backpass.verify.mutation import compiled, mutants

OPTIONS = [
    {},
    {"growth": 2.0, "backoff": 0.5, "interval": 1},
    {"growth": 4.0, "backoff": 0.25, "interval": 3},
    {"growth": 1.5, "backoff": 0.7, "interval": 4},
    {"growth": 1, "backoff": 1, "interval": 2},  # a static scale
]


def drawn(steps, seed=0, overflows=0.25):
    """Gradients of each step in float32, some of them with an element that is not finite."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        gradients = {name: rng.standard_normal(shape) for name, shape in (("w", (3, 5)), ("b", (4,)))}
        if rng.random() < overflows:
            gradients[rng.choice(["w", "b"])][-1] = rng.choice([math.inf, -math.inf, math.nan])
        yield {name: d.astype(np.float32) for name, d in gradients.items()}


def by_torch(steps, scale, growth=2.0, backoff=0.5, interval=2000):
    """The scale before each step, and the gradients that GradScaler hands to the optimiser; None if it skips."""
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    weights = {"w": torch.zeros((3, 5), requires_grad=True), "b": torch.zeros(4, requires_grad=True)}
    handed = []

    class Optimiser(torch.optim.Optimizer):
        def step(self):
            handed[-1] = {name: w.grad.numpy().copy() for name, w in weights.items()}

    optimiser = Optimiser(weights.values(), {})
    scaler.scale(torch.zeros(()))  # which creates the scale
    for gradients in steps:
        handed.append(None)
        before = scaler.get_scale()
        for name, w in weights.items():
            w.grad = torch.from_numpy(gradients[name].copy())
        scaler.step(optimiser)
        scaler.update()
        yield before, handed[-1]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_the_rule_of_grad_scaler(options, form):
    """The factors that GradScaler forbids, those of a static scale, are compared with a scaler that never changes it."""
    scale = 2.0**10
    fixed = {"growth": 1.5, "backoff": 0.5, "interval": 10**6} if options.get("growth") == 1 else options
    state, skipped, scales = scaling.start(scale), 0, set()
    steps = list(drawn(60, overflows=0.0 if fixed is not options else 0.25))
    for gradients, (expected, handed) in zip(steps, by_torch(steps, scale, **fixed), strict=True):
        assert state["scale"] == pytest.approx(expected, rel=1e-5, abs=0)  # torch's scale is float32
        scales.add(state["scale"])
        got = scaling.unscaled({name: form(d) for name, d in gradients.items()}, state, **options)
        assert (got is None) == (handed is None)
        skipped += got is None
        for name, d in (got or {}).items():
            np.testing.assert_allclose(np.asarray(d), handed[name], rtol=1e-5)
    assert (skipped > 5 and len(scales) > 2) or fixed is not options


def test_a_static_scale_skips_too():
    state = scaling.start(8.0)
    assert scaling.unscaled({"w": np.array([math.inf])}, state, growth=1, backoff=1) is None
    assert state == {"scale": 8.0, "finite": 0}


def test_the_scale_stays_below_the_largest_float32():
    """A loss of float32 times the scale could not be finite otherwise; GradScaler has the same limit."""
    steps = [{"w": np.ones((3, 5), np.float32), "b": np.ones(4, np.float32)}] * 6
    state, scales = scaling.start(2.0**125), []
    for gradients in steps:
        scales.append(state["scale"])
        scaling.unscaled(gradients, state, interval=1)
    assert scales == [2.0**e for e in (125, 126, 127, 127, 127, 127)]
    assert scales == [scale for scale, _ in by_torch(steps, 2.0**125, interval=1)]


def test_the_scale_stays_among_the_normal_numbers_of_float32():
    """GradScaler's becomes 0, with which the next finite gradient would be divided by 0."""
    steps = [{"w": np.full((3, 5), np.nan, np.float32), "b": np.ones(4, np.float32)}] * 150
    state = scaling.start(1.0)
    for gradients in steps:
        assert scaling.unscaled(gradients, state) is None
    assert state == {"scale": 2.0**-126, "finite": 0}
    assert list(by_torch(steps, 1.0))[-1][0] < 2.0**-140


@pytest.mark.parametrize("form", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.filterwarnings("error")
def test_a_quotient_that_is_not_finite_skips_the_step(form):
    """Divided by a scale below 1, a finite gradient overflows."""
    state = scaling.start(2.0**-3)
    gradients = {"v": form(np.ones(2, np.float32)), "w": form(np.full(3, 3e38, np.float32))}
    assert scaling.unscaled(gradients, state) is None
    assert state == {"scale": 2.0**-4, "finite": 0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_widened_before_the_division(dtype):
    """Divided in float16, 2⁻²⁴ would become 0."""
    gradients = {"w": torch.tensor([2.0**-24, 1.0], dtype=dtype)}
    got = scaling.unscaled(gradients, scaling.start(1024.0))
    assert got["w"].dtype == torch.float32
    assert got["w"].tolist() == [2.0**-34, 2.0**-10]
    assert (gradients["w"] / 1024)[0] == 0 or dtype == torch.bfloat16
    assert gradients["w"].tolist() == [2.0**-24, 1.0]  # not modified


def test_wide_gradients_keep_their_dtype():
    for dtype in (np.float32, np.float64):
        (got,) = scaling.unscaled({"w": np.ones(2, dtype)}, scaling.start(4.0)).values()
        assert got.dtype == dtype and (got == 0.25).all()


def test_is_plain_array_code():
    for gradients in drawn(8, overflows=0.5):
        strict = {name: array_api_strict.asarray(d) for name, d in gradients.items()}
        state, strict_state = scaling.start(4.0), scaling.start(4.0)
        expected, got = scaling.unscaled(gradients, state), scaling.unscaled(strict, strict_state)
        assert state == strict_state and (got is None) == (expected is None)
        for name, d in (got or {}).items():
            np.testing.assert_array_equal(np.asarray(d), expected[name])


class TestWithAModel:
    CONFIG = gpt2.Config(256, 16, 16, 2, 2, 64)

    def gradients(self, dtype, scale):
        shapes = gpt2.parameter_shapes(self.CONFIG)
        parameters = initial.parameters(shapes, layers=2, seed=0, like=torch.zeros(1))
        rng = np.random.default_rng(0)
        tokens, targets = (torch.from_numpy(rng.integers(0, 256, (2, 16))) for _ in "tt")
        _, saved = gpt2.forward(adamw.rounded(parameters, dtype), tokens, targets, config=self.CONFIG)
        return gpt2.backward(saved, scale=scale)

    def test_underflow_is_mended(self):
        """A loss divided by 2¹⁴ stands for one of 2¹⁴ micro-batches. Scaled back before the backward, fewer elements
        are lost, and the others are closer."""
        exact = self.gradients(torch.float32, 1.0)
        errors, zeros = [], []
        for scale in (2.0**-14, 1.0, 2.0**10):
            state = scaling.start(scale)
            got = scaling.unscaled(self.gradients(torch.float16, scale), state)
            errors.append(math.hypot(*(float((got[n] - exact[n]).norm()) for n in exact)))
            zeros.append(sum(int((d == 0).sum()) for d in got.values()))
        assert errors[0] > 100 * errors[1] > 0 and errors[2] <= 1.1 * errors[1]
        assert zeros[0] > 20 * zeros[1] and zeros[2] <= zeros[1]

    def test_overflow_is_found(self):
        state = scaling.start(2.0**40)
        assert scaling.unscaled(self.gradients(torch.float16, state["scale"]), state) is None
        assert state["scale"] == 2.0**39
        assert scaling.unscaled(self.gradients(torch.bfloat16, state["scale"]), state) is not None


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((), {"growth": 0.5}, ValueError, "growth: expected a finite number ≥ 1; got 0.5"),
        ((), {"growth": math.inf}, ValueError, "growth: expected a finite number ≥ 1; got inf"),
        ((), {"growth": "2"}, TypeError, "growth: expected a real number; got str"),
        ((), {"backoff": 0.0}, ValueError, "backoff: expected a number above 0, at most 1; got 0.0"),
        ((), {"backoff": 1.5}, ValueError, "backoff: expected a number above 0, at most 1; got 1.5"),
        ((), {"interval": 0}, ValueError, "interval: expected an integer of at least 1; got 0"),
        (([1.0],), {}, TypeError, "gradients: expected a mapping from names to arrays; got list"),
    ],
)
def test_what_is_rejected(arguments, options, error, message):
    state = scaling.start(4.0)
    with pytest.raises(error, match=message):
        scaling.unscaled(*(arguments or ({"w": np.ones(1)},)), state, **options)
    assert state == {"scale": 4.0, "finite": 0}


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_out_of_range(scale):
    with pytest.raises(ValueError, match="scale: expected a finite number above 0"):
        scaling.start(scale)
    with pytest.raises(TypeError, match="scale: expected a real number; got str"):
        scaling.start("8")


def test_a_scale_that_float32_cannot_hold():
    for scale in (2.0**-127, 2.0**128):
        with pytest.raises(ValueError, match=r"scale: expected at least 2\*\*-126 and less than 2\*\*128"):
            scaling.start(scale)
    assert scaling.start(2.0**-126)["scale"] == 2.0**-126


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (4.0, TypeError, "state: expected what start returned; got float"),
        ({}, ValueError, "state: expected what start returned, scale and finite; got nothing"),
        ({"step": 0, "mean": {}}, ValueError, "got step, mean"),
        ({"scale": 0.0, "finite": 0}, ValueError, "scale: expected a finite number above 0"),
        ({"scale": 2.0**128, "finite": 0}, ValueError, "scale: expected at least"),
        ({"scale": 1.0, "finite": -1}, ValueError, "finite: expected an integer of at least 0; got -1"),
    ],
)
def test_another_state_is_rejected(state, error, message):
    with pytest.raises(error, match=message):
        scaling.unscaled({"w": np.ones(1)}, state)


def runs(function):
    """The states and gradients of some steps by a version of ``unscaled``."""
    found = []
    scalars = {"growth": np.float32(1.5), "backoff": np.float32(0.5), "interval": 2}
    for options in (*OPTIONS[1:], scalars, {"growth": 2.0, "interval": 1}):
        state = scaling.start(2.0**126 if "backoff" not in options else 16.0)
        for gradients in drawn(25):
            got = function(gradients, state, **options)
            found.append(
                (dict(state), type(state["scale"]), got and {name: d.tolist() for name, d in got.items()})
            )
    state = scaling.start(2.0**-124)
    for value in (1e38, 1e37, math.nan, math.inf, math.nan, 1e-38):
        got = function({"w": np.full(3, value, np.float32)}, state)
        found.append((dict(state), got and got["w"].tolist()))
    return found


def test_every_change_is_noticed():
    right, survivors = runs(scaling.unscaled), []
    validation = ("check_", "raise", "if not 1", "if not 0")
    for mutant in mutants(scaling.unscaled):
        if mutant.line.startswith(validation):
            continue
        try:
            with np.errstate(all="raise"):
                same = runs(compiled(mutant, scaling)["unscaled"]) == right
        except Exception:
            same = False
        if same:
            survivors.append(f"{mutant.line} | {mutant.change}")
    assert survivors == [], "\n".join(survivors)
