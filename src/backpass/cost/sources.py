"""What the five sources of this project print about FLOPs and memory.

``ROWS`` are their formulas, ``TOTALS`` their sums, ``NUMBERS`` their figures, each with
the formula that gives it, and ``STATEMENTS`` what they say in words. ``off`` is the
printed total or figure minus what its rows or its formula give. ``COMPLETED`` counts a
source's network in the source's own way and adds the terms that the source leaves out.
The keys of the sources are those of ``references.bib``. The letters are this project's:
see ``published.LETTERS``. A place in a source is named in our words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from backpass.cost.published import symbolic, value

GPT2_POST = "post2024gpt2"  # the backward of GPT-2, formulas only
THESIS = "barbato2025cost"  # an encoder's block with one head, formulas only
TRACE_NOTES = "notes2024traceform"  # prints neither FLOPs nor bytes
GRADIENT_FLOW = "post2024gradientflow"  # Llama 3 70B, mostly figures
TWICE_NOTE = "note2024twice"  # one product


@dataclass(frozen=True)
class Row:
    """A formula as printed."""

    source: str
    place: str
    name: str
    says: str
    expression: str
    unit: str = "FLOPs"

    def at(self, **lengths: Any) -> Any:
        """Evaluate the formula exactly: see ``published.value``."""
        return value(self.expression, **lengths)


@dataclass(frozen=True)
class Total:
    """A sum as printed, and the terms that the source says it is the sum of."""

    source: str
    place: str
    name: str
    says: str
    printed: str
    terms: tuple[str, ...]  # as printed, in formulas or in figures
    off: str = "0"  # the printed total, minus the sum of the terms
    unit: str = "FLOPs"

    @property
    def consistent(self) -> bool:
        """Whether the printed total is the sum of the printed terms."""
        return self.off == "0"


# Bytes, FLOPs, or one, in each unit. The gradient-flow post writes MB and GB for powers
# of 2 in most places, and for powers of 10 in some.
UNITS: Mapping[str, int | Fraction] = MappingProxyType(
    {
        "": 1,
        "×": 1,
        "s": 1,
        "%": Fraction(1, 100),
        "FLOPs": 1,
        "GFLOPs": 10**9,
        "TFLOPs": 10**12,
        "TFLOP/s": 10**12,
        "MiB": 2**20,
        "GiB": 2**30,
        "GB": 10**9,
        "GB of 1000 MiB": 1000 * 2**20,
    }
)


@dataclass(frozen=True)
class Number:
    """A figure as printed, the formula from which the source derives it, and
    lengths."""

    source: str
    place: str
    name: str
    says: str
    printed: str
    unit: str
    expression: str
    lengths: Mapping[str, int]
    off: str = "0"  # the printed figure, minus ``rounded``

    @property
    def exact(self) -> Fraction:
        """The formula's value in the figure's unit."""
        return Fraction(value(self.expression, **self.lengths)) / UNITS[self.unit]

    @property
    def rounded(self) -> Decimal:
        """``exact``, rounded to as many decimals as were printed."""
        last = Decimal(1).scaleb(-len(self.printed.partition(".")[2]))
        exact = self.exact
        decimal = Decimal(exact.numerator) / Decimal(exact.denominator)
        return decimal.quantize(last, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Statement:
    """What a source says in words and what is true; as formulas too, where possible."""

    source: str
    place: str
    says: str
    truth: str
    printed: str = ""
    right: str = ""


@dataclass(frozen=True)
class Added:
    """A term that a source leaves out, counted in the source's own way."""

    name: str
    says: str
    expression: str


@dataclass(frozen=True)
class Completed:
    """A source's total as printed, and the terms that it leaves out."""

    source: str
    name: str
    says: str
    printed: str
    added: tuple[Added, ...]

    @property
    def expression(self) -> str:
        """The printed total and the added terms, as one expression."""
        return " + ".join(
            f"({term})" for term in (self.printed, *(a.expression for a in self.added))
        )

    def symbolic(self) -> Any:
        """Return the completed total in SymPy's symbols."""
        return symbolic(self.expression)

    def at(self, **lengths: Any) -> Any:
        """Evaluate the completed total exactly: see ``published.value``."""
        return value(self.expression, **lengths)


ROWS = (
    # The GPT-2 post: the backward of a network of width h = n_h·d, with f = 4h.
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "lm_head",
        "The output head.",
        "4*b*s*h*V",
    ),
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "mlp_down",
        "The second matrix.",
        "16*b*s*h**2",
    ),
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "mlp_up",
        "The first matrix.",
        "16*b*s*h**2",
    ),
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "attn_out",
        "Attention's last projection.",
        "4*b*s*h**2",
    ),
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "attn@value",
        "Weights and values.",
        "4*b*n_h*s**2*d",
    ),
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "query@key",
        "The scores.",
        "4*b*n_h*s**2*d",
    ),
    Row(
        GPT2_POST,
        "Tensor contractions, table",
        "qkv_proj",
        "The three projections.",
        "12*b*s*h**2",
    ),
    Row(
        GPT2_POST,
        "Softmax",
        "softmax",
        "Weighted sum 2s, difference s, product s per row.",
        "4*b*n_h*s**2",
    ),
    Row(
        GPT2_POST,
        "Log-softmax",
        "log_softmax",
        "Sum, exponential, product, difference.",
        "4*b*s*V",
    ),
    Row(
        GPT2_POST,
        "LayerNorm",
        "input",
        "Products and two sums 4h, four steps per element.",
        "8*b*s*h",
    ),
    Row(
        GPT2_POST,
        "LayerNorm",
        "scale",
        "A product and a sum per element.",
        "b*s*h + b*s*h",
    ),
    Row(GPT2_POST, "LayerNorm", "shift", "A sum over the rows.", "b*s*h"),
    Row(GPT2_POST, "GELU", "gelu", "19 steps for each of 4h elements.", "76*b*s*h"),
    Row(
        GPT2_POST,
        "Attention scaling",
        "scaling",
        "One product per score.",
        "b*n_h*s**2",
    ),
    Row(GPT2_POST, "Residual connections", "residual", "No arithmetic.", "0"),
    Row(
        GPT2_POST,
        "Embeddings, batches",
        "positions",
        "A sum over the batch.",
        "(b - 1)*s*h",
    ),
    Row(GPT2_POST, "Negative log likelihood", "nll", "No arithmetic.", "0"),
    # The thesis: the backward of one block, one sequence, one head, d of width h.
    Row(
        THESIS, "3.1.1, a product", "product", "Any product of two matrices.", "2*m*n*p"
    ),
    Row(THESIS, "3.1.1, output projection", "out", "Two products.", "4*s*h**2"),
    Row(THESIS, "3.1.1, attention outputs", "values", "Two products.", "4*s**2*h"),
    Row(THESIS, "3.1.1, attention weights", "softmax", "4s per row.", "4*s**2"),
    Row(
        THESIS,
        "3.1.1, scaled dot-product",
        "scores",
        "Two products, two scalings.",
        "4*s**2*h + 2*s*h",
    ),
    Row(
        THESIS,
        "3.1.1, projections",
        "qkv",
        "Six products, two sums.",
        "12*s*h**2 + 2*s*h",
    ),
    Row(
        THESIS,
        "3.1.2, output projection",
        "ffl_out",
        "Two products, for one row.",
        "4*f*h",
    ),
    Row(THESIS, "3.1.2, nonlinearity", "relu", "Comparisons only.", "0"),
    Row(
        THESIS,
        "3.1.2, first projection",
        "ffl_in",
        "Two products, for one row.",
        "4*h*f",
    ),
    Row(
        THESIS,
        "3.1.3, parameters, in the text",
        "norm_w",
        "Parameters and x̂, for one row.",
        "3*h",
    ),
    Row(
        THESIS,
        "3.1.3, parameters, in the summary",
        "norm_w_summary",
        "The same, for one row.",
        "2*h",
    ),
    Row(THESIS, "3.1.3, input", "norm_x", "The input, for one row.", "7*h"),
    # The gradient-flow post's formulas. Its table of FLOPs has figures only.
    Row(
        GRADIENT_FLOW,
        "6.1, note under the table",
        "product",
        "Any product of two matrices.",
        "2*m*n*p",
    ),
    Row(
        GRADIENT_FLOW,
        "1.3, box",
        "rms_norm",
        "Five element-wise operations for the backward of a norm.",
        "5*b*s*h",
    ),
    Row(
        GRADIENT_FLOW,
        "4.4",
        "checkpointing",
        "The part of the forward that runs again with a checkpoint every k layers.",
        "F/k",
    ),
    # The 2× note: one product, batch rows of width n into p.
    Row(TWICE_NOTE, "Forward", "forward", "The product.", "2*m*n*p"),
    Row(TWICE_NOTE, "Backward, 1", "dx", "The input's gradient.", "2*m*p*n"),
    Row(TWICE_NOTE, "Backward, 2", "dw", "The weight's gradient.", "2*n*m*p"),
)

LLAMA_70B: Mapping[str, int] = MappingProxyType(
    {"b": 1, "s": 8192, "h": 8192, "n_h": 64, "n_kv": 8, "d": 128, "f": 28672, "L": 80}
)
_70B: Mapping[str, int] = MappingProxyType({"N": 70 * 10**9})
_NOTHING: Mapping[str, int] = MappingProxyType({})
_NOTE: Mapping[str, int] = MappingProxyType({"m": 1024, "n": 1600, "p": 1600})

TOTALS = (
    Total(
        GPT2_POST,
        "LayerNorm",
        "layer_norm",
        "Input, scale, and shift.",
        "11*b*s*h",
        ("8*b*s*h", "b*s*h", "b*s*h", "b*s*h"),
    ),
    Total(
        GPT2_POST,
        "Final tally",
        "layer",
        "Eleven parts of a layer.",
        "48*b*s*h**2 + 8*b*n_h*s**2*d + 5*b*n_h*s**2 + 98*b*s*h",
        (
            "11*b*s*h",
            "12*b*s*h**2",
            "4*b*n_h*s**2*d",
            "4*b*n_h*s**2",
            "b*n_h*s**2",
            "4*b*n_h*s**2*d",
            "4*b*s*h**2",
            "11*b*s*h",
            "16*b*s*h**2",
            "76*b*s*h",
            "16*b*s*h**2",
        ),
    ),
    Total(
        GPT2_POST,
        "Final tally",
        "network",
        "Layers, final norm, head, and cross-entropy, which is named but not added.",
        "L*(48*b*s*h**2 + 8*b*n_h*s**2*d + 5*b*n_h*s**2 + 98*b*s*h) + 11*b*s*h + 4*b*s*h*V",
        (
            "L*(48*b*s*h**2 + 8*b*n_h*s**2*d + 5*b*n_h*s**2 + 98*b*s*h)",
            "11*b*s*h",
            "4*b*s*h*V",
            "4*b*s*V",
        ),
        off="-4*b*s*V",
    ),
    Total(
        THESIS,
        "3.1.1, summary",
        "attention",
        "Five parts of the attention block.",
        "16*s*h**2 + 8*s**2*h + 4*s**2 + 4*s*h",
        ("4*s*h**2", "4*s**2*h", "4*s**2", "4*s**2*h + 2*s*h", "12*s*h**2 + 2*s*h"),
    ),
    Total(
        THESIS,
        "3.1.2, summary",
        "feed_forward",
        "Both projections of all rows.",
        "8*s*h*f",
        ("s*4*h*f", "0", "s*4*h*f"),
    ),
    Total(
        THESIS,
        "3.1.3, summary",
        "norm",
        "The terms of the summary. With the 3h of the text it would be 10sh.",
        "9*s*h",
        ("s*2*h", "s*7*h"),
    ),
    Total(
        THESIS,
        "3.1.3, text and summary",
        "norm_text",
        "The same total, compared with the terms of the text.",
        "9*s*h",
        ("s*3*h", "s*7*h"),
        off="-s*h",
    ),
    Total(
        THESIS,
        "3.2",
        "block",
        "Attention, the feed-forward layer at f = 4h, and two norms.",
        "48*s*h**2 + 8*s**2*h + 4*s**2 + 22*s*h",
        ("16*s*h**2 + 8*s**2*h + 4*s**2 + 4*s*h", "32*s*h**2", "2*9*s*h"),
    ),
    Total(
        THESIS,
        "4.2.1",
        "norms_discussed",
        "Both norms as the discussion gives them; the total has 18sh.",
        "20*s*h",
        ("2*9*s*h",),
        off="2*s*h",
    ),
    Total(
        GRADIENT_FLOW,
        "6.1, forward",
        "forward",
        "Nine rows of the forward of a layer.",
        "16250",
        ("1100", "138", "138", "1100", "1100", "1100", "3858", "3858", "3858"),
        unit="GFLOPs",
    ),
    Total(
        GRADIENT_FLOW,
        "6.1, backward",
        "backward",
        "Nine rows of the backward of a layer, and the scores that flash attention recomputes.",
        "34301",
        ("2200", "275", "275", "2200", "1100", "2200", "2200", "7717", "7717", "7717"),
        off="700",
        unit="GFLOPs",
    ),
    Total(
        GRADIENT_FLOW,
        "6.1, step",
        "step",
        "Forward and backward of 80 layers.",
        "4044",
        ("1300", "2744"),
        unit="TFLOPs",
    ),
    Total(
        GRADIENT_FLOW,
        "3.1",
        "states",
        "Master weights, two moments, weights, and gradients of 70e9 parameters.",
        "1120",
        ("280", "280", "280", "140", "140"),
        unit="GB",
    ),
    Total(
        GRADIENT_FLOW,
        "4.1, without flash attention",
        "activations",
        "Eight rows of what a layer saves.",
        "10208",
        ("128", "128", "160", "8192", "128", "128", "896", "448"),
        unit="MiB",
    ),
    Total(
        GRADIENT_FLOW,
        "4.1, with flash attention",
        "activations_flash",
        "The same without the weights of attention.",
        "2016",
        ("128", "128", "160", "128", "128", "896", "448"),
        unit="MiB",
    ),
    Total(
        TWICE_NOTE,
        "Total backward",
        "backward",
        "Both gradients.",
        "4*m*n*p",
        ("2*m*p*n", "2*n*m*p"),
    ),
    Total(
        TWICE_NOTE,
        "Concrete example",
        "backward_example",
        "Both gradients at 1,024 rows of 1,600.",
        "10485760000",
        ("5242880000", "5242880000"),
    ),
)


def _flops(
    name: str, forward: str, backward: str, product: str, off: tuple[str, str]
) -> tuple[Number, ...]:
    """Return the two figures of a row of the gradient-flow post's table of FLOPs."""
    place = "6.1, table"
    return tuple(
        Number(
            GRADIENT_FLOW,
            place,
            f"{name}, {passed}",
            f"The {passed} of {name}.",
            printed,
            "GFLOPs",
            f"{times}*{product}",
            LLAMA_70B,
            missed,
        )
        for passed, printed, times, missed in (
            ("forward", forward, 2, off[0]),
            ("backward", backward, 4, off[1]),
        )
    )


def _size(
    place: str, name: str, printed: str, unit: str, expression: str, off: str = "0"
) -> Number:
    """Return a memory figure of the gradient-flow post, at Llama 3 70B's sizes."""
    return Number(
        GRADIENT_FLOW,
        place,
        name,
        f"{name}, in bytes.",
        printed,
        unit,
        expression,
        LLAMA_70B,
        off,
    )


_SAVED_FLASH = "2016*2**20"  # as printed, per layer
NUMBERS = (
    *_flops("Q projection", "1100", "2200", "b*s*h*n_h*d", ("0", "1")),
    *_flops("K projection", "138", "275", "b*s*h*n_kv*d", ("1", "0")),
    *_flops("V projection", "138", "275", "b*s*h*n_kv*d", ("1", "0")),
    *_flops("scores", "1100", "2200", "b*n_h*s**2*d", ("0", "1")),
    *_flops("attention output", "1100", "2200", "b*n_h*s**2*d", ("0", "1")),
    *_flops("O projection", "1100", "2200", "b*s*n_h*d*h", ("0", "1")),
    *_flops("W1", "3858", "7717", "b*s*h*f", ("10", "20")),
    *_flops("W3", "3858", "7717", "b*s*h*f", ("10", "20")),
    *_flops("W2", "3858", "7717", "b*s*h*f", ("10", "20")),
    Number(
        GRADIENT_FLOW,
        "6.1, table",
        "scores again",
        "The product that flash attention's backward recomputes.",
        "1100",
        "GFLOPs",
        "2*b*n_h*s**2*d",
        LLAMA_70B,
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, table",
        "forward",
        "A layer's products, from the lengths and not from the rows.",
        "16250",
        "GFLOPs",
        "2*b*s*h*(2*n_h + 2*n_kv)*d + 4*b*n_h*s**2*d + 6*b*s*h*f",
        LLAMA_70B,
        "32",
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, table",
        "backward",
        "The same for the backward, with the recomputed scores.",
        "34301",
        "GFLOPs",
        "4*b*s*h*(2*n_h + 2*n_kv)*d + 10*b*n_h*s**2*d + 12*b*s*h*f",
        LLAMA_70B,
        "766",
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, table",
        "ratio",
        "Backward over forward, from the printed totals.",
        "2.1",
        "×",
        "34301/16250",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, below the table",
        "forward of 80 layers",
        "80 times the printed layer.",
        "1300",
        "TFLOPs",
        "80*16250*10**9",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, below the table",
        "backward of 80 layers",
        "80 times the printed layer.",
        "2744",
        "TFLOPs",
        "80*34301*10**9",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, below the table",
        "throughput",
        "Eight H100 at 989 TFLOPs per second and a utilisation of one half.",
        "3956",
        "TFLOP/s",
        "8*989*10**12/2",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "6.1, below the table",
        "step time",
        "The printed step over the printed throughput. The step should leave out recomputation.",
        "1.02",
        "s",
        "4044/3956",
        _NOTHING,
    ),
    # Memory of Llama 3 70B.
    _size("1.3", "a norm's input", "128", "MiB", "2*b*s*h"),
    _size("1.3", "inputs of all norms", "20480", "MiB", "2*b*s*h*2*L"),
    _size("1.3", "inputs of all norms, in GB", "20", "GiB", "2*b*s*h*2*L"),
    _size("1.4", "weights of attention", "8", "GiB", "2*b*n_h*s**2"),
    _size("1.4", "weights of attention, 80 layers", "640", "GiB", "2*b*n_h*s**2*L"),
    _size(
        "1.4, table", "gradient of the weights of attention", "8", "GiB", "2*b*n_h*s**2"
    ),
    _size("1.4, table", "gradient of Q", "128", "MiB", "2*b*n_h*s*d"),
    _size("1.4, table", "gradient of K", "16", "MiB", "2*b*n_kv*s*d"),
    _size("1.4, table", "gradient of V", "16", "MiB", "2*b*n_kv*s*d"),
    _size("1.4, table", "gradient of W_Q", "128", "MiB", "2*h*n_h*d"),
    _size("1.4, table", "gradient of W_K", "16", "MiB", "2*h*n_kv*d"),
    _size("1.4, table", "gradient of W_V", "16", "MiB", "2*h*n_kv*d"),
    _size("1.4, table", "gradient of W_O", "128", "MiB", "2*n_h*d*h"),
    # 1.31 GiB, 1.34 in thousands of MiB, or 1.41 GB: no unit gives 1.33.
    _size("1.5, box", "g1, g3, and SiLU(g1)", "1.33", "GiB", "3*2*b*s*f", "0.02"),
    _size("1.5, box", "the same of 80 layers", "106", "GiB", "3*2*b*s*f*L", "1"),
    Number(
        GRADIENT_FLOW,
        "3.1",
        "master weights",
        "Four bytes each.",
        "280",
        "GB",
        "4*N",
        _70B,
    ),
    Number(
        GRADIENT_FLOW,
        "3.1",
        "first moment",
        "Four bytes each.",
        "280",
        "GB",
        "4*N",
        _70B,
    ),
    Number(
        GRADIENT_FLOW,
        "3.1",
        "second moment",
        "Four bytes each.",
        "280",
        "GB",
        "4*N",
        _70B,
    ),
    Number(
        GRADIENT_FLOW, "3.1", "weights", "Two bytes each.", "140", "GB", "2*N", _70B
    ),
    Number(
        GRADIENT_FLOW, "3.1", "gradients", "Two bytes each.", "140", "GB", "2*N", _70B
    ),
    Number(
        GRADIENT_FLOW,
        "3.1",
        "states",
        "Sixteen bytes each.",
        "1120",
        "GB",
        "16*N",
        _70B,
    ),
    _size("4.1, table", "input", "128", "MiB", "2*b*s*h"),
    _size("4.1, table", "normalised input", "128", "MiB", "2*b*s*h"),
    _size("4.1, table", "Q, K, and V", "160", "MiB", "2*b*s*(h + 2*n_kv*d)"),
    _size("4.1, table", "weights of attention", "8192", "MiB", "2*b*n_h*s**2"),
    _size("4.1, table", "attention's output", "128", "MiB", "2*b*s*h"),
    _size("4.1, table", "input of the second norm", "128", "MiB", "2*b*s*h"),
    _size("4.1, table", "g1 and g3", "896", "MiB", "2*2*b*s*f"),
    _size("4.1, table", "SiLU(g1)", "448", "MiB", "2*b*s*f"),
    # 797.5 GiB. The two figures in 4.1 divide MiB by 1,000; those in 4.3, by 1,024.
    _size(
        "4.1",
        "80 layers without flash attention",
        "816",
        "GB of 1000 MiB",
        "10208*2**20*L",
        "-1",
    ),
    _size(
        "4.1",
        "80 layers with flash attention",
        "161",
        "GB of 1000 MiB",
        f"{_SAVED_FLASH}*L",
    ),
    # With checkpoints, one input is counted twice: see STATEMENTS.
    _size("4.3", "no checkpoints", "161280", "MiB", f"{_SAVED_FLASH}*L"),
    _size("4.3", "no checkpoints, in GB", "157.5", "GiB", f"{_SAVED_FLASH}*L"),
    _size(
        "4.3", "a checkpoint each layer", "12256", "MiB", f"{_SAVED_FLASH} + L*2*b*s*h"
    ),
    _size(
        "4.3",
        "a checkpoint each layer, in GB",
        "12.0",
        "GiB",
        f"{_SAVED_FLASH} + L*2*b*s*h",
    ),
    _size("4.3", "eight checkpoints", "1024", "MiB", "8*2*b*s*h"),
    _size(
        "4.3",
        "a checkpoint every 10",
        "21184",
        "MiB",
        f"10*{_SAVED_FLASH} + L*2*b*s*h/10",
    ),
    _size(
        "4.3",
        "a checkpoint every 10, in GB",
        "20.7",
        "GiB",
        f"10*{_SAVED_FLASH} + L*2*b*s*h/10",
    ),
    _size(
        "4.3, chart",
        "a checkpoint every 20",
        "42",
        "GiB",
        f"20*{_SAVED_FLASH} + L*2*b*s*h/20",
        "2",
    ),
    _size(
        "4.3, chart",
        "a checkpoint every 10",
        "21",
        "GiB",
        f"10*{_SAVED_FLASH} + L*2*b*s*h/10",
    ),
    _size(
        "4.3, chart",
        "a checkpoint every 5",
        "14",
        "GiB",
        f"5*{_SAVED_FLASH} + L*2*b*s*h/5",
        "2",
    ),
    Number(
        GRADIENT_FLOW,
        "4.3",
        "saving of a checkpoint each layer",
        "Of the printed figures.",
        "92",
        "%",
        "1 - 120/Integer(1575)",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "4.3",
        "saving of a checkpoint every 10",
        "Of the printed figures.",
        "87",
        "%",
        "1 - 207/Integer(1575)",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "4.4, table",
        "saving of a checkpoint every 20",
        "From the printed rows; 73 follows from the chart's 42.",
        "73",
        "%",
        f"1 - (20*{_SAVED_FLASH} + L*2*b*s*h/20)/({_SAVED_FLASH}*L)",
        LLAMA_70B,
        "-2",
    ),
    Number(
        GRADIENT_FLOW,
        "4.4, table",
        "saving of a checkpoint every 5",
        "From the printed rows; 91 follows from the chart's 14.",
        "91",
        "%",
        f"1 - (5*{_SAVED_FLASH} + L*2*b*s*h/5)/({_SAVED_FLASH}*L)",
        LLAMA_70B,
        "-1",
    ),
    Number(
        GRADIENT_FLOW,
        "4.4",
        "a checkpoint each layer, of the step",
        "One more forward, in a step that costs three.",
        "33",
        "%",
        "1/Integer(3)",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "4.4",
        "a checkpoint every 10, of the step",
        "A tenth of a forward, in a step that costs three. A whole forward runs again: see STATEMENTS.",
        "3.3",
        "%",
        "1/Integer(30)",
        _NOTHING,
    ),
    Number(
        GRADIENT_FLOW,
        "4.4",
        "a checkpoint every 5, of the step",
        "A fifth of a forward, in a step that costs three.",
        "6.7",
        "%",
        "1/Integer(15)",
        _NOTHING,
    ),
    # The 2× note.
    Number(
        TWICE_NOTE,
        "Forward pass",
        "forward",
        "The product.",
        "5242880000",
        "FLOPs",
        "2*m*n*p",
        _NOTE,
    ),
    Number(
        TWICE_NOTE,
        "Backward pass",
        "dx",
        "The first.",
        "5242880000",
        "FLOPs",
        "2*m*p*n",
        _NOTE,
    ),
    Number(
        TWICE_NOTE,
        "Backward pass",
        "dw",
        "The second.",
        "5242880000",
        "FLOPs",
        "2*n*m*p",
        _NOTE,
    ),
    Number(
        TWICE_NOTE,
        "Backward pass",
        "both",
        "Both.",
        "10485760000",
        "FLOPs",
        "4*m*n*p",
        _NOTE,
    ),
)

STATEMENTS = (
    Statement(
        GPT2_POST,
        "Introduction",
        "The backward is usually quoted as twice the forward.",
        "Its own tally leaves out the forward, so a ratio does not follow from it.",
    ),
    Statement(
        GPT2_POST,
        "Classes of operations",
        "Softmax, log-softmax, and LayerNorm reduce over the hidden dimension.",
        "LayerNorm does. Attention's softmax reduces over the keys, and log-softmax over the "
        "vocabulary, as the post's own rows have it.",
    ),
    Statement(
        GPT2_POST,
        "Residual connections",
        "The backward of a residual connection has no arithmetic.",
        "Where a block's input is used twice, two gradients are added: twice in a layer.",
        "0",
        "2*b*s*h",
    ),
    Statement(
        THESIS,
        "1.1",
        "Training cost 670 dollars for the first transformer and 78 million for GPT-4.",
        "Neither price is a count of operations, and neither is checked here.",
    ),
    Statement(
        THESIS,
        "2.3.3",
        "Backpropagation takes 60 to 70 % of the time of training.",
        "It does not give a measurement. Of the FLOPs of products alone, the backward takes two thirds.",
    ),
    Statement(
        THESIS,
        "3.1.3",
        "The parameters' gradients and x̂'s take 3h per row in the text, 2h in the summary.",
        "Two products and two sums per element, 4h, in the thesis's own way of counting.",
        "3*h",
        "4*h",
    ),
    Statement(
        THESIS,
        "4.2.2",
        "The term in s²h is the limit in practice, and the term in sh² matters where h is large.",
        "By the thesis's total the two terms are equal where s = 6h, and the attention block "
        "costs as much as the feed-forward layer where s = 2h.",
        right="6*h",
    ),
    Statement(
        THESIS,
        "4.2.3",
        "Matrices of rank r reduce the feed-forward layer to O(s·h·r).",
        "This holds for each matrix that is replaced by two factors of width r. LoRA, the "
        "method that it cites, replaces none: it freezes the matrix and adds two factors.",
    ),
    Statement(
        TRACE_NOTES,
        "Everywhere",
        "No FLOPs and no bytes.",
        "The notes derive gradients only.",
    ),
    Statement(
        GRADIENT_FLOW,
        "1.3, box",
        "The backward of a norm is five element-wise operations.",
        "The listing above it runs ten per element and one per row, without the line that it "
        "overwrites; that of section 6 runs nine and one.",
        "5*b*s*h",
        "10*b*s*h + b*s",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.1",
        "Activations, 840 GB of optimiser states, and 420 GB of weights need over 1,400 GB.",
        "The 840 GB contain the master weights, which the 420 GB count again; "
        "the gradients' 140 GB are left out. The 161 are thousands of MiB, and 169 GB.",
        "161 + 840 + 420",
        "80*2016*2**20/10**9 + 1120",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.1, table",
        "The table lists what a layer saves.",
        "It leaves out the normalised input of the feed-forward block, which two weights' "
        "gradients need, and attention's statistics.",
        "2016*2**20",
        "2016*2**20 + 2*b*s*h + 4*b*n_h*s",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.3",
        "With a checkpoint each layer, the peak is one layer's arrays and all checkpoints.",
        "The layer's arrays contain its input, which is one of the checkpoints. So do those of "
        "a segment of k layers.",
        "2016*2**20 + L*2*b*s*h",
        "2016*2**20 + (L - 1)*2*b*s*h",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.4",
        "With a checkpoint every k layers, 1/k of the forward runs again.",
        "Every layer runs again once, for any k.",
        "F/k",
        "F",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.2, first listing",
        "The backward of a layer runs the forward from the checkpoint up to that layer.",
        "In a segment of k layers this runs 1 + 2 + … + k layers.",
        "F*(k + 1)/2",
        "F",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.4, table",
        "An overhead of about 5, 10, 20, and 33 % for a checkpoint every 20, 10, 5, and 1 layers.",
        "The first three are shares of a forward; the last is a share of a step. All four rerun one forward.",
        "F/k",
        "F",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.4, table, last column",
        "A step takes 5, 3 to 4, 7, and 11 % longer with a checkpoint every 20, 10, 5, and 1 layers.",
        "It does not give a measurement, and the figures do not grow with the overhead beside them.",
    ),
    Statement(
        GRADIENT_FLOW,
        "4.5",
        "Recomputing the gate's activations takes one product.",
        "The activations in its table are g1 and g3, which take two products.",
        "2*b*s*h*f",
        "4*b*s*h*f",
    ),
    Statement(
        GRADIENT_FLOW,
        "6.1, below the table",
        "The utilisation by model FLOPs uses a step whose FLOPs include recomputation.",
        "Model FLOPs leave out recomputation: they are three times the forward's products, "
        "3,892 TFLOPs for the layers and 3,944 with the output head.",
        "4044*10**12",
        "3*L*(2*b*s*h*(2*n_h + 2*n_kv)*d + 4*b*n_h*s**2*d + 6*b*s*h*f)",
    ),
    Statement(
        TWICE_NOTE,
        "Total backward",
        "The backward of a product is two products as large.",
        "This holds for the products; the exact count differs by the first terms of the sums.",
        "4*m*n*p",
        "4*m*n*p",
    ),
    Statement(
        TWICE_NOTE,
        "Special cases, 1",
        "SiLU's slope at x is y(1 − y) + σ, for y = SiLU(x), and its backward can cost more than "
        "its forward.",
        "The slope is y(1 − σ) + σ. Its backward costs less than twice its forward.",
    ),
    Statement(
        TWICE_NOTE,
        "Special cases, 2",
        "The gradient of softmax is particularly expensive.",
        "It takes as many FLOPs as softmax itself.",
        right="4*s - 1",
    ),
    Statement(
        TWICE_NOTE,
        "Special cases, 3",
        "LayerNorm's backward can be expensive, because it computes mean and variance.",
        "It costs less than twice its forward, which computes both.",
    ),
    Statement(
        TWICE_NOTE,
        "Why not exactly 2×",
        "Activations, stability, memory access, and fusion make the ratio slightly more or "
        "less than 2.",
        "Memory access changes the time and not the FLOPs. Layers that are recomputed and "
        "weights that are frozen change the ratio more, and are not listed.",
    ),
    Statement(
        TWICE_NOTE,
        "Summary, scope",
        "The factor 2 applies universally to networks with linear layers.",
        "It applies where every layer is trained and none is recomputed. A frozen layer has one "
        "product in the backward, or none.",
    ),
    Statement(
        TWICE_NOTE,
        "Summary",
        "The forward, the backward, and the optimiser's step together cost three forwards.",
        "The forward and the backward alone cost three. The optimiser's step grows with the "
        "number of parameters, not of tokens.",
    ),
)

COMPLETED = (
    Completed(
        GPT2_POST,
        "backward",
        "The backward of GPT-2. A product counts 2mnp, a sum of n counts n except over the batch "
        "of positions, work per row is free.",
        "L*(48*b*s*h**2 + 8*b*n_h*s**2*d + 5*b*n_h*s**2 + 98*b*s*h) + 11*b*s*h + 4*b*s*h*V",
        (
            Added("biases", "Sums over the rows, 3h + h + 4h + h wide.", "9*L*b*s*h"),
            Added(
                "residual sums",
                "Two gradients meet where each block reads.",
                "2*L*b*s*h",
            ),
            Added(
                "x̂ rebuilt",
                "A difference and a product, because x and its statistics are saved.",
                "2*(2*L + 1)*b*s*h",
            ),
            Added("loss", "The post's own count of log-softmax.", "4*b*s*V"),
            Added(
                "token scatter",
                "At most an addition per element: none where a token occurs first.",
                "b*s*h",
            ),
            Added(
                "positions",
                "The post's own count, b - 1 for a sum of b, which its total leaves out.",
                "(b - 1)*s*h",
            ),
            Added("tied weight", "The table's two gradients meet.", "V*h"),
        ),
    ),
    Completed(
        THESIS,
        "backward",
        "The backward of one block at f = 4h. A product counts 2mnp, a sum of n counts n.",
        "48*s*h**2 + 8*s**2*h + 4*s**2 + 22*s*h",
        (
            Added("biases", "Sums over the rows, 4h + h wide.", "5*s*h"),
            Added(
                "residual sums", "Two gradients meet where each block reads.", "2*s*h"
            ),
            Added(
                "parameters of both norms",
                "4h per row in place of the summary's 2h.",
                "2*2*s*h",
            ),
        ),
    ),
    Completed(
        GRADIENT_FLOW,
        "forward",
        "The forward of Llama 3: the table's products, computed from their lengths. In the added "
        "terms, a step of arithmetic is one FLOP and a sum of n counts n.",
        "L*(2*b*s*h*(2*n_h + 2*n_kv)*d + 4*b*n_h*s**2*d + 6*b*s*h*f)",
        (
            Added(
                "norms",
                "Square, sum, division, product; three steps per row.",
                "(2*L + 1)*(4*b*s*h + 3*b*s)",
            ),
            Added(
                "rotations",
                "Four products and two sums per pair.",
                "3*L*b*s*(n_h + n_kv)*d",
            ),
            Added(
                "scaling and softmax",
                "A product; a difference, exponential, sum, and division.",
                "5*L*b*n_h*s**2",
            ),
            Added(
                "gate",
                "Exponential, sum, and division of the sigmoid; two products.",
                "5*L*b*s*f",
            ),
            Added("residual sums", "After each block.", "2*L*b*s*h"),
            Added("head", "The output head.", "2*b*s*h*V"),
            Added(
                "loss",
                "Log-softmax, a logarithm and a term of the mean per row.",
                "4*b*s*V + 2*b*s",
            ),
        ),
    ),
    Completed(
        GRADIENT_FLOW,
        "backward",
        "The backward of Llama 3: the table's products with the scores recomputed. The added "
        "terms count the steps of the post's own listing.",
        "L*(4*b*s*h*(2*n_h + 2*n_kv)*d + 10*b*n_h*s**2*d + 12*b*s*h*f)",
        (
            Added(
                "norms",
                "Nine steps per element, x̂ rebuilt among them; one per row.",
                "(2*L + 1)*(9*b*s*h + b*s)",
            ),
            Added("rotations", "As in the forward.", "3*L*b*s*(n_h + n_kv)*d"),
            Added(
                "softmax",
                "A product, a sum, a difference, a product.",
                "4*L*b*n_h*s**2",
            ),
            Added(
                "weights again",
                "Scaling, difference, and exponential.",
                "3*L*b*n_h*s**2",
            ),
            Added(
                "scaling",
                "Of the gradients of queries and of the heads' keys.",
                "2*L*b*n_h*s*d",
            ),
            Added(
                "grouped heads",
                "Sums over the query heads of keys and values.",
                "2*L*b*n_h*s*d",
            ),
            Added("gate", "Eight steps, and three of the sigmoid.", "11*L*b*s*f"),
            Added(
                "sums of inputs",
                "Three gradients meet in attention, two in the gate.",
                "3*L*b*s*h",
            ),
            Added(
                "residual sums",
                "Two gradients meet where each block reads.",
                "2*L*b*s*h",
            ),
            Added("head", "Two products.", "4*b*s*h*V"),
            Added(
                "loss",
                "Exponential and division of each logit, a difference per row.",
                "2*b*s*V + b*s",
            ),
            Added(
                "token scatter",
                "At most an addition per element: none where a token occurs first.",
                "b*s*h",
            ),
        ),
    ),
)
