"""Each product of a term is one that runs, its sums make it 2mnp, and a mask leaves the pairs that a loop finds."""

import math

import numpy as np
import pytest

from backpass import cost
from backpass.cost.terms import ELEMENTS, terms_of
from backpass.interpreters import closed_world, counting
from backpass.models.layers.calls import call
from backpass.ops import attention, flash_attention

SIZES = [
    {"m": 2, "g": 2, "n_kv": 3, "s_q": 5, "s_k": 5, "d": 3, "d_v": 4},
    {"m": 1, "g": 1, "n_kv": 2, "s_q": 3, "s_k": 7, "d": 2, "d_v": 2},
    {"m": 1, "g": 3, "n_kv": 1, "s_q": 7, "s_k": 4, "d": 2, "d_v": 5},
]
WANTED = [("q", "k", "v"), ("q",), ("k",), ("v",), ()]


def run(operation, sizes, causal, wanted, monkeypatch):
    """Multiplications in matrix products, and other sums of elements, forward and backward."""
    n_h = sizes["g"] * sizes["n_kv"]
    shapes = [(sizes["m"], n_h, sizes["s_q"], sizes["d"])]
    shapes += [(sizes["m"], sizes["n_kv"], sizes["s_k"], sizes[d]) for d in ("d", "d_v")]
    rng, counts = np.random.default_rng(0), []
    matmul, of_sum = closed_world.Namespace.matmul, closed_world.Namespace.sum

    def counted_matmul(self, a, b):
        y = matmul(self, a, b)
        counts[-1][0] += math.prod(y.shape) * a.shape[-1]
        return y

    def counted_sum(self, x, /, **options):
        y = of_sum(self, x, **options)
        counts[-1][1] += math.prod(y.shape)
        return y

    monkeypatch.setattr(closed_world.Namespace, "matmul", counted_matmul)
    monkeypatch.setattr(closed_world.Namespace, "sum", counted_sum)
    inputs = [counting.array(rng.standard_normal(shape)) for shape in shapes]
    counts.append([0, 0])
    y, saved = operation.forward(*inputs, causal=causal, wanted=wanted)
    counts.append([0, 0])
    operation.backward(counting.array(rng.standard_normal(y.shape)), saved)
    return counts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("operation", [attention, flash_attention], ids=lambda op: op.__name__[13:])
def test_the_products_of_attention_are_those_that_run(operation, sizes, causal, monkeypatch):
    options = {"causal": causal, "has_bias": False}
    for wanted in WANTED:
        terms = terms_of(call("attention", operation, wanted, **sizes, **options))
        counts = run(operation, sizes, causal, wanted, monkeypatch)
        for way, (multiplications, sums) in zip(("forward", "backward"), counts, strict=True):
            own = [term for term in terms if term.way == way]
            products = [term for term in own if term.product is not None]
            assert sum(term.product.run for term in products) == multiplications, (way, wanted)
            of_elements = [term.sums for term in own if term.what == ELEMENTS]
            assert sum(of_elements) == sums, (way, wanted)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_mask_leaves_the_pairs_that_a_loop_finds(sizes):
    s_q, s_k = sizes["s_q"], sizes["s_k"]
    pairs = sum(key <= query for query in range(s_q) for key in range(s_k))
    for operation in (attention, flash_attention):
        for causal in (True, False):
            options = {"causal": causal, "has_bias": False}
            for term in terms_of(call("attention", operation, ("q", "k", "v"), **sizes, **options)):
                if term.product is not None:
                    left = pairs if causal else s_q * s_k
                    assert term.product.visible * s_q * s_k == term.product.whole * left
                    assert term.product.masked is causal


@pytest.mark.parametrize("options", [{}, {"flash": True}, {"chunked": True}], ids=str)
@pytest.mark.parametrize("name", ["gpt2-124m", "qwen3-0.6b"])
def test_a_product_with_its_sums_is_2mnp(name, options):
    for row in cost.tally(name, 2, 300, **options).rows:
        product = row.term.product
        if product is not None:
            assert row.term.flops + row.term.sums == 2 * product.run
            assert 0 < product.visible <= product.whole
