"""Validate the arguments of ``check`` and ``draw``, except the object and its inputs.

An error is one line: which argument, what was expected, and what was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from numbers import Integral, Real
from typing import Any

import numpy as np

from backpass.contract.shapes import Shapes
from backpass.verify.convert import EPSILON


def chosen_methods(methods: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the names of the methods as a list.

    Raises TypeError unless the names are in a list, and ValueError for an unknown one.
    """
    names = _names("methods", methods)
    reject_unknown("methods", names or ["none"], known)
    return names


def check_seed(seed: object) -> None:
    """Raise TypeError or ValueError unless NumPy accepts the seed."""
    if not isinstance(seed, Integral):
        raise TypeError(f"seed: expected an integer; got {seed!r}")
    if seed < 0:
        raise ValueError(f"seed: expected 0 or more; got {seed}")


def check_tolerances(tolerances: object, known: Sequence[str]) -> None:
    """Raise TypeError or ValueError unless each tolerance has a method and a reason."""
    given = _mapping("tolerances", tolerances, "methods to pairs (number, reason)")
    reject_unknown("tolerances", given, known)
    for method, pair in given.items():
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], Real)
            and isinstance(pair[1], str)
        ):
            raise TypeError(
                f"tolerances: expected a pair (number, reason) for {method}; got {pair!r}"
            )


def check_operator(operator: object) -> None:
    """Raise TypeError unless ``operator`` is None or can be called."""
    if operator is not None and not callable(operator):
        raise TypeError(
            f"operator: expected a function on PyTorch's tensors; got {operator!r}"
        )


def check_options(options: object) -> Mapping[str, object]:
    """Return the options; for None, an empty mapping.

    Raises TypeError unless they are a mapping whose keys are strings.
    """
    return _mapping("options", options, "names to values", keys=str)


def required_options(parameters: Iterable[Parameter]) -> list[str]:
    """Return the names of the keyword-only parameters without a default."""
    return [
        p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]


def check_names(what: str, names: object, known: Sequence[str]) -> None:
    """Raise TypeError or ValueError for names that no input has."""
    reject_unknown(what, _names(what, names), known)


def check_conventions(conventions: object, known: Sequence[str]) -> Mapping[str, str]:
    """Return the conventions by input; for None, an empty mapping.

    Raises ValueError for a name that no input has, and TypeError for one without a
    reason.
    """
    given = _mapping("conventions", conventions, "inputs to reasons")
    reject_unknown("conventions", given, known)
    for name, reason in given.items():
        if not isinstance(reason, str) or not reason.strip():
            raise TypeError(
                f"conventions: expected the reason for {name} in words; got {reason!r}"
            )
    return given


def check_precision(precision: object) -> None:
    """Raise ValueError unless ``precision`` is None or names a floating-point dtype."""
    if precision is not None and (
        not isinstance(precision, str) or precision not in EPSILON
    ):
        raise ValueError(f"precision: expected {', '.join(EPSILON)}; got {precision!r}")


def check_drawn(
    shapes: Shapes,
    rng: object,
    lengths: Mapping[str, int],
    leading: Mapping[str, tuple[int, ...]],
    groups: Sequence[str],
    without: Sequence[str],
) -> None:
    """Raise TypeError or ValueError for arguments that ``draw`` cannot follow."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            "rng: expected a numpy.random.Generator, such as default_rng(0); "
            f"got {rng!r}"
        )
    reject_unknown("lengths", lengths, shapes.letters)
    reject_unknown("leading", leading, groups)
    for group, shape in leading.items():
        if not isinstance(shape, tuple):
            raise TypeError(
                f"leading: expected a shape such as (2, 3) for {group}; got {shape!r}"
            )
    optional = [spec.name for spec in shapes.inputs if spec.optional]
    reject_unknown("without", _names("without", without), optional)


def _mapping(
    what: str, given: object, of: str, keys: type = object
) -> Mapping[str, Any]:
    """Return the mapping, or an empty one for None. Anything else is rejected."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(key, keys) for key in given):
        return given
    raise TypeError(f"{what}: expected a dict from {of}; got {given!r}")


def _names(what: str, names: object) -> list[str]:
    """Return the names as a list. A single string is rejected."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{what}: expected a list of names; got {names!r}")
    return list(names)


def reject_unknown(
    what: str, names: Iterable[object], known: Sequence[str], kind: type = ValueError
) -> None:
    """Raise ``kind`` for names that are not among the known ones."""
    if unknown := [
        str(name) for name in names if not isinstance(name, str) or name not in known
    ]:
        raise kind(
            f"{what}: expected {'some of ' if known else ''}{', '.join(known) or 'none'}; "
            f"got {', '.join(unknown)}"
        )
