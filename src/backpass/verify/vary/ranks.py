"""Say whether an inverse or a factorisation gets a matrix of another form.

For a matrix with more rows than columns, the derivative of a pseudoinverse or of a
least-squares solution has a different formula from one with more columns.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs

# Of numpy.linalg, scipy.linalg, and torch.linalg.
RANKED = frozenset(
    "pinv pinverse lstsq qr svd inv inverse solve cholesky lu_factor inv_ex".split()
)
MODULES = ("numpy.linalg", "scipy.linalg")


def of_another_rank(given: Case, inputs: Inputs) -> str:
    """Return why other inputs need not suit code without a declaration that inverts or
    factorises a matrix, or "". They need not if the longer of two axes of an input has
    become the shorter one.
    """
    if given.subject.shapes is not None:
        return ""
    named = zip(given.subject.input_names, given.inputs, inputs, strict=True)
    for name, before, after in named:
        if not (is_array(before) and is_array(after) and _turned(before, after)):
            continue
        if called := _ranked(given.subject.forward, given.given()):
            return (
                f"forward calls {called}, and the longer of two axes of {name} becomes "
                "the shorter one; if both forms are supported, declare SHAPES"
            )
    return ""


def _turned(before: Any, after: Any) -> bool:
    if before.ndim != after.ndim:
        return False
    pairs = [*zip(before.shape, after.shape, strict=True)]
    return any(
        (old - other_old) * (new - other_new) < 0
        for at, (old, new) in enumerate(pairs)
        for other_old, other_new in pairs[:at]
    )


def _ranked(function: Any, inputs: Inputs) -> str:
    """Return the name of the first function in RANKED that a function calls, or ""."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            name = frame.f_code.co_name
            own = frame.f_globals.get("__name__", "").startswith(MODULES)
        elif event == "c_call":
            name = getattr(argument, "__name__", "").removeprefix("linalg_")
            own = "torch" in str(getattr(argument, "__module__", "")) or bool(
                "Tensor" in type(getattr(argument, "__self__", None)).__name__
            )
        else:
            return
        if own and name in RANKED and name not in found:
            found.append(name)

    before: Any = sys.getprofile()
    sys.setprofile(profile)
    try:
        function(*inputs)
    except Exception:
        return ""
    finally:
        if hasattr(before, "enable"):  # cProfile's
            before.enable()
        else:
            sys.setprofile(before)
    return found[0] if found else ""
