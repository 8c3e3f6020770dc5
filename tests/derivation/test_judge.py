"""Displayed mathematics is judged line by line: right lines are accepted, a wrong one is refused on its own line, once."""

import json
import re
import signal

import pytest

from backpass.derivation import derive
from backpass.derivation.document import form_of, read_document
from backpass.derivation.judge import equality, judge
from backpass.derivation.language.parse import Unreadable

from .judging import kinds, one, verdicts

SOFTMAX = r"""
    given x, \bar{y} \in \mathbb{R}^n
    let S = \sum_j e^{x_j}
    let y_i = \frac{e^{x_i}}{S}
    \frac{\partial y_i}{\partial x_i} = \frac{e^{x_i} S - e^{x_i} e^{x_i}}{S^2}
        = y_i (1 - y_i)
    \frac{\partial \mathcal{L}}{\partial x_i} = \sum_j \bar{y}_j \frac{\partial y_j}{\partial x_i}
        = \sum_j \bar{y}_j y_j (\delta_{ij} - y_i)
        = y_i \left( \bar{y}_i - \sum_j \bar{y}_j y_j \right)
"""
LAYER_NORM = r"""
    given x, \bar{y} \in \mathbb{R}^n
    constant \epsilon \in \mathbb{R}_{>0}
    let \mu = \frac{1}{n} \sum_j x_j
    let v = \frac{1}{n} \sum_j (x_j - \mu)^2
    let s = \sqrt{v + \epsilon}
    let y_i = \frac{x_i - \mu}{s}
    \frac{\partial v}{\partial x_i} = \frac{2}{n} (x_i - \mu)
    \frac{\partial s}{\partial x_i} = \frac{1}{2 s} \cdot \frac{2}{n} (x_i - \mu)
        = \frac{y_i}{n}
    \bar{x}_i = \frac{1}{s} \left( \bar{y}_i - \frac{1}{n} \sum_j \bar{y}_j - \frac{y_i}{n} \sum_j \bar{y}_j y_j \right)
"""
MATMUL = r"""
    given X \in \mathbb{R}^{m \times k}, W \in \mathbb{R}^{k \times p}, \bar{Y} \in \mathbb{R}^{m \times p}
    let Y = X W
    \bar{X}_{ia} = \sum_j \bar{Y}_{ij} W_{aj}
    \frac{\partial \mathcal{L}}{\partial X} = \bar{Y} W^\top
    \frac{\partial \mathcal{L}}{\partial W} = X^\top \bar{Y}
"""
DENOMINATOR = r"""
    layout denominator
    given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}, U \in \mathbb{R}^{p \times m}
    given \bar{y} \in \mathbb{R}^p
    let h = W x
    let y = U h
    \frac{\partial y}{\partial x} = \frac{\partial h}{\partial x} \frac{\partial y}{\partial h}
        = W^\top U^\top
    \frac{\partial \mathcal{L}}{\partial x} = \frac{\partial y}{\partial x} \frac{\partial \mathcal{L}}{\partial y}
        = W^\top U^\top \bar{y}
"""
NUMERATOR = r"""
    layout numerator
    given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}, U \in \mathbb{R}^{p \times m}
    given \bar{y} \in \mathbb{R}^p
    let h = W x
    let y = U h
    \frac{\partial y}{\partial x} = \frac{\partial y}{\partial h} \frac{\partial h}{\partial x}
        = U W
    \frac{\partial \mathcal{L}}{\partial x} = \frac{\partial \mathcal{L}}{\partial y} \frac{\partial y}{\partial x}
        = \bar{y}^\top U W
"""
TEXTS = {
    "softmax": SOFTMAX,
    "layer-norm": LAYER_NORM,
    "matmul": MATMUL,
    "denominator": DENOMINATOR,
    "numerator": NUMERATOR,
}


def split(text):
    """The declarations and the statements of a derivation."""
    lines = [line.strip() for line in text.strip().splitlines()]
    declared = [n for n, line in enumerate(lines) if line.startswith(("given", "constant", "let", "layout"))]
    return lines[: declared[-1] + 1], lines[declared[-1] + 1 :]


def markdown(text):
    """A derivation as somebody else might print it, one line of it on each line."""
    definitions, lines = split(text)
    rows = [rf"{line} \\".replace(" = ", " &= ", 1) for line in lines]
    comment = "; ".join(definitions)
    return "\n".join([f"<!-- derive: {comment} -->", "$$", r"\begin{aligned}", *rows, r"\end{aligned}", "$$"])


def latex(text):
    definitions, lines = split(text)
    rows = [rf"{line.replace('^' + chr(92) + 'top', '^T')} \label{{r{n}}} \\" for n, line in enumerate(lines)]
    comments = [f"% derive: {one}" for one in definitions]
    return "\n".join([*comments, r"\begin{align*}", *rows, r"\end{align*}"])


@pytest.mark.parametrize("written", [markdown, latex])
@pytest.mark.parametrize("name", TEXTS)
def test_right_lines_are_accepted(name, written):
    text = written(TEXTS[name])
    assert set(kinds(text, name="text.tex" if written is latex else "text.md")) == {"equal"}


@pytest.mark.parametrize("name", TEXTS)
def test_each_single_mistake_is_blamed_on_its_own_line_and_once(name):
    derivation = derive(TEXTS[name], name=name)
    right = verdicts(markdown(TEXTS[name]))
    survivors = {(flip.flip.line, flip.flip.text) for flip in derivation.survivors()}
    count = 0
    for flip in derivation.flips():
        if derivation.lines[flip.line].kind in ("let", "given", "constant", "layout"):
            continue
        if (flip.line, flip.text) in survivors or flip.side == "left":
            continue
        found = verdicts(markdown(flip.text))
        at = flip.line - len(split(TEXTS[name])[0])
        assert len(found) == len(right)
        changed = found[at]
        # A change may leave what has no meaning: a free index, or matrices that do not fit.
        assert changed.kind in ("refused", "ill-formed", "not readable"), str(flip)
        if changed.kind == "refused" and changed.counterexample:
            count += 1
            assert changed.counterexample.expected != changed.counterexample.found
        elif changed.kind == "not readable":
            assert "it holds" not in changed.message, str(flip)
        others = [verdict.kind for n, verdict in enumerate(found) if n != at]
        assert set(others) <= {"equal"}, str(flip)
    # Every change of the two layouts' lines leaves matrices that do not fit.
    assert count > 1 or name in ("denominator", "numerator")


GIVEN = r"given x, \bar{y} \in \mathbb{R}^n; let y_i = x_i \sum_j x_j"


def test_a_line_after_a_refused_one_is_not_blamed():
    found = verdicts(
        r"""$$\begin{aligned} \bar{x}_i &= \bar{y}_i \sum_j x_j + \sum_j \bar{y}_j x_i \\
        &= \sum_j (\bar{y}_i x_j + \bar{y}_j x_i) \\
        &= \bar{y}_i \sum_j x_j + \sum_j \bar{y}_j x_j \end{aligned}$$""",
        GIVEN,
    )
    assert [verdict.kind for verdict in found] == ["refused", "follows", "equal"]
    assert "follows from line 1" in found[1].message
    assert found[0].counterexample.where[0] == "n = 2"


def test_a_new_name_is_defined_where_it_is_displayed():
    text = r"""
        $$ s = \sum_j x_j $$
        $$ \sum_i y_i = s^2 = s \sum_i x_i. $$
    """
    found = verdicts(text, GIVEN)
    assert [verdict.kind for verdict in found] == ["definition", "equal", "equal"]
    assert ("s", 2) in found[1].basis.definitions
    assert [sizes["n"] for sizes in found[1].basis.sizes] == [2, 3, 4]


def test_definitions_hold_until_their_section_ends():
    text = (
        "# A\n## B\n<!-- derive: "
        + GIVEN
        + " -->\n$$ y_1 = x_1 \\sum_j x_j $$\n## C\n$$ y_1 = x_1 \\sum_j x_j $$"
    )
    assert kinds(text) == ["equal", "not readable"]


@pytest.mark.parametrize(
    "text, said",
    [
        (r"y_i = f(x_i)", "prints like a function"),
        (r"z = \text{top}(x)_1", "prints like a function"),
        (r"x_i = 2 y_i", "x is declared"),
        (r"dx_1 = 2", "differential"),
        (r"n = 5", "every size is tried"),
        (r"e = 2 e", "Euler"),
        (r"x_i = y_j", "the index j is not on the left"),
        (r"x_1 \approx y_1", "only = is judged"),
        (r"x_1 = x_1 \quad \text{almost surely}", "not a condition"),
        (r"\begin{vmatrix} x_1 & x_2 \end{vmatrix} = x_1", "a determinant needs a square matrix"),
        (r"\begin{bmatrix} x_1 & \cdots & x_3 \end{bmatrix} = x^T", "differ in more than an index"),
    ],
)
def test_what_is_uncertain_is_not_guessed(text, said):
    verdict = one(text, GIVEN + "; given d \\in \\mathbb{R}")
    assert verdict.kind == "not readable"
    assert said in verdict.message


def test_a_bar_is_a_gradient_only_where_that_is_said():
    definitions = r"given x \in \mathbb{R}^n; let y_i = 2 x_i"
    assert one(r"\bar{x}_i = 2 \bar{y}_i", definitions).kind == "not readable"
    assert one(r"\bar{x}_i = 2 \bar{y}_i", definitions + "; bar gradient").kind == "equal"


def test_a_partial_derivative_with_two_readings():
    definitions = r"given x \in \mathbb{R}; let m = x^2; let y = x m"
    text = r"\frac{\partial y}{\partial x} = m"
    assert one(text, definitions).kind == "not readable"
    assert one(text, definitions + "; partial total").kind == "refused"
    assert one(r"\frac{\partial y}{\partial x} = 2 m", definitions).kind == "refused"
    assert one(r"\frac{\partial y}{\partial x} = 3 m", definitions).kind == "equal"


def test_a_layout_that_is_not_stated():
    definitions = r"given A, B, \bar{Y} \in \mathbb{R}^{n \times n}; let Y = A B"
    text = r"\frac{\partial \mathcal{L}}{\partial B} = \frac{\partial \mathcal{L}}{\partial Y} A"
    assert "numerator layout" in one(text, definitions).message
    assert one(text, "layout numerator; " + definitions).kind == "equal"
    assert one(text, "layout denominator; " + definitions).kind == "refused"


def test_a_line_that_takes_too_long_is_not_readable(monkeypatch):
    def slow(known, first, anchor, part, *rest):
        if "7" in part.text:
            signal.raise_signal(signal.SIGPROF)  # as the timer does after the time limit
        return equality(known, first, anchor, part, *rest)

    monkeypatch.setattr("backpass.derivation.judge.equality", slow)
    handler, timer = signal.getsignal(signal.SIGPROF), signal.getitimer(signal.ITIMER_PROF)
    text = r"$$\begin{aligned} \sum_i y_i &= 7 \\ &= (\sum_i x_i)^2 \end{aligned}$$"
    document = read_document(text, "markdown")
    first, second = judge(document, GIVEN, seconds=600)
    assert (first.kind, second.kind) == ("not readable", "equal")
    assert "it took longer than 600 s: write it in smaller steps" in first.message
    assert signal.getsignal(signal.SIGPROF) is handler
    assert signal.getitimer(signal.ITIMER_PROF)[1] == timer[1]


def test_an_explanation_that_takes_too_long_is_not_readable(monkeypatch):
    monkeypatch.setattr("backpass.derivation.judge.refusal", lambda *_: signal.raise_signal(signal.SIGPROF))
    text = "$$ x_1 = x_2 = x_1 $$"
    found = judge(read_document(text, "markdown"), GIVEN, seconds=600)
    assert [verdict.kind for verdict in found] == ["not readable", "equal"]


SHAPES = (
    r"given X, Z \in \mathbb{R}^{m \times k}, W, V \in \mathbb{R}^{k \times p}, u \in \mathbb{R}^m; "
    r"given v, b \in \mathbb{R}^p, c \in \mathbb{R}, D \in \mathbb{R}^{3 \times 4}, \bar{E} \in \mathbb{R}^{m \times k}"
)


@pytest.mark.parametrize(
    "text, said",
    [
        ("Y = W X", "a matrix of shape k × p cannot be multiplied by a matrix of shape m × k"),
        ("X W = W X", "cannot be multiplied by"),
        (r"\operatorname{tr}(W X) = c", "cannot be multiplied by"),
        ("Y = X W + W", "a matrix of shape m × p cannot be added to a matrix of shape k × p"),
        ("Y = X + X^\\top", "cannot be added to"),
        ("Y = W u", "cannot be multiplied by"),
        ("Y = u^\\top W", "cannot be multiplied by"),
        ("Y = u^\\top v X", "cannot be multiplied by"),
        (r"Y = X \odot W", "cannot be multiplied"),
        ("X W = X", "this is m × k, but it is set equal to m × p"),
        ("u = v", "this is p × 1, but it is set equal to m × 1"),
        ("W = X W", "set equal to k × p"),
        (r"\frac{\partial \mathcal{L}}{\partial Z} = W", "set equal to m × k"),
        (r"\bar{E} = W", "set equal to m × k"),
    ],
)
def test_declared_shapes_that_do_not_fit_are_refused(text, said):
    verdict = one(text, SHAPES)
    assert (verdict.kind, verdict.counterexample) == ("ill-formed", None)
    assert said in verdict.message and "^" in verdict.message
    assert verdict.basis.definitions


@pytest.mark.parametrize(
    "text",
    [
        "Y = X W + b",  # added to each row
        "Y = X W + c",
        "X = c",
        "Y = v W",  # a row
        "Y = X Z",  # a product of elements
        "Y = D X",  # m may be 4
        "u = u^\\top",
        r"Y = \bar{E} X",
    ],
)
def test_shapes_that_fit_in_another_reading_are_not_refused(text):
    assert one(text, SHAPES + r"; let E = X").kind == "not readable"


def test_a_definition_by_derivatives_has_the_shape_of_its_layout():
    definitions = r"layout numerator; given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}; let y = W x; "
    text = "W = J"
    assert one(text, definitions + r"let J = W^\top").kind == "ill-formed"
    assert (
        one(
            text, definitions.replace("numerator", "denominator") + r"let J = \frac{\partial y}{\partial x}"
        ).kind
        == "not readable"
    )


def test_a_line_after_shapes_that_do_not_fit():
    text = r"$$\begin{aligned} X W &= X W + W \\ &= X W \\ &= 2 X W \end{aligned}$$"
    found = verdicts(text, SHAPES)
    assert [verdict.kind for verdict in found] == ["ill-formed", "equal", "refused"]
    assert found[2].counterexample and found[2].against == 1


def test_another_definition_of_the_same_name_is_not_refused():
    text = "$$ s = \\sum_j x_j $$\n$$ s = \\sum_j x_j^2 $$\n$$ s = 1 $$"
    assert kinds(text, GIVEN) == ["definition", "not readable", "not readable"]


def test_a_notebook():
    cells = [
        {"cell_type": "code", "source": ["x = 1"]},
        {"cell_type": "markdown", "source": [f"<!-- derive: {GIVEN} -->\n", "$$ y_1 = x_2 $$"]},
    ]
    text = json.dumps({"cells": cells})
    document = read_document(text, form_of("a.ipynb", text))
    (verdict,) = judge(document)
    assert verdict.kind == "refused"
    assert document.place(verdict.line) == "cell 2, line 2"
    with pytest.raises(ValueError, match="expected a notebook"):
        read_document("{}", "notebook")


def test_code_is_not_mathematics():
    assert kinds("```\n$$ 1 = 2 $$\n```\n`$$ 1 = 2 $$`\n<!-- $$ 1 = 2 $$ -->") == []
    assert kinds("% $$ 1 = 2 $$\n\\begin{verbatim}$$ 1 = 2 $$\\end{verbatim}", name="a.tex") == []
    assert kinds("```{math}\n1 = 2\n```\n\\\\[ 1 = 1 \\\\]") == ["refused", "equal"]


@pytest.mark.parametrize(
    "text, expected",
    [
        (r"The sum is \\[ 1 + 1 = 2 \\] and \\[ 1 + 1 = 3 \\]", ["equal", "refused"]),
        ("The sum is \\\\[\n1 + 1 = 3\n\\\\]", ["refused"]),
        ("- so that \\\\[ 1 = 1 \\\\\\\\[2pt] 1 = 2 \\\\]", ["equal", "refused"]),
        (r"So \\[ \begin{align} 1 &= 1 \\ 2 &= 1 \end{align} \\]", ["equal", "refused"]),
        (r"a row $\begin{matrix} a \\[2pt] b \end{matrix}$ and \\[ 1 = 2 \\]", ["refused"]),
        ("a bracket \\\\[ here\n\n1 = 2 \\\\]", []),
        (r"`\\[ 1 = 2 \\]`", []),
        (r"$$ 1 = 1 \\[4pt] 1 = 2 $$", ["equal", "refused"]),
    ],
)
def test_brackets_behind_an_escaped_backslash_are_displays(text, expected):
    assert kinds(text) == expected


def test_a_bad_name_does_not_drop_the_others_of_its_declaration():
    comment = r"""<!-- derive: given P \in \mathbb{R}^{n \times m}, c \in \mathbb{R}
    given x, y, c \in \mathbb{R}^n, z \in \mathbb{R}
    slice P_i, \bar{P}_i \in \mathbb{R}^m -->

    """
    right = r"$$ x^\top y + z c = y^\top x + c z $$ $$ P_i^\top P_i = \sum_j P_{ij}^2 $$"
    found = verdicts(comment + right)
    assert [one.kind for one in found] == 2 * ["not readable"] + 2 * ["equal"]
    assert "c is already declared" in found[0].message and "slice is a declared name" in found[1].message
    assert [one.latex for one in found[:2]] == [
        r"given c \in \mathbb{R}^n",
        r"slice \bar{P}_i \in \mathbb{R}^m",
    ]
    assert kinds(comment + r"$$ x^\top y = x^\top x $$")[2:] == ["refused"]


def test_a_space_that_cannot_be_read_is_reported_once():
    (verdict,) = verdicts(r"<!-- derive: given x, y \in \mathbb{R}^{n + } -->")
    assert verdict.kind == "not readable" and "x, y" in verdict.latex


def test_definitions_that_cannot_be_read():
    with pytest.raises(Unreadable, match="expected given"):
        kinds("", "suppose x")
    (verdict,) = verdicts("<!-- derive: given x \\in -->")
    assert (verdict.kind, verdict.display) == ("not readable", -1)
    assert re.search(r"1: ", verdict.message)


def test_a_row_that_continues_the_row_above():
    definitions = r"given a, b, c \in \mathbb{R}"
    text = r"$$\begin{aligned} 2 a &= a + b \\ &\quad\; + \; c + a - b - c \end{aligned}$$"
    assert kinds(text, definitions) == ["equal"]
    doubtful = r"$$\begin{aligned} 2 a b &= 2 a \\ & b \end{aligned}$$"
    assert set(kinds(doubtful, definitions)) == {"not readable"}


def test_an_equation_of_two_letters():
    assert kinds("$$ a = b $$", r"given a \in \mathbb{R}; let b = 2 a") == ["not readable"]  # a is declared
    assert kinds("$$ b = a = c $$\n$$ b = a $$", r"given a, c \in \mathbb{R}; let b = 2 a - a") == [
        "equal",
        "refused",
        "equal",
    ]
    assert kinds(r"$$ x_i = x_j \quad i = j $$", GIVEN) == ["not readable"]


def test_the_number_of_an_equation_is_not_a_condition():
    for number in ("(1)", r"\text{(2.1a)}"):
        assert kinds(rf"$$ y_1 = x_1 \sum_k x_k \qquad {number} $$", GIVEN) == ["equal"]
        assert kinds(rf"$$ y_1 = x_1 \qquad {number} $$", GIVEN) == ["refused"]


def test_a_condition_of_a_display_concerns_the_lines_that_have_its_indices():
    text = r"""
        <!-- derive: when j \ne i -->
        $$\begin{aligned} \frac{\partial y_i}{\partial x_i} &= x_i + \sum_k x_k \\
        \frac{\partial y_j}{\partial x_i} &= x_j \end{aligned}$$
    """
    assert kinds(text, GIVEN) == ["equal", "equal"]
    found = verdicts(text.replace(r"when j \ne i", "partial total"), GIVEN)
    assert [verdict.kind for verdict in found] == ["equal", "refused"]
    assert "it holds where i \\ne j" in found[1].message


@pytest.mark.parametrize("name", ["align", "align*", "gather*", "equation", "eqnarray"])
def test_an_environment_of_latex_may_stand_between_dollars(name):
    body = rf"\begin{{{name}}} 2 a &= a + a \\ &= 3 a \end{{{name}}}"
    assert [v.kind for v in verdicts(f"$$ {body} $$", r"given a \in \mathbb{R}")] == ["equal", "refused"]


def test_the_loss_may_have_two_names():
    given = r"loss L; given x, \bar{y} \in \mathbb{R}^n; let y_i = x_i^2"
    text = (
        r"$$ \frac{\partial L}{\partial x_i} = \frac{\partial \mathcal{L}}{\partial x_i} = 2 x_i \bar{y}_i $$"
    )
    assert kinds(text, given) == ["equal", "equal"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"A^{\odot 2} = A \odot A", r"A^{\odot 2} = A A"),
        (r"(A \odot A)^{\odot -1} \odot A = A^{\odot -1}", r"A^{\odot -1} \odot A = A"),
        (r"B = \bigodot_{k=1}^p Q_k K_k^T", r"B = \bigodot_{k=1}^p K_k Q_k^T"),
        (r"\bigodot_{k=1, k \ne m}^p Q_k K_k^T = B \odot (Q_m K_m^T)^{\odot -1}", r"\bigodot_{k=1, k \ne m}^p Q_k K_k^T = B"),
        (r"A_{ij} \prod_{k=1, k \ne j}^n A_{ik} = \prod_k A_{ik}", r"\prod_{k=1, k \ne j}^n A_{ik} = \prod_k A_{ik}"),
        (r"\sum_{j=1, j \ne i}^n x_j = \sum_j x_j - x_i", r"\sum_{j=1, j \ne i}^n x_j = \sum_j x_j + x_i"),
        (r"x - (x^T x) \mathbf{1} = x - \lVert x \rVert^2 \mathbf{1}_n", r"x - (x^T x) \mathbf{1} = x"),
        (r"\mathbf{1}^T A \mathbf{1} = \sum_{i,j} A_{ij}", r"\mathbf{1}^T A \mathbf{1} = \operatorname{tr}(A)"),
        (r"A + x \mathbf{1}^T = A + x \mathbf{1}_n^T", r"A + x \mathbf{1}^T = A + \mathbf{1} x^T"),
        (r"\max(0, A) = A \odot [A > 0]", r"\max(0, A) = A \odot [A < 0]"),
        (r"\max(x, y) + \max(-x, -y) = [x > y] \odot (x - y) - [x < y] \odot (x - y)", r"\max(x, y) = x + y"),
        (r"\delta_{ij} = \delta_{ji}", r"\delta_{ij} = 1 - \delta_{ij}"),
        (r"\frac{\partial c^2}{\partial c} = 2 c", r"\frac{\partial c^2}{\partial c} = c"),
        (r"x_i + x_i = 2 x_i, \quad i = 1, \dots, n", r"x_i + x_i = 3 x_i, \quad i = 1, \dots, n"),
        (r"A x + x = x + A x, \quad A \in \mathbb{R}^{n \times n}", r"A x + x = A x, \quad A \in \mathbb{R}^{n \times n}"),
        (r"\frac{\partial (c x_i)}{\partial \tilde{x_i}} = 0", r"\frac{\partial (c \tilde{x}_i)}{\partial \tilde{x_i}} = 0"),
        (r"\colorbox{red}{ $c + c = 2 c$. }", r"\colorbox{red}{ $c + c = 3 c$. }"),
    ],
)  # fmt: skip
def test_what_texts_write_is_read(right, wrong):
    definitions = (
        r"given x, y, \tilde{x} \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, c \in \mathbb{R}"
        r"; given Q, K \in \mathbb{R}^{p \times s \times d}; slice Q_m, K_m \in \mathbb{R}^{s \times d}"
        r"; let B_{ij} = \prod_k (\sum_a Q_{kia} K_{kja})"
    )
    assert one(right, definitions).kind == "equal"
    assert one(wrong, definitions).kind == "refused"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\bigodot_k A A = A", "how far does this \\bigodot reach?"),
        (r"\bigodot_{k=1}^n x_k A \odot A = A", "how far does this \\bigodot reach?"),
        (r"\sum_{j=1, k \ne j}^n x_j = x_1", "write j first in its condition"),
        (r"\sum_{j=1, k \ne i}^n x_j = x_1", "write j first in its condition"),
        (r"\mathbf{1}^T \mathbf{1} = n", r"what is the size of \mathbf{1}?"),
        (r"\frac{\partial x^2}{\partial c} = 0", "only numbers and square matrices have powers"),
        (r"\max(x, A) = A", "cannot be compared"),
        (r"x_i = 2 x_i, \quad i = 1, \dots, q", "not a condition"),
        (r"A x = x, \quad A \in \mathbb{R}^{n \times q}", "not a condition"),
        (r"x_i = x_i \quad (\text{for some } i)", "not a condition"),
        (r"x_i = x_i \quad \text{is false}", "not a condition"),
    ],
)
def test_what_is_not_certain_there(text, said):
    verdict = one(text, r"given x \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, c \in \mathbb{R}")
    assert verdict.kind == "not readable"
    assert said in verdict.message


@pytest.mark.parametrize("remark", [r"(\text{applied to each row})", r"\text{by symmetry}"])
def test_a_remark_may_restrict_a_wrong_line_and_does_not_change_a_right_one(remark):
    definitions = r"given x \in \mathbb{R}^n"
    assert one(rf"x_i + x_i = 2 x_i \quad {remark}", definitions).kind == "equal"
    doubtful = one(rf"x_i + x_i = 3 x_i \quad {remark}", definitions)
    assert doubtful.kind == "not readable"
    assert "unless the words beside it restrict it" in doubtful.message


def test_an_implication_does_not_claim_its_premise():
    definitions = r"given x \in \mathbb{R}^n, c \in \mathbb{R}"
    assert kinds(r"$$ c \cdot 1 = c \implies 2 c = c + c $$", definitions) == ["equal", "equal"]
    assert kinds(r"$$ c + 1 = 2 \implies 2 c = 2 $$", definitions) == ["not readable"] * 2
    assert kinds(r"$$ c + 1 = 2 \Rightarrow c + 3 = 4 = 2 + 2 $$", definitions) == ["not readable"] * 3


def test_the_root_of_the_square_of_a_root_is_that_root():
    definitions = r"given x \in \mathbb{R}^n; let \sigma = \sqrt{\sum_i x_i^2}"
    assert one(r"\sqrt{\sigma^2} = \sigma", definitions).kind == "equal"
    assert one(r"\sqrt{\sigma^2} = -\sigma", definitions).kind == "refused"


def test_a_counterexample_goes_through_definitions_and_maxima():
    definitions = r"given x \in \mathbb{R}^n, c \in \mathbb{R}; let s = \sqrt{\sum_i x_i^2}; let r = s c"
    found = one(r"r + \max_j x_j - x_1 = r - \max_j x_j + x_1", definitions).counterexample
    numbers = [float(value.split("(")[-1].split()[0]) for value in (found.expected, found.found)]
    x, c = (5 / 8, 7 / 9), 3 / 7
    s = (x[0] ** 2 + x[1] ** 2) ** 0.5
    assert numbers == pytest.approx([s * c + max(x) - x[0], s * c - max(x) + x[0]], rel=1e-5)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"[a > b] [b > c] [c > x_1] [a > x_1] = [a > b] [b > c] [c > x_1]", r"[a > b] [b > c] [c > x_1] [x_1 > x_2] = 0"),
        (r"\max(a, \max(b, c)) = \max(\max(a, b), c)", r"\max(a, \max(b, c)) = \max(\max(a, b), c) + [x_1 > b] [b > c] [c > a] [a > x_2]"),
        (r"[a > b] [c > a] [c > b] = [a > b] [c > a]", r"[a > b] [c > a] [x_1 > c] [x_2 > x_1] = [a > b] [c > a] [x_1 > c] [x_1 > x_2]"),
    ],
)  # fmt: skip
def test_rare_orders_of_several_numbers_are_tried(right, wrong):
    definitions = r"given a, b, c \in \mathbb{R}, x \in \mathbb{R}^n"
    found = one(right, definitions)
    assert found.kind == "equal"
    assert found.basis.points > 16
    assert one(wrong, definitions).kind == "refused"


CROSS_ENTROPY = r"""
## Definitions

$$ a_j = \frac{e^{z_j}}{\sum_k e^{z_k}} $$

$$ L = -\sum_k y_k \log a_k $$

## Its gradient

$$ \frac{\partial L}{\partial z_i} = -\sum_k y_k \frac{1}{a_k} \frac{\partial a_k}{\partial z_i} $$

$$ = -y_i (1 - a_i) + \sum_{k \ne i} y_k a_i, $$
> $$ = a_i \sum_k y_k - y_i $$
$$ = a_i - y_i $$
"""
CONSTANT = r"loss L; given z \in \mathbb{R}^n; constant y \in \mathbb{R}^n"


def test_definitions_hold_beyond_their_section_if_they_are_kept():
    assert kinds(CROSS_ENTROPY, f"{CONSTANT}; keep definitions") == ["definition"] * 2 + ["equal"] * 3 + [
        "refused"
    ]
    found = verdicts(CROSS_ENTROPY, CONSTANT)
    assert [verdict.kind for verdict in found] == ["definition"] * 2 + ["not readable"] * 4
    assert "line 4 defined it, but that section has ended" in found[2].message


def test_a_loss_whose_section_has_ended_is_not_taken_for_any_loss():
    text = CROSS_ENTROPY.replace(r"$$ a_j = \frac{e^{z_j}}{\sum_k e^{z_k}} $$", "")
    found = verdicts(text, CONSTANT + r"; let a_j = \frac{e^{z_j}}{\sum_k e^{z_k}}")
    assert [verdict.kind for verdict in found][1] == "not readable"
    assert "the loss has no definition here; line 6 defined it" in found[1].message


def test_an_assumption_about_constants():
    definitions = f"{CONSTANT}; keep definitions"
    refused = verdicts(CROSS_ENTROPY, definitions)[-1]
    assert refused.message.startswith(r"it holds if \sum_i y_i = 1; if that is meant, declare constant y")
    assert kinds(CROSS_ENTROPY, definitions + r"; assume \sum_k y_k = 1")[2:] == ["equal"] * 4
    assert kinds(CROSS_ENTROPY, definitions + r"; assume \sum_k y_k = 2")[2:] == ["equal"] * 3 + ["refused"]
    wrong = CROSS_ENTROPY.replace("a_i - y_i $$", "a_i + y_i $$")
    assert kinds(wrong, definitions + r"; assume \sum_k y_k = 1")[2:] == ["equal"] * 3 + ["refused"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"\sum_{i,j} A_{ij} = 1", r"\sum_i A_{ij} = 1"),
        (r"y_1 = 1 - \sum_{k \ne 1} y_k", r"y_1 + y_2 = 1"),
        (r"\sum_j A_{ij} x_i = x_i y_i", r"\sum_j A_{ij} x_i = x_i"),
    ],
)
def test_several_assumptions_and_one_for_each_index(right, wrong):
    definitions = r"""given x \in \mathbb{R}^n
        constant y \in \mathbb{R}^n, A \in \mathbb{R}^{n \times m}
        assume \sum_k y_k = 1
        assume \sum_j A_{ij} = y_i"""
    assert one(right, definitions).kind == "equal"
    assert one(wrong, definitions).kind == "refused"


@pytest.mark.parametrize(
    ("assumption", "said"),
    [
        (r"given x \in \mathbb{R}^n; assume \sum_k x_k = 1", "declare constant x"),
        (r"constant x \in \mathbb{R}^n; assume x_i = x_j", "the index j is only on the right"),
        (r"constant x \in \mathbb{R}^n; assume x = 1", "a matrix of shape n × 1 is not a number"),
        (r"constant x \in \mathbb{R}^n; assume x_1 = 1 \quad (i < j)", "cannot have conditions"),
        (r"constant x \in \mathbb{R}^n; assume \sum_k x_k^2 = 1", "must be linear"),
        (r"constant x \in \mathbb{R}^n; assume x_1 x_2 = 1", "must be linear"),
        (r"constant x \in \mathbb{R}^n; assume x_1 = 2; assume x_1 = 3", "must be linear"),
    ],
)
def test_what_cannot_be_assumed(assumption, said):
    with pytest.raises(Unreadable, match=re.escape(said)):
        verdicts("", assumption)


def test_a_display_that_begins_with_an_equals_sign_continues_only_the_display_directly_above():
    definitions = r"given x \in \mathbb{R}^n"
    assert kinds("$$ \\sum_i x_i + x_1 $$\n\n$$ = x_1 + \\sum_i x_i $$", definitions) == ["equal"]
    apart = kinds("$$ x_1 + x_2 = x_2 + x_1 $$\n\nand so\n\n$$ = x_1 $$", definitions)
    assert apart == ["equal", "not readable"]


def test_an_equation_of_indices_is_a_condition():
    definitions = r"given z \in \mathbb{R}^n; let a_j = \frac{e^{z_j}}{\sum_k e^{z_k}}"
    right = r"\frac{\partial a_j}{\partial z_i} = a_i (1 - a_i), \quad i = j"
    assert one(right, definitions).kind == "equal"
    assert one(right.replace("1 -", "1 +"), definitions).kind == "refused"
    assert one(right.replace("i = j", r"i \ne j"), definitions).kind == "refused"


REVIEWED = r"""given x, y \in \mathbb{R}^n, c, a, b, t \in \mathbb{R}, S \in \mathbb{R}^{n \times n}, A \in \mathbb{R}^{m \times n}, B \in \mathbb{R}^{k \times n}
    let f(t) = t^2
    let q(z) = \sum_i z_i^2
    let r(t) = \max(0, t)
    let h = \sin(c^2)
    layout numerator"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"[t > 1] = [t - 1 > 0]", "[t > 1] = [t > 1.2]"),
        (r"\min(\max(0, x_i), 6) = \max(0, x_i) - \max(0, x_i - 6)", r"\min(\max(0, x_i), 6) = \max(0, x_i)"),
        (r"\min(a, b) = a + b - \max(a, b)", r"\min(a, b) = \max(a, b)"),
        (r"[c > 0] = [2 c > 0]", "[c > 0] = [c > 0.001]"),
        (r"[e^c > 2] = [c > \log 2]", "[e^c > 2] = [c > 0.7]"),
        (r"[c > 1] [c < 1] = 0", "[c > 1] [c < 1.1] = 0"),
        ("[(a - 3) (a - 5) > 0] = [a^2 - 8 a + 15 > 0]", "[(a - 3) (a - 5) > 0] = [(a - 3) (a - 5.001) > 0]"),
        (
            r"\max(0, t) - \max(0, t - 1) = \begin{cases} 0 & t \le 0 \\ t & 0 < t < 1 \\ 1 & t \ge 1 \end{cases}",
            r"\max(0, t) - \max(0, t - 1) = \begin{cases} 0 & t \le 0 \\ t & 0 < t < 1.5 \\ 1 & t \ge 1.5 \end{cases}",
        ),
        (
            r"\max(0, \frac{x_i}{6} + \frac12) - \max(0, \frac{x_i}{6} - \frac12) = \begin{cases} 0 & x_i < -3 \\ \frac{x_i}{6} + \frac12 & -3 \le x_i \le 3 \\ 1 & x_i > 3 \end{cases}",
            r"\max(0, \frac{x_i}{6} + \frac12) - \max(0, \frac{x_i}{6} - \frac12) = \begin{cases} 0 & x_i < -3 \\ \frac{x_i}{6} + \frac12 & -3 \le x_i \le 4 \\ 1 & x_i > 4 \end{cases}",
        ),
        (r"A + \mathbf{1} \mathbf{1}^T = \mathbf{1} \mathbf{1}^T + A", r"A + \mathbf{1} \mathbf{1}^T = A"),
        (r"A \odot (\mathbf{1} \mathbf{1}^T) = A", r"A \odot (\mathbf{1} \mathbf{1}^T) = 2 A"),
        (r"A + \mathbf{1} \mathbf{1}^T B = A + \mathbf{1}_m \mathbf{1}_k^T B", r"A + \mathbf{1} \mathbf{1}^T B = A"),
        (r"S I I x = S x", r"S I I x = x"),
        (r"\operatorname{tr}(x^T S x) = x^T S x", r"\operatorname{tr}(x^T S x) = x^T x"),
        (r"\frac{dh}{dc}(c) = 2 c^2 \cos(c^2)", r"\frac{dh}{dc} \cdot (c) = 2 c \cos(c^2)"),
        (r"\frac{\mathrm d h}{\mathrm d c} = 2 c \cos(c^2)", r"\frac{\mathrm d h}{\mathrm d c} = c \cos(c^2)"),
        (r"\nabla_xq(x) = 2 x", r"\nabla_xq(x) = x"),
        (r"x_i + x_i = 2 x_i, \quad \forall i", r"x_i + x_i = 3 x_i, \quad \forall i"),
        (r"x_i + x_i = 2 x_i, \quad \text{for } i = 1, 2, \dots, n", r"x_i + x_i = 3 x_i, \quad i = 1, 2, \dots, n"),
        (r"2 c = c + c \\", r"2 c = 3 c \\"),
        (r"r(x_i - \delta_{i1}) = \max(0, x_i - \delta_{i1})", r"r(x_i - 100 \cdot \delta_{i1}) = r(x_i) \, (1 - \delta_{i1})"),
        (r"\sum_i r'(x_i) = \sum_i [x_i > 0]", r"\sum_i r'(x_i - 100 \cdot \delta_{i1}) = \sum_i [x_i > 0] - [x_1 > 0]"),
        (
            r"r'(x) = [x > 0]",
            r"r' \left( \begin{bmatrix} a - 100 \\ b \end{bmatrix} \right) = \begin{bmatrix} 0 \\ r'(b) \end{bmatrix}",
        ),
    ],
)  # fmt: skip
def test_what_a_hostile_reader_found(right, wrong):
    assert one(right, REVIEWED).kind == "equal"
    assert one(wrong, REVIEWED).kind == "refused"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"x_i = \begin{cases} x_i^7 & i = 5 \\ x_i & \text{otherwise} \end{cases}", "a number from 1 to 3"),
        (r"\delta_{i0} x_i = 0", "a number from 1 to 3"),
        (r"\sum_{i > 4} x_i = 0", ""),
        (r"\sum_{i \ne 5} x_i = \sum_i x_i", "a number from 1 to 3"),
        (r"\sum_{k \ne k} x_k = 0", "k is compared with itself"),
        (r"B = \mathbf{1} \mathbf{1}^T A", r"what is the size of \mathbf{1}?"),
        (r"x \mathbf{1} \, [c > 0] = x [c > 0]", r"what is the size of \mathbf{1}?"),
        (r"[\frac{1}{c - c} > 0] = 1", "this divides by 0"),
        (r"\nabla_x q(x) q(x) = 4 q(x) x", "how far does this derivative reach?"),
        (r"\nabla f(c) f(c) = 4 c^3", "how far does this derivative reach?"),
        (r"\partial f(c)^2 = 4 c^3", "how far does this derivative reach?"),
        (r"\nabla_c f(c) / c = 1", "how far does this derivative reach?"),
        (r"\nabla q(2 x) = 8 x", "with respect to a name?"),
        (r"\partial \exp(2 x) = 2 \operatorname{diag}(\exp(2 x))", "with respect to a name?"),
        (r"\frac{\partial h}{\partial c}(c) = 2 c \cos(c^2)", "a factor, or the point at which it is taken?"),
        (r"\partial q(x) \, (x - y) = 2 x^T (x - y)", "a direction or a factor?"),
        (r"\text{Off-diagonal: } \delta_{ij} = 0", "unless the words beside it restrict it"),
        (r"\text{At the optimum: } c + c = 1", "unless the words beside it restrict it"),
        (r"\max(0, c) - c = 0, \quad c \in \mathbb{R}_{>0}", "not a condition"),
        (r"x_i + x_i = 2 x_i, \quad i = 1, \dots, m", "i runs over n here, not m"),
        (r"A_{ij} x_j = x_j A_{ij}, \quad i = 1, \dots, n", "i runs over m here, not n"),
        (r"w_i = 2 x_i, \quad i = 1, \dots, m", "i runs over n here, not m"),
    ],
)  # fmt: skip
def test_what_a_hostile_reader_found_to_be_uncertain(text, said):
    verdict = one(text, REVIEWED)
    assert verdict.kind == "not readable"
    assert said in verdict.message


def test_a_premise_is_neither_refused_nor_a_definition():
    definitions = r"loss L; given w \in \mathbb{R}^n, c \in \mathbb{R}; let L = \lVert w \rVert^2"
    rows = r"$$ \begin{aligned} \frac{\partial L}{\partial w_1} &= 0 \\ \Rightarrow w_1 &= 0 \end{aligned} $$"
    assert kinds(rows, definitions) == ["not readable"] * 2
    assert kinds("$$ 2 c = 2 $$\n$$ \\implies c + c = 2 $$", definitions) == ["not readable"] * 2
    assert kinds("$$ r = 0 \\implies c r = 0 $$\n\n$$ c r = 0 $$", definitions) == ["not readable"] * 3


def test_the_loss_may_be_below_a_total_derivative():
    definitions = r"loss L; given x \in \mathbb{R}; let L = x^3"
    assert one(r"\frac{dL}{dx} = 3 x^2", definitions).kind == "equal"
    assert one(r"\frac{dL}{dx} = 2 x^2", definitions).kind == "refused"
