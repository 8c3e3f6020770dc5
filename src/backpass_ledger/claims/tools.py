"""What the checks share: random arrays, independent derivatives, comparisons, and the
judgement of a displayed derivation."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np


class _Torch:
    """PyTorch, imported at first use, so that looking up a claim does not wait for the
    import."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("torch"), name)


torch: Any = _Torch()


def numbers(
    *shape: int, seed: int = 0, low: float | None = None, high: float = 1.0
) -> Any:
    """Return random float64 numbers of the given shape: normal ones, or with ``low``,
    uniform ones between ``low`` and ``high``."""
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape) if low is None else rng.uniform(low, high, shape)


def same(a: Any, b: Any, tolerance: float = 1e-9) -> bool:
    """Whether two arrays have the same shape and agree to ``tolerance``, relative to
    their largest element."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    scale = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0))
    return bool(np.abs(a - b).max(initial=0) <= tolerance * scale)


def vjp(function: Callable[..., Any], arrays: Any, dy: Any) -> Any:
    """Return the gradients of ``(function(*arrays) * dy).sum()`` with respect to each
    array, as PyTorch's autograd computes them in float64; a bare array unless
    ``arrays`` is a tuple or a list. ``function`` takes and returns torch tensors."""
    many = isinstance(arrays, tuple | list)
    given = [
        torch.tensor(np.asarray(a, np.float64), requires_grad=True)
        for a in (arrays if many else [arrays])
    ]
    found = torch.autograd.grad(
        function(*given), given, torch.tensor(np.asarray(dy, np.float64))
    )
    return [g.numpy() for g in found] if many else found[0].numpy()


def jacobian(function: Callable[[Any], Any], x: Any) -> Any:
    """Return ∂y_i/∂x_j of a function of torch tensors, by autograd in float64, with
    the axes of y before those of x."""
    return torch.autograd.functional.jacobian(
        function, torch.tensor(np.asarray(x, np.float64))
    ).numpy()


def raises(
    error: type[BaseException] | tuple[type[BaseException], ...],
    function: Callable[[], Any],
) -> bool:
    """Whether a call raises ``error``."""
    try:
        function()
    except error:
        return True
    return False


def run(code: str, **names: Any) -> dict[str, Any]:
    """Execute code as a text prints it, with the given names; return all names."""
    exec(code, names)
    return names


def derives(display: str, definitions: str = "") -> bool:
    r"""Whether ``backpass derive`` finds each line of a display equal to the line
    before it.

    ``display`` is what a text prints between ``\[`` and ``\]``. ``definitions``
    declares its names, in the syntax of the command's comments. Raises ValueError if a
    line cannot be read, or if all lines are definitions.
    """
    from backpass.derivation.document import read_document
    from backpass.derivation.judge import judge

    document = read_document(f"$${display}$$", "markdown", definitions)
    kinds = set()
    for verdict in judge(document, definitions):
        if verdict.kind == "not readable":
            raise ValueError(f"not readable: {verdict.latex}: {verdict.message}")
        if verdict.kind == "nothing claimed":
            raise ValueError(f"it claims nothing: {verdict.latex}")
        kinds.add(verdict.kind)
    if kinds <= {"definition"}:
        raise ValueError(
            f"expected an equation to judge; got only definitions: {display}"
        )
    return kinds <= {"definition", "equal"}
