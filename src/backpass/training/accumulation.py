r"""The gradients of a batch that is too large for one forward, from its micro-batches.

A model's loss is a mean over the targets that are counted, those that are not ignored.
So the loss of the whole batch is the mean of the micro-batches' losses, each weighted
by the number of its counted targets, and its gradient is the same mean of their
gradients. The plain mean of the gradients is a different one if the numbers differ: a
target in a short micro-batch would count more than one in a long one.
"""

from __future__ import annotations

from collections.abc import Iterable

from backpass.arrays import Array, as_number, is_array, namespace, widened
from backpass.training._mappings import Gradients, check_gradients, name_faults
from backpass.values import check_bool, check_natural


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
    generator that runs the model; if it keeps no gradients, only their sum and those of
    one micro-batch are in memory. ``fresh`` says that every part has arrays of its own,
    into which nothing else is written later, as a model's backward returns them. Then
    the first gradients are not copied, and those of a single micro-batch are returned
    in the same arrays. A part without counted targets, whose mean does not
    exist, adds nothing. Half-precision gradients are summed, and returned, in float32.

    Raises TypeError unless the gradients are mappings to arrays of real floating-point
    numbers and the count is an integer; ValueError if a count is below 0, all are 0, or
    the parts have gradients of different names or shapes.
    """
    check_bool(fresh=fresh)
    total, loss = 0, 0.0
    first = 0  # the count of the first micro-batch, while its gradients are alone
    sums: dict[str, Array] | None = None
    for part in parts:
        part_loss, gradients, count = part
        check_natural(count=as_number(count))
        check_gradients(gradients)
        if count == 0:
            continue
        total += int(count)
        loss += float(part_loss) * int(count)
        if sums is None and fresh:
            first = int(count)
            sums = {name: widened(g) for name, g in gradients.items()}
        elif sums is None:
            sums = {name: widened(g) * int(count) for name, g in gradients.items()}
        else:
            _check_same(gradients, sums)
            for name, g in gradients.items():
                own = sums[name] * first if first else sums[name]
                own += widened(g) * int(count)
                sums[name] = own
            first = 0
        del gradients, part  # before the next micro-batch's are computed
    if sums is None:
        raise ValueError("parts: expected at least one counted target; got none")
    if not first:
        for name in sums:
            sums[name] /= total
    return loss / total, sums


def _check_same(gradients: Gradients, first: Gradients) -> None:
    """Raise ValueError unless both have the same names and shapes."""
    faults = name_faults("gradients", gradients, first)
    faults += [
        f"gradients: {name}: expected shape {list(first[name].shape)}; "
        f"got shape {list(gradient.shape)}"
        for name, gradient in gradients.items()
        if name in first and first[name].shape != gradient.shape
    ]
    if faults:
        raise ValueError(
            "\n    ".join(["parts: differ from the first micro-batch:", *faults])
        )
