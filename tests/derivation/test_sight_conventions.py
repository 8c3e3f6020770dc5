"""What a text may leave out by convention is guessed and said; a wrong line is neither equal nor refused by it."""

import pytest

from backpass.derivation.document import read_document
from backpass.derivation.judge import suggest
from backpass.derivation.text.sight.steps import labels, steps
from backpass.derivation.text.sight.upper import upper_indices
from tests.derivation.test_first_sight import displays, kinds, sight

# Sums over repeated indices, local partial derivatives, a loss called l, and definitions of sections above.
NORMALISED = (
    "We use index notation. The loss $l$ is a number.\n\n"
    + displays(
        r"m_b = \frac{1}{H} \mathbf{1}_h x_{bh}",
        r"\mu_{bh} = x_{bh} - \mathbf{1}_h m_b",
        r"v_b = \frac{1}{H} \mathbf{1}_h \mu_{bh}^2",
        r"y_{bh} = \frac{\mu_{bh}}{v_b} \gamma_h + \mathbf{1}_b \beta_h",
    )
    + "\n\n## Gradients\n\n"
)
ROWS = [
    r"\frac{\partial y_{bh}}{\partial \mu_{pq}} = \frac{\gamma_h}{v_b} \delta_{bp} \delta_{hq}",
    r"\frac{\partial y_{bh}}{\partial v_p} = -\mu_{bh} v_b^{-2} \gamma_h \delta_{bp}",
    r"\frac{\partial l}{\partial \gamma_q} = \frac{\partial l}{\partial y_{bq}} \frac{\mu_{bq}}{v_b}",
    r"\frac{\partial l}{\partial \beta_q} = \frac{\partial l}{\partial y_{bq}} \mathbf{1}_b",
    r"\frac{\partial l}{\partial v_p} = -\frac{\partial l}{\partial y_{ph}} \mu_{ph} v_p^{-2} \gamma_h",
    r"\mathbf{1}_h \mu_{ph} = \mathbf{1}_h x_{ph} - H m_p",
    r"\frac{\partial m_b}{\partial x_{pq}} = \frac{\mathbf{1}_q}{H} \delta_{bp}",
]
SLIPS = [
    (0, r"\delta_{bp} ", ""),
    (0, "v_b", "v_b^2"),
    (1, "-\\mu", "\\mu"),
    (1, r"v_b^{-2}", r"v_b^{-1}"),
    (1, r" \delta_{bp}", ""),
    (2, r"\frac{\mu_{bq}}{v_b}", r"\mu_{bq}"),
    (2, r"\mu_{bq}", r"\mu_{bp}"),
    (3, r" \mathbf{1}_b", r" \gamma_q"),
    (4, "= -", "= "),
    (4, r" \gamma_h", r" \gamma_p"),
    (4, r"\mu_{ph}", r"x_{ph}"),
    (5, "- H", "+ H"),
    (5, "H m_p", "m_p"),
    (6, "H", "H^2"),
]


def test_repeated_indices_are_summed_and_partial_derivatives_are_local():
    found = sight(NORMALISED + displays(*ROWS))
    assert {verdict.kind for verdict in found} <= {"equal", "definition"}
    said = {word for verdict in found for word in verdict.inferred}
    assert {
        "repeated indices are summed over",
        "a partial derivative holds other names constant",
        "H is the number of values of the index h",
        "l is the loss",
    } <= said


@pytest.mark.parametrize("row, right, wrong", SLIPS)
def test_a_slip_is_not_equal_by_a_convention(row, right, wrong):
    assert right in ROWS[row]
    last = sight(NORMALISED + displays(ROWS[row].replace(right, wrong)))[-1]
    assert last.kind == "not readable"


SUMMED = displays(
    r"y_i = W_{ij} x_j", r"\frac{\partial L}{\partial x_j} = \frac{\partial L}{\partial y_i} W_{ij}"
)


def test_a_text_with_sums_leaves_none_out():
    assert kinds(SUMMED) == ["definition", "equal"]
    other = displays(r"\|x\|^2 = \sum_i x_i^2") + "\n\n"
    assert set(kinds(other + SUMMED)[1:]) == {"not readable"}
    assert kinds("This is index notation.\n\n" + other + SUMMED)[1:] == ["definition", "equal"]
    assert set(kinds("Repeated indices are not summed over.\n\n" + SUMMED)) == {"not readable"}


@pytest.mark.parametrize(
    ("wrong", "kind"), [(r"W_{ji}", "not readable"), (r"W_{ij} x_j", "refused"), (r"x_j", "ill-formed")]
)
def test_an_implied_sum_of_something_else_is_not_equal(wrong, kind):
    assert kinds(SUMMED.replace(r"{\partial y_i} W_{ij}", rf"{{\partial y_i}} {wrong}"))[-1] == kind


UPPER = displays(
    r"S^{ij} = \frac{1}{\sqrt{d_k}} Q^{ia} K^{ja}",
    r"A^{ij} = \text{softmax}_j(S^{ij})",
    r"O^{ib} = A^{ij} V^{jb}",
)
UPPER_ROWS = [
    r"\frac{\partial O^{ib}}{\partial V^{mn}} = A^{ij} \delta^j_m \delta^b_n",
    r"\frac{\partial L}{\partial V^{mn}} = A^{im} \frac{\partial L}{\partial O^{in}}",
    r"\frac{\partial A^{ij}}{\partial S^{mn}} = \delta^i_m A^{ij} (\delta^j_n - A^{in})",
    r"\frac{\partial L}{\partial S^{ij}} = A^{ij} (\bar{A}^{ij} - \sum_{j'} A^{ij'} \bar{A}^{ij'})",
    r"\frac{\partial S^{ij}}{\partial Q^{kl}} = \frac{1}{\sqrt{d_k}} \delta^i_k K^{jl}",
]


def test_indices_may_stand_above():
    found = sight("In index notation:\n\n" + UPPER + "\n\n" + displays(*UPPER_ROWS))
    assert {verdict.kind for verdict in found} <= {"equal", "definition"}
    said = {word for verdict in found for word in verdict.inferred}
    assert {"S^{ij} is an element of S", r"\delta^i_j is \delta_{ij}", "k is a label in d_k"} <= said
    assert "a bar marks a gradient of the loss" in said


@pytest.mark.parametrize(
    "row, right, wrong",
    [
        (0, r"\delta^j_m", r"\delta^i_m"),
        (1, r"A^{im}", r"A^{mi}"),
        (2, r"\delta^i_m ", ""),
        (2, r"- A^{in}", r"+ A^{in}"),
        (3, r"\sum_{j'} A^{ij'}", r"\sum_{j'} A^{j'i}"),
        (4, r"K^{jl}", r"Q^{jl}"),
        (4, r"\sqrt{d_k}", "d_k"),
    ],
)
def test_a_slip_in_upper_indices_is_not_equal(row, right, wrong):
    assert right in UPPER_ROWS[row]
    text = "In index notation:\n\n" + UPPER + "\n\n" + displays(UPPER_ROWS[row].replace(right, wrong))
    assert kinds(text)[-1] == "not readable"


def test_a_power_is_not_an_upper_index():
    assert kinds(displays(r"(a + b)^2 = a^2 + 2 a b + b^2")) == ["equal"]
    assert not [*upper_indices(r"x^{ab} x^{cd} = x^{ab + cd}")]
    assert not [*upper_indices(r"A^T B^T + A^{-1} B^{-1} = C^2")]


QUOTIENT = displays(r"a_i = \frac{e^{s_i}}{\sum_k e^{s_k}} = \frac{e^{s_i}}{Z}") + "\n\n"


def test_a_name_for_a_divisor():
    found = sight(QUOTIENT + displays(r"\sum_i e^{s_i} = Z", r"\sum_i e^{s_i} = 2 Z"))
    assert [verdict.kind for verdict in found] == ["definition", "equal", "equal", "not readable"]
    assert any(word.startswith(r"Z is \sum_k e^{s_k}, from its fraction") for word in found[1].inferred)


def test_a_definition_of_a_section_above():
    above = "# One\n\n" + displays(r"p_i = \frac{e^{z_i}}{\sum_k e^{z_k}}") + "\n\n# Two\n\n"
    right, wrong = (
        displays(rf"\frac{{\partial p_i}}{{\partial z_j}} = p_i (\delta_{{ij}} {s} p_j)") for s in "-+"
    )
    last = sight(above + right)[-1]
    assert last.kind == "equal" and "p is as defined in line 3" in last.inferred
    assert kinds(above + wrong)[-1] == "not readable"


def test_a_definition_in_terms_of_new_names_takes_the_place_of_the_old_one():
    before = displays(r"y_i = \frac{x_i - a_i}{s_i}", r"u_i = x_i - a_i", r"y_i = \frac{u_i}{s_i}") + "\n\n"
    right, wrong = (
        rf"\frac{{\partial y_i}}{{\partial u_j}} = \frac{{\delta_{{ij}}}}{{s_i{p}}}" for p in ("", "^2")
    )
    assert kinds(before + displays(right))[-1] == "equal"
    assert kinds(before + displays(wrong))[-1] != "equal"


STEPS = displays(
    r"u_{k+1}^{(b)} = M_k u_k^{(a)}",
    r"u_{k+1}^{(t)} = M_k u_k^{(t)} + \xi_{k+1}^{(p)}",
    r"P_k = (I - K_k H_k) B_k - (I - K_k H_k) B_k (K_k H_k)^T",
)
STEP_ROWS = [
    r"u_{k+1}^{(t)} - u_{k+1}^{(b)} = M_k (u_k^{(t)} - u_k^{(a)}) + \xi_{k+1}^{(p)}",
    r"P_k = (I - K_k H_k) B_k - (I - K_k H_k) B_k H_k^T K_k^T",
]


def test_names_at_a_step():
    found = sight(STEPS + "\n\n" + displays(*STEP_ROWS))
    assert [verdict.kind for verdict in found] == ["definition"] * 3 + ["equal"] * 2
    assert "M_k is a name, at the step k" in found[0].inferred


@pytest.mark.parametrize(
    "row, right, wrong",
    [
        (0, r"+ \xi", r"- \xi"),
        (0, "u_k^{(a)}", "u_{k+1}^{(a)}"),
        (0, "M_k (", "("),
        (1, "H_k^T K_k^T", "K_k^T H_k^T"),
        (1, "B_k - ", "B_k + "),
        (1, "B_k - ", "B_{k-1} - "),
    ],
)
def test_a_slip_in_names_at_a_step_is_not_equal(row, right, wrong):
    assert right in STEP_ROWS[row]
    assert kinds(STEPS + "\n\n" + displays(STEP_ROWS[row].replace(right, wrong)))[-1] == "not readable"


def test_an_index_is_not_a_step():
    assert not [*steps(r"x_{k+1} = \sum_k W_k M_k x_k")]
    assert not [*steps(r"h_{t+1} = f(h_t)")]
    assert not [*steps(r"A_{k+1} = A_k B_{kj}")]


def test_the_comment_that_is_suggested_names_the_conventions():
    document = read_document(NORMALISED + displays(*ROWS), "markdown")
    _, suggestion = suggest(document)
    assert {"sums implied", "loss l"} <= {*suggestion.directives} and not suggestion.wrong


WEIGHTS = displays(r"z = W_h h + W_x x + b_h") + "\n\n"


@pytest.mark.parametrize("name, right, wrong", [("W_h", "h^T", "x^T"), ("W_x", "x^T", "h^T")])
def test_a_name_below_a_name_is_a_label(name, right, wrong):
    rows = [
        rf"\frac{{\partial L}}{{\partial {name}}} = \frac{{\partial L}}{{\partial z}} {one}"
        for one in (right, wrong)
    ]
    found = sight(WEIGHTS + displays(*rows))
    assert [verdict.kind for verdict in found] == ["definition", "equal", "refused"]
    assert f"{name[-1]} is a label in {name}" in found[1].inferred


def test_an_index_is_not_a_label():
    assert not [*labels(r"y_i = \sum_k W_k x_k + k")]
    assert not [*labels(r"y_k = A_k B_{kj} + k")]
    assert not [*labels(r"y = A_k x")]


@pytest.mark.parametrize("derivative", [r"\frac{dc}{da}", r"\frac{d}{da} (a b)", r"\nabla_a (a b)"])
def test_a_total_derivative_holds_nothing_constant(derivative):
    given = r"<!-- derive: given a \in \mathbb{R}; let b = a^2; let c = a b -->"
    found = sight(f"{given}\n\n$$ {derivative} = b $$\n\n$$ {derivative} = 3 b $$\n")
    assert found[0].kind != "equal" and found[1].kind == "equal"


def test_a_text_does_not_hold_and_go_through_the_same_names():
    text = r"""
Let $x \in \mathbb{R}^n$.

$$ S = \sum_k e^{x_k} $$

$$ y_i = \frac{e^{x_i}}{S} $$

$$ \frac{\partial y_i}{\partial x_j} = y_i (\delta_{ij} - y_j) $$

$$ \frac{\partial y_i}{\partial x_j} = \delta_{ij} y_i $$
"""
    assert [one.kind for one in sight(text)][-2:] == ["equal", "not readable"]


@pytest.mark.parametrize(
    "prose",
    [
        "The labels are stored on disk. Let $x \\in \\mathbb{R}^n$.",
        "Here $x \\in \\mathbb{R}^n$ need not be labels.",
    ],
)
def test_only_what_the_text_calls_a_label_sums_to_one(prose):
    (found,) = sight(f"{prose}\n\n$$ \\sum_i x_i = 1 $$\n")
    assert found.kind == "not readable"


def test_a_name_that_is_defined_in_two_ways_has_no_meaning():
    text = r"""
Let $x \in \mathbb{R}^n$, $A \in \mathbb{R}^{n \times n}$.

$$ q = x^\top A x $$

$$ q = x^\top A^\top A x $$

$$ \nabla_x q = (A + A^\top) x $$

$$ \nabla_x q = 2 A^\top A x $$
"""
    assert [one.kind for one in sight(text)][-2:] == ["not readable"] * 2


def test_a_derivative_is_not_zero_because_nothing_defines_what_it_goes_through():
    found = sight("$$ z = u^2 + v^2 $$\n\n$$ \\frac{dz}{dt} = 0 $$\n")
    assert found[-1].kind == "not readable"
