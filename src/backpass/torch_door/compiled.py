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

import functools
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
from backpass.torch_door import causal, lines, operators, split
from backpass.torch_door.saved import filled, tensors_in, unaliased, without_tensors

__all__ = ["MOST", "compiled_operations", "without_compiler"]
Tensor = torch.Tensor

MOST = 16  # shapes or options of an operation in one dtype that are compiled

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
    name = os.environ.get("CXX", usual)
    if _is_found(name, os.environ.get("PATH")):
        return None
    return (
        f"torch.compile needs a C++ compiler on a CPU, and {name} is not found: "
        "install one, or name it in the environment variable CXX"
    )


@functools.cache
def _is_found(program: str, path: str | None) -> bool:
    """Whether a program is on the path. The search reads folders, so the answer is
    cached."""
    return shutil.which(program, path=path) is not None


def is_chosen() -> bool:
    """Whether a call runs within ``compiled_operations``."""
    return _CHOSEN.get()


class Fused:
    """The forward of such a call as one compiled function, and its backward, compiled
    when it first runs. Between them are the arrays that the module ``split`` chooses.
    """

    def __init__(
        self,
        operator: Any,
        inputs: Sequence[Tensor | None],
        options: list,
        wanted: Sequence[bool],
    ) -> None:
        self.operator, self.options, self.wanted = operator, options, list(wanted)
        self.module = causal.instead(operator.op, inputs, dict(options))
        self.given = [x is not None for x in inputs]
        self.backwards: dict[tuple[int, ...], Any] = {}
        tensors = [x for x in inputs if x is not None]
        joint = self._graph(tensors)
        self.parts = split.split(joint, sum(self.wanted))
        self.code = self._generated(self.parts.forward, tensors)

    def _graph(self, tensors: Sequence[Tensor]) -> Any:
        dy = internals.outlined(lambda *xs: self._run(xs)[0], tensors)
        return internals.graph_of(self._joint, [*tensors, dy])

    def _generated(self, graph: Any, tensors: Sequence[Tensor]) -> Any:
        device = tensors[0].device.type
        return operators.without_autocast(device, internals.generated, graph, tensors)

    def _run(self, tensors: Sequence[Tensor]) -> Any:
        left = iter(tensors)
        inputs = [next(left) if given else None for given in self.given]
        with lines.seen_by_a_compiler():
            return self.operator.run(self.module, inputs, self.options)

    def _joint(self, *tensors: Tensor) -> list[Tensor]:
        """Return y, the gradients, and the arrays that the operation saves."""
        *inputs, dy = tensors
        y, saved = self._run(inputs)
        self.saved = without_tensors(self.module, saved)
        y, arrays = unaliased(y, inputs), tensors_in(saved)
        found: list[Tensor] = []
        if any(self.wanted):
            with lines.seen_by_a_compiler():
                gradients = self.operator.differentiated(
                    self.module, dy, saved, self.wanted
                )
            for g in gradients:
                found.append(unaliased(g, (*tensors, y, *arrays, *found)))
        return [y, *found, *(arrays if found else ())]

    def forward(self, inputs: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
        """Return y, and the arrays that the backward needs."""
        tensors = [x for x in inputs if x is not None]
        y, *own = self.code(*tensors)
        pool = (*tensors, y, *own)
        return y, [pool[at] for at in self.parts.sources]

    def saved_by(self, arrays: Sequence[Tensor]) -> Any:
        """Return what the operation saves, from the arrays that forward returned."""
        with torch.no_grad():
            return filled(self.saved, {Tensor: iter(self.parts.rest(*arrays))})

    def backward(self, dy: Tensor, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients that the call wanted."""
        if (code := self.backwards.get(dy.stride())) is None:
            code = self.backwards[dy.stride()] = self._backward([dy, *arrays])
        return code(dy, *arrays)[: sum(self.wanted)]

    def _backward(self, tensors: list[Tensor]) -> Any:
        if not split.scatters(self.parts.backward):
            return self._generated(self.parts.backward, tensors)

        # Inductor's loop would add one element at a time, where PyTorch's adds rows.
        def gradients(dy: Tensor, *arrays: Tensor) -> list[Tensor]:
            saved = self.saved_by(arrays)
            return self.operator.differentiated(self.module, dy, saved, self.wanted)

        return gradients


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
    return kept.setdefault(key, Fused(operator, inputs, [*options, *chosen], wanted))
