"""Compile each operation by itself, so that its lines run as fused loops on a CPU.

    from backpass.torch_door.compiled import compiled_operations

    with compiled_operations():
        loss = model(tokens)
        loss.backward()

Each line of an operation reads and writes memory. Inductor, PyTorch's compiler, fuses
the lines, as it does in a compiled model. Here the rest of the model runs as it is. The
forward and the backward of an operation are each compiled once for a dtype, a shape,
and a set of options, without the tracing and the guards of ``torch.compile``: the key
of a cache is all that they depend on. A first call takes seconds, or less if PyTorch
finds the code on disk.

An operation with more than ``MOST`` shapes or sets of options in one dtype runs all
further ones uncompiled. So do operations that a compiler sees as one operator, such as
dropout, everything on another device, and calls that a mode observes.

As in a compiled model, a token or a target outside the vocabulary raises RuntimeError,
and rounding errors may differ.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from backpass import torch_internals as internals
from backpass.contract.arrays import traced
from backpass.torch_door import operators
from backpass.torch_door.saved import (
    filled,
    unaliased,
    without_aliases,
    without_tensors,
)

__all__ = ["MOST", "compiled_operations", "without_compiler"]
Tensor = torch.Tensor

MOST = 16  # shapes or options of an operation in one dtype that are compiled

BLOCK = 64  # rows that a sum over rows adds at a time
_PRODUCTS = torch.ops.aten.mm.default, torch.ops.aten.bmm.default

_CHOSEN = ContextVar("compiled_operations", default=False)
# By operation and dtypes, then by all else that a compiled function depends on.
_kept: dict[tuple[Any, ...], dict[tuple[Any, ...], Fused]] = {}


@contextmanager
def compiled_operations() -> Iterator[None]:
    """Return a context in which each function of ``backpass.functional`` runs compiled,
    with its backward. It is also a decorator.

    A backward that recomputes a forward, as a checkpoint's does, belongs inside, too.
    Without a C++ compiler it warns, and the functions run as they do outside.
    """
    if (reason := without_compiler()) is not None:
        warnings.warn(f"{reason}. The operations run uncompiled", stacklevel=3)
    token = _CHOSEN.set(reason is None)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def without_compiler() -> str | None:
    """Return why nothing can be compiled here, or None."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    if shutil.which(name := os.environ.get("CXX", usual)) is None:
        return (
            f"torch.compile needs a C++ compiler on a CPU, and there is no {name}: "
            "install one, or name it in the environment variable CXX"
        )
    return None


def is_chosen() -> bool:
    """Whether a call runs within ``compiled_operations``."""
    return _CHOSEN.get()


class Fused:
    """The forward of such a call as one compiled function, and its backward, compiled
    when it first runs.

    Between them is what the operation saves. If that includes a large array of its own,
    such as the rows that a norm has normalised, and the forward multiplies no matrices,
    the inputs are saved instead. The backward then computes the array again, in
    registers, which takes less time than to write and to read it.
    """

    def __init__(
        self, operator: Any, inputs: Sequence[Tensor | None], options: list
    ) -> None:
        self.operator, self.options = operator, options
        self.given = [x is not None for x in inputs]
        self.backwards: dict[tuple[Any, ...], Any] = {}
        tensors = [x for x in inputs if x is not None]
        self.recomputes = False
        graph = self._graph(self._forward, tensors)
        y, *own = graph.graph.output_node().args[0]
        largest = max(x.numel() for x in tensors)
        products = any(node.target in _PRODUCTS for node in graph.graph.nodes)
        if not products and any(x.meta["val"].numel() >= largest for x in own):
            self.recomputes = True
            graph.graph.output_node().args = ([y],)
            graph.graph.eliminate_dead_code()
        self.code = self._generated(graph, tensors)

    def _graph(self, function: Any, tensors: Sequence[Tensor]) -> Any:
        device = tensors[0].device.type
        with traced():
            graph = operators.without_autocast(
                device, internals.graph_of, function, tensors
            )
        internals.sum_in_blocks(graph, BLOCK)
        return graph

    def _generated(self, graph: Any, tensors: Sequence[Tensor]) -> Any:
        device = tensors[0].device.type
        return operators.without_autocast(device, internals.generated, graph, tensors)

    def _inputs(self, tensors: Sequence[Tensor]) -> list[Tensor | None]:
        left = iter(tensors)
        return [next(left) if given else None for given in self.given]

    def _run(self, inputs: Sequence[Tensor | None]) -> Any:
        return self.operator.run(self.operator.op, inputs, self.options)

    def _forward(self, *tensors: Tensor) -> list[Tensor]:
        inputs = (*self._inputs(tensors),)
        y, saved = self._run(inputs)
        y, own, sources = without_aliases(inputs, y, saved)
        self.saved = without_tensors(self.operator.op, saved)
        self.sources = sources.shape[1:]
        return [y, *own]

    def _backward(self, wanted: list[bool]) -> Any:
        def gradients(dy: Tensor, *arrays: Tensor) -> list[Tensor]:
            saved = self.saved_by(arrays)
            found: list[Tensor] = []
            for g in self.operator.differentiated(self.operator.op, dy, saved, wanted):
                found.append(unaliased(g, (dy, *arrays, *found)))
            return found

        return gradients

    def forward(self, inputs: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
        """Return y, and the arrays that the backward needs."""
        tensors = [x for x in inputs if x is not None]
        y, *own = self.code(*tensors)
        if self.recomputes:
            return y, tensors
        pool = (*inputs, y, *own)
        return y, [pool[at] for at in self.sources]

    def saved_by(self, arrays: Sequence[Tensor]) -> Any:
        """Return what the operation saves, from the arrays that forward returned."""
        if self.recomputes:
            return self._run(self._inputs(arrays))[1]
        return filled(self.saved, {Tensor: iter(arrays)})

    def backward(self, dy: Tensor, arrays: Sequence[Tensor], wanted: list[bool]) -> Any:
        """Return the gradients that are wanted."""
        key = (dy.stride(), *wanted)
        if (code := self.backwards.get(key)) is None:
            graph = self._graph(self._backward(wanted), [dy, *arrays])
            graph.graph.eliminate_dead_code()
            code = self.backwards[key] = self._generated(graph, [dy, *arrays])
        return code(dy, *arrays)


def fused(
    operator: Any, values: dict[str, Any], wanted: Sequence[bool]
) -> Fused | None:
    """Return the compiled functions for such a call of an operator of ``operators``;
    None if it is not compiled. ``values`` are all arguments in order, by name."""
    inputs = [*values.values()][: operator.count]
    options = [*values.items()][operator.count :]
    dtypes = [None if x is None else x.dtype for x in inputs]
    kept = _kept.setdefault((operator.stem, *dtypes), {})
    settings = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    shapes = [None if x is None else (x.shape, x.stride()) for x in inputs]
    key = (*shapes, *options, *wanted, *settings)
    if (found := kept.get(key)) is not None:
        return found
    on_cpu = all(x is None or x.device.type == "cpu" for x in inputs)
    if not (on_cpu and operator.shows_lines(inputs, options)):
        return None
    if len(kept) == MOST:
        warnings.warn(
            f"backpass.functional.{operator.stem}: {MOST} shapes or sets of options "
            f"were compiled for {dtypes[0]}. All further ones run uncompiled",
            stacklevel=3,
        )
        return None
    chosen = [("wanted", wanted)] if operators.takes_wanted(operator.op) else []
    return kept.setdefault(key, Fused(operator, inputs, [*options, *chosen]))
