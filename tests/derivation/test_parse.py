"""What cannot be read, or has no meaning, is refused with its place."""

import re

import pytest

from backpass.derivation import Unreadable, derive
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.grammar import parser
from backpass.derivation.language.parse import read

GIVEN = "given x, y \\in \\mathbb{R}^n, W \\in \\mathbb{R}^{n \\times p}\nconstant \\epsilon \\in \\mathbb{R}_{>0}\n"

# The line, the message, and what the caret points at.
UNREADABLE = [
    (r"x_i = \foo x_i", "cannot read this", r"\foo"),
    (r"x_i = x_i + )", "cannot read this", ")"),
    (r"x_i = (x_i + 1", "expected left side = right side|something is missing at the end", ""),
    (r"x_i = \frac{x_i}{", "something is missing at the end", ""),
    (r"x_i =", "there is nothing on the right", ""),
    (r"x_i = y_i = x_i", "one '=' a line", "= x_i"),
    (r"= x_i", "there is none above it", "="),
    (r"let x_i + y_i", "expected left side = right side", "x_i"),
    (r"x_i = z_i", "z_i is not declared or defined above", "z_i"),
    (r"x_i = x_j", "the index j is not on the left side", "x_j"),
    (r"x_i = x_{ij}", "x takes one index; got 2", "x_{ij}"),
    (r"\epsilon = \epsilon_i", "takes no index", r"\epsilon_i"),
    (r"x_i = \sum_i y_i", "i is also used outside this sum", "i y"),
    (r"x_i = \sum_{n} y_n", "n is a dimension", "n} y"),
    (r"x_i = W_{ii}", "i runs over n elsewhere, but over p here", "i}"),
    (r"x_i = W_{i}", "W takes two indices; got 1", "W_{i}"),
    (r"x = W", "the left side is a matrix of shape n × 1, but this is a matrix of shape n × p", "W"),
    (r"W = x W", "a matrix of shape n × 1 cannot be multiplied by a matrix of shape n × p", "W"),
    (r"W = W + 1", "a matrix of shape n × p cannot be added to a number", "1"),
    (r"W = W \odot x", "cannot be multiplied", "x"),
    (r"W = \exp(W)", "write the matrix by its elements", "(W)"),
    (r"x = 1 / x", "cannot stand below a fraction bar", "x"),
    (r"x = x^2", "only numbers and square matrices have powers", "x^2"),
    (r"p = \operatorname{tr}(W)", "a trace needs a square matrix", "(W)"),
    (r"W = I_q W", "needs its size as a subscript", "I"),
    (r"x_1 = \operatorname{tr}(I)", "what is the size of I", "I"),
    (r"n = \sum_j 1", "what does j run over", r"\sum_j"),
    (r"x_i = \bar{\epsilon} x_i", r"\\epsilon is a constant", r"\bar"),
    (r"x_i = \frac{\partial x_i}{\partial n}", "with respect to an input or a definition", "n}"),
    (r"1 = \frac{\partial x}{\partial x_i}", "a partial derivative is of a number with respect to a number", r"\frac"),
    (r"\mathcal{L} = x_1", "may occur only in", r"\mathcal{L}"),
    (r"1 = \frac{\partial \mathcal{L}_1}{\partial x_i}", "may occur only in", r"\mathcal{L}"),
    (r"x_i = \bar{x}_i", "no output depends on x", r"\bar{x}_i"),
    (r"x_i = x_3", "no element 3", "3"),
    (r"x_i = y_i \quad (i = j)", "the index j is not on the left side", "i = j)"),
    (r"x_i = x_i \quad (i < i)", "no indices meet the conditions", "i < i"),
    (r"\log(-1) = \log(-1) + 0 x_1 + x_1", "equality cannot be decided here|does not equal", ""),
    ("let x_i = y_i", "x is already declared", "x_i"),
    ("let z_{ii} = x_i", "an index occurs twice", "z_{ii}"),
    ("let z_i = x_j", "the index j is only on the right", "x_j"),
    ("let z_i = x_1", "what does i run over", "z_i"),
    ("let \\bar{x}_i = x_i", "derived, not defined", "\\bar"),
    ("let n = 2", "n is already declared", "n"),
    ("given n \\in \\mathbb{R}", "n is already declared", "n"),
    (r"x_i = \sum_n x_n", "n is a dimension, so it cannot be an index", "n x_n"),
    ("let z_n = x_n", "n is a dimension, so it cannot be an index", "n"),
    ("let z_{1i} = x_i", "its indices must be letters", "z_{1i}"),
    (r"x_i e_i = x_i e", "e takes no index", "e_i"),
    (r"\dot{x}_i = \dot{x}_i \quad (\dot{x}_1 = 0)", "for a whole X", r"\dot{x}_1"),
    (r"x_i = x_i \quad (j \ne 1)", "the index j is not on the left side", r"j \ne"),
    (r"x_i = 2 \frac{\partial}{\partial x_i} (x_i y_i) x_i", "how far does this derivative reach", r"\frac"),
    (r"x_i = \frac{\partial}{\partial x_i} (x_i y_i) / x_i", "how far does this derivative reach", r"\frac"),
    (r"W_{ij} = W_{ij}^\top", "prints like an element of the transpose", r"W_{ij}^"),
]  # fmt: skip

# What prints as something else than it would be parsed as: each is false as it prints.
PRINTED_OTHERWISE = [
    r"2 x_i^2 = {x_i + x_i} x_i",
    r"\sum_j (x_j + y_j) = \sum_j {x_j + y_j}",
    r"W^\top x = {x^\top W}^\top",
    r"{x_i}^2 = x_i^2",
    r"x_i^2 = x_i{}^2",
    r"2 x_i = 1 2 x_i",
    r"0 = 1\,000",
    r"x_1 \cdot 2 = x_12",
    r"x_i \cdot 2 = x_i^12",
    r"x_i = 2 \frac12 x_i",
    r"x_i \cdot \frac32 = x_i \frac12 3",
    r"x_i^2 = x_i^\, 2",
    r"x_i = x_\, i",
    r"x_i^2 = x_i\,^2",
    r"\frac{x_i}{2} = \frac{x_i}\,{2}",
    r"\frac{x_i}{2} = \frac{x_i}\,2",
    r"x_i + \frac12 = x_i + \frac1\,2",
    r"x_i + \sqrt2 = x_i + \sqrt\,2",
    r"x_i + y_i = x_i \! \! + y_i",
    r"x_i = \left( x_i )",
    r"x_i = \left( x_i \right.",
    r"x_i = \left( x_i \right]",
    r"x_i = (x_i]",
    r"x_i = \left x_i",
    r"x_i = \big x_i",
    r"x_i = \displaystyle x_i",
    r"x_i = x_i % + y_i",
    r"x_i = x_i \\ + y_i",
    r"x_i = x_i'",
    r"x_i^2 = x^2_i",
    r"\sum_{i,j} W_{ij} = \sum_{i,j}^n W_{ij}",
    r"\prod_j (2 x_j) = \prod_j 2 x_j",
    r"\prod_j (x_j / 2) = \prod_j x_j / 2",
    r"\log(x_i) / 2 = \log x_i / 2",
    r"x_i^{5/2} = x_i^2.5",
    r"\frac{1}{2.5} = \frac12.5",
    r"2 \cdot 0.5 = 2 0.5",
    r"\sin(x_i) y_i = \sin x_i y_i",
    r"\max(0, x_i) y_i = \max 0, x_i y_i",
]

# Names of which one prints like the other, or like a product of others.
PRINTED_ALIKE = [
    r"\mathbf{a}, \mathbf{b}, \mathbf{ab} \in \mathbb{R}",
    r"\text{a}, \text{b} \in \mathbb{R}",
    r"\mathrm{a}, \text{a} \in \mathbb{R}",
    r"\text{x + y} \in \mathbb{R}",
    r"\text{12} \in \mathbb{R}",
    r"\text{log} \in \mathbb{R}",
    r"\text{sin} \in \mathbb{R}",
    r"W_{\text{1}} \in \mathbb{R}",
    r"x_1 \in \mathbb{R}",
    r"x^2 \in \mathbb{R}",
    r"c^2, c \in \mathbb{R}",
    r"c \in \mathbb{R}^{n \cdot p}",
]


@pytest.mark.parametrize(("line", "message", "place"), UNREADABLE)
def test_the_unreadable_is_refused_with_its_place(line, message, place):
    with pytest.raises(ValueError, match=message) as caught:
        derive(GIVEN + line, name="refused")
    shown = str(caught.value).splitlines()
    caret = next(k for k, row in enumerate(shown) if row.strip() == "^")
    assert shown[caret - 1].strip().startswith("3: ")
    assert shown[caret - 1][shown[caret].index("^") :].startswith(place)


@pytest.mark.parametrize("line", PRINTED_OTHERWISE)
def test_what_prints_otherwise_than_it_parses_is_refused(line):
    with pytest.raises(Unreadable):
        derive(GIVEN + line, name="refused")


@pytest.mark.parametrize("declaration", PRINTED_ALIKE)
def test_names_that_print_alike_are_refused(declaration):
    with pytest.raises(Unreadable):
        derive(f"{GIVEN}given {declaration}\n1 = 1", name="refused")


def test_braces_that_group_are_refused_with_a_hint():
    with pytest.raises(
        Unreadable, match=r"braces that are not a command's argument print nothing.*write brackets"
    ):
        derive(GIVEN + "2 x_i^2 = {x_i + x_i} x_i", name="refused")


@pytest.mark.parametrize("bracket", ["[-3 < x_i < 3]", r"\left[-3 < x_i < 3\right]"])
def test_an_interval_in_one_bracket_is_refused_with_a_hint(bracket):
    with pytest.raises(Unreadable, match=r"brackets hold one comparison; write a product of two") as caught:
        derive(f"{GIVEN}x_i = {bracket} x_i", name="refused")
    *_, line, caret = str(caught.value).splitlines()
    assert line[caret.index("^") :].startswith("< 3")


@pytest.mark.parametrize(
    "text",
    [
        r"given b_j \in \mathbb{R}" + "\n" + r"b_j \sum_j x_j = \sum_j x_j b_j",
        r"given i \in \mathbb{R}" + "\n" + r"i x_i = x_i i",
        r"given \text{loss}, \text{lo}, \text{ss} \in \mathbb{R}"
        + "\n"
        + r"1 = \text{lo} \text{ss} / \text{loss}",
        r"let \sigma^2 = x_1" + "\n" + r"1 = \bar{\sigma}^2",
    ],
)
def test_a_letter_has_one_meaning(text):
    with pytest.raises(Unreadable, match=r"cannot be an index|prints as a part|not declared"):
        derive(GIVEN + text, name="refused")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\frac12 x_i", r"\frac{1}{2} x_i"),
        (r"\tfrac1n x_i", r"x_i / n"),
        (r"2x_iy_i", r"2 \cdot x_i \times y_i"),
        (r"\left[ x_i \right] \bigl( y_i \bigr)", r"\{x_i\}(y_i)"),
        (r"\left\langle x, \Big( y \Big) \right\rangle \; y_i", r"y_i \quad \sum_j x_j \, y_j"),
        (r"x_i \cdot 2 \cdot 3^2 \times \frac12", r"9 x_i"),
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


def test_a_dimension_may_have_a_label():
    derive(
        "given A \\in \\mathbb{R}^{n_{kv} \\times s_q \\times d}\nd \\times s_q \\cdot A_{nia} = A_{nia} \\cdot s_q d",
        name="read",
    )


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


FLOATING = [
    (r"x, \bar{x}", r"let y_i = x_i^2", r"\bar{x} is derived, not given: x is not an output"),
    (r"x, \bar{u}, \bar{y}", "let u_i = x_i^2\nlet y_i = 3 u_i", r"\bar{u} is derived, not given: y is defined by u"),
    (r"x, \bar{y}, \bar{g}", r"let y_i = x_i^2" + "\n" + r"let g_i = x_i \bar{y}_i", r"\bar{g} is derived, not given: g is no"),
    (r"x, \dot{y}", r"let y_i = x_i^2", r"\dot{y} is derived, not given"),
    (r"x, \bar{y}", "let y_i = x_i^2\nlet \\mathcal{L} = y_1", r"\bar{y} is derived, not given: \mathcal{L} is defined"),
    (r"x, \bar{\mathcal{L}}", r"let \mathcal{L} = x_1", r"\bar{\mathcal{L}} is derived, not given"),
    (r"x, \bar{y}", "let y_i = x_i^2\nlet \\mathcal{L} = \\sum_i 2 y_i \\bar{y}_i", r"\mathcal{L} must be a number with a definition"),
    (r"x", r"let \mathcal{L}_i = x_i", r"\mathcal{L} must be a number with a definition"),
    (r"x, \mathcal{L}", "", r"\mathcal{L} must be a number with a definition"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "definitions", "message"), FLOATING)
def test_what_has_a_meaning_by_itself_is_not_given_another(given, definitions, message):
    with pytest.raises(Unreadable, match=re.escape(message)):
        derive(f"given {given} \\in \\mathbb{{R}}^n\n{definitions}\n1 = 1", name="floating")


def test_a_gradient_may_not_be_given_after_its_definition_was_used():
    text = "given x \\in \\mathbb{R}\nlet u = x^2\nlet y = 3 u\ngiven \\bar{u} \\in \\mathbb{R}\n1 = 1"
    with pytest.raises(Unreadable, match="y is defined by u"):
        derive(text, name="floating")


@pytest.mark.parametrize(
    "line",
    [
        r"g(x + y) = g x + g \cdot (y)",
        r"y = x + g(x) - g x",
        r"g \left( x \right) = g x",
        r"g \bigl[ x \bigr] = g x",
        r"2 x (1 - y) = 2 x - 2 x y",
        r"g^2(x) = g^2 x",
        r"g^{-1}(x) = x / g",
        r"\sigma^2 (x) = x \sigma^2",
        r"\hat{g}(x) = x \hat{g}",
        r"g_1 (x) = x g_1",
        r"e^{g (x)} = e^{g x}",
        r"n (1 + x) = n + n x",
        r"\pi (1 + x) = \pi + \pi x",
        r"y = x + F(x)",
        r"X (x) = x X",
        r"X (x + y) = x X + y X",
    ],
)
def test_a_name_directly_before_a_bracket_is_refused(line):
    given = r"given g, x, y, \sigma^2, \hat{g}, g_1 \in \mathbb{R}, X \in \mathbb{R}^{n \times n}"
    with pytest.raises(
        Unreadable, match=r"\(…\) prints like a function of .*Write the product as .* \\, \(…\)"
    ):
        derive(f"{given}\n{line}", name="applied")


def test_a_product_with_a_bracket_is_written_so_or_is_of_what_is_not_a_function():
    given = r"given g, z, \sigma^2 \in \mathbb{R}, x \in \mathbb{R}^n, X \in \mathbb{R}^{n \times n}"
    for line in (
        r"g \, (z + 1) = g \cdot (z + 1) = g \times (z + 1) = g ~ (z + 1) = g \quad \left( z + 1 \right)",
        r"\sigma^2 \; [z] = z \sigma^2",
        r"x_i (1 - x_i)^2 = (1 - x_i)(1 - x_i) x_i",
        r"X_{ij} \bigl( z \bigr) = z X_{ij}",
        r"x_1 (z) = z x_1",
        r"2 (z) = e^{z} (z + z) e^{-z}",
        r"X^\top (X + I_n) = (X^\top)(X) + X^\top",
    ):
        left, *rights = line.split(" = ")
        derive(
            "\n".join([given, f"{left} = {rights[0]}", *(f"= {right}" for right in rights[1:])]),
            name="product",
        )


def test_each_rule_of_the_grammar_is_analysed_and_evaluated():
    rules = {str(rule.alias or rule.origin.name) for rule in parser().rules if rule.origin.name[0] != "_"}
    analysed, evaluated = ({r for r in rules if hasattr(k, r)} for k in (Analysis, Evaluator))
    # Conditions are tried, and have no value; a bracket that no function takes is refused.
    assert analysed - {"condition", "conditions", "applied", "arguments"} == evaluated
    # The others have one child alone, or are taken apart by the rule that contains them.
    words = """accented argument atom below case comparison declaration declarations dots each exponent expression factor function group head inverse_top layer letter_and_top limits lower moved
        name operator over piece plain power_of_letter quotient relation row shifted side sign space subscript top transposed upper"""
    assert rules - analysed == {*words.split()}
