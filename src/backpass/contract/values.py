"""Checks of what a declaration of shapes cannot state: options, tokens and targets.

A check belongs here when several modules need it. A check that only one operation needs
belongs in that operation's module.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from backpass.contract.arrays import (
    Array,
    is_array,
    is_remote,
    is_unread,
    name_of,
    namespace,
    size,
    widened,
)

REDUCTIONS = ("mean", "sum", "none")  # of a loss
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swiglu")  # of a feed-forward block


def check_natural(**numbers: object) -> None:
    """Raise TypeError or ValueError unless each number is an integer of at least 0.

    A bool is not accepted, though Python counts it among the integers.
    """
    for name, value in numbers.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name}: expected an integer; got {type(value).__name__}")
        if value < 0:
            raise ValueError(f"{name}: expected an integer of at least 0; got {value}")


def check_seed(**seeds: object) -> None:
    """Raise TypeError or ValueError unless each seed is an integer of at least 0 and
    below 2⁶⁴, or an int64 array of shape ``[]``, whose value is not read."""
    for name, value in seeds.items():
        if is_array(value) and not isinstance(value, Integral):
            shape, of = list(value.shape), name_of(value.dtype)
            if shape or of != "int64":
                raise TypeError(
                    f"{name}: expected an integer, or an int64 array of shape []; "
                    f"got {of} of shape {shape}"
                )
            continue
        check_natural(**{name: value})
        if value >= 2**64:  # type: ignore[operator]  # it is an integer
            raise ValueError(f"{name}: expected an integer below 2^64; got {value}")


def check_distinct(distinct: Any, tokens: Any, vocabulary: Any) -> None:
    """Raise TypeError or ValueError unless ``distinct`` can be the number of different
    tokens among so many. Symbols are not checked."""
    if getattr(distinct, "free_symbols", None):
        return
    check_natural(distinct=distinct)
    limits = ((tokens, "number of tokens"), (vocabulary, "size of the vocabulary"))
    for limit, what in limits:
        if not getattr(limit, "free_symbols", None) and distinct > limit:
            raise ValueError(
                f"distinct: expected at most {limit}, the {what}; got {distinct}"
            )


def check_eps(eps: object) -> None:
    """Raise TypeError or ValueError unless ``eps`` is a finite number of at least 0."""
    if not isinstance(eps, Real):
        if getattr(eps, "is_real", False):  # a SymPy symbol
            return
        raise TypeError(f"eps: expected a real number; got {type(eps).__name__}")
    if not 0 <= float(eps) < math.inf:
        raise ValueError(f"eps: expected a finite number of at least 0; got {eps}")


def check_loss_scale(scale: object) -> None:
    """Raise TypeError unless ``scale`` is a real number; ValueError unless it is finite
    and above 0."""
    if not isinstance(scale, Real):
        raise TypeError(f"scale: expected a real number; got {type(scale).__name__}")
    if not 0 < float(scale) < math.inf:
        raise ValueError(f"scale: expected a finite number above 0; got {scale}")


def check_probability(**numbers: object) -> None:
    """Raise TypeError or ValueError unless each number is a real one from 0 to 1."""
    for name, value in numbers.items():
        if not isinstance(value, Real):
            raise TypeError(
                f"{name}: expected a probability, a real number; "
                f"got {type(value).__name__}"
            )
        if not 0 <= float(value) <= 1:
            raise ValueError(f"{name}: expected a probability from 0 to 1; got {value}")


def check_label_smoothing(value: object) -> None:
    """Raise TypeError or ValueError unless ``value`` is a real number from 0 to 1."""
    if not getattr(value, "is_real", False):  # a SymPy symbol
        check_probability(label_smoothing=value)


def check_bool(**flags: object) -> None:
    """Raise TypeError unless each flag is a bool."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(
                f"{name}: expected True or False; got {type(value).__name__}"
            )


def check_one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    """Raise ValueError unless the value of the option ``name`` is one of ``words``."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(
            f"{name}: expected {' or '.join(map(repr, words))}; got {value!r}"
        )


def check_causal(causal: object, causal_variant: object) -> None:
    """Raise TypeError unless ``causal`` is a bool, and ValueError unless
    ``causal_variant`` names a way of aligning queries with keys."""
    check_bool(causal=causal)
    check_one_of("causal_variant", causal_variant, ("upper_left", "lower_right"))


def check_attention(
    causal: bool,
    causal_variant: str,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    head_order: str,
) -> Any:
    """Check the options that all attention operations have; return ``softcap`` as
    ``checked_cap`` does, or None. Raises TypeError or ValueError."""
    check_causal(causal, causal_variant)
    _check_window(window, causal)
    check_head_order(head_order)
    check_scale(scale)
    return None if softcap is None else checked_cap(softcap, "softcap")


def _check_window(window: object, causal: bool) -> None:
    """Raise TypeError or ValueError unless ``window``, the number of keys that a query
    may see, is None or an integer of at least 1, and given only with ``causal``."""
    if window is None:
        return
    if not isinstance(window, Integral) or isinstance(window, bool):
        raise TypeError(
            f"window: expected an integer, or None for no limit; "
            f"got {type(window).__name__}"
        )
    if window < 1:
        raise ValueError(f"window: expected at least 1 key; got {window}")
    if not causal:
        raise ValueError(f"window: expected None without causal=True; got {window}")


def checked_cap(cap: Any, name: str = "cap") -> Any:
    """Return the cap as a Python float, or a positive symbol as it is. Raises TypeError
    or ValueError."""
    if getattr(cap, "is_positive", False):
        return cap
    if not isinstance(cap, Real):
        raise TypeError(f"{name}: expected a positive number; got {type(cap).__name__}")
    if not 0 < float(cap) < math.inf:
        raise ValueError(f"{name}: expected a positive number; got {cap}")
    return float(cap)


def check_head_order(head_order: str) -> None:
    """Raise ValueError unless ``head_order`` names a way of assigning query heads to
    key heads."""
    check_one_of("head_order", head_order, ("consecutive", "interleaved"))


def check_tables(x: object, **tables: object) -> None:
    """Raise ValueError for a table of RoPE that is as wide as ``x[*, s, 2k]``, not half
    as wide, or that has rows for each sequence but no axis for the heads."""
    for name, table in tables.items():
        if not is_array(x) or not is_array(table):
            continue  # which the declaration of shapes rejects
        width = x.shape[-1] if x.shape else 0
        if width > 1 and table.shape[-1:] == (width,):
            raise ValueError(
                f"{name}: expected {name}[*, s, k] with k = {width // 2}, half the "
                f"width of x; got shape {list(table.shape)}. If the table has each "
                f"number twice, as Hugging Face's, pass backpass.ops.rope.narrow({name})"
            )
        if (
            (len(x.shape), len(table.shape)) == (4, 3)
            and table.shape[0] == x.shape[0]
            and table.shape[0] not in (1, x.shape[1])
        ):
            raise ValueError(
                f"{name}: expected {name}[*, s, k] with leading axes that broadcast to "
                f"{list(x.shape[:-2])}, those of x; got shape {list(table.shape)}. For a "
                f"table of each sequence, pass {name}[:, None]"
            )


def check_scale(scale: object) -> None:
    """Raise TypeError unless ``scale`` is a real number or None."""
    if (
        scale is not None
        and not isinstance(scale, Real)
        and not getattr(scale, "is_real", False)
    ):
        raise TypeError(
            "scale: expected a real number, or None for 1/√d; "
            f"got {type(scale).__name__}"
        )


def check_activation(
    activation: object, w_gate: Array | None, b_gate: Array | None
) -> None:
    """Raise ValueError unless ``activation`` is one of a feed-forward block, and the
    gate's weights are given with "swiglu" alone."""
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation: expected one of {', '.join(ACTIVATIONS)}; got {activation!r}"
        )
    if activation == "swiglu" and w_gate is None:
        raise ValueError(
            "w_gate: expected an array w_gate[h, f] with activation='swiglu'; got None"
        )
    if activation != "swiglu":
        for name, array in (("w_gate", w_gate), ("b_gate", b_gate)):
            if array is not None:
                raise ValueError(
                    f"{name}: expected None with activation={activation!r}, which has no gate; got an array"
                )


def check_tile(tile: object) -> None:
    """Raise TypeError or ValueError unless ``tile``, the side of a tile of scores, is
    an integer of at least 1 or None."""
    if tile is None or getattr(tile, "is_Symbol", False):
        return
    if not isinstance(tile, Integral):
        raise TypeError(f"tile: expected an integer; got {type(tile).__name__}")
    if tile < 1:
        raise ValueError(
            f"tile: expected at least 1 query and key at a time; got {tile}"
        )


def check_padding_idx(padding_idx: object, vocabulary: int) -> int | None:
    """Return the token whose row is not trained, counted from 0; None for None.

    A negative one counts from the end of the vocabulary. Raises TypeError unless it is
    an integer or None, and ValueError unless the vocabulary has it.
    """
    if padding_idx is None:
        return None
    if not isinstance(padding_idx, Integral) or isinstance(padding_idx, bool):
        raise TypeError(
            "padding_idx: expected an integer, or None; "
            f"got {type(padding_idx).__name__}"
        )
    row = int(padding_idx)
    if not -vocabulary <= row < vocabulary:
        raise ValueError(
            f"padding_idx: expected an integer from {-vocabulary} to "
            f"{vocabulary - 1}; got {row}"
        )
    return row % vocabulary


def check_tokens(t: Array, vocabulary: int) -> Array:
    """Return the tokens as int64. Raises IndexError for one outside the vocabulary; for
    tokens that cannot be read, as ``assert_all`` says."""
    xp = namespace(t)
    t = t if t.dtype == xp.int64 else xp.astype(t, xp.int64)
    outside = (t < 0) | (t >= vocabulary)
    expected = f"tokens from 0 to {vocabulary - 1}"
    if is_unread(t):
        assert_all(~outside, f"t: expected {expected}")
    elif xp.any(outside):
        largest, smallest = int(xp.max(t)), -int(xp.max(-t))
        token = largest if largest >= vocabulary else smallest
        raise IndexError(f"t: expected {expected}; got {token}")
    return t


def check_targets(
    t: Array,
    classes: int,
    ignore_index: int,
    reduction: str,
    weight: Array | None = None,
) -> tuple[Array, Any]:
    """Return the targets ``[*]``, −1 where ignored, and the divisor of the loss.

    The divisor is None unless ``reduction`` is "mean". For the mean it is the number of
    targets that are not ignored, or NaN if there are none; with class weights
    ``weight[V]`` it is an array ``[]``, the sum of these targets' weights, or NaN if
    that is 0. Raises TypeError or ValueError for an option, and IndexError for a target
    outside the classes. If targets cannot be read, the number is an array ``[]``, 0 if
    all are ignored, and ``assert_all`` says what a target outside raises.
    """
    check_one_of("reduction", reduction, REDUCTIONS)
    if not isinstance(ignore_index, Integral):
        raise TypeError(
            f"ignore_index: expected an integer; got {type(ignore_index).__name__}"
        )
    if not -(2**63) <= ignore_index < 2**63:
        raise ValueError(
            f"ignore_index: expected an integer of at most 64 bits; got {ignore_index}"
        )
    xp = namespace(t)
    unsigned = xp.isdtype(t.dtype, "unsigned integer")
    t = xp.astype(t, xp.int64)
    counted = t != int(ignore_index)
    if unsigned:  # a number of 2^63 or more became negative
        counted = counted | (t < 0)
    outside = counted & ((t < 0) | (t >= classes))

    expected = f"targets from 0 to {classes - 1}, or {ignore_index} to ignore"
    marked = xp.where(counted, t, -1)
    count: Any
    if is_unread(t):
        assert_all(~outside, f"t: expected {expected}")
        count = xp.sum(xp.astype(counted, xp.int64))
    else:
        # One number says both how many count and whether any is outside.
        rows = size(t.shape)
        count = int(xp.sum(xp.where(outside, rows + 1, xp.astype(counted, xp.int64))))
        if count > rows:
            raise IndexError(f"t: expected {expected}; got {_first(t, outside)}")
    if reduction != "mean":
        return marked, None
    if weight is not None:
        total = xp.sum(weights_at(weight, marked))
        return marked, xp.where(total == 0, math.nan, total)
    return marked, count if is_array(count) else count or math.nan


def check_reduced(reduction: object) -> None:
    """Raise ValueError unless ``reduction`` makes the loss one number."""
    if reduction == "none":
        raise ValueError(
            "reduction: expected 'mean' or 'sum', whose gradient is one number, a factor "
            "of all others; got 'none'; linear and cross_entropy return the loss of each "
            "row"
        )
    check_one_of("reduction", reduction, ("mean", "sum"))


def weights_at(weight: Array, t: Array) -> Array:
    """Return the class weight of each target of ``t[*]``, 0 where the target is −1."""
    xp = namespace(weight, t)
    classes = xp.reshape(xp.where(t < 0, 0, t), (-1,))
    found = xp.reshape(xp.take(widened(weight), classes, axis=0), t.shape)
    return xp.where(t < 0, 0.0, found)


def shape_of_loss(t: Array, reduction: str) -> tuple[int, ...]:
    """Return the shape of the loss at the targets ``t[*]``: ``[*]`` if it is not
    reduced, otherwise ``[]``."""
    return tuple(t.shape) if reduction == "none" else ()


def at_least_one(divisor: Any, targets: Array) -> Any:
    """Return the divisor that ``check_targets`` returned with these ``targets[m]``, or
    1 if none of them counts: their loss is NaN, but their gradients stay 0."""
    if divisor is None or isinstance(divisor, Real):
        return 1 if divisor is not None and math.isnan(divisor) else divisor
    xp = namespace(divisor, targets)
    return xp.where(xp.all(targets < 0), 1, divisor)


def assert_all(true: Array, message: str) -> None:
    """Check that all of ``true[*]`` is true where no number can be read.

    A graph of torch.compile raises RuntimeError when it runs. A CUDA device prints the
    message and stops: the next call that waits for it raises, and so do all later ones.
    """
    xp = namespace(true)
    xp.ops.aten._assert_async.msg(xp.all(true), message)


def check_sums(name: str, sums: Array, nothing: Array) -> None:
    """Raise ValueError for the first row of ``name`` whose sum is not positive.

    ``sums[*, 1]`` are the rows' sums. Rows marked in ``nothing[*, 1]`` have no entries
    and pass. For sums on a CUDA device, ``assert_all`` says what is raised.
    """
    xp = namespace(sums)
    wrong = (sums <= 0) & ~nothing  # False for NaN, which passes
    expected = f"{name}: expected rows whose sums are positive"
    if is_remote(sums):
        assert_all(~wrong, expected)
    elif xp.any(wrong):
        rows, wrong = (xp.reshape(array, (-1,)) for array in (sums, wrong))
        first = next(at for at in range(rows.shape[0]) if wrong[at])
        total = rows[first]
        if hasattr(total, "to_numpy"):
            total = total.to_numpy()[()]
        row: list[int] = []
        for length in reversed(sums.shape[:-1]):
            first, index = divmod(first, length)
            row = [index, *row]
        where = f"row {row}" if row else "the only row"
        raise ValueError(f"{expected}; got a sum of {total} in {where}")


def chunk_or_default(chunk: object, m: int, h: int, V: int) -> int:
    """Return how many of ``m`` tokens to process at a time: ``chunk``, or a default.

    By default the scores ``[chunk, V]`` are a quarter as large as the gradients of
    ``x[m, h]`` and ``w[h, V]`` together. Raises TypeError or ValueError unless
    ``chunk`` is an integer of at least 1 or None.
    """
    if chunk is None:
        return max(1, (h + m * h // V) // 4)
    if not isinstance(chunk, Integral):
        raise TypeError(f"chunk: expected an integer; got {type(chunk).__name__}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token at a time; got {chunk}")
    return int(chunk)


def _first(values: Array, chosen: Array) -> int:
    """Return the first of the integers for which ``chosen`` is true."""
    xp = namespace(values, chosen)
    values, chosen = xp.reshape(values, (-1,)), xp.reshape(chosen, (-1,))
    return next(int(values[at]) for at in range(values.shape[0]) if chosen[at])
