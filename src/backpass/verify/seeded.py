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
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.random import mtrand  # NumPy's stubs export these functions only here

_SPARE: list[np.random.MT19937] = []  # generators that no call uses now
_KEPT = ContextVar("kept", default=False)


@contextlib.contextmanager
def numbers_kept() -> Iterator[None]:
    """Restore the state of NumPy's global generator afterwards.

    Within, ``the_same_numbers`` does not copy it, which would take most of the time of
    a short forward.
    """
    state, token = np.random.get_state(), _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)
        np.random.set_state(state)


@contextlib.contextmanager
def the_same_numbers() -> Iterator[None]:
    """Seed the global generators. Restore their state afterwards."""
    with contextlib.nullcontext() if _KEPT.get() else numbers_kept():
        own, of_python = mtrand.get_bit_generator(), random.getstate()
        spare = _SPARE.pop() if _SPARE else np.random.MT19937()
        torch = sys.modules.get("torch")
        of_torch = torch.random.default_generator.get_state() if torch else None
        mtrand.set_bit_generator(spare)
        np.random.seed(0)
        random.seed(0)
        if torch:
            torch.random.default_generator.manual_seed(0)
        try:
            yield
        finally:
            if torch:
                torch.random.default_generator.set_state(of_torch)
            random.setstate(of_python)
            mtrand.set_bit_generator(own)
            _SPARE.append(spare)


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
