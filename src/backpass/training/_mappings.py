"""Checks of the mappings from names to parameters and to gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backpass.contract.arrays import Array, is_array, namespace
from backpass.models._parameters import check_mapping

Gradients = Mapping[str, Array]


def copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies that share no memory with the originals."""
    return {name: namespace(x).asarray(x, copy=True) for name, x in arrays.items()}


def check_gradients(gradients: object) -> None:
    """Raise TypeError unless ``gradients`` is a mapping to arrays of real
    floating-point numbers; the message names the first that is not."""
    check_arrays(
        "gradients",
        gradients,
        "real floating-point numbers",
        lambda xp, dtype: xp.isdtype(dtype, "real floating"),
    )


def check_arrays(
    what: str, arrays: Any, expected: str, fits: Callable[[Any, Any], bool]
) -> None:
    """Raise TypeError unless ``arrays`` is a mapping to arrays that autograd does not
    record, of ``expected`` dtypes: those for which ``fits(namespace, dtype)``. The
    message begins with ``what`` and names the first array that is not."""
    check_mapping(what, arrays)
    for name, x in arrays.items():
        if not is_array(x):
            raise TypeError(
                f"{what}: {name}: expected an array; got {type(x).__name__}"
            )
        if not fits(namespace(x), x.dtype):
            raise TypeError(f"{what}: {name}: expected {expected}; got dtype {x.dtype}")
        if getattr(x, "requires_grad", False):
            raise TypeError(
                f"{what}: {name}: requires a gradient of autograd; pass it detached"
            )


def name_faults(what: str, names: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Return one fault for each name of ``what`` that is missing or superfluous."""
    names, expected = list(names), list(expected)
    missing = [f"{what}: {name}: is missing" for name in expected if name not in names]
    extra = [
        f"{what}: {name}: is not expected" for name in names if name not in expected
    ]
    return missing + extra
