"""Show figures on a page, as inline SVG with a caption."""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show(figure: Figure, alt: str, caption: str) -> None:
    """Display the figure in a notebook or on a page, where figures are numbered.

    ``alt`` describes the figure for readers who cannot see it. ``caption`` is printed
    below it and says what to look for, with mathematics between dollar signs. Raises
    ValueError if either is empty.
    """
    from IPython.display import HTML, display

    display(HTML(to_html(figure, alt, caption)))


def show_steps(
    steps: Mapping[str, tuple[Figure, str]], label: str, caption: str, first: int = 0
) -> None:
    """Display figures of which a slider shows one at a time; see ``steps_to_html``."""
    from IPython.display import HTML, display

    display(HTML(steps_to_html(steps, label, caption, first)))


def to_html(figure: Figure, alt: str, caption: str) -> str:
    """Return the figure as inline SVG with its caption.

    The same figure gives the same characters each time. Raises TypeError if ``figure``
    is not a Matplotlib figure, and ValueError if ``alt`` or ``caption`` is empty.
    """
    drawing = _drawing(figure, alt)
    _check_words("caption", caption)
    return _figure("backpass-figure", drawing, caption)


def steps_to_html(
    steps: Mapping[str, tuple[Figure, str]], label: str, caption: str, first: int = 0
) -> str:
    """Return figures of which a slider shows one at a time, with one caption.

    ``steps`` maps the slider's value in words, such as ``"x₂ = 1.5"``, to a figure and
    its ``alt``. ``label`` says what the slider changes. The step with number ``first``
    is the one in print, in a notebook, and where scripts do not run. Raises ValueError
    if there are fewer than two steps, if ``first`` is not one of them, or if a text is
    empty, and TypeError if a figure is not Matplotlib's.
    """
    if len(steps) < 2 or not 0 <= first < len(steps):
        raise ValueError(
            "expected at least two steps and the number of one of them as first; got "
            f"{len(steps)} steps and first={first}"
        )
    for name, words in (("label", label), ("caption", caption)):
        _check_words(name, words)
    drawings = "".join(
        f'<div class="step" data-value="{html.escape(value)}"'
        f"{'' if at == first else ' hidden'}>{_drawing(figure, alt)}</div>"
        for at, (value, (figure, alt)) in enumerate(steps.items())
    )
    shown = html.escape(list(steps)[first])
    control = (
        f'<p class="steps-control" hidden><label>{html.escape(label)} <input type="range" '
        f'min="0" max="{len(steps) - 1}" step="1" value="{first}" '
        f'aria-valuetext="{shown}"></label> <output>{shown}</output></p>'
    )
    return _figure("backpass-figure backpass-steps", drawings, caption, control)


def _check_words(name: str, words: str) -> None:
    if not isinstance(words, str) or not words.strip():
        raise ValueError(
            f"{name}: expected a sentence that says what the figure shows; "
            f"got {words!r}"
        )


def _figure(classes: str, drawing: str, caption: str, control: str = "") -> str:
    shown = re.sub(r"\$([^$]+)\$", r"\\(\1\\)", html.escape(caption, quote=False))
    return (
        f'<figure class="{classes}" style="margin: 0">'
        f'<div class="figure" style="overflow-x: auto">{drawing}</div>{control}'
        f'<figcaption class="tex2jax_process mathjax_process">{shown}</figcaption></figure>'
    )


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Lay out the figure as an SVG, and keep this layout in the block.

    Matplotlib draws a figure that has a layout engine twice, the first time without a
    result.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvas, engine = figure.canvas, figure.get_layout_engine()
    if engine is None:
        yield
        return
    no_engine: dict[Any, Any] = dict.fromkeys(
        ("figure.autolayout", "figure.constrained_layout.use"), False
    )
    FigureCanvasSVG(figure)  # which measures the text
    try:
        engine.execute(figure)
        with matplotlib.rc_context(no_engine):
            figure.set_layout_engine(None)
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.set_canvas(canvas)


def _drawing(figure: Figure, alt: str) -> str:
    """Return the figure as inline SVG in the colours of the page."""
    import matplotlib

    if not hasattr(figure, "savefig"):
        raise TypeError(
            f"figure: expected a Matplotlib figure; got {type(figure).__name__}"
        )
    _check_words("alt", alt)
    for axes in figure.axes:
        if legend := axes.get_legend():
            legend.get_frame().set(facecolor="none", edgecolor="none")

    style: dict[Any, Any] = {"svg.hashsalt": "backpass", "svg.fonttype": "path"}
    drawing = io.StringIO()
    with matplotlib.rc_context(style), _laid_out(figure):
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None})
    svg = drawing.getvalue()

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace("#000000", "currentColor")

    # Several drawings share a page: keep only the ids that are referred to, and give
    # those of each drawing their own prefix.
    prefix = hashlib.sha256(svg.encode()).hexdigest()[:8]
    referred = set(re.findall(r"#([\w.-]+)(?=[\")])", svg))
    svg = re.sub(
        r' id="([^"]+)"',
        lambda match: f' id="f{prefix}-{match[1]}"' if match[1] in referred else "",
        svg,
    )
    svg = re.sub(r'(url\(|href=")#([\w.-]+)', rf"\1#f{prefix}-\2", svg)

    width = figure.get_size_inches()[0]
    attributes = (
        f'<svg role="img" aria-label="{html.escape(alt)}" fill="currentColor" '
        f'style="display: block; width: 100%; min-width: {0.65 * width:.2f}in; '
        f'max-width: {width:.2f}in; height: auto; margin: auto"'
    )
    svg = re.sub(r'<svg( height="[^"]*"| width="[^"]*")*', "<svg", svg)
    svg = re.sub(r' (height|width)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg", attributes, 1)
