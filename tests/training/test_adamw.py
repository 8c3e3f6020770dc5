"""AdamW makes the steps of torch.optim.AdamW, and rejects what does not fit."""

import sys
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from backpass.training import adamw
from backpass.training._blocks import BLOCK

sys.path.insert(0, str(Path(__file__).parent))
import optimisers
from optimisers import as_strict, as_tensors

SHAPES = {"scalar": (), "one": (1,), "bias": (7,), "matrix": (5, 3), "stack": (2, 1, 3, 2), "empty": (0, 4)}
FIRST = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
OPTIONS = [
    {},
    FIRST,
    FIRST | {"lr": 0.0},
    FIRST | {"betas": (0.0, 0.0)},
    FIRST | {"betas": (0.99, 0.5)},
    FIRST | {"eps": 0.1},
    FIRST | {"weight_decay": 0.0},
    FIRST | {"lr": 3.0, "weight_decay": 0.5},  # 1 − lr·decay < 0
]
drawn, by_ours = partial(optimisers.drawn, SHAPES), partial(optimisers.stepped, adamw)


def cast(arrays, dtype):
    return {name: np.asarray(array, dtype=dtype) for name, array in arrays.items()}


def by_torch(parameters, gradients, decayed=None, weight_decay=1e-2, **options):
    """The parameters after the steps of torch.optim.AdamW, and its state."""
    weights = {name: torch.nn.Parameter(w) for name, w in as_tensors(parameters).items()}
    groups = [
        {"params": [w], "weight_decay": weight_decay if decayed is None or name in decayed else 0.0}
        for name, w in weights.items()
    ]
    optimiser = torch.optim.AdamW(groups, **options)
    for step in gradients:
        for name, d in as_tensors(step).items():
            weights[name].grad = d.to(weights[name].dtype)
        optimiser.step()
    state = {name: optimiser.state[w] for name, w in weights.items()}
    return {name: w.detach().numpy() for name, w in weights.items()}, state


def assert_equal(got, expected, tolerance, scales=None):
    """Equal to ``tolerance`` of the largest element, or of ``scales``."""
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        array = np.asarray(array)
        assert got[name].shape == array.shape
        assert str(got[name].dtype).endswith(str(array.dtype))
        largest = scales[name] if scales else np.abs(array).max(initial=0.0)
        assert np.abs(np.asarray(got[name]) - array).max(initial=0.0) <= tolerance * largest, name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
def test_the_steps_of_torch(options, form):
    parameters, gradients = drawn(steps=12)
    expected, expected_state = by_torch(parameters, gradients, **options)
    got, state = by_ours(form(parameters), map(form, gradients), **options)
    assert_equal(got, expected, 1e-14)
    assert state["step"] == 12
    # The terms of a mean can cancel, and its rounding is that of the largest term.
    terms = {name: max(np.abs(step[name]).max(initial=0.0) for step in gradients) for name in SHAPES}
    assert_equal(state["mean"], {name: s["exp_avg"] for name, s in expected_state.items()}, 1e-15, terms)
    assert_equal(state["square"], {name: s["exp_avg_sq"] for name, s in expected_state.items()}, 1e-14)


def test_steps_late_in_a_run():
    """Both begin at a state of step 1000."""
    parameters, gradients = drawn(steps=4)
    squares = {name: d * d for name, d in gradients[1].items()}
    state = adamw.start(parameters) | {"step": 1000, "mean": dict(gradients[0]), "square": squares}
    weights = {name: torch.nn.Parameter(w) for name, w in as_tensors(parameters).items()}
    optimiser = torch.optim.AdamW(weights.values(), **FIRST)
    for name, w in weights.items():
        mean, square = (torch.tensor(state[kind][name]) for kind in ("mean", "square"))
        optimiser.state[w] = {"step": torch.tensor(1000.0), "exp_avg": mean, "exp_avg_sq": square}
    for step in gradients[2:]:
        for name, d in as_tensors(step).items():
            weights[name].grad = d
        optimiser.step()
        adamw.update(parameters, step, state, **FIRST)
    assert_equal(parameters, {name: w.detach().numpy() for name, w in weights.items()}, 1e-14)


@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
def test_in_float32_as_exact_as_torch(form):
    parameters, gradients = drawn(steps=40)
    parameters, gradients = cast(parameters, "float32"), [cast(step, "float32") for step in gradients]
    exact, _ = by_torch(cast(parameters, "float64"), [cast(step, "float64") for step in gradients], **FIRST)
    torchs, _ = by_torch(parameters, gradients, **FIRST)
    ours, state = by_ours(form(parameters), map(form, gradients), **FIRST)

    def error(found):
        return np.linalg.norm(np.concatenate([np.ravel(np.asarray(found[n]) - exact[n]) for n in exact]))

    assert 0 < error(ours) <= 2 * error(torchs)
    for mapping in (ours, state["mean"], state["square"]):
        assert all(str(array.dtype).endswith("float32") for array in mapping.values())


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1e-160, 1e-20, 1e-8, 1e20, 1e150, 2e154, 1e160, 1e300])
def test_extreme_gradients(scale):
    """Squares of 1e-200 are 0 and those of 1e160 infinite; the step is then that of PyTorch too."""
    parameters, gradients = drawn(steps=3, scale=scale)
    expected, _ = by_torch(parameters, gradients, **FIRST)
    with np.errstate(over="ignore"):
        got, _ = by_ours(parameters, gradients, **FIRST)
    assert all(np.isfinite(array).all() for array in got.values())
    assert_equal(got, expected, 1e-14)


def test_the_first_step_has_the_size_of_the_rate():
    """Without the two bias corrections it would be (1 − β₁)/√(1 − β₂) = 3.2 times as large."""
    parameters, gradients = drawn(steps=1)
    got, _ = by_ours(parameters, gradients, lr=0.25, weight_decay=0.0)
    for name, w in got.items():
        np.testing.assert_allclose(parameters[name] - w, 0.25 * np.sign(gradients[0][name]), rtol=1e-5)


def test_decay_is_decoupled_from_the_gradient():
    """Without a gradient a weight shrinks by 1 − lr·decay; coupled, it would move by lr towards 0."""
    got, _ = by_ours({"w": np.array([100.0, -1e-3])}, [{"w": np.zeros(2)}], lr=0.1, weight_decay=0.5)
    np.testing.assert_allclose(got["w"], [95.0, -0.95e-3], rtol=1e-15)


def test_decay_by_name_and_by_axes():
    parameters, gradients = drawn(steps=5)
    matrices = adamw.with_axes(parameters)
    assert matrices == ["matrix", "stack", "empty"]
    assert adamw.with_axes(parameters, 1) == [name for name in parameters if name != "scalar"]
    for decayed in (matrices, ["bias"], [], {"one", "stack"}):
        expected, _ = by_torch(parameters, gradients, decayed=decayed, **FIRST)
        got, _ = by_ours(parameters, gradients, decayed=decayed, **FIRST)
        assert_equal(got, expected, 1e-14)


@pytest.mark.parametrize("block", [2, 10**9])
def test_parameters_and_gradients_are_not_modified(block, monkeypatch):
    monkeypatch.setattr(adamw, "BLOCK", block)
    parameters, gradients = drawn(steps=2)
    before = {name: w.copy() for name, w in parameters.items()}
    given = dict(parameters)
    state = adamw.start(given)
    adamw.update(given, gradients[0], state)
    copies = {name: d.copy() for name, d in gradients[1].items()}
    adamw.update(given, gradients[1], state)
    for name, w in parameters.items():
        np.testing.assert_array_equal(w, before[name])
        np.testing.assert_array_equal(gradients[1][name], copies[name])


def test_what_is_not_in_the_state_keeps_its_value():
    parameters, gradients = drawn(steps=1)
    given = dict(parameters)
    state = adamw.start({"bias": given["bias"]})
    adamw.update(given, {"bias": gradients[0]["bias"]}, state)
    assert [name for name in given if given[name] is not parameters[name]] == ["bias"]


def test_going_on_from_a_state_is_the_same_run():
    """The state is a plain dict, and a copy of it and of the parameters goes on as the original does."""
    parameters, gradients = drawn(steps=6)
    whole, _ = by_ours(parameters, gradients, **FIRST)
    half, state = by_ours(parameters, gradients[:3], **FIRST)
    assert type(state) is dict
    copied = {"step": state["step"]}
    copied |= {key: {name: a.copy() for name, a in state[key].items()} for key in ("mean", "square")}
    for step in gradients[3:]:
        adamw.update(half, step, copied, **FIRST)
    for name, w in whole.items():
        np.testing.assert_array_equal(half[name], w)


def test_half_precision_beside_master_weights():
    """Steps of 1e-4 of a weight are lost in bfloat16, and kept in the float32 parameters it is rounded from."""
    parameters = {"w": torch.ones(4)}
    gradients = [{"w": torch.full((4,), 0.3, dtype=torch.bfloat16)}] * 40
    expected, _ = by_torch({"w": np.ones(4, np.float32)}, [{"w": gradients[0]["w"].float()}] * 40, lr=1e-4)
    got, _ = by_ours(parameters, gradients, lr=1e-4)
    assert_equal(got, expected, 1e-7)
    short = adamw.rounded(got, torch.bfloat16)["w"]
    assert short.dtype == torch.bfloat16 and (short < 1).all()

    lost = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimiser = torch.optim.AdamW([lost], lr=1e-4)
    for step in gradients:
        lost.grad = step["w"]
        optimiser.step()
    assert (lost == 1).all()


def test_is_plain_array_code():
    parameters, gradients = drawn(steps=2)
    expected, _ = by_ours(parameters, gradients, **FIRST)
    got, _ = by_ours(as_strict(parameters), map(as_strict, gradients), **FIRST)
    assert_equal({name: np.asarray(w) for name, w in got.items()}, expected, 0.0)


def changed(mapping, **entries):
    new = {name: value for name, value in mapping.items() if name not in entries}
    return new | {name: value for name, value in entries.items() if value is not None}


def test_entries_that_do_not_fit_are_all_named():
    parameters = {"a": np.ones(3), "b": np.ones(2), "c": np.ones(1), "d": np.ones(4, np.float32)}
    state = adamw.start(parameters)
    state["mean"]["c"] = np.ones((1, 1))
    gradients = {"b": np.ones((2, 1)), "c": np.ones(1), "d": torch.ones(4), "e": np.ones(1)}
    before = dict(parameters)
    with pytest.raises(ValueError) as raised:
        adamw.update(parameters, gradients, state)
    assert str(raised.value).split("\n    ")[1:] == [
        "gradients: a: is missing",
        "gradients: e: is not expected",
        "gradients: b: expected shape [2] of numpy cpu float64; got shape [2, 1] of numpy cpu float64",
        "state: mean: c: expected shape [1] of numpy cpu float64; got shape [1, 1] of numpy cpu float64",
        "gradients: d: expected shape [4] of numpy cpu float32; got shape [4] of torch cpu torch.float32",
    ]
    assert state["step"] == 0 and all(parameters[name] is before[name] for name in before)


def test_a_parameter_or_half_a_state_that_is_missing():
    parameters, gradients = drawn(steps=1)
    state = adamw.start(parameters)
    with pytest.raises(ValueError, match="parameters: bias: is missing"):
        adamw.update(changed(parameters, bias=None), gradients[0], state)
    del state["square"]["matrix"]
    with pytest.raises(ValueError, match="state: square: matrix: is missing"):
        adamw.update(dict(parameters), gradients[0], state)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([np.ones(2)], "parameters: expected a mapping from names to arrays; got list"),
        ({"w": [1.0]}, "parameters: w: expected an array; got list"),
        ({"w": np.ones(2, np.int64)}, "parameters: w: expected float32 or float64.*got dtype int64"),
        ({"w": torch.ones(2, dtype=torch.bfloat16)}, "expected float32 or float64.*got dtype torch.bfloat16"),
        ({"w": np.ones(2, np.complex128)}, "expected float32 or float64.*got dtype complex128"),
    ],
)
def test_other_parameters_are_rejected(parameters, message):
    with pytest.raises(TypeError, match=message):
        adamw.start(parameters)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([np.ones(2)], "gradients: expected a mapping from names to arrays; got list"),
        ({"w": 1.0}, "gradients: w: expected an array; got float"),
        ({"w": np.ones(2, np.int64)}, "gradients: w: expected real floating-point numbers; got dtype int64"),
    ],
)
def test_other_gradients_are_rejected(gradients, message):
    parameters = {"w": np.ones(2)}
    with pytest.raises(TypeError, match=message):
        adamw.update(parameters, gradients, adamw.start(parameters))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1e-3}, ValueError, "lr: expected a finite number ≥ 0; got -0.001"),
        ({"lr": float("nan")}, ValueError, "lr: expected a finite number ≥ 0; got nan"),
        ({"lr": np.ones(1)}, TypeError, "lr: expected a real number; got ndarray"),
        ({"weight_decay": float("inf")}, ValueError, "weight_decay: expected a finite number ≥ 0; got inf"),
        ({"eps": 0.0}, ValueError, "eps: expected a number above 0; got 0.0"),
        (
            {"betas": (0.9, 1.0)},
            ValueError,
            r"betas\[1\]: expected a number of at least 0 and below 1; got 1.0",
        ),
        (
            {"betas": (-0.1, 0.9)},
            ValueError,
            r"betas\[0\]: expected a number of at least 0 and below 1; got -0.1",
        ),
        ({"betas": 0.9}, TypeError, "betas: expected two numbers; got 0.9"),
        ({"decayed": "w"}, TypeError, "decayed: expected a collection of names.*got 'w'"),
        ({"decayed": ["w", "v"]}, ValueError, "decayed: expected names in the state; got 'v'"),
    ],
)
def test_other_options_are_rejected(options, error, message):
    parameters = {"w": np.ones(2)}
    state = adamw.start(parameters)
    with pytest.raises(error, match=message):
        adamw.update(parameters, {"w": np.ones(2)}, state, **options)
    assert state["step"] == 0


def test_numpy_scalars_as_options_leave_float32_as_it_is():
    parameters = {"w": np.ones(3, np.float32)}
    state = adamw.start(parameters)
    options = {"lr": np.float64(1e-3), "betas": (np.float64(0.9), np.float64(0.99)), "eps": np.float64(1e-8)}
    for _ in range(2):
        gradients = {"w": np.full(3, 0.5, np.float32)}
        adamw.update(parameters, gradients, state, **options, weight_decay=np.float64(0.1))
    assert {x.dtype for x in (parameters["w"], state["mean"]["w"], state["square"]["w"])} == {
        np.dtype(np.float32)
    }


def test_large_arrays_are_computed_block_by_block_with_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    w, dw = rng.standard_normal((2, 37, 5))
    results = []
    for library in (np.asarray, torch.asarray):
        for block in (10**9, 16):
            monkeypatch.setattr(adamw, "BLOCK", block)
            parameters = {"w": library(w)}
            state = adamw.start(parameters)
            for _ in range(3):
                adamw.update(parameters, {"w": library(dw.T.copy()).T}, state, weight_decay=0.1)
            assert parameters["w"].shape == w.shape
            results.append(
                [np.asarray(x) for x in (parameters["w"], state["mean"]["w"], state["square"]["w"])]
            )
    for one, other in (results[:2], results[2:]):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_in_place_the_same_numbers_are_written_over_the_parameters(monkeypatch):
    monkeypatch.setattr(adamw, "BLOCK", 16)
    drawn = np.random.default_rng(0).standard_normal((2, 37, 5))
    given = {"w": drawn[0].copy(), "turned": drawn[1].T.copy().T}
    parameters, replaced = dict(given), dict(given)
    states = [adamw.start(given) for _ in range(2)]
    for _ in range(2):
        gradients = {"w": drawn[1], "turned": drawn[0]}
        adamw.update(replaced, gradients, states[0])
    expected = {name: w.copy() for name, w in replaced.items()}
    for _ in range(2):
        adamw.update(parameters, gradients, states[1], in_place=True)
    for name, w in expected.items():
        np.testing.assert_array_equal(parameters[name], w)
    assert parameters["w"] is not drawn[0] and np.shares_memory(parameters["w"], given["w"])


@pytest.mark.parametrize("form", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.parametrize("rows", [3, BLOCK])
def test_in_place_parameters_that_share_memory_are_rejected(form, rows):
    """Written over block by block, one array with two names would be updated twice."""
    w, alone = form(np.ones((rows, 2))), form(np.ones(3))
    steps = ((rows, 2), (2, 2))  # in elements: the second of a row is the first of the next
    line = form(np.ones(2 * rows + 1))
    if form is np.asarray:
        gapped = np.lib.stride_tricks.as_strided(line, steps[0], (16, 16))
    else:
        gapped = line.as_strided(*steps)
    for names, parameters in {
        "first, second": {"first": w, "alone": alone, "second": w},
        "table, turned": {"table": w, "turned": w.T},
        "part, whole": {"alone": alone, "part": w[1:], "whole": w},
        "gapped": {"gapped": gapped, "alone": alone},
    }.items():
        state = adamw.start(parameters)
        gradients = {name: form(np.ones(tuple(x.shape))) for name, x in parameters.items()}
        message = f"in_place: expected parameters that can be written .* overlap; got {names}$"
        with pytest.raises(ValueError, match=message):
            adamw.update(parameters, gradients, state, in_place=True)
        assert state["step"] == 0 and (w == 1).all() and (line == 1).all() and (alone == 1).all()
    # One that is not trained keeps its value.
    parameters = {"trained": w, "fixed": w[1:], "alone": alone}
    state = adamw.start({"trained": w})
    with pytest.raises(ValueError, match="overlap; got trained"):
        adamw.update(parameters, {"trained": form(np.ones((rows, 2)))}, state, in_place=True)
    state = adamw.start({"alone": alone})
    adamw.update(parameters, {"alone": form(np.ones(3))}, state, in_place=True)
    assert parameters["fixed"] is not w and (w == 1).all() and (parameters["alone"] < 1).all()


def test_in_place_a_parameter_that_is_read_only_is_rejected_before_anything_is_replaced():
    parameters = {"w": np.ones(3), "fixed": np.ones(BLOCK + 1)}
    parameters["fixed"].flags.writeable = False
    state, gradients = adamw.start(parameters), {"w": np.ones(3), "fixed": np.ones(BLOCK + 1)}
    with pytest.raises(ValueError, match=r"in_place: expected parameters that can be written .* got fixed"):
        adamw.update(parameters, gradients, state, in_place=True)
    assert state["step"] == 0 and (parameters["w"] == 1).all()
    adamw.update(parameters, gradients, state)
    assert state["step"] == 1 and (parameters["fixed"] < 1).all()


def test_what_autograd_records_is_rejected():
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="parameters: w: requires a gradient of autograd; pass it detached"):
        adamw.start({"w": w})
    parameters = {"w": w.detach()}
    with pytest.raises(TypeError, match="gradients: w: requires a gradient of autograd; pass it detached"):
        adamw.update(parameters, {"w": w}, adamw.start(parameters))


def test_what_cannot_be_replaced_is_rejected_before_anything_is():
    parameters = {"w": np.ones(2)}
    state, gradients = adamw.start(parameters), {"w": np.ones(2)}
    with pytest.raises(TypeError, match="parameters: expected a mapping whose entries can be replaced"):
        adamw.update(MappingProxyType(parameters), gradients, state)
    assert state["step"] == 0 and not state["mean"]["w"].any()
    with pytest.raises(ValueError, match="state: expected what start returned; square missing"):
        adamw.update(parameters, gradients, {"step": 0, "mean": state["mean"]})
