"""Softmax: four scores and the gradients of their weights, all to be dragged."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from backpass.figures.movable.marks import area, bar, faint, handle, line, words
from backpass.figures.movable.movable import Movable, Number
from backpass.ops import softmax

PLACES, SUBSCRIPTS = range(4), "₁₂₃₄"
SCORES, GRADIENTS = (1.0, 1.5, -1.0, 0.5), (-1.0, 1.5, 0.4, -0.6)


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights ``y``, where each begins if they stand side by side, the
    average of their gradients, the gradients ``d`` of the scores, and their sum."""
    y, saved = softmax.forward(np.array([given[f"x{i}"] for i in PLACES]))
    arrives = np.array([given[f"g{i}"] for i in PLACES])
    d = softmax.backward(arrives, saved)
    return {
        "y": y.tolist(),
        "left": [0.0, *accumulate(y.tolist())],
        "middle": (np.cumsum(y) - y / 2).tolist(),
        "average": float(np.sum(y * arrives)),
        "d": d.tolist(),
        "sum": float(np.sum(d)),
    }


MODEL = """
({x0, x1, x2, x3, g0, g1, g2, g3}) => {
  const g = [g0, g1, g2, g3], total = (all) => all.reduce((a, b) => a + b, 0);
  const e = [x0, x1, x2, x3].map(Math.exp), y = e.map((each) => each / total(e));
  const left = [0, 1, 2, 3, 4].map((i) => total(y.slice(0, i)));
  const average = total(y.map((each, i) => each * g[i]));
  const d = y.map((each, i) => each * (g[i] - average));
  const middle = y.map((each, i) => left[i] + each / 2);
  return {y, left, middle, average, d, sum: total(d)};
}
"""


def _drawing() -> str:
    parts = [
        words(64, 13, "scores x: drag"),
        words(238, 13, "weights y"),
        faint(0, 90, 128, 90),
        faint(158, 134, 318, 134),
        words(64, 178, "ȳ: drag"),
        words(238, 178, "scores’ gradients x̄"),
        faint(158, 252, 318, 252),
        words(64, 342, "average [average:2]", bold=True),
        words(238, 342, "sum [sum:2]", bold=True),
    ]
    for i in PLACES:
        score, column = 16 + 32 * i, 178 + 40 * i
        parts += [
            line(score, 90, score, f"[x{i}*-11+90]", "value", width=2),
            bar(column, 134, f"[y.{i}*-94+134]", "value"),
            words(column, f"[y.{i}*-94+130]", f"[y.{i}:2]"),
            words(column, 149, f"{i + 1}"),
            area(
                f"M[left.{i}*128] [average*-32+252]V[g{i}*-32+252]"
                f"H[left.{i + 1}*128]V[average*-32+252]Z",
                "gradient",
            ),
            bar(column, 252, f"[d.{i}*-64+252]", "gradient"),
            words(column, 324, f"[d.{i}:2]"),
        ]
    average = "[average*-32+252]"
    parts.append(line(0, average, 128, average, dashed=True))
    for i in PLACES:
        name = f"{i + 1}"
        says = f"[x{i}:1]; weight [y.{i}:2], score’s gradient [d.{i}:2]"
        at, up, label = f"[x{i}*-11+90]", (f"x{i}", 11), f"score {name}"
        parts.append(handle(16 + 32 * i, at, label, says, up=up, letter=name))
        says = f"[g{i}:1]; average [average:2], score’s gradient [d.{i}:2]"
        across, at = f"[middle.{i}*128]", f"[g{i}*-32+252]"
        up, label = (f"g{i}", 32), f"gradient of weight {name}"
        dot = handle(across, at, label, says, up=up, kind="gradient", letter=name)
        parts.append(dot)
    return "".join(parts)


FIGURE = Movable(
    name="softmax",
    numbers=tuple(
        Number(f"{letter}{i}", f"{shown}{name}", given[i], *bounds, 0.1)
        for letter, shown, given, bounds in (
            ("x", "x", SCORES, (-4, 6)),
            ("g", "ȳ", GRADIENTS, (-2, 2)),
        )
        for i, name in enumerate(SUBSCRIPTS)
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 348),
    alt="Four scores; their weights "
    + ", ".join(f"[y.{i}:2]" for i in PLACES)
    + "; the average [average:2] of the weights’ gradients; the scores’ gradients "
    + ", ".join(f"[d.{i}:2]" for i in PLACES)
    + ", whose sum is [sum:2].",
    columns=4,
)
