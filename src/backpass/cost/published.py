"""The formulas for FLOPs and memory that papers and tools print, as data.

Each ``Formula`` stores the expression as its source groups it, in this project's
letters, and what it claims to count. ``formula.at(b=…, s=…)`` evaluates it exactly, and
``formula.symbolic()`` returns it in SymPy's symbols. ``backpass.cost.mistakes`` shows
where formulas in use are wrong, and ``backpass.cost.sources`` has the formulas of this
project's five sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

LETTERS = {
    "b": "batch",
    "s": "sequence",
    "h": "width of the model",
    "n_h": "query heads",
    "n_kv": "key-value heads",
    "d": "width of a head",
    "f": "width inside the feed-forward block",
    "V": "vocabulary",
    "L": "layers",
    "N": "parameters, as the source of the formula counts them",
    "F": "FLOPs of the forward",
    "w": "keys in a sliding window, the query's own among them",
    "n_e": "experts",
    "n_a": "experts that a token uses",
    "k": "layers between two checkpoints",
    "m": "rows of the left factor of a product",
    "n": "columns of the left factor",
    "p": "columns of the right factor",
}


@cache
def symbolic(expression: str) -> Any:
    """Return the expression in SymPy's symbols.

    Raises ValueError if it has a letter that ``LETTERS`` lacks.
    """
    import sympy

    letters = {
        letter: sympy.Symbol(letter, positive=True, integer=True) for letter in LETTERS
    }
    parsed = sympy.sympify(expression, locals=letters)
    unknown = sorted(map(str, parsed.free_symbols - {*letters.values()}))
    if unknown:
        raise ValueError(
            f"{expression}: expected letters of LETTERS; got {', '.join(unknown)}"
        )
    return parsed


def value(expression: str, **lengths: Any) -> Any:
    """Evaluate the expression exactly.

    Integers give an int, or a Fraction if a division leaves a remainder; SymPy's
    symbols give an expression. Lengths that the expression does not contain are
    ignored, so one mapping serves all formulas. Raises TypeError if a letter is missing
    or is not one of ``LETTERS``.
    """
    import sympy

    unknown = sorted(lengths.keys() - LETTERS.keys())
    if unknown:
        raise TypeError(
            f"{', '.join(unknown)}: expected letters of LETTERS, {', '.join(LETTERS)}"
        )
    parsed = symbolic(expression)
    missing = sorted({letter.name for letter in parsed.free_symbols} - lengths.keys())
    if missing:
        raise TypeError(
            f"{expression}: expected {', '.join(missing)} by name; got none"
        )
    known = {letter: lengths[letter.name] for letter in parsed.free_symbols}
    result = sympy.sympify(parsed.subs(known, simultaneous=True))
    if result.is_Integer:
        return int(result)
    return Fraction(int(result.p), int(result.q)) if result.is_Rational else result


@dataclass(frozen=True)
class Formula:
    """One published formula, and what it claims to count."""

    name: str
    says: str  # in one line
    citation: str
    expression: str  # grouped as the source groups it
    counts: str = "step"  # or "forward", "backward"; "" for memory and parameters
    per: str = "step"  # or "token", "sequence", "layer"
    unit: str = "FLOPs"  # or "bytes", "parameters"
    attention: str = "whole"  # or "half", if causal; "none" if not counted
    embedding: str = "no"  # the token lookup: "no", "as a product", or "in N"
    head: bool = True  # whether the output head's product is counted
    recomputed: str = "nothing"  # or "layers", "attention"

    def symbolic(self) -> Any:
        """Return the formula in SymPy's symbols."""
        return symbolic(self.expression)

    def at(self, **lengths: Any) -> Any:
        """Evaluate the formula exactly: see ``value``."""
        return value(self.expression, **lengths)


def named(name: str) -> Formula:
    """Return the formula of that name. Raises LookupError if there is none."""
    for formula in FORMULAS:
        if formula.name == name:
            return formula
    raise LookupError(f"{name}: expected one of {', '.join(f.name for f in FORMULAS)}")


KAPLAN = "Kaplan et al. 2020, arXiv:2001.08361"
PALM = "Chowdhery et al. 2023, PaLM, arXiv:2204.02311, appendix B"
CHINCHILLA = "Hoffmann et al. 2022, Chinchilla, arXiv:2203.15556, appendix F"
NARAYANAN = "Narayanan et al. 2021, arXiv:2104.04473"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198"
NANOGPT = "karpathy/nanoGPT"
MEGATRON = "NVIDIA/Megatron-LM at d98e8a6, megatron/training"
TORCHTITAN = "pytorch/torchtitan"
SCALING_BOOK = "jax-ml/scaling-book at 04d8de5, transformers.md"
FLASH = "Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py"
DEEPSPEED = (
    "deepspeedai/DeepSpeed at 127756f, deepspeed/profiling/flops_profiler/profiler.py"
)

FORMULAS = (
    # Kaplan et al.: per token; N leaves out the tables of tokens and positions.
    Formula(
        "kaplan-parameters",
        "The matrices of attention and of the feed-forward block, without tables, norms, and biases.",
        f"{KAPLAN}, table 1 and equation 2.1",
        "2*h*L*(2*n_h*d + f)",
        counts="",
        unit="parameters",
        head=False,
    ),
    Formula(
        "kaplan-embed",
        "The row of table 1 for the token lookup and the sum with the positions.",
        f"{KAPLAN}, table 1",
        "4*h",
        counts="forward",
        per="token",
        attention="none",
        head=False,
    ),
    Formula(
        "kaplan-qkv",
        "The row of table 1 for the projections of queries, keys, and values.",
        f"{KAPLAN}, table 1",
        "2*L*h*3*n_h*d",
        counts="forward",
        per="token",
        attention="none",
        head=False,
    ),
    Formula(
        "kaplan-mask",
        "The row of table 1 for attention over the context: one of its two products, or half of both.",
        f"{KAPLAN}, table 1",
        "2*L*s*n_h*d",
        counts="forward",
        per="token",
        attention="half",
        head=False,
    ),
    Formula(
        "kaplan-project",
        "The row of table 1 for the projection of attention's output.",
        f"{KAPLAN}, table 1",
        "2*L*n_h*d*h",
        counts="forward",
        per="token",
        attention="none",
        head=False,
    ),
    Formula(
        "kaplan-feed-forward",
        "The row of table 1 for the two matrices of the feed-forward block.",
        f"{KAPLAN}, table 1",
        "2*L*2*h*f",
        counts="forward",
        per="token",
        attention="none",
        head=False,
    ),
    Formula(
        "kaplan-de-embed",
        "The row of table 1 for the output head, which its total leaves out.",
        f"{KAPLAN}, table 1",
        "2*h*V",
        counts="forward",
        per="token",
        attention="none",
    ),
    Formula(
        "kaplan-forward",
        "The total of table 1: two FLOPs per parameter, and attention over the context.",
        f"{KAPLAN}, equation 2.2 and table 1",
        "2*N + 2*L*s*n_h*d",
        counts="forward",
        per="token",
        attention="half",
        head=False,
    ),
    Formula(
        "6n",
        "Two FLOPs per parameter in the forward and four in the backward; N without any table.",
        f"{KAPLAN}, section 2.1",
        "6*N",
        per="token",
        attention="none",
        head=False,
    ),
    Formula(
        "6n-all",
        "The same with every parameter in N, including the tables of tokens and positions.",
        f"{NANOGPT} at 0bb96d3, transformer_sizing.ipynb, last cell",
        "6*N",
        per="token",
        attention="none",
        embedding="in N",
    ),
    # PaLM, and the tools that follow it.
    Formula(
        "palm",
        "6N, and for attention's two products twelve FLOPs per layer, key, and element of a query.",
        PALM,
        "6*N + 6*L*n_h*(2*d*s)",
        per="token",
        embedding="in N",
    ),
    Formula(
        "nanogpt-mfu",
        "PaLM's formula; N leaves out only the positions, and the tied token table is the head.",
        f"{NANOGPT} at 0011cd4, model.py, estimate_mfu",
        "6*N + 12*L*n_h*d*s",
        per="token",
    ),
    Formula(
        "nanogpt-forward",
        "The products of GPT-2's forward, one by one, for one sequence.",
        f"{NANOGPT} at 0bb96d3, transformer_sizing.ipynb, flops",
        "L*(2*s*h*3*h + 2*s*s*h + 2*n_h*s*s*d + 2*s*h*h + 2*s*h*4*h + 2*s*4*h*h) + 2*s*h*V",
        counts="forward",
        per="sequence",
    ),
    Formula(
        "nanogpt-step",
        "Three times the forward of nanogpt-forward.",
        f"{NANOGPT} at 0bb96d3, transformer_sizing.ipynb, flops",
        "3*(L*(2*s*h*3*h + 2*s*s*h + 2*n_h*s*s*d + 2*s*h*h + 2*s*h*4*h + 2*s*4*h*h) + 2*s*h*V)",
        per="sequence",
    ),
    Formula(
        "torchtitan-2024",
        "PaLM's formula with h as the width of all heads together; N without the token table.",
        f"{TORCHTITAN}, pull request 280",
        "6*N + 12*L*h*s",
        per="token",
    ),
    Formula(
        "torchtitan",
        "The same with the heads' own width; N counts a tied table once, as the head.",
        f"{TORCHTITAN} at 01c01c8, torchtitan/models/utils.py, quadratic_attention_flops_per_token",
        "6*N + 6*L*n_h*(d + d)*s",
        per="token",
    ),
    Formula(
        "llm-foundry",
        "Three times the sum of two FLOPs per parameter and token and attention's two products. "
        "The token table is in N if it is also the head.",
        "mosaicml/llm-foundry, llmfoundry/models/mpt/modeling_mpt.py, flops_per_batch",
        "(2*N*s + L*2*2*(h*s**2))*3*b",
    ),
    # Chinchilla: the forward of one sequence, row by row.
    Formula(
        "hoffmann-embeddings",
        "The token lookup, counted as a product with one-hot rows.",
        CHINCHILLA,
        "2*s*V*h",
        counts="forward",
        per="sequence",
        attention="none",
        embedding="as a product",
        head=False,
    ),
    Formula(
        "hoffmann-qkv",
        "The projections of queries, keys, and values of one layer.",
        CHINCHILLA,
        "2*3*s*h*(d*n_h)",
        counts="forward",
        per="layer",
        attention="none",
        head=False,
    ),
    Formula(
        "hoffmann-scores",
        "The product of queries and keys of one layer.",
        CHINCHILLA,
        "2*s*s*(d*n_h)",
        counts="forward",
        per="layer",
        head=False,
    ),
    Formula(
        "hoffmann-softmax",
        "Softmax of one layer: three FLOPs per score.",
        CHINCHILLA,
        "3*n_h*s*s",
        counts="forward",
        per="layer",
        head=False,
    ),
    Formula(
        "hoffmann-reduction",
        "The product of weights and values of one layer.",
        CHINCHILLA,
        "2*s*s*(d*n_h)",
        counts="forward",
        per="layer",
        head=False,
    ),
    Formula(
        "hoffmann-project",
        "The projection of attention's output of one layer.",
        CHINCHILLA,
        "2*s*(d*n_h)*h",
        counts="forward",
        per="layer",
        attention="none",
        head=False,
    ),
    Formula(
        "hoffmann-dense",
        "The two matrices of the feed-forward block of one layer.",
        CHINCHILLA,
        "2*s*(h*f + h*f)",
        counts="forward",
        per="layer",
        attention="none",
        head=False,
    ),
    Formula(
        "hoffmann-logits",
        "The output head.",
        CHINCHILLA,
        "2*s*h*V",
        counts="forward",
        per="sequence",
        attention="none",
    ),
    Formula(
        "hoffmann-forward",
        "The appendix's total: lookup, layers, and head.",
        CHINCHILLA,
        "2*s*V*h + L*(2*3*s*h*(d*n_h) + 2*s*s*(d*n_h) + 3*n_h*s*s + 2*s*s*(d*n_h) + 2*s*(d*n_h)*h"
        " + 2*s*(h*f + h*f)) + 2*s*h*V",
        counts="forward",
        per="sequence",
        embedding="as a product",
    ),
    Formula(
        "hoffmann-backward",
        "Twice the forward, as the appendix assumes.",
        CHINCHILLA,
        "2*F",
        counts="backward",
        per="sequence",
        embedding="as a product",
    ),
    # Megatron: the products of a whole step.
    Formula(
        "narayanan-layer",
        "The products of one layer's forward; the feed-forward block is 4h wide.",
        f"{NARAYANAN}, appendix",
        "24*b*s*h**2 + 4*b*s**2*h",
        counts="forward",
        per="layer",
        head=False,
    ),
    Formula(
        "narayanan",
        "A step in which each layer's forward runs twice, and the head's once.",
        f"{NARAYANAN}, section 5.1, equation 3",
        "96*b*s*L*h**2*(1 + s/(6*h) + V/(16*L*h))",
        recomputed="layers",
    ),
    Formula(
        "korthikanti-model",
        "The products of a step without recomputation.",
        f"{KORTHIKANTI}, appendix, equation 7",
        "72*b*L*s*h**2*(1 + s/(6*h) + V/(12*h*L))",
    ),
    Formula(
        "korthikanti-hardware",
        "The same with attention's two products run again, as printed; an author calls this incorrect.",
        f"{KORTHIKANTI}, appendix, after equation 7; NVIDIA/Megatron-LM issue 523",
        "72*b*L*s*h**2*(1 + s/(3*h) + V/(12*h*L))",
        recomputed="attention",
    ),
    Formula(
        "korthikanti-hardware-corrected",
        "The same with the author's corrected second term, 2s/(9h).",
        "NVIDIA/Megatron-LM issue 523",
        "72*b*L*s*h**2*(1 + 2*s/(9*h) + V/(12*h*L))",
        recomputed="attention",
    ),
    Formula(
        "megatron-plain",
        "A dense model's step, with causal attention halved and a feed-forward block of two matrices.",
        f"{MEGATRON}/training.py, num_floating_point_operations",
        "b*s*(3*2*h*(f*2)*L + 3*2*(h*(n_h*d + n_kv*d + n_kv*d) + n_h*d*h)*L + 3*2*h*V)"
        " + b*s**2*(3*2*n_h*d/2*2)*L",
        attention="half",
    ),
    Formula(
        "megatron-gated",
        "The same with a feed-forward block of three matrices.",
        f"{MEGATRON}/training.py, num_floating_point_operations",
        "b*s*(3*2*h*(f*3)*L + 3*2*(h*(n_h*d + n_kv*d + n_kv*d) + n_h*d*h)*L + 3*2*h*V)"
        " + b*s**2*(3*2*n_h*d/2*2)*L",
        attention="half",
    ),
    # The scaling book: training FLOPs of a gated layer without grouped queries.
    Formula(
        "scaling-book-mlp",
        "The three matrices of the feed-forward block, forward and backward.",
        SCALING_BOOK,
        "18*b*s*h*f",
        per="layer",
        attention="none",
        head=False,
    ),
    Formula(
        "scaling-book-attention",
        "The four projections and both products of attention, forward and backward.",
        SCALING_BOOK,
        "24*b*s*h*n_h*d + 12*b*s**2*n_h*d",
        per="layer",
        head=False,
    ),
    Formula(
        "scaling-book-unembed",
        "The output head, forward and backward, in the chapter's table of other operations.",
        SCALING_BOOK,
        "6*b*s*h*V",
        attention="none",
    ),
    Formula(
        "scaling-book-vocab",
        "The row for the vocabulary in the chapter's summary: twice the head.",
        SCALING_BOOK,
        "12*b*s*h*V",
        attention="none",
        embedding="as a product",
    ),
    Formula(
        "scaling-book-remat",
        "A step in which each layer saves only its input: 8N per token instead of 6N.",
        SCALING_BOOK,
        "8*N",
        per="token",
        attention="none",
        recomputed="layers",
    ),
    # Attention alone.
    Formula(
        "flash-forward",
        "Both products of attention without a mask.",
        f"{FLASH}, flops",
        "4*b*s**2*n_h*d",
        counts="forward",
        per="layer",
        head=False,
    ),
    Formula(
        "flash-forward-causal",
        "Half of both products.",
        f"{FLASH}, flops",
        "4*b*s**2*n_h*d/2",
        counts="forward",
        per="layer",
        attention="half",
        head=False,
    ),
    Formula(
        "flash-backward",
        "Five products, against two in the forward: the scores are recomputed.",
        f"{FLASH}, flops",
        "5*(4*b*s**2*n_h*d)/2",
        counts="backward",
        per="layer",
        head=False,
        recomputed="attention",
    ),
    Formula(
        "flash-step",
        "The sum of forward and backward.",
        f"{FLASH}, flops",
        "7*(4*b*s**2*n_h*d)/2",
        per="layer",
        head=False,
        recomputed="attention",
    ),
    # Tools that count a forward and multiply.
    Formula(
        "deepspeed-backward",
        "Twice the counted forward; a recomputed forward may be added.",
        f"{DEEPSPEED}, print_model_profile",
        "2*F",
        counts="backward",
    ),
    Formula(
        "deepspeed-linear",
        "A product is two FLOPs per multiplication; its bias is not counted.",
        f"{DEEPSPEED}, _linear_flops_compute",
        "2*m*n*p",
        counts="forward",
        attention="none",
    ),
    Formula(
        "deepspeed-layer-norm",
        "Five FLOPs per element of a norm with a weight.",
        f"{DEEPSPEED}, _layer_norm_flops_compute",
        "5*b*s*h",
        counts="forward",
        attention="none",
    ),
    Formula(
        "deepspeed-gelu",
        "One FLOP per element.",
        f"{DEEPSPEED}, _gelu_flops_compute",
        "b*s*f",
        counts="forward",
        attention="none",
    ),
    Formula(
        "calflops-backward",
        "Twice the counted forward, by a factor that the caller may change.",
        "MrYxJ/calculate-flops.pytorch at 086d419, calflops/flops_counter.py, compute_bp_factor",
        "2*F",
        counts="backward",
    ),
    # Memory, in half precision: two bytes per element, and one in a dropout mask.
    Formula(
        "korthikanti-attention-bytes",
        "What attention's backward needs, with the weights of attention stored.",
        f"{KORTHIKANTI}, section 4.1",
        "11*s*b*h + 5*n_h*s**2*b",
        counts="",
        per="layer",
        unit="bytes",
        head=False,
    ),
    Formula(
        "korthikanti-mlp-bytes",
        "What the feed-forward block's backward needs; the block is 4h wide.",
        f"{KORTHIKANTI}, section 4.1",
        "19*s*b*h",
        counts="",
        per="layer",
        unit="bytes",
        head=False,
    ),
    Formula(
        "korthikanti-norm-bytes",
        "The inputs of a layer's two norms; their statistics are not counted.",
        f"{KORTHIKANTI}, section 4.1",
        "4*s*b*h",
        counts="",
        per="layer",
        unit="bytes",
        head=False,
    ),
    Formula(
        "korthikanti-layer-bytes",
        "What a layer's backward needs.",
        f"{KORTHIKANTI}, equation 1",
        "s*b*h*(34 + 5*n_h*s/h)",
        counts="",
        per="layer",
        unit="bytes",
        head=False,
    ),
    Formula(
        "korthikanti-selective-bytes",
        "The same if attention is run again: its weights are not stored.",
        f"{KORTHIKANTI}, table 2, without tensor parallelism",
        "34*s*b*h",
        counts="",
        per="layer",
        unit="bytes",
        head=False,
        recomputed="attention",
    ),
    Formula(
        "korthikanti-full-bytes",
        "The same if the whole layer is run again: only its input is stored.",
        f"{KORTHIKANTI}, table 2",
        "2*s*b*h",
        counts="",
        per="layer",
        unit="bytes",
        head=False,
        recomputed="layers",
    ),
    Formula(
        "megatron-state-bytes",
        "Weights, gradients, and optimiser states, without a distributed optimiser.",
        f"{MEGATRON}/theoretical_memory_usage.py, compute_weight_and_optimizer_memory",
        "18*N",
        counts="",
        unit="bytes",
    ),
    Formula(
        "megatron-activation-bytes",
        "Activations on one device if attention is run again, with the head's input and logits.",
        f"{MEGATRON}/theoretical_memory_usage.py, compute_activation_memory",
        "s*b*h*(18 + 4*(f/h))*L + 8*s*b + s*b*h + s*b*h*4*(1 + V/h)",
        counts="",
        unit="bytes",
        recomputed="attention",
    ),
    Formula(
        "megatron-activation-bytes-plain",
        "Activations on one device otherwise, with 5 % for the rest, and without a term in s².",
        f"{MEGATRON}/theoretical_memory_usage.py, compute_activation_memory_without_sp",
        "(s*b*h*(10 + 24)*L + 8*s*b + s*b*h + (s*b*V + s*b*h)*2)*105/100",
        counts="",
        unit="bytes",
    ),
    Formula(
        "scaling-book-activation-bytes",
        "About twenty arrays as large as the input per layer, at two bytes per element.",
        SCALING_BOOK,
        "2*20*b*s*h*L",
        counts="",
        unit="bytes",
        head=False,
    ),
)
