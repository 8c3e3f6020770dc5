"""Bytes that are saved for a backward, as formulas give them."""

from __future__ import annotations

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.usual.attention import judged


def layer(b: int, s: int, h: int, n_h: int, wide: int, *, statistics: int = 0) -> int:
    """Add up the bytes that one layer with dropout saves, array by array: ``wide``
    bytes per element, masks 1, and ``statistics`` bytes for each row of a norm."""
    x, scores = b * s * h, b * n_h * s * s
    norms = 2 * (wide * x + statistics * b * s)
    attention = wide * (5 * x) + (wide + 1 + wide) * scores  # softmax, mask, dropped
    return norms + attention + wide * (9 * x) + 2 * x


CLAIMS = """
U24  caveat  2  memory         cost/memory             Korthikanti et al. (2022), equation 1
U25  false   6  memory         cost/memory             LLM-Tools issue 4 and PR 6
U26  false   1  flash          cost/memory             a first estimate in FlashAttention issue 899, corrected in the thread
U27  false   4  recomputation  numerics/recomputation  expected in Megatron-LM issue 1225; corrected in issue 464
U28  caveat  3  memory         cost/memory             Rajbhandari et al. (2020), §3.1; most calculators
U29  caveat  4  recomputation  numerics/recomputation  Chen et al. (2016), §4.1, as repeated by most texts
"""
SHOWN_BY = """
cost/test_published.py::test_activation_bytes_are_what_autograd_saves_in_half_precision  U24
cost/test_published.py::test_the_right_number_is_what_ran_and_the_usual_one_is_not  U25 U26 U27
cost/test_activations.py::test_the_most_bytes_that_a_step_with_segments_saves  U29
"""


def U24(it: Evidence) -> None:
    r"""A layer saves $s\,b\,h\,(34 + 5\,n_h\,s/h)$ bytes for its backward.

    This is right for two-byte elements, dropout after the softmax and both blocks, and
    stored scores. It omits the norms' statistics, as the paper says. Flash attention,
    another activation, or float32 need another formula."""
    b, s, h, n_h = 2, 7, 24, 6
    formula = s * b * h * 34 + 5 * b * n_h * s * s
    it.as_printed(layer(b, s, h, n_h, wide=2) == formula)
    it.elsewhere(layer(b, s, h, n_h, wide=4) == formula)
    it.elsewhere(layer(b, s, h, n_h, wide=2, statistics=8) == formula)


def U25(it: Evidence) -> None:
    """In float32, a layer saves 4(34sbh + 5bs²n_h) bytes.

    The formula in brackets already counts two bytes per element, and a mask takes one
    byte in any dtype. The right count is 66sbh + 9bs²n_h bytes."""
    judged(it, "bytes-counted-twice", layer(2, 7, 24, 6, wide=4), h=24)


def U26(it: Evidence) -> None:
    r"""With flash attention, the block of attention saves 11sbh bytes.

    It also saves each row's log-sum-exp in float32: 4bsn_h bytes."""
    b, s, n_h, d = 2, 7, 6, 4
    arrays = {"input": 2, "q, k, v": 3 * 2, "output": 2, "mask": 1}  # bytes per element
    saved = sum(arrays.values()) * b * s * n_h * d + 4 * b * s * n_h
    judged(it, "flash-without-statistics", saved, h=24)


def U27(it: Evidence) -> None:
    r"""With flash attention, recomputing attention still saves 5bs²n_h bytes per layer.

    Flash attention stores no scores: each row's statistics are saved, 4bsn_h bytes."""
    judged(it, "selective-with-flash", 4 * 2 * 7 * 6)


def U28(it: Evidence) -> None:
    r"""Mixed-precision training with Adam holds 16 bytes per parameter.

    The 16 bytes are two-byte weights and gradients, float32 weights, and two float32
    moments. With float32 gradients there are 18."""
    budget = cost.memory_budget("gpt2", 1, 1024, dtype="bfloat16")
    parameters = cost.tally("gpt2", 1, 1024).parameters
    states = sum(share.bytes for share in budget.shares if share.elements == parameters)
    it.as_printed(states == 16 * parameters)
    it.elsewhere(2 + 4 + 4 + 4 + 4 == 16)
    it.right(2 + 4 + 4 + 4 + 4 == 18)


def U29(it: Evidence) -> None:
    r"""Saving the input of every $\sqrt L$-th layer minimises memory.

    It is right if a layer saves as much as its input. If a layer saves 34 bytes for
    each 2 of its input, the best segments are shorter: two layers, for 80 layers."""

    def best(layers: int, of_input: int, of_layer: int) -> int:
        held = {k: -(-layers // k) * of_input + k * of_layer for k in range(1, 99)}
        return min(held, key=lambda k: held[k])

    it.as_printed(best(81, 1, 1) == 9 and best(64, 1, 1) == 8)
    it.elsewhere(best(81, 2, 34) == 9)
    it.right(best(80, 2, 34) == 2)
