"""What a step changed is marked where it stands, and the marks leave the LaTeX whole."""

import re
import sys
from pathlib import Path

import pytest

from backpass.derivation import derive

sys.path.insert(0, str(Path(__file__).parents[1] / "book"))
import chapters


def texts(derivation, at):
    """The marked parts of the step at that position, of the line above and of the line itself."""
    above, found = derivation.steps[at]
    lines = derivation.all_lines[above].right.text, derivation.all_lines[at].right.text
    spans = found.gone, found.come
    return tuple([text[i:j] for i, j in of] for text, of in zip(lines, spans, strict=True))


@pytest.mark.parametrize(
    "above, here, gone, come",
    [
        (r"x_i + 0", r"x_i", ["0"], []),
        (r"2 x_i y_i", r"2 y_i x_i", ["y_i"], ["y_i"]),
        (r"x_i (y_i + y_i)", r"x_i (2 y_i)", ["y_i + y_i"], ["2 y_i"]),
        (r"x_i (y_i + x_i - x_i)", r"x_i (y_i + 0)", ["x_i", "x_i"], ["0"]),
        (r"\frac{x_i y_i}{y_i y_i}", r"\frac{x_i y_i}{y_i^2}", ["y_i y_i"], ["y_i^2"]),
        (r"\frac12 x_i", r"\frac24 x_i", [r"\frac12"], [r"\frac24"]),
        (r"x_i^{1 + 1} y_i", r"x_i^2 y_i", ["x_i^{1 + 1}"], ["x_i^2"]),
        (r"e^{x_i + 0}", r"e^{x_i}", [], []),  # the whole line
        (r"x_i \sum_j (y_j + 0)", r"x_i \sum_j y_j", ["(y_j + 0)"], ["y_j"]),
        (r"x_i \sum_j y_j", r"x_i \sum_k y_k", [r"\sum_j y_j"], [r"\sum_k y_k"]),
    ],
)
def test_the_smallest_complete_part_is_marked(above, here, gone, come):
    text = r"given x, y \in \mathbb{R}_{>0}^n" + f"\n{above} = {above}\n    = {here}"
    found = derive(text, name="steps")
    assert texts(found, 2) == (gone, come)


def test_a_line_names_the_line_it_follows_from():
    first = derive("given x \\in \\mathbb{R}^n\nx_i + x_i = x_i + x_i", name="a")
    second = derive("x_i - x_i = x_i - x_i\n    = 0", name="b", after=first)
    html = second._repr_html_()
    assert 'id="b-3" data-above="b-2"' in html and 'aria-label="line 3, from line 2"' in html
    assert 'id="b-2" style' in html and 'aria-label="line 2"' in html


@pytest.mark.parametrize("page", sorted({page for page, _ in chapters.derivations()}), ids=lambda p: p.stem)
def test_every_mark_of_the_book_is_complete_latex(page):
    """Balanced braces and brackets, nested marks, and the author's text without them."""
    for derivation in (d for where, d in chapters.derivations() if where == page):
        for latex in re.findall(r'class="derivation-right"[^>]*>(.*?)</div>', derivation._repr_html_()):
            assert latex.replace(r"\{", "").count("{") == latex.replace(r"\}", "").count("}")
            for start in (match.end() for match in re.finditer(r"\\class\{[a-z-]+\}\{", latex)):
                inside = _braced(latex, start)
                assert inside.count(r"\left") == inside.count(r"\right")
                assert latex[: start - len(r"\class{derivation-come}{")].rstrip()[-1:] not in "^_"


def _braced(latex: str, start: int) -> str:
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(latex[at], 0) if latex[at - 1] != "\\" else 0
        at += 1
    return latex[start : at - 1]
