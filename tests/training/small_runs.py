"""Runs of a second: a small model of each family, a text, and options."""

import itertools

import numpy as np
import torch

from backpass.models import gpt2, llama
from backpass.training.run import Options, Run

TEXT = b"the gradient of a sum is the sum of the gradients; a product has two. " * 12
LENGTH = 10
MODELS = {
    "gpt2": (gpt2, gpt2.Config(256, LENGTH, 12, 3, 2, 20)),
    "gpt2 with dropout": (gpt2, gpt2.Config(256, LENGTH, 12, 3, 2, 20, 1e-5, True, 0.1, 0.2, 0.3)),
    "llama": (llama, llama.Config(256, 12, 3, 2, 1, 6, 20)),
}
LIKE = {
    "numpy64": np.zeros(1),
    "numpy32": np.zeros(1, dtype=np.float32),
    "torch32": torch.zeros(1),
    "torch64": torch.zeros(1, dtype=torch.float64),
}


def options(**changed):
    sizes = {"steps": 8, "batch": 4, "length": LENGTH, "warmup": 1, "lr": 2e-2}
    return Options(**{**sizes, **changed})


def started(model="gpt2", like="numpy64", **changed):
    return Run.start(*MODELS[model], TEXT, options(**changed), like=LIKE[like])


def curve(run, steps=None):
    """The numbers of the steps, without their speed."""
    return [record[:-1] for record in itertools.islice(run, steps)]


def assert_same_bits(a, b):
    """Every parameter and moment of two runs has the same bits."""
    a, b = a.state(), b.state()
    pairs = [(a.parameters, b.parameters)]
    pairs += [(a.optimiser[moment], b.optimiser[moment]) for moment in ("mean", "square")]
    for one, other in pairs:
        assert one.keys() == other.keys()
        for name in one:
            x, y = np.asarray(one[name]), np.asarray(other[name])
            assert x.dtype == y.dtype and x.tobytes() == y.tobytes(), name
