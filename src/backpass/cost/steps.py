"""The FLOPs that published formulas give for a step of the package's networks."""

from __future__ import annotations

from math import prod
from typing import Any

from backpass.cost import published
from backpass.cost.letters import lengths_in
from backpass.cost.sizes import configuration
from backpass.models import gpt2, llama

# The parameters that N counts: all; the layers' matrices, as in Kaplan et al.; or all
# except the table of positions, the token table if it is not also the head, or both.
_ALL, _MATRICES = "all", "matrices"
_NO_POSITIONS, _NO_TOKENS, _NO_TABLES = "positions", "tokens", "tables"
_N = {
    "6n": _MATRICES,
    "6n-all": _ALL,
    "palm": _ALL,
    "nanogpt-mfu": _NO_POSITIONS,
    "torchtitan": _NO_TABLES,
    "llm-foundry": _NO_TOKENS,
}
_FORWARDS = ("hoffmann-forward",)  # three times: the backward is twice the forward
NAMES = (
    *_N,
    *_FORWARDS,
    "narayanan",
    "korthikanti-model",
    "korthikanti-hardware",
    "megatron-plain",
    "megatron-gated",
)
_PLAIN_ONLY, _GATED_ONLY = ("megatron-plain",), ("megatron-gated",)
_TOKENS, _POSITIONS = {"wte.weight", "embed_tokens.weight"}, {"wpe.weight"}


def published_steps(config: Any, batch: int, sequence: int) -> dict[str, Any]:
    """Return the FLOPs that published formulas give for a step of a GPT-2 or a Llama,
    by the formulas' names in ``cost.published``.

    ``config`` is a configuration, or the name of a preset. A formula is applied as
    printed, even where it assumes another kind of network, such as one whose
    feed-forward block is 4h wide and has no gate. Raises LookupError for
    an unknown preset, TypeError for any other configuration.
    """
    config = configuration(config)
    gated = isinstance(config, llama.Config)
    if not gated and not isinstance(config, gpt2.Config):
        raise TypeError(
            "config: expected a Config of gpt2 or llama; "
            f"got {type(config).__module__}.{type(config).__name__}"
        )
    left_out = _PLAIN_ONLY if gated else _GATED_ONLY
    lengths = {"b": batch, "s": sequence, "L": config.layers, **lengths_in(config)}
    found = {}
    for name in NAMES:
        if name in left_out:
            continue
        formula = published.named(name)
        each = formula.at(**lengths, N=_parameters(config, _N.get(name, _ALL)))
        times = {"step": 1, "sequence": batch, "token": batch * sequence}[formula.per]
        found[name] = each * times * (3 if name in _FORWARDS else 1)
    return found


def _parameters(config: Any, which: str) -> int:
    model = llama if isinstance(config, llama.Config) else gpt2
    shapes = model.parameter_shapes(config)
    left_out: set[str] = set()
    if which in (_NO_POSITIONS, _NO_TABLES):
        left_out |= _POSITIONS
    if which in (_NO_TOKENS, _NO_TABLES) and not config.tied:
        left_out |= _TOKENS
    if which == _MATRICES:
        left_out = _TOKENS | _POSITIONS | {"lm_head.weight"}
        shapes = {n: shape for n, shape in shapes.items() if len(shape) == 2}
    return sum(prod(shape) for name, shape in shapes.items() if name not in left_out)
