"""Checks of the mappings from names to gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backpass.arrays import Array, is_array, namespace

Gradients = Mapping[str, Array]


def check_gradients(gradients: object) -> None:
    """Raise TypeError unless ``gradients`` is a mapping to arrays of real
    floating-point numbers; the message names the first that is not."""
    if not isinstance(gradients, Mapping):
        raise TypeError(
            "gradients: expected a mapping from names to arrays; "
            f"got {type(gradients).__name__}"
        )
    for name, gradient in gradients.items():
        if not is_array(gradient):
            raise TypeError(
                f"gradients: {name}: expected an array; got {type(gradient).__name__}"
            )
        if not namespace(gradient).isdtype(gradient.dtype, "real floating"):
            raise TypeError(
                f"gradients: {name}: expected real floating-point numbers; "
                f"got dtype {gradient.dtype}"
            )
        check_detached(f"gradients: {name}", gradient)


def check_detached(name: str, x: Array) -> None:
    """Raise TypeError for a tensor whose uses autograd records."""
    if getattr(x, "requires_grad", False):
        raise TypeError(f"{name}: requires a gradient of autograd; pass it detached")


def name_faults(what: str, names: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Return one fault for each name of ``what`` that is missing or superfluous."""
    names, expected = list(names), list(expected)
    missing = [f"{what}: {name}: is missing" for name in expected if name not in names]
    extra = [
        f"{what}: {name}: is not expected" for name in names if name not in expected
    ]
    return missing + extra
