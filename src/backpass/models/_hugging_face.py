"""Read Hugging Face's ``config.json``, and reject what the models do not support."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from backpass.contract.values import check_bool, check_eps
from backpass.models._parameters import check_faults

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


def check_keys(
    json: Json,
    needed: Collection[str],
    accepted: Accepted,
    *,
    optional: Collection[str] = (),
    positive: Collection[str] = (),
) -> None:
    """Raise ValueError unless ``json`` has a size for every key of ``needed``, a size
    or nothing for every key of ``optional``, a number above 0 or nothing for every key
    of ``positive`` and, for each key of ``accepted``, one of the values there. A
    missing key has the first of them.

    The message names all faults.
    """
    faults = []
    for key in (*needed, *optional):
        if json.get(key) is None:
            faults += [f"{key}: is missing"] if key in needed else []
        elif not _is_size(json[key]):
            faults.append(_SIZE.format(key, json[key]))
    for key in positive:
        value = json.get(key)
        if value is not None and not (_is_number(value, Real) and value > 0):
            faults.append(f"{key}: expected a number above 0; got {value!r}")
    for key, values in accepted.items():
        value = json.get(key, next(iter(values)))
        if not any(value == known for known in values):
            can = " or ".join(map(repr, values))
            faults.append(f"{key}: {value!r} is not available; only {can}")
    check_faults("the configuration does not fit", faults)


def fields_under(keys: Mapping[str, str], config: Any) -> dict[str, Any]:
    """Return a configuration's fields under Hugging Face's ``keys`` of them."""
    return {key: getattr(config, name) for key, name in keys.items()}


def check_fields(config: Any) -> None:
    """Raise ValueError unless each integer among a configuration's fields is at least
    1; TypeError or ValueError unless ``eps`` is a finite number of at least 0, and each
    flag a bool."""
    for name, value in _fields(config, "int").items():
        if not _is_size(value):
            raise ValueError(_SIZE.format(name, value))
    check_eps(config.eps)
    check_bool(**_fields(config, "bool"))


def _fields(config: Any, kind: str) -> dict[str, Any]:
    """Return the fields whose annotation is ``kind``."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.type == kind}


def check_divides(config: Any, name: str, of: str) -> None:
    """Raise ValueError unless one field divides the other."""
    value, whole = getattr(config, name), getattr(config, of)
    if whole % value:
        raise ValueError(f"{name}: expected a divisor of {of} = {whole}; got {value}")


_SIZE = "{}: expected an integer of at least 1; got {!r}"


def _is_size(value: object) -> bool:
    return _is_number(value, Integral) and value >= 1  # type: ignore[operator]


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
