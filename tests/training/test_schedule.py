"""The warm-up and the cosine are those of PyTorch's and Hugging Face's schedulers."""

import math

import pytest
import torch
import transformers
from torch.optim import lr_scheduler

from backpass.training import schedule

SIZES = [(1, 0), (2, 1), (10, 0), (10, 3), (10, 9), (137, 20)]


def rates_of(scheduler, steps):
    """The learning rates that a scheduler of PyTorch gives one after another."""
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def optimiser(lr):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


@pytest.mark.parametrize(("steps", "warmup"), SIZES)
@pytest.mark.parametrize("final", [0.0, 3e-5])
def test_the_rates_of_torchs_schedulers(steps, warmup, final):
    peak, sgd = 3e-3, optimiser(3e-3)
    cosine = lr_scheduler.CosineAnnealingLR(sgd, steps - warmup, eta_min=final)
    if warmup:
        linear = lr_scheduler.LinearLR(sgd, 1 / (warmup + 1), 1.0, total_iters=warmup)
        cosine = lr_scheduler.SequentialLR(sgd, [linear, cosine], [warmup])
    expected = rates_of(cosine, steps)
    got = [schedule.rate(step, peak=peak, warmup=warmup, steps=steps, final=final) for step in range(steps)]
    assert got == pytest.approx(expected, rel=1e-12, abs=1e-14 * peak)


def test_the_cosine_of_transformers():
    """Its LambdaLR begins its warm-up with a step of rate 0, so only the rest is equal. After the last step it would rise again."""
    scheduler = transformers.get_cosine_schedule_with_warmup(optimiser(0.5), 7, 50)
    expected = rates_of(scheduler, 50)
    got = [schedule.rate(step, peak=0.5, warmup=7, steps=50) for step in range(50)]
    assert got[7:] == pytest.approx(expected[7:], rel=1e-13, abs=1e-16)
    assert expected[0] == 0 < got[0]


@pytest.mark.parametrize(("steps", "warmup"), SIZES)
def test_as_a_lambda_of_lambda_lr(steps, warmup):
    def factor(step):
        return schedule.rate(step, peak=1.0, warmup=warmup, steps=steps, final=0.1)

    got = rates_of(lr_scheduler.LambdaLR(optimiser(0.25), factor), steps)
    assert got == [0.25 * factor(step) for step in range(steps)]


@pytest.mark.parametrize(("steps", "warmup"), SIZES)
def test_shape(steps, warmup):
    rates = [schedule.rate(step, peak=2.0, warmup=warmup, steps=steps, final=0.5) for step in range(steps)]
    up, down = rates[: warmup + 1], rates[warmup:]
    assert up == pytest.approx([2.0 * (i + 1) / (warmup + 1) for i in range(warmup + 1)])
    assert rates[warmup] == 2.0 and sorted(down, reverse=True) == down
    assert min(rates) > 0 and down[-1] > 0.5
    for step in (steps, steps + 1, 10**9):
        assert schedule.rate(step, peak=2.0, warmup=warmup, steps=steps, final=0.5) == 0.5


def test_a_final_rate_above_the_peak_and_extreme_rates():
    assert schedule.rate(5, peak=1.0, warmup=0, steps=10, final=3.0) == pytest.approx(2.0)
    for peak in (0.0, 5e-324, 1e-300, 1e300):
        assert schedule.rate(0, peak=peak, warmup=0, steps=3) == peak
        assert math.isfinite(schedule.rate(2, peak=peak, warmup=0, steps=3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"step": -1}, ValueError, "step: expected an integer of at least 0; got -1"),
        ({"step": 1.0}, TypeError, "step: expected an integer; got float"),
        ({"warmup": -2}, ValueError, "warmup: expected an integer of at least 0; got -2"),
        ({"steps": 4}, ValueError, "steps: expected more than warmup = 4, which they include; got 4"),
        ({"peak": -1.0}, ValueError, "peak: expected a finite number ≥ 0; got -1.0"),
        ({"peak": "1"}, TypeError, "peak: expected a real number; got str"),
        ({"final": math.inf}, ValueError, "final: expected a finite number ≥ 0; got inf"),
    ],
)
def test_other_numbers_are_rejected(options, error, message):
    given = {"step": 0, "peak": 1.0, "warmup": 4, "steps": 10} | options
    with pytest.raises(error, match=message):
        schedule.rate(given.pop("step"), **given)
