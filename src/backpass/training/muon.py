"""Muon: momentum for matrices, with all singular values brought near 1.

From Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
computed as ``torch.optim.Muon`` does, but in the parameters' dtype where PyTorch rounds
to bfloat16. For each matrix one running mean of its gradients is kept. A step has the
singular vectors of that mean, and singular values near 1: a polynomial, applied a few
times, brings them there by matrix products alone.

Only matrices are updated. Tables of embeddings, output heads, biases, and the weights
of norms are left to ``adamw``: start each of the two with its own parameters::

    inner = [n for n, w in parameters.items() if n.startswith("h.") and w.ndim == 2]
    rest = [name for name in parameters if name not in inner]
    of_inner = muon.start({name: parameters[name] for name in inner})
    of_rest = adamw.start({name: parameters[name] for name in rest})
    # in each step, with the gradients d of all parameters
    rule = {"adjust_lr_fn": "match_rms_adamw"}
    muon.update(parameters, {n: d[n] for n in inner}, of_inner, lr=1e-3, **rule)
    adamw.update(parameters, {n: d[n] for n in rest}, of_rest, lr=1e-3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import TypedDict

from backpass.contract.arrays import (
    Array,
    as_type_of,
    is_array,
    namespace,
    transpose,
    widened,
)
from backpass.contract.values import check_bool, check_natural, check_one_of
from backpass.models._parameters import check_faults
from backpass.training._entries import check_entries, check_parameters, zeros_for
from backpass.training._mappings import Gradients
from backpass.training._numbers import (
    check_count,
    check_positive,
    check_rate,
    check_share,
)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of σ, σ³, and σ⁵, by Jordan et al.
ADJUSTMENTS = ("original", "match_rms_adamw")


class State(TypedDict):
    """A plain dict: what the next step needs of those before."""

    step: int  # how many were made
    mean: dict[str, Array]  # of the gradients, of each matrix's shape and dtype


def start(parameters: Mapping[str, Array]) -> State:
    """Return the state before the first step, for the matrices to train.

    Raises TypeError unless ``parameters`` is a mapping to arrays of float32 or float64;
    ValueError, naming each, for those that do not have two axes.
    """
    check_parameters(parameters)
    faults = [
        f"parameters: {name}: expected a matrix; got shape {list(w.shape)}"
        for name, w in parameters.items()
        if len(w.shape) != 2
    ]
    check_faults("start: Muon updates matrices only", faults)
    return {"step": 0, "mean": zeros_for(parameters)}


def update(
    parameters: MutableMapping[str, Array],
    gradients: Gradients,
    state: State,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str = "original",
) -> None:
    """Make one step: replace the entries of ``parameters`` and of ``state``.

    No array is modified. ``gradients`` has one array for each name in the state, with
    the parameter's shape; half precision is widened first. Parameters that are not in
    the state keep their values. The options are those of ``torch.optim.Muon``, with its
    defaults. ``adjust_lr_fn`` multiplies the rate, but not the decay, of a matrix of
    ``m`` rows and ``n`` columns: "original" by √max(1, m/n), "match_rms_adamw" by
    0.2 √max(m, n). "original" assumes [outputs, inputs] as in ``torch.nn.Linear`` and
    ``models.llama``. ``models.gpt2`` stores [inputs, outputs]: transpose its weights
    and gradients for "original", or use "match_rms_adamw", which is symmetric.

    Raises TypeError unless the parameters are arrays of float32 or float64, the
    gradients real floating-point arrays, and the options of their types; ValueError,
    naming every fault, for names, shapes, libraries, devices, or dtypes that do not
    fit, and for an option out of range. Nothing is replaced then.
    """
    check_rate(lr=lr, weight_decay=weight_decay)
    check_share(momentum=momentum)
    check_bool(nesterov=nesterov)
    check_positive(eps=eps)
    check_count(ns_steps=ns_steps)
    check_one_of("adjust_lr_fn", adjust_lr_fn, ADJUSTMENTS)
    check_entries(parameters, gradients, state, "mean")
    # A NumPy scalar would spread its dtype.
    lr, decay = float(lr), float(lr) * float(weight_decay)

    for name, m in state["mean"].items():
        w, m = _step(
            parameters[name],
            m,
            gradients[name],
            lr=lr * _adjustment(m.shape, adjust_lr_fn),
            decay=decay,
            momentum=float(momentum),
            nesterov=nesterov,
            eps=eps,
            steps=ns_steps,
        )
        parameters[name], state["mean"][name] = w, m
    state["step"] += 1


def _step(w, m, dw, *, lr, decay, momentum, nesterov, eps, steps):
    """Return the next w and m, both ``[m, n]``."""
    dw = as_type_of(widened(dw), w)
    m = momentum * m + (1 - momentum) * dw
    ahead = momentum * m + (1 - momentum) * dw if nesterov else m
    return (1 - decay) * w - lr * orthogonalised(ahead, steps=steps, eps=eps), m


def orthogonalised(x: Array, *, steps: int = 5, eps: float = 1e-7) -> Array:
    """Return ``[m, n]`` with the singular vectors of ``x[m, n]``, and its singular
    values moved towards 1.

    They are divided by the Frobenius norm, which is at least the largest of them, or by
    ``eps`` if the norm is smaller. Then the polynomial aσ + bσ³ + cσ⁵ is applied
    ``steps`` times. It does not converge to 1: after 5 steps, every singular value that
    began above 0.002 is between 0.68 and 1.21; one that began below 0.0014 is below
    0.68. A norm whose square overflows gives zeros.

    Raises TypeError unless ``x`` is an array, ``steps`` an integer, and ``eps`` a
    number; ValueError unless ``x`` has two axes, ``steps`` ≥ 0, and ``eps`` > 0.
    """
    check_matrix(x)
    check_natural(steps=steps)
    check_positive(eps=eps)
    a, b, c = COEFFICIENTS
    xp = namespace(x)
    rows, columns = x.shape
    norm = xp.sqrt(xp.sum(x * x))
    y = x / xp.where(norm > eps, norm, xp.full_like(norm, eps))
    # Of the two products of y with itself, the smaller is computed.
    y = transpose(y) if rows > columns else y
    for _ in range(steps):
        # If y = U Σ Vᵀ, then yyᵀ = U Σ² Uᵀ, so U and V stay as they are.
        square = y @ transpose(y)
        y = a * y + (b * square + c * (square @ square)) @ y
    return transpose(y) if rows > columns else y


def check_matrix(x: object) -> None:
    """Raise TypeError unless ``x`` is an array, ValueError unless it is ``[m, n]``."""
    if not is_array(x):
        raise TypeError(f"x: expected an array; got {type(x).__name__}")
    if len(x.shape) != 2:
        raise ValueError(f"x: expected a matrix; got shape {list(x.shape)}")


def _adjustment(shape: tuple[int, ...], how: str) -> float:
    """Return the factor of the rate for a matrix of that shape."""
    rows, columns = shape
    if how == "original":
        return math.sqrt(max(1, rows / max(columns, 1)))  # without columns, any does
    return 0.2 * math.sqrt(max(rows, columns))


def orthogonalised_flops(m, n, steps=5):
    """Return the FLOPs of ``orthogonalised`` for a matrix that is not empty: 3mn for
    the norm and the division, and for each step three products and five sums or
    scalings."""
    r, s = min(m, n), max(m, n)
    return 3 * m * n + steps * (4 * r * r * s + 2 * r**3 + r * r + r * s)


def update_flops(m, n, steps=5):
    """Return the FLOPs of ``update`` for a matrix: those of ``orthogonalised``, and 3mn
    each for the mean, for Nesterov's step ahead, and for the decay with the move."""
    return orthogonalised_flops(m, n, steps) + 9 * m * n
