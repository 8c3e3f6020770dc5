"""Without a declaration, a line is not equal because of what the text does not say, or denies."""

import pytest

from backpass.derivation.text.formal.counts import counted
from backpass.derivation.text.sight.labels import is_label
from tests.derivation.test_first_sight import displays, kinds, sight

MATRICES = (
    r"Let $x \in \mathbb{R}^n$, $A \in \mathbb{R}^{m \times n}$, $B \in \mathbb{R}^{n \times m}$." + "\n\n"
)


@pytest.mark.parametrize("before", ["", r"\nabla_x \lVert A x \rVert^2 = 2 A A x"])
def test_a_gradient_has_the_shape_of_its_variable(before):
    above = MATRICES + (displays(before) + "\n\n" if before else "")
    right, wrong = r"\nabla_A \operatorname{tr}(A B) = B^\top", r"\nabla_A \operatorname{tr}(A B) = B"
    assert kinds(above + displays(right))[-1] == "equal"
    assert kinds(above + displays(wrong))[-1] != "equal"
    assert kinds(above + displays(right, wrong))[-2:] == ["equal", "not readable"]


def test_a_derivative_by_a_matrix_names_the_layout_in_which_it_holds():
    derivative = r"\frac{\partial \operatorname{tr}(A B)}{\partial A} = "
    (one,) = sight(displays(derivative + "B"))
    assert one.kind == "equal" and "derivatives are in numerator layout" in one.inferred
    assert kinds(displays(derivative + "B", derivative + r"B^\top")) == ["equal", "not readable"]


@pytest.mark.parametrize(
    "wrong",
    [
        r"Z_{new} = A_{in} B x = B A_{in} x",
        r"Z_{new} = A_{in} B x = A_{in} B^\top x",
        r"Z_{new} = A_{in} \otimes B_{out} = B_{out} \otimes A_{in}",
        r"Z_{new} = [A_{in} B, 1] = [B A_{in}, 1]",
    ],
)
def test_capitals_keep_their_order(wrong):
    assert kinds("For matrices $A$ and $B$:\n\n" + displays(wrong))[-1] == "not readable"


def test_a_capital_that_the_text_counts_with_is_a_number():
    text = displays(r"\Psi_{new} = \frac{1}{N} A_{in} \mathbf{b}_{out} = A_{in} \frac{\mathbf{b}_{out}}{N}")
    assert kinds(text) == ["definition", "equal"]
    assert kinds(text.replace("N", "B").replace(r"\frac{1}{B}", "B").replace(r"\frac{\mathbf{b}_{out}}{B}", r"B \mathbf{b}_{out}"))[1] == "not readable"  # fmt: skip


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (r"\frac{1}{N} x", "N"),
        (r"\sum_{i=1}^N x_i", "N"),
        (r"\sum_t^{T-1} x_t", "T"),
        (r"i = 1, \dots, K", "K"),
        (r"x \in \mathbb{R}^{B \times D}", "BD"),
        (r"x \in \mathbb{R}^{N_1}", ""),
        (r"A B x", ""),
        (r"\sum_k^K Q K^\top", ""),
        (r"\frac{1}{B} \text{tr}(B)", ""),
        (r"the matrix $M$ and \frac{1}{M}", ""),
        (r"the matrices $A$ and $M$, \frac{1}{M}", ""),
        (r"$B$ is a square matrix, \frac{1}{B}", ""),
        (r"\frac{1}{D}, D \in \mathbb{R}^{n \times n}", ""),
    ],
)
def test_letters_that_are_counts(source, found):
    assert counted(source) == set(found)


CROSS_ENTROPY = displays(
    r"p_i = \frac{e^{z_i}}{\sum_k e^{z_k}}",
    r"L = -\sum_i t_i \log p_i",
    r"\frac{\partial L}{\partial z_i} = p_i - t_i",
)


@pytest.mark.parametrize(
    ("prose", "kind"),
    [
        ("The targets $t$ are labels.", "equal"),
        ("The targets are one-hot. They are not shown.", "equal"),
        ("The targets $t$ are one-hot. The inputs $x$ are not labels.", "equal"),
        ("The targets $t$ need not be labels.", "not readable"),
        ("The targets $t$ need not be labels; they are arbitrary numbers.", "not readable"),
        ("The targets $t$ are given. They need not sum to one.", "not readable"),
        ("The targets $t$ are not one-hot.", "not readable"),
        ("The targets are one-hot in the last section, but these targets are not.", "not readable"),
        ("The targets $t$ are arbitrary.", "not readable"),
        ("Unlike one-hot labels, the targets $t$ are unnormalised.", "not readable"),
        ("Let $t$ be a target that isn't a distribution.", "not readable"),
    ],
)
def test_a_text_that_denies_labels_has_none(prose, kind):
    assert kinds(f"{prose}\n\n{CROSS_ENTROPY}")[-1] == kind
    assert is_label("t", prose) == (kind == "equal")


NORMALISED = displays(r"S = \sum_k e^{x_k}", r"y_i = \frac{e^{x_i}}{S}") + "\n\n"
HELD = r"\frac{\partial y_i}{\partial x_j} = \delta_{ij} y_i"


def test_a_derivative_by_an_input_holds_no_name_constant_unless_the_text_says_so():
    (*_, last) = sight(NORMALISED + displays(HELD))
    assert last.kind == "not readable" and "which the text does not say" in last.message
    assert kinds("We keep the sum fixed.\n\n" + NORMALISED + displays(HELD))[-1] == "equal"
    paths = r"\frac{\partial L}{\partial x_j} = \sum_i \frac{\partial L}{\partial y_i} \frac{\partial y_i}{\partial x_j} + \frac{\partial L}{\partial S} \frac{\partial S}{\partial x_j}"
    assert kinds(NORMALISED + displays(HELD, paths))[2] == "equal"
    assert kinds(NORMALISED + displays(HELD.replace("y_i", "y_j", 1), paths))[2] == "not readable"
    right = r"\frac{\partial y_i}{\partial S} = -\frac{y_i}{S}"
    assert kinds(NORMALISED + displays(right))[-1] == "equal"


def test_a_name_that_the_text_differentiates_is_not_constant():
    text = displays("y = g x", r"\frac{\partial y}{\partial x} = g + \frac{\partial g}{\partial x} x")
    assert kinds(text) == ["definition", "equal"]
    assert kinds(text + "\n\n" + displays(r"\frac{\partial^2 y}{\partial x^2} = 0"))[-1] == "not readable"
    assert kinds(displays("y = g x", r"\frac{\partial^2 y}{\partial x^2} = 0"))[-1] == "equal"


@pytest.mark.parametrize("wrong", ["c' = b", r"\bar{b} = b \bar{c}", r"\dot{c} = [b, \dot{a}]"])
def test_a_derivative_is_not_defined_by_its_mark(wrong):
    assert kinds(displays("c = a b", wrong))[-1] == "not readable"


ROWS = (r"\frac{\partial a^\top x}{\partial x} = a^\top", r"\frac{\partial x^\top x}{\partial x} = 2 x^\top")


def test_a_text_in_numerator_layout_has_rows_as_gradients():
    given = r"Let $x, a \in \mathbb{R}^n$." + "\n\n"
    assert kinds(given + displays(*ROWS)) == ["equal", "equal"]
    assert kinds(given + displays(*ROWS, ROWS[1].replace(r"2 x^\top", "2 x")))[-1] == "not readable"
    column = ROWS[0].replace(r"= a^\top", "= a")
    assert kinds(given + displays(column, *ROWS)) == ["equal", "not readable", "not readable"]
    assert kinds(given + displays(r"\nabla_x (a^\top x) = a^\top")) == ["not readable"]


@pytest.mark.parametrize("wrong", [r"a^\top x", r"2 a^\top", r"x^\top", r"-a^\top"])
def test_a_slip_in_numerator_layout_is_not_equal(wrong):
    text = r"Let $x, a \in \mathbb{R}^n$." + "\n\n" + displays(ROWS[0].replace(r"= a^\top", f"= {wrong}"))
    assert kinds(text)[-1] not in ("equal", "definition")


REGRESSION = displays(
    r"L(\mathbf{w}) = \frac{1}{2} \|\mathbf{y} - X \mathbf{w}\|^2",
    r"\nabla_{\mathbf{w}} L = X^\top (X \mathbf{w} - \mathbf{y})",
)


@pytest.mark.parametrize(
    ("above", "kind"),
    [
        (r"$$ \mathbf{y} = A \mathbf{x} $$", "equal"),
        (r"$$ \mathbf{y} = [\mathbf{x}, 1] $$", "equal"),
        (r"$$ \mathbf{y} = [\mathbf{x}, \mathbf{w}] $$", "not readable"),
        (r"$$ \mathbf{y} = A \mathbf{w} $$", "not readable"),
        (r"$$ \mathbf{y} = A \mathbf{x} $$" + "\n\n" + r"$$ \mathbf{x} = B \mathbf{w} $$", "not readable"),
        (r"$$ \mathbf{y} = g(\mathbf{x}) $$", "not readable"),
        (r"The outputs $\mathbf{y}$: $$ \mathbf{y} = [\mathbf{x}, 1] $$", "not readable"),
    ],
)
def test_a_name_of_another_section_is_constant_only_if_its_definition_shows_it(above, kind):
    last = sight(f"# One\n\n{above}\n\n# Two\n\n{REGRESSION}")[-1]
    assert last.kind == kind
    if kind == "equal" and "[" in above:
        assert r"\mathbf{y} does not depend on \mathbf{w}" in last.inferred


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(r"X^\top (", r"X ("), ("X^\\top (X", "X^\\top (2 X"), ("- \\mathbf{y})", "+ \\mathbf{y})")],
)
def test_a_slip_beside_a_name_of_another_section_is_not_equal(right, wrong):
    above = "# One\n\n$$ \\mathbf{y} = A \\mathbf{x} $$\n\n# Two\n\n"
    assert kinds(above + REGRESSION.replace(right, wrong))[-1] != "equal"


def test_a_number_of_a_sum_depends_on_each_of_its_indices():
    given = r"given x, y \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}"
    right = r"\sum_i \sum_j A_{ij} x_i y_j \sum_k A_{kj} x_k = \sum_j y_j \sum_i A_{ij} x_i \sum_k A_{kj} x_k"
    for one, kind in ((right, "equal"), (right.replace("A_{kj} x_k = ", "A_{ki} x_k = "), "refused")):
        assert [v.kind for v in sight(displays(one), given)] == [kind]
