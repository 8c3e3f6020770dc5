"""A feed-forward block on the activations' kernels.

Formulas: ``backpass.ops.feed_forward``. Derived on the page
``operations/feed_forward``. The matrix products are PyTorch's. The activation or gate
between them is one kernel in the forward and one in the backward. In half precision the
biases' gradients are summed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear  # weights are [out, in]

from backpass.contract.shapes import check_cotangent, check_saved
from backpass.contract.values import check_activation
from backpass.kernels import gelu, relu, swiglu
from backpass.kernels.launch import Launch, accumulator, check_tensor, check_tensors
from backpass.kernels.products import weight_gradient

SHAPES = "x[*, h], w_up[h, f], w_down[f, h], b_up[f]?, b_down[h]?, w_gate[h, f]?, b_gate[f]? -> y[*, h]"
PARAMETERS = ("w_up", "w_down", "b_up", "b_down", "w_gate", "b_gate")
# The activation is stored in the inputs' dtype: half precision is rounded before the
# products.
OPERANDS = True

FUNCTIONS: dict[str, tuple[Any, dict[str, str]]] = {
    "relu": (relu, {}),
    "gelu": (gelu, {}),
    "gelu_tanh": (gelu, {"approximate": "tanh"}),
}


class Saved(NamedTuple):
    """The inputs of the products, and what the activation saved."""

    activation: str
    x: torch.Tensor  # [*, h]
    a: torch.Tensor  # [*, f]
    w_up: torch.Tensor  # [h, f]
    w_down: torch.Tensor  # [f, h]
    w_gate: torch.Tensor | None  # [h, f]
    activated: Any  # ReLU: a[*, f]; GELU: u[*, f]; with a gate u[*, f] and g[*, f]
    biases: tuple[bool, bool, bool]  # whether b_up, b_down and b_gate were given


@torch.no_grad()
def forward(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None = None,
    b_down: torch.Tensor | None = None,
    w_gate: torch.Tensor | None = None,
    b_gate: torch.Tensor | None = None,
    *,
    activation: str = "gelu",
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, h]`` from ``x[*, h]``, by way of rows of width f.

    Raises what the operation raises, and TypeError for an argument that is not a tensor
    on a device where kernels run.
    """
    check_tensors(
        SHAPES,
        x=x,
        w_up=w_up,
        w_down=w_down,
        b_up=b_up,
        b_down=b_down,
        w_gate=w_gate,
        b_gate=b_gate,
    )
    check_activation(activation, w_gate, b_gate)
    u = linear(x, w_up.T, b_up)
    if w_gate is None:
        function, options = FUNCTIONS[activation]
        a, activated = function.forward(u, **options)
    else:
        a, activated = swiglu.forward(linear(x, w_gate.T, b_gate), u)
    y = linear(a, w_down.T, b_down)
    biases = b_up is not None, b_down is not None, b_gate is not None
    return y, Saved(activation, x, a, w_up, w_down, w_gate, activated, biases)


@torch.no_grad()
def backward(dy: torch.Tensor, saved: Saved) -> tuple[torch.Tensor | None, ...]:
    """Return ``dx[*, h]`` and the gradients of weights and biases, in forward's order,
    from ``dy[*, h]``. The gradient of an input that was not given is None."""
    activation, x, a, w_up, w_down, w_gate, activated, biases = check_saved(
        saved, Saved
    )
    check_tensor("dy", dy)
    check_cotangent(dy, tuple(x.shape), like=x)
    has_b_up, has_b_down, has_b_gate = biases

    dw_down, db_down = _of_weights(a, dy, w_down, has_b_down)
    da = dy @ w_down.T
    if w_gate is None:
        du = FUNCTIONS[activation][0].backward(da, activated)
        dw_up, db_up = _of_weights(x, du, w_up, has_b_up)
        return du @ w_up.T, dw_up, dw_down, db_up, db_down, None, None

    dg, du = swiglu.backward(da, activated)
    dw_up, db_up = _of_weights(x, du, w_up, has_b_up)
    dw_gate, db_gate = _of_weights(x, dg, w_gate, has_b_gate)
    dx = du @ w_up.T + dg @ w_gate.T
    return dx, dw_up, dw_down, db_up, db_down, dw_gate, db_gate


def _of_weights(
    x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return ``dw[n, p]`` and ``db[p]``, or None, of the product of ``x[*, n]`` and
    ``w[n, p]``, from ``dy[*, p]``."""
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    dw = weight_gradient(x, dy, w)
    if not has_bias:
        return dw, None
    return dw, torch.sum(dy, dim=0, dtype=accumulator(dy.dtype)).to(dy.dtype)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """The launches of the activations; the matrix products are PyTorch's."""
    return chain(relu.launches(dtype), gelu.launches(dtype), swiglu.launches(dtype))
