"""FLOPs of whole layers and of recomputation, as tools count them."""

from __future__ import annotations

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.usual.attention import LENGTHS, judged

b, s, h, n_h, n_kv, d, L = (
    LENGTHS[letter] for letter in ("b", "s", "h", "n_h", "n_kv", "d", "L")
)


def layers(h: int, passes: int, s_passes: int | None = None) -> int:
    """Return the FLOPs of the products of L plain layers of width h: each weight is in
    ``passes`` products, and attention's two products run ``s_passes`` times."""
    weights = [(h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)]
    matrices = sum(2 * b * s * rows * columns for rows, columns in weights)
    scores = 2 * (2 * b * s * s * h)
    return L * (passes * matrices + (s_passes or passes) * scores)


CLAIMS = """
U18  false  5  feed-forward   operations/feed_forward  Megatron-Bridge before PR 3947, for gates other than SwiGLU; open-instruct before PR 1096
U19  false  6  FLOPs          cost/ratio               torchtitan's Hugging Face backend, discussed in PR 4300
U20  false  3  recomputation  numerics/recomputation   Megatron-DeepSpeed PR 283; BigCode's Megatron-LM PR 33
U21  false  3  recomputation  numerics/recomputation   Megatron-LM, BigCode's fork, PR 33 and issue 78
U22  false  4  recomputation  numerics/recomputation   Korthikanti et al. (2022), after equation 7; Megatron-LM issue 523
U23  false  3  FLOPs          cost/ratio               the estimate in NeMo Automodel PR 786
"""
SHOWN_BY = """
cost/test_published.py::test_the_right_number_is_what_ran_and_the_usual_one_is_not  U18 U19 U20 U21 U22 U23
"""


def U18(it: Evidence) -> None:
    r"""Every feed-forward block has two matrices: 12bshf FLOPs per layer and step.

    A gated block has three: 18bshf."""
    matrices = [(h, 11), (h, 11), (11, h)]
    ran = L * sum(6 * b * s * rows * columns for rows, columns in matrices)
    judged(it, "gated-two-matrices", ran, f=11)


def U19(it: Evidence) -> None:
    r"""A mixture of experts costs 6 FLOPs for each parameter, active or not, and token.

    A token uses n_a of its n_e experts, so only their parameters count."""
    tokens = [
        expert for _ in range(b * s) for expert in range(3)
    ]  # 3 of 8 experts each
    judged(it, "all-experts", L * len(tokens) * 3 * 6 * h * 11, f=11, n_e=8, n_a=3)


def U20(it: Evidence) -> None:
    r"""For a gated block 4h wide, replacing $4 \cdot 24$ by $4 \cdot 32$ in the formula
    of Narayanan et al., $96\,b\,s\,L\,h^2\,(1 + s/6h + V/16Lh)$, gives the FLOPs of a
    step with recomputed layers.

    The terms in brackets were divided by 24, so the new factor also multiplies
    attention and the head by 4/3. Their cost does not change."""
    gated = 4 * L * 2 * b * s * 4 * h * h  # the third matrix, in four passes
    ran = layers(h, passes=4) + gated + 6 * b * s * h * 30
    judged(it, "gated-coefficient", ran, V=30)
    it.right(4 * 24 == 96)


def U21(it: Evidence) -> None:
    r"""Without recomputation, the $96 = 24 \cdot 4$ in the formula of Narayanan et al.
    becomes $72 = 24 \cdot 3$.

    The head's term had no recomputation: it stays 6bshV; the factor 3 leaves
    4.5bshV."""
    judged(
        it, "head-without-recomputation", layers(h, passes=3) + 6 * b * s * h * 30, V=30
    )
    it.right(6 * 3 == 4 * 4.5)


def U22(it: Evidence) -> None:
    r"""Recomputing attention's products takes its term from 12bs²h to 24bs²h a layer.

    It adds one forward, 4bs²h, so the term becomes 16bs²h."""
    ran = layers(h, passes=3, s_passes=4) + 6 * b * s * h * 30
    judged(it, "selective-recomputation", ran, V=30)


def U23(it: Evidence) -> None:
    r"""With frozen matrices a step costs two thirds of a full one.

    Only products with weights lose one of their two backward products. Attention's two
    products have no weights and keep both."""
    widths = [n_h * d, n_kv * d, n_kv * d, n_h * d]
    frozen = sum(4 * b * s * h * width for width in widths)
    judged(it, "frozen-matrices", L * (frozen + 12 * b * s * s * n_h * d))
