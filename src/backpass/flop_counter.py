"""Formulas with which PyTorch's ``FlopCounterMode`` counts ``backpass.functional``.

    from torch.utils.flop_counter import FlopCounterMode
    from backpass import flop_counter

    with FlopCounterMode(custom_mapping=flop_counter.formulas()) as counter:
        loss = model(tokens)
        loss.backward()

PyTorch's counter does not see what an operator runs: without a formula for the operator
it would count 0. A counter that is created without ``custom_mapping`` gets the formulas
of ``formulas("products-whole")`` at the first call of a function, so that it counts the
operations as it counts PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import backpass.functional  # noqa: F401  # registers the operators
from backpass import cost, ops
from backpass.contract.shapes import Spec
from backpass.contract.values import check_one_of
from backpass.operation import Operation
from backpass.torch_door import operators
from backpass.torch_internals import Unread

__all__ = ["formulas"]
COUNTED, PRODUCTS, WHOLE = "counted", "products", "products-whole"


def formulas(convention: str = COUNTED) -> dict[Any, Callable[..., int]]:
    """Return the formulas of all operators, forward and backward, as the argument
    ``custom_mapping`` of ``FlopCounterMode``.

    Under "counted", a formula is the operation's own, which is exact. For a token's
    gradient it counts one addition per element, as if its row of the table already held
    another token's. Under "products", a formula counts two FLOPs for each
    multiplication of the matrix products that the operation runs, as PyTorch does for
    its own operators. FlashAttention runs only the tiles that the mask leaves. Under
    "products-whole" its products count as if no mask hid a score, as PyTorch counts
    those of ``scaled_dot_product_attention``.

    A formula reads shapes and options, so it also holds on the device "meta". A kernel
    counts as its operation with all gradients that are wanted. Raises ValueError for
    another convention.
    """
    evaluations: dict[str, Callable]
    evaluations = {COUNTED: _counted, PRODUCTS: _products, WHOLE: _products_whole}
    check_one_of("convention", convention, tuple(evaluations))
    evaluate = evaluations[convention]
    return {
        getattr(torch.ops.backpass, f"{stem}{ending}"): _formula(stem, ending, evaluate)
        for stem in ops.STEMS
        for ending in ("", "_backward")
    }


@cache
def usual_formulas() -> dict[Any, Callable[..., int]]:
    """Return the formulas of a counter to which nobody gave any."""
    return formulas(WHOLE)


def _formula(stem: str, ending: str, evaluate: Callable) -> Callable[..., int]:
    """Return the formula of an operator, a function of the operator's arguments."""
    operation = Operation(stem)
    schema = getattr(torch.ops.backpass, f"{stem}{ending}").default._schema
    names = [argument.name for argument in schema.arguments]

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        given = dict(zip(names, args, strict=False)) | kwargs
        options = {name: given[name] for name in operation.option_names}
        if operation.takes_wanted:
            each = zip(operation.differentiable, given["wanted"], strict=True)
            options["wanted"] = tuple(spec.name for spec, want in each if want)
        if ending:
            shapes = operators.unpacked(given["sizes"], given["ranks"])
        else:
            shapes = [_shape(given[spec.name]) for spec in operation.inputs]
        forward, backward = evaluate(stem, tuple(shapes), tuple(options.items()))
        return backward if ending else forward

    formula._get_raw = True  # type: ignore[attr-defined]  # of tensors, not of shapes
    return formula


def _shape(x: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if x is None else tuple(x.shape)


@cache
def _counted(stem: str, shapes: tuple, options: tuple) -> tuple[int, int]:
    """Return what the operation's formulas say of its forward and of its backward."""
    of_data = {"distinct": 0} if hasattr(ops.load(stem), "data_lengths") else {}
    found = cost.formula(stem, *shapes, **of_data, **dict(options))
    # The formulas count n − 1 for a sum of n, which is wrong for a sum of nothing.
    forward, backward = (max(0, flops) for flops in found)
    return forward, backward


@cache
def _products(stem: str, shapes: tuple, options: tuple) -> tuple[int, int]:
    """Return the FLOPs that PyTorch counts where the operation runs by itself."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    operation = Operation(stem)
    inputs = [
        None if shape is None else _without_values(shape, spec)
        for spec, shape in zip(operation.inputs, shapes, strict=True)
    ]
    counter, aten = FlopCounterMode(display=False), torch.ops.aten
    for name in ("addmm", "baddbmm"):  # PyTorch has no formulas for them in place
        own = counter.flop_registry[getattr(aten, name)]
        counter.flop_registry[getattr(aten, f"{name}_")] = own
    with Unread(), counter:
        y, saved = operation.op.forward(*inputs, **dict(options))
        forward = counter.get_total_flops()
        operation.op.backward(torch.empty_like(y), saved)
    return forward, counter.get_total_flops() - forward


def _products_whole(stem: str, shapes: tuple, options: tuple) -> tuple[int, int]:
    """Return the same without a causal mask, whose tiles FlashAttention skips."""
    chosen = dict(options)
    if "causal" in chosen:
        chosen["causal"] = False
    return _products(stem, shapes, tuple(chosen.items()))


def _without_values(shape: tuple[int, ...], spec: Spec) -> torch.Tensor:
    plain = torch.bool if spec.boolean else torch.float32
    dtype = torch.int64 if spec.integer else plain
    return torch.empty(shape, dtype=dtype, device="meta")
