"""Notation that texts print, as it is read at first sight; what may mean two things is not read."""

import pytest

from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.tokens import operands_of
from backpass.derivation.text.formal.trees import Unclear
from tests.derivation.test_first_sight import displays, kinds

FUNCTIONS = Manner(("f", "p", "q", "D", r"\sigma", "KL").__contains__)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (r"a + b\ ", "a + b"),
        ("14{,}575 + x", "14575 + x"),
        ("x \N{MINUS SIGN} y", "x - y"),
        (r"p(x \lvert y)", r"p(x \mid y)"),
        (r"p(x \| y)", r"p(x \mid y)"),
        (r"\mathrm{KL}(q \mid\mid p)", r"\mathrm{KL}(q \| p)"),
        (r"\mathrm{KL}(q(x \mid z) || p)", r"\mathrm{KL}(q(x \mid z) \| p)"),
        (r"{{x} \over {y + 1}}", r"\frac{x}{y + 1}"),
        (r"{\partial f \over \partial x}", r"\frac{\partial f}{\partial x}"),
        (r"\sigma^2_{new}", r"{\sigma_{new}}^2"),
        (r"\sigma^2(x)", r"{\sigma(x)}^2"),
        (r"x^2_i + 1", "x_i^2 + 1"),
        (r"\sin u \cos v", r"\sin(u) \cos(v)"),
        (r"\mathbb{E}_q \log p(x) - y", r"\mathbb{E}_q[\log p(x)] - y"),
        (r"\bx + \bSigma", r"\mathbf{x} + \mathbf{\Sigma}"),
        ("(3)(x) + 1", "3 x + 1"),
        (r"{\cal Y}_i + {\bf x_i}^T", r"\mathcal{Y}_i + \mathbf{x}_i^T"),
        (r"{\rm f}(x) + a^{\bf b}", r"\mathrm{f}(x) + a^{\mathbf{b}}"),
    ],
)
def test_two_ways_to_print_a_formula_are_read_alike(written, plain):
    assert read_formula(written, FUNCTIONS) == read_formula(plain, FUNCTIONS)


@pytest.mark.parametrize(
    "formula",
    [
        r"\log p x",
        r"\log \frac{x}{y} d w",  # outside an integral
        r"2 {a + b} c",  # prints 2 a + b c
        r"\sum_i {x_i - a}",
        r"{a b}^2",
        r"\foo{a} + b",
        r"a \trianglelefteq b",
        r"\log(a)^2",
    ],
)
def test_what_may_mean_two_things_is_not_read(formula):
    with pytest.raises(Unclear):
        read_formula(formula, FUNCTIONS)


def test_commands_that_a_text_does_not_define_are_arrays():
    assert kinds(displays(r"\Psi_{new} = \bA \bB = \bB \bA"))[-1] == "not readable"
    assert kinds(displays(r"\Psi_{new} = 2 \bA \bB = \bA \bB + \bA \bB"))[-1] == "equal"


def test_a_command_is_a_name_where_the_text_has_it_as_an_operand():
    formulas = [
        r"\foo", r"a \boxplus b", r"(a \fob)", r"\fot^T x", r"\ddot{\foa}(x)", r"x^{\fos}", r"\lceil x \rceil",
        r"\bigwedge^2 V", r"\forall x", r"a \Cup (b)", r"\coprod_i x_i",
    ]  # fmt: skip
    assert operands_of(formulas) == {"foo", "fob", "fot", "foa"}


@pytest.mark.parametrize("sign", [r"\boxplus", r"\Cup", r"\vartriangle", r"\ominus"])
def test_a_sign_of_latex_is_not_a_factor(sign):
    row = rf"\Psi_{{new}} = 2 a {sign} b = a {sign} b + a {sign} b"
    assert kinds(displays(row)) == ["not readable", "not readable"]
    assert kinds(displays(row, rf"c = {sign}"))[:2] == ["definition", "equal"]  # then it is a name


def test_braces_group_nothing_at_first_sight():
    right, wrong = r"\Psi_{new} = 2 C_u + 2 C_v = ", "2 {C_u + C_v}"
    assert kinds(displays(right + "2 (C_u + C_v)"))[-1] == "equal"
    assert kinds(displays(right + wrong))[-1] != "equal"


def test_a_square_is_defined_unless_its_root_is():
    square = r"\sigma^2 = \mathbb{E}[(x - \mu)^2]"
    assert kinds(displays(square)) == ["definition"]
    assert kinds(displays(r"\sigma = \mathbb{E}[x] + \mu", square))[-1] == "not readable"
    assert kinds(displays(square, r"\sigma^2 = \mathbb{E}[x^2] + \mu^2"))[-1] == "not readable"


def test_only_the_first_right_side_is_a_definition():
    found = kinds(displays(r"\mu = \mathbb{E}[x] = \frac{a + b}{2}"))
    assert found == ["definition", "not readable"]


def test_a_value_of_a_divergence_is_not_its_definition():
    head = r"\mathrm{KL}(q \| p) = "
    assert kinds(displays(head + r"\int q(x) \log \frac{q(x)}{p(x)} dx")) == ["definition"]
    assert kinds(displays(head + r"\frac12 \sum_k (s_k - 1 - \log s_k)")) == ["not readable"]


def test_factors_without_the_index_leave_a_sum():
    whole = r"\Psi_{new} = \sum_i W_u x_i x_i^T = "
    assert kinds(displays(whole + r"W_u \sum_i x_i x_i^T"))[-1] == "equal"
    for wrong in (r"\sum_i x_i x_i^T W_u", r"\sum_i x_i W_u x_i^T"):
        assert kinds(displays(whole + wrong))[-1] == "not readable"
    inner = r"\Psi_{new} = \sum_i W_i x_i x_i^T = W_i \sum_i x_i x_i^T"
    assert kinds(displays(inner))[-1] == "not readable"


def test_a_name_that_is_used_above_is_defined_where_the_sentence_says_so():
    used, defined = r"\Psi_{new} + a = [G(u), 2]", r"a = e^{-k_{in}} [1, 2]"
    sentences = "All of this holds where", "Hence, since both are equal, it follows that"
    found = [kinds(f"$$ {used} $$\n\n{words}\n\n$$ {defined} $$\n")[-1] for words in sentences]
    assert found == ["definition", "not readable"]


def test_two_functions_of_which_nothing_is_known_differ():
    assert kinds(displays("2 f(u) = 2 g(u)")) == ["not readable"]
    assert kinds(displays("2 f(u) = f(u) + f(u)")) == ["equal"]
