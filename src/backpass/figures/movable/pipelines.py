"""A pipeline's schedule: how ranks and micro-batches change the idle slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backpass.figures.movable.marks import COLOURS, faint, handle, words
from backpass.figures.movable.movable import Movable, Number
from backpass.parallel.schedules import one_f_one_b

RANKS, BATCHES = 6, 12


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slots of 1F1B and the share in which a rank is idle, in per cent; the
    most micro-batches that the first rank holds; and for each rank its name and its
    forwards and backwards, each a path of SVG with slots as its unit."""
    p, m = int(given["p"]), int(given["m"])
    schedule = one_f_one_b(p, m)
    paths = {"F": ["M0 0"] * RANKS, "B": ["M0 0"] * RANKS}
    for rank, timed in enumerate(schedule.ranks):
        for start, stop, action in timed:
            paths[action.kind][rank] += f"M{start} 0h{stop - start}v1h{start - stop}z"
    return {
        "slots": schedule.slots,
        "width": 262 / schedule.slots,
        "bubble": float(100 * schedule.bubble()),
        "held": schedule.in_flight(0),
        "f": paths["F"],
        "b": paths["B"],
        "rank": [f"rank {k}" if k < p else " " for k in range(RANKS)],
    }


MODEL = """
({p, m}) => {
  const ranks = [0, 1, 2, 3, 4, 5], paths = () => ranks.map(() => "M0 0");
  const [f, b, stops, free] = [paths(), paths(), {}, ranks.map(() => 0)];
  const orders = ranks.slice(0, p).map((k) => {
    const ahead = Math.min(p - 1 - k, m), order = [];
    for (let j = 0; j < m + ahead; j++) {
      if (j < m) order.push(["F", j]);
      if (j >= ahead) order.push(["B", j - ahead]);
    }
    return order;
  });
  while (orders.some((order) => order.length)) {
    orders.forEach((order, k) => {
      while (order.length) {
        const [kind, j] = order[0], last = kind === "B" && k === p - 1;
        const first = kind === "F" && k === 0, length = kind === "F" ? 1 : 2;
        const next = k + (kind === "F" ? -1 : 1);
        const waits = last ? `F${j},${k}` : `${kind}${j},${next}`;
        const ready = first ? 0 : stops[waits];
        if (ready === undefined) return;
        const start = Math.max(free[k], ready);
        stops[`${kind}${j},${k}`] = free[k] = start + length;
        (kind === "F" ? f : b)[k] += `M${start} 0h${length}v1h${-length}z`;
        order.shift();
      }
    });
  }
  const slots = Math.max(...free), rank = ranks.map((k) => (k < p ? `rank ${k}` : " "));
  const bubble = 100 * (1 - (3 * m) / slots), held = Math.min(p, m);
  return {slots, width: 262 / slots, bubble, held, f, b, rank};
}
"""


def _drawing() -> str:
    parts = []
    for k in range(RANKS):
        y = 8 + 20 * k
        parts.append(words(48, y + 12, f"[rank.{k}]", anchor="end", size=11))
        for name, kind, opacity in (("f", "value", 0.75), ("b", "gradient", 0.4)):
            parts.append(
                f'<g transform="translate(54 {y}) scale([width] 16)">'
                f'<path d="[{name}.{k}]" fill="{COLOURS[kind]}" '
                f'stroke="{COLOURS[kind]}" fill-opacity="{opacity}" class="fill-{kind} line-{kind}" '
                'vector-effect="non-scaling-stroke"/></g>'
            )
    parts += [
        words(54, 146, "1 slot: forward; 2 slots: backward", anchor="start", size=11),
        words(4, 176, "ranks: [p:0]", anchor="start"),
        words(4, 206, "micro-batches: [m:0]", anchor="start"),
        faint(134, 172, 310, 172),
        faint(134, 202, 310, 202),
        words(160, 236, "[slots:0] slots, idle [bubble:1] %", bold=True, size=14),
        words(160, 254, "rank 0 holds at most [held:0] micro-batches"),
    ]
    says = "; [slots:0] slots, idle [bubble:1] per cent"
    for name, label, low, pixels, y in (
        ("p", "ranks", 1, 35, 172),
        ("m", "micro-batches", 1, 16, 202),
    ):
        at, across = f"[{name}*{pixels}+{134 - low * pixels}]", (name, pixels)
        parts.append(
            handle(at, y, label, f"[{name}:0]{says}", across=across, kind="plain")
        )
    return "".join(parts)


FIGURE = Movable(
    name="pipelines",
    numbers=(
        Number("p", "ranks", 4, 1, RANKS, 1),
        Number("m", "micro\u2011batches", 4, 1, BATCHES, 1),
    ),
    values=values,
    model=MODEL,
    drawing=_drawing(),
    size=(320, 260),
    alt="The slots of [p:0] ranks in one forward, one backward, for [m:0] "
    "micro-batches: [slots:0] slots, of which [bubble:1] per cent are idle.",
    columns=3,
)
