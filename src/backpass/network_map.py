"""The map of a transformer: every station an operation, linked to its page, the present one lit."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 360, 46, 138, 30
LEFT, RIGHT = 28, 194  # x of the two columns: attention and the way to it, feed-forward and the way out


@dataclass(frozen=True)
class Station:
    """One box of the map: its label, the stems that compute it in one model or another, and its place.

    The first stem's page is the one that tells about this place in the network: the box leads there.
    """

    label: str
    stems: tuple[str, ...]
    column: int
    row: int

    @property
    def page(self) -> str | None:
        """The page of the first of its stems that has one."""
        return next((PAGES[stem] for stem in self.stems if stem in PAGES), None)


def _column(column: int, *stations: tuple[str, str]) -> list[Station]:
    return [Station(label, tuple(stems.split()), column, row) for row, (label, stems) in enumerate(stations)]


STATIONS = (
    *_column(
        LEFT,
        ("tokens to vectors", "embedding position_embedding"),
        ("normalise", "layer_norm rms_norm"),
        ("project to q, k, v", "linear multi_head_attention"),
        ("rotate q, k", "rope"),
        ("scores", "attention matmul flash_attention multilinear_attention linear_attention"),
        ("scale by 1/√d", "scale attention flash_attention"),
        (
            "weights",
            "softmax attention flash_attention multilinear_attention linear_attention simplex_norm sphere_norm",
        ),
        ("weighted values", "flash_attention attention matmul multilinear_attention linear_attention"),
        ("output projection", "multi_head_attention linear"),
        ("add to stream", "dropout residual fork"),
    ),
    *_column(
        RIGHT,
        ("normalise", "layer_norm rms_norm"),
        ("up projection", "feed_forward linear"),
        ("activation", "relu gelu silu swiglu feed_forward"),
        ("down projection", "feed_forward linear"),
        ("add to stream", "dropout residual fork"),
        ("normalise", "rms_norm layer_norm"),
        ("logits", "linear_cross_entropy linear"),
        ("loss", "cross_entropy soft_cross_entropy log_softmax nll linear_cross_entropy"),
    ),
)

# Stem -> page, for the pages that exist.
PAGES = {
    "embedding": "chapters/operations/embeddings.html",
    "position_embedding": "chapters/operations/embeddings.html",
    "linear": "chapters/operations/linear.html",
    "matmul": "chapters/operations/linear.html",
    "softmax": "chapters/operations/softmax.html",
    "log_softmax": "chapters/operations/cross_entropy.html",
    "nll": "chapters/operations/cross_entropy.html",
    "cross_entropy": "chapters/operations/cross_entropy.html",
    "soft_cross_entropy": "chapters/operations/cross_entropy.html",
    "linear_cross_entropy": "chapters/operations/output_head.html",
    "layer_norm": "chapters/operations/layer_norm.html",
    "rms_norm": "chapters/operations/rms_norm.html",
    "relu": "chapters/operations/activations.html",
    "gelu": "chapters/operations/activations.html",
    "silu": "chapters/operations/activations.html",
    "swiglu": "chapters/operations/activations.html",
    "feed_forward": "chapters/operations/feed_forward.html",
    "rope": "chapters/operations/rope.html",
    "attention": "chapters/attention/scaled_dot_product.html",
    "flash_attention": "chapters/attention/flash.html",
    "multi_head_attention": "chapters/attention/heads.html",
    "multilinear_attention": "chapters/attention/multilinear.html",
    "linear_attention": "chapters/attention/linear_time.html",
    "simplex_norm": "chapters/attention/multilinear.html",
    "sphere_norm": "chapters/attention/multilinear.html",
    "dropout": "chapters/operations/residual_stream.html",
    "scale": "chapters/foundations/chain_rule.html",
    "fork": "chapters/foundations/chain_rule.html",
    "residual": "chapters/foundations/chain_rule.html",
}

_STYLE = """
.bp-map { width: 100%; max-width: 25rem; height: auto; display: block; margin: 0 auto; font: 12px system-ui, sans-serif; }
.bp-map text { fill: currentColor; }
.bp-map rect { fill: none; stroke: currentColor; stroke-width: 1; }
.bp-map .layer { stroke-dasharray: 2 4; opacity: .55; }
.bp-map .later { opacity: .75; }
.bp-map .later rect { stroke-dasharray: 4 3; }
.bp-map a text { text-decoration: underline; text-underline-offset: 3px; }
.bp-map .here rect { stroke-width: 3; }
.bp-map .here text { font-weight: 700; }
.bp-map path { fill: none; stroke: currentColor; stroke-width: 1.2; }
.bp-map .back { stroke-dasharray: 3 3; }
"""


class NetworkMap:
    """An inline SVG that a notebook and the site show; its colours are those of the text around it."""

    def __init__(self, here: str | None = None, root: str = ".") -> None:
        if here is not None and here not in PAGES:
            raise ValueError(f"here: expected one of {', '.join(PAGES)}; got {here!r}")
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
        return self.here in station.stems

    def _box(self, station: Station) -> str:
        x, y = station.column, 14 + station.row * ROW
        lit = self._lit(station)
        box = f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" />'
        label = f'<text x="{x + BOX_WIDTH / 2}" y="{y + 19}" text-anchor="middle">{"● " if lit else ""}{escape(station.label)}</text>'
        if lit:
            return f'<g class="here">{box}{label}</g>'
        if station.page is None:
            return f'<g class="later">{box}{label}</g>'
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
