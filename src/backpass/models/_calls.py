"""A call that the ``calls`` of all language models list."""

from __future__ import annotations

from typing import Any

from backpass.contract.values import check_distinct
from backpass.models.layers.calls import Call, call
from backpass.ops import embedding


def token_embedding(config: Any, tokens: Any, distinct: Any, trained: bool) -> Call:
    """Return the call of the tokens' embedding; ``trained`` says whether the table's
    gradient is wanted. Raises TypeError or ValueError for a ``distinct`` that is not
    possible."""
    V, tied = config.vocabulary, config.tied
    check_distinct(distinct, tokens, V)
    lengths = {"m": tokens, "h": config.width, "V": V, "tied": tied}
    # A tied table's gradient starts from the output head's, so every token adds to it.
    lengths["distinct"] = 0 if tied else distinct
    return call("token embedding", embedding, ("w",) if trained else (), **lengths)
