"""Mistakes that recur in formulas for FLOPs and memory, each with a place where it is
made, reported, or discussed: what the usual formula says, and what is right.

FLOPs here are those of matrix products, 2mnp each, as the usual formulas count them.
The tests derive each right number a second time, by running the products on PyTorch's
meta device under its FLOP counter, or by adding the bytes that autograd saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.cost.published import symbolic, value


class Compared(NamedTuple):
    """What the usual formula gives at some lengths, and what is right."""

    usual: Any
    right: Any


@dataclass(frozen=True)
class Mistake:
    """One mistake: its formula, and the right formula for the same network."""

    name: str
    says: str  # what the usual formula says
    truth: str  # what is right
    citation: str
    usual: str
    right: str
    unit: str = "FLOPs"

    def at(self, **lengths: Any) -> Compared:
        """Evaluate both formulas exactly: see ``published.value``. Raises ValueError
        for a window of more keys than the sequence has."""
        from sympy import sympify

        found = Compared(value(self.usual, **lengths), value(self.right, **lengths))
        letters = {letter.name for letter in symbolic(self.right).free_symbols}
        if "w" in letters and sympify(lengths["w"] - lengths["s"]).is_positive:
            raise ValueError(
                f"w: expected at most s = {lengths['s']}; got {lengths['w']}"
            )
        return found


MISTAKES = (
    Mistake(
        "causal-whole",
        "Causal attention costs as much as attention without a mask.",
        "A query attends to its own key and the earlier ones: s(s + 1)/2 pairs.",
        "pytorch/torchtitan PR 280; karpathy/nanoGPT issue 456; "
        "AI-Hypercomputer/maxtext issue 1972",
        "12*b*s**2*n_h*d*L",
        "6*b*s*(s + 1)*n_h*d*L",
    ),
    Mistake(
        "causal-half",
        "Causal attention costs half of attention without a mask.",
        "Half leaves out half of the diagonal: there are s(s + 1)/2 pairs, not s²/2.",
        "NVIDIA/Megatron-LM, num_floating_point_operations; "
        "Dao-AILab/flash-attention issue 594",
        "6*b*s**2*n_h*d*L",
        "6*b*s*(s + 1)*n_h*d*L",
    ),
    Mistake(
        "window-ignored",
        "A query in a sliding window attends to all earlier keys.",
        "A query attends to at most w keys, and to fewer in the first w − 1 rows.",
        "allenai/OLMo-core issue 475; vllm-project/vllm PR 55624",
        "6*b*s*(s + 1)*n_h*d*L",
        "12*b*(w*(w + 1)/2 + (s - w)*w)*n_h*d*L",
    ),
    Mistake(
        "window-half",
        "A window of w keys costs w/2 keys per query, as a mask over s keys costs s/2.",
        "Every query after the first w − 1 attends to all w keys.",
        "NVIDIA/Megatron-LM PR 3280, which does this; "
        "NVIDIA-NeMo/Megatron-Bridge PR 3947, which corrects it",
        "12*b*s*w/2*n_h*d*L",
        "12*b*(w*(w + 1)/2 + (s - w)*w)*n_h*d*L",
    ),
    Mistake(
        "embedding-as-product",
        "The token table costs as much as the output head, forward and backward.",
        "The lookup copies rows. Only the head is a product.",
        "tenstorrent/tt-metal PR 50114; pytorch/torchtitan PR 280; "
        "huggingface/trl PR 5698; Hoffmann et al. 2022, appendix F",
        "6*b*s*V*h + 6*b*s*V*h",
        "6*b*s*V*h",
    ),
    Mistake(
        "positions-and-norms-in-N",
        "Every parameter of a GPT-2 without biases costs 6 FLOPs per token.",
        "Positions are added and norms multiply element by element: neither is a matrix product.",
        "karpathy/nanoGPT, transformer_sizing.ipynb, palm_flops against flops",
        "6*b*s*(12*L*h**2 + V*h + s*h + (2*L + 1)*h) + 12*b*s**2*h*L",
        "6*b*s*(12*L*h**2 + V*h) + 12*b*s**2*h*L",
    ),
    Mistake(
        "one-of-two-products",
        "Attention without a mask costs 6 FLOPs per query, key, and element of a head.",
        "There are two products of 6 FLOPs each: the scores and the output.",
        "pytorch/torchtitan PR 4366",
        "6*b*s**2*n_h*d*L",
        "12*b*s**2*n_h*d*L",
    ),
    Mistake(
        "grouped-projections",
        "All four projections are as wide as the query heads together.",
        "The projections to keys and values are as wide as n_kv heads.",
        "jax-ml/scaling-book PR 30; jranaraki/vllm-fit issue 20",
        "24*b*s*h*n_h*d*L",
        "12*b*s*h*(n_h + n_kv)*d*L",
    ),
    Mistake(
        "grouped-scores",
        "The products of grouped attention's forward run once per key-value head.",
        "They run once per query head: sharing keys and values saves memory, not products.",
        "facebookresearch/xformers PR 1404",
        "4*b*s**2*n_kv*d*L",
        "4*b*s**2*n_h*d*L",
    ),
    Mistake(
        "head-width",
        "All query heads together are as wide as the model.",
        "The width of a head is set independently: n_h·d may differ from h.",
        "pytorch/torchtitan issue 1920; NVIDIA-NeMo/RL PR 2736; "
        "NVIDIA-NeMo/Automodel PR 3091",
        "12*b*s**2*h*L",
        "12*b*s**2*n_h*d*L",
    ),
    Mistake(
        "gated-two-matrices",
        "A feed-forward block has two matrices.",
        "A gated block has three matrices.",
        "NVIDIA-NeMo/Megatron-Bridge PR 3947; allenai/open-instruct PR 1096; "
        "jranaraki/vllm-fit issue 20",
        "12*b*s*h*f*L",
        "18*b*s*h*f*L",
    ),
    Mistake(
        "gated-coefficient",
        "With recomputed layers and a gated block 4h wide, the 24 in the formula of 2021 becomes 32.",
        "The terms in brackets were divided by 24, so attention and the head grow by a third too.",
        "bigscience-workshop/Megatron-DeepSpeed PR 283; bigcode-project/Megatron-LM PR 33",
        "32*4*b*s*L*h**2*(1 + s/(6*h) + V/(16*L*h))",
        "128*b*s*L*h**2 + 16*b*s**2*h*L + 6*b*s*h*V",
    ),
    Mistake(
        "head-without-recomputation",
        "Without recomputation, the factor 4 in the formula of 2021 becomes 3.",
        "The head did not run twice, so the factor 3 removes a quarter of its term: 4.5bshV, not 6bshV.",
        "bigcode-project/Megatron-LM PR 33 and issue 78; "
        "bigscience-workshop/Megatron-DeepSpeed PR 283",
        "24*3*b*s*L*h**2*(1 + s/(6*h) + V/(16*L*h))",
        "72*b*s*L*h**2 + 12*b*s**2*h*L + 6*b*s*h*V",
    ),
    Mistake(
        "selective-recomputation",
        "Running attention's two products again doubles attention's term.",
        "It adds one forward, a third: 12bs²h per layer becomes 16bs²h, not 24bs²h.",
        "Korthikanti et al. 2022, after equation 7; NVIDIA/Megatron-LM issue 523",
        "72*b*L*s*h**2*(1 + s/(3*h) + V/(12*h*L))",
        "72*b*L*s*h**2 + 16*b*s**2*h*L + 6*b*s*h*V",
    ),
    Mistake(
        "frozen-matrices",
        "With frozen matrices and small adapters, a step costs two thirds of a full one.",
        "Attention's products do not have weights, so their backward stays whole. "
        "Only the projections lose their weights' gradients.",
        "NVIDIA-NeMo/Automodel PR 786",
        "2*(12*b*s*h*(n_h + n_kv)*d*L + 12*b*s**2*n_h*d*L)/3",
        "8*b*s*h*(n_h + n_kv)*d*L + 12*b*s**2*n_h*d*L",
    ),
    Mistake(
        "flash-backward",
        "The backward of attention costs twice its forward.",
        "Flash attention recomputes the scores: five products, against two in the forward.",
        "deepspeedai/DeepSpeed, flops_profiler",
        "2*4*b*s**2*n_h*d*L",
        "10*b*s**2*n_h*d*L",
    ),
    Mistake(
        "all-experts",
        "A mixture of gated experts costs 6 FLOPs per parameter and token.",
        "A token uses n_a of the n_e experts.",
        "pytorch/torchtitan PR 4300",
        "18*b*s*h*f*n_e*L",
        "18*b*s*h*f*n_a*L",
    ),
    Mistake(
        "fused-attention-unseen",
        "A counter of operators reports no FLOPs for the forward of fused attention on a CPU.",
        "Both products run inside the operator.",
        "pytorch/pytorch issue 195460; MrYxJ/calculate-flops.pytorch issue 48",
        "0",
        "4*b*s**2*n_h*d*L",
    ),
    Mistake(
        "bytes-counted-twice",
        "A layer's activations in float32 take four times 34sbh + 5bs²n_h.",
        "That formula is already in bytes, two per element; masks stay one byte wide.",
        "manuelescobar-dev/LLM-Tools issue 4 and PR 6",
        "4*s*b*h*(34 + 5*n_h*s/h)",
        "66*s*b*h + 9*b*n_h*s**2",
        "bytes",
    ),
    Mistake(
        "flash-without-statistics",
        "With flash attention, 11sbh + 5bs²n_h bytes become 11sbh.",
        "The logarithm of each row's sum is also stored, in float32: 4bsn_h bytes.",
        "Dao-AILab/flash-attention issue 899",
        "11*s*b*h",
        "11*s*b*h + 4*b*s*n_h",
        "bytes",
    ),
    Mistake(
        "selective-with-flash",
        "With flash attention, recomputing attention reduces memory by 5bs²n_h bytes per layer.",
        "Flash attention does not store the weights, so recomputation removes only the rows' statistics.",
        "NVIDIA/Megatron-LM issues 464 and 1225",
        "5*b*n_h*s**2",
        "4*b*s*n_h",
        "bytes",
    ),
)
