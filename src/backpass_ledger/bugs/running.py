"""Give the twins of a bug to `check` and to ``torch.autograd.gradcheck``.

The page of bugs shows the tests' verdicts, which ``recorded`` reads from
``assets/records/bugs.json``.
"""

from __future__ import annotations

import inspect
import re
import warnings
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from backpass.recorded import findings
from backpass.verify import Report, check, checking
from backpass.verify.subject import subject
from backpass.verify.vary import rows
from backpass_ledger.bugs import Bug

LEVELS = ("usual", "varied", "telling")  # of check
GRADCHECK = ("usual", "telling")  # it has no inputs of its own to vary
LARGEST = 2_000  # elements of inputs: gradcheck fills matrices of its square
_UNFINISHED = re.compile(r"; not searched further after [^;]*")
_CHECK = inspect.signature(check).parameters


def levels(bug: Bug) -> tuple[str, ...]:
    """Return the levels of inputs at which `check` can be given a bug's twins."""
    return LEVELS if bug.telling else LEVELS[:-1]


def checked(bug: Bug, op: object, level: str, **keywords: object) -> Report:
    """Return what `check` reports of one twin at the inputs of ``level``."""
    inputs, known = _drawn(bug, level)
    with np.errstate(all="ignore"):
        return check(
            op,
            *inputs,
            vary=level == "varied",
            raises=False,
            **{"explain": False, **known, **keywords},  # type: ignore[arg-type]
        )


@cache
def seen(bug: Bug) -> str:
    """Return the first level at which `check` fails the wrong twin and passes the right
    one; "" if there is none."""
    return next((level for level in levels(bug) if _caught(bug, level)), "")


def accepted(bug: Bug, op: object, level: str) -> bool:
    """Whether ``torch.autograd.gradcheck``, with its default settings, accepts one twin
    at the inputs of ``level`` in float64.

    A twin that is written for arrays is wrapped into a ``torch.autograd.Function``. An
    exception is a rejection, as it would fail a test.
    """
    inputs, known = _drawn(bug, level)
    options = {name: value for name, value in known.items() if name not in _CHECK}
    options.update(known.get("options", {}))
    arrays = not any(isinstance(value, torch.Tensor) for value in inputs)
    tensors = [torch.as_tensor(value) for value in inputs]
    constants = known.get("constants", ())
    found = subject(op, len(inputs), {} if _is_function(op) else options, (), constants)
    for at in found.differentiable(inputs):
        tensors[at] = tensors[at].detach().double().requires_grad_()
    function = op.apply if _is_function(op) else _function(op, options, arrays).apply  # type: ignore[attr-defined]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.autograd.gradcheck(function, tensors)
    except Exception:
        return False


@cache
def verdicts(bug: Bug) -> dict[str, tuple[bool, bool]]:
    """Return whether gradcheck accepts the right and the wrong twin, by level; inputs
    of more than ``LARGEST`` elements are left out."""
    found = {}
    for level in GRADCHECK:
        if level in levels(bug) and elements(bug, level) <= LARGEST:
            right, wrong = bug.twins()
            found[level] = accepted(bug, right, level), accepted(bug, wrong, level)
    return found


def elements(bug: Bug, level: str) -> int:
    """Return the number of elements of a level's floating-point inputs."""
    arrays = map(torch.as_tensor, _drawn(bug, level)[0])
    return sum(x.numel() for x in arrays if x.is_floating_point())


def gradcheck(bug: Bug) -> str:
    """Return the first level at which gradcheck rejects the wrong twin and accepts the
    right one; "never" if there is none."""
    return _first_rejected(verdicts(bug))


@cache
def explained(bug: Bug) -> Report | None:
    """Return the report of `check` on the wrong twin at the first level that shows the
    mistake, with its diagnosis; None if no level does."""
    if not (level := seen(bug)):
        return None
    # A slow machine has to come as far as a fast one.
    with patch.object(checking, "SEARCH", 9.0), patch.object(rows, "SEARCH", 6.0):
        return checked(bug, bug.twins()[1], level, explain=True)


def diagnosis(bug: Bug) -> tuple[tuple[str, str], ...]:
    """Return, for each quantity that the first failing method rejects, the method with
    the quantity, and the reason."""
    found = explained(bug)
    if found is None:
        return ()
    rows = found.failed or found.having("could not run") or found.having("vacuous")
    first = [row for row in rows if row.method == rows[0].method]
    said = (_UNFINISHED.sub("", row.reason) for row in first)
    where = (f"{row.method}, {row.quantity}" for row in first)
    return tuple(zip(where, said, strict=True))


class Found(NamedTuple):
    """The verdicts of both tools on one bug."""

    seen: str
    verdicts: dict[str, tuple[bool, bool]]
    diagnosis: tuple[tuple[str, str], ...]
    named: bool  # whether the report contains the bug's ``says``


def run(bug: Bug) -> Found:
    """Give the twins to both tools."""
    named = bool(bug.says) and bug.says in str(explained(bug))
    return Found(seen(bug), verdicts(bug), diagnosis(bug), named)


def recorded(bug: Bug) -> Found:
    """Return the recorded verdicts. Raises LookupError for a bug without a record."""
    found = Found(*findings.load("bugs").entries[bug.name])
    judged = {level: (right, wrong) for level, (right, wrong) in found.verdicts.items()}
    diagnosed = tuple((where, what) for where, what in found.diagnosis)
    return found._replace(verdicts=judged, diagnosis=diagnosed)


def faults(bug: Bug, of: Found) -> list[str]:
    """Return what a bug's record says of `check` and gradcheck that they do not do."""
    said = {"seen": "" if bug.missed else bug.seen, "gradcheck": bug.gradcheck}
    found = {"seen": of.seen, "gradcheck": _first_rejected(of.verdicts)}
    wrong = [
        f"{bug.name}: {key}: the record says {said[key]!r}; found {found[key]!r}"
        for key in said
        if said[key] != found[key]
    ]
    if bug.says and not of.named:
        wrong.append(f"{bug.name}: says: the report does not contain {bug.says!r}")
    return wrong


def _first_rejected(judged: dict[str, tuple[bool, bool]]) -> str:
    found = judged.items()
    return next((level for level, both in found if both == (True, False)), "never")


def _caught(bug: Bug, level: str) -> bool:
    right, wrong = bug.twins()
    return not checked(bug, wrong, level).passed and checked(bug, right, level).passed


def _drawn(bug: Bug, level: str) -> tuple[tuple, dict[str, Any]]:
    """Return the inputs and check's keywords at a level, each time anew."""
    telling = level == "telling"
    make = bug.telling if telling else bug.inputs
    if make is None:
        raise ValueError(f"level: {bug.name} has no telling inputs")
    keywords = {**bug.keywords, **(bug.telling_keywords if telling else {})}
    return make(np.random.default_rng(0)), keywords


def _is_function(op: object) -> bool:
    return isinstance(op, type) and issubclass(op, torch.autograd.Function)


def _function(op: Any, options: dict, arrays: bool) -> type[torch.autograd.Function]:
    """Return a twin as autograd sees it: its arrays share memory with the tensors."""

    def inward(value):
        return value.detach().numpy() if arrays else value.detach()

    def outward(value):
        return value if value is None else torch.as_tensor(value)

    class Twin(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            y, ctx.saved = op.forward(*map(inward, tensors), **options)
            ctx.wanted = [
                at for at, t in enumerate(tensors) if ctx.needs_input_grad[at]
            ]
            return tuple(map(outward, y)) if isinstance(y, tuple) else outward(y)

        @staticmethod
        def backward(ctx, *dys):
            dy = tuple(map(inward, dys))
            found = op.backward(dy if len(dy) > 1 else dy[0], ctx.saved)
            gradients = [None] * len(ctx.needs_input_grad)
            found = found if isinstance(found, tuple | list) else (found,)
            for at, gradient in zip(ctx.wanted, found, strict=True):
                gradients[at] = outward(gradient)
            return tuple(gradients)

    return Twin
