"""The parameters before the first step.

As in Radford et al., "Language Models are Unsupervised Multitask Learners" (2019):
matrices and tables are normally distributed with a spread of 0.02, biases are 0, and
the weights of norms are 1. The matrices that write to the residual stream have a spread
of 0.02/√(2L) with L layers, each of which writes twice, so that the stream does not
grow with L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from backpass.contract.arrays import Array, namespace
from backpass.contract.values import check_natural

SPREAD = 0.02
WRITE_TO_STREAM = ("c_proj.weight", "o_proj.weight", "down_proj.weight")


def parameters(
    shapes: Mapping[str, tuple[int, ...]], *, layers: int, seed: int, like: Array
) -> dict[str, Array]:
    """Return a parameter of each shape, by its name.

    They are drawn by NumPy's generator, whatever the array library, and have the dtype,
    the library, and the device of ``like``. Raises TypeError or ValueError unless
    ``layers`` and ``seed`` are integers of at least 0.
    """
    check_natural(layers=layers, seed=seed)
    xp, rng = namespace(like), np.random.default_rng(seed)

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.zeros(shape) if name.endswith("bias") else np.ones(shape)
        writes = name.endswith(WRITE_TO_STREAM)
        spread = SPREAD / math.sqrt(2 * layers) if writes else SPREAD
        return spread * rng.standard_normal(shape)

    return {
        name: xp.asarray(drawn(name, shape), dtype=like.dtype, device=like.device)
        for name, shape in shapes.items()
    }
