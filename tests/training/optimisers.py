"""What the tests of AdamW and of Muon share: drawn gradients, and the steps that an optimiser makes with them."""

import array_api_strict
import numpy as np
import torch


def drawn(shapes, steps, seed=0, scale=1.0):
    """Parameters, and the gradients of each step."""
    rng = np.random.default_rng(seed)
    parameters = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    gradients = [
        {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()} for _ in range(steps)
    ]
    return parameters, gradients


def as_tensors(arrays):
    return {name: torch.tensor(np.asarray(array)) for name, array in arrays.items()}


def as_strict(arrays):
    """Arrays that have what the standard lists and nothing else."""
    return {name: array_api_strict.asarray(array) for name, array in arrays.items()}


def stepped(optimiser, parameters, gradients, **options):
    """The parameters after the steps of one of our optimisers, and its state."""
    parameters = dict(parameters)
    state = optimiser.start(parameters)
    for step in gradients:
        optimiser.update(parameters, step, state, **options)
    return parameters, state
