"""A step's time is the sum of its calls' rooflines, and a call's roofline is what one computes by hand."""

import numpy as np
import pytest

from backpass import cost
from backpass.cost.duration import FLOPS_OF_ADAMW, MACHINES, Machine, Work, adamw_width
from backpass.interpreters import counting
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.training import adamw

MACHINE = Machine("by hand", {"float32": 100.0, "bfloat16": 400.0}, 10.0, 1000.0, 0.5)
CONFIG = gpt2.Config(7, 6, 6, 2, 3, 5)
CONFIGS = {
    "gpt2": CONFIG,
    "llama": llama.Config(8, 6, 2, 4, 1, 2, 5, biases=True, tied=True),
    "encoder": encoder.Config(6, 3, 2, 5, norm_first=True),
    "seq2seq": seq2seq.Config(6, 2, 3, 3, 5),
}


def test_one_call_by_hand():
    """The up projection of 2·3 rows of 6 numbers to 5, with a bias."""
    found = cost.duration(CONFIG, 2, 3, MACHINE)
    (forward, backward) = (span for span in found.spans if span.call == "up projection")
    # 30 sums of 6 products, and 30 biases; 36 + 30 numbers in, 5 biases, 30 numbers out.
    assert forward.work == (30 * 11, 30, 4 * (36 + 30 + 5 + 30))
    assert forward.seconds == pytest.approx(330 / 100 + 30 / 10 + 0.5, rel=1e-12, abs=0)
    assert (forward.repeats, forward.bound, forward.stem) == (2, "products", "linear")
    # dx: 36 sums of 5 products. dw: 30 sums of 6. db: 5 sums of 6 numbers.
    products, elements, size = 36 * 9 + 30 * 11, 5 * 5, 4 * (30 + 36 + 30 + 36 + 30 + 5)
    assert backward.work == (products, elements, size)
    assert backward.seconds == pytest.approx(products / 100 + elements / 10 + 0.5, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "work, seconds, bound",
    [
        (Work(1000, 50, 2000), 10 + 5 + 0.5, "products"),
        (Work(300, 50, 2000), 3 + 5 + 0.5, "elements"),
        (Work(100, 5, 2000), 2 + 0.5, "memory"),
        (Work(10, 1, 400), 0.4 + 0.5, "call"),
    ],
)
def test_what_bounds_a_call(work, seconds, bound):
    found, by = MACHINE.time(work, "float32")
    assert found == pytest.approx(seconds, rel=1e-12, abs=0)
    assert by == bound


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("recompute", [None, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_calls_do_the_work_of_the_step(name, recompute, fast):
    """Their FLOPs are those of the tally, their bytes those of the traffic, and their seconds those of the step."""
    chunked = fast and hasattr(CONFIGS[name], "vocabulary")  # a stack has no head
    options = {"flash": fast, "chunked": chunked, "recompute": recompute}
    found = cost.duration(CONFIGS[name], 2, 5, MACHINE, **options)
    tally, traffic = (which(CONFIGS[name], 2, 5, **options) for which in (cost.tally, cost.traffic))
    for way in ("forward", "backward", "recomputation"):
        works = [(span.repeats, span.work) for span in found.spans if span.way == way]
        assert sum(n * (work.products + work.elements) for n, work in works) == tally.flops()[way]
        assert sum(n * work.bytes for n, work in works) == traffic.bytes()[way]
    assert sum(found.by(lambda span: span.part).values()) == pytest.approx(found.seconds, rel=1e-12, abs=0)
    assert found.share("forward", "backward", "recomputation", "update") == pytest.approx(1, rel=1e-12)
    (update,) = (span for span in found.spans if span.way == "update")
    parameters = tally.parameters
    assert update.work == (0, 15 * parameters, 28 * parameters)
    without = cost.duration(CONFIGS[name], 2, 5, MACHINE, **options, update=False)
    assert without.seconds == pytest.approx(found.seconds - update.total, rel=1e-12, abs=0)


def test_frozen_layers_do_not_run_again():
    names = ["h.1.mlp.c_fc.weight", "ln_f.bias"]
    options = {"recompute": 1, "wanted": names}
    found = cost.duration(CONFIG, 2, 5, MACHINE, **options).spans
    again = [(span.repeats, span.work) for span in found if span.way == "recomputation"]
    assert (
        sum(n * (work.products + work.elements) for n, work in again)
        == (cost.tally(CONFIG, 2, 5, **options).flops()["recomputation"])
    )
    assert (
        sum(n * work.bytes for n, work in again)
        == (cost.traffic(CONFIG, 2, 5, **options).bytes()["recomputation"])
    )


def test_the_flops_of_adamw_are_counted():
    rng = np.random.default_rng(0)
    w, m, dw = (counting.array(rng.standard_normal(7)) for _ in range(3))
    v = counting.array(rng.random(7) + 0.5)
    with counting.tally() as found:
        adamw._step(w, m, v, dw, t=3, lr=1e-3, decay=1e-4, betas=(0.9, 0.99), eps=1e-8)
    assert found.total == 7 * FLOPS_OF_ADAMW


def test_the_bytes_of_adamw():
    """w, m and v are read and written, dw is read; in half precision a rounded copy is written."""
    assert adamw_width("float32") == 7 * 4
    assert adamw_width("float64") == 7 * 8
    assert adamw_width("bfloat16") == 6 * 4 + 2 + 2


def test_only_wanted_parameters_are_updated():
    names = ["h.0.attn.c_attn.weight", "ln_f.bias"]
    found = cost.duration(CONFIG, 2, 3, MACHINE, wanted=names)
    assert found.spans[-1].work.bytes == 28 * (6 * 18 + 6)


def test_utilisation_by_hand():
    """The products of two FLOPs a multiplication, over what the machine could multiply in the time."""
    b, s, h, f, V, L = 2, 3, 6, 5, 7, 2
    found = cost.duration(CONFIG, b, s, MACHINE, recompute=1, dtype="bfloat16")
    of_layer = 2 * b * s * (4 * h * h + 2 * h * f) + 4 * b * s * s * h
    model = 3 * (L * of_layer + 2 * b * s * h * V)
    assert found.mfu() == pytest.approx(model / (400 * found.seconds), rel=1e-12, abs=0)
    assert found.mfu(17.0) == pytest.approx(model / (400 * 17), rel=1e-12, abs=0)
    assert found.hfu(17.0) == pytest.approx((model + L * of_layer) / (400 * 17), rel=1e-12, abs=0)
    halved = found.mfu(17.0, "products-halved")
    assert found.mfu(17.0) - halved == pytest.approx(3 * L * 2 * b * s * s * h / (400 * 17), rel=1e-9, abs=0)


def test_published_peaks_bound_a_step_from_below():
    """No call is faster than its products at the peak, or its bytes."""
    machine = MACHINES["h100"]
    options = {"dtype": "bfloat16", "flash": True, "chunked": True}
    found = cost.duration("llama-3-8b", 1, 2048, "h100", **options)
    for span in found.spans:
        assert span.seconds >= span.work.products / machine.product_rate("bfloat16")
        assert span.seconds >= span.work.bytes / machine.bandwidth
    assert 0 < found.mfu() < 1
    assert cost.duration("llama-3-8b", 1, 2048, "a100", **options).seconds > 1.6 * found.seconds
    bounds = {span.call: span.bound for span in found.spans if span.way == "forward"}
    assert bounds["first norm"] == bounds["gate"] == "memory"
    assert bounds["up projection"] == "products"


def test_skipped_scores_can_raise_the_utilisation_above_1():
    """The convention counts the hidden scores of a causal mask, which FlashAttention skips."""
    options = {"dtype": "bfloat16", "flash": True, "chunked": True}
    found = cost.duration("llama-3-8b", 1, 2**20, "h100", **options)
    assert found.mfu() > 1 > found.hfu() > 0
    assert found.mfu(convention="products-halved") < 1


def test_a_table_of_the_calls():
    found = cost.duration(CONFIG, 2, 3, MACHINE)
    lines = repr(found).splitlines()
    title = "gpt2, batch 2, sequence 3, float32, on by hand: "
    assert lines[0] == f"{title}{found.seconds:.4g} s a step, MFU {100 * found.mfu():.1f}%"
    (up,) = (line for line in lines if "up projection" in line)
    assert up.startswith("2 × up projection")
    assert up.split()[4] == f"{2e3 * 6.8:,.3f}"
    assert lines[-1].split()[0] == "total" and "100.0%" in lines[-1]
    assert "<caption>gpt2, batch 2" in found._repr_html_()


@pytest.mark.parametrize(
    "fault, run",
    [
        (r"'b100'.*h100", lambda: cost.duration(CONFIG, 1, 1, "b100")),
        (r"machine: expected a Machine.*got dict", lambda: cost.duration(CONFIG, 1, 1, {})),
        (r"'float64'", lambda: cost.duration(CONFIG, 1, 1, MACHINE, dtype="float64")),
        (r"bandwidth: expected a number above 0; got 0", lambda: Machine("m", {"float32": 1.0}, 1.0, 0)),
        (
            r"product_rates: expected a mapping from dtypes to FLOP/s.*got float",
            lambda: Machine("m", 362e12, 91e12, 864e9),
        ),
        (
            r"product_rates: expected a mapping from dtypes to FLOP/s.*got an empty one",
            lambda: Machine("m", {}, 91e12, 864e9),
        ),
        (r"product_rates\['float32'\]: .*above 0", lambda: Machine("m", {"float32": -1}, 1.0, 1.0)),
        (r"product_rates: expected 'float16'.*got 'fp32'", lambda: Machine("m", {"fp32": 1.0}, 1.0, 1.0)),
        (r"seconds: expected a number above 0", lambda: cost.duration(CONFIG, 1, 1, MACHINE).mfu(0)),
        (r"config: expected a Config", lambda: cost.duration({}, 1, 1, MACHINE)),
    ],
)
def test_faults_are_named(fault, run):
    with pytest.raises((LookupError, TypeError, ValueError), match=fault):
        run()
