"""An operation under ``torch.func.grad`` or ``torch.func.vjp``: one derivative, in
reverse mode.

Such a transform hides each tensor in another one. PyTorch unwraps the arguments of the
``forward`` of an ``autograd.Function`` that has ``setup_context``, so that the lines of
an operation, or its kernel, see tensors with memory. It does not unwrap those of a
backward, so the backward applies a second such function. The second function has a
backward that rejects a derivative of the gradient.
"""

from __future__ import annotations

from typing import Any

import torch


def function_of(operator: Any) -> Any:
    """Return an ``autograd.Function`` of an operator of ``operators``. Its arguments
    are those of the operator in order, and its first result is ``y``."""

    def reject_vmap(*_: Any) -> None:
        operator.reject("vmap")

    def reject_tangent(ctx: Any, *_: Any) -> Any:
        operator.reject("a forward-mode tangent")

    class Backward(torch.autograd.Function):
        vmap = staticmethod(reject_vmap)
        jvp = staticmethod(reject_tangent)

        @staticmethod
        def forward(wanted: list[bool], dy: Any, facts: Any, *arrays: Any) -> Any:
            return tuple(operator.gradients(dy, list(arrays), facts, wanted))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            """Save nothing, because a further derivative is rejected."""

        @staticmethod
        def backward(ctx: Any, *_: Any) -> None:
            operator.reject("a derivative of its gradient")

    class Forward(torch.autograd.Function):
        vmap = staticmethod(reject_vmap)
        jvp = staticmethod(reject_tangent)

        @staticmethod
        def forward(*values: Any) -> Any:
            y, own, sources, facts = operator.results(*values)
            return y, sources, facts, *own

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            y, sources, facts, *own = output
            operator.save(ctx, inputs, (y, own, sources, facts))

        @staticmethod
        def backward(ctx: Any, dy: Any, *_: Any) -> Any:
            return operator.gradients_by(_apply, ctx, dy)

    def _apply(ctx: Any, dy: Any, facts: Any, *arrays: Any, wanted: list[bool]) -> Any:
        return Backward.apply(wanted, dy, facts, *arrays)

    return Forward
