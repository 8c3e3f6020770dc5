"""RoPE: a pair of a query and one of a key turn with their positions, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.figures.movable.marks import curve, faint, handle, line, words
from backpass.figures.movable.movable import Movable, Number
from backpass.ops import rope

QUERY, KEY = np.array([[1.1, 0.3]]), np.array([[0.6, 0.75]])
UNIT = 48  # pixels


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query at position p and the key at position r, their inner product,
    and the gradient of this score with respect to the query that was not yet turned."""

    def turned(row: Any, position: float) -> Any:
        angle = np.array([[position]])
        return rope.forward(row, np.cos(angle), np.sin(angle))

    q, saved = turned(QUERY, given["p"])
    k, _ = turned(KEY, given["r"])
    return {
        "q": q[0].tolist(),
        "k": k[0].tolist(),
        "d": rope.backward(k, saved)[0].tolist(),
        "score": float(np.sum(q * k)),
        "apart": given["p"] - given["r"],
    }


MODEL = """
({p, r}) => {
  const turned = ([a, b], by) => {
    const [c, s] = [Math.cos(by), Math.sin(by)];
    return [a * c - b * s, a * s + b * c];
  };
  const q = turned([1.1, 0.3], p), k = turned([0.6, 0.75], r);
  return {q, k, d: turned(k, -p), score: q[0] * k[0] + q[1] * k[1], apart: p - r};
}
"""


def _drawing() -> str:
    def circle(x: float, row: Any) -> str:
        length = round(UNIT * float(np.linalg.norm(row)), 2)
        arc = f"a{length} {length} 0 1 0 {{}} 0"
        return curve(
            f"M{x - length} 86{arc.format(2 * length)}{arc.format(-2 * length)}",
            faint=True,
        )

    def arrow(x: float, name: str, kind: str, **style: Any) -> str:
        tip = f"[{name}.0*{UNIT}+{x}]", f"[{name}.1*-{UNIT}+86]"
        return line(x, 86, *tip, kind, width=2.2, arrow=True, **style)

    def letter(x: float, name: str, text: str) -> str:
        return words(f"[{name}.0*58+{x}]", f"[{name}.1*-58+90]", text)

    fixed = f"{80 + UNIT * QUERY[0, 0]:.2f}", f"{86 - UNIT * QUERY[0, 1]:.2f}"
    parts = [
        words(80, 13, "turned by their positions"),
        words(240, 13, "gradient of the score"),
        circle(80, QUERY),
        circle(80, KEY),
        circle(240, KEY),
        line(80, 86, *fixed, dashed=True, width=1, more=' stroke-opacity="0.5"'),
        arrow(80, "q", "value"),
        arrow(80, "k", "plain"),
        letter(80, "q", "q"),
        letter(80, "k", "k"),
        arrow(240, "k", "plain"),
        letter(240, "k", "k"),
        arrow(240, "d", "gradient", dashed=True),
        letter(240, "d", "q̄"),
        words(160, 170, "score [score:2] at the distance [apart:1]", bold=True),
        words(4, 202, "query at [p:1]", anchor="start"),
        words(4, 232, "key at [r:1]", anchor="start"),
        faint(100, 198, 310, 198),
        faint(100, 228, 310, 228),
    ]
    says = "; score [score:2], distance [apart:1]"
    for name, of, y in (("p", "query", 198), ("r", "key", 228)):
        at, across = f"[{name}*21+100]", (name, 21)
        label, kind = f"position of the {of}", "value" if of == "query" else "plain"
        spoken = f"[{name}:1]{says}"
        parts.append(
            handle(at, y, label, spoken, across=across, kind=kind, letter=of[0])
        )
    return "".join(parts)


FIGURE = Movable(
    name="rope",
    numbers=(
        Number("p", "query", 2.0, 0.0, 10.0, 0.1),
        Number("r", "key", 1.0, 0.0, 10.0, 0.1),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 242),
    alt="A pair of a query, turned by its position [p:1] to ([q.0:2], [q.1:2]), and "
    "one of a key, turned by [r:1] to ([k.0:2], [k.1:2]). Their score is [score:2]. "
    "Its gradient with respect to the query before the turn is ([d.0:2], [d.1:2]).",
    columns=3,
)
