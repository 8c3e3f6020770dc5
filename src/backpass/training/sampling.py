"""Text from a model whose tokens are bytes: each byte is drawn from the model's
probabilities for the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from backpass.contract.arrays import Array, namespace
from backpass.contract.values import check_natural
from backpass.training._numbers import check_count, check_rate


def log_probabilities(
    model: ModuleType, parameters: Mapping[str, Array], tokens: Array, *, config: Any
) -> Array:
    """Return the logarithms ``[*, s, V]`` of the probabilities of each token to follow
    each of ``tokens[*, s]`` and those before it.

    These are what cross-entropy saves for its backward. So this is the model's forward,
    whose targets do not matter. Raises what the forward raises.
    """
    _, saved = model.forward(
        parameters,
        tokens,
        namespace(tokens).zeros_like(tokens),
        config=config,
        chunked=False,
        wanted=(),
    )
    return saved.parts[-1].loss.p


def sample(
    model: ModuleType,
    parameters: Mapping[str, Array],
    prompt: bytes,
    *,
    config: Any,
    tokens: int,
    window: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[bytes]:
    """Yield ``tokens`` bytes, one at a time, that follow ``prompt``.

    The model reads the last ``window`` bytes each time, which should be the length at
    which it was trained. The logarithms of the probabilities are divided by
    ``temperature``, so that 1 leaves them, less makes likely bytes more likely, and 0
    always takes the most likely. Only the ``top_k`` most likely bytes are drawn from,
    by default all. ``seed`` determines the draws.

    Raises TypeError unless ``prompt`` is bytes and the options are numbers; ValueError
    if the prompt is empty or longer than the window, the model has too few positions
    for the window or lacks tokens for all bytes, or an option is out of range.
    """
    if not isinstance(prompt, bytes | bytearray):
        raise TypeError(
            f"prompt: expected bytes, such as 'text'.encode(); "
            f"got {type(prompt).__name__}"
        )
    check_natural(tokens=tokens, window=window, seed=seed)
    check_rate(temperature=temperature)
    if top_k is not None:
        check_count(top_k=top_k)
    positions = getattr(config, "positions", window)
    if not 1 <= window <= positions:
        raise ValueError(
            f"window: expected from 1 to {positions}, the number of positions; "
            f"got {window}"
        )
    if not 1 <= len(prompt) <= window:
        raise ValueError(
            f"prompt: expected from 1 to {window} bytes, which the model reads at "
            f"once; got {len(prompt)}"
        )
    if config.vocabulary != 256:
        raise ValueError(
            "vocabulary: expected 256 tokens, one for each byte; "
            f"got {config.vocabulary}"
        )

    def drawn() -> Iterator[bytes]:
        rng = np.random.default_rng(seed)
        like = next(iter(parameters.values()))
        text = bytearray(prompt)
        for _ in range(tokens):
            read = np.frombuffer(bytes(text[-window:]), np.uint8).astype(np.int64)
            given = namespace(like).asarray(read, device=like.device)
            found = log_probabilities(model, parameters, given, config=config)[-1, :]
            scores = np.asarray([float(score) for score in found])
            if not np.isfinite(scores).all():
                raise FloatingPointError(
                    f"byte {len(text) + 1 - len(prompt)}: the model's "
                    "log-probabilities of the next byte are not all finite"
                )
            byte = _choice(scores, temperature, top_k, rng)
            text.append(byte)
            yield bytes([byte])

    return drawn()


def _choice(
    scores: np.ndarray, temperature: float, top_k: int | None, rng: np.random.Generator
) -> int:
    """Return an index of ``scores[V]``, drawn from their softmax."""
    order = np.argsort(-scores, kind="stable")[:top_k]
    if temperature == 0:
        return int(order[0])
    weights = np.exp((scores[order] - scores[order[0]]) / temperature)
    sums = np.cumsum(weights)
    at = np.searchsorted(sums, rng.random() * sums[-1], side="right")
    return int(order[min(at, len(order) - 1)])
