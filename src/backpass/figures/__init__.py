"""Draw figures for light and dark pages, readable without colour and by screen readers.

    fig, ax = figures.new()
    ax.loglog(steps, errors, label="central differences")
    ax.legend()
    figures.show(
        fig,
        alt="Error against step size: falls to 1e-10 at a step of 1e-5, then rises.",
        caption="A difference is best at a step near the cube root of $\\epsilon$.",
    )

Everything black takes the colour of the surrounding text, and the background is
transparent. Successive lines differ in colour, marker and dash, so that no reader has
to tell them apart by colour.
"""

from backpass.figures.diagrams import arrow, box, diagram, grid
from backpass.figures.page import show, show_steps, steps_to_html, to_html
from backpass.figures.plots import (
    DASHES,
    MARKERS,
    PALETTE,
    new,
    of_norms,
    of_record,
    of_timeline,
)

__all__ = [
    "DASHES",
    "MARKERS",
    "PALETTE",
    "arrow",
    "box",
    "diagram",
    "grid",
    "new",
    "of_norms",
    "of_record",
    "of_timeline",
    "show",
    "show_steps",
    "steps_to_html",
    "to_html",
]
