"""Attention's backward: one query, three keys, and the gradients of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.figures.movable.marks import (
    bar,
    faint,
    handle,
    line,
    point,
    words,
)
from backpass.figures.movable.movable import Movable, Number
from backpass.ops import attention

KEYS = np.array([[[1.6, 0.8], [-1.2, 1.4], [0.4, -1.8]]])
VALUES = (2.0, -1.0, 0.5)
PLACES = range(3)


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights ``a`` and the output ``y`` of one query, and for an output's
    gradient of 1 the gradients of the scores, their sum, of the query, of the keys."""
    q = np.array([[[given["q1"], given["q2"]]]])
    v = np.array([[[given[f"v{j}"]] for j in PLACES]])
    # A bias is added to the scores, and so has their gradient.
    y, saved = attention.forward(q, KEYS, v, np.zeros((1, 1, 3)))
    gradients = attention.backward(np.ones((1, 1, 1)), saved)
    dq, dk, _, ds = (np.asarray(each) for each in gradients[:4])
    return {
        "a": np.ravel(np.asarray(saved.a)).tolist(),
        "y": float(y[0, 0, 0]),
        "s": ds.ravel().tolist(),
        "sum": float(np.sum(ds)),
        "dq": dq.ravel().tolist(),
        "dk1": dk[0, :, 0].tolist(),
        "dk2": dk[0, :, 1].tolist(),
    }


MODEL = """
({q1, q2, v0, v1, v2}) => {
  const k = [[1.6, 0.8], [-1.2, 1.4], [0.4, -1.8]], v = [v0, v1, v2], r = Math.sqrt(2);
  const dot = (x, y) => x.reduce((sum, each, i) => sum + each * y[i], 0);
  const e = k.map((key) => Math.exp(dot([q1, q2], key) / r)), ones = [1, 1, 1];
  const a = e.map((each) => each / dot(e, ones)), y = dot(a, v);
  const s = a.map((each, j) => each * (v[j] - y));
  const dq = [0, 1].map((c) => dot(s, k.map((key) => key[c])) / r);
  const [dk1, dk2] = [q1, q2].map((q) => s.map((each) => (each * q) / r));
  return {a, y, s, sum: dot(s, ones), dq, dk1, dk2};
}
"""


def _drawing() -> str:
    parts = [
        words(72, 13, "keys, and query q: drag"),
        words(246, 13, "weights A"),
        faint(0, 92, 144, 92),
        faint(72, 22, 72, 162),
        faint(176, 134, 316, 134),
        words(72, 186, "values V: drag"),
        words(246, 186, "scores’ gradients S̄"),
        faint(12, 248, 132, 248),
        faint(176, 248, 316, 248),
        words(72, 322, "output [y:2]", bold=True),
        words(246, 322, "sum [sum:2]", bold=True),
        line(72, 92, "[q1*32+72]", "[q2*-32+92]", "value", width=2),
    ]
    for j in PLACES:
        x, y, column = 72 + 32 * KEYS[0, j, 0], 92 - 32 * KEYS[0, j, 1], 200 + 46 * j
        tip = f"[dk1.{j}*60+{x:.2f}]", f"[dk2.{j}*-60+{y:.2f}]"
        parts += [
            line(f"{x:.2f}", f"{y:.2f}", *tip, "gradient", dashed=True, arrow=True),
            point(f"{x:.2f}", f"{y:.2f}", "plain"),
            words(f"{x - 9:.2f}", f"{y + 4:.2f}", f"{j + 1}"),
            bar(column, 134, f"[a.{j}*-94+134]", "value", 20),
            words(column, f"[a.{j}*-94+130]", f"[a.{j}:2]"),
            words(column, 149, f"{j + 1}"),
            bar(column, 248, f"[s.{j}*-36+248]", "gradient", 20),
            words(column, 304, f"[s.{j}:2]"),
            line(26 + 46 * j, 248, 26 + 46 * j, f"[v{j}*-16+248]", "value", width=2),
        ]
    tip = "[dq.0*60+q1*32+72]", "[dq.1*-60+q2*-32+92]"
    parts += [
        line("[q1*32+72]", "[q2*-32+92]", *tip, "gradient", dashed=True, arrow=True),
        handle(
            "[q1*32+72]",
            "[q2*-32+92]",
            "query",
            "[q1:1], [q2:1]; weights [a.0:2], [a.1:2], [a.2:2]; "
            "its gradient [dq.0:2], [dq.1:2]",
            across=("q1", 32),
            up=("q2", 32),
            letter="q",
        ),
    ]
    for j in PLACES:
        says = f"[v{j}:1]; output [y:2], gradient of score {j + 1} [s.{j}:2]"
        at, up = (26 + 46 * j, f"[v{j}*-16+248]"), (f"v{j}", 16)
        parts.append(handle(*at, f"value {j + 1}", says, up=up, letter=f"{j + 1}"))
    return "".join(parts)


FIGURE = Movable(
    name="attention",
    numbers=(
        Number("q1", "q₁", 0.9, -2.1, 2.1, 0.1),
        Number("q2", "q₂", 0.6, -2.1, 2.1, 0.1),
        *(
            Number(f"v{j}", f"v{'₁₂₃'[j]}", value, -3, 3, 0.1)
            for j, value in enumerate(VALUES)
        ),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 328),
    alt="A query at ([q1:1], [q2:1]) among three keys. Its weights [a.0:2], [a.1:2], "
    "[a.2:2]; the output [y:2]; the gradients of the scores [s.0:2], [s.1:2], [s.2:2], "
    "whose sum is [sum:2]; the query’s gradient ([dq.0:2], [dq.1:2]).",
    columns=3,
)
