"""The parameters before the first step."""

import math

import numpy as np
import pytest
import torch

from backpass.models import gpt2, llama
from backpass.training import initial

CONFIGS = [
    (gpt2, gpt2.Config(256, 20, 64, 8, 2, 128), "c_proj.weight"),
    (llama, llama.Config(256, 64, 8, 2, 1, 32, 128), ("o_proj.weight", "down_proj.weight")),
]


@pytest.mark.parametrize(("model", "config", "writes"), CONFIGS, ids=["gpt2", "llama"])
def test_spreads(model, config, writes):
    shapes = model.parameter_shapes(config)
    drawn = initial.parameters(shapes, layers=8, seed=3, like=np.zeros(1, np.float32))
    assert {name: w.shape for name, w in drawn.items()} == shapes
    for name, w in drawn.items():
        assert w.dtype == np.float32
        if w.ndim == 1:
            assert (w == (0 if name.endswith("bias") else 1)).all(), name
        else:
            spread = 0.02 / math.sqrt(16) if name.endswith(writes) else 0.02
            assert w.std() == pytest.approx(spread, rel=5 / math.sqrt(2 * w.size)), name
            assert abs(w.mean()) < 5 * spread / math.sqrt(w.size), name
    of_layers = [w for w in drawn.values() if w.shape == (64, 64)]
    assert len({w.tobytes() for w in of_layers}) == len(of_layers)  # no two parameters are the same


def test_a_seed_draws_the_same_for_every_library():
    shapes = {"a.weight": (3, 4), "a.bias": (4,)}
    drawn = initial.parameters(shapes, layers=1, seed=3, like=np.zeros(1))
    tensors = initial.parameters(shapes, layers=1, seed=3, like=torch.zeros(1, dtype=torch.float64))
    other = initial.parameters(shapes, layers=1, seed=4, like=np.zeros(1))
    for name in shapes:
        np.testing.assert_array_equal(drawn[name], tensors[name])
        assert isinstance(tensors[name], torch.Tensor)
    assert (drawn["a.weight"] != other["a.weight"]).all()
