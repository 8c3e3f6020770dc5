"""What texts print is read: right lines are accepted, wrong twins refused, and what is ambiguous is not guessed."""

import pytest

from backpass.derivation import derive

from .judging import kinds, one, verdicts

GIVEN = r"given x \in \mathbb{R}, v, w \in \mathbb{R}^n, X \in \mathbb{R}^{n \times m}, W^Q \in \mathbb{R}^{m \times n}"


def displays(*formulas):
    return "\n\n".join(f"$$ {formula} $$" for formula in formulas)


# ---- exponents ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"e^{x^2} e^{v_i^2} = e^{x^2 + v_i^2}", "equal"),
        (r"e^{x^2} e^{v_i^2} = e^{x^2 - v_i^2}", "refused"),
        (r"\frac{\partial}{\partial x} e^{x^2/2} = x e^{x^2/2}", "equal"),
        (r"\frac{\partial}{\partial x} e^{x^2/2} = 2 x e^{x^2/2}", "refused"),
        (r"e^{v^\top w} = e^{w^T v}", "equal"),
        (r"e^{v^\top w} = e^{v^T v}", "refused"),
        (r"\frac{\partial}{\partial v_i} e^{v^\top w} = w_i e^{v^\top w}", "equal"),
        (r"v^{x^\top} = v", "not readable"),
        # The name W^Q with a transpose, in both ways of writing it.
        (r"W^{Q\top} X^T = (X W^Q)^T", "equal"),
        (r"W^{Q^\top} X^T = (X W^Q)^T", "equal"),
        (r"W^{Q^\top} X^T = 2 (X W^Q)^T", "refused"),
    ],
)  # fmt: skip
def test_an_exponent_may_begin_with_a_name_and_its_power(formula, kind):
    assert one(formula, GIVEN).kind == kind


# ---- names with numbers -------------------------------------------------------------------


def test_a_name_with_a_number_is_defined():
    text = displays(
        "f_0 = 2 x", "f_1 = f_0^2", r"\frac{\partial f_1}{\partial x} = 8 x",
        r"\frac{\partial f_1}{\partial x} = 4 x", r"\frac{\partial f_1}{\partial f_0} = 2 f_0",
        r"h_0 = v", r"h_1 = X W^Q h_0", r"(h_1)_i = \sum_{j,k} X_{ij} W^Q_{jk} v_k", r"h_1 = v",
        r"y_{\text{in}} = x^2", r"y_{\text{in}} = x \cdot x", r"g_1(t) = t^2", r"g_1(x) = x^2",
    )  # fmt: skip
    assert kinds(text, GIVEN) == [
        "definition", "definition", "equal", "refused", "equal",
        "definition", "definition", "not readable", "not readable",
        "definition", "equal", "definition", "equal",
    ]  # fmt: skip
    derive(
        rf"""
        {GIVEN}
        let f_1 = 2 x
        let f_2 = f_1^2
        \frac{{\partial f_2}}{{\partial x}} = 8 x
    """,
        name="numbered",
    )


@pytest.mark.parametrize("formula", ["v_1 = x", "z_{1i} = v_i", "z_{i,:} = v"])
def test_an_element_of_an_array_is_not_defined_alone(formula):
    assert one(formula, GIVEN).kind == "not readable"


def test_a_name_with_a_number_is_told_apart_from_an_element():
    found = verdicts(
        displays("v_1 = 2 x", "v = X y"),
        r"given x \in \mathbb{R}, X \in \mathbb{R}^{n \times m}, y \in \mathbb{R}^m",
    )
    assert [verdict.kind for verdict in found] == ["definition", "not readable"]
    assert "cannot be told apart" in found[1].message


# ---- reasons ------------------------------------------------------------------------------

OF_SQUARES = r"given x \in \mathbb{R}^n, c \in \mathbb{R}; let q = \sum_i x_i^2"


@pytest.mark.parametrize(
    "reason",
    [
        r"&& \text{by the chain rule}",
        r"& & \text{(linearity)}",
        r"& \text{by the definition of } q",
        r"\quad \text{(by linearity of the sum)}.",
        r"\qquad \text{[chain rule]}",
        r"\;\; (\text{product rule})",
        r", \quad \text{Using the product rule and simplifying}",
        r"\text{ by algebra}",
        r"&& \mbox{by definition}",
        r"&& \text{(a)}",
    ],
)
def test_a_reason_that_restricts_nothing_is_dropped(reason):
    row = r"\begin{{align}} \frac{{\partial q}}{{\partial x_i}} &= 2 x_i {0} \\ &= {1} {0} \\ &= 2 x_i {0} \end{{align}}"
    assert kinds(f"$$ {row.format(reason, 'x_i + x_i')} $$", OF_SQUARES) == 3 * ["equal"]
    assert kinds(f"$$ {row.format(reason, '3 x_i')} $$", OF_SQUARES) == ["equal", "refused", "equal"]


@pytest.mark.parametrize(
    "words",
    [
        r"\quad \text{at the minimum}",
        r"\quad \text{by symmetry}",
        r"\quad \text{by independence}",
        r"\quad \text{since the sum is 1}",
        r"\quad \text{by the assumption}",
        r"\quad \text{(on the boundary)}",
        r"\quad \text{where } x_i = 0",
        r"\text{ if } x_i = 0",
        r"\quad \text{if } x_i = 0",
        r"\text{ for } c = 0",
    ],
)
def test_words_that_may_restrict_a_line_keep_it_from_being_refused(words):
    assert one(rf"2 x_i = x_i {words}", OF_SQUARES).kind == "not readable"


@pytest.mark.parametrize(
    "sign",
    [
        r"\overset{(a)}{=}", r"\stackrel{(1)}{=}", r"\overset{1}{=}", r"\underset{\text{(b)}}{=}",
        r"\overset{\text{chain rule}}{=}", r"\stackrel{\text{def}}{=}", r"\stackrel{\triangle}{=}", r"\triangleq",
    ],
)  # fmt: skip
def test_an_equals_sign_below_a_label_is_one(sign):
    text = r"\begin{{align}} \frac{{\partial q}}{{\partial x_i}} &{0} x_i + x_i \\ &{0} 3 x_i \end{{align}}"
    assert kinds(f"$$ {text.format(sign)} $$", OF_SQUARES) == ["equal", "refused"]
    assert one(rf"r {sign} 2 c", OF_SQUARES).kind == "definition"


@pytest.mark.parametrize("over", ["!", "d", "?", r"\text{a.s.}", r"\mathcal{D}"])
def test_another_sign_over_an_equals_sign_is_not_guessed(over):
    verdict = one(rf"2 c \overset{{{over}}}{{=}} c", OF_SQUARES)
    assert verdict.kind == "not readable"
    assert "what does" in verdict.message


def test_two_columns_hold_two_equations():
    text = r"$$ \begin{aligned} y &= 2 c && z = 3 c \\ y + z &= 5 c & y - z &= c \end{aligned} $$"
    assert kinds(text, OF_SQUARES)[:2] == ["definition", "definition"]
    assert kinds(r"$$ \begin{alignedat}{2} 2 c &= c && + c \end{alignedat} $$", OF_SQUARES) == ["equal"]
