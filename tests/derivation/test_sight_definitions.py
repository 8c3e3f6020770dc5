"""What defines a name at first sight: a sign, a sentence, or its being new; and what does not."""

import pytest

from backpass.derivation.text.formal.free import free_indices
from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from tests.derivation.test_first_sight import displays, kinds

USED = r"\Psi_{new} + a = [G(u), 2]"  # in which a has no value
VALUE = r"e^{-k_{in}} [1, 2]"


@pytest.mark.parametrize(
    "sign", [r":=", r"\coloneqq", r"\triangleq", r"\equiv", r"\overset{\text{def}}{=}", "= "]
)
def test_a_sign_defines_a_name_that_is_used_above(sign):
    found = kinds(displays(USED, f"a {sign} {VALUE}"))
    assert found[-1] == ("not readable" if sign == "= " else "definition")


def test_equivalent_is_equal_except_modulo_a_number():
    right, wrong = r"2 C_u + 2 C_v \equiv 2 (C_u + C_v)", r"2 C_u + 2 C_v \equiv 2 C_u + C_v"
    assert kinds(displays(right)) == ["equal"]
    assert kinds(displays(wrong)) == ["not readable"]
    assert kinds(displays(right + r" \pmod{3}")) == ["not readable"]
    assert kinds(displays(r"\min_x x^2 \equiv \max_x -x^2")) == ["not readable"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Here, we can take", "definition"),
        ("The natural model to consider is", "definition"),
        ("We assume that", "definition"),
        ("Then, as we assumed,", "not readable"),
        ("Assuming independence, it is", "not readable"),
        ("We take logarithms:", "not readable"),
        ("We find", "not readable"),
        ("It is", "not readable"),
    ],
)
def test_an_assumption_defines_a_name_that_is_used_above(sentence, expected):
    assert kinds(f"$$ {USED} $$\n\n{sentence}\n\n$$ a = {VALUE} $$\n")[-1] == expected


def test_a_name_that_has_a_value_is_not_assumed_again():
    first = "We assume that\n\n$$ a = [C_u, 1] $$\n\nWe assume that\n\n"
    assert kinds(first + r"$$ a = [C_u, 2] $$")[-1] == "not readable"


@pytest.mark.parametrize(
    ("formula", "free"),
    [
        (r"b_0 + b_1 x_1 + \dots + b_p x_p + e", ""),
        (r"b_0 + b_p x_p + e", "p"),
        (r"b_0 + b_1 x_1 + \dots + b_p x_q", ""),
        (r"[x_1, \dots, x_n]", ""),
        (r"\frac{\sum y_i}{n}", ""),
        (r"\frac{\sum y_i}{n} + z_i", "i"),
        (r"\sum_i y_i + y_j", "j"),
        (r"A_{ij} x_j", "ij"),
    ],
)
def test_indices_over_which_nothing_runs(formula, free):
    assert free_indices(read_formula(formula, Manner(lambda name: False))) == {*free}


def test_a_sum_that_is_not_written_is_not_a_definition():
    assert kinds(displays(r"\Psi_{new} = b_0 + b_1 x_1 + \dots + b_p x_p + [1]")) == ["definition"]
    assert kinds(displays(r"\Psi_{new} = b_0 + b_j x_j + [1]")) == ["not readable"]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\mathcal{L}_{\text{MSE}} = \sum_i (y_i - g(x_i))^2 [1, 2]", "definition"),
        (r"w^* = \arg\min_w \sum_i (y_i - g(x_i, w))^2 [1, 2]", "definition"),
        (r"w = \sum_i (y_i - g(x_i))^2 [1, 2]", "not readable"),  # a solution
        (r"w^* = \min_w \sum_i (y_i - g(x_i, w))^2 [1, 2]", "not readable"),
    ],
)
def test_what_is_minimised_is_defined_and_a_solution_is_not(formula, expected):
    assert kinds(f"Training minimizes the error, a condition:\n\n$$ {formula} $$") == [expected]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        (r"\epsilon \sim p(\epsilon)", "definition"),
        (r"w \sim q_\theta(w)", "definition"),
        (r"\text{use } \epsilon = 1", "not readable"),
        (r"\epsilon \approx p(\epsilon)", "not readable"),
    ],
)
def test_a_distribution_beside_a_definition_restricts_nothing(beside, expected):
    assert kinds(displays(rf"\Psi_{{new}} = g_\phi(u, \epsilon) [1], \qquad {beside}"))[0] == expected


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"Y_i \overset{\text{iid}}{\sim} P", "nothing claimed"),
        (r"Y_i | X \stackrel{ind}{\sim} P_{\eta_i}", "nothing claimed"),
        (r"w \sim q_\theta(w)", "nothing claimed"),
        (r"x | t \sim \mathcal{N}(A t, 1)", "not readable"),  # perhaps a result
        (r"n! \sim \sqrt{n}", "not readable"),
    ],
)
def test_what_is_sampled_is_declared(formula, expected):
    assert kinds(displays(formula)) == [expected]


def test_elements_with_values_of_their_own_are_not_each_other():
    above = displays(r"\mathbf{S}_W = \mathbf{A} [u, 1]", r"\mathbf{S}_B = \mathbf{C} [u, 1]")
    found = [
        kinds(above + "\n\n" + displays(rf"2 \mathbf{{S}}_{of} + v = 2 \mathbf{{A}} [u, 1] + v"))[-1]
        for of in "WB"
    ]
    assert found == ["equal", "not readable"]


CHAIN = "$$ \\Psi_{new} = 2 C_u + 2 C_v $$\n\nThen\n\n"


@pytest.mark.parametrize(
    ("between", "line", "expected"),
    [
        ("", "2 (C_u + C_v)", "equal"),
        ("", "2 (C_u - C_v)", "not readable"),
        ("", "2 C_u + C_v = 2 (C_u + C_v)", "equal"),
        ("# Another section\n\n", "2 (C_u + C_v)", "not readable"),
        ("$$ a \\approx b $$\n\nand\n\n", "2 (C_u + C_v)", "not readable"),
    ],
)
def test_a_display_that_begins_with_equals_continues_the_one_above(between, line, expected):
    assert kinds(f"{CHAIN}{between}$$ = {line} $$")[-1] == expected
    if not between:
        assert kinds(f"{CHAIN}$$ = {line} $$\n\nand\n\n$$ = C_u + C_v + C_u + C_v $$")[-1] == "equal"
