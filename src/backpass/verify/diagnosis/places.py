"""Say in words where a gradient is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backpass.verify.diagnosis.evidence import EVIDENCE, Pair

LARGEST_TRIANGLE = 4096  # rows and columns
LISTED = 12  # positions and ranges at most


def place(mask: np.ndarray, pair: Pair) -> str:
    """Describe where the mask is true: as a slice, by a term's sign, or by a count."""
    return structured(mask) or _by_sign(mask, pair) or _count(mask)


def _count(mask: np.ndarray) -> str:
    return f"{int(mask.sum())} of {mask.size} entries, the first at {index_text(np.argwhere(mask)[0])}"


def structured(mask: np.ndarray) -> str | None:
    """Describe the place if it is one element, slices along one axis, or a part of the
    last two axes; otherwise return None."""
    if mask.all():
        return None
    if mask.sum() == 1:
        return index_text(np.argwhere(mask)[0])
    for axis in range(mask.ndim):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        along = mask.any(axis=others)
        slices = np.broadcast_to(np.expand_dims(along, others), mask.shape)
        if mask.ndim > 1 and not along.all() and (slices == mask).all():
            return f"axis {axis}, {positions(np.nonzero(along)[0])}"
    if mask.ndim >= 2 and min(mask.shape[-2:]) > 1:
        for name, part in _triangles(*mask.shape[-2:]):
            if (mask == part).all():
                return name
    return None


def positions(places: np.ndarray) -> str:
    """Return ``position 1, 3`` or ``positions 0, 256–299``: three or more consecutive
    positions form a range. At most LISTED positions and ranges are listed."""
    runs = np.split(places, np.nonzero(np.diff(places) > 1)[0] + 1)
    listed: list[str] = []
    for run in runs:
        few = [str(at) for at in run]
        listed += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else few
    more = f", … ({len(places)} positions)" if len(listed) > LISTED else ""
    word = "positions" if any("–" in one for one in listed) else "position"
    return f"{word} {', '.join(listed[:LISTED])}{more}"


def _triangles(rows: int, columns: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield parts of the last two axes, such as those of causal masks."""
    square = np.ones((rows, columns), dtype=bool)
    yield "the diagonal of the last two axes", np.eye(rows, columns, dtype=bool)
    yield "the entries above the diagonal", np.triu(square, 1)
    yield "the entries below the diagonal", np.tril(square, -1)
    yield "the entries on and above the diagonal", np.triu(square)
    yield "the entries on and below the diagonal", np.tril(square)
    if (more := columns - rows) and rows + columns <= LARGEST_TRIANGLE:
        diagonal = "the diagonal that ends at the lower right"
        yield f"the entries above {diagonal}", np.triu(square, more + 1)
        yield f"the entries on and below {diagonal}", np.tril(square, more)


def _by_sign(mask: np.ndarray, pair: Pair) -> str | None:
    """Return ``the entries where x < 0``, if there are enough to exclude chance."""
    few = EVIDENCE / 4
    if mask.size < EVIDENCE or not few <= mask.sum() <= mask.size - few:
        return None
    for name, value in pair.terms.items():
        if value.shape == mask.shape:
            for relation, part in ((">", value > 0), ("<", value < 0)):
                if (mask == part).all():
                    return f"the entries where {name} {relation} 0"
    return None


def largest_errors(pair: Pair) -> str:
    """Describe the three elements with the largest errors."""
    worst = np.argsort(-np.abs(pair.difference), axis=None, kind="stable")
    listed = []
    for flat in worst[: min(3, int(pair.wrong.sum()))]:
        index = tuple(map(int, np.unravel_index(flat, pair.reference.shape)))
        got, expected = numbers_apart(pair.got[index], pair.reference[index])
        listed.append(f"{index_text(index)} (got {got}, expected {expected})")
    count = f"{int(pair.wrong.sum())} of {pair.wrong.size} entries differ"
    return f"{count}, most at {', '.join(listed)}"


def number_text(value: float, digits: int = 4) -> str:
    """Format a number for a sentence."""
    return f"{value:.{digits}g}".replace("-", "−")


def numbers_apart(one: float, other: float) -> tuple[str, str]:
    """Format two numbers for a sentence, with enough digits to tell them apart."""
    shown = number_text(one), number_text(other)
    for digits in range(5, 18):
        if shown[0] != shown[1]:
            break
        shown = number_text(one, digits), number_text(other, digits)
    return shown


def index_text(index) -> str:
    """Return ``index [0, 3]``."""
    return f"index {[int(i) for i in index]}" if len(index) else "its only element"
