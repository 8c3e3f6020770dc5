"""A text without a comment is read by what it implies: nothing right is refused, and nothing wrong is equal."""

import pytest

from backpass.derivation.document import form_of, read_document
from backpass.derivation.judge import judge, suggest


def sight(text, definitions="", name="text.md"):
    return judge(read_document(text, form_of(name, text), definitions), definitions, infer=True)


def kinds(text, definitions="", name="text.md"):
    return [verdict.kind for verdict in sight(text, definitions, name) if verdict.display >= 0]


def displays(*formulas):
    return "\n\n".join(f"$$ {formula} $$" for formula in formulas)


LAYER = r"""
Let $W \in \mathbb{R}^{m \times n}$ be the weights, $x \in \mathbf{R}^n$ the input, and $b \in \Re^m$.

$$ y = W x + b $$

"""
BATCH_NORM = displays(
    r"(Mean) \space \mu = \frac{1}{N} \sum_{j=1}^N x_j",
    r"\sigma^2 = \frac{1}{N} \sum_{j=1}^N (x_j - \mu)^2",
    r"\hat{x}_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}",
    r"\frac{\partial \sigma^2}{\partial x_i} = \frac{2}{N} (x_i - \mu)",
)
SOFTMAX = displays(
    r"p_i = \frac{e^{z_i}}{\sum_{k=1}^K e^{z_k}}",
    r"\frac{\partial p_i}{\partial z_j} = p_i (\delta_{ij} - p_j)",
    r"L = -\sum_i y_i \log p_i",
    r"\frac{\partial L}{\partial z_j} = -\sum_i y_i (\delta_{ij} - p_j)",
)
RIDGE = displays(
    r"J(\mathbf{w}) = \frac12 \|\mathbf{X}\mathbf{w} - \mathbf{y}\|^2 + \frac{\lambda}{2} \mathbf{w}^T \mathbf{w}",
    r"\nabla_{\mathbf{w}} J = \mathbf{X}^T (\mathbf{X}\mathbf{w} - \mathbf{y}) + \lambda \mathbf{w}"
    r" = (\mathbf{X}^T\mathbf{X} + \lambda \mathbf{I}) \mathbf{w} - \mathbf{X}^T \mathbf{y}",
)


@pytest.mark.parametrize(
    "text",
    [
        LAYER + displays(r"\frac{\partial L}{\partial x} = W^\top \frac{\partial L}{\partial y}"),
        LAYER + displays(r"\frac{\partial L}{\partial W} = \frac{\partial L}{\partial y} x^T"),
        BATCH_NORM,
        SOFTMAX,
        RIDGE,
        displays(r"\frac{\partial}{\partial \mathbf{x}} (\mathbf{x}^T A \mathbf{x}) = (A + A^T) \mathbf{x}"),
        displays(r"\mathbf{x}^T A \mathbf{x} = \sum_{i,j} x_i A_{ij} x_j"),
        displays(r"\operatorname{tr}(\mathbf{A} \mathbf{B}) = \sum_{i,j} a_{ij} b_{ji}"),
        displays(r"\mathbf{z} = \mathbf{W}^{(1)} \mathbf{x}", r"\mathbf{h} = \phi(\mathbf{z})"),
        displays(r"y = softmax(x)", r"y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}"),
        displays(r"c(a + b) = c a + c b"),
        displays(r"\|u - v\|^2 = \|u\|^2 - 2 u^T v + \|v\|^2"),
        displays(r"RMS(x) = \sqrt{\frac{1}{n} \sum_{i=1}^n x_i^2}", r"n \, RMS(x)^2 = \sum_{i=1}^n x_i^2"),
        displays(r"\ell(w) = \sum_{i=1}^m \log \sigma(w^T x_i)"),
        "The sigmoid $\\sigma(z) = 1/(1+e^{-z})$.\n\n" + displays(r"\sigma'(z) = \sigma(z) (1 - \sigma(z))"),
    ],
)  # fmt: skip
def test_right_lines_are_read(text):
    found = sight(text)
    assert {verdict.kind for verdict in found} <= {"equal", "definition"}
    assert all(verdict.inferred for verdict in found if "sigmoid" not in text)


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (displays(r"(A B)^T = B^T A^T"), "B^T A^T", "A^T B^T"),
        (displays(r"a (b + c) = a b + a c"), "a b + a c", "a b + c"),
        (displays(r"h = \phi(z)", r"\frac{\partial h}{\partial z} = \phi'(z)"), r"\phi'(z)", r"\phi(z)"),
    ],
)
def test_a_wrong_line_is_not_equal_and_by_a_guess_not_refused(text, right, wrong):
    assert right in text
    assert set(kinds(text)) <= {"equal", "definition"}
    found = sight(text.replace(right, wrong))
    (fault,) = [verdict for verdict in found if verdict.kind not in ("equal", "definition")]
    assert fault.kind == "not readable"
    assert fault.message.startswith("it waits for a declaration: it is not equal if")
    assert fault.waits


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (BATCH_NORM, r"\frac{2}{N} (x_i", r"\frac{1}{N} (x_i"),
        (SOFTMAX, r"-\sum_i y_i (", r"\sum_i y_i ("),
    ],
)
def test_a_wrong_line_is_refused_by_its_indices(text, right, wrong):
    assert sorted(kinds(text.replace(right, wrong)))[-1:] == ["refused"]
    assert "refused" not in kinds("If $x$ and $y$ are constrained:\n\n" + text.replace(right, wrong))


def test_a_line_is_refused_that_is_wrong_where_all_lengths_are_one():
    wrong = RIDGE.replace(r"+ \lambda \mathbf{w} =", r"- \lambda \mathbf{w} =")
    assert "refused" in kinds(wrong)
    assert "refused" not in kinds("If $\\mathbf{w}$ is constrained:\n\n" + wrong)


def test_no_line_is_refused_by_indices_if_a_word_says_that_names_depend_on_others():
    right = displays(r"s = \sum_{i,j} (x_{ij} - m_j)^2 = \sum_{i,j} x_{ij}^2 - \sum_{i,j} m_j^2")
    assert kinds("Take out the column means:\n\n" + right) == ["definition", "not readable"]


def test_a_wrong_line_that_a_condition_would_mend_waits():
    (_, fault, *_) = sight(SOFTMAX.replace(r"p_i (\delta_{ij} - p_j)", r"p_i (\delta_{ij} - p_i)"))
    assert (fault.kind, fault.message) == ("not readable", "it waits for a declaration: it holds where i = j")


def test_a_wrong_line_is_refused_by_what_the_text_states():
    forgotten = r"\frac{\partial L}{\partial x} = W \frac{\partial L}{\partial y}"
    (_, fault) = sight(LAYER + displays(forgotten))
    assert fault.kind == "ill-formed" and r"it holds with W^\top" in fault.message
    assert any("is a matrix of shape m × n, from “W" in words for words in fault.inferred)
    stated = "Let $x \\in \\mathbb{R}^n$.\n\n"
    wrong = displays(r"\frac{\partial}{\partial x_i} \sum_j x_j^2 = 3 x_i")
    assert kinds(stated + wrong) == kinds(wrong) == ["refused"]


@pytest.mark.parametrize(
    "before",
    [
        "The vector $x$ has unit norm.",
        "Let $x \\in \\{0, 1\\}^n$.",
        "With $x_i = 1$ for all $i$:",
        "$$ \\sum_i x_i^2 = 1 $$",
        "where $x$ is the mean of the samples.",
    ],
)
def test_a_line_that_the_text_may_restrict_is_not_refused(before):
    wrong = displays(r"\frac{\partial}{\partial x_i} \sum_j x_j^2 = 3 x_i")
    assert "refused" not in kinds(f"{before}\n\n{wrong}")


@pytest.mark.parametrize(
    "text",
    [
        # What defines a name cannot be read, so its derivative is not known.
        displays(r"\mu = \mathbb{E}[x_i]", r"\frac{\partial}{\partial x_i} (x_i - \mu) = 1"),
        "Let $\\mu$ be the mean of $x$.\n\n" + displays(r"\frac{\partial}{\partial x_i} (x_i - \mu) = 1"),
        # Names without a definition do not depend on each other by chance.
        displays(r"\frac{\partial \mathbf{z}}{\partial \mathbf{x}} = \frac{\partial \mathbf{z}}{\partial \mathbf{y}} \frac{\partial \mathbf{y}}{\partial \mathbf{y}}"),
        # A bracket after a letter that occurs nowhere else may be an argument.
        displays(r"k(a + b) = k(a) + k(b)"),
        displays(r"\frac{\partial u}{\partial x} = 2 \frac{\partial u}{\partial x}"),
        # The loss has a term that cannot be read.
        displays(r"y = W x", r"J = \ell(y) + \Omega[W]", r"\frac{\partial J}{\partial W} = \frac{\partial J}{\partial y} x^T"),
        # A constraint.
        displays(r"w^T w = 1"),
        displays(r"\sum_i p_i = 1"),
        displays(r"A x = b"),
        # An update.
        displays(r"w = w - \eta g"),
    ],
)  # fmt: skip
def test_what_is_not_certain_waits(text):
    assert not {"equal", "refused", "ill-formed"} & {kinds(text)[-1]}


def test_one_layout_is_inferred_for_a_text():
    numerator = r"\frac{\partial (A \mathbf{x})}{\partial \mathbf{x}} = A"
    denominator = r"\frac{\partial (B \mathbf{y})}{\partial \mathbf{y}} = B^T"
    assert kinds(displays(numerator)) == kinds(displays(denominator)) == ["equal"]
    assert kinds(displays(numerator, denominator)) == ["equal", "not readable"]
    assert any("numerator layout" in words for words in sight(displays(numerator))[0].inferred)


def test_a_comment_wins():
    text = displays(r"x^2 y^2 = (x y)^2", r"A b = b A")
    assert kinds(text) == ["equal", "not readable"]
    given = r"given x, y \in \mathbb{R}^n, A, b \in \mathbb{R}"
    assert kinds(text, given) == ["not readable", "equal"]


def test_a_definition_below_its_use():
    text = displays(r"s = \sum_i r_i^2", r"\frac{\partial s}{\partial x_i} = 8 x_i", r"r_i = 2 x_i")
    assert kinds(text) == ["definition", "equal", "definition"]
    assert kinds(text.replace("8", "4")) == ["definition", "not readable", "definition"]


def test_names_of_another_section():
    text = "# One\n\n" + displays("(a + b)^2 = a^2 + 2 a b + b^2")
    text += "\n\n# Two\n\n" + displays(r"\sum_i \sum_j a_i b_j = \sum_i a_i \sum_j b_j")
    assert kinds(text) == ["equal", "equal"]


def test_labels_sum_to_1_if_the_text_says_that_they_are_labels():
    text = SOFTMAX + "\n\n" + displays(r"\frac{\partial L}{\partial z_j} = p_j - y_j")
    last = sight(text)[-1]
    assert last.kind == "not readable" and r"it holds if \sum_i y_i = 1" in last.message
    last = sight("The labels are one-hot.\n\n" + text)[-1]
    assert last.kind == "equal" and r"\sum_i y_i = 1, as for labels" in last.inferred


def test_words_in_prose():
    text = displays(r"u v^T = (v u^T)^T")
    assert "u is a vector of length n" in sight("For vectors $u$ and $v$:\n\n" + text)[0].inferred[0]
    assert kinds("The scalar $A$ and a vector $b$:\n\n" + displays("A b = b A")) == ["equal"]


def test_without_inference_nothing_changes():
    (verdict,) = judge(read_document(displays(r"x + x = 2 x"), "markdown"))
    assert (verdict.kind, verdict.inferred, verdict.waits) == ("not readable", (), ())


# ---- the comment that declares it ----------------------------------------------------


@pytest.mark.parametrize("text", [LAYER, BATCH_NORM, SOFTMAX, RIDGE])
@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_the_suggestion_is_valid_as_it_stands(text, form):
    text = text.replace("$$ ", r"\[ ").replace(" $$", r" \]") if form == "latex" else text
    found, suggestion = suggest(read_document(text, form))
    comment = "\n".join(suggestion.lines(form))
    assert "derive:" in comment
    again = judge(read_document(f"{comment}\n{text}", form))
    assert all(verdict.display >= 0 for verdict in again)
    assert [verdict.kind for verdict in again] == [verdict.kind for verdict in found]
    assert not any(verdict.inferred for verdict in again)


def test_the_suggestion_makes_no_line_wrong():
    text = displays(r"w^T w = 1", r"\|w - v\|^2 = \|w\|^2 - 2 w^T v + \|v\|^2")
    _, suggestion = suggest(read_document(text, "markdown"))
    assert [one for one in suggestion.directives if one.startswith("given v")]
    assert suggestion.missing == ("w",)


def test_a_function_of_which_nothing_is_known_is_left_to_the_author():
    _, suggestion = suggest(read_document(displays(r"h = \phi(z)"), "markdown"))
    assert suggestion.directives == (r"given z \in \mathbb{R}",)


def test_a_name_is_explained_by_the_section_that_it_is_inferred_from():
    text = displays(
        r"m_b = \frac{1}{H} \mathbf{u}_h x_{bh}",
        r"\mu_{bh} = x_{bh} - \mathbf{1}_{h} m_b",
        r"v_b = \frac{1}{H} \mathbf{1}_{3} \mu_{bh}^{2}",
        r"\sigma_b = \sqrt{v_b + \xi}",
        r"y_{bh} = \frac{\mu_{bh}}{\sigma_b} \gamma_h + \mathbf{1}_{b} \beta_h",
    )
    slopes = (
        r"\begin{aligned} & \frac{\partial y_{bh}}{\partial \gamma_q} = \frac{\mu_{bh}}{\sigma_b} \delta_{hq} \\",
        r"& \frac{\partial y_{bh}}{\partial \beta_q} = \mathbf{1}_{b} \delta_{hq} \end{aligned}",
    )
    found = kinds(text + "\n\n# Second\n\n" + displays(" ".join(slopes)))
    assert len(found) == 7 and "refused" not in found


def test_a_formula_without_a_relation_claims_nothing():
    text = displays(r"a(b + k) = ab + ak") + "\n\nThe number $$k$$ is small."
    assert kinds(text) == ["equal", "nothing claimed"]


def test_a_function_that_is_only_differentiated_is_not_called():
    elements = r" \\ ".join(rf"\frac{{\partial f}}{{\partial x_{one}}}" for one in "12")
    elements += r" \\ \vdots \\ \frac{\partial f}{\partial x_n}"
    text = displays(
        rf"\nabla f(\mathbf{{x}}) = \begin{{bmatrix}} {elements} \end{{bmatrix}}",
        r"f(\mathbf{x}) = \mathbf{x}^T A \mathbf{x} = \sum_{i,j} x_i A_{ij} x_j",
        r"L(\mathbf{w}) = -\sum_{i=1}^n y_i \log \sigma(\mathbf{w}^T \mathbf{x}_i)",
    )
    assert "refused" not in kinds(text)


LOGISTIC = "The score $z$ is computed first.\n\n" + displays(r"f(z) = \frac{1}{1 + e^{-z}}")


@pytest.mark.parametrize(
    "line, kind",
    [
        (r"\frac{\partial f(z)}{\partial z} = f(z) (1 - f(z))", "equal"),
        (r"\frac{\partial f(z)}{\partial z} = f(z)", "not readable"),
        (r"\frac{\partial (z x)}{\partial x} = z", "not readable"),
    ],
)
def test_a_name_that_depends_on_others_is_free_in_its_own_derivative(line, kind):
    assert kinds(LOGISTIC + "\n\n" + displays(line))[-1] == kind


def test_names_that_are_said_to_be_weights_depend_on_nothing():
    lines = displays(r"y_h = \gamma_h x_h + \beta_h", r"\frac{\partial y_h}{\partial \beta_q} = \delta_{hq}")
    lines += "\n\n" + displays(r"\frac{\partial y_h}{\partial x_q} = \gamma_h \delta_{hq}")
    gradients = "Here are the gradients $\\gamma$ and $\\beta$.\n\n"
    assert kinds(gradients + lines)[-1] == "not readable"
    assert kinds("$\\gamma$ and $\\beta$ are learnable weights.\n\n" + gradients + lines)[-1] == "equal"


def test_a_bold_one_with_the_index_of_an_array_is_an_element_of_ones():
    line = r"x_{bh} - \mathbf{1}_h m_b = \mathbf{1}_h (x_{bh} - m_b)"
    last = sight(displays(line))[-1]
    assert last.kind == "equal" and r"\mathbf{1}_h is an element of a vector of ones" in last.inferred
    assert kinds(displays(line, r"\mathbf{1}^T x = \sum_i x_i"))[0] == "not readable"


def test_a_slash_before_a_factor_is_read_from_the_left():
    right, other = r"a / v \sum_i x_i = \frac{a}{v} \sum_i x_i", r"a / v \sum_i x_i = \frac{a}{v \sum_i x_i}"
    last = sight(displays(right))[-1]
    assert last.kind == "equal" and last.inferred[-1].startswith(r"a / v before a factor is the fraction")
    assert kinds(displays(other)) == ["not readable"]


def test_a_comment_replaces_what_was_inferred_above_it():
    comment = (
        r"<!-- derive: given H \in \mathbb{R}^{m \times n}, u \in \mathbb{R}^n, a \in \mathbb{R}^m;"
        r" factor H; let w = H u + a; read u_k as u; read w_k as w; read H_k as H; read a_k as a -->"
    )
    above = r"$$ w_k = H_k u_k + a_k $$"
    below = "\n\n".join(rf"$$ {line} $$" for line in (
        r"w_k - a_k = H_k u_k", r"H_k (u_k + u_k) = 2 w_k - 2 a_k", r"H_k (u_k + u_k) = 2 w_k - a_k",
    ))  # fmt: skip
    found = sight(f"{above}\n\n{comment}\n\n{below}")
    assert [verdict.kind for verdict in found] == ["definition", "equal", "equal", "refused"]
    assert not any("H" in "".join(verdict.inferred) for verdict in found[1:])


def test_a_comment_that_declares_a_name_of_the_text_is_still_rejected():
    text = "<!-- derive: given x \\in \\mathbb{R}^n -->\n\n$$ y = 2 x $$\n\n<!-- derive: given y \\in \\mathbb{R}^n -->"
    assert "y is already declared" in sight(text)[-1].message


def test_a_plain_word_before_a_bracket_is_a_function():
    right = displays(r"f = exp(2 x) + sin(x)", r"\frac{\partial f}{\partial x} = 2 exp(2 x) + cos(x)")
    assert kinds(right) == ["definition", "equal"]
    assert kinds(
        displays(r"exp(a + b) = exp(a) exp(b)", r"tr(\mathbf{A} \mathbf{B}) = tr(\mathbf{B} \mathbf{A})")
    ) == [
        "equal",
        "equal",
    ]
    (asked,) = sight(displays(r"norm(2 a) = norm(a) + norm(a)"))
    assert asked.kind == "not readable" and "is norm a function or a product?" in asked.message


def test_a_derivative_is_not_judged_by_a_value_at_one_point():
    text = displays(
        r"\begin{aligned} \mathbf{u} &= \begin{bmatrix} 3 \\ 8 \\ 4 \end{bmatrix} \\"
        r" r &= max \left( \begin{bmatrix} 3 \\ 8 \\ 4 \end{bmatrix} \right) \\ &= 8 \end{aligned}",
        r"\frac{\partial r}{\partial \mathbf{u}} = \begin{bmatrix} 0 \\ 1 \\ 0 \end{bmatrix}",
    )
    (*_, asked) = sight(text)
    assert asked.kind == "not readable" and "r is set equal to numbers above" in asked.message
    assert (
        kinds(displays("y = 1", "z = (y - a)^2", r"\frac{\partial z}{\partial a} = 2 (a - y)"))[-1] == "equal"
    )


@pytest.mark.parametrize("end", [r"\newline ", r"\\* ", r"\\[2pt] ", r"\\ "])
def test_each_command_that_ends_a_line_ends_a_row(end):
    rows = rf"(u + 2) - 1 &= u + 1{end}(w + 3) - 1 &= w + 2"
    assert kinds(rf"\begin{{align}} {rows} \end{{align}}") == ["equal", "equal"]
    assert kinds(rf"\begin{{align}} {rows.replace('w + 2', 'w + 4')} \end{{align}}")[0] == "equal"


def test_a_derivative_of_a_declared_name_that_an_equation_may_define_is_asked_about():
    shapes = r"X \in \mathbb{R}^{N \times p}, W \in \mathbb{R}^{p \times k}, Y \in \mathbb{R}^{N \times k}"
    text = (
        rf"$$ {shapes} $$"
        "\n\n"
        r"\begin{align} Y_{il} &= \sum_{t=1}^{p} X_{it}W_{tl}\\ \frac{dY_{il}}{dX_{ij}} &= W_{jl}\end{align}"
    )
    *_, last = judge(read_document(text, "markdown"), infer=True)
    assert last.kind == "not readable"
    assert last.message.startswith("Y is declared, and an equation above may define it.")


def test_a_derivative_whose_function_stands_behind_it():
    text = r"$$ \frac{\partial}{\partial w} E(w) = b w $$" + "\n\n" + r"$$ h = c w $$"
    assert [one.kind for one in sight(text)] == ["not readable", "definition"]


def test_a_value_of_a_value():
    text = displays(r"Q(r, s) := \int r s(x) dx", r"Q^\prime(y)(\cdot) := Q(y, \cdot) = y r")
    assert kinds(text) == ["definition", "not readable", "not readable"]


def test_a_sum_that_is_left_out_among_declared_names_is_missed_at_first_sight_too():
    given = r"given W, V \in \mathbb{R}^{k \times n}, a \in \mathbb{R}^n; let y = W a; let u = V a"
    above = displays(r"y_i = \sum_m W_{im} a_m", r"u_i = \sum_m V_{im} a_m")
    assert kinds(above + displays(r"y_i + u_i = \sum_m (W_{im} + V_{im}) a_m"), given)[-1] == "equal"
    assert kinds(above + displays(r"y_i + u_i = (W_{im} + V_{im}) a_m"), given)[-1] == "ill-formed"
    said = (
        above + "\n\nA label names one of the classes.\n\n" + displays(r"y_i + u_i = (W_{im} + V_{im}) a_m")
    )
    assert kinds(said, given)[-1] == "not readable"
    undeclared = above + displays(r"y_i + u_i = (W_{im} + R_{im}) a_m")
    assert kinds(undeclared, given)[-1] == "not readable"
