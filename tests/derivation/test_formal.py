"""Formulas whose names have no meaning are judged by rules that hold for any names: what follows is equal, a slip is not."""

import pytest

from backpass.derivation.text.formal.algebra import is_ordered
from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.trees import Unclear
from tests.derivation.test_first_sight import displays, kinds, sight

FUNCTIONS = Manner(("f", "p", "P", r"\sigma").__contains__)

CHAIN = r"\frac{\partial \xi}{\partial w_{rec}} = "
# A text, and the slips in its last line: what is replaced, by what.
FOLLOWS = {
    "a chain rule": (
        [
            CHAIN
            + r"\frac{\partial \xi}{\partial s_{out}} \frac{\partial s_{out}}{\partial a_{in}} \frac{\partial a_{in}}{\partial w_{rec}}"
        ],
        [
            (
                r"\frac{\partial s_{out}}{\partial a_{in}} ",
                "",
            ),
            (r"{\partial a_{in}} \frac", r"{\partial b_{in}} \frac"),
            (r"\frac{\partial \xi}{\partial s_{out}}", r"\frac{\partial s_{out}}{\partial \xi}"),
        ],
    ),
    "a chain rule over an index": (
        [
            r"\frac{\partial E}{\partial a_j^{(l)}} = \sum_k \frac{\partial E}{\partial z_k^{(l)}} \frac{\partial z_k^{(l)}}{\partial a_j^{(l)}}"
        ],
        [
            (r"\sum_k ", ""),
            (r"{\partial z_k^{(l)}} ", r"{\partial z_i^{(l)}} "),
            ("a_j^{(l)}}", "a_k^{(l)}}"),
        ],
    ),
    "a logarithm of probabilities": (
        [
            r"\log P(X \mid \theta) = \log \prod_{i=1}^n P(x_i \mid \theta) = \sum_{i=1}^n \log P(x_i \mid \theta)"
        ],
        [(r"= \sum_{i=1}^n \log", r"= \prod_{i=1}^n \log"), (r"= \sum_{i=1}^n \log", r"= \log")],
    ),
    "an expectation": (
        [
            r"V(\pi) = \mathbb{E}_{x \sim p}[f(x) - 2 P(x)] = \mathbb{E}_{x \sim p}[f(x)] - 2 \mathbb{E}_{x \sim p}[P(x)]"
        ],
        [("- 2 \\mathbb", "+ 2 \\mathbb"), ("- 2 \\mathbb", "- \\mathbb"), ("\\sim p}[P", "\\sim q}[P")],
    ),
    "a score": (
        [r"\nabla_\theta P_\theta(\tau) = P_\theta(\tau) \nabla_\theta \log P_\theta(\tau)"],
        [(r"= P_\theta(\tau)", "= "), (r"\log ", ""), (r"= P_\theta", r"= P_\phi")],
    ),
    "a definition and its slope": (
        [
            r"\mathrm{loss}(u, v) = -u \log v - (1 - u) \log (1 - v)",
            r"\frac{\partial \mathrm{loss}(u, v)}{\partial v} = \frac{v - u}{v (1 - v)}",
        ],
        [("{v - u}", "{v + u}"), ("v (1 - v)}", "v (1 + v)}"), ("{v - u}", "{u - v}")],
    ),
    "conditions and layers": (
        [
            r"a^{[1]}_{first} = \tanh(z^{[1]}_{first})",
            r"\frac{\partial a^{[1]}_{first}}{\partial z^{[1]}_{first}} = 1 - (a^{[1]}_{first})^2",
        ],
        [("1 - (a", "1 + (a"), (")^2", ")^3")],
    ),
    "vectors and matrices": (
        [
            r"S(\beta, \textit{x}) = \|y_{obs} - X_{obs} \beta\|^2"
            r" = y_{obs}^T y_{obs} - 2 \beta^T X_{obs}^T y_{obs} + \beta^T X_{obs}^T X_{obs} \beta"
        ],
        [("- 2 ", "- "), (r"X_{obs}^T X_{obs} \beta", r"X_{obs} X_{obs} \beta"), ("+ \\beta", "- \\beta")],
    ),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_what_follows_for_any_names_is_equal_and_a_slip_is_not(name):
    formulas, slips = FOLLOWS[name]
    assert kinds(displays(*formulas))[-1] == "equal"
    for old, new in slips:
        assert old in formulas[-1]
        at = formulas[-1].rindex(old)
        wrong = formulas[-1][:at] + new + formulas[-1][at + len(old) :]
        assert kinds(displays(*formulas[:-1], wrong))[-1] != "equal", wrong


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"W_{out} h_{in} V_{out}", r"h_{in} W_{out} V_{out}"),
        (r"\mathbf{A}_{out} \mathbf{B}_{in}", r"\mathbf{B}_{in} \mathbf{A}_{out}"),
        (r"(A_{out} b_{in})^T", r"A_{out}^T b_{in}^T"),
        (r"\sum_{k \ne i} \delta_{ki} f(x_k)", r"f(x_i)"),
        (r"\log(f(x) + P(x))", r"\log f(x) + \log P(x)"),
        (r"f(x + y)", r"f(x) + f(y)"),
        (r"f(2 x)", r"2 f(x)"),
        (r"\sum_{i=1}^n f(x_i) P(x_i)", r"\sum_{i=1}^n f(x_i) \sum_{i=1}^n P(x_i)"),
        (r"P(x \mid \theta)", r"P(\theta \mid x)"),
        (r"\mathbb{E}_x[f(x) P(x)]", r"\mathbb{E}_x[f(x)] \mathbb{E}_x[P(x)]"),
        (r"\sum_{i=1}^n f(x_i)", r"n f(x_i)"),
        (r"P(x)^{f(x)}", r"f(x)^{P(x)}"),
    ],
)
def test_what_holds_only_for_some_names_is_not_equal(first, second):
    text = displays(rf"\Psi_{{new}} = {first} = {second}")
    assert kinds(text)[-1] != "equal"


@pytest.mark.parametrize(
    ("above", "rule"),
    [
        # The loss depends on w also by its second term.
        (r"L = \ell(y_{out}) + \Omega(w)", r"\frac{\partial L}{\partial w} = \frac{\partial L}{\partial y_{out}} \frac{\partial y_{out}}{\partial w}"),
        # A state has an effect at each step.
        (r"L = \sum_t \ell(h_t, y_t)", r"\frac{\partial L}{\partial h_{t-1}} = \frac{\partial L}{\partial h_t} \frac{\partial h_t}{\partial h_{t-1}}"),
    ],
)  # fmt: skip
def test_a_chain_rule_that_leaves_out_a_way_is_not_equal(above, rule):
    assert kinds(displays(above, rule))[-1] == "not readable"


def test_two_orders_of_matrices_in_a_chain_rule_are_not_both_right():
    first = r"\frac{\partial L}{\partial W} = \frac{\partial L}{\partial Z} \frac{\partial Z}{\partial W}"
    second = r"\frac{\partial L}{\partial V} = \frac{\partial Q}{\partial V} \frac{\partial L}{\partial Q}"
    assert kinds(displays(first)) == ["equal"]
    assert kinds(displays(first, second)) == ["not readable"] * 2


def test_a_verdict_says_what_it_rests_on():
    (verdict,) = sight(displays(FOLLOWS["a chain rule"][0][0]))
    assert verdict.inferred == (r"\xi depends on w_{rec} only through s_{out} and a_{in}",)


def test_a_definition_is_new_and_has_the_indices_of_its_left_side():
    first = r"h_t = \tanh(W_{hh} [h_{t-1}, x_t] + b_h)"
    assert kinds(displays(first)) == ["definition"]
    assert kinds(displays(first, r"h_t = \tanh(W_{hh} [x_t, h_{t-1}] + b_h)"))[1] == "not readable"
    summed = r"v = \sum_k r_k [q_k, 1]"
    assert kinds(displays(summed, r"\epsilon_j = [q_k, 1] s_j"))[1] == "not readable"
    assert kinds(displays(r"f(x + \epsilon) = f(x) + \epsilon f'(x) + [1, 2]")) == ["not readable"]


def test_a_line_below_one_that_differs_is_not_equal_to_it():
    text = displays(
        r"P_{new} = (A_{old} + B_{old}) C^T = A_{old} C^T - B_{old} C^T = (A_{old} - B_{old}) C^T"
    )
    assert "equal" not in kinds(text)


def test_what_a_comment_declares_has_its_own_meaning():
    given = "<!-- derive: given x \\in \\mathbb{R}, a \\in \\mathbb{R} -->\n\n"
    assert kinds(given + displays(r"\sum_i x_i a = a \sum_j x_j")) == ["not readable"]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\mathop{\mathrm{argmax}} P(\theta \mid X)", "nothing claimed"),
        (r"\frac{\partial J}{\partial Y} \in \mathbb{R}^{N \times D}", "nothing claimed"),
        (r"\underset{x}{\text{argmax}}\ f(x, 1)", "nothing claimed"),
        (r"\nabla^2 f(x, 1) \leqslant L", "not readable"),
        (r"a \text{ is equal to } [b, c]", "not readable"),
    ],
)
def test_a_formula_without_a_relation_claims_nothing(formula, expected):
    assert kinds(displays(formula)) == [expected]


def test_columns_of_equations_and_arrows_between_them():
    column = r"\begin{array} \ g(w) = w^3 + 1 \\ q(w) = e^w \end{array}"
    assert kinds(displays(column)) == ["definition"] * 2
    beside = r"f(x) = x^3 \hspace{1in} \rightarrow \hspace{1in} \frac{df}{dx} = 3 x^2"
    assert kinds(displays(beside)) == ["definition", "equal"]


@pytest.mark.parametrize(
    "formula",
    [r"\log a b", r"1 / 2 x", r"\left. f \right|_{x = 0}", r"(g * x)(n)", r"a \pm b", "a +"],
)
def test_what_is_ambiguous_is_not_read(formula):
    with pytest.raises(Unclear):
        read_formula(formula, FUNCTIONS)


def test_the_order_of_factors_matters_beside_a_matrix():
    for formula in ("W x", r"x^\top y", r"A^{-1} b", r"(A + B) C", r"\mathbf{a} \cdot \mathbf{b}"):
        assert is_ordered([read_formula(formula, FUNCTIONS)]), formula
    for formula in ("w x", r"\lambda W", "2 x (1 - x)", r"N X_{ij} Y_{jk}"):
        assert not is_ordered([read_formula(formula, FUNCTIONS)]), formula


def test_a_rounded_number_is_not_wrong_and_a_wrong_one_is():
    given = r"h_1 = 0.537"
    assert kinds(displays(given, r"1 - h_1^2 = 1 - 0.288 = 0.712"))[1:] == ["not readable", "equal"]
    assert kinds(displays(given, r"1 - h_1^2 = 1 - 0.298 = 0.702"))[1:] == ["refused", "follows"]
    assert kinds(displays(r"\frac{1}{3} = 0.33", r"\frac{1}{3} = 0.4")) == ["not readable"] * 2
    assert kinds(displays(r"\frac{1}{3} = 0.35")) == ["refused"]
    for exact, rounded in (
        (r"\sqrt{2}", "1.414"),
        ("7 / 4^{1/5}", "5.3050"),
        (r"\frac{1}{1 + e^{-1.9}}", "0.87"),
    ):
        assert kinds(displays(f"{exact} = {rounded}")) == ["not readable"]
        assert kinds(displays(f"{exact} = {rounded[:-1]}9")) == ["refused"]


def test_a_divergence_is_defined_and_split():
    text = displays(
        r"\text{KL}[p(x \mid \theta) \Vert p(x \mid \phi)] = \mathbb{E}_{p}[\log \frac{p(x \mid \theta)}{p(x \mid \phi)}]"
        r" = \mathbb{E}_{p}[\log p(x \mid \theta)] - \mathbb{E}_{p}[\log p(x \mid \phi)]"
    )
    assert kinds(text) == ["definition", "equal"]
    assert kinds(text.replace("] - ", "] + "))[1] == "not readable"


def test_a_function_is_defined_with_its_data_behind_a_semicolon():
    text = displays(
        r"L(\beta; \{y_n, x_n\}_{n=1}^N) = \prod_{n=1}^N p(y_n)",
        r"\log L(\beta; \{y_n, x_n\}_{n=1}^N) = \sum_{n=1}^N \log p(y_n)",
    )
    assert kinds(text) == ["definition", "equal"]
    assert kinds(text.replace(r"\sum_{n=1}^N \log p", r"\sum_{n=1}^N p"))[1] == "not readable"
