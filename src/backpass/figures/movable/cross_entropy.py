"""Cross-entropy: the gradient of a score is its probability less its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.figures.movable.marks import bar, faint, handle, line, words
from backpass.figures.movable.movable import Movable, Number
from backpass.ops import cross_entropy, softmax

PLACES, SUBSCRIPTS, TARGET = range(4), "₁₂₃₄", 1
SCORES = (0.5, 0.0, 1.5, -0.5)


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the probabilities ``y``, the targets ``t``, the loss, the gradients ``d``
    of the scores, and their sum. The second class is the target."""
    x = np.array([given[f"x{i}"] for i in PLACES])
    loss, saved = cross_entropy.forward(
        x, np.array(TARGET), label_smoothing=given["smooth"]
    )
    d = cross_entropy.backward(np.array(1.0), saved)
    y, _ = softmax.forward(x)
    return {
        "y": y.tolist(),
        "t": (y - d).tolist(),
        "loss": float(loss),
        "d": d.tolist(),
        "sum": float(np.sum(d)),
    }


MODEL = """
({x0, x1, x2, x3, smooth}) => {
  const x = [x0, x1, x2, x3], total = (all) => all.reduce((a, b) => a + b, 0);
  const log = Math.log(total(x.map(Math.exp)));
  const y = x.map((each) => Math.exp(each - log));
  const t = x.map((_, i) => smooth / 4 + (i === 1 ? 1 - smooth : 0));
  const loss = total(x.map((each, i) => t[i] * (log - each)));
  const d = y.map((each, i) => each - t[i]);
  return {y, t, loss, d, sum: total(d)};
}
"""


def _drawing() -> str:
    parts = [
        words(64, 13, "scores x: drag"),
        words(238, 13, "probabilities and targets"),
        faint(0, 90, 128, 90),
        faint(158, 134, 318, 134),
        words(64, 184, "smoothing: drag"),
        words(238, 184, "scores’ gradients x̄"),
        faint(14, 206, 114, 206),
        words(64, 254, "loss [loss:2]", bold=True, size=16),
        faint(158, 250, 318, 250),
        words(238, 334, "sum [sum:2]", bold=True),
        words(64, 280, "the target is class 2", size=11),
    ]
    for i in PLACES:
        score, column = 16 + 32 * i, 178 + 40 * i
        name = f"{i + 1}"
        says = f"[x{i}:1]; probability [y.{i}:2], gradient [d.{i}:2], loss [loss:2]"
        at, up = f"[x{i}*-11+90]", (f"x{i}", 11)
        target = f"[t.{i}*-94+134]"
        parts += [
            line(score, 90, score, at, "value", width=2),
            bar(column, 134, f"[y.{i}*-94+134]", "value"),
            line(column - 13, target, column + 13, target, width=2.4),
            words(column, 148, name),
            words(column, 163, f"[y.{i}:2]"),
            bar(column, 250, f"[d.{i}*-50+250]", "gradient"),
            words(column, 316, f"[d.{i}:2]"),
            handle(score, at, f"score {name}", says, up=up, letter=name),
        ]
    says = "[smooth:2]; loss [loss:2], gradient of score 2 [d.1:2]"
    at, across = "[smooth*200+14]", ("smooth", 200)
    parts.append(handle(at, 206, "label smoothing", says, across=across, kind="plain"))
    return "".join(parts)


FIGURE = Movable(
    name="cross_entropy",
    numbers=(
        *(Number(f"x{i}", f"x{SUBSCRIPTS[i]}", SCORES[i], -5, 6, 0.1) for i in PLACES),
        Number("smooth", "smoothing", 0.0, 0.0, 0.5, 0.01),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 340),
    alt="Four classes, of which the second is the target. Probabilities "
    + ", ".join(f"[y.{i}:2]" for i in PLACES)
    + "; loss [loss:2]; the scores’ gradients "
    + ", ".join(f"[d.{i}:2]" for i in PLACES)
    + ", whose sum is [sum:2].",
    columns=3,
)
