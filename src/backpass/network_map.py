"""The map of a transformer: every station an operation, linked to its page, the present one lit."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise

from backpass import ops

WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 360, 46, 138, 30
LEFT, RIGHT = 28, 194  # x of the two columns: attention and the way to it, feed-forward and the way out


@dataclass(frozen=True)
class Station:
    """One box of the map: its label, the stem whose page it leads to, and its place.

    An operation lights every station whose label its module lists in ``PLACES``.
    """

    label: str
    stem: str
    column: int
    row: int

    @property
    def page(self) -> str:
        """The page that it leads to, from the site's root."""
        return page_of(self.stem)


def page_of(stem: str) -> str:
    """The page of an operation, from the site's root: ``chapters/operations/softmax.html``."""
    return f"chapters/{ops.page(stem)}.html"


def _column(column: int, *stations: tuple[str, str]) -> list[Station]:
    return [Station(label, stem, column, row) for row, (label, stem) in enumerate(stations)]


STATIONS = (
    *_column(
        LEFT,
        ("tokens to vectors", "embedding"),
        ("normalise", "layer_norm"),
        ("project to q, k, v", "linear"),
        ("rotate q, k", "rope"),
        ("scores", "attention"),
        ("scale by 1/√d", "scale"),
        ("weights", "softmax"),
        ("weighted values", "flash_attention"),
        ("output projection", "multi_head_attention"),
        ("add to stream", "dropout"),
    ),
    *_column(
        RIGHT,
        ("normalise", "layer_norm"),
        ("up projection", "feed_forward"),
        ("activation", "relu"),
        ("down projection", "feed_forward"),
        ("add to stream", "dropout"),
        ("normalise", "rms_norm"),
        ("logits", "linear_cross_entropy"),
        ("loss", "cross_entropy"),
    ),
)

_STYLE = """
.bp-map { width: 100%; max-width: 25rem; height: auto; display: block; margin: 0 auto; font: 12px system-ui, sans-serif; }
.bp-map text { fill: currentColor; }
.bp-map rect { fill: none; stroke: currentColor; stroke-width: 1; }
.bp-map .layer { stroke-dasharray: 2 4; opacity: .55; }
.bp-map a text { text-decoration: underline; text-underline-offset: 3px; }
.bp-map .here rect { stroke-width: 3; }
.bp-map .here text { font-weight: 700; }
.bp-map path { fill: none; stroke: currentColor; stroke-width: 1.2; }
.bp-map .back { stroke-dasharray: 3 3; }
"""


class NetworkMap:
    """An inline SVG that a notebook and the site show; its colours are those of the text around it."""

    def __init__(self, here: str | None = None, root: str = ".") -> None:
        if here is not None and here not in ops.STEMS:
            raise ValueError(f"here: expected one of {', '.join(ops.STEMS)}; got {here!r}")
        self.here, self.root = here, root

    def _repr_html_(self) -> str:
        return f'<div class="bp-map-frame"><style>{_STYLE}</style>{self.svg()}</div>'

    def __repr__(self) -> str:
        return " → ".join(("[{}]" if self._lit(s) else "{}").format(s.label) for s in STATIONS)

    def svg(self) -> str:
        """The drawing. Forward arrows are solid, the gradients' way back is dashed."""
        rows = 1 + max(station.row for station in STATIONS)
        height = rows * ROW + 44
        parts = [
            f'<svg class="bp-map" viewBox="0 0 {WIDTH} {height}" role="group" aria-label="{escape(self._alt())}">',
            '<defs><marker id="bp-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            'orient="auto-start-reverse"><path d="M1 1 L7 4 L1 7" /></marker></defs>',
            f'<rect class="layer" x="{LEFT - 12}" y="{ROW + 6}" width="{BOX_WIDTH + 24}" height="{9 * ROW}" rx="8" />',
            f'<rect class="layer" x="{RIGHT - 12}" y="6" width="{BOX_WIDTH + 24}" height="{5 * ROW - 4}" rx="8" />',
        ]
        parts += [self._arrows(a, b) for a, b in pairwise(STATIONS)]
        parts += [self._box(station) for station in STATIONS]
        y = height - 22
        parts += [
            f'<path d="M{LEFT - 14} {y} h26" marker-end="url(#bp-tip)" /><text x="{LEFT + 18}" y="{y + 4}">forward</text>',
            f'<path class="back" d="M{LEFT + 76} {y} h26" marker-start="url(#bp-tip)" />'
            f'<text x="{LEFT + 108}" y="{y + 4}">backward</text>',
            f'<text x="{RIGHT + 20}" y="{y + 4}">dotted frames: a layer</text>',
            "</svg>",
        ]
        return "".join(parts)

    def _alt(self) -> str:
        labels = ", ".join(station.label for station in STATIONS)
        lit = " and ".join(dict.fromkeys(station.label for station in STATIONS if self._lit(station)))
        return f"Map of a transformer: {labels}" + (f"; lit: {lit}" if lit else "")

    def _lit(self, station: Station) -> bool:
        return self.here is not None and station.label in getattr(ops.load(self.here), "PLACES", ())

    def _box(self, station: Station) -> str:
        x, y = station.column, 14 + station.row * ROW
        lit = self._lit(station)
        box = f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" />'
        label = f'<text x="{x + BOX_WIDTH / 2}" y="{y + 19}" text-anchor="middle">{"● " if lit else ""}{escape(station.label)}</text>'
        if lit:
            return f'<g class="here">{box}{label}</g>'
        return f'<a href="{self.root}/{station.page}">{box}{label}</a>'

    @staticmethod
    def _arrows(a: Station, b: Station) -> str:
        """Forward from a to b, and the gradient's way back beside it."""
        if a.column == b.column:
            x, top = a.column + BOX_WIDTH / 2, 14 + a.row * ROW + BOX_HEIGHT
            down = f"M{x - 10} {top + 1} v{ROW - BOX_HEIGHT - 2}"
            up = f"M{x + 10} {top + 1} v{ROW - BOX_HEIGHT - 2}"
        else:
            x1, y1, y2 = (
                a.column + BOX_WIDTH,
                14 + a.row * ROW + BOX_HEIGHT / 2,
                14 + b.row * ROW + BOX_HEIGHT / 2,
            )
            gap = b.column - x1
            down = f"M{x1 + 1} {y1 - 4} h{gap / 2 - 4} V{y2 - 4} h{gap / 2 + 2}"
            up = f"M{x1 + 1} {y1 + 4} h{gap / 2 + 4} V{y2 + 4} h{gap / 2 - 6}"
        return f'<path d="{down}" marker-end="url(#bp-tip)" /><path class="back" d="{up}" marker-start="url(#bp-tip)" />'
