"""Beyond a crossover one cost exceeds another, and not before it."""

import math

import pytest
import sympy

from backpass import cost
from backpass.cost.crossover import attention_crossover, attention_traffic_crossover, crossover
from backpass.cost.sizes import LETTERS
from backpass.models import encoder, gpt2, llama

n, d = sympy.symbols("n d", positive=True)
SMALL = {
    "gpt2": gpt2.Config(7, 999, 12, 2, 3, 40),
    "llama": llama.Config(8, 12, 2, 4, 2, 6, 20),
    "encoder": encoder.Config(12, 3, 2, 30),
}


def at(formula, config, b):
    """The number, at a configuration's lengths and b sequences."""
    values = {letter: getattr(config, field, None) for field, letter in LETTERS.items()} | {"b": b}
    return formula.subs({symbol: values[symbol.name] for symbol in formula.free_symbols})


def exceeds(found, stem_of, of, ways):
    """Whether attention costs more than the rest of the layers."""
    layers = found.only(lambda row: row.part == "layer")
    parts = (
        layers.only(lambda row: stem_of(row) == "attention"),
        layers.only(lambda row: stem_of(row) != "attention"),
    )
    attending, rest = (sum(of(part)[way] for way in ways or ("forward", "backward")) for part in parts)
    return attending > rest


@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("ways", [(), ("forward",), ("backward",)])
@pytest.mark.parametrize("convention", ["counted", "products", "products-triangle"])
@pytest.mark.parametrize("family", SMALL)
def test_attention_exceeds_the_rest_in_flops_beyond_it(family, convention, ways, b):
    length = int(at(attention_crossover(family, *ways, convention=convention), SMALL[family], b))
    for s, larger in ((length, False), (length + 1, True)):
        found = cost.tally(SMALL[family], b, s)
        ran = exceeds(found, lambda row: row.term.stem, lambda part: part.flops(convention), ways)
        assert ran is larger


@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("ways", [(), ("forward",), ("backward",)])
@pytest.mark.parametrize("family", SMALL)
def test_attention_exceeds_the_rest_in_bytes_beyond_it(family, ways, b):
    length = int(at(attention_traffic_crossover(family, *ways), SMALL[family], b))
    for s, larger in ((length, False), (length + 1, True)):
        found = cost.traffic(SMALL[family], b, s)
        ran = exceeds(found, lambda row: row.access.stem, lambda part: part.bytes(), ways)
        assert ran is larger


def test_the_products_of_gpt2_are_equal_at_six_widths():
    """2h + f, which is 6h for f = 4h, as wide as the source's block."""
    h, f = sympy.symbols("h f", positive=True, integer=True)
    found = attention_crossover("gpt2", convention="products")
    assert sympy.simplify(found - (2 * h + f)) == 0
    triangle = attention_crossover("gpt2", convention="products-triangle")
    assert sympy.simplify(triangle - (2 * (2 * h + f) - 1)) == 0


def test_the_formulas_of_a_published_block():
    """48nd² + 8n²d + 4n² + 22nd for a block's backward, of which 16nd² + 4nd and the terms in n² are attention's: the
    terms in n² exceed the others beyond a little less than n = 6d."""
    quadratic = 8 * n**2 * d + 4 * n**2
    whole = crossover(quadratic, 48 * n * d**2 + 22 * n * d, "n")
    assert sympy.simplify(whole - d * (24 * d + 11) / (2 * (2 * d + 1))) == 0
    assert sympy.limit(whole / d, d, sympy.oo) == 6
    in_attention = crossover(quadratic, 16 * n * d**2 + 4 * n * d, "n")
    assert sympy.limit(in_attention / d, d, sympy.oo) == 2
    assert math.floor(whole.subs(d, 512)) == 3071


@pytest.mark.parametrize(
    "one, other, expected",
    [
        (3 * n, 7, sympy.Rational(7, 3)),
        (n**2 * d, 5 * n * d, 5),
        (n**2 + n, 6, 2),  # the other solution is −3
        (n**2 + 6, 5 * n, 3),  # the other solution is 2
        (n**3, 2 * n**2, 2),
    ],
)
def test_the_largest_solution(one, other, expected):
    assert sympy.simplify(crossover(one, other, "n") - expected) == 0


@pytest.mark.parametrize(
    "fault, run",
    [
        (r"letter: expected one of d, n; got 's'", lambda: crossover(n * d, n)),
        (r"one: expected a larger cost.*for large n", lambda: crossover(n, n**2, "n")),
        (r"degree 1 or 2 in n", lambda: crossover(n**3, n + 1, "n")),
        (r"degree 1 or 2 in n", lambda: crossover(2 * n, n, "n")),
        (r"'sideways'", lambda: attention_crossover("gpt2", "sideways")),
        (r"'bert'", lambda: attention_traffic_crossover("bert")),
    ],
)
def test_faults_are_named(fault, run):
    with pytest.raises((LookupError, ValueError), match=fault):
        run()
