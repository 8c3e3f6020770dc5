"""A formula is read as it prints: braces that are not arguments are dropped, and never group."""

import pytest

from backpass.derivation.text.braces import with_brackets, without_braces
from backpass.derivation.text.passages import Text

from .judging import kinds, one, verdicts

GIVEN = r"given x, y, a \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, c, d \in \mathbb{R}, s \in \mathbb{R}_{>0}; factor c, d, s"


def text(characters):
    return Text(characters, tuple(range(len(characters))))


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        (r"\sum_{j=1}^n{(x_j - 1)^2}", r"\sum_{j=1}^n (x_j - 1)^2"),
        (r"{\frac{x}{2}}", r"\frac{x}{2}"),
        (r"{x}^{T} x", r"x ^{T} x"),
        (r"\exp{(x)} + \log{x_i}", r"\exp (x)  + \log x_i"),
        (r"\frac 1{N}{\mu}", r"\frac 1{N} \mu"),
        (r"\frac{{a}}{b} \sqrt[3]{{c}}", r"\frac{ a }{b} \sqrt[3]{ c }"),
        (r"\left( {1 - {y}} \right)", r"\left(  1 -  y   \right)"),
        (r"\mathbf{x}_{i} \text{softmax}(x)", r"\mathbf{x}_{i} \text{softmax}(x)"),
        (r"{(x - 1)}^2 + {x_i}^2", r"(x - 1) ^2 + x_i ^2"),
        # What changes when the braces go is left alone.
        (r"{\sum_j x_j}^2", r"{\sum_j x_j}^2"),
        (r"{a + b}^2", r"{a + b}^2"),
        (r"{W^{(1)}}^\top", r"{W^{(1)}}^\top"),
        (r"{a \over b} + {\bf x}", r"{a \over b} + {\bf x}"),
        (r"\unknown{x}{y}", r"\unknown{x}{y}"),
        (r"\begin{bmatrix} {x} \end{bmatrix}", r"\begin{bmatrix}  x  \end{bmatrix}"),
        (r"{x", r"{x"),
    ],
)
def test_braces_that_print_nothing_are_dropped(written, printed):
    found = without_braces(text(written))
    assert found.characters.split() == printed.split()
    assert len(found.characters) == len(written)


@pytest.mark.parametrize(
    ("written", "grouped"),
    [
        (r"2 {x + y}", r"2 (x + y)"),
        (r"\log{x + y}", r"\log(x + y)"),
        (r"a {-x}", r"a (-x)"),
        (r"{x} + {2 y} + \log{x} + \sum_j {x_j y_j}", None),
    ],
)
def test_braces_that_may_have_been_meant_to_group(written, grouped):
    found = with_brackets(text(written))
    assert (found and found.characters) == grouped


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"\sum_{j=1}^n{(x_j - 1)^2} = {\sum_j x_j^2} - 2 \sum_j {x_j} + n", "equal"),
        (r"\sum_{j=1}^n{(x_j - 1)^2} = {\sum_j x_j^2} - 2 \sum_j {x_j} + 1", "refused"),
        (r"{x}^{T} x = \sum_i {x_i}^2", "equal"),
        (r"{x}^{T} x = \sum_i {x_i}", "refused"),
        (r"\exp{(c)} \cdot \exp{(c)} = \exp(2 c)", "equal"),
        (r"\exp{(c)} \cdot \exp{(c)} = \exp(3 c)", "refused"),
        (r"\log{s} + \log{s} = 2 \log{s}", "equal"),
        (r"\log{s} + \log{s} = 3 \log{s}", "refused"),
        # It is right as it prints, and would be wrong with brackets.
        (r"c + d \, d = {c + d} d", "equal"),
        # It is wrong as it prints, and would be right with brackets: it is not refused.
        (r"c d + d^2 = {c + d} d", "not readable"),
        (r"{c + d} d = c d + d^2", "not readable"),
        (r"\sum_i {x_i + y_i} = \sum_i x_i + \sum_i y_i", "not readable"),
        # It is wrong in both readings.
        (r"c d + d = {c + d} d", "refused"),
        (r"{c + d}^2 = c^2 + 2 c d + d^2", "not readable"),
        (r"c^{{2}} = {c} \, c", "equal"),
    ],
)  # fmt: skip
def test_a_line_is_judged_as_it_prints(formula, kind):
    assert one(formula, GIVEN).kind == kind


def test_it_says_that_braces_do_not_group():
    assert "it holds only if braces group" in one(r"c d + d^2 = {c + d} d", GIVEN).message


def test_a_definition_has_one_reading():
    certain, doubtful = verdicts("$$ q = {c} \\cdot {d} $$\n\n$$ r = 2 {c + d} $$", GIVEN)
    assert (certain.kind, doubtful.kind) == ("definition", "not readable")
    assert "print nothing, so they cannot group" in doubtful.message
    comment = r"<!-- derive: let r = 2 {c + d} -->"
    (of_comment,) = verdicts(comment, GIVEN)
    assert "print nothing, so they cannot group" in of_comment.message


def test_a_notation_with_braces_is_matched_before_they_are_dropped():
    assert kinds(r"$$ {\rm x} \, {c} = c^2 $$", GIVEN + r"; read {\rm x} as c") == ["equal"]
