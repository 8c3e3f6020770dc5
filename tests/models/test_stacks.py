"""The encoder, and the encoder with a decoder, agree with PyTorch's: the output, the gradients of the inputs, and every
parameter's gradient. Without PyTorch, they agree with a complex step through the whole stack."""

import functools

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.interpreters import counting

from .pytorch import arrays_of, assert_as_exact, assert_equal, parameters_of, slopes
from .stacks import CASES, Both, Encoder, autograds, drawn_stack, module_of, pytorchs, step

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")

EVERY = pytest.mark.parametrize("name", CASES)
SMALL = pytest.mark.parametrize(
    "name",
    [
        "encoder, final norm",
        "encoder, final norm, norm first",
        "both, one row",
        "both, heads, norm first",
    ],
)


@EVERY
def test_it_is_pytorchs(name):
    config, parameters, *rows = drawn_stack(name)
    before = {name: array.copy() for name, array in parameters.items()}
    tensors = {name: torch.tensor(array) for name, array in parameters.items()}
    of_torch = [*map(torch.tensor, rows)]
    expected = autograds(pytorchs(config, parameters), *of_torch)
    for options in ({}, {"flash": False}):
        found = step(parameters, *rows, config=config, **options)
        assert all(type(d) is np.ndarray and d.dtype == np.float64 for d in found[-1].values())
        assert_equal(found, expected)
        assert_equal(step(tensors, *of_torch, config=config, **options), expected)
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, before[name])


@EVERY
def test_parameters_have_pytorchs_names_shapes_and_order(name):
    config, parameters, *_ = drawn_stack(name)
    expected = {name: tuple(p.shape) for name, p in pytorchs(config, parameters).named_parameters()}
    assert [*module_of(config).parameter_shapes(config).items()] == [*expected.items()]


@EVERY
def test_complex_step(name):
    config, parameters, *inputs, dy = drawn_stack(name)
    module = module_of(config)
    names = ["x"] if isinstance(config, Encoder) else ["source", "target"]
    found = slopes(
        functools.partial(module.forward, config=config),
        lambda saved: module.backward(dy, saved),
        {**parameters, **dict(zip(names, inputs, strict=True))},
        parameters,
        dy,
    )
    for name, of_step, slope, size in found:
        assert size > 0
        assert of_step == pytest.approx(slope, abs=1e-12 * size), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        Encoder(48, 2, 4, 80),
        Encoder(48, 2, 4, 80, norm_first=True, final_norm=True),
        Both(48, 1, 2, 4, 80),
        Both(48, 1, 2, 4, 80, norm_first=True),
    ],
    ids=["encoder", "encoder, norm first", "both", "both, norm first"],
)
def test_as_exact_as_autograd(config, dtype):
    draws = []
    for seed in range(8):
        stack = pytorchs(config, parameters_of(module_of(config), config, seed)).to(dtype)
        arrays = 2 if isinstance(config, Encoder) else 3
        rows = torch.tensor(np.random.default_rng(seed + 8).standard_normal((arrays, 3, 24, config.width)))
        state = {name: p.detach().clone() for name, p in stack.named_parameters()}
        found = [step(state, *rows.to(dtype), config=config, flash=flash) for flash in (True, False)]
        autograd = autograds(stack, *rows.to(dtype))
        exact = autograds(stack.double(), *rows.to(dtype).double())
        assert all(d.dtype == dtype for ours in found for d in arrays_of(ours))
        draws.append([(ours, autograd, exact) for ours in found])
    for of_option in zip(*draws, strict=True):
        assert_as_exact(of_option)


@SMALL
def test_other_libraries_compute_the_same(name):
    config, parameters, *rows = drawn_stack(name)
    expected = step(parameters, *rows, config=config)
    for library, to_numpy in (
        (counting.array, lambda array: array.to_numpy()),
        (array_api_strict.asarray, np.asarray),
    ):
        ours = {name: library(array) for name, array in parameters.items()}
        *found, gradients = step(ours, *map(library, rows), config=config)
        found.append({name: to_numpy(d) for name, d in gradients.items()})
        assert_equal([*map(to_numpy, found[:-1]), found[-1]], expected)


@SMALL
def test_wanted_gradients_are_those_of_all_and_the_others_are_absent(name):
    config, parameters, *rows = drawn_stack(name)
    *expected, gradients = step(parameters, *rows, config=config)
    names = [*gradients]
    for wanted in [{name} for name in names] + [{*names[::3]}, set()]:
        *found, some = step(parameters, *rows, config=config, wanted=wanted)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert some.keys() == wanted
        for name, gradient in some.items():
            np.testing.assert_array_equal(gradient, gradients[name])
