"""The stack of a network: the parts through which its rows flow one after the other.

A network says which they are, as data: operations before the layers, the layers, and
the norm after them. ``forward`` runs all of them. ``backward`` goes back through one:
a network's own backward loops over them, so that nothing holds the stream's gradient
longer than the next part needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from itertools import groupby
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from backpass.contract.arrays import Array
from backpass.models._parameters import (
    Names,
    Shapes,
    check_config,
    shapes_in_layer,
    wanted_in_parts,
)
from backpass.models.layers.calls import Part, call
from backpass.models.layers.kernel import (
    differentiable,
    gradient_of,
    gradients_of,
    implementation,
)
from backpass.models.layers.recomputed import Recompute, Segment, divided, stacked


class Piece(NamedTuple):
    """A part of a network that reads rows and returns rows: an operation or a layer."""

    name: str  # of Hugging Face's or PyTorch's module
    operation: ModuleType
    names: dict[str, str]  # of the parameters, by the operation's arguments, in order
    lengths: Mapping[str, Any]  # of the letters in the parameters' shapes
    options: Mapping[str, Any]

    @property
    def shapes(self) -> Shapes:
        """The shape of each parameter, by its name."""
        if not self.names:
            return {}
        by_argument = shapes_in_layer(self.operation, self.lengths).items()
        return {self.names[a]: shape for a, shape in by_argument if a in self.names}

    def arrays(self, w: Mapping[str, Array]) -> dict[str, Array]:
        """Return the parameters by argument from those of the network by name."""
        return {argument: w[name] for argument, name in self.names.items()}


class Stack(NamedTuple):
    """The parts of a network, in the order of the forward."""

    before: Sequence[Piece]
    layers: Sequence[Piece]
    after: Sequence[Piece]

    @property
    def pieces(self) -> list[Piece]:
        """All of them."""
        return [*self.before, *self.layers, *self.after]

    @property
    def shapes(self) -> Shapes:
        """The shape of each parameter, by its name."""
        return {name: s for piece in self.pieces for name, s in piece.shapes.items()}


def piece(
    name: str,
    operation: ModuleType,
    lengths: Mapping[str, Any],
    options: Mapping[str, Any],
    absent: Collection[str] = (),
) -> Piece:
    """Return a part. Its parameters, except those that are ``absent``, have the names
    of the layer's NAMES within ``name``, or of an operation's weight and bias."""
    own = getattr(operation, "NAMES", None) or {
        argument: {"w": "weight", "b": "bias"}[argument]
        for argument in getattr(operation, "PARAMETERS", ())
    }
    names = {a: f"{name}.{within}" for a, within in own.items() if a not in absent}
    return Piece(name, operation, names, lengths, options)


def wanted_in(
    pieces: Sequence[Piece], trained: Collection[str] | None, x: bool = True
) -> list[Names]:
    """Return the wanted gradients of each part where these parameters are ``trained``;
    None stands for all. ``x`` says whether the first rows' gradient is wanted."""
    if trained is None:
        return [differentiable(piece.operation) for piece in pieces]
    return wanted_in_parts([piece.names for piece in pieces], trained, x)


def forward(
    stack: Stack,
    x: Array,
    w: Mapping[str, Array],
    wanted: Sequence[Names],
    *,
    kernels: Any,
    recompute: Recompute,
    **shared: Any,
) -> tuple[Array, list[Any]]:
    """Return the rows ``[*, s, h]`` that leave the last part for the rows
    ``x[*, s, h]``, and what each part saved. ``w`` has the parameters by name,
    ``wanted`` the wanted gradients of each part. All layers receive ``shared``."""
    before, layers, after = stack
    first, last = len(before), len(before) + len(layers)
    parts: list[Any] = [None] * len(wanted)
    every, in_layers = divided(recompute, kernels)

    for i, each in enumerate(before):
        x, parts[i] = _run(each, x, w, wanted[i], kernels)
    forwards = [
        partial(
            layer.operation.forward,
            **layer.arrays(w),
            **layer.options,
            **shared,
            kernels=in_layers,
            wanted=of_layer,
        )
        for layer, of_layer in zip(layers, wanted[first:last], strict=True)
    ]
    x, parts[first:last] = stacked(forwards, x, every)
    for i, each in enumerate(after, last):
        x, parts[i] = _run(each, x, w, wanted[i], kernels)
    return x, parts


def backward(
    piece: Piece, dy: Array | None, saved: Any, d: dict[str, Any]
) -> Array | None:
    """Return the gradient of a part's rows, from that of the rows it returned, and add
    its parameters' gradients to ``d`` by name. What the forward did not want is None,
    or absent from ``d``."""
    saved = saved.pop() if isinstance(saved, Segment) else saved
    if not piece.names:
        return None if dy is None else gradient_of(piece.operation, dy, saved)
    dx, *shares = gradients_of(piece.operation, dy, saved, saved.wanted)
    arguments = differentiable(piece.operation)[1:]
    for argument, share in zip(arguments, shares, strict=True):
        if share is not None:
            # In the forward pass several parts may have read the array of this name;
            # so now its gradient is the sum over them.
            name = piece.names[argument]
            d[name] = d[name] + share if name in d else share
    return dx


def calls(
    stack: Stack,
    of_parts: Sequence[Names],
    rows: Any,
    repeats: Any = 1,
    name: str = "layer",
    **lengths: Any,
) -> list[Part]:
    """Return the calls of the layers, which have these ``lengths`` besides their own,
    and of the norm after them, which reads ``rows`` rows. ``of_parts`` has the wanted
    gradients of each part. Each layer stands for ``repeats`` layers."""
    first, last = len(stack.before), len(stack.before) + len(stack.layers)
    of_layers = zip(stack.layers, of_parts[first:last], strict=True)
    alike = groupby(
        _arguments(layer, {**lengths, "wanted": w}) for layer, w in of_layers
    )
    listed = [
        Part(name, len([*layers]) * repeats, operation.calls(**arguments))
        for (operation, arguments), layers in alike
    ]
    for norm, names in zip(stack.after, of_parts[last:], strict=True):
        normed = call("last norm", norm.operation, names, m=rows, **norm.lengths)
        listed.append(Part("last norm", 1, (normed,)))
    return listed


def counted(config: Any, own: type, layers: str = "layers") -> tuple[Any, Any]:
    """Return what ``complete`` does, and how many layers each of its layers represents:
    if their number is a symbol, one layer represents all."""
    config, number = complete(config, own), getattr(config, layers)
    if not hasattr(number, "free_symbols"):
        return config, 1
    return SimpleNamespace(**vars(config) | {layers: 1}), number


def complete(config: Any, own: type) -> Any:
    """Return a configuration. What has only sizes, such as symbols, gets the defaults
    of the model's ``own`` class. Raises TypeError for what has none."""
    if isinstance(config, own):
        return config
    if not hasattr(config, "__dict__"):
        check_config(config, own)
    defaults = {field.name: field.default for field in fields(own)}
    return SimpleNamespace(**defaults | vars(config))


def _arguments(layer: Piece, given: Mapping[str, Any]) -> tuple[ModuleType, dict]:
    """Return the operation of a layer, and the arguments of its ``calls``."""
    has = {f"has_{name}": name in layer.names for name in layer.operation.PARAMETERS}
    known = {**layer.lengths, **layer.options, **has, **given}
    accepted = signature(layer.operation.calls).parameters
    return layer.operation, {name: known[name] for name in accepted if name in known}


def _run(
    piece: Piece, x: Array, w: Mapping[str, Array], wanted: Names, kernels: Any
) -> tuple[Array, Any]:
    """Run an operation of the stack, or its kernel."""
    # An operation without parameters has one gradient, and does not accept ``wanted``.
    options = {**piece.options, "wanted": wanted} if piece.names else piece.options
    run = implementation(piece.operation, kernels)
    return run.forward(x, *piece.arrays(w).values(), **options)
