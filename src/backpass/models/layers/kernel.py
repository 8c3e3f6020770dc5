"""Let a kernel, or a scheme of several ranks, take the place of an operation in a
layer, or let the operation run again in the backward.

A layer's ``forward`` asks ``implementation`` for each operation, or block, that may
have another one. Its ``backward`` calls ``gradients_of``, which sees from the saved
value what ran, and whether it saved its inputs only. So only forwards take ``kernels``.

A norm's kernel also computes the sum of the residual connection that the norm reads:
``forward_of_sum`` and ``gradients_of_sum`` run both in one kernel if there is one.
So does ``forward_rotated`` for RMS norm and the RoPE after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract import wanted as of_operations
from backpass.contract.arrays import Array
from backpass.contract.shapes import kind, parse
from backpass.contract.wanted import Wanted
from backpass.models.layers import recomputed
from backpass.ops import residual


class Instead(NamedTuple):
    """A kernel or a scheme of several ranks that ran in place of an operation, the
    arrays that it saved, and the gradients that are wanted."""

    ran: Any  # a Kernel, or a scheme of backpass.parallel
    own: Any
    wanted: tuple[str, ...]


class Kernel:
    """A kernel with the forward and the backward of its operation: both accept
    ``wanted``. A kernel saves what all gradients need, and computes all of them if any
    is wanted."""

    def __init__(self, operation: ModuleType, kernels: Any) -> None:
        self.operation, self.kernels = operation, kernels
        self.kernel: ModuleType = kernels.load(_stem(operation))

    def forward(
        self, *inputs: Array | None, wanted: Wanted = None, **options: Any
    ) -> tuple[Array, Instead]:
        """Return what the operation returns. Raises TypeError for arrays on which
        kernels do not run, and what the kernel raises."""
        self._check_runs_on(inputs[0])
        y, own = self.kernel.forward(*inputs, **options)
        return y, self._instead(own, wanted)

    def forward_of_sum(
        self,
        x: Array,
        f: Array,
        *parameters: Array | None,
        wanted: Wanted = None,
        **options: Any,
    ) -> tuple[Array, Array, Instead]:
        """Return y, the sum of x and f of which a norm's kernel makes it, and what the
        kernel saved."""
        self._check_runs_on(x)
        y, s, own = self.kernel.forward_of_sum(x, f, *parameters, **options)
        return y, s, self._instead(own, wanted)

    def forward_rotated(
        self,
        x: Array,
        *parameters: Array,
        wanted: Wanted = None,
        **options: Any,
    ) -> tuple[Array, Instead]:
        """Return the rotated y of RMS norm, and what its kernel saved."""
        self._check_runs_on(x)
        y, own = self.kernel.forward_rotated(x, *parameters, **options)
        return y, self._instead(own, wanted)

    def _instead(self, own: Any, wanted: Wanted) -> Instead:
        names = differentiable(self.operation)
        chosen = names if wanted is None else tuple(n for n in names if n in wanted)
        return Instead(self, own, chosen)

    def backward(
        self, dy: Array | None, own: Any, *, wanted: tuple[str, ...]
    ) -> tuple[Array | None, ...]:
        """Return the gradients. One that is not wanted is None."""
        found = self.kernel.backward(dy, own)
        return self._wanted(found if isinstance(found, tuple) else (found,), wanted)

    def backward_of_sum(
        self, dy: Array, ds: Array, own: Any, *, wanted: tuple[str, ...]
    ) -> tuple[Array | None, ...]:
        """Return the gradients of a norm. That of its rows includes ``ds``, which the
        rows have from their other uses."""
        return self._wanted(self.kernel.backward_of_sum(dy, ds, own), wanted)

    def _wanted(
        self, found: tuple[Any, ...], wanted: tuple[str, ...]
    ) -> tuple[Array | None, ...]:
        pairs = zip(differentiable(self.operation), found, strict=True)
        return tuple(d if name in wanted else None for name, d in pairs)

    def _check_runs_on(self, x: Any) -> None:
        # The device of a torch tensor has a type; that of a NumPy array is a string.
        where = getattr(getattr(x, "device", None), "type", None)
        if where == "cuda" or (where == "cpu" and self.kernels.on_cpu()):
            return
        library, device, _ = kind(x)
        raise TypeError(
            f"kernels: expected tensors on a CUDA device ({self.kernels.ON_CPU}); got "
            f"{library} arrays on {device}"
        )


def implementation(operation: ModuleType, kernels: Any) -> Any:
    """Return the operation, or its kernel if ``kernels``, which is ``backpass.kernels``
    or None, has one. If ``kernels`` is a ``Recomputing`` that names the operation, the
    result saves its inputs only. If it has a method ``scheme_of``, as the ranks of
    ``backpass.parallel`` do, that chooses. Raises TypeError for anything else, and
    ImportError if kernels cannot be loaded."""
    if isinstance(kernels, recomputed.Recomputing):
        found = implementation(operation, kernels.kernels)
        again = _stem(operation) in kernels.operations
        return recomputed.Recomputed(found) if again else found
    if kernels is None:
        return operation
    if hasattr(kernels, "scheme_of"):
        return kernels.scheme_of(operation)
    if getattr(kernels, "__name__", None) != "backpass.kernels":
        raise TypeError(
            "kernels: expected the package backpass.kernels, or None for the "
            f"operations; got {kernels!r}"
        )
    has_one = _stem(operation) in kernels.STEMS
    return Kernel(operation, kernels) if has_one else operation


def scheme_for(operation: ModuleType, kernels: Any) -> Any:
    """Return the scheme of several ranks that ``kernels`` has for an operation, or the
    operation. Its kernels are not used, nor does it run again."""
    if isinstance(kernels, recomputed.Recomputing):
        kernels = kernels.kernels
    if hasattr(kernels, "scheme_of"):
        return kernels.scheme_of(operation)
    return operation


def shapes_for(kernels: Any, shapes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the shapes of a model's parameters that its forward expects with these
    ``kernels``: ``shapes``, or those of a rank's shares."""
    return kernels.shapes(shapes) if hasattr(kernels, "scheme_of") else shapes


def gradients_of(
    part: Any, dy: Array | None, saved: Any, wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return what the backward of a layer's part returns, or of what ran in its place.
    A gradient that is not wanted is None."""
    saved = saved.again() if isinstance(saved, recomputed.Saved) else saved
    if isinstance(saved, Instead) and wanted:
        return saved.ran.backward(dy, saved.own, wanted=wanted)
    return of_operations.gradients_of(part, dy, saved, wanted)


def forward_of_sum(
    norm: Any, x: Array, f: Array | None, *parameters: Array | None, **options: Any
) -> tuple[Array, Array, Any]:
    """Return the y of a norm that reads the sum of ``x[*, n]`` and ``f[*, n]``, the sum
    ``s[*, n]``, and what the norm saved. Nothing is added if ``f`` is None."""
    if f is None:
        y, saved = norm.forward(x, *parameters, **options)
        return y, x, saved
    if isinstance(norm, Kernel):
        return norm.forward_of_sum(x, f, *parameters, **options)
    s, _ = residual.forward(x, f)
    y, saved = norm.forward(s, *parameters, **options)
    return y, s, saved


def forward_rotated(
    norm: Any, rope: Any, x: Array, w: Array, cos: Array, sin: Array, **options: Any
) -> tuple[Array, Any, Any]:
    """Return the y of an RMS norm of ``x[*, s, 2k]`` that RoPE has rotated, and what
    both saved. One kernel saves for both, and RoPE's is then None."""
    if isinstance(norm, Kernel):
        y, saved = norm.forward_rotated(x, w, cos, sin, **options)
        return y, saved, None
    y, saved = norm.forward(x, w, **options)
    y, rotation = rope.forward(y, cos, sin)
    return y, saved, rotation


def gradients_of_sum(
    norm: Any, dy: Array | None, ds: Array, saved: Any, wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return what ``gradients_of`` returns for a norm whose rows have the gradient
    ``ds`` from their other uses. The first is then the sum of both."""
    saved = saved.again() if isinstance(saved, recomputed.Saved) else saved
    by_kernel = isinstance(saved, Instead) and isinstance(saved.ran, Kernel)
    if by_kernel and "x" in wanted:
        return saved.ran.backward_of_sum(dy, ds, saved.own, wanted=wanted)
    dx, *others = gradients_of(norm, dy, saved, wanted)
    return None if dx is None else ds + dx, *others


def gradient_of(part: Any, dy: Array, saved: Any) -> Array:
    """Return the same for an operation with one gradient, which does not take
    ``wanted``."""
    if isinstance(saved, Instead):
        return saved.ran.backward(dy, saved.own, wanted=saved.wanted)[0]
    return part.backward(dy, saved)


def unwrapped(part: Any, saved: Any) -> tuple[Any, Any]:
    """Return what ran in place of a part, the part itself or a scheme of several
    ranks, and what that saved."""
    if isinstance(saved, Instead):
        return saved.ran, saved.own
    return part, saved


def _stem(operation: ModuleType) -> str:
    return operation.__name__.rpartition(".")[2]


@cache
def differentiable(operation: ModuleType) -> tuple[str, ...]:
    """Return the inputs of an operation that have a gradient."""
    constants = getattr(operation, "CONSTANTS", ())
    specs = parse(operation.SHAPES).inputs
    return tuple(s.name for s in specs if s.floating and s.name not in constants)
