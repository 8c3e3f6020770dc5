"""AdamW: steps of about the same size for every element, and decay apart from them.

From Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2019), computed as
``torch.optim.AdamW`` does. For each element two running means are kept, of the gradient
and of its square. A step is the first over the root of the second, both freed of their
bias towards their start at 0, times the learning rate. Decay shrinks the parameter by
itself, so that it is not divided by that root.

The parameters are float32 or float64. To train a model in half precision, keep the
parameters in float32, pass ``rounded(parameters, dtype)`` to the model, and its
gradients to ``update``. In half precision itself small steps would be lost: a bfloat16
parameter does not change by a step of less than 1/512 of its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, TypedDict

from array_api_compat import is_numpy_array, is_torch_array

from backpass.contract.arrays import Array, as_type_of, namespace, size, widened
from backpass.contract.values import check_bool
from backpass.training._blocks import BLOCK
from backpass.training._entries import check_entries, check_parameters, zeros_for
from backpass.training._mappings import Gradients
from backpass.training._memory import check_writable
from backpass.training._numbers import check_positive, check_rate, check_share


class State(TypedDict):
    """A plain dict: what the next step needs of those before."""

    step: int  # how many were made
    mean: dict[str, Array]  # m, of each parameter's shape and dtype
    square: dict[str, Array]  # v, the same


def start(parameters: Mapping[str, Array]) -> State:
    """Return the state before the first step, for the ``parameters[*]`` to train.

    Raises TypeError unless ``parameters`` is a mapping to arrays of float32 or float64.
    """
    check_parameters(parameters)
    mean, square = zeros_for(parameters), zeros_for(parameters)
    return {"step": 0, "mean": mean, "square": square}


def update(
    parameters: MutableMapping[str, Array],
    gradients: Gradients,
    state: State,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    decayed: Collection[str] | None = None,
    in_place: bool = False,
) -> None:
    """Make one step: replace the entries of ``parameters`` and of ``state``.

    One parameter is replaced at a time, so a step needs little memory. The arrays of
    ``parameters`` and ``gradients`` are not modified; those of ``state`` may be, and
    with ``in_place`` those of ``parameters`` too, which is faster for large ones.
    ``gradients`` has one array for each name in the state, with the parameter's shape;
    half precision is widened first. Parameters that are not in the state keep their
    values. ``decayed`` names the parameters that decay, all by default; ``with_axes``
    gives the usual choice. The other options are those of ``torch.optim.AdamW``, with
    its defaults. A CUDA graph would repeat the number of the step with which it was
    captured: capture PyTorch's optimiser, with ``capturable``, instead.

    Raises TypeError unless the parameters are arrays of float32 or float64, the
    gradients real floating-point arrays, and the options numbers; ValueError, naming
    every fault, for names, shapes, libraries, devices, or dtypes that do not fit; for
    an option out of range; and with ``in_place`` for a parameter that cannot be written
    or whose memory overlaps with that of another one. Nothing is replaced then.
    """
    betas = _checked_betas(betas)
    check_rate(lr=lr, weight_decay=weight_decay)
    check_positive(eps=eps)
    # A NumPy scalar would spread its dtype.
    lr, weight_decay, eps = float(lr), float(weight_decay), float(eps)
    check_bool(in_place=in_place)
    check_entries(parameters, gradients, state, "mean", "square")
    decays = _chosen(decayed, state["mean"])
    if in_place:
        check_writable(parameters, state["mean"])

    t = state["step"] + 1
    for name in state["mean"]:
        w, m, v = parameters[name], state["mean"][name], state["square"][name]
        decay = lr * weight_decay if name in decays else 0.0
        of_step = partial(_step, t=t, lr=lr, decay=decay, betas=betas, eps=eps)
        new = w if in_place else None
        w, m, v = _in_blocks(of_step, w, m, v, gradients[name], new)
        parameters[name], state["mean"][name], state["square"][name] = w, m, v
    state["step"] = t


def _step(w, m, v, dw, *, t, lr, decay, betas, eps) -> tuple[Array, Array, Array]:
    """Return the next w, m, and v, all ``[*]``."""
    beta_1, beta_2 = betas
    dw = as_type_of(widened(dw), w)
    m = beta_1 * m + (1 - beta_1) * dw
    v = beta_2 * v + (1 - beta_2) * dw * dw
    # The quotient of the roots is finite where v / (1 − β₂ᵗ) would overflow.
    spread = namespace(v).sqrt(v) / math.sqrt(1 - beta_2**t)
    move = m / (1 - beta_1**t) / (spread + eps)
    return (1 - decay) * w - lr * move, m, v


def _in_blocks(
    step: Callable[..., tuple[Array, ...]],
    w: Array,
    m: Array,
    v: Array,
    dw: Array,
    new: Array | None,
) -> tuple[Array, ...]:
    """Return what ``step`` returns for ``w``, ``m``, ``v``, and ``dw``.

    Large arrays of NumPy and PyTorch are computed block by block, so that what is
    computed in between stays in a cache. The next m and v are written over these, and
    the next w over ``new`` if it is given.
    """
    if size(w.shape) <= BLOCK or not (is_numpy_array(w) or is_torch_array(w)):
        return step(w, m, v, dw)
    xp = namespace(w)
    new = xp.empty_like(w) if new is None else new
    flat = [xp.reshape(x, (-1,)) for x in (w, m, v, dw)]
    into = [xp.reshape(new, (-1,)), *flat[1:3]]
    for start in range(0, size(w.shape), BLOCK):
        block = slice(start, start + BLOCK)
        for whole, part in zip(into, step(*(x[block] for x in flat)), strict=True):
            whole[block] = part
    return tuple(xp.reshape(x, w.shape) for x in into)


def with_axes(parameters: Mapping[str, Array], at_least: int = 2) -> list[str]:
    """Return the names of the parameters that have ``at_least`` so many axes.

    With 2 these are the matrices and tables; biases and the weights of norms, which
    have one axis, usually do not decay.
    """
    return [name for name, w in parameters.items() if len(w.shape) >= at_least]


def rounded(parameters: Mapping[str, Array], dtype: Any) -> dict[str, Array]:
    """Return the ``parameters[*]``, each rounded to ``dtype``."""
    return {name: namespace(w).astype(w, dtype) for name, w in parameters.items()}


def _checked_betas(betas: object) -> tuple[float, float]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise TypeError(f"betas: expected two numbers; got {betas!r}")
    check_share(**{"betas[0]": betas[0], "betas[1]": betas[1]})
    return float(betas[0]), float(betas[1])


def _chosen(decayed: Collection[str] | None, trained: Iterable[str]) -> set[str]:
    """Return the names that decay. Raises TypeError or ValueError."""
    known = set(trained)
    if decayed is None:
        return known
    if isinstance(decayed, str) or not isinstance(decayed, Collection):
        raise TypeError(
            f"decayed: expected a collection of names of parameters, or None for all; "
            f"got {decayed!r}"
        )
    unknown = [name for name in decayed if name not in known]
    if unknown:
        raise ValueError(
            f"decayed: expected names in the state; got {', '.join(map(repr, unknown))}"
        )
    return set(decayed)
