"""How results lie in memory: totals and rows written in place, and products laid out
like another array."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from backpass.contract.arrays import (
    Array,
    as_matrix,
    is_traced,
    namespace,
    one_hot,
    pick,
    transpose,
)


def plus(total: Array | None, term: Array) -> Array:
    """Return ``total + term``, or the term alone if there is no total yet."""
    return term if total is None else total + term


def product(a: Array, b: Array, turned: bool) -> Array:
    """Return ``a @ b``; if ``turned``, as a transposed view of an array.

    If a weight is such a view, its gradient should be one too. Then adding the gradient
    to the weight, or to another such gradient, reads both in the order of memory.
    Otherwise each step along a row of one array is a step along a column of the other.
    """
    return transpose(transpose(b) @ transpose(a)) if turned else a @ b


def product_plus(x: Array, w: Array, b: Array) -> Array:
    """Return ``x[*, n] @ w[n, p] + b[p]``. PyTorch adds ``b`` while it multiplies."""
    xp = namespace(x)
    if not array_api_compat.is_torch_array(x):
        return x @ w + b
    return xp.reshape(xp.addmm(b, as_matrix(x), w), (*x.shape[:-1], w.shape[1]))


def is_turned(x: Any) -> bool:
    """Whether ``x[m, n]`` is a transposed view: it lies in memory column by column."""
    if array_api_compat.is_torch_array(x):
        return x.mT.is_contiguous() and not x.is_contiguous()
    return (
        array_api_compat.is_numpy_array(x)
        and x.flags.f_contiguous
        and not x.flags.c_contiguous
    )


def add_product(total: Array | None, a: Array, b: Array, like: object = None) -> Array:
    """Return ``total + a @ b`` for matrices or stacks of matrices, or the product alone
    if there is no total yet. The first product lies in memory as ``like``.

    NumPy and PyTorch add in the storage of ``total``, which must be the caller's own.
    PyTorch allocates no second array of its size.
    """
    if total is None:
        return product(a, b, is_turned(like))
    if array_api_compat.is_torch_array(total):
        return total.addmm_(a, b) if len(total.shape) == 2 else total.baddbmm_(a, b)
    total += a @ b
    return total


def set_rows(whole: Array, part: Array, start: int) -> Array:
    """Return ``whole[*, m, n]`` with its rows from ``start`` on replaced by
    ``part[*, k, n]``.

    NumPy and PyTorch write to the storage of ``whole``, which must be the caller's own.
    """
    stop = start + part.shape[-2]
    if array_api_compat.is_torch_array(whole) or array_api_compat.is_numpy_array(whole):
        whole[..., start:stop, :] = part
        return whole
    return namespace(whole).concat(
        [whole[..., :start, :], part, whole[..., stop:, :]], axis=-2
    )


def add_tile(whole: Array, part: Array, at: tuple) -> Array:
    """Return ``whole`` with ``part`` added at an index: a slice of each axis, of which
    only those of the last two may leave elements out.

    NumPy and PyTorch write to the storage of ``whole``, which must be the caller's own.
    """
    if array_api_compat.is_torch_array(whole) or array_api_compat.is_numpy_array(whole):
        whole[at] += part
        return whole
    xp, shape = namespace(whole), whole.shape
    *_, rows, columns = (slice(0, 1), slice(0, 1), *at)
    whole, part = (xp.reshape(x, (1, 1, *x.shape)) for x in (whole, part))
    band = whole[..., rows, :]
    before, after = band[..., : columns.start], band[..., columns.stop :]
    band = xp.concat([before, band[..., columns] + part, after], axis=-1)
    return xp.reshape(set_rows(whole, band, rows.start), shape)


def less_at(x: Array, index: Array, amount: Any = 1) -> Array:
    """Return ``x[m, n]`` less an amount at entry ``index[m]`` of each row, and 0
    throughout a row whose index is −1. The amount is a number, or one for each row,
    ``[m, 1]``.

    NumPy and PyTorch write to the storage of ``x``, which must be the caller's own.
    While torch.compile traces, each element is computed instead: a scatter could not be
    fused with the loops around it, and its result would be saved for the backward.
    """
    xp, nowhere = namespace(x, index), (index < 0)[:, None]  # [m, 1]
    if is_traced(xp):
        less = xp.where(one_hot(index, x.shape[-1]), x - amount, x)
        return xp.where(nowhere, 0.0, less)
    if array_api_compat.is_torch_array(x):
        at = index.clamp(min=0)[:, None]
        x.masked_fill_(nowhere, 0)
        return x.scatter_(1, at, (x.gather(1, at) - amount).masked_fill_(nowhere, 0))
    if array_api_compat.is_numpy_array(x):
        at = index[:, None]  # −1 is the last entry, which is 0 in the end
        less = np.take_along_axis(x, at, axis=1) - amount
        np.put_along_axis(x, at, less, axis=1)
        np.copyto(x, 0, where=nowhere)
        return x
    less = pick(x, index)[:, None] - amount
    return xp.where(nowhere, 0.0, xp.where(one_hot(index, x.shape[-1]), less, x))


def exp_in_place(x: Array) -> Array:
    """Return ``e^x``. NumPy and PyTorch write it over ``x``, which must be the caller's
    own.

    On a CPU, PyTorch's exp2 takes about half as long as its exp, and less than a tenth
    as long where the results underflow.
    """
    if array_api_compat.is_torch_array(x):
        return x.mul_(math.log2(math.e)).exp2_()
    return (
        np.exp(x, out=x) if array_api_compat.is_numpy_array(x) else namespace(x).exp(x)
    )
