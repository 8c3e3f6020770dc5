"""Draw the map of a transformer, or the part of it around one operation.

Every station of the map is an operation and links to its page. The frames of a layer
and the links below the map lead to the pages about whole networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

from backpass import ops

WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 394, 54, 144, 38
# x of the two columns: from the tokens to attention, and from feed-forward to the loss.
LEFT, RIGHT = 34, 228
FRAME = 18  # from a box to the frame of its layer; skip connections run in between
TOP = 14


@dataclass(frozen=True)
class Station:
    """One box of the map.

    It has a label, the name that people look for, the stem whose page it links to, and
    its place. An operation lights every station whose label its module lists in
    ``PLACES``.
    """

    label: str
    name: str
    stem: str
    column: int
    row: int

    @property
    def page(self) -> str:
        """The page that the station links to, relative to the site's root."""
        return page_of(self.stem)

    @property
    def y(self) -> int:
        """The y of the box's upper edge."""
        return TOP + self.row * ROW


def page_of(stem: str) -> str:
    """Return the page of an operation, relative to the site's root, such as
    ``chapters/operations/softmax.html``."""
    return f"chapters/{ops.page(stem)}.html"


def _column(column: int, *stations: tuple[str, str, str]) -> list[Station]:
    return [Station(*station, column, row) for row, station in enumerate(stations)]


STATIONS = (
    *_column(
        LEFT,
        ("tokens to vectors", "embedding", "embedding"),
        ("normalise", "LayerNorm, RMSNorm", "layer_norm"),
        ("project to q, k, v", "linear", "linear"),
        ("rotate q, k", "RoPE", "rope"),
        ("scores", "dot products", "attention"),
        ("scale by 1/√d", "scale", "scale"),
        ("weights", "softmax", "softmax"),
        ("weighted values", "FlashAttention", "flash_attention"),
        ("output projection", "heads, linear", "multi_head_attention"),
        ("add to stream", "residual, dropout", "dropout"),
    ),
    *_column(
        RIGHT,
        ("normalise", "LayerNorm, RMSNorm", "layer_norm"),
        ("up projection", "feed-forward, linear", "feed_forward"),
        ("activation", "ReLU, GELU, SwiGLU", "relu"),
        ("down projection", "feed-forward, linear", "feed_forward"),
        ("add to stream", "residual, dropout", "dropout"),
        ("normalise", "RMSNorm, LayerNorm", "rms_norm"),
        ("logits", "output head", "linear_cross_entropy"),
        ("loss", "cross-entropy", "cross_entropy"),
    ),
)
ATTENTION, FEED_FORWARD = STATIONS[1:10], STATIONS[10:15]  # the halves of a layer
# The pages about whole networks, by title. The frames of a layer link to the first.
NETWORKS = {
    "The whole network": "chapters/networks/whole_network.html",
    "GPT-2, backwards": "chapters/networks/gpt2.html",
    "Llama, backwards": "chapters/networks/llama.html",
    "An encoder and a decoder, backwards": "chapters/networks/encoder_decoder.html",
    "Training without autograd": "chapters/networks/training.html",
}

_STYLE = """
.bp-map { width: 100%; max-width: 27rem; height: auto; display: block; margin: 0 auto; font: 12px system-ui, sans-serif; }
.bp-map text { fill: currentColor; }
.bp-map .name { font-size: 10px; }
.bp-map rect { fill: none; stroke: currentColor; stroke-width: 1; }
.bp-map .layer { stroke-dasharray: 2 4; opacity: .55; }
.bp-map a .label, .bp-map a .repeated { text-decoration: underline; text-underline-offset: 3px; }
.bp-map .here rect { stroke-width: 3; }
.bp-map .here text { font-weight: 700; }
.bp-map path { fill: none; stroke: currentColor; stroke-width: 1.2; }
.bp-map .back { stroke-dasharray: 3 3; }
"""
_STRIP = "display: flex; flex-wrap: wrap; align-items: baseline; gap: .2em .6em; margin: 0 0 .4em"


class NetworkMap:
    """The map as an inline SVG in the colours of the surrounding text.

    With ``here``, the stem of an operation, it is a strip instead: each place of that
    operation, with the stations before and after it. ``root`` is the path to the site's
    root. Raises ValueError for an unknown stem.
    """

    def __init__(self, here: str | None = None, root: str = ".") -> None:
        if here is not None and here not in ops.STEMS:
            raise ValueError(
                f"here: expected one of {', '.join(ops.STEMS)}; got {here!r}"
            )
        self.here, self.root = here, root

    def _repr_html_(self) -> str:
        if self.here is not None:
            return self.strip()
        return (
            f'<div class="bp-map-frame"><style>{_STYLE}</style>{self.svg()}'
            f"{self._networks()}</div>"
        )

    def __repr__(self) -> str:
        return " → ".join(
            ("[{}]" if self._lit(s) else "{}").format(s.label) for s in STATIONS
        )

    def strip(self) -> str:
        """Return the operation's places and the stations beside them as HTML."""
        places = dict.fromkeys(self._places())
        lines = "".join(f'<p style="{_STRIP}">{line}</p>' for line in places)
        return (
            f'<nav class="bp-strip" aria-label="Where it stands in a transformer">{lines}'
            f'<p style="margin: 0"><a href="{self.root}/intro.html#the-map">The whole map</a></p></nav>'
        )

    def _places(self) -> Iterator[str]:
        runs = [(lit, list(stations)) for lit, stations in groupby(STATIONS, self._lit)]
        for at, (lit, stations) in enumerate(runs):
            if not lit:
                continue
            here = " → ".join(station.label for station in stations)
            here += f" ({stations[0].name})" if len(stations) == 1 else ""
            before = f"{self._link(runs[at - 1][1][-1])} →" if at else ""
            after = f"→ {self._link(runs[at + 1][1][0])}" if at + 1 < len(runs) else ""
            parts = [before, f"<strong>● {escape(here)}</strong>", after]
            yield " ".join(f"<span>{part}</span>" for part in parts if part)

    def _networks(self) -> str:
        links = "".join(
            f'<span><a href="{self.root}/{page}">{escape(title)}</a></span>'
            for title, page in NETWORKS.items()
        )
        return (
            '<nav class="bp-networks" aria-label="Whole networks">'
            f'<p style="{_STRIP}; justify-content: center; padding-top: .6em">'
            f"<span>Whole networks:</span>{links}</p></nav>"
        )

    def _link(self, station: Station) -> str:
        return f'<a href="{self.root}/{station.page}">{escape(station.label)}</a>'

    def svg(self) -> str:
        """Return the drawing, with solid arrows forward and dashed ones backward."""
        height = max(station.y for station in STATIONS) + ROW + 44
        parts = [
            f'<svg class="bp-map" viewBox="0 0 {WIDTH} {height}" role="group" aria-label="{escape(self._alt())}">',
            '<defs><marker id="bp-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            'orient="auto-start-reverse"><path d="M1 1 L7 4 L1 7" /></marker></defs>',
        ]
        parts += [self._frame(*half) for half in (ATTENTION, FEED_FORWARD)]
        parts += [self._skip(*half) for half in (ATTENTION, FEED_FORWARD)]
        parts += [self._arrows(a, b) for a, b in pairwise(STATIONS)]
        parts += [self._box(station) for station in STATIONS]
        y = height - 30
        parts += [
            f'<path d="M{LEFT - 14} {y} h26" marker-end="url(#bp-tip)" /><text x="{LEFT + 18}" y="{y + 4}">forward</text>',
            f'<path class="back" d="M{LEFT + 76} {y} h26" marker-start="url(#bp-tip)" />'
            f'<text x="{LEFT + 108}" y="{y + 4}">backward</text>',
            f'<text x="{LEFT - 14}" y="{y + 24}">dotted frames: the two halves of each of the L layers</text>',
            "</svg>",
        ]
        return "".join(parts)

    def _alt(self) -> str:
        labels = ", ".join(f"{station.label} ({station.name})" for station in STATIONS)
        lit = dict.fromkeys(station.label for station in STATIONS if self._lit(station))
        return (
            f"Map of a transformer: {labels}. In each half of a layer, a skip connection "
            "leads from before normalise to add to stream."
            f"{' Lit: ' if lit else ''}{' and '.join(lit)}"
        )

    def _lit(self, station: Station) -> bool:
        if self.here is None:
            return False
        return station.label in getattr(ops.load(self.here), "PLACES", ())

    def _box(self, station: Station) -> str:
        x, y, middle = station.column, station.y, station.column + BOX_WIDTH / 2
        lit = self._lit(station)
        label = f"● {station.label}" if lit else station.label
        box = (
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" />'
            f'<text class="label" x="{middle}" y="{y + 16}" text-anchor="middle">{escape(label)}</text>'
            f'<text class="name" x="{middle}" y="{y + 31}" text-anchor="middle">{escape(station.name)}</text>'
        )
        if lit:
            return f'<g class="here">{box}</g>'
        return f'<a href="{self.root}/{station.page}">{box}</a>'

    def _frame(self, first: Station, *rest: Station) -> str:
        top, bottom = first.y - 12, rest[-1].y + BOX_HEIGHT + 13
        width = BOX_WIDTH + 2 * FRAME
        x = first.column - FRAME
        title, page = next(iter(NETWORKS.items()))
        repeated = (
            f'<a href="{self.root}/{page}" aria-label="× L: {escape(title)}"><text '
            f'class="name repeated" x="{x + width - 4}" y="{bottom - 6}" '
            'text-anchor="end">× L</text></a>'
        )
        return f'<rect class="layer" x="{x}" y="{top}" width="{width}" height="{bottom - top}" rx="8" />{repeated}'

    @staticmethod
    def _skip(first: Station, *rest: Station) -> str:
        """Draw the skip connection of one half of a layer, and the gradient's way back
        beside it."""
        end = rest[-1].y + BOX_HEIGHT / 2
        x = first.column
        if first.row:  # the stream comes from above
            start = first.y - (ROW - BOX_HEIGHT) / 2
            down = f"M{x + BOX_WIDTH / 2 - 10} {start} H{x - 13} V{end - 4} H{x - 1}"
            up = f"M{x + BOX_WIDTH / 2 + 10} {start + 5} H{x - 8} V{end + 4} H{x - 1}"
        else:  # from the other column
            start = first.y + BOX_HEIGHT / 2
            down = f"M{x - 13} {start - 4} V{end - 4} H{x - 1}"
            up = f"M{x - 8} {start + 4} V{end + 4} H{x - 1}"
        return f'<path d="{down}" marker-end="url(#bp-tip)" /><path class="back" d="{up}" />'

    @staticmethod
    def _arrows(a: Station, b: Station) -> str:
        """Draw the arrow from a to b, and the gradient's arrow beside it."""
        if a.column == b.column:
            x, top = a.column + BOX_WIDTH / 2, a.y + BOX_HEIGHT
            down = f"M{x - 10} {top + 1} v{ROW - BOX_HEIGHT - 2}"
            up = f"M{x + 10} {top + 1} v{ROW - BOX_HEIGHT - 2}"
        else:
            x1 = a.column + BOX_WIDTH
            y1, y2 = a.y + BOX_HEIGHT / 2, b.y + BOX_HEIGHT / 2
            turn = (x1 + b.column) / 2  # between the two frames
            down = f"M{x1 + 1} {y1 - 4} H{turn - 3} V{y2 - 4} H{b.column - 2}"
            up = f"M{x1 + 1} {y1 + 4} H{turn + 3} V{y2 + 4} H{b.column - 2}"
        return f'<path d="{down}" marker-end="url(#bp-tip)" /><path class="back" d="{up}" marker-start="url(#bp-tip)" />'
