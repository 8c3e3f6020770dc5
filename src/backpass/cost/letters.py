"""The lengths of a network by their letters, and numbers of elements as products of
letters.

If a network runs at lengths that are different primes, the number of elements of each
array factors into lengths in only one way. ``Probes`` has such lengths and reads the
factors. A length of 1 stays 1, because reshaping such an array may return a view where
any other length needs a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from backpass.cost.sizes import LETTERS, Network
from backpass.models import seq2seq

LAYERS = {name: letter for name, letter in LETTERS.items() if "layers" in name}
# The letter of the length that a field of a configuration gives.
FIELDS = {n: x for n, x in LETTERS.items() if n not in LAYERS} | {"positions": "s"}
# The order of the letters in a product.
ORDER = ("L", "L_e", "L_d", "b", "n_h", "n_kv", "s", "t", "d", "h", "f", "V")
# 2 and 3 are left out: 3 is the factor in the 3h columns of queries, keys, and values,
# and 2 the factor of RoPE's pairs. g is n_h/n_kv, and k is d/2.
PRIMES = dict(n_kv=5, g=7, k=11, h=13, s=17, t=19, b=23, f=29, V=31)


def lengths_of(
    network: Network, batch: int, sequence: int | tuple[int, int]
) -> dict[str, int]:
    """Return the lengths by their letters. A pair ``sequence`` is the source's and the
    target's, t and s.

    Raises TypeError or ValueError unless batch and sequence are integers of at least 1;
    ValueError for a pair if the network has one sequence, and for a sequence longer
    than its positions.
    """
    model, config = network
    of_two = model is seq2seq
    if isinstance(sequence, tuple) and not (of_two and len(sequence) == 2):
        expected = "one length or a pair" if of_two else "one length"
        raise ValueError(f"sequence: expected {expected}; got {sequence!r}")
    t, s = sequence if isinstance(sequence, tuple) else (sequence, sequence)
    for name, length in (("batch", batch), ("sequence", t), ("sequence", s)):
        check_length(name, length)
    if s > getattr(config, "positions", s):
        raise ValueError(
            f"sequence: expected at most {config.positions}, the number of positions; "
            f"got {s}"
        )
    of_inputs = {"b": batch, "t": t, "s": s} if of_two else {"b": batch, "s": s}
    lengths = of_inputs | lengths_in(config)
    return {letter: lengths[letter] for letter in ORDER if letter in lengths}


def lengths_in(config: Any) -> dict[str, int]:
    """Return the lengths that a configuration gives, by their letters."""
    fields = {n: x for n, x in FIELDS.items() if x != "s" and hasattr(config, n)}
    lengths = {letter: getattr(config, name) for name, letter in fields.items()}
    lengths.setdefault("n_kv", lengths["n_h"])
    lengths.setdefault("d", lengths["h"] // lengths["n_h"])
    return lengths


def check_length(name: str, length: object) -> None:
    """Raise TypeError or ValueError unless the length is an integer of at least 1."""
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"{name}: expected an integer; got {type(length).__name__}")
    if length < 1:
        raise ValueError(f"{name}: expected at least 1; got {length}")


@dataclass(frozen=True)
class Probes:
    """Small lengths that tell the letters of a network apart. ``ones`` are the letters
    of PRIMES whose length is 1. If ``free``, the heads' width and the number of key
    heads are independent, as in Llama; otherwise h = n_h · d and n_kv = n_h."""

    free: bool
    ones: frozenset[str] = frozenset()

    @property
    def primes(self) -> dict[str, int]:
        """The prime lengths. The other lengths are products of them."""
        left_out = set() if self.free else {"g", "h"}
        return {
            x: 1 if x in self.ones else n
            for x, n in PRIMES.items()
            if x not in left_out
        }

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths by their letters."""
        own = self.primes
        n_h = own["n_kv"] * own.get("g", 1)
        d = own["k"] * (2 if self.free else 1)
        return {**own, "n_h": n_h, "d": d, "h": own.get("h", n_h * d)}

    def read(self, number: int) -> Any:
        """Return a length, or a number of elements, as a SymPy product of letters.
        Raises ValueError if it is not such a product."""
        powers: dict[str, int] = {}
        rest = number
        for letter, prime in self.primes.items():
            while prime > 1 and rest % prime == 0:
                rest //= prime
                powers[letter] = powers.get(letter, 0) + 1
        if rest not in (1, 2, 3, 4, 8):
            raise ValueError(
                f"number: expected a product of {self.primes}; got {number}"
            )
        return rest * self._product(powers)

    def _product(self, powers: dict[str, int]) -> Any:
        x = {letter: symbol(letter) for letter in (*powers, "n_h", "n_kv", "d", "h")}
        if self.free:
            x["k"] = x["d"] / 2
            x["g"] = x["n_h"] / x["n_kv"]
            if "g" in self.ones:
                x["n_kv"] = x["n_h"]
        else:
            x["k"], x["n_kv"] = x["d"], x["n_h"]
            both = min(powers.get("k", 0), powers.get("n_kv", 0))
            powers = {**powers, "h": both}
            powers["k"] = powers.get("k", 0) - both
            powers["n_kv"] = powers.get("n_kv", 0) - both
        product = symbol("b") ** 0
        for letter, power in powers.items():
            product *= x[letter] ** power
        return product


def probes_for(network: Network, lengths: Mapping[str, int] | None = None) -> Probes:
    """Return the probes of a network with these lengths; by default, no length is 1."""
    free = hasattr(network.config, "head_width")
    if lengths is None:
        return Probes(free)
    own = dict(lengths, g=lengths["n_h"] // lengths["n_kv"])
    own["k"] = lengths["d"] // 2 if free else lengths["d"]
    return Probes(free, frozenset(x for x in PRIMES if own.get(x) == 1))


def resized(network: Network, lengths: Mapping[str, int]) -> Network:
    """Return the same network with these lengths."""
    fields = {n: x for n, x in FIELDS.items() if hasattr(network.config, n)}
    return network.having(**{name: lengths[x] for name, x in fields.items()})


@cache
def symbol(letter: str) -> Any:
    """Return the SymPy symbol of a letter, a positive integer."""
    import sympy

    return sympy.Symbol(letter, positive=True, integer=True)


def in_text(formula: Any) -> str:
    """Return a sum of products of letters as text: ``36·L·b·s·h + 4·b·s``."""
    return _written(formula, "·", lambda x, n: x if n == 1 else f"{x}{_raised(n)}")


def in_latex(formula: Any) -> str:
    """Return the same in LaTeX, without delimiters."""

    def power(letter: str, n: int) -> str:
        base, _, index = letter.partition("_")
        base += f"_{{{index}}}" if index else ""
        return base if n == 1 else f"{base}^{{{n}}}"

    return _written(formula, r"\,", power)


def _written(formula: Any, times: str, power: Callable[[str, int], str]) -> str:
    import sympy

    terms = []
    for term in sympy.Add.make_args(sympy.expand(formula)):
        coefficient, rest = term.as_coeff_Mul()
        powers = {str(x): int(n) for x, n in rest.as_powers_dict().items() if x != 1}
        above = [power(x, powers[x]) for x in ORDER if powers.get(x, 0) > 0]
        below = [power(x, -powers[x]) for x in ORDER if powers.get(x, 0) < 0]
        number = [str(coefficient.p)] if coefficient.p != 1 or not above else []
        divisor = [str(coefficient.q)] if coefficient.q != 1 else []
        text = times.join([*number, *above])
        parts = [*divisor, *below]
        order = [ORDER.index(x) for x in powers]
        terms.append((-sum(powers.values()), sorted(order), "/".join([text, *parts])))
    return " + ".join(text for *_, text in sorted(terms))


def _raised(n: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(n))
