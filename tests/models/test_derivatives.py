"""The gradients are the derivatives of the loss, without PyTorch: a complex step and central differences through the
whole network, along a random direction for each parameter."""

import math

import array_api_strict
import numpy as np
import pytest

from backpass.interpreters import counting

from .small import NETWORKS, drawn

EVERY = pytest.mark.parametrize("name", NETWORKS)


def directions(parameters, seed=2):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(array.shape) for name, array in parameters.items()}


def slopes_of(gradients, along):
    """The derivative along each direction by the gradients, and the size that it could have."""
    return {
        name: (np.sum(gradients[name] * u), np.linalg.norm(gradients[name]) * np.linalg.norm(u))
        for name, u in along.items()
    }


@EVERY
def test_complex_step(name):
    module, config, parameters, batch = drawn(name)
    gradients = module.backward(module.forward(parameters, *batch, config=config)[1])
    along = directions(parameters)
    as_complex = {name: array.astype(complex) for name, array in parameters.items()}
    for name, (slope, size) in slopes_of(gradients, along).items():
        moved = {**as_complex, name: parameters[name] + 1e-30j * along[name]}
        loss, _ = module.forward(moved, *batch, config=config, wanted=())
        assert size > 0
        assert loss.imag / 1e-30 == pytest.approx(slope, abs=1e-12 * size), name


@EVERY
def test_central_differences(name):
    module, config, parameters, batch = drawn(name)
    gradients = module.backward(module.forward(parameters, *batch, config=config)[1])
    along, step = directions(parameters), 1e-5
    for name, (slope, size) in slopes_of(gradients, along).items():
        ahead, behind = (
            module.forward(
                {**parameters, name: parameters[name] + sign * step * along[name]},
                *batch,
                config=config,
                flash=False,
                chunked=False,
            )[0]
            for sign in (1, -1)
        )
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, abs=1e-7 * size), name


@EVERY
def test_a_scale_of_the_loss_is_a_factor_of_every_gradient(name):
    module, config, parameters, batch = drawn(name)
    for options in ({}, {"chunked": False}):
        expected, got = (
            module.backward(module.forward(parameters, *batch, config=config, **options)[1], **scale)
            for scale in ({}, {"scale": 0.125})
        )
        for of_name, gradient in expected.items():
            np.testing.assert_array_equal(got[of_name], 0.125 * gradient)
    _, saved = module.forward(parameters, *batch, config=config)
    for wrong in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="scale: expected a finite number above 0; got"):
            module.backward(saved, scale=wrong)
    with pytest.raises(TypeError, match="scale: expected a real number; got str"):
        module.backward(saved, scale="2")


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_the_counting_array_runs_the_same_lines(name):
    module, config, parameters, batch = drawn(name)
    expected, saved = module.forward(parameters, *batch, config=config)
    gradients = module.backward(saved)
    counted = {name: counting.array(array) for name, array in parameters.items()}
    with counting.tally() as forward:
        loss, saved = module.forward(counted, *map(counting.array, batch), config=config, chunked=False)
    with counting.tally() as backward:
        found = module.backward(saved)
    assert loss.to_numpy() == pytest.approx(float(expected), rel=1e-14, abs=0)
    for name, gradient in gradients.items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(found[name].to_numpy(), gradient, rtol=0, atol=1e-13 * scale)
    # Flash attention computes the scores again in the backward.
    assert 1.5 < backward.total / forward.total < 2.5


@EVERY
def test_a_library_with_the_functions_of_the_standard_computes_the_same(name, monkeypatch):
    """The standard has no scatter_add, which ``backpass.contract.arrays`` asks a library for."""

    def scatter_add(rows, index, length):
        out = np.zeros((length, rows.shape[1]))
        np.add.at(out, np.asarray(index), np.asarray(rows))
        return array_api_strict.asarray(out)

    monkeypatch.setattr(array_api_strict, "scatter_add", scatter_add, raising=False)
    module, config, parameters, batch = drawn(name)
    expected, saved = module.forward(parameters, *batch, config=config)
    gradients = module.backward(saved)
    strict = {name: array_api_strict.asarray(array) for name, array in parameters.items()}
    loss, saved = module.forward(strict, *map(array_api_strict.asarray, batch), config=config)
    assert float(loss) == pytest.approx(float(expected), rel=1e-14, abs=0)
    for name, gradient in module.backward(saved).items():
        scale = np.abs(gradients[name]).max()
        np.testing.assert_allclose(np.asarray(gradient), gradients[name], rtol=0, atol=1e-13 * scale)


def test_the_loss_of_equal_scores_is_the_logarithm_of_the_vocabulary():
    module, config, parameters, batch = drawn("llama")
    parameters["lm_head.weight"] = np.zeros_like(parameters["lm_head.weight"])
    loss, _ = module.forward(parameters, *batch, config=config)
    assert loss == pytest.approx(math.log(config.vocabulary), rel=1e-15, abs=0)
