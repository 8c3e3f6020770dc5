"""Muon makes the steps of torch.optim.Muon, orthogonalises, and costs what its formulas say."""

import sys
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.training import adamw, muon
from backpass.verify.mutation import compiled, mutants

sys.path.insert(0, str(Path(__file__).parent))
import optimisers
from optimisers import as_strict, as_tensors

SHAPES = {"square": (5, 5), "wide": (3, 7), "tall": (9, 4), "row": (1, 6), "column": (6, 1), "number": (1, 1)}
FIRST = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
OPTIONS = [
    {},
    FIRST,
    FIRST | {"nesterov": False},
    FIRST | {"ns_steps": 1},
    FIRST | {"ns_steps": 7},
    FIRST | {"momentum": 0.0},
    FIRST | {"weight_decay": 0.0},
    FIRST | {"adjust_lr_fn": "match_rms_adamw"},
    FIRST | {"eps": 30.0},
]
drawn, by_ours = partial(optimisers.drawn, SHAPES), partial(optimisers.stepped, muon)


def by_torch(parameters, gradients, **options):
    """The parameters after the steps of torch.optim.Muon, and its buffers."""
    weights = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in parameters.items()}
    optimiser = torch.optim.Muon(weights.values(), **options)
    for step in gradients:
        for name, d in step.items():
            weights[name].grad = torch.tensor(d)
        optimiser.step()
    buffers = {name: optimiser.state[w]["momentum_buffer"].numpy() for name, w in weights.items()}
    return {name: w.detach().numpy() for name, w in weights.items()}, buffers


@pytest.fixture
def unrounded(monkeypatch):
    """PyTorch orthogonalises in bfloat16; here its code runs in float64."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.double().clone(), raising=False)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
@pytest.mark.usefixtures("unrounded")
def test_the_steps_of_torch(options, form):
    parameters, gradients = drawn(steps=6)
    expected, buffers = by_torch(parameters, gradients, **options)
    got, state = by_ours(form(parameters), map(form, gradients), **options)
    for name in SHAPES:
        np.testing.assert_allclose(np.asarray(got[name]), expected[name], rtol=0, atol=1e-13)
        np.testing.assert_allclose(np.asarray(state["mean"][name]), buffers[name], rtol=0, atol=1e-15)
    assert state["step"] == 6


def test_the_rounding_of_torch_is_that_of_bfloat16():
    parameters, gradients = drawn(steps=1)
    options = {"lr": 1.0, "weight_decay": 0.0}
    expected, _ = by_torch(parameters, gradients, **options)
    got, _ = by_ours(parameters, gradients, **options)
    errors = [np.abs(got[name] - expected[name]).max() for name in SHAPES]
    assert 1e-4 < max(errors) < 0.1


@pytest.mark.parametrize("scale", [0.0, 1e-170, 1e-9, 1e150])
@pytest.mark.usefixtures("unrounded")
def test_extreme_gradients(scale):
    parameters, gradients = drawn(steps=2, scale=scale)
    expected, _ = by_torch(parameters, gradients, **FIRST)
    got, _ = by_ours(parameters, gradients, **FIRST)
    for name in SHAPES:
        assert np.isfinite(got[name]).all()
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=1e-13)


@pytest.mark.parametrize("options", [FIRST, FIRST | {"adjust_lr_fn": "match_rms_adamw"}], ids=str)
@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
def test_a_matrix_without_elements_leaves_the_others_as_they_are(options, form):
    parameters, gradients = drawn(steps=2)
    empty = {"no columns": np.ones((3, 0)), "no rows": np.ones((0, 4)), "neither": np.ones((0, 0))}
    expected, _ = by_ours(form(parameters), map(form, gradients), **options)
    got, state = by_ours(form(parameters | empty), [form(step | empty) for step in gradients], **options)
    for name, w in expected.items():
        np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(w))
    for name, w in empty.items():
        assert tuple(got[name].shape) == tuple(state["mean"][name].shape) == w.shape
    assert state["step"] == 2


@pytest.mark.parametrize("shape", [*SHAPES.values(), (40, 30)], ids=str)
@pytest.mark.parametrize("steps", [1, 5])
def test_the_polynomial_acts_on_the_singular_values_alone(shape, steps):
    x = np.random.default_rng(1).standard_normal(shape)
    u, values, v = np.linalg.svd(x, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    np.testing.assert_allclose(muon.orthogonalised(x, steps=steps), u * values @ v, rtol=0, atol=1e-13)


def test_the_range_of_the_singular_values():
    started = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 4001)])
    ended = started
    for _ in range(5):
        ended = 3.4445 * ended - 4.7750 * ended**3 + 2.0315 * ended**5
    assert ended.max() < 1.21 and ended.min() == 0
    assert ended[started >= 0.002].min() > 0.68 > ended[started < 0.0014].max()


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 2), (1, 6), (6, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_flops_are_counted(shape, steps):
    rng = np.random.default_rng(2)
    w, dw = (counting.array(rng.standard_normal(shape)) for _ in range(2))
    with counting.tally() as found:
        muon.orthogonalised(dw, steps=steps)
    assert found.total == muon.orthogonalised_flops(*shape, steps)
    with counting.tally() as found:
        muon._step(w, w, dw, decay=0.1, lr=0.1, momentum=0.9, nesterov=True, eps=1e-7, steps=steps)
    assert found.total == muon.update_flops(*shape, steps)


def test_is_plain_array_code_in_the_parameters_dtype():
    parameters, gradients = drawn(steps=2)
    expected, _ = by_ours(parameters, gradients, **FIRST)
    got, _ = by_ours(as_strict(parameters), map(as_strict, gradients), **FIRST)
    for name in SHAPES:
        np.testing.assert_allclose(np.asarray(got[name]), expected[name], rtol=1e-14)

    single = {name: w.astype(np.float32) for name, w in parameters.items()}
    options = {name: np.float64(value) for name, value in FIRST.items()} | {"eps": np.float64(1e-7)}
    halves = ({name: d.astype(np.float16) for name, d in step.items()} for step in gradients)
    got, state = by_ours(single, halves, **options)
    assert {str(x.dtype) for x in (*got.values(), *state["mean"].values())} == {"float32"}


def test_no_array_is_modified_and_others_keep_their_values():
    parameters, gradients = drawn(steps=2)
    copies = {name: w.copy() for name, w in parameters.items()}
    given = dict(parameters)
    state = muon.start({"wide": given["wide"]})
    for step in gradients:
        before, mean = step["wide"].copy(), state["mean"]["wide"]
        was = mean.copy()
        muon.update(given, {"wide": step["wide"]}, state)
        np.testing.assert_array_equal(step["wide"], before)
        np.testing.assert_array_equal(mean, was)
    assert [name for name in given if given[name] is not parameters[name]] == ["wide"]
    for name, w in parameters.items():
        np.testing.assert_array_equal(w, copies[name])


def test_other_parameters_are_rejected():
    parameters = {"bias": np.ones(3), "w": np.ones((2, 3)), "stack": np.ones((2, 2, 2))}
    with pytest.raises(ValueError) as raised:
        muon.start(parameters)
    assert str(raised.value).split("\n    ")[1:] == [
        "parameters: bias: expected a matrix; got shape [3]",
        "parameters: stack: expected a matrix; got shape [2, 2, 2]",
    ]
    with pytest.raises(TypeError, match=r"parameters: w: expected float32 or float64.*got dtype int64"):
        muon.start({"w": np.ones((2, 3), np.int64)})


@pytest.mark.parametrize("form", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_the_example_of_the_docstring(form):
    rng = np.random.default_rng(3)
    shapes = {"wte.weight": (7, 4), "h.0.mlp.c_fc.weight": (4, 9), "h.0.mlp.c_fc.bias": (9,)}
    parameters, d = (
        {name: form(rng.standard_normal(shape)) for name, shape in shapes.items()} for _ in range(2)
    )
    before = dict(parameters)
    example = muon.__doc__.partition("::\n")[2]
    found = {"muon": muon, "adamw": adamw, "parameters": parameters, "d": d}
    exec(textwrap.dedent(example), found)
    assert [*found["of_inner"]["mean"]] == ["h.0.mlp.c_fc.weight"]
    assert {*found["of_rest"]["mean"]} == {*shapes} - {"h.0.mlp.c_fc.weight"}
    assert all(bool((parameters[name] != w).any()) for name, w in before.items())


def test_entries_that_do_not_fit_are_rejected():
    parameters = {"a": np.ones((2, 3)), "b": np.ones((2, 2))}
    state = muon.start(parameters)
    with pytest.raises(ValueError) as raised:
        muon.update(parameters, {"a": np.ones((3, 2))}, state)
    assert str(raised.value).split("\n    ")[1:] == [
        "gradients: b: is missing",
        "gradients: a: expected shape [2, 3] of numpy cpu float64; got shape [3, 2] of numpy cpu float64",
    ]
    with pytest.raises(ValueError, match="state: expected what start returned; mean missing"):
        muon.update(parameters, parameters, {"step": 0})
    with pytest.raises(
        ValueError, match="state: expected what start returned; another optimiser's has square"
    ):
        muon.update(parameters, parameters, adamw.start(parameters))
    assert state["step"] == 0 and not state["mean"]["a"].any()


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        ([[1.0]], {}, TypeError, "x: expected an array; got list"),
        (np.ones(3), {}, ValueError, r"x: expected a matrix; got shape \[3\]"),
        (np.ones((2, 3)), {"steps": -1}, ValueError, "steps: expected an integer of at least 0; got -1"),
        (np.ones((2, 3)), {"steps": 1.5}, TypeError, "steps: expected an integer; got float"),
        (np.ones((2, 3)), {"eps": 0.0}, ValueError, "eps: expected a number above 0; got 0.0"),
    ],
)
def test_only_matrices_are_orthogonalised(x, options, error, message):
    with pytest.raises(error, match=message):
        muon.orthogonalised(x, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "lr: expected a finite number ≥ 0; got -1.0"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay: expected a finite number ≥ 0; got -1.0"),
        ({"momentum": 1.0}, ValueError, "momentum: expected a number of at least 0 and below 1; got 1.0"),
        ({"nesterov": 1}, TypeError, "nesterov: "),
        ({"eps": 0.0}, ValueError, "eps: expected a number above 0; got 0.0"),
        ({"ns_steps": 0}, ValueError, "ns_steps: expected an integer of at least 1; got 0"),
        ({"ns_steps": 2.5}, TypeError, "ns_steps: expected an integer; got float"),
        ({"adjust_lr_fn": "rms"}, ValueError, "adjust_lr_fn: "),
    ],
)
def test_other_options_are_rejected(options, error, message):
    parameters = {"w": np.ones((2, 3))}
    state = muon.start(parameters)
    with pytest.raises(error, match=message):
        muon.update(parameters, {"w": np.ones((2, 3))}, state, **options)
    assert state["step"] == 0


def observed(scope):
    """Everything that the update returns, and the two counts, by the functions in ``scope``."""
    parameters, gradients = drawn(steps=2)
    tiny = {name: 1e-12 * d for name, d in gradients[0].items()}
    found = []
    for options in (*OPTIONS, FIRST | {"eps": 1e-9, "ns_steps": 2}):
        given, state = dict(parameters), scope["start"](parameters)
        for step in (*gradients, tiny):
            scope["update"](given, step, state, **options)
        found += [state["step"], *given.values(), *state["mean"].values()]
    # NumPy's scalars leave float32 as it is, and tensors are tensors.
    options = {name: np.float64(value) for name, value in FIRST.items()} | {"eps": np.float64(1e-7)}
    given = {name: w.astype(np.float32) for name, w in parameters.items()}
    tensors = as_tensors(parameters)
    for each, form in ((given, lambda x: x.astype(np.float32)), (tensors, torch.tensor)):
        scope["update"](each, {name: form(d) for name, d in tiny.items()}, scope["start"](each), **options)
        found += [float(np.asarray(w, np.float64).sum()) for w in each.values()]
        found += [str(w.dtype) for w in each.values()]
    found += [scope["orthogonalised"](gradients[0]["wide"]), scope["_adjustment"]((3, 0), "original")]
    counts = [
        scope[name](*shape) for name in ("orthogonalised_flops", "update_flops") for shape in SHAPES.values()
    ]
    return [*found, *counts]


def equal(got, expected):
    if isinstance(expected, str):
        return got == expected
    return np.allclose(got, expected, rtol=1e-12, atol=1e-13)


# Each computes the same: the arguments of min and max commute, the formula is symmetric in both sizes, a square
# matrix may be transposed or not, and equal numbers or an array that is broadcast may stand for each other.
EQUIVALENT = {
    "return math.sqrt(max(1, rows / max(columns, 1))) | "
    "max(1, rows / max(columns, 1)) → max(rows / max(columns, 1), 1)",
    "return math.sqrt(max(1, rows / max(columns, 1))) | max(columns, 1) → max(1, columns)",
    "return 0.2 * math.sqrt(max(rows, columns)) | max(rows, columns) → max(columns, rows)",
    "r, s = (min(m, n), max(m, n)) | max(m, n) → max(n, m)",
    "r, s = (min(m, n), max(m, n)) | min(m, n) → min(n, m)",
    "return orthogonalised_flops(m, n, steps) + 9 * m * n | "
    "orthogonalised_flops(m, n, steps) → orthogonalised_flops(n, m, steps)",
    "y = x / xp.where(norm > eps, norm, xp.full_like(norm, eps)) | norm > eps → norm >= eps",
    "y = x / xp.where(norm > eps, norm, xp.full_like(norm, eps)) | xp.full_like(norm, eps) → xp.full_like(x, eps)",
}


def test_any_change_of_the_update_is_noticed(proof):
    names = ("update", "_step", "orthogonalised", "_adjustment", "orthogonalised_flops", "update_flops")
    made = [
        (f"{mutant.line} | {mutant.change}", mutant)
        for name in names
        for mutant in mutants(vars(muon)[name])
        if not mutant.line.startswith("check_")
    ]
    assert {*dict(made)} >= EQUIVALENT
    right, survivors = observed(vars(muon)), set()
    tried = proof.part("training.muon", made, of=[vars(muon)[name] for name in names], share=0.1)
    for change, mutant in tried:
        try:
            with np.errstate(all="ignore"):
                got = observed(compiled(mutant, muon))
            same = len(got) == len(right) and all(map(equal, got, right))
        except Exception:
            same = False
        if same:
            survivors.add(change)
    expected = EQUIVALENT.intersection(dict(tried))
    assert survivors == expected, "\n".join(sorted(survivors ^ expected))
