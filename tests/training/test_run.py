"""A run: its records, resumption, micro-batches, the held-out loss, and numbers that are not finite."""

import contextlib
import math
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from backpass.models import gpt2
from backpass.models.layers.recomputed import Segment
from backpass.training import adamw, batches, clipping, schedule, texts
from backpass.training.run import Options, Run

sys.path.insert(0, str(Path(__file__).parent))
from small_runs import LENGTH, LIKE, MODELS, TEXT, assert_same_bits, curve, options, started

EVERY_MODEL = pytest.mark.parametrize("model", MODELS)
WITHOUT_DROPOUT = pytest.mark.parametrize("model", ["gpt2", "llama"])


@EVERY_MODEL
def test_a_step_is_the_parts_of_this_package(model):
    run = started(model, seed=5)
    module, config = MODELS[model]
    parameters = dict(run.parameters)
    state = adamw.start(parameters)
    for step in range(3):
        batch = batches.windows(texts.divided(TEXT)[0], batch=4, length=LENGTH, seed=5, step=step)
        dropout = {"masks": (5, step, 0)} if "dropout" in model else {}
        loss, saved = module.forward(parameters, *batch, config=config, **dropout)
        gradients, norm = clipping.clip(module.backward(saved), 1.0)
        rate = schedule.rate(step, peak=2e-2, warmup=1, steps=8)
        adamw.update(
            parameters,
            gradients,
            state,
            lr=rate,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            decayed=adamw.with_axes(parameters),
        )
        record = run.step()
        assert record.step == step and record.rate == rate
        assert record.loss == pytest.approx(float(loss), rel=1e-14)
        assert record.norm == pytest.approx(norm, rel=1e-13)
        assert record.tokens_per_second > 0
    for name, parameter in parameters.items():
        np.testing.assert_allclose(run.parameters[name], parameter, rtol=1e-11, atol=1e-15)
    vectors = [name for name, w in parameters.items() if w.ndim == 1]
    assert vectors and not set(vectors) & set(run._decayed)


@WITHOUT_DROPOUT
@pytest.mark.parametrize("like", LIKE)
def test_a_run_learns_in_each_library_and_dtype(model, like):
    run = started(model, like)
    before = run.held_out_loss()
    records = list(run)
    assert [record.step for record in records] == list(range(8))
    assert run.made == 8
    assert records[-1].loss < records[0].loss - 0.3
    assert run.held_out_loss() < before - 0.3
    for name, parameter in run.parameters.items():
        assert type(parameter) is type(LIKE[like]) and parameter.dtype == LIKE[like].dtype, name


@EVERY_MODEL
def test_libraries_agree(model):
    one, other = curve(started(model, "numpy64", steps=4)), curve(started(model, "torch64", steps=4))
    for mine, theirs in zip(one, other, strict=True):
        assert mine[1] == pytest.approx(theirs[1], rel=1e-12)
        assert mine[3] == pytest.approx(theirs[3], rel=1e-10)


@EVERY_MODEL
def test_the_norms_of_the_parts_make_up_the_norm(model):
    record = started(model).step()
    assert math.hypot(*record.norms.values()) == pytest.approx(record.norm, rel=1e-14)
    layers = [part for part in record.norms if part[-1].isdigit()]
    assert len(layers) == 3 and all(norm > 0 for norm in record.norms.values())


@EVERY_MODEL
@pytest.mark.parametrize(("like", "steps"), [("numpy32", 20), ("torch64", 4)])
def test_a_resumed_run_has_the_same_bits(model, like, steps):
    whole = started(model, like, steps=steps)
    expected = curve(whole)
    first = started(model, like, steps=steps)
    got = curve(first, steps // 2)
    second = Run.resumed(first.state(), TEXT, like=LIKE[like])
    got += curve(second)
    assert got == expected
    assert_same_bits(second, whole)


@EVERY_MODEL
@pytest.mark.parametrize("recompute", [1, 2])
def test_layers_that_run_again_give_the_same_bits(model, recompute, monkeypatch):
    """With dropout, too; and the backward does run them again."""
    plain, again = started(model, "numpy32", steps=3), started(model, "numpy32", steps=3, recompute=recompute)
    runs = []
    monkeypatch.setattr(
        Segment, "run_again", lambda self, run=Segment.run_again: (runs.append(self), run(self))
    )
    assert curve(again) == curve(plain)
    assert_same_bits(again, plain)
    assert len(runs) == 3 * -(-plain.config.layers // recompute) * plain.options.micro_batches


def test_a_state_does_not_change_with_the_run():
    run = started()
    curve(run, 2)
    state = run.state()
    kept = {name: w.copy() for name, w in state.parameters.items()}
    moments = {name: m.copy() for name, m in state.optimiser["mean"].items()}
    curve(run, 2)
    assert state.step == 2 and run.made == 4
    for name in kept:
        np.testing.assert_array_equal(state.parameters[name], kept[name])
        np.testing.assert_array_equal(state.optimiser["mean"][name], moments[name])


def test_a_state_moves_to_another_library():
    first = started("llama", "numpy64")
    curve(first, 3)
    moved = Run.resumed(first.state(), TEXT, like=LIKE["torch64"])
    assert {type(w) for w in moved.parameters.values()} == {torch.Tensor}
    for mine, theirs in zip(curve(first), curve(moved), strict=True):
        assert mine[1] == pytest.approx(theirs[1], rel=1e-12)


@WITHOUT_DROPOUT  # each micro-batch has masks of its own
def test_micro_batches_compute_the_same(model):
    whole, divided = started(model, steps=3), started(model, steps=3, micro_batches=4)
    for mine, theirs in zip(curve(whole), curve(divided), strict=True):
        assert mine[1] == pytest.approx(theirs[1], rel=1e-12)
        assert mine[3] == pytest.approx(theirs[3], rel=1e-10)


def test_each_step_and_micro_batch_has_masks_of_its_own(monkeypatch):
    drawn = []
    right = gpt2.forward

    def forward(*arguments, masks=None, **options):
        drawn.append(masks)
        return right(*arguments, masks=masks, **options)

    monkeypatch.setattr(gpt2, "forward", forward)
    run = started("gpt2 with dropout", seed=5, micro_batches=2)
    curve(run, 2)
    assert drawn == [(5, 0, 0), (5, 0, 1), (5, 1, 0), (5, 1, 1)]
    drawn.clear()
    run.held_out_loss()
    assert set(drawn) == {None}  # nothing is dropped there


@WITHOUT_DROPOUT
def test_kernels_are_handed_to_the_model(model, monkeypatch):
    module, config = MODELS[model]
    given = []
    right = module.forward

    def forward(*arguments, kernels=None, **options):
        given.append(kernels)
        return right(*arguments, **options)

    monkeypatch.setattr(module, "forward", forward)
    run = Run.start(module, config, TEXT, options(), like=LIKE["numpy64"], kernels="kernels")
    run.step()
    Run.resumed(run.state(), TEXT, like=LIKE["numpy64"], kernels="kernels").held_out_loss()
    assert set(given) == {"kernels"}


def test_a_complete_run_makes_no_step():
    run = started(steps=2)
    curve(run)
    before = run.state()
    with pytest.raises(RuntimeError, match="the run is complete: 2 of 2 steps were made"):
        run.step()
    assert run.made == 2
    for name, w in before.parameters.items():
        np.testing.assert_array_equal(run.parameters[name], w)


def test_the_seed_determines_the_run():
    assert curve(started(seed=1), 3) == curve(started(seed=1), 3)
    assert curve(started(seed=1), 1) != curve(started(seed=2), 1)


@EVERY_MODEL
def test_the_held_out_loss_is_that_of_windows_of_the_held_out_text(model):
    run = started(model)
    module, config = MODELS[model]
    held_out = np.frombuffer(TEXT[-(len(TEXT) // 10) :], np.uint8).astype(int)
    count = 1 + (len(held_out) - LENGTH - 1) // LENGTH
    starts = [int(start) for start in np.linspace(0, len(held_out) - LENGTH - 1, count)]
    windows = np.stack([held_out[start : start + LENGTH + 1] for start in starts])
    loss, _ = module.forward(run.parameters, windows[:, :-1], windows[:, 1:], config=config)
    assert run.held_out_loss() == pytest.approx(float(loss), rel=1e-13)


# Numbers that are not finite


def planted(model, name, value, like="numpy32", everywhere=False, **changed):
    """A run after three steps, one of whose parameters has one element replaced, or all."""
    run = started(model, like, **changed)
    curve(run, 3)
    parameter = np.asarray(run.parameters[name]).copy()
    parameter.flat[slice(None) if everywhere else 5] = value
    run.parameters[name] = parameter if like.startswith("numpy") else torch.from_numpy(parameter)
    return run


def said(run):
    """What the step says that must fail, and that it changed nothing."""
    before = run.state()
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError) as caught:
        run.step()
    assert run.made == before.step
    for name, w in before.parameters.items():
        np.testing.assert_array_equal(np.asarray(run.parameters[name]), np.asarray(w))
    return str(caught.value)


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("like", ["numpy32", "torch32"])
def test_a_parameter_that_is_not_finite_is_named(value, like):
    message = said(planted("gpt2", "h.1.mlp.c_fc.weight", value, like))
    assert message.startswith("step 4: the loss is nan; in the parameter h.1.mlp.c_fc.weight, 1 of 240")


@pytest.mark.parametrize(
    ("model", "name", "part"),
    [
        ("gpt2", "h.1.mlp.c_fc.weight", "h.1"),
        ("gpt2", "h.2.attn.c_attn.weight", "h.2"),
        ("llama", "layers.1.mlp.up_proj.weight", "layers.1"),
        ("llama", "layers.2.self_attn.v_proj.weight", "layers.2"),
    ],
)
@pytest.mark.parametrize(
    ("like", "recompute"), [("numpy32", 0), ("torch32", 0), ("numpy32", 1), ("numpy32", 2)]
)
def test_the_layer_that_overflows_is_named(model, name, part, like, recompute):
    run = planted(model, name, 3e38, like, everywhere=True, recompute=recompute)
    message = said(run)
    assert message.startswith("step 4: the loss is ")
    assert f"; the first part with such numbers is {part} (" in message


@pytest.mark.parametrize("like", ["numpy32", "torch32"])
def test_an_output_that_overflows_points_to_the_layer_before(like):
    run = planted("gpt2", "h.0.mlp.c_proj.bias", 3e38, like)
    run.parameters["h.0.attn.c_proj.bias"] = run.parameters["h.0.mlp.c_proj.bias"]  # together above the range
    message = said(run)
    assert "is h.1 (norm_1" in message and "computed from the output of h.0" in message


def test_a_gradient_that_is_not_finite_is_named(monkeypatch):
    run = started()
    curve(run, 2)
    right = gpt2.backward

    def wrong(saved):
        gradients = right(saved)
        gradients["h.1.ln_2.bias"] = gradients["h.1.ln_2.bias"] * math.inf
        return gradients

    monkeypatch.setattr(gpt2, "backward", wrong)
    message = said(run)
    assert message.startswith("step 3: gradients: their norm is not finite")
    assert "h.1.ln_2.bias: 12 of 12 elements are not finite" in message
    assert "All arrays of the forward are finite" in message


@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_to_find_what_is_not_finite_needs_no_more_memory_than_a_step(recompute, where, monkeypatch):
    """All layers are searched: the overflow is in the last part, or in the backward."""
    config, right = gpt2.Config(256, 64, 24, 6, 2, 96), gpt2.backward
    changed = {"batch": 4, "length": 64, "micro_batches": 2, "recompute": recompute}
    run = Run.start(gpt2, config, TEXT * 4, options(**changed), like=LIKE["numpy32"])

    def overflowing(saved):
        gradients = right(saved)
        gradients["h.1.ln_2.bias"] *= math.inf
        return gradients

    def peak(context):
        tracemalloc.start()
        with np.errstate(all="ignore"), context:
            run.step()
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    run.step()  # what is loaded once
    of_step = peak(contextlib.nullcontext())
    if where == "forward":
        run.parameters["ln_f.weight"][:] = 3e38
        words = r"the first part with such numbers is lm_head \("
    else:
        monkeypatch.setattr(gpt2, "backward", overflowing)
        words = "All arrays of the forward are finite"
    found = peak(pytest.raises(FloatingPointError, match=words))
    assert found < 1.01 * of_step  # the error itself has a few hundred bytes


def test_parameters_are_looked_at_before_the_forward_runs_again(monkeypatch):
    run = planted("gpt2", "h.1.mlp.c_fc.weight", math.nan)
    right, calls = gpt2.forward, []
    monkeypatch.setattr(gpt2, "forward", lambda *a, **o: (calls.append(a), right(*a, **o))[1])
    said(run)
    assert len(calls) == 1


def test_a_held_out_loss_that_is_not_finite_is_rejected():
    run = planted("gpt2", "h.1.mlp.c_fc.weight", math.nan)
    expected = r"after step 3, the held-out loss is nan; in the parameter h\.1\.mlp\.c_fc\.weight, 1 of 240"
    with pytest.raises(FloatingPointError, match=expected):
        run.held_out_loss()


# What is rejected


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 0}, "steps: expected an integer of at least 1; got 0"),
        ({"batch": -1}, "batch: expected an integer of at least 1; got -1"),
        ({"length": 0}, "length: expected an integer of at least 1"),
        ({"micro_batches": 3}, "micro_batches: expected a divisor of batch = 4; got 3"),
        ({"warmup": 8}, "warmup: expected fewer than steps = 8; got 8"),
        ({"lr": math.nan}, "lr: expected a finite number ≥ 0"),
        ({"clip": 0}, "clip: expected a number above 0; got 0"),
        ({"beta_2": 1.0}, "beta_2: expected a number of at least 0 and below 1"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite number"),
        ({"seed": -1}, "seed: expected an integer of at least 0"),
        ({"recompute": -1}, "recompute: expected an integer of at least 0"),
    ],
)
def test_options_out_of_range(changed, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        options(**changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 10.0}, "steps: expected an integer; got float"),
        ({"batch": True}, "batch: expected an integer; got bool"),
        ({"recompute": True}, "recompute: expected an integer; got bool"),
    ],
)
def test_options_of_another_type(changed, words):
    with pytest.raises(TypeError, match=words):
        options(**changed)


def test_a_short_run_needs_a_shorter_warm_up_than_the_default():
    expected = "warmup: expected fewer than steps = 5; got 100, the default: pass a smaller warmup too"
    with pytest.raises(ValueError, match=expected):
        Options(steps=5)
    assert Options(steps=5, warmup=0).steps == 5


def test_what_does_not_fit():
    module, config = MODELS["gpt2"]
    like = LIKE["numpy64"]
    with pytest.raises(ValueError, match=r"text: expected at least 110 bytes, .* got 100"):
        Run.start(module, config, TEXT[:100], options(), like=like)
    with pytest.raises(ValueError, match="length: expected at most 10, the number of positions; got 11"):
        Run.start(module, config, TEXT, options(length=11), like=like)
    few = gpt2.Config(255, LENGTH, 12, 3, 2, 20)
    with pytest.raises(ValueError, match=r"vocabulary: expected at least 256, .* got 255"):
        Run.start(module, few, TEXT, options(), like=like)
    with pytest.raises(ValueError, match="text: expected the text that the run began with"):
        Run.resumed(started().state(), TEXT + b"!", like=like)
    with pytest.raises(TypeError, match=r"text: expected bytes, .*; got str"):
        Run.start(module, config, TEXT.decode(), options(), like=like)
    with pytest.raises(TypeError, match="like: expected an array; got str"):
        Run.start(module, config, TEXT, options(), like="cpu")


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_holds_no_further_set_of_gradients(micro_batches):
    """With micro-batches, it holds their sum and the gradients of one."""
    config = gpt2.Config(256, LENGTH, 128, 12, 4, 512)
    tracemalloc.start()
    run = Run.start(gpt2, config, TEXT, options(batch=2, micro_batches=micro_batches), like=LIKE["numpy64"])
    run.step()
    between, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    run.step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    of_gradients = sum(w.nbytes for w in run.parameters.values())
    assert of_gradients < peak - between < (micro_batches + 0.6) * of_gradients
