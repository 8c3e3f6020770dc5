"""A formula is written shorter and stays the same."""

import pytest
import sympy

from backpass import cost, ops
from backpass.cost.shorter import shorter, to_latex

m, n, s = sympy.symbols("m n s", positive=True, integer=True)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_every_formula_of_the_package_stays_equal_and_gets_no_longer(stem):
    for formula in cost.symbolic_formula(stem):
        written = shorter(formula)
        assert sympy.expand(written - formula) == 0
        if isinstance(formula, sympy.Expr):
            assert len(to_latex(written)) <= 1.3 * len(to_latex(formula)) < 2000


def test_what_terms_share_stands_before_their_sum():
    assert to_latex(shorter(m * (2 * n - 1) * s + m * s * (4 * n - 1))) == r"2 m s \left(3 n - 1\right)"


def test_words_are_upright_and_a_positive_term_comes_first():
    distinct = sympy.Symbol("distinct")
    assert to_latex(-distinct + m) == r"m - {\text{distinct}}"
    assert to_latex(sympy.Integer(-1) - n) == "- n - 1"
