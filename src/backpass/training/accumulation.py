r"""The gradients of a batch that is too large for one forward, from its micro-batches.

A model's loss is a mean over the targets that are counted, those that are not ignored.
So the loss of the whole batch is the mean of the micro-batches' losses, each weighted
by the number of its counted targets, and its gradient is the same mean of their
gradients. The plain mean of the gradients is a different one if the numbers differ: a
target in a short micro-batch would count more than one in a long one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backpass.contract.arrays import Array, as_number, is_array, namespace, widened
from backpass.contract.shapes import kind
from backpass.contract.values import check_bool, check_natural
from backpass.models._parameters import check_faults, words
from backpass.training._mappings import (
    Gradients,
    check_gradients,
    copied,
    name_faults,
)


def counted(targets: Array, *, ignore_index: int = -100) -> int:
    """Return how many of the integers ``targets[*]`` are counted: all but those equal
    to ``ignore_index``. Raises TypeError unless ``targets`` is an array."""
    if not is_array(targets):
        raise TypeError(f"targets: expected an array; got {type(targets).__name__}")
    xp = namespace(targets)
    return int(xp.sum(xp.astype(targets != ignore_index, xp.int64)))


def mean(
    parts: Iterable[tuple[Array, Gradients, int]], *, fresh: bool = False
) -> tuple[float, dict[str, Array]]:
    """Return the loss of the whole batch and the gradients ``[*]`` of that loss.

    Each part is the ``loss[]`` of a micro-batch, its gradients ``[*]``, and how many of
    its targets are counted; the loss is the mean over these. ``parts`` can be a
    generator that runs the model; if it keeps no gradients, only their mean and those
    of one micro-batch are in memory. ``fresh`` says that every part has arrays of its
    own, into which nothing else is written later, as a model's backward returns them.
    Then those of a single micro-batch are not copied but returned. A part without
    counted targets, whose mean does not exist, adds nothing. Half-precision gradients
    are averaged, and returned, in float32. The mean of finite gradients is finite.

    Raises TypeError unless the gradients are mappings to arrays of real floating-point
    numbers, each part is a tuple of three, and its count an integer; ValueError if a
    count is below 0, all are 0, or the parts have gradients of different names, shapes,
    libraries, devices, or dtypes, where half precision counts as float32.
    """
    check_bool(fresh=fresh)
    total, loss = 0, 0.0
    means: dict[str, Array] | None = None
    for part in parts:
        part_loss, gradients, count = _checked(part)
        if count == 0:
            continue
        total += int(count)
        share = int(count) / total  # of the targets so far
        if means is None:
            loss = float(part_loss)
            means = {name: widened(g) for name, g in gradients.items()}
            means = means if fresh else copied(means)
        else:
            _check_same(gradients, means)
            loss = _between(loss, float(part_loss), share)
            for name, g in gradients.items():
                means[name] = _between(means[name], widened(g), share)
        del gradients, part  # before the next micro-batch's are computed
    if means is None:
        raise ValueError("parts: expected at least one counted target; got none")
    return loss, means


def _checked(part: Any) -> tuple[Any, Gradients, int]:
    """Return the loss, the gradients, and the count of a part. Raises TypeError or
    ValueError for another one."""
    if not isinstance(part, tuple | list) or len(part) != 3:
        came = type(part).__name__
        if isinstance(part, tuple | list):
            came = f"a {came} of {len(part)}"
        raise TypeError(f"parts: expected (loss, gradients, count); got {came}")
    loss, gradients, count = part
    if is_array(count) and count.shape:
        raise TypeError(
            "count: expected an integer, such as counted(targets) returns; "
            f"got an array of shape {list(count.shape)}"
        )
    check_natural(count=as_number(count))
    check_gradients(gradients)
    return loss, gradients, int(count)


def _between(a: Any, b: Any, share: float) -> Any:
    """Return (1 − share)·a + share·b, computed so that nothing overflows on the way,
    and equal numbers stay as they are."""
    if share > 0.5:
        a, b, share = b, a, 1 - share
    step = b / 2  # half of b − a, which could overflow
    step -= a / 2
    step *= 2 * share
    step += a
    return step


def _check_same(gradients: Gradients, first: Gradients) -> None:
    """Raise ValueError unless both have the same names, shapes, and kinds."""
    faults = name_faults("gradients", gradients, first)
    pairs = [(n, first[n], widened(g)) for n, g in gradients.items() if n in first]
    faults += [
        f"gradients: {name}: expected shape {list(a.shape)}; got shape {list(b.shape)}"
        for name, a, b in pairs
        if a.shape != b.shape
    ]
    faults += [
        f"gradients: {name}: expected {words(kind(a))}; got {words(kind(b))}"
        for name, a, b in pairs
        if kind(a) != kind(b)
    ]
    check_faults("parts: differ from the first micro-batch", faults)
