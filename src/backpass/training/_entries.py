"""Checks that parameters, their gradients, and an optimiser's state fit each other."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from backpass.contract.arrays import Array, widened, zeros
from backpass.contract.shapes import Kind, kind
from backpass.models._parameters import check_faults, words
from backpass.training._mappings import (
    Gradients,
    check_arrays,
    check_gradients,
    name_faults,
)


def check_parameters(parameters: object) -> None:
    """Raise TypeError unless ``parameters`` is a mapping to arrays of float32 or
    float64 that autograd does not record."""
    check_arrays(
        "parameters",
        parameters,
        "float32 or float64, of which rounded gives the model a shorter copy",
        lambda xp, dtype: dtype in (xp.float32, xp.float64),
    )


def zeros_for(parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Return a mean before the first step: zeros for each parameter ``[*]``."""
    return {name: zeros(tuple(w.shape), w) for name, w in parameters.items()}


def check_entries(
    parameters: Mapping[str, Array],
    gradients: Gradients,
    state: Mapping[str, Any],
    *means: str,
) -> None:
    """Raise TypeError or ValueError unless the mappings fit each other.

    ``state`` has the number of steps under "step", and under each name of ``means`` one
    array for each trained parameter, of the parameter's shape and dtype.
    """
    check_parameters(parameters)
    if not isinstance(parameters, MutableMapping):
        raise TypeError(
            "parameters: expected a mapping whose entries can be replaced, such as a "
            f"dict; got {type(parameters).__name__}"
        )
    check_gradients(gradients)
    if missing := {"step", *means} - {*state}:
        raise ValueError(
            f"state: expected what start returned; {', '.join(sorted(missing))} missing"
        )
    if extra := {*state} - {"step", *means}:
        raise ValueError(
            "state: expected what start returned; another optimiser's has "
            f"{', '.join(sorted(map(str, extra)))}"
        )
    trained, *others = (state[mean] for mean in means)
    faults = [
        f"parameters: {name}: is missing" for name in trained if name not in parameters
    ]
    faults += name_faults("gradients", gradients, trained)
    for mean, arrays in zip(means[1:], others, strict=True):
        faults += name_faults(f"state: {mean}", arrays, trained)
    entries = {f"state: {mean}": state[mean] for mean in means}
    entries = {"gradients": gradients, **entries}
    for name in (name for name in trained if name in parameters):
        expected = _facts(parameters[name])
        for what, mapping in entries.items():
            if name not in mapping:
                continue
            x = mapping[name]
            came = _facts(widened(x) if what == "gradients" else x)
            if came != expected:
                faults.append(
                    f"{what}: {name}: expected {_words(*expected)}; got {_words(*came)}"
                )
    check_faults("update: the entries do not fit", faults)


def _facts(x: Array) -> tuple[tuple[int, ...], Kind]:
    return tuple(x.shape), kind(x)


def _words(shape: tuple[int, ...], of: Kind) -> str:
    return f"shape {list(shape)} of {words(of)}"
