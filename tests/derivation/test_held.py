"""A partial derivative goes through all definitions, or holds other names constant: the command asks which."""

import pytest

from .judging import kinds, one, verdicts

GIVEN = r"""given x, g \in \mathbb{R}^n; loss l
let m = \frac{1}{n} \sum_k x_k; let v = \frac{1}{n} \sum_k x_k^2; let y_i = \frac{x_i}{v}
let l = \sum_i g_i y_i
"""
CHAIN = r"\frac{\partial l}{\partial x_p} = \frac{\partial l}{\partial v} \frac{\partial v}{\partial x_p}"


@pytest.mark.parametrize(
    "formula, wrong",
    [
        (
            r"\frac{\partial y_i}{\partial x_i} = \frac{1}{v}",
            r"\frac{\partial y_i}{\partial x_i} = \frac{2}{v}",
        ),
        (
            r"\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{v}",
            r"\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{v^2}",
        ),
        (
            r"\frac{\partial}{\partial x_j} (x_i - m) = \delta_{ij}",
            r"\frac{\partial}{\partial x_j} (x_i - m) = 1",
        ),
        (
            rf"{CHAIN} + \sum_h \frac{{\partial l}}{{\partial y_h}} \frac{{\partial y_h}}{{\partial x_p}}",
            rf"{CHAIN} - \sum_h \frac{{\partial l}}{{\partial y_h}} \frac{{\partial y_h}}{{\partial x_p}}",
        ),
    ],
)
def test_which_names_are_held_is_asked_and_said(formula, wrong):
    asked = one(formula, GIVEN)
    assert asked.kind == "not readable" and "partial direct" in asked.message
    assert one(formula, GIVEN + "partial direct").kind == "equal"
    assert one(formula, GIVEN + "partial total").kind == "refused"
    assert one(wrong, GIVEN).kind == one(wrong, GIVEN + "partial direct").kind == "refused"


def test_a_name_that_is_not_in_the_definition_itself_may_be_held():
    given = r"given x \in \mathbb{R}; let s = x^2; let u = 3 x; let z = u s"
    asked = one(r"\frac{\partial z}{\partial x} = 3 s", given)
    assert asked.kind == "not readable" and "constant (s)" in asked.message
    assert one(r"\frac{\partial z}{\partial x} = 4 s", given).kind == "refused"


def test_a_total_derivative_is_asked_about_under_partial_direct():
    total = r"\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{v} - \frac{2 x_i x_j}{n v^2}"
    assert one(total, GIVEN).kind == "equal"
    assert "say: partial total" in one(total, GIVEN + "partial direct").message
    text = f"<!-- derive: partial direct -->\n\n<!-- derive: partial total -->\n\n$$ {total} $$"
    assert kinds(text, GIVEN) == ["equal"]


def test_the_gradient_of_the_loss_is_total():
    assert one(r"\frac{\partial l}{\partial x_p} = \frac{g_p}{v}", GIVEN + "partial direct").kind == "refused"


def test_both_a_sum_and_a_held_name_may_be_implied():
    formula = rf"{CHAIN} + \frac{{\partial l}}{{\partial y_h}} \frac{{\partial y_h}}{{\partial x_p}}"
    text = r"$$ \sum_i x_i = n m $$" + f"\n\n$$ {formula} $$"
    assert kinds(text, GIVEN) == ["equal", "not readable"]
    assert kinds(text, GIVEN + "sums implied; partial direct") == ["equal", "equal"]
    assert kinds(text.replace(" + ", " - "), GIVEN + "sums implied; partial direct")[1] == "refused"


ROUND = r"""given x \in \mathbb{R}^n
let v = \sum_i x_i^2; let r_i = 2 x_i; let s = \sum_i r_i; let y = v s; let l = v s
"""
SHOWN = r"v = \frac{1}{4} \sum_k r_k^2"


def below(shown, formula, given=ROUND):
    return verdicts(f"$$ {shown} $$\n\n$$ {formula} $$\n", given)[-1]


@pytest.mark.parametrize(
    "given", [ROUND, ROUND + "loss l", ROUND + "partial total", ROUND + "partial direct"]
)
@pytest.mark.parametrize(
    "shown, right, wrong",
    [
        (SHOWN, r"v s + \frac{1}{2} r_i s \sum_k r_k", r"v s + r_i s \sum_k r_k"),
        (r"\frac{1}{4} \sum_k r_k^2 = v", r"v s + \frac{1}{2} r_i s \sum_k r_k", r"v s + \frac{1}{2} r_i s"),
        (r"2 v = 2 v = v + v", r"v s", r"v s + \frac{1}{2} r_i s \sum_k r_k"),
    ],
)
def test_a_derivative_through_an_equality_above_is_asked_about(given, shown, right, wrong):
    head = r"s \frac{\partial l}{\partial r_i} ="
    found = below(shown, f"{head} {right}", given)
    assert found.kind in ("equal", "not readable")
    assert found.kind == "equal" or "v is as line 1 writes it" in found.message
    assert below(shown, f"{head} {wrong}", given).kind == "refused"


def test_the_whole_may_have_been_rewritten_above():
    shown = r"y = \frac{1}{4} \sum_k r_k^2 \sum_i r_i"
    right = r"\frac{\partial y}{\partial r_i} = v + \frac{1}{2} r_i s"
    found = below(shown, right)
    assert found.kind == "not readable" and "y is as line 1 writes it" in found.message
    assert below(shown, right.replace("2", "3")).kind == "refused"


def test_two_equalities_above_may_both_be_used():
    given = r"""given x \in \mathbb{R}; let u = x^2; let w = x^3; let r = 2 x; let y = u + w"""
    shown = "$$ u = \\frac{1}{4} r^2 $$\n\n$$ w = \\frac{1}{8} r^3 $$\n\n"
    right = r"\frac{\partial y}{\partial r} = \frac{1}{2} r + \frac{3}{8} r^2"
    assert [one.kind for one in verdicts(f"{shown}$$ {right} $$", given)] == [
        "equal",
        "equal",
        "not readable",
    ]
    wrong = right.replace("+", "-")
    assert kinds(f"{shown}$$ {wrong} $$", given) == ["equal", "equal", "refused"]


def test_an_equality_that_was_refused_shows_nothing():
    shown = r"v = \frac{1}{2} \sum_k r_k^2"
    formula = r"\frac{\partial y}{\partial r_i} = v + r_i s"
    assert below(shown, formula).kind == "refused"


@pytest.mark.parametrize(
    "given, shown, right, wrong",
    [
        (
            r"given x, w \in \mathbb{R}^n; let r_i = 2 x_i; let y = \sum_i w_i x_i^2",
            r"x_i = \frac{1}{2} r_i",
            r"\frac{\partial y}{\partial r_i} = \frac{1}{2} w_i r_i",
            r"\frac{\partial y}{\partial r_i} = w_i r_i",
        ),
        (
            r"given s, a \in \mathbb{R}_{>0}, m \in \mathbb{R}; let u = \log s; let l = a \log s + \frac{m^2}{s}",
            r"s = e^u",
            r"\frac{\partial l}{\partial u} = a - m^2 e^{-u}",
            r"\frac{\partial l}{\partial u} = a + m^2 e^{-u}",
        ),
        (
            r"given x \in \mathbb{R}^n, m \in \mathbb{R}, s \in \mathbb{R}; let z_i = \frac{x_i - m}{s}; let y = \sum_i x_i^3",
            r"m + s z_i = x_i",
            r"\frac{\partial y}{\partial z_i} = 3 s x_i^2",
            r"\frac{\partial y}{\partial z_i} = 3 x_i^2",
        ),
    ],
)
def test_an_input_may_be_written_by_what_it_defines(given, shown, right, wrong):
    found = below(shown, right, given)
    assert found.kind == "not readable" and "as line 1 writes it" in found.message
    assert below(shown, wrong, given).kind == "refused"


CHANGED = r"""given x, y \in \mathbb{R}
let r = x + y; let d = x - y; let u = x^2
"""


def test_a_derivative_in_other_variables_that_the_text_shows_is_asked_about():
    shown = "$$ x = \\frac{1}{2} (r + d) $$\n\n"
    right = verdicts(shown + r"$$ \frac{\partial u}{\partial r} = x $$", CHANGED)[-1]
    assert right.kind == "not readable" and "if these are the variables" in right.message
    alone = verdicts(r"$$ \frac{\partial u}{\partial r} = x $$", CHANGED)[-1]
    assert alone.kind == "refused"
    through = verdicts(shown + r"$$ \frac{\partial u}{\partial x} = 3 x $$", CHANGED)[-1]
    assert through.kind != "equal"


def test_an_equality_of_a_derivative_defines_nothing():
    given = r"given a, b \in \mathbb{R}; let p = a b"
    shown = "$$ \\frac{\\partial p}{\\partial a} = b $$\n\n"
    for wrong in ("2 b", "0"):
        found = verdicts(shown + f"$$ \\frac{{\\partial p}}{{\\partial a}} = {wrong} $$", given)[-1]
        assert found.kind == "refused"
