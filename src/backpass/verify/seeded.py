"""Let a forward with random numbers, as in dropout, draw the same ones each time.

The numbers come from the global generators of Python, of NumPy, and of PyTorch on the
CPU, or from generators that the function, or the object whose method it is, holds by
name.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def the_same_numbers() -> Iterator[None]:
    """Seed the global generators. Restore their state afterwards."""
    state, of_python = np.random.get_state(), random.getstate()
    np.random.seed(0)
    random.seed(0)
    torch = sys.modules.get("torch")
    try:
        with torch.random.fork_rng(devices=[]) if torch else contextlib.nullcontext():
            if torch:
                torch.random.default_generator.manual_seed(0)
            yield
    finally:
        np.random.set_state(state)
        random.setstate(of_python)


def seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws the same numbers in each call, if its first call
    draws any."""
    own = _generators(function)
    states = [generator.bit_generator.state for generator in own]
    draws: list[bool] = []  # one element, as soon as it is known

    def called(*values: Any, **options: Any) -> Any:
        if draws and not draws[0]:
            return function(*values, **options)
        for generator, state in zip(own, states, strict=True):
            generator.bit_generator.state = state
        with the_same_numbers():
            before = b"" if draws else _state(own)
            result = function(*values, **options)
            if not draws:
                draws.append(_state(own) != before)
            return result

    return called


def _generators(function: Callable[..., Any]) -> list[np.random.Generator]:
    held = dict(getattr(getattr(function, "__self__", None), "__dict__", {}))
    with contextlib.suppress(TypeError):  # a builtin
        known = inspect.getclosurevars(function)
        held |= {**known.globals, **known.nonlocals}
    return [of for of in held.values() if isinstance(of, np.random.Generator)]


def _state(generators: list[np.random.Generator]) -> bytes:
    torch = sys.modules.get("torch")
    of_torch = torch.random.get_rng_state().numpy() if torch else None
    own = [generator.bit_generator.state for generator in generators]
    return pickle.dumps((np.random.get_state(), random.getstate(), of_torch, own))
