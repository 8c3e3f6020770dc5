"""Read Hugging Face's ``config.json``, and reject what the models do not support."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral
from typing import Any

Json = Mapping[str, Any]
Accepted = Mapping[str, Collection[object]]


def check_type(json: object, types: Collection[str]) -> str:
    """Return the ``model_type``. Raises TypeError unless ``json`` is a mapping, and
    ValueError for a type that is not among ``types``."""
    if not isinstance(json, Mapping):
        raise TypeError(
            f"json: expected the mapping of a config.json; got {type(json).__name__}"
        )
    kind = json.get("model_type")
    if kind not in types:
        raise ValueError(
            f"model_type: expected {' or '.join(map(repr, types))}; got {kind!r}"
        )
    return str(kind)


def check_keys(json: Json, needed: Collection[str], accepted: Accepted) -> None:
    """Raise ValueError unless ``json`` has every key of ``needed`` and, for each key of
    ``accepted``, one of the values there. A missing key has the first of them.

    The message names all faults.
    """
    faults = [f"{key}: is missing" for key in needed if json.get(key) is None]
    for key, values in accepted.items():
        value = json.get(key, next(iter(values)))
        if not any(value == known for known in values):
            can = " or ".join(map(repr, values))
            faults.append(f"{key}: {value!r} is not available; only {can}")
    if faults:
        raise ValueError("\n    ".join(["the configuration does not fit:", *faults]))


def check_numbers(config: Any, *names: str) -> None:
    """Raise ValueError unless each of these fields is an integer of at least 1."""
    for name in names:
        value = getattr(config, name)
        integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not integer or value < 1:
            raise ValueError(f"{name}: expected an integer of at least 1; got {value}")
