"""What all kernels share: which tensors they take, how they address rows, and how they
are launched."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, overload

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import check_inputs, parse
from backpass.kernels import ON_CPU, compiled, executed, executions, on_cpu
from backpass.kernels.compiled import CAPABILITY
from backpass.torch_internals import is_fake

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BOOLEANS = (torch.bool,)
PLANS = 4096  # the most plans, each of given shapes and strides, that are cached
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_tensors(
    shapes: str, wide: tuple[str, ...] = (), /, **tensors: object
) -> None:
    """Check the inputs of a kernel against its declared shapes. The inputs in ``wide``
    may be float32 where the others have half precision.

    Raises TypeError for an argument that is not a tensor on a device where kernels run,
    and ValueError or TypeError for an argument that the declaration rules out.
    """
    for spec in parse(shapes).inputs:
        value = tensors[spec.name]
        if value is not None or not spec.optional:
            dtypes = BOOLEANS if spec.boolean else DTYPES
            check_tensor(spec.name, value, INTEGERS if spec.integer else dtypes)
    check_inputs(shapes, wide, **tensors)


def check_tensor(
    name: str, value: object, dtypes: tuple[torch.dtype, ...] = DTYPES
) -> None:
    """Raise TypeError unless ``value`` is a tensor of one of the dtypes, on a device
    where kernels run."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected a torch tensor; got {type(value).__name__}")
    if value.dtype not in dtypes:
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name}: expected one of {wanted}; got dtype {value.dtype}")
    if value.device.type != "cuda" and not (value.device.type == "cpu" and on_cpu()):
        raise TypeError(
            f"{name}: expected a tensor on a CUDA device ({ON_CPU}); got device "
            f"{value.device}"
        )


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a kernel computes: float32, and float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up. Triton's own function, which kernels call too, takes
    several microseconds on the host."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """Return the least power of 2 that is at least ``n``, in as little time."""
    return 1 << max(n - 1, 0).bit_length()


# The GPU for which a launch is prepared if its tensors are not on one: in the
# interpreter, and by ``resources``, which sets it to the GPU that it compiles for.
COMPILED_FOR = 90


def capability(like: torch.Tensor) -> int:
    """The compute capability of the GPU that holds ``like``: 90 for Hopper's 9.0."""
    if not like.is_cuda:
        own = executions[-1].capability if executions else CAPABILITY
        return own if executed() else COMPILED_FOR
    major, minor = torch.cuda.get_device_capability(like.device)
    return 10 * major + minor


def empty_like(x: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for a result of the shape, dtype and device of ``x``."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@overload
def packed(x: torch.Tensor) -> torch.Tensor: ...
@overload
def packed(x: None) -> None: ...
def packed(x: torch.Tensor | None) -> torch.Tensor | None:
    """``x`` if it is contiguous, else a contiguous copy; None for None."""
    if x is None:
        return None
    # torch may store a negation as a flag, which a pointer does not carry.
    return x.resolve_neg().contiguous()


def merged_axes(
    shape: Sequence[int], *strides: Sequence[int]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the lengths of the axes of several tensors of one shape, and the strides
    of each axis, one for each tensor.

    Neighbouring axes that every tensor can walk with one stride are merged. Axes of
    length 1 are left out.
    """
    lengths: list[int] = []
    steps: list[tuple[int, ...]] = []
    for length, *inner in zip(shape, *strides, strict=True):
        if length == 1:
            continue
        if lengths and steps[-1] == tuple(length * stride for stride in inner):
            lengths[-1] *= length
            steps[-1] = tuple(inner)
        else:
            lengths.append(length)
            steps.append(tuple(inner))
    return lengths, steps


def rows_of(
    x: torch.Tensor, /, **others: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return ``x`` and where its rows are, so that a kernel reads ``x[*, n]`` of any
    strides without a copy.

    The leading axes are given as three, ``[length_0, length_1, length_2]``, under the
    names that kernels use. Strides count elements; an expanded axis has stride 0. Each
    of the ``others``, which have the same leading axes, is given beside them, as
    ``name_ptr`` with strides of its own.

    Neighbouring leading axes that one stride can walk are merged first. Three axes are
    then enough for any transposing, slicing, and expanding of an attention layer's
    ``[b, n_h, s, d]``, much of which ``reshape`` would copy. Tensors with four or more
    axes that do not merge are copied: such tensors are rare, and a fourth axis would
    cost every kernel time.
    """
    tensors = {name: t.resolve_neg() for name, t in {"": x, **others}.items()}
    strides = tuple(tensor.stride() for tensor in tensors.values())
    plan = _plan_of_rows(tuple(tensors), x.shape[:-1], strides)
    if plan is None:
        return rows_of(
            packed(x), **{name: packed(other) for name, other in others.items()}
        )
    x = tensors.pop("")
    return x, plan | pointers(tensors)


@lru_cache(maxsize=PLANS)
def _plan_of_rows(
    names: tuple[str, ...], leading: Sequence[int], strides: tuple[Sequence[int], ...]
) -> dict[str, int] | None:
    """Where the rows of tensors with the same leading axes are: a kernel's arguments,
    not to be changed. None if more than three of these axes are left."""
    lengths, steps = merged_axes(leading, *(each[:-1] for each in strides))
    if len(lengths) > 3:
        return None
    return walked(names, lengths, steps, [each[-1] for each in strides])


def pointers(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a kernel's arguments for the tensors by name: ``name_ptr``."""
    return {f"{name}_ptr": tensor for name, tensor in tensors.items()}


def walked(
    names: Sequence[str],
    lengths: Sequence[int],
    steps: Sequence[tuple[int, ...]],
    along_row: Sequence[int],
) -> dict[str, int]:
    """Return a kernel's arguments for the strides of tensors with at most three leading
    axes of these lengths and steps: ``name_stride_0`` to ``name_stride_n``. The strides
    of a tensor without a name have no prefix."""
    padding = 3 - len(lengths)
    _, length_1, length_2 = *lengths, *[1] * padding
    steps = [*steps, *[(0,) * len(names)] * padding]
    found = {"length_1": length_1, "length_2": length_2}
    for name, *own in zip(names, *steps, along_row, strict=True):
        prefix = f"{name}_" if name else ""
        found |= {
            f"{prefix}stride_{axis}": step
            for axis, step in zip("012n", own, strict=True)
        }
    return found


@triton.jit
def row_start(rows, length_1, length_2, stride_0, stride_1, stride_2):
    """Offset of the first element of each of ``rows`` (int64), from what ``rows_of``
    returns."""
    last = rows % length_2
    middle = rows // length_2 % length_1
    first = rows // length_2 // length_1
    return first * stride_0 + middle * stride_1 + last * stride_2


@triton.jit
def quotient(x, divisor: tl.constexpr):
    """x / divisor, rounded once: in float32, the operator / is less exact."""
    if x.dtype == tl.float64:
        return x / divisor
    else:
        return tl.div_rn(x, tl.full(x.shape, divisor, tl.float32))


TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def needs_launch(result: torch.Tensor) -> bool:
    """Whether ``result`` has an element to write.

    False while torch.compile traces shapes: choosing block sizes with symbolic lengths
    would take minutes.
    """
    return not is_fake(result) and result.numel() > 0


class Launch(NamedTuple):
    """One kernel and everything it is launched with. ``resources`` compiles it without
    running it."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]  # tensors, None for omitted ones, and integers
    constants: dict[str, Any]  # compiled into the kernel
    warps: int
    stages: int = 3  # of a loop whose loads run ahead of it; Triton's default
    # Whether a·b + c may be rounded once. If so, two threads that add each other's
    # squares may get different last bits: each thread rounds only the other's square.
    fused: bool = True

    def run(self) -> None:
        tensor = next(
            value
            for value in self.arguments.values()
            if isinstance(value, torch.Tensor)
        )
        with _running_on(tensor.device):
            self.kernel[(self.programs,)](
                **self.arguments,
                **self.constants,
                num_warps=self.warps,
                num_stages=self.stages,
                enable_fp_fusion=self.fused,
            )


def _running_on(device: torch.device) -> contextlib.AbstractContextManager:
    """Return a context in which Triton launches on the tensors' device: a CUDA device
    becomes the current one, and on the CPU kernels run as compiled or interpreted."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    if executed() and not executions:
        return compiled.executing()
    return contextlib.nullcontext()


# Short rows share a program until it holds this many elements: 16 for each of its 128
# threads.
SHORT_ROWS_ELEMENTS = 2048
# A warp holds these bytes of one operand, 16 registers per thread, unless that would
# need fewer than 4 or more than 16 warps.
WARP_BYTES = 2048


class Block(NamedTuple):
    """What a program works on at once: ``rows`` rows of at most ``columns`` elements.
    Both numbers are powers of 2."""

    rows: int
    columns: int
    warps: int


def whole_rows(like: torch.Tensor) -> Block:
    """Whole rows of ``like[*, n]``, several if they are short."""
    columns = power_of_2(like.shape[-1])
    return _block(max(1, SHORT_ROWS_ELEMENTS // columns), columns, like)


def tile(like: torch.Tensor, tile_bytes: int) -> Block:
    """A part of a row that takes ``tile_bytes`` in the accumulator's dtype."""
    return _block(1, tile_bytes // accumulator(like.dtype).itemsize, like)


def _block(rows: int, columns: int, like: torch.Tensor) -> Block:
    held = rows * columns * accumulator(like.dtype).itemsize
    return Block(rows, columns, min(max(held // WARP_BYTES, 4), 16))


def on_rows(
    kernel,
    arguments: dict[str, Any],
    like: torch.Tensor,
    programs: int | None = None,
    fused: bool = True,
    block: Block | None = None,
    **constants: Any,
) -> Launch:
    """``kernel`` on rows of ``like[*, n]``: one block per program, by default of whole
    rows, or, with fewer ``programs``, several blocks each."""
    m, n, wide = _sizes(like)
    block = block or whole_rows(like)
    constants |= {
        "ROWS": block.rows,
        "COLUMNS": block.columns,
        "WIDE": TRITON_DTYPES[wide],
    }
    programs = cdiv(m, block.rows) if programs is None else programs
    arguments = {**arguments, "m": m, "n": n}
    return Launch(kernel, programs, arguments, constants, block.warps, fused=fused)


def on_tiles(
    kernel,
    arguments: dict[str, Any],
    like: torch.Tensor,
    tile_bytes: int,
    **constants: Any,
) -> Launch:
    """``kernel`` on ``like[*, n]``, one row per program, in tiles of ``tile_bytes``."""
    m, n, wide = _sizes(like)
    block = tile(like, tile_bytes)
    constants |= {"COLUMNS": block.columns, "WIDE": TRITON_DTYPES[wide]}
    return Launch(kernel, m, {**arguments, "n": n}, constants, block.warps)


def fits(like: torch.Tensor, row_bytes: int) -> bool:
    """Whether a row of ``like[*, n]`` in the accumulator's dtype fits into
    ``row_bytes``."""
    return like.shape[-1] * accumulator(like.dtype).itemsize <= row_bytes


def _sizes(like: torch.Tensor) -> tuple[int, int, torch.dtype]:
    """Rows and columns of ``like[*, n]``, and the accumulator's dtype."""
    n = like.shape[-1]
    return like.numel() // n, n, accumulator(like.dtype)
