"""Draw boxes, grids and arrows: shapes of arrays, operations, and the way of a value.

A diagram has no axes. Its unit is the same in both directions, its origin is the lower
left corner, and it has the width that ``diagram`` was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backpass.figures.plots import PALETTE, new

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]


def diagram(
    width: float, height: float, size: tuple[float, float] = (4.8, 3.6)
) -> tuple[Figure, Any]:
    """Create an empty diagram of ``width`` times ``height`` units, as large as fits
    ``size`` in inches; return its figure and axes."""
    scale = min(size[0] / width, size[1] / height)
    figure, axes = new(size=(width * scale, height * scale))
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return figure, axes


def box(
    axes: Any,
    corner: Point,
    width: float,
    height: float,
    text: str = "",
    *,
    colour: int | None = None,
    fontsize: float = 10,
    **style: Any,
) -> None:
    """Draw a box from its lower left ``corner``, with ``text`` in its middle.

    ``colour`` is a number in ``PALETTE`` that fills the box palely; without one it is
    an outline. ``style`` goes to Matplotlib's ``Rectangle``: ``hatch``, ``linestyle``.
    """
    from matplotlib.patches import Rectangle

    edge = "#000000" if colour is None else PALETTE[colour]
    if colour is not None:
        _fill(axes, corner, width, height, edge, 0.22)
    drawn: dict[str, Any] = {"edgecolor": edge, "linewidth": 1.2} | style
    axes.add_patch(Rectangle(corner, width, height, facecolor="none", **drawn))
    middle = (corner[0] + width / 2, corner[1] + height / 2)
    axes.text(*middle, text, ha="center", va="center", fontsize=fontsize)


def _fill(
    axes: Any, corner: Point, width: float, height: float, colour: str, alpha: float
) -> None:
    from matplotlib.patches import Rectangle

    style: dict[str, Any] = {"facecolor": colour, "alpha": alpha, "linewidth": 0}
    axes.add_patch(Rectangle(corner, width, height, **style))


def grid(
    axes: Any,
    corner: Point,
    rows: int,
    columns: int,
    cell: float = 1.0,
    *,
    filled: Sequence[tuple[int, int]] = (),
    colour: int = 0,
    **style: Any,
) -> None:
    """Draw an array of ``rows`` times ``columns`` square cells from its lower left
    ``corner``. ``filled`` lists cells as ``(row, column)``, row 0 at the top."""
    from matplotlib.patches import Rectangle

    drawn: dict[str, Any] = {"edgecolor": PALETTE[colour], "linewidth": 0.9} | style
    for row in range(rows):
        for column in range(columns):
            at = (corner[0] + column * cell, corner[1] + (rows - 1 - row) * cell)
            if (row, column) in filled:
                _fill(axes, at, cell, cell, PALETTE[colour], 0.35)
            axes.add_patch(Rectangle(at, cell, cell, facecolor="none", **drawn))


def arrow(
    axes: Any,
    start: Point,
    end: Point,
    text: str = "",
    *,
    backward: bool = False,
    fontsize: float = 9,
    **style: Any,
) -> None:
    """Draw an arrow, dashed and vermilion if it is a gradient's way ``backward``, with
    ``text`` at its middle. ``style`` goes to Matplotlib's ``arrowprops``."""
    colour = PALETTE[1] if backward else "#000000"
    props = {
        "arrowstyle": "-|>",
        "color": colour,
        "linestyle": "--" if backward else "-",
        "linewidth": 1.3,
        "shrinkA": 2,
        "shrinkB": 2,
    } | style
    axes.annotate("", end, start, arrowprops=props)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    if text:
        axes.annotate(
            text,
            middle,
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=fontsize,
            color=colour,
        )
