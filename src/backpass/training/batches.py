"""Batches of windows of a text, whose tokens are its bytes.

The windows depend on the seed and the number of the step alone, so that an interrupted
run can go on at any step without drawing what came before.
"""

from __future__ import annotations

import numpy as np

from backpass.contract.arrays import Array, namespace
from backpass.contract.values import check_natural
from backpass.training._numbers import check_count
from backpass.training.texts import check_bytes

VOCABULARY = 256  # the values of a byte


def windows(
    text: bytes,
    *,
    batch: int,
    length: int,
    seed: int,
    step: int,
    like: Array | None = None,
) -> tuple[Array, Array]:
    """Return tokens and targets, both int64 ``[batch, length]``, from 0 to 255.

    Each row is a window of ``text`` that begins anywhere with the same probability; its
    targets are the same window one byte later, so the target of a token is the next
    byte. ``seed`` and ``step`` determine the windows. They are drawn by NumPy's
    generator, whatever the array library. The arrays are NumPy's, or of the library and
    on the device of ``like``.

    Raises TypeError unless ``text`` is bytes and the numbers are integers; ValueError
    if ``batch`` or ``length`` is below 1, another number is below 0, or ``text`` has
    fewer than length + 1 bytes.
    """
    check_bytes(text)
    check_count(batch=batch, length=length)
    check_natural(seed=seed, step=step)
    data = np.frombuffer(text, dtype=np.uint8)
    if data.size <= length:
        raise ValueError(
            f"text: expected at least length + 1 = {length + 1} bytes; got {data.size}"
        )
    starts = np.random.default_rng([seed, step]).integers(
        0, data.size - length, size=batch
    )
    places = starts[:, None] + np.arange(length)
    tokens, targets = data[places].astype(np.int64), data[places + 1].astype(np.int64)
    if like is None:
        return tokens, targets
    xp = namespace(like)
    placed = (xp.asarray(x, device=like.device) for x in (tokens, targets))
    return tuple(placed)
