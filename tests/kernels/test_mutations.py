"""The kernel's row of a check turns red after any single change in the arithmetic of a kernel, forward or backward.

Changed are the expressions made of the kernel's values alone: not addresses, masks and sizes, whose mistakes
the kernel's own tests look for in poisoned memory.
"""

import ast
import functools
import importlib.util
import inspect
import json
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import proofs

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import cli, kernels, ops  # noqa: E402
from backpass.contract.shapes import parse  # noqa: E402
from backpass.verify import METHODS, draw  # noqa: E402
from backpass.verify.case import Case  # noqa: E402
from backpass.verify.convert import to_torch  # noqa: E402
from backpass.verify.drawing import options_for  # noqa: E402
from backpass.verify.mutation import mutants, remembered  # noqa: E402
from backpass.verify.report import FAILED  # noqa: E402
from backpass.verify.subject import subject  # noqa: E402


@dataclass(frozen=True)
class Changed:
    """A function to be changed: one of Triton's in a kernel's module, or one that computes by itself, with the names of
    its values."""

    stem: str
    function: str  # the module's own, or "another module's.function", from which the stem's is built
    values: tuple[str, ...]
    # Constants under which this is the function that runs: those of its module, or "another module's.CONSTANT".
    settings: dict[str, object] = field(default_factory=dict)
    # Lengths of letters, and of leading axes, at which a check is given inputs.
    lengths: dict[str, int] = field(default_factory=dict)
    leading: tuple[int, ...] = (3,)
    options: dict[str, object] = field(default_factory=dict)
    # Inputs beside those that are drawn, where a formula must hold too and its naive form does not: made of drawn ones.
    extremes: tuple[Callable[[list[np.ndarray]], None], ...] = ()
    # What the drawn inputs cannot show: whether the module's kernel is right there.
    also: Callable[[object], bool] | None = None
    # How many changes there are at least: 1 where the arithmetic is one value, or one function of it.
    least: int = 2
    # Changes that compute the same, each with the proof.
    equivalent: dict[str, str] = field(default_factory=dict)


def high_scores(inputs: list[np.ndarray]) -> None:
    """Rows of scores near 1000, near −1000 and near 0, and two whose maximum rises late: from no score at all to one
    that is far below 0, and from there. Where there are targets, they have scores."""
    x, *others = inputs
    x[0] += 1000
    x[1] -= 1000
    x[2] -= 1000
    x[2, :33] = -np.inf
    x[3, :40] -= 1000
    x[4, ::3] = -np.inf
    for t in others[:1]:
        t[:] = 44, 43, 44, 5, 1


def no_scores(inputs: list[np.ndarray]) -> None:
    """A row that is all −∞ among others, and one whose largest score is 0."""
    x, *others = inputs
    x[3] -= x[3].max()
    x[1] = -np.inf
    for t in others[:1]:
        t[:] = 1, 44, 1, 5, 1


def far_from_zero(inputs: list[np.ndarray]) -> None:
    """Zero, numbers whose square overflows, and both infinities."""
    inputs[0][:5] = 0.0, -1e30, 1e30, -np.inf, np.inf


def unknown_tokens_are_nan(kernel) -> bool:
    """Whether the rows of tokens outside the vocabulary, which an assertion reports on a CUDA device, are NaN."""
    t, w, y = (
        x.to(kernels.device()) for x in (torch.tensor([-1, 0, 2, 3]), torch.randn(5, 4), torch.empty(4, 4))
    )
    w = w[1:4]
    kernel.forward_launch(t, w, y).run()
    return torch.equal(y[1:3], w[[0, 2]]) and bool(torch.isnan(y[[0, 3]]).all())


def weights_of_high_scores_are_right(kernel) -> bool:
    """Whether y and the log-sum-exps are, where scores are near 400 or −400, rise or fall by 400 from the first tile to the
    second, or are near −400 after a tile of −10⁵⁰, which is −∞ in float32, and where a query sees no key."""
    q, k, v = (torch.randn(1, s, 5, generator=torch.Generator().manual_seed(s)) for s in (24, 20, 17))
    v = torch.cat([v, v[:, :3]], dim=1)
    q[..., 2] = 0.0
    k[..., :3] = torch.tensor([[1.0, 0.0, 1e25]] * 16 + [[1.0, 1.0, 0.0]] * 4)
    q[0, 18:23, :3] = torch.tensor(
        [[400, 0, 0], [-400, 0, 0], [-400, 400, 0], [0, -400, 0], [0, -400, -1e25]]
    )
    q, k, v = (x.to(kernels.device()) for x in (q, k, v))
    options = {"scale": 1.0, "causal": True, "causal_variant": "lower_right", "tile": 16}
    y, saved = kernel.forward(q, k, v, **options)
    y_64, saved_64 = ops.load("flash_attention").forward(q.double(), k.double(), v.double(), **options)
    right = torch.allclose(y.double(), y_64, rtol=3e-4, atol=3e-4)
    lse = torch.where(saved.lse == torch.inf, -torch.inf, saved.lse.double() * np.log(2))
    cancelled = 400 * 2.0**-23  # in float32, what is left where scores of ±400 add up to about 0
    return right and torch.allclose(lse, saved_64.lse, rtol=1e-5, atol=cancelled)


def sums_are_right(kernel) -> bool:
    """Whether the norm of a sum is right, and its gradient beside the sum's own."""
    stem = kernel.__name__.rpartition(".")[2]
    x, f, dy, ds = (torch.randn(3, 45, generator=torch.Generator().manual_seed(i)) for i in range(4))
    w = [torch.linspace(-1, 2, 45)] * (len(parse(kernel.SHAPES).inputs) - 1)
    y, s, saved = kernel.forward_of_sum(*(each.to(kernels.device()) for each in (x, f, *w)))
    found = y, s, *kernel.backward_of_sum(dy.to(kernels.device()), ds.to(kernels.device()), saved)
    s_64 = x.double() + f.double()
    y_64, saved_64 = ops.load(stem).forward(s_64, *(each.double() for each in w))
    dx_64, *others = ops.load(stem).backward(dy.double(), saved_64)
    right = y_64, s_64, dx_64 + ds.double(), *others
    return all(
        torch.allclose(a.cpu().double(), b, rtol=1e-5, atol=1e-5) for a, b in zip(found, right, strict=True)
    )


def rotated_rows_are_right(kernel) -> bool:
    """Whether the norm of rotated rows is right, with pairs of either kind."""
    x, dy, cos, sin = (
        torch.randn(2, 7, n, generator=torch.Generator().manual_seed(n)) for n in (46, 46, 23, 23)
    )
    sin, dy, w = sin.flip(0), dy.flip(0), torch.linspace(-1, 2, 46)
    norm, rope = ops.load("rms_norm"), ops.load("rope")
    for interleaved in (False, True):
        options = {"eps": 0.25, "interleaved": interleaved}
        y, saved = kernel.forward_rotated(
            *(each.to(kernels.device()) for each in (x, w, cos, sin)), **options
        )
        found = y, *kernel.backward(dy.to(kernels.device()), saved)
        normed, of_norm = norm.forward(x.double(), w.double(), eps=0.25)
        y_64, of_rope = rope.forward(normed, cos.double(), sin.double(), interleaved=interleaved)
        right = y_64, *norm.backward(rope.backward(dy.double(), of_rope), of_norm)
        if not all(
            torch.allclose(a.cpu().double(), b, rtol=1e-5, atol=1e-5)
            for a, b in zip(found, right, strict=True)
        ):
            return False
    return True


def capped_scores_are_right(kernel) -> bool:
    """Whether the kernel's row is green with a softcap and a window, with a bias and without one."""
    options = HEAD["options"] | {"softcap": 0.75, "window": 9}
    row = Changed("flash_attention", "", (), **HEAD | {"options": options})
    return not any(check_fails(row, without) for without in ([], ["bias"]))


def dropped_weights_are_right(kernel) -> bool:
    """Whether the kernel's row is green with dropout."""
    options = HEAD["options"] | {"dropout_p": 0.25, "seed": 3}
    return not check_fails(Changed("flash_attention", "", (), **HEAD | {"options": options}), [])


def capped_and_dropped_weights_are_right(kernel) -> bool:
    return capped_scores_are_right(kernel) and dropped_weights_are_right(kernel)


TILES = {"ROW_BYTES": 4, "TILE_BYTES": 128}
# One program for several blocks of rows, so that it has something to add up.
ONE_PROGRAM = {"sums_over_rows.PROGRAMS": 1, "launch.SHORT_ROWS_ELEMENTS": 128}
ALL_FLOAT32 = "In a check in float32 both are float32; the kernel's own tests have 16 bits."
SCORES = {"lengths": {"n": 45}, "leading": (5,), "extremes": (high_scores, no_scores)}
ONE_AXIS = "A tile has one axis, its first and its last."
OF_W = {
    "column < n → column < dy": "Beside sums, w is read before the loop: the load in it, whose mask this is, is not "
    "compiled. A test of the norms' own has the sums apart."
}
NO_MEAN = "RMS norm has no mean and no bias: its kernel is compiled without this, or with a mean of 0."
NO_SCORES = {
    "tl.where(total == 0.0, 1.0, total) → tl.where(total == 0.0, 2.0, total)": "Only a row that is all −∞ has the sum 0, "
    "and whatever it is divided by, or less the logarithm of it, is 0, or −∞.",
    "total == 0.0 → total == -0.0": "0 and −0 are equal.",
}
DIVIDES_ZEROS = {
    "tl.where(total == 0.0, 1.0, total) → tl.where(total == 0.0, -1.0, total)": "Only of a row that is all −∞ is the sum 0, "
    "and so is what it divides: 0 and −0 are equal."
}
AFTER_THE_LOOP = {
    "top == -float('inf') → higher == -float('inf')": "After the loop both are the last maximum.",
    "tl.where(top == -float('inf'), 0.0, top) → tl.where(top == -float('inf'), 0.0, higher)": "The same.",
}
SUMMAND = {
    "softmax": {"SUMMAND(dy, a) → SUMMAND(a, dy)": "The two are multiplied."},
    "log_softmax": {"SUMMAND(dy, a) → dy": "The summand is dy."},
}
SUMMAND_OF_TILES = {
    "softmax": {"WEIGHT(y) → WEIGHT(a)": "Softmax has no WEIGHT."},
    "log_softmax": {
        "SUMMAND(dy, a) → SUMMAND(dy, total)": "The summand is dy.",
        "y if WEIGHT is None else WEIGHT(y) → a if WEIGHT is None else WEIGHT(y)": "Log-softmax has a WEIGHT.",
    },
}
OF_ONE_TILE = {
    "axis=0 → axis=-1": ONE_AXIS,
    "tl.max(x, axis=0) → tl.max(x)": ONE_AXIS,
    "tl.sum(tl.exp(x - subtracted), axis=0) → tl.sum(tl.exp(x - subtracted))": ONE_AXIS,
    "tl.maximum(top, tl.max(x, axis=0)) → tl.maximum(tl.max(x, axis=0), top)": "The larger of two is the larger of two.",
}
TURNED = ("a", "b", "cos", "sin", "SIGN", "turned_a", "turned_b", "rotated")
BY_SIGN = {"sin * SIGN → sin / SIGN": "The sign is 1 or −1."}
# Of each of three tokens 13 or 14: a few blocks of one token, with rows before and after them.
RUNS = {"settings": {"BLOCK": 4}, "lengths": {"V": 3, "h": 5}, "leading": (40,)}
# Two tiles of queries and two of keys, of which one is hidden, one seen whole, and two are cut; query 0 sees no key.
HEAD = {
    "lengths": {"g": 1, "n_kv": 1, "s_q": 18, "s_k": 17, "d": 5, "d_v": 7},
    "leading": (),
    "options": {"tile": 16, "causal": True, "causal_variant": "lower_right"},
}
OF_SCORES = ("SCALE", "CAP", "LOG2_E")
ONE_ROW = "With rows in pieces a program has one row; the entry below has several."
ONE_PIECE = (
    "A row that is one piece is summed once, and nothing before it; the entry above has several pieces."
)
OF_A_LOSS = (
    NO_SCORES
    | AFTER_THE_LOOP
    | {
        "tl.maximum(top, tl.max(x, axis=1, keep_dims=True)) → tl.maximum(tl.max(x, axis=1, keep_dims=True), top)": "The "
        "larger of two is the larger of two.",
        "t >= 0 → t >= -1": "What is then read for an ignored target is not used.",
        "passed == 0.0 → passed == -0.0": "0 and −0 are equal.",
        "tl.where(passed == 0.0, subtracted, top) → tl.where(passed == 0.0, exps, top)": "It is then multiplied by a "
        "`passed` of 0.",
        "tl.where(inside, x, subtracted) → tl.where(inside, x, exps)": "Outside the row it is multiplied by a weight of 0.",
        "tl.where(t >= 0, loss, 0.0) → tl.where(t >= 0, loss, -0.0)": "0 and −0 are equal.",
        "tl.where(t >= 0, tl.log(total) + (top - at_target), 0.0) → tl.where(t >= 0, tl.log(total) + (top - at_target), -0.0)": "0 "
        "and −0 are equal.",
    }
)
LOSS = (
    *("x", "top", "higher", "subtracted", "exps", "total", "before", "w", "far", "passed"),
    *("t", "at_target", "loss"),
)
GRADIENT = ("x", "top", "y", "total", "each", "of_target", "dx", "t", "column", "w", "weights")
SMOOTHED = {"label_smoothing": 0.25, "reduction": "none"}
NOT_SMOOTHED = "Without smoothing this is not compiled; the entry below has it."
ONLY_SMOOTHED = "With smoothing this is not compiled; the entry above has it."
OF_A_GRADIENT = {
    "t >= 0 → t >= -1": "The class weight that is then read for an ignored target is not used.",
    "tl.where(t >= 0, dx * each, 0.0) → tl.where(t >= 0, dx * each, -0.0)": "Minus 0 is 0.",
}
# Modules with kernels that several stems are built on; those of ``elementwise`` compute nothing themselves.
SHARED = ("norm_rows", "rotated_norm", "softmax_rows")
TABLE = [
    Changed("softmax", "_y", ("x", "top", "total"), **SCORES),
    Changed("log_softmax", "_y", ("x", "top", "total"), **SCORES),
    *(
        Changed(
            stem,
            "softmax_rows._forward_rows",
            ("x", "top", "total", "y", "Y"),
            **SCORES,
            equivalent=NO_SCORES | (DIVIDES_ZEROS if stem == "softmax" else {}),
        )
        for stem in ("softmax", "log_softmax")
    ),
    *(
        Changed(
            stem,
            "softmax_rows._forward_tiles",
            ("x", "top", "higher", "subtracted", "total", "Y"),
            TILES,
            **SCORES,
            equivalent=NO_SCORES
            | (DIVIDES_ZEROS if stem == "softmax" else {})
            | AFTER_THE_LOOP
            | OF_ONE_TILE,
        )
        for stem in ("softmax", "log_softmax")
    ),
    Changed(
        "cross_entropy",
        "_forward",
        LOSS,
        {"ROW_BYTES": 128},
        **(SCORES | {"lengths": {"V": 45}}),
        options=SMOOTHED,
        equivalent=OF_A_LOSS
        | {
            "keep_dims=True → keep_dims=False": ONE_ROW,
            "tl.max(x, axis=1, keep_dims=True) → tl.max(x, axis=1)": ONE_ROW,
            "tl.max(x, axis=1, keep_dims=True) → tl.max(x, keep_dims=True)": ONE_ROW,
            "tl.sum(tl.exp(x - subtracted), axis=1, keep_dims=True) → tl.sum(tl.exp(x - subtracted), axis=1)": ONE_ROW,
            "tl.sum(tl.exp(x - subtracted), axis=1, keep_dims=True) → tl.sum(tl.exp(x - subtracted), keep_dims=True)": ONE_ROW,
        },
    ),
    Changed(
        "cross_entropy",
        "_forward",
        LOSS,
        **(SCORES | {"lengths": {"V": 45}}),
        options=SMOOTHED,
        equivalent=OF_A_LOSS
        | {
            "higher → subtracted": ONE_PIECE,
            "tl.where(passed == 0.0, subtracted, top) → tl.where(passed == 0.0, subtracted, higher)": ONE_PIECE,
            "top - subtracted → higher - subtracted": ONE_PIECE,
            "total * tl.exp(top - subtracted) → total": ONE_PIECE,
        },
    ),
    Changed(
        "layer_norm",
        "norm_rows._forward_rows",
        ("x", "f", "mean", "centred", "rstd", "y", "EPS", "n"),
        lengths={"n": 45},
        also=sums_are_right,
    ),
    Changed(
        "layer_norm",
        "norm_rows._forward_tiles",
        (
            "x",
            "mean",
            "squares",
            "mean_here",
            "centred",
            "squares_here",
            "apart",
            "share",
            "rstd",
            "y",
            "EPS",
        ),
        TILES,
        lengths={"n": 45},
        leading=(2,),
        equivalent={
            "axis=0 → axis=-1": ONE_AXIS,
            "tl.sum(x, axis=0) → tl.sum(x)": ONE_AXIS,
            "tl.sum(centred * centred, axis=0) → tl.sum(centred * centred)": ONE_AXIS,
            "x - mean_here → mean_here - x": "Only the square of the difference is used.",
            "x → mean": "Layer norm has a mean, and `centred` is x less it.",
        },
    ),
    Changed(
        "rms_norm",
        "norm_rows._forward_rows",
        ("centred", "rstd", "y", "EPS", "n"),
        lengths={"n": 45},
        options={"eps": 0.25},
        equivalent=dict.fromkeys(
            (
                "column < n → column < centred",
                "tl.sum(x, axis=1, keep_dims=True) / n → tl.sum(x, axis=1, keep_dims=True) / centred",
            ),
            NO_MEAN,
        ),
    ),
    Changed(
        "rms_norm",
        "norm_rows._forward_tiles",
        ("centred", "squares", "squares_here", "mean", "x", "rstd", "y", "EPS", "n"),
        TILES,
        lengths={"n": 45},
        leading=(2,),
        options={"eps": 0.25},
        equivalent={
            "axis=0 → axis=-1": ONE_AXIS,
            "tl.sum(centred * centred, axis=0) → tl.sum(centred * centred)": ONE_AXIS,
        }
        | dict.fromkeys(
            (
                "axis=0 → axis=1",
                "column < n → column < centred",
                "mean_here - mean → mean_here - x",
                "n - start → centred - start",
                "tl.store(mean_ptr + row, mean) → tl.store(mean_ptr + row, x)",
                "tl.sum(x, axis=0) → tl.max(x, axis=0)",
                "tl.sum(x, axis=0) → tl.mean(x, axis=0)",
                "tl.sum(x, axis=0) → tl.sum(x)",
                "tl.sum(x, axis=0) → x",
                "x - mean → x",
                "x - mean → x + mean",
            ),
            NO_MEAN,
        ),
    ),
    Changed(
        "relu",
        "_forward",
        ("x",),
        leading=(7,),
        extremes=(far_from_zero,),
        equivalent={
            "x <= 0.0 → x < 0.0": "At 0 it is x itself that is 0.",
            "x <= 0.0 → x <= -0.0": "0 and −0 are equal.",
            "tl.where(x <= 0.0, 0.0, x) → tl.where(x <= 0.0, -0.0, x)": "0 and −0 are equal.",
        },
    ),
    Changed("gelu", "_forward_erf", ("x", "ROOT_HALF"), leading=(7,), extremes=(far_from_zero,)),
    Changed(
        "gelu",
        "_forward_tanh",
        ("x", "square", "sigmoid", "SLOPE", "CUBIC"),
        options={"approximate": "tanh"},
        leading=(7,),
        extremes=(far_from_zero,),
    ),
    Changed("silu", "_forward", ("x", "sigmoid"), leading=(7,), extremes=(far_from_zero,)),
    Changed("swiglu", "_forward", ("g", "u", "sigmoid"), leading=(7,), extremes=(far_from_zero,)),
    Changed("embedding", "_forward", ("token", "V", "w", "row"), also=unknown_tokens_are_nan),
    Changed("softmax", "_summand", ("dy", "a"), lengths={"n": 45}),
    Changed("softmax", "_dx", ("dy", "a", "total"), lengths={"n": 45}),
    Changed("log_softmax", "_weight", ("y",), lengths={"n": 45}, least=1),
    Changed("log_softmax", "_summand", ("dy", "a"), lengths={"n": 45}, least=1),
    Changed("log_softmax", "_dx", ("dy", "a", "total"), lengths={"n": 45}),
    *(
        Changed(
            stem,
            "softmax_rows._backward_rows",
            ("dy", "y", "a", "dx", "SUMMAND", "DX"),
            lengths={"n": 45},
            equivalent=SUMMAND[stem],
        )
        for stem in ("softmax", "log_softmax")
    ),
    *(
        Changed(
            stem,
            "softmax_rows._backward_tiles",
            ("dy", "y", "a", "total", "SUMMAND", "DX"),
            TILES,
            lengths={"n": 45},
            equivalent={
                "axis=0 → axis=-1": ONE_AXIS,
                "tl.sum(SUMMAND(dy, a), axis=0) → tl.sum(SUMMAND(dy, a))": ONE_AXIS,
            }
            | SUMMAND[stem]
            | SUMMAND_OF_TILES[stem],
        )
        for stem in ("softmax", "log_softmax")
    ),
    Changed(
        "cross_entropy",
        "_further",
        ("far", "passed", "w", "x", "before", "top"),
        {"ROW_BYTES": 128},
        **(SCORES | {"lengths": {"V": 45}}),
        options=SMOOTHED,
        equivalent=dict.fromkeys(
            (
                "keep_dims=True → keep_dims=False",
                "tl.sum(w * (top - x), axis=1, keep_dims=True) → tl.sum(w * (top - x), axis=1)",
                "tl.sum(w * (top - x), axis=1, keep_dims=True) → tl.sum(w * (top - x), keep_dims=True)",
                "tl.sum(w, axis=1, keep_dims=True) → tl.sum(w, axis=1)",
                "tl.sum(w, axis=1, keep_dims=True) → tl.sum(w, keep_dims=True)",
            ),
            ONE_ROW,
        ),
    ),
    Changed(
        "cross_entropy",
        "_further",
        ("far", "passed", "w", "x", "before", "top"),
        **(SCORES | {"lengths": {"V": 45}}),
        options=SMOOTHED,
        equivalent=dict.fromkeys(
            (
                "far += passed * (top - before) → far += -(passed * (top - before))",
                "far += passed * (top - before) → far += 2 * (passed * (top - before))",
                "far += passed * (top - before) → far -= passed * (top - before)",
                "passed * (top - before) → top - before",
                "top - before → before - top",
                "top - before → top - top",
            ),
            ONE_PIECE,
        ),
    ),
    Changed("cross_entropy", "_smoothed", ("loss", "of_all", "n", "SMOOTHING"), options=SMOOTHED),
    Changed(
        "cross_entropy",
        "_less_smoothed",
        ("y", "is_target", "w", "of_target", "weights", "n", "SMOOTHING", "at_class"),
        options=SMOOTHED,
    ),
    Changed(
        "cross_entropy",
        "_weights_at",
        ("known",),
        options=SMOOTHED,
        equivalent=dict.fromkeys(
            (
                "tl.where(known, 1.0, 0.0) → known",
                "tl.where(known, 1.0, 0.0) → tl.where(1.0, known, 0.0)",
                "tl.where(known, 1.0, 0.0) → tl.where(known, 1.0, -0.0)",
            ),
            "True is cast to 1, False to 0, and 0 and −0 are equal.",
        ),
    ),
    Changed("cross_entropy", "_less_target", ("y", "is_target")),
    Changed(
        "cross_entropy",
        "_backward",
        GRADIENT,
        {"ROW_BYTES": 128},
        lengths={"V": 45},
        leading=(5,),
        equivalent=OF_A_GRADIENT
        | {
            "t >= 0 → column >= 0": "Without smoothing, the factor of an ignored row is 0 already, unless it is the NaN of "
            "a mean of no rows, which a test of this kernel has.",
        }
        | dict.fromkeys(
            (
                "_less_smoothed(y, is_target, w, of_target, weights, n, SMOOTHING) → _less_smoothed(total, is_target, w, of_target, weights, n, SMOOTHING)",
                "_less_smoothed(y, is_target, w, of_target, weights, n, SMOOTHING) → _less_smoothed(y, is_target, w, of_target, x, n, SMOOTHING)",
                "_less_smoothed(y, is_target, w, of_target, weights, n, SMOOTHING) → _less_smoothed(y, is_target, weights, of_target, weights, n, SMOOTHING)",
            ),
            NOT_SMOOTHED,
        ),
    ),
    Changed(
        "cross_entropy",
        "_backward",
        GRADIENT,
        {"ROW_BYTES": 128},
        lengths={"V": 45},
        leading=(5,),
        options=SMOOTHED,
        equivalent=OF_A_GRADIENT
        | dict.fromkeys(
            (
                "_less_target(y, is_target) → _less_target(total, is_target)",
                "each *= of_target → each *= -of_target",
                "each *= of_target → each *= 2 * of_target",
                "each *= of_target → each /= of_target",
                "each *= of_target → each = of_target",
            ),
            ONLY_SMOOTHED,
        ),
    ),
    Changed(
        "linear_cross_entropy",
        "_add_gradients",
        ("dz", "x", "w", "dx", "dw", "db"),
        equivalent={
            "db.dtype → dz.dtype": ALL_FLOAT32,
            "torch.sum(dz, dim=0, dtype=db.dtype) → torch.sum(dz, dim=0)": ALL_FLOAT32,
            "add_weight_gradient(dw, x, dz, w) → add_weight_gradient(dw, x, dz, dx)": "The last argument only says how a "
            "product lies in memory.",
        },
    ),
    Changed(
        "linear_cross_entropy",
        "backward",
        ("dy", "factor", "gradient", "dx", "dw", "db"),
        equivalent={"dx.dtype → dw.dtype": ALL_FLOAT32},
    ),
    Changed(
        "layer_norm",
        "norm_rows._backward_rows",
        (
            "dy",
            "dx_hat",
            "w",
            "x",
            "x_hat",
            "mean",
            "rstd",
            "along_ones",
            "along_x_hat",
            "dw",
            "db",
            "dx",
            "ds",
            "n",
        ),
        ONE_PROGRAM,
        lengths={"n": 45},
        also=sums_are_right,
        equivalent=OF_W,
    ),
    Changed(
        "layer_norm",
        "norm_rows._backward_tiles",
        ("dx_hat", "x", "mean", "rstd", "along_ones", "along_x_hat", "dx", "n"),
        TILES,
        lengths={"n": 45},
        leading=(2,),
        equivalent={
            "tl.sum(dx_hat, axis=0) → tl.sum(dx_hat)": ONE_AXIS,
            "tl.sum(dx_hat * ((x - mean) * rstd), axis=0) → tl.sum(dx_hat * ((x - mean) * rstd))": ONE_AXIS,
            "axis=0 → axis=-1": ONE_AXIS,
        },
    ),
    Changed(
        "layer_norm",
        "norm_rows._backward_sums",
        ("dy", "x", "mean", "rstd", "dw", "db"),
        {**TILES, **ONE_PROGRAM},
        lengths={"n": 45},
        leading=(2,),
    ),
    *(
        Changed(
            stem,
            "norm_rows._backward_totals",
            values,
            # Five partial sums, in pieces of two.
            {"TOTALS": (2, 16), "launch.SHORT_ROWS_ELEMENTS": 64},
            lengths={"n": 45},
            leading=(5,),
        )
        for stem, values in (("layer_norm", ("dw", "db")), ("rms_norm", ("dw",)))
    ),
    Changed(
        "rms_norm",
        "norm_rows._backward_rows",
        (
            *("dy", "dx_hat", "w", "x", "x_hat", "mean", "rstd", "along_ones", "along_x_hat"),
            *("dw", "dx", "ds", "n"),
        ),
        ONE_PROGRAM,
        lengths={"n": 45},
        also=sums_are_right,
        equivalent=OF_W
        | dict.fromkeys(
            (
                "axis=1 → axis=0",
                "axis=1 → axis=2",
                "dx_hat - along_ones → dx_hat",
                "dx_hat - along_ones → dx_hat + along_ones",
                "keep_dims=True → keep_dims=False",
                "tl.arange(0, COLUMNS) < n → tl.arange(0, COLUMNS) < dy",
                "tl.sum(dx_hat, axis=1, keep_dims=True) / n → n",
                "tl.sum(dx_hat, axis=1, keep_dims=True) / n → n / tl.sum(dx_hat, axis=1, keep_dims=True)",
                "tl.sum(dx_hat, axis=1, keep_dims=True) / n → tl.sum(dx_hat, axis=1, keep_dims=True)",
                "tl.sum(dx_hat, axis=1, keep_dims=True) / n → tl.sum(dx_hat, axis=1, keep_dims=True) / dy",
                "tl.sum(dx_hat, axis=1, keep_dims=True) / n → tl.sum(dx_hat, axis=1, keep_dims=True) * n",
                "tl.sum(dx_hat, axis=1, keep_dims=True) → dx_hat",
                "tl.sum(dx_hat, axis=1, keep_dims=True) → tl.max(dx_hat, axis=1, keep_dims=True)",
                "tl.sum(dx_hat, axis=1, keep_dims=True) → tl.mean(dx_hat, axis=1, keep_dims=True)",
                "tl.sum(dx_hat, axis=1, keep_dims=True) → tl.sum(dx_hat, axis=1)",
                "tl.sum(dx_hat, axis=1, keep_dims=True) → tl.sum(dx_hat, keep_dims=True)",
                "tl.sum(dx_hat, axis=1, keep_dims=True) → tl.sum(w, axis=1, keep_dims=True)",
                "x - mean → x",
                "x - mean → x + mean",
            ),
            NO_MEAN,
        ),
    ),
    Changed(
        "rms_norm",
        "rotated_norm._forward_rotated",
        ("a", "b", "w_a", "w_b", "cos", "sin", "squares", "rstd", "n", "rotated"),
        ONE_PROGRAM,
        also=rotated_rows_are_right,
    ),
    Changed(
        "rms_norm",
        "rotated_norm._backward_rotated",
        (
            *("dy_a", "dy_b", "x_a", "x_b", "x_hat_a", "x_hat_b", "w_a", "w_b", "cos", "sin", "rstd", "n"),
            *("dw_a", "dw_b", "dx_hat_a", "dx_hat_b", "products", "along_x_hat", "dx_a", "dx_b", "rotated"),
        ),
        ONE_PROGRAM,
        also=rotated_rows_are_right,
    ),
    Changed(
        "rms_norm",
        "norm_rows._backward_tiles",
        ("dx_hat", "x", "mean", "rstd", "along_ones", "along_x_hat", "dx", "n"),
        TILES,
        lengths={"n": 45},
        leading=(2,),
        equivalent={
            "tl.sum(dx_hat * ((x - mean) * rstd), axis=0) → tl.sum(dx_hat * ((x - mean) * rstd))": ONE_AXIS,
            "axis=0 → axis=-1": ONE_AXIS,
        }
        | dict.fromkeys(
            (
                "along_ones += tl.sum(dx_hat, axis=0) / n → along_ones += -(tl.sum(dx_hat, axis=0) / n)",
                "along_ones += tl.sum(dx_hat, axis=0) / n → along_ones += 2 * (tl.sum(dx_hat, axis=0) / n)",
                "along_ones += tl.sum(dx_hat, axis=0) / n → along_ones -= tl.sum(dx_hat, axis=0) / n",
                "along_ones += tl.sum(dx_hat, axis=0) / n → along_ones = tl.sum(dx_hat, axis=0) / n",
                "axis=0 → axis=1",
                "dx_hat - along_ones → dx_hat",
                "dx_hat - along_ones → dx_hat + along_ones",
                "tl.sum(dx_hat, axis=0) / n → n",
                "tl.sum(dx_hat, axis=0) / n → n / tl.sum(dx_hat, axis=0)",
                "tl.sum(dx_hat, axis=0) / n → tl.sum(dx_hat, axis=0)",
                "tl.sum(dx_hat, axis=0) / n → tl.sum(dx_hat, axis=0) * n",
                "tl.sum(dx_hat, axis=0) / n → tl.sum(dx_hat, axis=0) / dx_hat",
                "tl.sum(dx_hat, axis=0) → dx_hat",
                "tl.sum(dx_hat, axis=0) → tl.max(dx_hat, axis=0)",
                "tl.sum(dx_hat, axis=0) → tl.mean(dx_hat, axis=0)",
                "tl.sum(dx_hat, axis=0) → tl.sum(dx_hat)",
                "tl.sum(dx_hat, axis=0) → tl.sum(x, axis=0)",
                "x - mean → x",
                "x - mean → x + mean",
            ),
            NO_MEAN,
        ),
    ),
    Changed(
        "rms_norm",
        "norm_rows._backward_sums",
        ("dy", "x", "mean", "rstd", "dw"),
        {**TILES, **ONE_PROGRAM},
        lengths={"n": 45},
        leading=(2,),
        equivalent=dict.fromkeys(
            (
                "dy → x",
                "x - mean → x",
                "x - mean → x + mean",
            ),
            NO_MEAN,
        ),
    ),
    Changed(
        "relu",
        "_backward",
        ("dy", "y"),
        equivalent=dict.fromkeys(
            ("y <= 0.0 → y <= -0.0", "tl.where(y <= 0.0, 0.0, dy) → tl.where(y <= 0.0, -0.0, dy)"),
            "Zeros are equal.",
        ),
    ),
    Changed("gelu", "_backward_erf", ("dy", "x", "below", "density", "ROOT_HALF", "PEAK")),
    Changed(
        "gelu",
        "_backward_tanh",
        ("dy", "x", "square", "sigmoid", "rest", "slope", "SLOPE", "CUBIC"),
        options={"approximate": "tanh"},
    ),
    Changed("silu", "_backward", ("dy", "x", "sigmoid", "rest")),
    Changed(
        "silu",
        "sigmoids",
        ("x", "small", "of_larger", "of_smaller", "positive"),
        equivalent={
            "x >= 0.0 → x > 0.0": "At 0 both values are 1/2.",
            "x >= 0.0 → x >= -0.0": "Zeros are equal.",
        },
    ),
    Changed("swiglu", "_backward", ("dy", "g", "u", "sigmoid", "rest", "silu")),
    Changed(
        "dropout",
        "_forward",
        ("x", "kept", "KEPT", "quotient"),
        leading=(3, 21),
        options={"p": 0.25, "seed": 3},
        least=1,
        equivalent={
            "tl.where(kept, quotient(x, KEPT), 0.0) → tl.where(kept, quotient(x, KEPT), -0.0)": "Zeros are equal."
        },
    ),
    Changed("rope", "rotated", ("a", "b", "cos", "sin")),
    Changed("rope", "_turn_halves", TURNED, equivalent=BY_SIGN),
    Changed(
        "rope", "_turn_neighbours", (*TURNED, "x", "y"), options={"interleaved": True}, equivalent=BY_SIGN
    ),
    Changed(
        "flash_attention",
        "_forward",
        (
            "q",
            "k",
            "v",
            "scores",
            "top",
            "higher",
            "subtracted",
            "exps",
            "rescale",
            "total",
            "y",
            "nothing",
            "divisor",
            "lse",
            "sink",
            "LOG2_E",
            "UNIT",
        ),
        **HEAD,
        also=lambda kernel: (
            weights_of_high_scores_are_right(kernel) and capped_and_dropped_weights_are_right(kernel)
        ),
        equivalent={
            "tl.where(nothing, 1.0, total) → tl.where(nothing, 2.0, total)": "Only of a query that sees no key is the sum 0, "
            "what it divides 0, and its logarithm not used.",
            "tl.where(nothing, 1.0, total) → tl.where(nothing, -1.0, total)": "The same.",
            "top == -float('inf') → higher == -float('inf')": "After the loop both are the last maximum.",
            "top + tl.log2(divisor) → higher + tl.log2(divisor)": "After the loop both are the last maximum.",
            "tl.maximum(top, tl.max(scores, axis=1) * UNIT) → tl.maximum(tl.max(scores, axis=1) * UNIT, top)": "The "
            "larger of two is the larger of two.",
        },
    ),
    Changed("flash_attention", "_backward_delta", ("dy", "y", "delta"), **HEAD),
    Changed(
        "flash_attention",
        "flash_attention_tiles.cap_and_bias",
        ("scores", "t", "bias", *OF_SCORES),
        **HEAD,
        also=capped_scores_are_right,
        equivalent={
            "scores * (SCALE * LOG2_E) → t * (SCALE * LOG2_E)": "Without a softcap both are the products.",
            "scores * (SCALE / CAP) → t * (SCALE / CAP)": "Before the softcap both are the products.",
            "scores.dtype → t.dtype": "Both have one dtype.",
        },
    ),
    Changed(
        "flash_attention",
        "flash_attention_tiles.scores_of",
        ("x", "y", "scores", "lse", "UNIT"),
        **HEAD,
        also=capped_scores_are_right,
    ),
    Changed(
        "flash_attention", "flash_attention_tiles.unit_of", OF_SCORES, **HEAD, also=capped_scores_are_right
    ),
    Changed("flash_attention", "flash_attention_tiles.hide", ("scores", "mask"), **HEAD, least=1),
    Changed(
        "flash_attention",
        "_backward_keys",
        (
            "q",
            "k",
            "dy",
            "v",
            "lse",
            "logs",
            "a",
            "da",
            "delta",
            "dp",
            "dk",
            "dv",
            "SCALE",
            "t",
        ),
        **HEAD,
        also=capped_and_dropped_weights_are_right,
    ),
    Changed(
        "flash_attention",
        "_backward_queries",
        (
            "q",
            "k",
            "dy",
            "v",
            "lse",
            "logs",
            "a",
            "da",
            "delta",
            "dp",
            "dq",
            "SCALE",
            "t",
        ),
        **HEAD,
        also=capped_and_dropped_weights_are_right,
    ),
    Changed("embedding", "_backward_blocks", ("total", "dy"), **RUNS),
    Changed("embedding", "_backward_rows", ("total", "dy", "part"), **RUNS),
]


FOLDER = Path(__file__).parent / "equivalent_mutants"


def rows_of_formulas() -> list[Changed]:
    """A row for each function of the kernels that the table leaves out, if it takes numbers and no pointers, as the
    formulas of `elementwise.declare` do. The proofs of changes that compute the same are in a file for each stem."""
    rows = []
    for stem in kernels.STEMS:
        if any(row.stem == stem for row in TABLE):
            continue
        file = FOLDER / f"{stem}.toml"
        listed = tomllib.loads(file.read_text())["mutant"] if file.exists() else []
        for name in triton_functions(stem):
            values = python_function(kernels.load(stem), name).__code__.co_varnames
            equivalent = {e["change"]: e["proof"] for e in listed if e["function"] == f"{stem}.{name}"}
            if not any(value.endswith("_ptr") for value in values):
                also = functools.partial(right_in_float64, stem)
                rows.append(
                    Changed(
                        stem,
                        name,
                        values,
                        leading=(7,),
                        extremes=(far_from_zero,),
                        also=also,
                        equivalent=equivalent,
                    )
                )
    return rows


def right_in_float64(stem: str, kernel) -> bool:
    """Whether y and the gradients have the operation's digits in float64, where the inputs are drawn and near 0."""
    for size in (1.0, 1e-4):
        inputs = [
            to_torch(size * value, kernels.device())
            for value in draw(stem, np.random.default_rng(0), leading={"*": (101,)})
        ]
        y, gradients = results(kernel, inputs, options_for(stem))
        right_y, right = results(ops.load(stem), inputs, options_for(stem))
        if not torch.allclose(y, right_y, rtol=4e-15, atol=0):
            return False
        if not all(
            torch.allclose(got, d, rtol=0, atol=4e-15) for got, d in zip(gradients, right, strict=True)
        ):
            return False
    return True


def arithmetic(values: set[str]):
    """Whether an expression is made of the kernel's values and of nothing else."""

    def chosen(node: ast.AST) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - {"tl", "torch"}
        return isinstance(node, (ast.expr, ast.AugAssign)) and bool(names) and names <= values

    return chosen


def changes(function, values: tuple[str, ...]) -> list:
    """The changes of the function's arithmetic on values. Of those that put one name in another's place, which
    are by far the most, only the value named next."""
    before = names_in(ast.parse(textwrap.dedent(inspect.getsource(function))))
    following = dict(zip(values, (*values[1:], values[0]), strict=True))

    def wanted(tree: ast.AST) -> bool:
        after = names_in(tree)
        lost, gained = before - after, after - before
        return not gained or [following.get(name) for name in lost] == list(gained)

    every = mutants(function, arithmetic(set(values)), lambda name, other: following.get(name) == other)
    return [mutant for mutant in every if wanted(mutant.tree)]


def names_in(tree: ast.AST) -> Counter:
    return Counter(part.id for part in ast.walk(tree) if isinstance(part, ast.Name))


def triton_functions(stem: str) -> list[str]:
    """Names of the functions that Triton compiles of the stem's module, and of one that kernels share, if it is built
    on that."""
    module = kernels.load(stem)
    modules = {"": module} | {f"{name}.": vars(module)[name] for name in SHARED if name in vars(module)}
    return [
        prefix + name
        for prefix, written in modules.items()
        for name, value in vars(written).items()
        if getattr(getattr(value, "fn", None), "__module__", None) == written.__name__
    ]


def home(row: Changed) -> tuple[object, str]:
    """The module in which the row's function is written, and its name there."""
    *module, name = row.function.split(".")
    return kernels.load(row.stem) if not module else import_module(f"backpass.kernels.{module[0]}"), name


def python_function(module, name: str):
    """A function of the module; what it was written as, where it is Triton's."""
    function = getattr(module, name)
    return getattr(function, "fn", function)


def changed_module(row: Changed, module, name: str, mutant, folder, number: int, monkeypatch):
    """The kernel's module with one function changed, from a file: Triton reads the source of what it compiles."""
    source = inspect.getsource(module)
    before = textwrap.dedent(inspect.getsource(python_function(module, name)))
    assert before in source
    path = folder / f"changed_{number}.py"
    after = ast.unparse(mutant.tree)
    after += "\n" * (before.count("\n") - after.count("\n"))  # what follows keeps its lines, and its code
    path.write_text(source.replace(before, after))
    shared, _, _ = row.function.rpartition(".")
    if shared:
        return built_on(shared, loaded(path, shared), row.stem, monkeypatch)
    return loaded(path, row.stem)


def built_on(shared: str, changed, stem: str, monkeypatch):
    """The kernel's module, loaded anew with a changed module in place of one that kernels share."""
    monkeypatch.setitem(sys.modules, f"backpass.kernels.{shared}", changed)
    monkeypatch.setattr(kernels, shared, changed)
    return loaded(Path(kernels.__file__).parent / f"{stem}.py", stem)


def loaded(path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel_fails(kernel, row: Changed, monkeypatch) -> bool:
    """Whether the kernel's row is red, with every optional input or without one, or the kernel is wrong at one of the
    extremes. A crash is a failure."""
    for setting, value in row.settings.items():
        if "." in setting:
            monkeypatch.setattr(f"backpass.kernels.{setting}", value)
        else:
            monkeypatch.setitem(kernel.launches.__globals__, setting, value)
            if hasattr(kernel, setting):  # a check reads the kernel's own ROW_BYTES
                monkeypatch.setattr(kernel, setting, value)
    monkeypatch.setattr(kernels, "load", lambda stem: kernel)
    optional = [[spec.name] for spec in parse(kernel.SHAPES).inputs if spec.optional]
    try:
        return (
            any(check_fails(row, without) for without in ([], *optional))
            or any(wrong_at(kernel, row, extreme) for extreme in row.extremes)
            or (row.also is not None and not row.also(kernel))
        )
    except Exception:
        return True


def drawn(row: Changed, without: list[str]) -> tuple[np.ndarray | None, ...]:
    leading = dict.fromkeys(("*", "*a", "*b"), row.leading)
    return draw(row.stem, np.random.default_rng(0), lengths=row.lengths, leading=leading, without=without)


def check_fails(row: Changed, without: list[str]) -> bool:
    inputs = tuple(to_torch(value, kernels.device(), torch.float32) for value in drawn(row, without))
    under_test = subject(ops.load(row.stem), len(inputs), options_for(row.stem) | row.options)
    case = Case(under_test, inputs, seed=0, explain=False)
    return any(found.verdict == FAILED for found in METHODS["kernel"].run(case))


def wrong_at(kernel, row: Changed, extreme: Callable[[list[np.ndarray]], None]) -> bool:
    """Whether y or a gradient is not the operation's in float64, infinities and NaN included."""
    values = list(drawn(row, []))
    extreme(values)
    inputs = [to_torch(value, kernels.device(), torch.float32) for value in values]
    options = options_for(row.stem) | row.options
    y, gradients = results(kernel, inputs, options)
    y_64, gradients_64 = results(
        ops.load(row.stem),
        [value.double() if value.is_floating_point() else value for value in inputs],
        options,
    )
    return not all(
        torch.allclose(found.double(), right, rtol=1e-5, atol=1e-5, equal_nan=True)
        for found, right in zip((y, *gradients), (y_64, *gradients_64), strict=True)
    )


def results(functions, inputs: list, options: dict) -> tuple:
    """y and the gradients of a dy that rises from 1/4 to 1."""
    y, saved = functions.forward(*inputs, **options)
    dy = torch.linspace(0.25, 1, y.numel(), dtype=torch.float32).to(y).reshape(y.shape)
    gradients = functions.backward(dy, saved)
    return y, gradients if isinstance(gradients, tuple) else (gradients,)


ROWS = [*TABLE, *rows_of_formulas()]


@pytest.mark.parametrize("name", ["_forward_tiles", "_backward_tiles"])
def test_backpass_verify_reaches_the_kernel_of_long_rows(name, tmp_path, monkeypatch, capsys, device):
    """With nothing set: what `backpass verify` runs has rows that one program does not hold."""
    result = {"_forward_tiles": "Y(x, top, total)", "_backward_tiles": "DX(dy, a, total)"}[name]
    source = inspect.getsource(import_module("backpass.kernels.softmax_rows"))
    assert source.count(result) == 1
    path = tmp_path / f"wrong{name}.py"
    path.write_text(source.replace(result, f"17 * {result}"))
    wrong = built_on("softmax_rows", loaded(path, "softmax_rows"), "softmax", monkeypatch)
    monkeypatch.setattr(kernels, "load", lambda stem: wrong)
    assert cli.main(["verify", "softmax", "--json"]) == 1
    reports = json.loads(capsys.readouterr().out)["reports"]
    rows = [row for report in reports for row in report["rows"] if row["verdict"] == "FAILED"]
    assert {row["method"] for row in rows} == {"Triton kernel"}
    assert all("rows of 16421," in row["how"] for row in rows)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # some changes divide by 0
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.filterwarnings("ignore:tl.where with a non-boolean condition:UserWarning")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.stem}{row.function}")
def test_every_change_is_caught(row, tmp_path, monkeypatch, device, proof, request):
    module, name = home(row)
    function = python_function(module, name)
    made = changes(function, row.values)
    assert len(made) >= row.least
    assert {*row.equivalent} <= {mutant.change for mutant in made}
    key = f"kernels.{request.node.callspec.id}"  # a function may have several rows
    checks = [proofs.imports("backpass.verify")]
    tried = proof.part(
        key,
        made,
        checks=checks,
        of=[function, proofs.folder(Path(module.__file__)), *row.equivalent],
        share=0.1,
    )
    if not proof.whole:
        tried = [mutant for mutant in tried if mutant.change not in row.equivalent]
    unchanged = loaded(Path(kernels.__file__).parent / f"{row.stem}.py", row.stem)
    unchanged.forward = remembered(unchanged.forward)
    assert not kernel_fails(unchanged, row, monkeypatch)
    survivors = set()
    for number, mutant in enumerate(tried):
        changed = changed_module(row, module, name, mutant, tmp_path, number, monkeypatch)
        if "backward" in row.function:  # the forward is the same
            changed.forward = unchanged.forward
        if not kernel_fails(changed, row, monkeypatch):
            survivors.add(mutant.change)
    if unnoticed := sorted(survivors - {*row.equivalent}):
        where = f"its row's `equivalent`, or in tests/kernels/{FOLDER.name}/{row.stem}.toml"
        pytest.fail(
            f"changed, and no check noticed: add a check, or prove in {where}, that these compute the same\n\n"
            + "\n".join(as_toml(row, change) for change in unnoticed),
            pytrace=False,
        )
    if (
        proof.whole and kernels.interpreted()
    ):  # compiled, a loop's last value is not known after it, and such a change is rejected
        assert {*row.equivalent} - survivors == set(), "listed as equivalent, but caught, or no longer there"


def as_toml(row: Changed, change: str) -> str:
    function, change = (
        json.dumps(text, ensure_ascii=False) for text in (f"{row.stem}.{row.function}", change)
    )
    return f'[[mutant]]\nfunction = {function}\nchange = {change}\nproof = ""\n'


@pytest.mark.parametrize("stem", kernels.STEMS)
def test_no_function_is_left_out(stem, device):
    """Every function of Triton's in a kernel's module, and in one that it is built on."""
    missing = set(triton_functions(stem)) - {row.function for row in ROWS if row.stem == stem}
    assert not missing, "a function that takes pointers needs a row in TABLE"


def test_proofs_are_of_kernels_that_are_changed():
    for file in FOLDER.glob("*.toml"):
        for entry in tomllib.loads(file.read_text())["mutant"]:
            assert entry["function"] in {
                f"{row.stem}.{row.function}" for row in ROWS if row.stem == file.stem
            }
            assert len(entry["proof"].split()) >= 5
