"""The exact length beyond which one part of a cost exceeds another.

Plain attention computes and stores a score for each pair of a query and a key, so its
cost grows with the square of the sequence's length. The cost of the projections and of
the feed-forward block grows with the length.
"""

from __future__ import annotations

from typing import Any

from backpass.contract.stems import no_such
from backpass.cost.tally import symbolic_tally
from backpass.cost.terms import WAYS
from backpass.cost.traffic import symbolic_traffic

ATTENTION = "attention"


def crossover(one: Any, other: Any, letter: str = "s") -> Any:
    """Return the length beyond which ``one`` exceeds ``other``: the largest solution of
    ``one = other`` for the symbol ``letter``.

    Both are SymPy polynomials in the letter. Their difference, divided by the letter as
    often as possible, has degree 1 or 2. The length need not be an integer. Raises
    ValueError if the difference has another degree, or if ``one`` does not exceed
    ``other`` for large lengths.
    """
    import sympy

    difference = sympy.expand(sympy.sympify(one) - sympy.sympify(other))
    symbols = {symbol.name: symbol for symbol in difference.free_symbols}
    if letter not in symbols:
        known = ", ".join(sorted(symbols)) or "none, since the costs are numbers"
        raise ValueError(f"letter: expected one of {known}; got {letter!r}")
    symbol = symbols[letter]
    # Without common factors, such as the number of layers.
    *higher, last = sympy.Poly(difference, symbol).primitive()[1].all_coeffs()
    while last == 0:
        *higher, last = higher
    if len(higher) not in (1, 2):
        raise ValueError(
            f"one, other: expected a difference of degree 1 or 2 in {letter}; "
            f"got {difference}"
        )
    if sympy.factor(higher[0]).is_positive is not True:
        raise ValueError(
            f"one: expected a larger cost than other's for large {letter}; "
            f"got the difference {difference}"
        )
    if len(higher) == 1:
        return sympy.factor(-last / higher[0])
    a, b = higher
    return (sympy.sqrt(sympy.factor(b**2 - 4 * a * last)) - b) / (2 * a)


def attention_crossover(
    family: str, *ways: str, convention: str = "counted", **options: Any
) -> Any:
    """Return the length s of the sequences beyond which attention takes more FLOPs than
    the rest of a layer, in the SymPy symbols of ``cost.symbolic_tally``.

    Attention is the call that computes scores, weights, and averages of values; the
    projections belong to the rest. ``ways`` are "forward", "backward", or, by default,
    all. ``options`` are those of ``cost.symbolic_tally``. Raises LookupError for an
    unknown family, way, or convention.
    """
    layer = symbolic_tally(family, **options)
    layer = layer.only(lambda row: "layer" in row.part)
    attending = layer.only(lambda row: row.term.stem == ATTENTION)
    rest = layer.only(lambda row: row.term.stem != ATTENTION)
    return _beyond(ways, *(part.flops(convention) for part in (attending, rest)))


def attention_traffic_crossover(family: str, *ways: str, **options: Any) -> Any:
    """Return the length s of the sequences beyond which plain attention moves more
    bytes than the rest of a layer, by the least bytes that the calls move. ``options``
    are those of ``cost.symbolic_traffic``. Raises LookupError for an unknown family or
    way."""
    layer = symbolic_traffic(family, **options)
    layer = layer.only(lambda row: "layer" in row.part)
    attending = layer.only(lambda row: row.access.stem == ATTENTION)
    rest = layer.only(lambda row: row.access.stem != ATTENTION)
    return _beyond(ways, attending.bytes(), rest.bytes())


def _beyond(ways: tuple[str, ...], *costs: dict[str, Any]) -> Any:
    for way in ways:
        if way not in WAYS:
            raise LookupError(no_such("way", way, WAYS))
    return crossover(*(sum(cost[way] for way in ways or WAYS) for cost in costs))
