"""LayerNorm's circle: of a gradient that arrives, the part along the circle remains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.figures.movable.marks import (
    bar,
    curve,
    faint,
    handle,
    line,
    point,
    words,
)
from backpass.figures.movable.movable import Movable, Number
from backpass.ops import layer_norm

# The drawing looks along the ones, at the plane of the rows whose mean is 0.
ONES = np.array([1.0, 1.0, 1.0]) / np.sqrt(3)
PLANE = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / np.sqrt([[2], [6]])
TURN = np.array([0.8, 0.6])  # of the row in the plane: a cosine and a sine
ROW = 2.1 * ONES + 2.7 * TURN @ PLANE
X, Y, UNIT = 62, 108, 32  # the circle's middle, and the pixels of a unit


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the gradient along the ones, along the normalised row, and
    along the circle: as it ``arrives``, and what ``remains``, without the factor 1/s;
    and the latter in the drawing, across and up."""
    arrives = given["o"] * ONES + np.array([given["g1"], given["g2"]]) @ PLANE
    x_hat, saved = layer_norm.forward(ROW, eps=0)
    dx, _, _ = layer_norm.backward(arrives, saved)
    across = np.array([-TURN[1], TURN[0]]) @ PLANE
    directions = np.array([ONES, x_hat / np.linalg.norm(x_hat), across])
    remains = np.asarray(dx) / saved.rstd
    r1, r2 = PLANE @ remains
    return {
        "arrives": (directions @ arrives).tolist(),
        "remains": (directions @ remains).tolist(),
        "r1": float(r1),
        "r2": float(r2),
    }


MODEL = """
({o, g1, g2}) => {
  const root = Math.sqrt, dot = (x, y) => x[0] * y[0] + x[1] * y[1] + x[2] * y[2];
  const ones = [1, 1, 1].map((x) => x / root(3));
  const one = [1, -1, 0].map((x) => x / root(2)), other =
    [1, 1, -2].map((x) => x / root(6));
  const at = (a, b, c) => ones.map((each, i) => a * each + b * one[i] + c * other[i]);
  const xHat = at(0, 0.8 * root(3), 0.6 * root(3)), g = at(o, g1, g2);
  const mean = dot(g, [1, 1, 1]) / 3, share = dot(g, xHat) / 3;
  const d = g.map((each, i) => each - mean - xHat[i] * share);
  const directions = [ones, at(0, 0.8, 0.6), at(0, -0.6, 0.8)];
  const [arrives, remains] = [g, d].map((x) => directions.map((each) => dot(each, x)));
  return {arrives, remains, r1: dot(d, one), r2: dot(d, other)};
}
"""


def _drawing() -> str:
    radius = np.sqrt(3)
    hat = X + UNIT * radius * TURN[0], Y - UNIT * radius * TURN[1]
    far = X + UNIT * 2.7 * TURN[0], Y - UNIT * 2.7 * TURN[1]
    round_ = f"{UNIT * radius:.2f}"
    start = f"{hat[0]:.2f}", f"{hat[1]:.2f}"
    tip = f"[g1*{UNIT}+{hat[0]:.2f}]", f"[g2*-{UNIT}+{hat[1]:.2f}]"
    left = f"[r1*{UNIT}+{hat[0]:.2f}]", f"[r2*-{UNIT}+{hat[1]:.2f}]"
    parts = [
        words(80, 13, "gradient at x̂: drag"),
        words(252, 13, "its parts along"),
        curve(
            f"M{X - UNIT * radius:.2f} {Y}"
            f"a{round_} {round_} 0 1 0 {2 * UNIT * radius:.2f} 0"
            f"a{round_} {round_} 0 1 0 {-2 * UNIT * radius:.2f} 0",
            faint=True,
        ),
        faint(X, Y, f"{far[0]:.2f}", f"{far[1]:.2f}"),
        point(f"{far[0]:.2f}", f"{far[1]:.2f}", "plain"),
        words(f"{far[0] + 10:.2f}", f"{far[1] + 4:.2f}", "x"),
        point(*start, "plain"),
        words(f"{hat[0] - 13:.2f}", f"{hat[1] + 10:.2f}", "x̂"),
        line(*left, *tip, dashed=True, width=1),
        line(*start, *tip, arrow=True),
        line(*start, *left, "gradient", width=2.4, arrow=True),
        faint(186, 118, 318, 118),
        words(80, 196, "thin arrow: arrives", size=11),
        words(80, 211, "thick arrow: remains", size=11),
        words(252, 211, "line arrives, bar remains", size=11),
    ]
    for i, name in enumerate(("ones", "x̂", "circle")):
        at = 206 + 46 * i
        parts += [
            words(at, 30, name),
            line(at - 11, 118, at - 11, f"[arrives.{i}*-22+118]", width=2),
            bar(at + 4, 118, f"[remains.{i}*-22+118]", "gradient", 14),
            words(at, 178, f"[arrives.{i}:2]", size=11),
            words(at, 192, f"[remains.{i}:2]", kind="gradient", size=11, bold=True),
        ]
    says = "[g1:1], [g2:1]; the part along the circle, [remains.2:2], remains"
    label = "gradient in the plane of the circle"
    g1, g2 = ("g1", UNIT), ("g2", UNIT)
    says_ones = "[o:1]; of it [remains.0:2] remains"
    parts += [
        handle(*tip, label, says, across=g1, up=g2, kind="plain", letter="g"),
        handle(
            195,
            "[o*-22+118]",
            "part along the ones",
            says_ones,
            up=("o", 22),
            kind="plain",
            letter="1",
        ),
    ]
    return "".join(parts)


FIGURE = Movable(
    name="layer_norm",
    numbers=(
        Number("g1", "across", 0.4, -1.9, 1.9, 0.1),
        Number("g2", "up", 1.3, -1.9, 1.9, 0.1),
        Number("o", "ones", 1.1, -2.4, 2.4, 0.1),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 216),
    alt="A circle, x outside it and x̂ on it. Of the gradient’s part along the "
    "ones, [arrives.0:2], [remains.0:2] remains; of its part along x̂, [arrives.1:2], "
    "[remains.1:2]; of its part along the circle, [arrives.2:2], [remains.2:2].",
    columns=4,
)
