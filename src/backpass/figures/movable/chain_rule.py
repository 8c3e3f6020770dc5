"""The chain rule: values forward and gradients back through a graph of four steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.figures.movable.marks import (
    both_ways,
    box,
    curve,
    faint,
    handle,
    line,
    words,
)
from backpass.figures.movable.movable import Movable, Number
from backpass.ops import fork, scale


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values and the gradients of L = x² · c x, whose gradient is 1."""
    (x1, x2), at_fork = fork.forward(np.array(given["x"]))
    u = x1**2
    v, at_scale = scale.forward(x2, factor=given["c"])
    du, dv = v, u  # each factor receives the other one
    d1, d2 = 2 * x1 * du, scale.backward(dv, at_scale)
    dx = fork.backward(np.stack([d1, d2]), at_fork)
    found = {
        "u": u,
        "v": v,
        "L": u * v,
        "du": du,
        "dv": dv,
        "d1": d1,
        "d2": d2,
        "dx": dx,
    }
    return {name: float(value) for name, value in found.items()}


MODEL = """
({x, c}) => {
  const u = x * x, v = c * x, du = v, dv = u, d1 = 2 * x * du, d2 = c * dv;
  return {u, v, L: u * v, du, dv, d1, d2, dx: d1 + d2};
}
"""


def _drawing() -> str:
    # From, to, and the places and texts of the value and of its gradient.
    edges = [
        (
            (4, 80),
            (46, 80),
            (25, 72, "middle", "x = [x:1]"),
            (25, 97, "middle", "[dx:2]"),
        ),
        ((94, 70), (136, 38), (110, 48, "end", "[x:1]"), (120, 70, "start", "[d1:2]")),
        (
            (94, 90),
            (136, 122),
            (116, 101, "start", "[x:1]"),
            (108, 127, "end", "[d2:2]"),
        ),
        (
            (186, 38),
            (228, 70),
            (208, 46, "start", "u = [u:2]"),
            (202, 70, "end", "[du:2]"),
        ),
        (
            (186, 122),
            (228, 90),
            (204, 101, "end", "v = [v:2]"),
            (214, 127, "start", "[dv:2]"),
        ),
        ((276, 80), (318, 80), (299, 72, "middle", "[L:2]"), (297, 97, "middle", "1")),
    ]
    parts = [
        box(70, 80, 46, 26, "copy"),
        box(161, 30, 46, 26, "square"),
        box(161, 130, 46, 26, "times c"),
        box(252, 80, 46, 26, "times"),
        words(299, 56, "L"),
    ]
    for start, end, value, gradient in edges:
        parts.append(both_ways(*start, *end))
        for (x, y, anchor, text), kind in ((value, "value"), (gradient, "gradient")):
            parts.append(words(x, y, text, kind=kind, anchor=anchor))
    # The loss against x, and its tangent: 70 pixels a unit of x, 1.6 a unit of L.
    points = [at / 8 for at in range(-16, 17)]
    path = " ".join(f"{160 + 70 * x:g} [c*{-1.6 * x**3:.4f}+250]" for x in points)
    tangent = [f"[dx*{-1.6 * way:g}+L*-1.6+250]" for way in (-0.4, 0.4)]
    parts += [
        faint(110, 164, 212, 164),
        faint(10, 250, 310, 250),
        faint(160, 190, 160, 310),
        words(304, 264, "x", size=11),
        words(168, 200, "L", anchor="start", size=11),
        curve(f"M{path}"),
        line(
            "[x*70+132]",
            tangent[0],
            "[x*70+188]",
            tangent[1],
            "gradient",
            width=2,
            dashed=True,
        ),
        words(160, 328, "slope of the dashed tangent: x̄ = [dx:2]", bold=True),
        handle(
            "[x*70+160]",
            "[L*-1.6+250]",
            "x",
            "[x:1]; loss [L:2], gradient of x [dx:2]",
            across=("x", 70),
            letter="x",
        ),
        handle(
            "[c*17+161]",
            164,
            "factor c",
            "[c:1]; loss [L:2], gradient of x [dx:2]",
            across=("c", 17),
            letter="c",
        ),
    ]
    return "".join(parts)


FIGURE = Movable(
    name="chain_rule",
    numbers=(
        Number("x", "x", 2.0, -2.0, 2.0, 0.1),
        Number("c", "c", 3.0, -3.0, 3.0, 0.1),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 334),
    alt="A copy of x = [x:1], its square u = [u:2], its multiple v = [v:2], and their "
    "product L = [L:2]. The gradients: of u [du:2], of v [dv:2], of the copies [d1:2] "
    "and [d2:2], of x [dx:2], the slope of the curve below.",
    columns=3,
)
