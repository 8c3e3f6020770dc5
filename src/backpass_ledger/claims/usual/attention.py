"""FLOPs of attention as tools count them."""

from __future__ import annotations

from backpass.cost.mistakes import MISTAKES, Compared
from backpass.ops import flash_attention
from backpass_ledger.claims.evidence import Evidence

LENGTHS = {"b": 2, "s": 7, "h": 26, "n_h": 6, "n_kv": 2, "d": 4, "L": 3, "w": 3}


def both(name: str, **lengths: int) -> Compared:
    """Return what the usual formula of ``mistakes`` gives, and the right one."""
    found = next(mistake for mistake in MISTAKES if mistake.name == name)
    return found.at(**{**LENGTHS, **lengths})


def pairs(s: int, window: int | None = None) -> int:
    """Count the pairs of a query and a key that a causal mask leaves, one by one."""
    window = window or s
    return sum(0 <= i - j < window for i in range(s) for j in range(s))


def step(keys: int, products: int = 6) -> int:
    """Return the FLOPs of products over ``keys`` pairs in each head of each layer."""
    at = LENGTHS
    return products * 2 * at["b"] * keys * at["n_h"] * at["d"] * at["L"]


def judged(it: Evidence, name: str, ran: int, **lengths: int) -> None:
    """Compare the usual and the right formula with what ran."""
    usual, right = both(name, **lengths)
    it.as_printed(usual == ran)
    it.right(right == ran)


CLAIMS = """
U7   false   5  attention  attention/scaled_dot_product  the convention of torchtitan PR 280, questioned in MaxText issue 1972 and nanoGPT issue 456
U8   caveat  1  attention  attention/scaled_dot_product  Megatron-LM, `num_floating_point_operations`; FlashAttention issue 594
U9   false   4  attention  attention/scaled_dot_product  OLMo-core, issue 475; vLLM before PR 55624
U10  false   3  attention  attention/scaled_dot_product  Megatron-LM PR 3280; corrected in Megatron-Bridge PR 3947
U11  false   5  attention  attention/scaled_dot_product  torchtitan's flux before PR 4366
U12  false   4  attention  attention/grouped_query       xFormers' profiler, reported in PR 1404
U13  false   4  attention  attention/grouped_query       scaling-book PR 30; vllm-fit issue 20
U14  caveat  4  attention  attention/heads               torchtitan, issue 1920; NeMo RL before PR 2736
U15  caveat  1  flash      attention/flash               Dao (2024), the FlashAttention-2 paper; benchmark scripts
U16  false   3  flash      attention/flash               DeepSpeed's `flops_profiler`
U17  false   4  attention  cost/tally                    PyTorch's `FlopCounterMode` on a CPU, pytorch issue 195460
"""
SHOWN_BY = """
cost/test_published.py::test_the_right_number_is_what_ran_and_the_usual_one_is_not  U7 U8 U9 U10 U11 U12 U13 U14 U16
cost/test_published.py::test_a_counter_of_operators_misses_fused_attention_on_a_cpu  U17
"""


def U7(it: Evidence) -> None:
    r"""Causal attention executes $12\,b\,s^2\,n_h\,d\,L$ FLOPs per step.

    The factor 12 counts all pairs, by a stated convention. A causal mask leaves $s(s +
    1)/2$: a kernel that skips the others executes $6\,b\,s(s + 1)\,n_h\,d\,L$. A
    utilisation computed with 12 can exceed 1."""
    judged(it, "causal-whole", step(pairs(7)))


def U8(it: Evidence) -> None:
    r"""A causal mask leaves half of the pairs of a query and a key.

    The diagonal stays whole, so the share is (s + 1)/(2s): half in the limit, 4/7 at 7
    tokens. Tiled kernels also compute the hidden half of each tile on the diagonal. The
    thread says “approximately half”."""
    it.as_printed(abs(pairs(500) / 500**2 - 1 / 2) < 1e-2)
    it.elsewhere(2 * pairs(7) == 7**2)
    it.right(7 * pairs(7) == 4 * 7**2 and both("causal-half").right == step(pairs(7)))


def U9(it: Evidence) -> None:
    r"""Attention over a sliding window costs what causal attention costs.

    A query has at most w keys: w(w + 1)/2 + (s − w)w pairs."""
    judged(it, "window-ignored", step(pairs(7, 3)))


def U10(it: Evidence) -> None:
    r"""A causal window of w keys costs w/2 keys a query, as causal attention costs s/2.

    Every query after the first w − 1 has all w keys."""
    judged(it, "window-half", step(pairs(7, 3)), w=3)


def U11(it: Evidence) -> None:
    r"""Attention without a mask costs 6 FLOPs per query, key, and element of a head.

    There are two products, the scores and the output, of 6 FLOPs each."""
    judged(it, "one-of-two-products", step(7 * 7))


def U12(it: Evidence) -> None:
    r"""The products of grouped attention run once per key-value head.

    Every query head has its own. Sharing saves memory and narrows two projections."""
    judged(it, "grouped-scores", step(7 * 7, products=2))


def U13(it: Evidence) -> None:
    """The four projections of grouped attention have the same size.

    The projections of keys and values are only as wide as the key-value heads
    together."""
    b, s, h, n_h, n_kv, d, L = (
        LENGTHS[k] for k in ("b", "s", "h", "n_h", "n_kv", "d", "L")
    )
    widths = [n_h * d, n_kv * d, n_kv * d, n_h * d]
    judged(
        it, "grouped-projections", L * sum(6 * b * s * h * width for width in widths)
    )


def U14(it: Evidence) -> None:
    r"""The heads together are as wide as the model, so attention costs 12bs²hL.

    The width of a head is a setting of its own. Where n_h·d differs from h, as in Qwen3
    and Gemma, the formula is wrong by the factor n_h·d/h."""
    it.as_printed(both("head-width", h=24).usual == step(7 * 7))
    it.elsewhere(both("head-width").usual == step(7 * 7))
    it.right(both("head-width").right == step(7 * 7))


def U15(it: Evidence) -> None:
    r"""FlashAttention's backward costs 2.5 times its forward.

    This is right for matrix products: five against two. With the softmax counted, the
    ratio is 2.4866 at d = 64 and 1,024 tokens."""
    products = {
        "forward": ["q kᵀ", "a v"],
        "backward": ["q kᵀ", "dy vᵀ", "aᵀ dy", "dp k", "dpᵀ q"],
    }
    it.as_printed(len(products["backward"]) == 2.5 * len(products["forward"]))
    at = {"m": 1, "g": 1, "n_kv": 1, "s_q": 1024, "s_k": 1024, "d": 64, "d_v": 64}
    ratio = flash_attention.backward_flops(**at) / flash_attention.forward_flops(**at)
    it.elsewhere(ratio == 2.5)
    it.right(round(ratio, 4) == 2.4866)


def U16(it: Evidence) -> None:
    """The backward of flash attention costs twice its forward, like that of any
    operation.

    It recomputes the scores: five products, against two in the forward."""
    judged(it, "flash-backward", step(7 * 7, products=5))


def U17(it: Evidence) -> None:
    r"""On a CPU, the forward of `scaled_dot_product_attention` has the FLOPs that
    PyTorch's `FlopCounterMode` reports: 0.

    Both products run inside one operator, for which the counter has no formula
    there."""
    judged(it, "fused-attention-unseen", step(7 * 7, products=2))
