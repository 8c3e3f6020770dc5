"""The tutorials of Triton: scripts in ``python/tutorials`` of its repository, which no package installs.

The variable TRITON_TUTORIALS names their folder. Only their functions are defined; what the scripts run is left out.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from public import Case, Draw, Project, definitions


class Tutorials(Project):
    """The folder, as a project."""

    @property
    def root(self) -> Path | None:
        path = os.environ.get("TRITON_TUTORIALS")
        return Path(path) if path else None

    @property
    def version(self) -> str:
        return os.environ.get("TRITON_TUTORIALS_VERSION", "")

    def get(self, function: str) -> Any:
        file, _, name = function.partition(":")
        return _defined(str(self.root), file)[name]


@cache
def _defined(root: str, file: str) -> dict[str, Any]:
    (path,) = Path(root).glob(f"{file}-*.py")
    return definitions(
        path, ("properties", "target", "kernels", "layer_norm", "attention", "configs", "tma_configs")
    )


TUTORIALS = Tutorials("triton_tutorials", "triton")


@TUTORIALS.program("01:add")
def vector_add(it: Draw) -> Case:
    return it.case(TUTORIALS.get("01:add"), lambda x, y: x + y, it.fixed(1100), it.fixed(1100))


@TUTORIALS.program("02:softmax")
def fused_softmax(it: Draw) -> Case:
    return it.case(TUTORIALS.get("02:softmax"), lambda x: x.softmax(1), it.fixed(13, 70))


@TUTORIALS.program("03:matmul", "float16")
def matmul(it: Draw) -> Case:
    call = TUTORIALS.get("03:matmul")
    return it.case(
        lambda a, b: call(a, b, "leaky_relu"),
        lambda a, b: F.leaky_relu(a @ b),
        it.fixed(40, 72),
        it.fixed(72, 24),
    )


@TUTORIALS.program("04:seeded_dropout")
def seeded_dropout(it: Draw) -> Case:
    call = TUTORIALS.get("04:seeded_dropout")
    return it.case(
        lambda x: call(x, 0.5, 123) * call(x, 0.5, 123) - 2 * x * call(x, 0.5, 123),
        lambda x: 0 * x,
        it.fixed(1100),
    )


@TUTORIALS.program("05:layer_norm")
def layer_norm(it: Draw) -> Case:
    call = TUTORIALS.get("05:layer_norm")
    return it.case(
        lambda x, w, b: call(x, (70,), w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-5),
        it.normal(7, 70, mean=1.0),
        it.normal(70),
        it.normal(70),
    )


@TUTORIALS.program("06:attention", "float16")
def fused_attention(it: Draw) -> Case:
    call = TUTORIALS.get("06:attention")
    return it.case(
        lambda q, k, v: call(q, k, v, True, 0.5, False),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5),
        *(it.normal(1, 1, 128, 64, scale=0.5) for _ in range(3)),
    )


@TUTORIALS.program("08:group_gemm_fn", "float16")
def grouped_gemm(it: Draw) -> Case:
    # The tutorial assumes whole tiles of the products.
    call = TUTORIALS.get("08:group_gemm_fn")
    return it.case(
        lambda a, b, c, d: call([a, c], [b, d]),
        lambda a, b, c, d: [x @ y for x, y in ((a, b), (c, d))],
        it.fixed(128, 64),
        it.fixed(64, 128),
        it.fixed(128, 32),
        it.fixed(32, 128),
    )


@TUTORIALS.program("09:matmul_persistent", "float16")
def persistent_matmul(it: Draw) -> Case:
    call = TUTORIALS.get("09:matmul_persistent")
    return it.case(
        lambda a, b: call(a, b.T),
        lambda a, b: a @ b.T,
        it.fixed(40, 64),
        it.fixed(48, 64),
    )
