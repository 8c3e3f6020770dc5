"""What cannot be read, or has no meaning, is refused with its place."""

import pytest

from backpass.derivation import Unreadable, derive
from backpass.derivation.parse import read

GIVEN = "given x, y \\in \\mathbb{R}^n, W \\in \\mathbb{R}^{n \\times p}\nconstant \\epsilon \\in \\mathbb{R}_{>0}\n"

# The line, the message, and what the caret points at.
UNREADABLE = [
    (r"x_i = \foo x_i", "cannot read this", r"\foo"),
    (r"x_i = x_i + )", "cannot read this", ")"),
    (r"x_i = (x_i + 1", "expected left side = right side|something is missing at the end", ""),
    (r"x_i = \frac{x_i}{", "something is missing at the end", ""),
    (r"x_i =", "nothing stands on the right", ""),
    (r"x_i = y_i = x_i", "one '=' a line", "= x_i"),
    (r"= x_i", "there is none above it", "="),
    (r"let x_i + y_i", "expected left side = right side", "x_i"),
    (r"x_i = z_i", "z_i is not declared or defined above", "z_i"),
    (r"x_i = x_j", "the index j does not stand on the left side", "x_j"),
    (r"x_i = x_{ij}", "x takes one index; got 2", "x_{ij}"),
    (r"\epsilon = \epsilon_i", "takes no index", r"\epsilon_i"),
    (r"x_i = \sum_i y_i", "i is in use outside this sum", "i y"),
    (r"x_i = \sum_{n} y_n", "n is a dimension", "n} y"),
    (r"x_i = W_{ii}", "i runs over n elsewhere, and over p here", "i}"),
    (r"x_i = W_{i}", "W takes two indices; got 1", "W_{i}"),
    (r"x = W", "the left side is a n × 1 matrix, this is a n × p matrix", "W"),
    (r"W = x W", "a n × 1 matrix cannot be multiplied by a n × p matrix", "W"),
    (r"W = W + 1", "a n × p matrix cannot be added to a number", "1"),
    (r"W = W \odot x", "cannot be multiplied", "x"),
    (r"x = \exp(x)", "write the matrix by its elements", "(x)"),
    (r"x = 1 / x", "cannot stand below a fraction bar", "x"),
    (r"x = x^2", "powers are of numbers", "x^2"),
    (r"p = \operatorname{tr}(W)", "the trace is of a square matrix", "(W)"),
    (r"W = I W", "needs its size as a subscript", "I"),
    (r"n = \sum_j 1", "what does j run over", r"\sum_j"),
    (r"x_i = \bar{\epsilon} x_i", r"\\epsilon is a constant", r"\bar"),
    (r"x_i = \frac{\partial x_i}{\partial n}", "with respect to an input or a definition", "n}"),
    (r"1 = \frac{\partial x}{\partial x_i}", "of and by numbers", r"\frac"),
    (r"\mathcal{L} = x_1", "stands only in", r"\mathcal{L}"),
    (r"x_i = \bar{x}_i", "no output depends on x", r"\bar{x}_i"),
    (r"x_i = x_3", "no element 3", "3"),
    (r"x_i = y_i \quad (i = j)", "cannot read this|something is missing", ""),
    (r"x_i = x_i \quad (i < i)", "no indices meet the conditions", "i < i"),
    (r"\log(-1) = \log(-1) + 0 x_1 + x_1", "equality cannot be decided here|does not equal", ""),
    ("let x_i = y_i", "x is declared already", "x_i"),
    ("let z_{ii} = x_i", "an index stands twice", "z_{ii}"),
    ("let z_i = x_j", "j stands on the right only", "x_j"),
    ("let z_i = x_1", "what does i run over", "z_i"),
    ("let \\bar{x}_i = x_i", "derived, not defined", "\\bar"),
    ("let n = 2", "n is declared already", "n"),
    ("given n \\in \\mathbb{R}", "n is declared already", "n"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message", "place"), UNREADABLE)
def test_the_unreadable_is_refused_with_its_place(line, message, place):
    with pytest.raises(ValueError, match=message) as caught:
        derive(GIVEN + line, name="refused")
    shown = str(caught.value).splitlines()
    caret = next(k for k, row in enumerate(shown) if row.strip() == "^")
    assert shown[caret - 1].strip().startswith("3: ")
    assert shown[caret - 1][shown[caret].index("^") :].startswith(place)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\frac12 x_i", r"\frac{1}{2} x_i"),
        (r"\tfrac1n x_i", r"x_i / n"),
        (r"2x_iy_i", r"2 \cdot x_i \times y_i"),
        (r"\left[ x_i \right] \bigl( y_i \bigr)", r"\{x_i\}(y_i)"),
        (r"\sqrt n x_i", r"n^{1/2} x_i"),
        (r"\exp(x_i)^2", r"e^{2 x_i}"),
        (r"\log e^{x_i}", r"x_i"),
        (r"-x_i + y_i", r"y_i - x_i"),
        (r"\sum_j x_j y_i + x_i", r"x_i + y_i \sum_{j=1}^{n} x_j"),
        (r"x_i y_i / n", r"\frac{x_i y_i}{n}"),
        (r"(x_i + y_i)^2 - x_i^2", r"y_i^2 + 2 x_i y_i"),
        (r"\frac{\partial}{\partial x_i} (x_i)^3", r"3 x_i^2"),
        (r"\frac{\partial (x_i^2 y_i)}{\partial x_i}", r"2 x_i y_i"),
        (r"\frac{\partial}{\partial x_i} \sum_j x_j^2 y_j", r"2 x_i y_i"),
    ],
)
def test_how_the_notation_is_read(written, meant):
    derive(GIVEN + f"0 x_i + ({written}) = {meant}", name="read")


def test_lines_go_on_reasons_stand_below_and_notes_are_prose():
    lines = read(
        "note  Why $x = y$ | holds.\nx_i = y_i\n      + \\sum_{j=1}^n z_j   | first\n   = y_i\n   | below\n"
    )
    assert [line.kind for line in lines] == ["note", "statement", "step"]
    assert lines[0].reason == "Why $x = y$ | holds."
    assert lines[1].latex == r"x_i = y_i + \sum_{j=1}^n z_j"
    assert [line.reason for line in lines[1:]] == ["first", "below"]


def test_the_output_must_be_clear():
    text = "given x \\in \\mathbb{R}^n\nlet y_i = 2 x_i\nlet z_i = 3 x_i\n\\bar{x}_i = 3 \\bar{z}_i"
    with pytest.raises(Unreadable, match="which of y, z is the output"):
        derive(text, name="two")
    derive(text.replace("given x", "given x, \\bar{z}"), name="one")


def test_names_are_fit_for_anchors():
    with pytest.raises(ValueError, match="name: expected small letters"):
        derive("1 = 1", name="Soft max")
