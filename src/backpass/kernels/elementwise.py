"""Elementwise functions in Triton: declared from their formulas, run by one kernel for
each number of operands.

A kernel here knows where elements lie, not what is computed. The computation is a
Triton function of numbers, its ``FORMULA``, compiled into the kernel. A program holds
``ELEMENTS`` elements of each operand in registers: a piece of one row, or several short
rows. It reads each element once and writes each result once. No two programs write the
same element, so the kernel needs no atomics, and two runs agree to the last bit.
Arithmetic is in float32 (float64 for float64), whatever is stored.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import check_cotangent, check_saved, parse
from backpass.kernels.launch import (
    PLANS,
    TRITON_DTYPES,
    Launch,
    accumulator,
    cdiv,
    check_tensor,
    check_tensors,
    empty_like,
    merged_axes,
    needs_launch,
    pointers,
    power_of_2,
    row_start,
    walked,
)

# Of an operand, in one program: 8 for each of its 128 threads, 16 bytes in half
# precision.
ELEMENTS = 1024
WARPS = 4
AXES = 4  # three of rows, and one along a row


class Kernel(NamedTuple):
    """What a kernel's module offers: ``forward, backward, launches, Saved``."""

    forward: Callable
    backward: Callable
    launches: Callable[[torch.dtype], Iterator[tuple[str, Launch]]]
    Saved: type


def declare(
    shapes: str,
    formulas: tuple | Callable[..., tuple],
    examples: Sequence[dict] = ({},),
) -> Kernel:
    """The four names of an elementwise kernel's module, from its formulas.

    ``formulas`` is the pair of Triton functions ``(_forward, _backward)``. This is a
    whole module, except its imports::

        SHAPES = "x[*] -> y[*]"

        @triton.jit
        def _forward(x):
            return x * x

        @triton.jit
        def _backward(dy, x):
            return 2.0 * x * dy

        forward, backward, launches, Saved = elementwise.declare(
            SHAPES, (_forward, _backward)
        )

    The parameters of a formula have meaning. Forward's are the inputs of ``shapes``.
    Backward's are ``dy`` and the arrays that forward saves, each an input or the
    output: ``_backward(dy, y)`` saves ``y``. Backward returns one gradient for each
    input.

    An operation with options gives, in place of the pair, a function of the options
    that raises for a bad value and returns the pair. An option that is also a
    parameter of a formula, after the arrays, is a number and is passed to it::

        def _formulas(*, power: float):
            check_power(power)
            return _forward, _backward

        @triton.jit
        def _forward(x, power):
            return tl.exp(power * tl.log(x))

        @triton.jit
        def _backward(dy, x, power):
            return dy * power * tl.exp((power - 1.0) * tl.log(x))

        forward, backward, launches, Saved = elementwise.declare(
            SHAPES, _formulas, examples=({"power": 1.5},)
        )

    ``examples`` are options with which ``launches`` compiles the kernel: one for each
    pair of formulas. A number is a constant of the compiled kernel, for two reasons.
    Triton passes a float at run time as float32, which would round it in a kernel of
    float64; and what depends on the number alone is then computed once, by the
    compiler. In return, each value compiles a kernel of its own: a number that
    changes from step to step should be an array instead.

    A module of formulas must ``import triton.language as tl`` even if it does not use
    ``tl``, with ``# noqa: F401``: Triton's interpreter looks for the name there.
    """
    choose = (lambda: formulas) if isinstance(formulas, tuple) else formulas
    options = inspect.signature(choose).parameters
    defaults = {
        name: option.default
        for name, option in options.items()
        if option.default is not option.empty
    }
    examples = [defaults | example for example in examples]
    inputs, (output,) = (
        [spec.name for spec in specs]
        for specs in (parse(shapes).inputs, parse(shapes).outputs)
    )
    for example in examples:
        ahead, back = choose(**example)
        kept = [name for name in _parameters(back)[1:] if name not in options]
        _check(ahead, inputs, options)
        _check(back, ["dy", *kept], options)
        if not kept or not {*kept} <= {*inputs, output}:
            raise TypeError(
                f"{back.__name__}: after dy, expected arrays of {shapes!r}, then "
                f"options; got {', '.join(_parameters(back))}"
            )
        if (1 + len(kept), len(inputs)) not in _KERNELS:
            raise TypeError(
                f"{back.__name__}: no kernel reads {1 + len(kept)} arrays and writes {len(inputs)}"
            )

    module = _function(ahead).__module__
    fields = [*kept, *options]
    Saved = namedtuple("Saved", fields, module=module)  # type: ignore[misc]  # computed
    Saved.__doc__ = f"What backward reads, as it was given: {', '.join(Saved._fields)}."
    signature = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in inputs]
        + [*options.values()]
    )

    def forward(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arrays, chosen = _split(bound.arguments, len(inputs))
        check_tensors(shapes, **arrays)
        formula, _ = choose(**chosen)
        y = empty_like(arrays[inputs[0]])
        if needs_launch(y):
            _launch(formula, [*arrays.values()], [y], chosen).run()
        values = {**arrays, output: y, **chosen}
        return y, Saved(*(values[name] for name in Saved._fields))

    def backward(dy, saved):
        arrays, chosen = _split(check_saved(saved, Saved)._asdict(), len(kept))
        like = arrays[kept[0]]
        check_tensor("dy", dy)
        check_cotangent(dy, like.shape, like=like)
        _, formula = choose(**chosen)
        gradients = tuple(empty_like(like) for _ in inputs)
        if needs_launch(like):
            _launch(formula, [dy, *arrays.values()], gradients, chosen).run()
        return gradients if len(inputs) > 1 else gradients[0]

    def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
        """Forward and backward at telling shapes, named, on tensors without memory: to
        be compiled, not run."""
        for example in examples:
            ahead, back = choose(**example)
            for case, x, y in telling_shapes(dtype):
                yield case, _launch(ahead, [x] * len(inputs), [y], example)
                operands, results = [x] * (1 + len(kept)), [y] * len(inputs)
                yield case, _launch(back, operands, results, example)

    given = " and ".join(f"``{name}[*]``" for name in inputs)
    gradients = " and ".join(f"``d{name}[*]``" for name in inputs)
    forward.__signature__ = signature  # type: ignore[attr-defined]  # for `inspect`
    about_options = f" {inspect.getdoc(choose)}" if inspect.getdoc(choose) else ""
    forward.__doc__ = (
        f"Return ``{output}[*]``, contiguous, from {given}, of any strides."
        f"{about_options}\n\n"
        "Raises TypeError if an input is not a floating-point tensor on a device where "
        "kernels run, or if dtypes differ; ValueError if shapes differ."
    )
    backward.__doc__ = (
        f"Return {gradients}, contiguous, from ``dy[*]``, of any strides."
    )
    for function in (forward, backward, launches):
        function.__module__, function.__qualname__ = module, function.__name__
    return Kernel(forward, backward, launches, Saved)


def _check(formula, arrays: list[str], options: Mapping) -> None:
    """Raise TypeError unless the formula takes these arrays, and then only options."""
    taken = _parameters(formula)
    if taken[: len(arrays)] != arrays or not {*taken[len(arrays) :]} <= {*options}:
        raise TypeError(
            f"{formula.__name__}: expected the parameters {', '.join(arrays)}, then "
            f"options ({', '.join(options) or 'there are none'}); got {', '.join(taken)}"
        )


@functools.cache
def _parameters(formula) -> list[str]:
    """The names of a formula's parameters."""
    return [*inspect.signature(_function(formula)).parameters]


def _function(formula) -> Callable:
    """The Python function of which Triton made the formula."""
    return getattr(formula, "fn", formula)


def _split(
    values: Mapping[str, Any], count: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first ``count`` of the values, which are arrays, and the others, which are
    options."""
    pairs = [*values.items()]
    return dict(pairs[:count]), dict(pairs[count:])


def _launch(
    formula,
    operands: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    options: Mapping,
) -> Launch:
    """The launch that writes ``results = formula(*operands, *numbers)``, contiguous,
    from operands of any strides; the numbers are those options that the formula takes.
    """
    arguments = strides_of(**dict(zip("abc", operands, strict=False)))
    m, n = arguments["m"], arguments["n"]
    columns = min(power_of_2(n), ELEMENTS)
    rows = ELEMENTS // columns
    programs = cdiv(m, rows) * cdiv(n, columns)
    arguments |= dict(zip(("out_ptr", "other_ptr"), results, strict=False))
    constants = {
        "FORMULA": formula,
        "NUMBERS": tuple(
            float(options[name]) for name in _parameters(formula)[len(operands) :]
        ),
        "ROWS": rows,
        "COLUMNS": columns,
        "WIDE": TRITON_DTYPES[accumulator(results[0].dtype)],
    }
    kernel = _KERNELS[len(operands), len(results)]
    return Launch(kernel, programs, arguments, constants, WARPS)


def strides_of(**operands: torch.Tensor) -> dict[str, Any]:
    """Where a kernel finds the elements of operands of one shape, none empty: each
    operand as ``name_ptr`` with its four strides, and the lengths that they share,
    ``m`` rows of ``n`` elements.

    Neighbouring axes that every operand can walk with one stride are merged: contiguous
    operands become one row, and the halves of a projection, ``[*, 2n]``, become rows of
    n. Operands with more than four axes left are copied.
    """
    operands = {name: operand.resolve_neg() for name, operand in operands.items()}
    shape = next(iter(operands.values())).shape
    strides = tuple(each.stride() for each in operands.values())
    plan = _plan(tuple(operands), shape, strides)
    if plan is None:
        return strides_of(
            **{name: operand.contiguous() for name, operand in operands.items()}
        )
    return plan | pointers(operands)


@lru_cache(maxsize=PLANS)
def _plan(
    names: tuple[str, ...], shape: Sequence[int], strides: tuple[Sequence[int], ...]
) -> dict[str, int] | None:
    """What ``strides_of`` returns without pointers, not to be changed; None if more
    than four axes are left."""
    lengths, steps = merged_axes(shape, *strides)
    if len(lengths) > AXES:
        return None
    n = lengths.pop() if lengths else 1
    along_row = steps.pop() if steps else (0,) * len(names)
    sizes = {"m": math.prod(lengths), "n": n}
    return sizes | walked(names, lengths, steps, along_row)


def telling_shapes(
    dtype: torch.dtype,
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """An operand and a result, without memory, for each way of addressing, named."""
    long, short = (torch.empty(4096, n, dtype=dtype, device="meta") for n in (4096, 64))
    yield "contiguous", long, empty_like(long)
    yield "parts of short rows", short[:, :33], empty_like(short[:, :33])


@triton.jit
def piece(m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows and columns of this program's elements, and which of them exist."""
    # Of a row. In tl.cdiv, n + COLUMNS − 1 may exceed 32 bits.
    pieces = (n - 1) // COLUMNS + 1
    program = tl.program_id(0).to(tl.int64)
    row = program // pieces * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    column = program % pieces * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [1, COLUMNS]
    return row, column, (row < m) & (column < n)


@triton.jit
def piece_of_row(n, COLUMNS: tl.constexpr):
    """The row and columns of a program's elements, if each program has one row."""
    pieces = (n - 1) // COLUMNS + 1
    program = tl.program_id(0).to(tl.int64)
    return program // pieces, program % pieces * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def _unary(
    a_ptr,  # [m, n], of the strides given
    out_ptr,  # [m, n], contiguous
    a_stride_0, a_stride_1, a_stride_2, a_stride_n,
    length_1, length_2, m, n,
    FORMULA: tl.constexpr, NUMBERS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out = FORMULA(a, *NUMBERS)"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    a_at = row_start(row, length_1, length_2, a_stride_0, a_stride_1, a_stride_2)
    a_at += column * a_stride_n
    a = tl.load(a_ptr + a_at, mask=inside, other=0.0).to(WIDE)
    out = FORMULA(a, *tl.tuple(NUMBERS))
    tl.store(out_ptr + row * n + column, out, mask=inside)


@triton.jit
def _binary(
    a_ptr,  # [m, n], of the strides given
    b_ptr,  # [m, n], of the strides given
    out_ptr,  # [m, n], contiguous
    a_stride_0, a_stride_1, a_stride_2, a_stride_n,
    b_stride_0, b_stride_1, b_stride_2, b_stride_n,
    length_1, length_2, m, n,
    FORMULA: tl.constexpr, NUMBERS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out = FORMULA(a, b, *NUMBERS)"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    a_at = row_start(row, length_1, length_2, a_stride_0, a_stride_1, a_stride_2)
    a_at += column * a_stride_n
    b_at = row_start(row, length_1, length_2, b_stride_0, b_stride_1, b_stride_2)
    b_at += column * b_stride_n
    a = tl.load(a_ptr + a_at, mask=inside, other=0.0).to(WIDE)
    b = tl.load(b_ptr + b_at, mask=inside, other=0.0).to(WIDE)
    out = FORMULA(a, b, *tl.tuple(NUMBERS))
    tl.store(out_ptr + row * n + column, out, mask=inside)


@triton.jit
def _ternary_two_outputs(
    a_ptr,  # [m, n], of the strides given
    b_ptr,  # [m, n], of the strides given
    c_ptr,  # [m, n], of the strides given
    out_ptr,  # [m, n], contiguous
    other_ptr,  # [m, n], contiguous
    a_stride_0, a_stride_1, a_stride_2, a_stride_n,
    b_stride_0, b_stride_1, b_stride_2, b_stride_n,
    c_stride_0, c_stride_1, c_stride_2, c_stride_n,
    length_1, length_2, m, n,
    FORMULA: tl.constexpr, NUMBERS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out, other = FORMULA(a, b, c, *NUMBERS)"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    a_at = row_start(row, length_1, length_2, a_stride_0, a_stride_1, a_stride_2)
    a_at += column * a_stride_n
    b_at = row_start(row, length_1, length_2, b_stride_0, b_stride_1, b_stride_2)
    b_at += column * b_stride_n
    c_at = row_start(row, length_1, length_2, c_stride_0, c_stride_1, c_stride_2)
    c_at += column * c_stride_n
    a = tl.load(a_ptr + a_at, mask=inside, other=0.0).to(WIDE)
    b = tl.load(b_ptr + b_at, mask=inside, other=0.0).to(WIDE)
    c = tl.load(c_ptr + c_at, mask=inside, other=0.0).to(WIDE)
    out, other = FORMULA(a, b, c, *tl.tuple(NUMBERS))
    tl.store(out_ptr + row * n + column, out, mask=inside)
    tl.store(other_ptr + row * n + column, other, mask=inside)


# By the number of operands and of results.
_KERNELS = {(1, 1): _unary, (2, 1): _binary, (3, 2): _ternary_two_outputs}


@triton.jit
def bounded_below(x):
    """x with 0 for −∞: for a product with a factor that vanishes faster, where −∞ · 0
    would be NaN."""
    return tl.where(x == -float("inf"), 0.0, x)


@triton.jit
def bounded(x):
    """x with 0 for −∞ and for ∞."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)
