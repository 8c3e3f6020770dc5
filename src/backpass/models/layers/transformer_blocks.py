"""The blocks of the original transformer's layers, as the encoder and the decoder have
them: attention, or a feed-forward block with ReLU, each with a layer norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backpass.models.layers import transformer_attention
from backpass.models.layers.blocks import NOTHING, Block, named
from backpass.ops import feed_forward, layer_norm


def attention_block(
    number: int,
    prefix: str = "",
    memory: bool = False,
    options: Mapping[str, Any] = NOTHING,
) -> Block:
    """Return the layer's block of that number, whose parameters have names that begin
    with ``prefix``: attention to the stream, or to the layer's input ``memory``."""
    own = {name: f"{prefix}{name}" for name in transformer_attention.PARAMETERS}
    names = named("memory", **own) if memory else named(**own)
    return Block(
        layer_norm, _norm(number), transformer_attention, names, options=options
    )


def feed_forward_block(number: int) -> Block:
    """Return the layer's block of that number, which is the feed-forward block."""
    names = named("w_up", "b_up", "w_down", "b_down")
    turned, options = ("w_up", "w_down"), {"activation": "relu"}
    return Block(layer_norm, _norm(number), feed_forward, names, turned, options)


def _norm(number: int) -> Mapping[str, str]:
    """Return the names of the norm's weight and bias."""
    return named(w=f"norm_{number}_w", b=f"norm_{number}_b")
