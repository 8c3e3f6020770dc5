"""At first sight, an equation may follow from one above it; wrong twins do not."""

import pytest

from tests.derivation.test_first_sight import displays, kinds, sight

# Equations, of which the last follows from those above it, and a slip in it.
FOLLOWS = {
    "rearranged": (
        [r"A [F(u), 2] + C Q = - G(u)", r"C Q = - G(u) - A [F(u), 2]"],
        [("- A", "+ A"), ("A [F(u), 2]", "[F(u), 2] A"), ("- G", "G")],
    ),
    "multiplied": (
        [r"\frac{1}{v} [F(u) + 1, 2] - \frac{1}{v} G(u) = w", r"2 [F(u) + 1, 2] = 2 G(u) + 2 v w"],
        [("2 [", "3 ["), ("2 G", "- 2 G"), ("F(u)", "F(v)")],
    ),
    "divided by a sum": (
        [r"a [F(u), 2] + b [F(u), 2] = G(u)", r"[F(u), 2] = \frac{G(u)}{a + b}"],
        [("a + b", "a - b"), (r"\frac{G(u)}", r"\frac{2 G(u)}")],
    ),
    "normal equations": (
        [r"A^T A [F(u), 2] = A^T y", r"[F(u), 2] = (A^T A)^{-1} A^T y"],
        [("(A^T A)", "(A A^T)"), ("^{-1}", ""), (r"A^T y", r"y A^T")],
    ),
    "inverses": (
        [r"S [F(u), 2] = (A B)^{-1} A B G(u)", r"3 S [F(u), 2] = 3 G(u)"],
        [("= 3 G(u)", "= G(u)"), ("G(u)", "G(v)")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWS)
def test_what_follows_from_an_equation_is_equal_and_a_slip_is_not(name):
    formulas, slips = FOLLOWS[name]
    assert kinds(displays(*formulas))[-1] == "equal"
    for old, new in slips:
        assert old in formulas[-1]
        wrong = formulas[-1].replace(old, new, 1)
        assert kinds(displays(*formulas[:-1], wrong))[-1] != "equal", wrong


def test_a_conclusion_says_from_which_line_it_follows():
    *_, verdict = sight(displays(*FOLLOWS["divided by a sum"][0]))
    assert verdict.inferred == ("names are numbers", "line 1 holds")


def test_a_conclusion_from_an_imposed_equation_need_not_hold_everywhere():
    text = "Setting the difference to zero gives\n\n$$ x^2 - 2 x y = 0 $$\n\nHence\n\n$$ x^2 = {} x y $$\n"
    assert kinds(text.replace("{}", "2"))[-1] == "equal"
    assert kinds(text.replace("{}", "3"))[-1] == "not readable"


def test_an_equation_that_is_only_repeated_does_not_follow():
    formula = r"A [F(u), 2] = B G(u)"
    assert kinds(displays(formula, formula)) == ["not readable"] * 2


def test_a_conclusion_needs_a_line_that_may_hold():
    wrong = r"\Psi_{new} = F(u) - G(u) = F(u) + G(u)"
    assert "equal" not in kinds(displays(wrong, r"2 F(u) - 2 G(u) = 2 F(u) + 2 G(u)"))


CHAIN = r"\frac{dz}{dt} = \frac{\partial f}{\partial x} \frac{dx}{dt} + \frac{\partial f}{\partial y} \frac{dy}{dt}"


def test_a_chain_rule_begins_with_the_function_whose_value_is_differentiated():
    *_, verdict = sight(displays("z = f(x, y)", CHAIN))
    assert verdict.kind == "equal"
    assert verdict.inferred == ("z is a value of f", "z depends on t only through x and y")
    for wrong in (
        CHAIN.partition(" + ")[0],
        CHAIN.replace(" + ", " - "),
        CHAIN.replace("{dy}{dt}", "{dx}{dt}"),
    ):
        assert kinds(displays("z = f(x, y)", wrong))[-1] == "not readable"
    assert kinds(displays("z = g(x, y)", CHAIN))[-1] == "not readable"


@pytest.mark.parametrize(
    ("formula", "rounded", "wrong"),
    [
        (r"\frac{5}{3}", "1.67", "1.66"),
        (r"\frac{1{,}685}{14{,}575}", "0.116", "0.115"),
        (r"78 - (3.785)(5.2)", "58.3", "58.2"),
        (r"0.53 \log(1.06) + 0.47 \log(0.94)", "0.0018", "0.0019"),
        (r"\sqrt{2}", "1.414", "1.415"),
        (r"F(3)", None, "3"),
    ],
)
def test_a_number_is_rounded_or_is_not_equal(formula, rounded, wrong):
    if rounded:
        *_, verdict = sight(displays(rf"r_{{new}} = {formula} \approx {rounded}"))
        assert (verdict.kind, verdict.inferred) == ("equal", ("its right side is rounded",))
    assert kinds(displays(rf"r_{{new}} = {formula} \approx {wrong}"))[-1] == "not readable"
