"""Half precision: which gradients are stored, rounded, lost, or too large."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.figures.movable.marks import faint, handle, line, words
from backpass.figures.movable.movable import Movable, Number
from backpass.training.formats import BF16, E4M3, E5M2, FP16, rounded

FORMATS = (BF16, FP16, E5M2, E4M3)
LOW, HIGH, UNIT = -36, 20, 4.4  # the powers of 2 that are drawn, and their pixels


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the power of 2 of the gradient times the loss scale, and for each format
    what becomes of the gradient once it is stored and divided by the scale again."""
    gradient, scale = 2.0 ** given["g"], 2.0 ** given["s"]
    becomes = []
    for format in FORMATS:
        stored = float(rounded(np.array(gradient * scale), format)) / scale
        if not math.isfinite(stored):
            becomes.append("too large")
        elif stored == 0:
            becomes.append("lost: 0")
        else:
            becomes.append(f"off by {abs(stored - gradient) / gradient * 100:.2f} %")
    return {"at": given["g"] + given["s"], "becomes": becomes}


MODEL = """
({g, s}) => {
  const gradient = 2 ** g, scale = 2 ** s;
  const formats = [[8, 7, 1], [5, 10, 1], [5, 2, 1], [4, 3, 0]];
  const becomes = formats.map(([e, m, infinite]) => {
    const bias = 2 ** (e - 1) - 1, x = gradient * scale;
    const gap = 2 ** (Math.max(Math.floor(Math.log2(x)), 1 - bias) - m);
    const largest = (infinite ? 2 - 2 ** -m : 4 - 4 * 2 ** -m) * 2 ** bias;
    let steps = Math.round(x / gap);
    if (steps - x / gap === 0.5 && steps % 2) steps -= 1; // to even
    if (steps * gap > largest) return "too large";
    const off = Math.abs((steps * gap) / scale - gradient) / gradient;
    return steps ? `off by ${(100 * off).toFixed(2)} %` : "lost: 0";
  });
  return {at: g + s, becomes};
}
"""


def _across(power: float) -> float:
    return round(58 + (min(max(power, LOW), HIGH) - LOW) * UNIT, 2)


def _drawing() -> str:
    at = f"[at*{UNIT}+{58 - LOW * UNIT:g}]"
    parts = [
        words(
            4, 14, "gradient times loss scale: 2 to the power [at:1]", anchor="start"
        ),
        line(at, 26, at, 176, "gradient", dashed=True, width=2),
    ]
    for row, format in enumerate(FORMATS):
        y = 48 + 36 * row
        smallest, normal = math.log2(format.smallest), format.lowest
        largest = _across(math.log2(format.largest))
        name = format.name.removeprefix("FP8 ")
        parts += [
            words(4, y + 4, name, anchor="start", bold=True),
            line(
                _across(smallest), y, _across(normal), y, "value", width=3, dashed=True
            ),
            line(_across(normal), y, largest, y, "value", width=8),
            words(4, y + 18, f"[becomes.{row}]", anchor="start", size=11),
        ]
    parts += [
        words(4, 212, "gradient", anchor="start"),
        words(4, 242, "loss scale", anchor="start"),
        faint(88, 208, 313, 208),
        faint(88, 238, 313, 238),
    ]
    tail = "; " + ", ".join(
        f"{format.name} [becomes.{row}]" for row, format in enumerate(FORMATS)
    )
    for name, label, pixels, start, y, kind in (
        ("g", "gradient, power of 2", 7, 340, 208, "gradient"),
        ("s", "loss scale, power of 2", 9.4, 88, 238, "value"),
    ):
        place, across = f"[{name}*{pixels}+{start}]", (name, pixels)
        spoken = f"[{name}:1]{tail}"
        parts.append(handle(place, y, label, spoken, across=across, kind=kind))
    return "".join(parts)


FIGURE = Movable(
    name="precision",
    numbers=(
        Number("g", "log₂ gradient", -26.3, -36.0, -4.0, 0.1),
        Number("s", "log₂ scale", 0.0, 0.0, 24.0, 1.0),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 250),
    alt="A gradient of 2 to the power [g:1], times a loss scale of 2 to the power "
    "[s:0]: in BF16 [becomes.0], in FP16 [becomes.1], in FP8 E5M2 [becomes.2], "
    "in FP8 E4M3 [becomes.3].",
    columns=3,
)
