"""A text's macros are expanded as TeX does, and what cannot be expanded is not readable, with the reason."""

import pytest

from backpass.derivation.text.macros import Expander

from .judging import kinds, verdicts

GIVEN = r"given x, y, \bar{z} \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}"


@pytest.mark.parametrize(
    "text, expanded",
    [
        (r"\newcommand{\R}{\mathbb{R}}\R^n", r"\mathbb{R}^n"),
        (r"\newcommand\R{\mathbb{R}}\R^n", r"\mathbb{R}^n"),
        (r"\def\eps{\varepsilon}\eps x", r"\varepsilon x"),
        (r"\def\f#1#2{#2\cdot#1}\f{a}b\f ab", r"b\cdot ab\cdot a"),
        (r"\def\outer#1{\inner{#1}}\def\inner#1{#1^2}\outer{x}", "x^2"),
        (r"\newcommand\name{\of}\newcommand\of[1]{[#1]}\name{x}y", "[x]y"),
        (r"\DeclareMathOperator{\Tr}{Tr}\Tr(A)", r"\operatorname{Tr}(A)"),
        (r"\newcommand{\a}{1}\renewcommand{\a}{2}\a", "2"),
        (r"\newcommand{\a}{1}\providecommand{\a}{2}\a", "1"),
        (r"\providecommand{\a}{2}\a", "2"),
        (r"\let\old\phi\let\phi\varphi\let\varphi\old\phi\varphi", r"\varphi\phi"),
        (r"\NewDocumentCommand{\q}{m m}{#1/#2}\q{1}{2}", "1/2"),
        (
            r"\def\v{{\mathbf{x}}}\v\bar\v\frac\v\v",
            r"\mathbf{x}\bar{\mathbf{x}}\frac{\mathbf{x}}{\mathbf{x}}",
        ),
        (r"\def\f#1{#1\{}\f{\}}", r"\}\{"),
        (r"\a\def\a{1}\a", r"\a1"),
        (
            r"\newenvironment{eq}{\begin{equation}}{\end{equation}}\begin{eq}x\end{eq}",
            r"\begin{equation}x\end{equation}",
        ),
    ],
)
def test_expansion(text, expanded):
    expander = Expander()
    found, origins = expander.expand(text)
    assert found.strip().replace("\\a  ", "\\a").replace(" " * 8, "").replace(" ", "") == expanded.replace(
        " ", ""
    )
    assert r"\cdot" not in expanded or r"\cdot a" in found
    assert r"\varepsilon" not in expanded or r"\varepsilon x" in found
    assert len(found) == len(origins) and list(origins) == sorted(origins)
    assert not expander.faults


@pytest.mark.parametrize(
    "text, why",
    [
        (r"\def\a{\a}\a", r"the macro \a does not come to an end: does it contain itself?"),
        (r"\def\a{\b}\def\b{\a}x + \a", "does not come to an end"),
        (r"\def\a#1{\a{#1#1}}\a{xx} + 1", "does not come to an end"),
        (r"\newcommand{\a}[2][x]{#1 #2}\a{y}", "has an optional argument"),
        (r"\def\a(#1){#1}\a(y)", "has delimited arguments"),
        (r"\newcommand{\a}[1]{#1}\frac{1}{\a}", "lacks an argument"),
        (r"\newcommand{\a}{x + y}\frac{1}\a", "write braces around it"),
        (r"\newcommand{\a}{x + y}\sqrt\a", "write braces around it"),
    ],
)
def test_what_cannot_be_expanded(text, why):
    expander = Expander()
    found, origins = expander.expand(text)
    ((place, reason),) = expander.faults.items()
    assert why in reason
    assert text[place:].startswith((r"\a", r"\b")) and r"?\a" in found
    assert len(found) == len(origins)


def test_a_definition_in_a_group_of_latex_ends_with_it():
    text = r"\def\a{1}{\def\a{2}\a}\a\begin{x}\gdef\a{3}\end{x}\a"
    assert Expander(grouped=True).expand(text)[0].replace(" ", "") == r"{2}1\begin{x}\end{x}3"
    assert Expander().expand(text)[0].replace(" ", "") == r"{2}2\begin{x}\end{x}3"


def test_two_definitions_in_latex_are_an_error_there():
    text = r"\newcommand{\a}{1}\newcommand{\a}{2}\a"
    expander = Expander(grouped=True)
    expander.expand(text)
    assert list(expander.faults.values()) == [r"the macro \a has two definitions"]
    assert Expander().expand(text)[0].strip() == "2"


MARKDOWN = r"""
$$ \newcommand{\s}[1]{\sum_#1 x_#1} \def\half{\frac{1}{2}} $$

$$ \half \s{i} = \half \cdot \s{j} $$

$$
\begin{aligned}
\s{i} + \s{j} &= 2 \s{i} \\
 &= 3 \s{i}
\end{aligned}
$$
"""


def test_macros_of_markdown():
    found = verdicts(MARKDOWN, GIVEN)
    assert [(v.kind, v.line) for v in found] == [("equal", 4), ("equal", 8), ("refused", 9)]
    assert found[0].latex == r"\frac{1}{2} \cdot \sum_j x_j"


LATEX = r"""
\documentclass{article}
\newcommand{\pd}[2]{\frac{\partial #1}{\partial #2}} % \newcommand{\pd}[2]{#1}
\newcommand{\be}{\begin{equation}}
\newcommand{\ee}{\end{equation}}
\newcommand{\R}{\mathbb{R}}
% derive: given v \in \R^n; let q = \sum_i v_i^2
\begin{document}
\be \pd{q}{v_i} = 2 v_i \ee
\begin{align} \pd{q}{v_i} &= 3 v_i \\% a comment
  \pd{q}{v_j} &= 2 v_j \end{align}
\end{document}
"""


def test_macros_of_latex():
    assert [(v.kind, v.line) for v in verdicts(LATEX, "", "a.tex")] == [
        ("equal", 9),
        ("refused", 10),
        ("equal", 11),
    ]


def test_macros_in_code_and_comments_are_not_read():
    for aside in ("```\n{}\n```", "`{}`", "<!-- {} -->"):
        text = aside.replace("{}", r"\newcommand{\two}{2}") + "\n$$ \\two = 2 $$"
        assert kinds(text, GIVEN) == ["not readable"]
    assert kinds("% \\def\\two{2}\n\\[ \\two = 2 \\]", GIVEN, "a.tex") == ["not readable"]


def test_macros_beside_definitions_hold_for_the_text():
    text = r"$$ \two x_1 = x_1 + x_1 $$"
    assert kinds(text, GIVEN) == ["not readable"]
    assert kinds(text, GIVEN + "\n\\newcommand{\\two}{2}") == ["equal"]
    assert kinds(r"<!-- derive: \def\two{2} -->" + text, GIVEN) == ["equal"]


def test_the_caret_is_at_the_use():
    (verdict,) = verdicts("$$ \\def\\bad{1 +* 2} $$\n$$ x_1 = x_1 + \\bad $$", GIVEN)
    *_, line, caret = verdict.message.splitlines()
    assert line[caret.index("^") :].startswith(r"\bad")


def test_the_reason_and_the_place_of_what_cannot_be_expanded():
    text = "$$ \\def\\a{\\a} $$\n$$ \\begin{aligned} x_1 &= \\a x_1 \\\\ &= x_1 \\end{aligned} $$"
    first, second = verdicts(text, GIVEN)
    assert (first.kind, second.kind) == ("not readable", "equal")
    assert "does not come to an end" in first.message
    *_, line, caret = first.message.splitlines()
    assert line[caret.index("^") :].startswith(r"\a x_1")


def test_an_accent_in_a_macro_is_as_uncertain_as_without():
    definitions = r"given x \in \mathbb{R}^n; let z_i = 2 x_i"
    text = "$$ \\newcommand{\\d}[1]{\\bar{#1}_i} $$\n$$ \\d{x} = 2 \\d{z} $$"
    (verdict,) = verdicts(text, definitions)
    assert verdict.kind == "not readable" and "bar gradient" in verdict.message
    assert kinds(text, definitions + "; bar gradient") == ["equal"]


@pytest.mark.parametrize(
    "trace",
    [
        r"\text{Tr}",
        r"\text{tr}",
        r"\mathrm{tr}",
        r"\mathrm{Tr}",
        r"\operatorname{Tr}",
        r"\operatorname*{tr}",
        r"\Tr",
    ],
)
def test_a_trace_in_any_type(trace):
    text = rf"$$ \DeclareMathOperator{{\Tr}}{{Tr}} {trace}(A) = \sum_i A_{{ii}} $$"
    assert kinds(text, GIVEN) == ["equal"]
    assert kinds(text.replace("A_{ii}", "A_{1i}"), GIVEN) == ["refused"]


@pytest.mark.parametrize("diagonal", [r"\text{diag}", r"\mathrm{diag}", r"\operatorname{diag}"])
def test_a_diagonal_in_any_type(diagonal):
    assert kinds(rf"$$ {diagonal}(x) y = x \odot y $$", GIVEN) == ["equal"]


def test_a_subscript_is_not_a_function():
    assert kinds(r"$$ 1 + x_{\text{tr}} = x_{\text{tr}} $$", r"given x_{\text{tr}} \in \mathbb{R}") == [
        "refused"
    ]
