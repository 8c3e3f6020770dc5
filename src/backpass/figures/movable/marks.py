"""Lines, bars, words and handles of a figure that moves, as SVG with holes.

A coordinate is a number or a text with holes. A mark of the kind ``"value"`` is blue,
and one of the kind ``"gradient"`` vermilion and, if it is a line, dashed; the site's
style sheet has other tones for dark pages.
"""

from __future__ import annotations

import math

from backpass.figures.plots import PALETTE

COLOURS = {"plain": "currentColor", "value": PALETTE[0], "gradient": PALETTE[1]}
ARROWHEADS = (
    "<defs>"
    + "".join(
        f'<marker id="NAME-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.6 8 4 0 7.4z" fill="{colour}" class="fill-{kind}"/></marker>'
        for kind, colour in COLOURS.items()
    )
    + "</defs>"
)
Place = float | str


def line(
    x1: Place,
    y1: Place,
    x2: Place,
    y2: Place,
    kind: str = "plain",
    *,
    width: float = 1.4,
    dashed: bool = False,
    arrow: bool = False,
    more: str = "",
) -> str:
    """Return a line, or an arrow whose head is at its second end."""
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    head = f' marker-end="url(#NAME-{kind})"' if arrow else ""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{COLOURS[kind]}" '
        f'class="line-{kind}" stroke-width="{width:g}"{dash}{head}{more}/>'
    )


def faint(x1: Place, y1: Place, x2: Place, y2: Place) -> str:
    """Return a thin line in the background, such as an axis."""
    return line(x1, y1, x2, y2, width=1, more=' stroke-opacity="0.35"')


def bar(x: Place, base: Place, tip: Place, kind: str, width: float = 16) -> str:
    """Return an upright bar from ``base`` to ``tip``, which may lie on either side."""
    return line(x, base, x, tip, kind, width=width, more=' stroke-opacity="0.75"')


def area(d: str, kind: str, opacity: float = 0.3) -> str:
    """Return a filled shape with an outline; ``d`` is the path of SVG."""
    return (
        f'<path d="{d}" fill="{COLOURS[kind]}" fill-opacity="{opacity:g}" '
        f'stroke="{COLOURS[kind]}" stroke-width="1.2" class="line-{kind} fill-{kind}"/>'
    )


def curve(
    d: str, kind: str = "plain", *, dashed: bool = False, faint: bool = False
) -> str:
    """Return a line without a filling; ``d`` is the path of SVG."""
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    thin = ' stroke-opacity="0.35"' if faint else ""
    return (
        f'<path d="{d}" fill="none" stroke="{COLOURS[kind]}" stroke-width="1.4" '
        f'class="line-{kind}"{dash}{thin}/>'
    )


def words(
    x: Place,
    y: Place,
    text: str,
    *,
    anchor: str = "middle",
    kind: str = "plain",
    bold: bool = False,
    size: float = 12,
) -> str:
    """Return a line of text at its base line."""
    weight = ' font-weight="600"' if bold else ""
    colour = f' fill="{COLOURS[kind]}" class="fill-{kind}"' if kind != "plain" else ""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size:g}"'
        f"{weight}{colour}>{text}</text>"
    )


def box(x: float, y: float, width: float, height: float, text: str) -> str:
    """Return an outline around its middle, with text in it."""
    return (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" '
        f'height="{height:g}" rx="3" fill="none" stroke="currentColor"/>'
        f"{words(x, y + 4, text)}"
    )


def both_ways(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return the arrow of a value and, beside it, that of its gradient back."""
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (round(2.5 * each / length, 2) for each in (y2 - y1, x1 - x2))
    there = line(x1 + dx, y1 + dy, x2 + dx, y2 + dy, "value", arrow=True)
    back = line(x2 - dx, y2 - dy, x1 - dx, y1 - dy, "gradient", dashed=True, arrow=True)
    return there + back


def point(x: Place, y: Place, kind: str, radius: float = 3.5) -> str:
    """Return a dot."""
    return (
        f'<circle cx="{x}" cy="{y}" r="{radius:g}" fill="{COLOURS[kind]}" '
        f'class="fill-{kind}"/>'
    )


def handle(
    x: Place,
    y: Place,
    label: str,
    says: str,
    *,
    across: tuple[str, float] | None = None,
    up: tuple[str, float] | None = None,
    kind: str = "value",
    letter: str = "",
) -> str:
    """Return a dot that the reader drags, or moves with the arrow keys.

    ``across`` and ``up`` name the number that a move in this direction changes, with
    the pixels of a change of 1. ``label`` names the handle for screen readers, and
    ``says``, which has holes, is read after each move. ``letter`` stands on the dot.
    """
    ways = "".join(
        f' data-{way}="{pair[0]} {pair[1]:g}"'
        for way, pair in (("across", across), ("up", up))
        if pair
    )
    tips = [(-1, 0), (1, 0)] * bool(across) + [(0, -1), (0, 1)] * bool(up)
    grip = "".join(
        f"M{10.5 * a - 3.5 * b:g} {10.5 * b + 3.5 * a:g}L{14 * a:g} {14 * b:g}"
        f"L{10.5 * a + 3.5 * b:g} {10.5 * b - 3.5 * a:g}"
        for a, b in tips
    )
    return (
        f'<g class="handle" transform="translate({x} {y})" data-label="{label}"{ways} '
        f'data-set-aria-valuetext="{says}">'
        '<circle r="18" fill-opacity="0"/>'
        f'<path class="grip line-{kind}" display="none" d="{grip}" fill="none" '
        f'stroke="{COLOURS[kind]}" stroke-width="1.4"/>'
        f'<circle r="7.5" fill="{COLOURS[kind]}" class="fill-{kind}"/>'
        f'<text y="3.6" text-anchor="middle" font-size="10.5" font-weight="600" '
        f'fill="#ffffff">{letter}</text></g>'
    )
