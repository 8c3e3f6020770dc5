"""What is under test, seen in one way: an operation's module, the reader's own object, or an
autograd.Function.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from backpass.arrays import Array
from backpass.shapes import Shapes, parse
from backpass.verify.arguments import check_call, check_zero_gradients
from backpass.verify.convert import is_floating, is_torch


@dataclass(frozen=True)
class Subject:
    """A forward and a backward with their names.

    ``forward(*inputs)`` returns ``(y, saved)``, options bound; ``backward(dy, saved)`` returns what the
    object under test returns. ``plain_forward(*tensors)`` returns y alone, in operations autograd can follow.
    """

    name: str
    forward: Callable[..., tuple[Array, Any]]
    backward: Callable[[Array, Any], Any]
    plain_forward: Callable[..., Array]
    input_names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    shapes: Shapes | None = None
    constants: frozenset[str] = frozenset()
    positive: frozenset[str] = frozenset()
    zero_gradients: frozenset[str] = frozenset()
    torch_only: bool = False

    @property
    def stem(self) -> str | None:
        """The name under which PyTorch's operator and the kernel are found; None for a reader's object."""
        return self.name if self.shapes else None

    def differentiable(self, inputs: Sequence[object]) -> list[int]:
        """Positions of the inputs that get a gradient: floating-point arrays, constants apart."""
        return [
            at
            for at, value in enumerate(inputs)
            if is_floating(value) and self.input_names[at] not in self.constants
        ]


def load(op: object) -> object:
    """An operation's module from its name; anything else is returned as it is. Raises LookupError."""
    if not isinstance(op, str):
        return op
    from backpass import ops

    return ops.load(op)


def subject(op: object, count: int, options: dict[str, Any], zero_gradients: Sequence[str] = ()) -> Subject:
    """``op``, called with ``count`` inputs and ``options``, as a Subject; TypeError when it is none."""
    op = load(op)
    if _is_autograd_function(op):
        return _from_autograd_function(op, count, options, zero_gradients)
    for part in ("forward", "backward"):
        if not callable(getattr(op, part, None)):
            raise TypeError(
                "op: expected the name of an operation, an object with forward and backward, or a "
                f"torch.autograd.Function; got {_called(op)}, which has no {part}"
            )
    name = _called(op)
    if getattr(op, "__name__", "").startswith("backpass.kernels."):
        raise TypeError(
            f"op: a kernel is compared with its operation, in float64: give {name!r} and methods=['kernel']"
        )
    text = getattr(op, "SHAPES", None)
    shapes = parse(text) if text else None
    if shapes and count > len(shapes.inputs):
        raise TypeError(f"inputs: {name} takes {', '.join(map(str, shapes.inputs))}; got {count} arrays")
    check_call(name, op.forward, len(shapes.inputs) if shapes else count, options)

    def forward(*inputs):
        returned = op.forward(*inputs, **options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(f"forward: expected it to return (y, saved); got {type(returned).__name__}")
        return returned

    names = tuple(spec.name for spec in shapes.inputs) if shapes else _names(op.forward, count)
    check_zero_gradients(zero_gradients, names)
    return Subject(
        name=name,
        forward=forward,
        backward=op.backward,
        plain_forward=lambda *inputs: forward(*inputs)[0],
        input_names=names,
        options=options,
        shapes=shapes,
        constants=frozenset(getattr(op, "CONSTANTS", ())),
        positive=frozenset(getattr(op, "POSITIVE", ())),
        zero_gradients=frozenset((*getattr(op, "ZERO_GRADIENTS", ()), *zero_gradients)),
    )


def _is_autograd_function(op: object) -> bool:
    return isinstance(op, type) and any(base.__module__ == "torch.autograd.function" for base in op.__mro__)


def _from_autograd_function(
    op, count: int, options: dict[str, Any], zero_gradients: Sequence[str]
) -> Subject:
    if options:
        raise TypeError(
            f"{op.__name__}.apply takes no named options; got {', '.join(options)}: give them in order"
        )
    takes_context = op.setup_context is _base_function().setup_context
    check_call(op.__name__, partial(op.forward, None) if takes_context else op.forward, count, {})

    def forward(*inputs):
        leaves = [
            value.detach().requires_grad_() if is_torch(value) and is_floating(value) else value
            for value in inputs
        ]
        y = op.apply(*leaves)
        return y.detach(), (y, leaves)

    def backward(dy, saved):
        import torch

        y, leaves = saved
        wanted = [leaf for leaf in leaves if is_torch(leaf) and leaf.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, dy, retain_graph=True, allow_unused=True))
        return tuple(next(found) if is_torch(leaf) and leaf.requires_grad else None for leaf in leaves)

    def plain_forward(*inputs):
        return op.forward(_Context(), *inputs) if takes_context else op.forward(*inputs)

    names = _names(op.forward, count + takes_context)[takes_context:]
    check_zero_gradients(zero_gradients, names)
    return Subject(
        name=op.__name__,
        forward=forward,
        backward=backward,
        plain_forward=plain_forward,
        input_names=names,
        constants=frozenset(getattr(op, "CONSTANTS", ())),
        zero_gradients=frozenset((*getattr(op, "ZERO_GRADIENTS", ()), *zero_gradients)),
        torch_only=True,
    )


def _base_function():
    return importlib.import_module("torch.autograd").Function


class _Context:
    """Stands in for autograd's context when a Function's forward runs by itself, for autograd to follow."""

    needs_input_grad = (True,) * 64

    def save_for_backward(self, *tensors) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors) -> None: ...

    def mark_non_differentiable(self, *tensors) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def _names(function: Callable, count: int) -> tuple[str, ...]:
    """Names of the first ``count`` positional parameters; x1, x2, … where the signature has none."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return (*names, *(f"x{at + 1}" for at in range(len(names), count)))


def _called(op: object) -> str:
    if isinstance(op, SimpleNamespace) and not hasattr(op, "__name__"):
        return "forward and backward"
    name = getattr(op, "__name__", None) or type(op).__name__
    return name.rpartition(".")[2]
