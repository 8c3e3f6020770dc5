"""Attention in tiles, in Triton, with no scores in memory.

Formulas: ``backpass.ops.flash_attention``, but to base 2, for which there is an
instruction: a weight is 2^(c q·k − L), where c is the scale times log₂ e and L is the
log-sum-exp to base 2. Derived on the page ``attention/flash``. With a softcap or a
bias, c q·k is replaced by the capped or biased score times log₂ e.

The forward keeps a tile of queries and loops over the keys. The backward is two loops.
One keeps keys and loops over the queries of every head that reads them, for dk and dv;
the other keeps queries and loops over the keys, for dq. Each recomputes the weights:
seven matrix products where five would do, so that no two programs write the same
number. It does without atomics, so two runs agree to the last bit. Tiles in which every
score is hidden by the causal mask or the window are skipped; without a window, only
tiles at the edge of the mask or of the sequence compare positions. A bias and a mask
are read by strides, 0 where they are broadcast. The bias's gradient is written for each
query and key of each head of each sequence, and then summed over the axes along which
the bias was broadcast. So with a bias of any shape, even one that needs no gradient,
the backward allocates an array of b · n_h · s_q · s_k numbers, in float32 or float64;
nothing else is s_q × s_k. A mask hides keys without such an array. Half precision is
multiplied on tensor cores and summed in float32; float32 is multiplied as float32, not
as TF32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.arrays import sum_to_shape
from backpass.contract.shapes import check_cotangent, check_saved
from backpass.contract.values import (
    check_attention,
    check_probability,
    check_seed,
    check_tile,
)
from backpass.kernels import interpreted, philox
from backpass.kernels.flash_attention_sizes import WIDTHS, padded, tiles_for
from backpass.kernels.flash_attention_tiles import (
    LOG2_E,
    head_of,
    kept_of,
    keys_seen,
    load_rows,
    mask_rows,
    numbers_of,
    queries_of,
    queries_seeing,
    scores_of,
    seed_of,
    store_rows,
    strided,
    unit_of,
)
from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    cdiv,
    check_tensor,
    check_tensors,
    empty_like,
    needs_launch,
    on_rows,
    packed,
    row_start,
    rows_of,
)

SHAPES = (
    "q[*, g*n_kv, s_q, d], k[*, n_kv>0, s_k>0, d], v[*, n_kv, s_k, d_v], bias[*, g*n_kv, s_q, s_k]:broadcast?, "
    "mask[*, g*n_kv, s_q, s_k]:bool:broadcast?, sink[g*n_kv]? -> y[*, g*n_kv, s_q, d_v]"
)

# Weights and the scores' gradients are rounded to half precision, as operands of tensor
# cores, before the products.
OPERANDS = True


class Saved(NamedTuple):
    """The inputs, the output, and one number per query: the log-sum-exp of its scores
    to base 2. Nothing is s_q × s_k but a bias or a mask of that size."""

    q: torch.Tensor  # [*, n_h, s_q, d]
    k: torch.Tensor  # [*, n_kv, s_k, d]
    v: torch.Tensor  # [*, n_kv, s_k, d_v]
    y: torch.Tensor  # [*, n_h, s_q, d_v]
    lse: torch.Tensor  # [*, n_h, s_q], in the dtype computed in; ∞ if no key is seen
    bias: torch.Tensor | None
    mask: torch.Tensor | None
    sink: torch.Tensor | None  # [n_h]
    ahead: int | None  # query i sees the keys up to i + ahead; None: every key
    window: int | None  # the last of these keys; None: all of them
    scale: float
    softcap: float | None
    head_order: str
    tile: int | None
    dropout_p: float = 0.0
    seed: torch.Tensor | None = None  # int64 [], on the device; None without dropout


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    *,
    causal: bool = False,
    causal_variant: str = "upper_left",
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    head_order: str = "consecutive",
    dropout_p: float = 0.0,
    seed: int | torch.Tensor = 0,
    tile: int | None = None,
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, n_h, s_q, d_v]``, contiguous, from queries ``q[*, n_h, s_q, d]``,
    keys ``k[*, n_kv, s_k, d]`` and values ``v[*, n_kv, s_k, d_v]`` of any strides, with
    the other inputs and the options of ``ops.flash_attention``. Heads may be up to 256
    wide.

    A program holds the scores of at most ``tile`` queries and keys at a time, where
    ``tile`` is rounded down to a power of 2 but not below 16. It never holds more than
    the kernel would choose itself. Raises what the operation raises, TypeError for an
    argument that is not a tensor on a device where kernels run, and ValueError for
    wider heads.
    """
    check_tensors(SHAPES, q=q, k=k, v=v, bias=bias, mask=mask, sink=sink)
    cap = check_attention(causal, causal_variant, window, scale, softcap, head_order)
    check_tile(tile)
    check_probability(dropout_p=dropout_p)
    check_seed(seed=seed)
    *_, s_q, d = q.shape
    *_, s_k, d_v = v.shape
    for name, width in (("q", d), ("v", d_v)):
        if width > WIDTHS[-1]:
            raise ValueError(
                f"{name}: expected heads of a width of at most {WIDTHS[-1]}; got {width}"
            )

    y = torch.empty((*q.shape[:-1], d_v), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=accumulator(q.dtype), device=q.device)
    ahead = None if not causal else s_k - s_q if causal_variant == "lower_right" else 0
    scale = max(d, 1) ** -0.5 if scale is None else float(scale)
    # No window is longer than both sequences together, and a kernel's integers are.
    window = None if window is None else min(int(window), s_q + s_k)
    own = philox.seed_on(seed, q.device) if dropout_p else None
    given = (bias, mask, sink, ahead, window, scale, cap, head_order, tile)
    saved = Saved(q, k, v, y, lse, *given, float(dropout_p), own)
    if needs_launch(lse):
        forward_launch(saved).run()
    return y, saved


def backward(dy: torch.Tensor, saved: Saved) -> tuple[torch.Tensor | None, ...]:
    """Return ``dq[*, n_h, s_q, d]``, ``dk[*, n_kv, s_k, d]``, ``dv[*, n_kv, s_k,
    d_v]``, ``dbias`` of the bias's shape, and ``dsink[n_h]`` (None without a bias or a
    sink), contiguous, from ``dy[*, n_h, s_q, d_v]``, of any strides."""
    saved = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, saved.y.shape, like=saved.y)

    delta = empty_like(saved.lse)
    dq, dk, dv = (empty_like(x) for x in (saved.q, saved.k, saved.v))
    bias, dp, dbias = saved.bias, None, None
    if bias is not None:
        # Tiles that are skipped write nothing.
        shape = (*saved.lse.shape, saved.k.shape[-2])
        dp = torch.zeros(shape, dtype=delta.dtype, device=dy.device)
    for launch in backward_launches(dy, saved, delta, dq, dk, dv, dp):
        launch.run()
    if bias is not None:
        dbias = sum_to_shape(dp, tuple(bias.shape)).to(bias.dtype)
    return dq, dk, dv, dbias, _sink_gradient(saved, delta)


def _sink_gradient(saved: Saved, delta: torch.Tensor) -> torch.Tensor | None:
    """The gradient of each head's sink: over its queries, the sum of the sink's weight
    times −Δ."""
    if saved.sink is None:
        return None
    logs = saved.sink.to(delta.dtype)[:, None] * LOG2_E.value - saved.lse
    of_queries = -torch.exp2(logs) * delta
    shape = (saved.sink.shape[0], 1)
    return sum_to_shape(of_queries, shape)[:, 0].to(saved.sink.dtype)


def forward_launch(saved: Saved) -> Launch:
    """The launch that writes y and the log-sum-exps of ``saved``, both contiguous, from
    its q, k and v."""
    # The kernel takes the largest product for the largest score, which needs a positive
    # scale. Any other scale is moved into the queries.
    if saved.scale <= 0:
        q = saved.q.detach() * (-1 if saved.scale < 0 else 0)
        saved = saved._replace(q=q, scale=-saved.scale or 1.0)
    arrays = {"y_ptr": saved.y, "lse_ptr": saved.lse, "sink_ptr": packed(saved.sink)}
    return _launch(_forward, "forward", saved, arrays)


def backward_launches(
    dy: torch.Tensor,
    saved: Saved,
    delta: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    dp: torch.Tensor | None,
) -> Iterator[Launch]:
    """The launches that write Δ, then dk and dv, then dq and ``dp[*, n_h, s_q, s_k]``,
    all contiguous. A launch with nothing to write is left out."""
    if needs_launch(saved.y):
        yield delta_launch(dy, saved.y, delta)
    else:
        delta.zero_()  # the values have no width, or there are no queries
    numbers: dict[str, Any] = {"lse_ptr": packed(saved.lse), "delta_ptr": delta}
    if needs_launch(dk) or needs_launch(dv):
        arrays = numbers | {"dk_ptr": dk, "dv_ptr": dv}
        yield _launch(_backward_keys, "keys", saved, arrays, dy=dy)
    if needs_launch(dq) or (dp is not None and needs_launch(dp)):
        arrays = numbers | {"dq_ptr": dq, "dp_ptr": dp}
        yield _launch(_backward_queries, "queries", saved, arrays, dy=dy)


def delta_launch(dy: torch.Tensor, y: torch.Tensor, delta: torch.Tensor) -> Launch:
    """The launch that writes Δ, the sum of dy ∘ y over the width of a head, one number
    per row of dy, which may have any strides."""
    dy, strides = rows_of(dy)
    arguments = {"dy_ptr": dy, "y_ptr": packed(y), "delta_ptr": delta, **strides}
    return on_rows(_backward_delta, arguments, y, fused=False)


def _launch(
    kernel: Any,
    part: str,
    saved: Saved,
    contiguous: Mapping[str, torch.Tensor | None],
    **others: torch.Tensor,
) -> Launch:
    """The launch of a kernel on the inputs, and others of any strides: one program per
    tile of the queries or keys that it keeps."""
    q, k, v = saved.q, saved.k, saved.v
    n_h, s_q, d = q.shape[-3:]
    n_kv, s_k, d_v = v.shape[-3:]
    given = saved.softcap, saved.bias, saved.mask, saved.seed
    more = any(x is not None for x in given)
    drops = saved.seed is not None
    chosen = tiles_for(part, q, max(d, d_v), saved.tile, more, drops)
    if part == "keys":
        kept, heads = cdiv(s_k, chosen.keys), math.prod(k.shape[:-2])
    else:
        kept, heads = cdiv(s_q, chosen.queries), math.prod(q.shape[:-2])

    mask = numbers_of(saved.mask, q.dtype)
    inputs = {"q": q, "k": k, "v": v, "bias": saved.bias, "mask": mask, **others}
    arguments = {**contiguous, **strided((*q.shape[:-1], s_k), inputs)}
    arguments |= {"n_kv": n_kv, "g": n_h // n_kv, "s_q": s_q, "s_k": s_k}
    arguments |= {"ahead": saved.ahead, "window": saved.window, "tiles": kept}
    arguments |= {"seed_ptr": saved.seed}
    constants = {
        "CONSECUTIVE": saved.head_order == "consecutive",
        "SCALE": saved.scale,
        "CAP": saved.softcap,
        "D": d,
        "D_V": d_v,
        "WIDTH": padded(d),
        "WIDTH_V": padded(d_v),
        "QUERIES": chosen.queries,
        "KEYS": chosen.keys,
        "LEAST": philox.threshold(saved.dropout_p),
        "KEPT": philox.share(saved.dropout_p),
        "FACTOR": _factor_dtype(q.dtype),
        "WIDE": TRITON_DTYPES[accumulator(q.dtype)],
    }
    return Launch(
        kernel, heads * kept, arguments, constants, chosen.warps, chosen.stages
    )


def _factor_dtype(dtype: torch.dtype) -> tl.dtype:
    """The dtype in which factors are multiplied: that of the inputs. The interpreter
    computes products of bfloat16 wrongly, so there it is float32."""
    if dtype == torch.bfloat16:
        return tl.float32 if interpreted() else tl.bfloat16
    return tl.float16 if dtype == torch.float16 else TRITON_DTYPES[dtype]


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at telling shapes, named, on tensors without memory: to be compiled,
    not run."""
    widths = {torch.float16: (64,), torch.bfloat16: (128, 256)}.get(dtype, (128,))
    for d in widths:
        yield from ((f"d = {d}", launch) for launch in launches_at(dtype, d, d))
        for launch in launches_at(dtype, d, d, more=True):
            yield f"d = {d}, every input", launch
    if dtype == torch.float16:
        for launch in launches_at(dtype, 64, 64, ahead=None):
            yield "d = 64, not causal", launch
    if dtype == torch.bfloat16:
        for launch in launches_at(dtype, 128, 128, dropout_p=0.1):
            yield "d = 128, dropout", launch


def launches_at(
    dtype: torch.dtype,
    d: int,
    d_v: int,
    ahead: int | None = 0,
    more: bool = False,
    dropout_p: float = 0.0,
) -> Iterator[Launch]:
    """The four launches for 4096 tokens, 32 query heads and 8 key heads, in memory as a
    projection writes them: ``[b, s, n, d]``. With ``more``, there are a bias, a mask of
    padding, sinks, a window and a softcap."""
    like: dict[str, Any] = {"dtype": dtype, "device": "meta"}
    q, k, v, dy = (
        torch.empty(2, 4096, n, width, **like).transpose(1, 2)
        for n, width in ((32, d), (8, d), (8, d_v), (32, d_v))
    )
    lse = torch.empty(q.shape[:-1], dtype=accumulator(dtype), device="meta")
    y, dq, dk, dv = (torch.empty(x.shape, **like) for x in (dy, q, k, v))
    given = (None, None, None, ahead, None, d**-0.5, None, "consecutive", None)
    seed = torch.empty((), dtype=torch.int64, device="meta") if dropout_p else None
    saved, dp = Saved(q, k, v, y, lse, *given, dropout_p, seed), None
    if more:
        mask = torch.empty(2, 1, 1, 4096, dtype=torch.bool, device="meta")
        saved = saved._replace(
            bias=torch.empty(1, 1, 4096, 4096, **like),
            mask=mask,
            sink=torch.empty(32, **like),
            window=1024,
            softcap=50.0,
        )
        dp = torch.empty((*lse.shape, 4096), dtype=lse.dtype, device="meta")
    yield forward_launch(saved)
    yield from backward_launches(dy, saved, lse, dq, dk, dv, dp)


@triton.jit
def _forward(
    q_ptr,  # [b, g·n_kv, s_q, d]
    k_ptr, v_ptr,  # [b, n_kv, s_k, d], [b, n_kv, s_k, d_v]
    bias_ptr, mask_ptr,  # [b, g·n_kv, s_q, s_k]
    strides,  # of these
    seed_ptr,  # int64 [], with dropout
    sink_ptr,  # [g·n_kv]
    y_ptr,  # [b, g·n_kv, s_q, d_v], contiguous
    lse_ptr,  # [b, g·n_kv, s_q], contiguous
    n_kv, g, s_q, s_k, ahead, window, tiles,
    CONSECUTIVE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
    D: tl.constexpr, D_V: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr, KEPT: tl.constexpr,
    FACTOR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = softmax(scale · q kᵀ) v and the log-sum-exp, QUERIES queries of a head per
    program, in a loop over the keys they see."""
    first, b_head, b, head, key_head = queries_of(tiles, n_kv, g, CONSECUTIVE, QUERIES)
    k_head = head_of(k_ptr, b, key_head, strides.k)
    v_head = head_of(v_ptr, b, key_head, strides.v)

    row = first + tl.arange(0, QUERIES)
    q_head = head_of(q_ptr, b, head, strides.q)
    q = load_rows(q_head, row, s_q, strides.q, D, WIDTH, FACTOR)  # [QUERIES, WIDTH]

    bias_head = head_of(bias_ptr, b, head, strides.bias)
    mask_head = head_of(mask_ptr, b, head, strides.mask)
    UNIT: tl.constexpr = unit_of(strides, SCALE, CAP)
    # A sink is a key that was seen before the first tile, and has no value.
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + head).to(WIDE)
        top = tl.zeros([QUERIES], WIDE) + sink * LOG2_E
        total = tl.full([QUERIES], 1.0, WIDE)
    else:
        top = tl.full([QUERIES], -float("inf"), WIDE)
        total = tl.zeros([QUERIES], WIDE)
    y = tl.zeros([QUERIES, WIDTH_V], WIDE)
    seed = seed_of(seed_ptr)
    mask_row = mask_rows(b, head, key_head, n_kv, g, s_q, CONSECUTIVE) + row
    begin, whole, end = keys_seen(first, s_k, ahead, window, QUERIES, KEYS)
    for masked in tl.static_range(2):
        for start in range(whole if masked else begin, end if masked else whole, KEYS):
            column = start + tl.arange(0, KEYS)
            k = load_rows(k_head, column, s_k, strides.k, D, WIDTH, FACTOR)
            v = load_rows(v_head, column, s_k, strides.v, D_V, WIDTH_V, FACTOR)
            scores, _ = scores_of(
                q, k, row[:, None], column[None, :], None, bias_head, mask_head, strides,
                s_q, s_k, ahead, window, masked, SCALE, CAP, WIDE,
            )  # fmt: skip

            # When a tile raises the maximum, what was summed so far was summed against
            # the old one, and 2^(old − new) puts that right. A query that has seen no
            # key yet has no maximum: subtract 0.
            higher = tl.maximum(top, tl.max(scores, axis=1) * UNIT)
            subtracted = tl.where(higher == -float("inf"), 0.0, higher)
            exps = tl.exp2(scores * UNIT - subtracted[:, None])
            rescale = tl.exp2(top - subtracted)
            total = total * rescale + tl.sum(exps, axis=1)
            if seed_ptr is not None:
                kept = kept_of(mask_row, start, seed, s_k, LEAST, QUERIES, KEYS)
                exps = tl.where(kept, exps, 0.0)
            y = y * rescale[:, None]
            y = tl.dot(exps.to(FACTOR), v, y, input_precision="ieee", out_dtype=WIDE)
            top = higher

    # For a query that saw no key, y is 0 and the log-sum-exp ∞, so that the backward
    # computes the weight 0 for every key.
    nothing = top == -float("inf")
    divisor = tl.where(nothing, 1.0, total)
    y = y / divisor[:, None]
    if seed_ptr is not None:
        y = y / KEPT
    lse = tl.where(nothing, float("inf"), top + tl.log2(divisor))

    tl.store(lse_ptr + b_head * s_q + row, lse, mask=row < s_q)
    store_rows(y_ptr + b_head * s_q * D_V, row, s_q, y, D_V, WIDTH_V)


@triton.jit
def _backward_delta(
    dy_ptr,  # [m, n], of the strides given: a row for each query of each head
    y_ptr,  # [m, n], contiguous
    delta_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    m, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Δ = Σ dy y, ROWS rows of at most COLUMNS elements per program."""
    # [ROWS, 1] and [1, COLUMNS]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
    inside = (row < m) & (column < n)

    start = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    dy = tl.load(dy_ptr + (start + column * stride_n), mask=inside, other=0.0).to(WIDE)
    y = tl.load(y_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)
    delta = tl.sum(dy * y, axis=1, keep_dims=True)

    tl.store(delta_ptr + row, delta, mask=row < m)


@triton.jit
def _backward_keys(
    q_ptr,  # [b, g·n_kv, s_q, d]
    k_ptr, v_ptr,  # [b, n_kv, s_k, d], [b, n_kv, s_k, d_v]
    dy_ptr,  # [b, g·n_kv, s_q, d_v]
    bias_ptr, mask_ptr,  # [b, g·n_kv, s_q, s_k]
    strides,  # of these
    seed_ptr,  # int64 [], with dropout
    lse_ptr, delta_ptr,  # [b, g·n_kv, s_q], contiguous
    dk_ptr, dv_ptr,  # [b, n_kv, s_k, d], [b, n_kv, s_k, d_v], contiguous
    n_kv, g, s_q, s_k, ahead, window, tiles,
    CONSECUTIVE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
    D: tl.constexpr, D_V: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr, KEPT: tl.constexpr,
    FACTOR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dk and dv, KEYS keys of a key head per program, in a loop over the queries that
    see them, in each head that reads them."""
    # The first keys are seen by most queries: their programs start first.
    first = tl.program_id(0) % tiles * KEYS
    b_key_head = (tl.program_id(0) // tiles).to(tl.int64)
    b, key_head = b_key_head // n_kv, b_key_head % n_kv

    column = first + tl.arange(0, KEYS)
    k_head = head_of(k_ptr, b, key_head, strides.k)
    v_head = head_of(v_ptr, b, key_head, strides.v)
    k = load_rows(k_head, column, s_k, strides.k, D, WIDTH, FACTOR)  # [KEYS, WIDTH]
    v = load_rows(v_head, column, s_k, strides.v, D_V, WIDTH_V, FACTOR)

    dk = tl.zeros([KEYS, WIDTH], WIDE)
    dv = tl.zeros([KEYS, WIDTH_V], WIDE)
    seed = seed_of(seed_ptr)
    begin, whole, end = queries_seeing(first, s_q, ahead, window, QUERIES, KEYS)
    for masked in tl.static_range(2):
        # One loop over all heads that read these keys, so that a head's loads do not
        # wait for the head before it.
        start, stop = (begin, whole) if masked else (whole, end)
        steps = tl.cdiv(tl.maximum(stop - start, 0), QUERIES)
        # A loop of no steps, as the second is without a mask, divides by them all the
        # same, for the loads that run ahead of it. After a division by 0 the compiler
        # is free to read from anywhere.
        divisor = tl.maximum(steps, 1)
        for step in range(0, g * steps):
            member = step // divisor
            head = key_head * g + member if CONSECUTIVE else member * n_kv + key_head
            b_head = b * g * n_kv + head
            q_head = head_of(q_ptr, b, head, strides.q)
            dy_head = head_of(dy_ptr, b, head, strides.dy)
            bias_head = head_of(bias_ptr, b, head, strides.bias)
            mask_head = head_of(mask_ptr, b, head, strides.mask)
            row = start + step % divisor * QUERIES + tl.arange(0, QUERIES)
            q = load_rows(q_head, row, s_q, strides.q, D, WIDTH, FACTOR)
            dy = load_rows(dy_head, row, s_q, strides.dy, D_V, WIDTH_V, FACTOR)

            # Everything is transposed, [KEYS, QUERIES], so that no weight has to move
            # for a product. Past the last query the log-sum-exp is ∞ and the weight 0;
            # keys past the last have rows of their own, which are never stored.
            at = b_head * s_q + row
            lse = tl.load(lse_ptr + at, mask=row < s_q, other=float("inf"))
            da = tl.dot(v, tl.trans(dy), input_precision="ieee", out_dtype=WIDE)
            logs, t = scores_of(
                k, q, row[None, :], column[:, None], lse[None, :], bias_head, mask_head, strides,
                s_q, s_k, ahead, window, masked, SCALE, CAP, WIDE,
            )  # fmt: skip
            a = tl.exp2(logs)
            used = a
            if seed_ptr is not None:
                of_head = mask_rows(b, head, key_head, n_kv, g, s_q, CONSECUTIVE)
                kept = kept_of(of_head + row, first, seed, s_k, LEAST, QUERIES, KEYS)
                kept = tl.trans(kept)
                used, da = tl.where(kept, a, 0.0), tl.where(kept, da, 0.0)
            dv = tl.dot(used.to(FACTOR), dy, dv, input_precision="ieee", out_dtype=WIDE)
            delta = tl.load(delta_ptr + at, mask=row < s_q, other=0.0)
            if seed_ptr is not None:
                delta = delta * KEPT
            dp = a * (da - delta[None, :])  # while tensor cores work on dv
            if CAP is not None:
                dp = dp * (1.0 - t * t)
            dk = tl.dot(dp.to(FACTOR), q, dk, input_precision="ieee", out_dtype=WIDE)

    # The gradients of the weights that were kept are times 1/KEPT: so are all sums.
    if seed_ptr is not None:
        dk, dv = dk / KEPT, dv / KEPT
    store_rows(dk_ptr + b_key_head * s_k * D, column, s_k, dk * SCALE, D, WIDTH)
    store_rows(dv_ptr + b_key_head * s_k * D_V, column, s_k, dv, D_V, WIDTH_V)


@triton.jit
def _backward_queries(
    q_ptr,  # [b, g·n_kv, s_q, d]
    k_ptr, v_ptr,  # [b, n_kv, s_k, d], [b, n_kv, s_k, d_v]
    dy_ptr,  # [b, g·n_kv, s_q, d_v]
    bias_ptr, mask_ptr,  # [b, g·n_kv, s_q, s_k]
    strides,  # of these
    seed_ptr,  # int64 [], with dropout
    lse_ptr, delta_ptr,  # [b, g·n_kv, s_q], contiguous
    dq_ptr,  # [b, g·n_kv, s_q, d], contiguous
    dp_ptr,  # [b, g·n_kv, s_q, s_k], contiguous
    n_kv, g, s_q, s_k, ahead, window, tiles,
    CONSECUTIVE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
    D: tl.constexpr, D_V: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr, KEPT: tl.constexpr,
    FACTOR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dq, QUERIES queries of a head per program, in a loop over the keys they see."""
    first, b_head, b, head, key_head = queries_of(tiles, n_kv, g, CONSECUTIVE, QUERIES)
    k_head = head_of(k_ptr, b, key_head, strides.k)
    v_head = head_of(v_ptr, b, key_head, strides.v)

    row = first + tl.arange(0, QUERIES)
    q_head = head_of(q_ptr, b, head, strides.q)
    dy_head = head_of(dy_ptr, b, head, strides.dy)
    q = load_rows(q_head, row, s_q, strides.q, D, WIDTH, FACTOR)  # [QUERIES, WIDTH]
    dy = load_rows(dy_head, row, s_q, strides.dy, D_V, WIDTH_V, FACTOR)
    bias_head = head_of(bias_ptr, b, head, strides.bias)
    mask_head = head_of(mask_ptr, b, head, strides.mask)
    lse = tl.load(lse_ptr + b_head * s_q + row, mask=row < s_q, other=float("inf"))
    delta = tl.load(delta_ptr + b_head * s_q + row, mask=row < s_q, other=0.0)

    dq = tl.zeros([QUERIES, WIDTH], WIDE)
    seed = seed_of(seed_ptr)
    mask_row = mask_rows(b, head, key_head, n_kv, g, s_q, CONSECUTIVE) + row
    if seed_ptr is not None:
        delta = delta * KEPT  # as all gradients of scores here; divided at the end
    begin, whole, end = keys_seen(first, s_k, ahead, window, QUERIES, KEYS)
    for masked in tl.static_range(2):
        for start in range(whole if masked else begin, end if masked else whole, KEYS):
            column = start + tl.arange(0, KEYS)
            k = load_rows(k_head, column, s_k, strides.k, D, WIDTH, FACTOR)
            v = load_rows(v_head, column, s_k, strides.v, D_V, WIDTH_V, FACTOR)
            logs, t = scores_of(
                q, k, row[:, None], column[None, :], lse[:, None], bias_head, mask_head, strides,
                s_q, s_k, ahead, window, masked, SCALE, CAP, WIDE,
            )  # fmt: skip
            a = tl.exp2(logs)
            da = tl.dot(dy, tl.trans(v), input_precision="ieee", out_dtype=WIDE)
            if seed_ptr is not None:
                kept = kept_of(mask_row, start, seed, s_k, LEAST, QUERIES, KEYS)
                da = tl.where(kept, da, 0.0)
            dp = a * (da - delta[:, None])
            if dp_ptr is not None:
                at = (b_head * s_q + row)[:, None] * s_k + column[None, :]
                exists = (row[:, None] < s_q) & (column[None, :] < s_k)
                of_bias = dp / KEPT if seed_ptr is not None else dp
                tl.store(dp_ptr + at, of_bias, mask=exists)
            if CAP is not None:
                dp = dp * (1.0 - t * t)
            dq = tl.dot(dp.to(FACTOR), k, dq, input_precision="ieee", out_dtype=WIDE)

    if seed_ptr is not None:
        dq = dq / KEPT
    store_rows(dq_ptr + b_head * s_q * D, row, s_q, dq * SCALE, D, WIDTH)
