"""What texts print at first sight: sums without one index, expectations, functions without arguments, and labels."""

import pytest

from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.rewrites import with_whole_sums
from backpass.derivation.text.formal.trees import Unclear
from tests.derivation.test_first_sight import displays, kinds

EXPECTED = "The expectation of a product is taken.\n\n"
# A text whose last line is right, and what is replaced in this line by what, so that it is wrong.
RIGHT = {
    "a sum without one index": (
        displays(r"Q_i = a_i + \sum_{j \ne i}^n t_j y_i = a_i - t_i y_i + y_i \sum_{j=1}^n t_j"),
        [
            ("- t_i y_i", "+ t_i y_i"),
            ("- t_i", "- t_j"),
            ("= a_i - t_i y_i", "= a_i"),
            ("^n t_j$", "^m t_j$"),
        ],
    ),
    "an expectation as an integral": (
        displays(r"\mathbb{E}_{p(x|\theta)}[f(x)^2] = \int p(x|\theta) f(x)^2 \, \text{d}x"),
        [
            ("f(x)^2 \\,", "f(x) \\,"),
            ("= \\int p(x|\\theta)", "= \\int"),
            ("= \\int p(x|\\theta)", "= \\int q(x)"),
        ],
    ),
    "an expectation as a sum": (
        displays(r"\mathbb{E}_{x \sim q_\phi}[1 - f(x)] = \sum_x q_\phi(x) (1 - f(x))"),
        [("(1 - f(x))$", "(1 + f(x))$"), ("\\sum_x q_\\phi(x)", "\\sum_x q(x)"), ("\\sum_x", "\\sum_z")],
    ),
    "an expectation is constant under itself": (
        EXPECTED + displays(r"C(X, Y) = E((X - E(X)) (Y - E(Y))) = E(X Y) - E(X) E(Y)"),
        [("- E(X) E(Y)$", "+ E(X) E(Y)$"), ("- E(X) E(Y)$", "- E(Y) E(X)$"), ("= E(X Y) -", "= E(Y X) -")],
    ),
    "a function without its arguments": (
        displays(r"f(x, y) = x^2 y + y") + "\n\n" + displays(r"\frac{\partial f}{\partial x} = 2 x y"),
        [("= 2 x y", "= 2 x"), ("= 2 x y", "= x^2 + 1"), ("\\partial x} =", "\\partial y} =")],
    ),
    "an integral commutes with a derivative": (
        displays(
            r"\nabla_\theta \int p(x|\theta) \, \text{d}x = \int \nabla_\theta p(x|\theta) \, \text{d}x"
        ),
        [
            ("= \\int \\nabla_\\theta p", "= \\int \\nabla_\\phi p"),
            ("= \\int \\nabla_\\theta p(x", "= \\int p(x"),
        ],
    ),
    "derivatives by elements with the index above": (
        displays(
            r"\frac{\partial}{\partial x^k} \left( a \frac{\partial f}{\partial x^i} \right)"
            r" - f = \frac{\partial (a f_i)}{\partial x^k} - f"
        ),
        [],
    ),
}


@pytest.mark.parametrize("name", [name for name, (_, slips) in RIGHT.items() if slips])
def test_a_right_line_is_equal_and_a_slip_is_not(name):
    text, slips = RIGHT[name]
    assert kinds(text)[-1] == "equal"
    for old, new in slips:
        old, new = old.rstrip("$"), new.rstrip("$")
        at = text.rfind(old)
        assert at > 0, old
        assert kinds(text[:at] + new + text[at + len(old) :])[-1] != "equal", (old, new)


@pytest.mark.parametrize(
    ("formula", "same"),
    [
        (r"\theta\_{t+1}", r"\theta_{t+1}"),
        (r"C\_{ij} x", "C_{ij} x"),
        (r"(2\pi)^\frac{n}{2}", r"(2\pi)^{\frac{n}{2}}"),
        (r"\frac12 x", r"\frac{1}{2} x"),
        (r"\mathbf{\Sigma^{-1}}", r"\mathbf{\Sigma}^{-1}"),
        ("x{}' + 1", "x' + 1"),
        (r"a \cdot -b c", r"-(a \cdot (b c))"),
    ],
)
def test_two_ways_of_writing_are_one(formula, same):
    assert read_formula(formula, Manner()) == read_formula(same, Manner())


@pytest.mark.parametrize(
    "formula", [r"\Delta x_i", r"h_t^{enc}", r"E[g^2]_t", r"\Delta\mathbf{w}", r"h^{new}_{t - 1}"]
)
def test_a_name_of_several_signs_is_one_name(formula):
    assert read_formula(formula, Manner()).kind == "name"


@pytest.mark.parametrize(
    "formula", [r"P(X = x \mid y)", r"\mathbb{1}(x >= y)", r"\text{Pr}(f(x) > 0)", r"\mathbb{I}(y_i \ne c)"]
)
def test_an_event_is_an_argument(formula):
    assert read_formula(formula, Manner()).kind == "apply"


def test_a_recurrence_of_an_average_is_a_definition():
    assert kinds(displays(r"E[g^2]_t = \gamma E[g^2]_{t-1} + (1 - \gamma) g_t^2")) == ["definition"]


def test_sums_with_several_limits_are_not_made_whole():
    formulas = [r"\sum_{j \ne i} x_j", r"\sum_{j=1}^n x_j + \sum_{k=1}^m y_k"]
    with pytest.raises(Unclear):
        with_whole_sums([read_formula(one, Manner()) for one in formulas])


def test_a_row_that_begins_with_words_and_a_colon_stands_alone():
    rows = r"\begin{align} \text{State:} \quad & h_t \\ \text{Sizes:} \quad & n = 2 \\ & y = 3 x \end{align}"
    assert kinds(displays(rows)) == ["nothing claimed", "nothing claimed", "definition", "definition"]
    assert kinds(displays(r"\text{the gradient is } x")) == ["not readable"]


def test_a_step_below_an_unknown_one_is_equal_but_not_below_a_slip():
    unknown = (
        r"P_{new} = A_{old} + \frac{\partial g}{\partial u_{in}} = A_{old} + f(x, 1) c = c f(x, 1) + A_{old}"
    )
    assert kinds(displays(unknown)) == ["definition", "not readable", "equal"]
    slip = r"P_{new} = A_{old} + f(x, 1) c = A_{old} - f(x, 1) c = - c f(x, 1) + A_{old}"
    assert kinds(displays(slip)) == ["definition", "not readable", "not readable"]


def test_what_is_used_before_it_is_defined_is_defined_unless_it_is_concluded():
    above = displays(r"g(w_{in}, b_{in}) = (s_{in} - t_{in})^2 + K_{in}(s_{in}, 1)")
    below = displays(r"s_{in} = K_{in}(w_{in}, 1) + b_{in}")
    assert kinds(above + "\n\nHere we use the following.\n\n" + below) == ["definition", "definition"]
    assert kinds(above + "\n\nHence we find the following.\n\n" + below)[-1] == "not readable"
    slope = displays(r"\frac{\partial g}{\partial s_{in}} = P_{in}")
    assert kinds(above + "\n\n" + slope + "\n\nHere is the rest.\n\n" + below)[-1] == "not readable"


def test_a_letter_that_is_a_name_is_a_label_and_no_index():
    gates = displays(r"C_t = f_t K_{in}(h_{t-1}, 1)") + "\n\n" + displays(r"N_t = \tanh(W_C h_{t-1} + b_C)")
    assert kinds(gates) == ["definition"] * 2


LAYER = "\n\n".join(
    displays(one)
    for one in (
        r"\mathbf{z}^{(2)} = \mathbf{W}^{(2)} \mathbf{h}^{(1)}",
        r"\mathbf{h}^{(2)} = \phi(\mathbf{z}^{(2)})",
    )
)
LAYERS = {
    "a matrix": (
        r"\frac{\partial J}{\partial \mathbf{W}^{(2)}} = \frac{\partial J}{\partial \mathbf{z}^{(2)}} {\mathbf{h}^{(1)}}^\top",
        [("}^\\top", "}"), ("\\mathbf{z}^{(2)}} {", "\\mathbf{h}^{(2)}} {")],
    ),
    "an input": (
        r"\frac{\partial J}{\partial \mathbf{h}^{(1)}} = {\mathbf{W}^{(2)}}^\top \frac{\partial J}{\partial \mathbf{z}^{(2)}}",
        [("}^\\top", "}"), ("= {", "= - {")],
    ),
    "a function of each element": (
        r"\frac{\partial J}{\partial \mathbf{z}^{(2)}} = \frac{\partial J}{\partial \mathbf{h}^{(2)}} \odot \phi'(\mathbf{z}^{(2)})",
        [("\\phi'", "\\phi"), ("\\odot \\phi'(\\mathbf{z}", "\\odot \\phi'(\\mathbf{h}")],
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_goes_through_a_layer(name):
    row, slips = LAYERS[name]
    assert kinds(LAYER + "\n\n" + displays(row))[-1] == "equal"
    for old, new in slips:
        assert old in row
        assert kinds(LAYER + "\n\n" + displays(row.replace(old, new)))[-1] != "equal", (old, new)


def test_a_bias_that_may_be_repeated_has_no_gradient_of_one_row():
    layer = displays(r"Z^{(2)} = X^{(1)} W^{(2)} + \mathbf{b}^{(2)}")
    row = r"\frac{\partial J}{\partial \mathbf{b}^{(2)}} = \frac{\partial J}{\partial Z^{(2)}}"
    assert kinds(layer + "\n\n" + displays(row))[-1] != "equal"


def test_the_identity_matrix_is_left_out_of_products():
    row = r"P_{new} = P_{old} - K_{in} H_{in} P_{old} = (I - K_{in} H_{in}) P_{old}"
    assert kinds(displays(row)) == ["definition", "equal"]
    for old, new in (
        (r"(I -", r"(I +"),
        (r") P_{old}$", r") P_{new}$"),
        ("(I - K_{in} H_{in})", "(I - H_{in} K_{in})"),
    ):
        old, new = old.rstrip("$"), new.rstrip("$")
        at = row.rfind(old)
        assert kinds(displays(row[:at] + new + row[at + len(old) :]))[-1] != "equal"
    named = displays(r"I = A_{in} + B_{in}") + "\n\n" + displays(r"P_{new} = K_{in} I H_{in} = K_{in} H_{in}")
    assert kinds(named)[-1] != "equal"


def test_an_update_is_a_definition_below_words_on_optimisers():
    words = "This optimiser keeps an average.\n\n"
    assert kinds(words + displays(r"m_t = \beta_1 m_{t-1} + \kappa(g_t, 1)")) == ["definition"]
    assert kinds(words + displays(r"w^* = K_{in}(s_{in}, 1) \kappa(g_t, 1)")) == ["not readable"]
    constraint = displays(r"\kappa(\mathbf{z}) = \boldsymbol{0}")
    assert kinds("This optimisation has a constraint.\n\n" + constraint) != ["definition"]
