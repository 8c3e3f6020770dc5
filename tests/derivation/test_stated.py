"""What a text says about a line keeps a right line from being refused, and a wrong line is refused elsewhere."""

import pytest

from .judging import kinds, one, verdicts
from .test_first_sight import sight

SYMMETRIC = r"given S, A \in \mathbb{R}^{n \times n}, u \in \mathbb{R}^n"
SUM = r"given z \in \mathbb{R}^n, c \in \mathbb{R}; let r = \sum_i (z_i - c)^2"


@pytest.mark.parametrize(
    "prose",
    [
        "For a symmetric matrix $S$:",
        "Let $S$ be positive-definite.",
        "The covariance matrix $S$ has an inverse.",
    ],
)
def test_a_matrix_that_is_symmetric_in_the_prose(prose):
    def found(line):
        return verdicts(f"{prose}\n\n$$ {line} $$", SYMMETRIC)[0]

    asked = found(r"\nabla_u (u^\top S u) = 2 S u")
    assert asked.kind == "not readable" and r"it holds if S = S^\top" in asked.message
    assert found(r"\nabla_u (u^\top S u) = (S + S^\top) u").kind == "equal"
    assert found(r"\nabla_u (u^\top S u) = 3 S u").kind == "refused"
    assert found(r"\nabla_u (u^\top A u) = 2 A u").kind == "refused"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("**Normal equation:**", ""),
        ("The score equation is", ""),
        ("The derivative is", "if and only if $c$ is the mean."),
        ("There exists a point $c$ with", ""),
        ("We have", "only if $c$ is the mean."),
    ],
)
def test_an_equation_that_words_impose(before, after):
    line = r"$$ \frac{\partial r}{\partial c} = 0 $$"
    assert verdicts(f"{before}\n\n{line}\n\n{after}", SUM)[0].kind in ("not readable", "nothing claimed")
    assert verdicts(f"The derivative is\n\n{line}\n\nNow to the mean.", SUM)[0].kind == "refused"


def test_a_number_that_lies_in_an_interval():
    given = r"given c, x \in \mathbb{R}"
    line = r"$$ |c x^2| = c x^2 $$"
    (*_, found) = verdicts(f"Here $c \\in (0, 1)$.\n\n{line}", given)
    assert found.kind == "not readable" and "in which interval c lies" in found.message
    assert kinds(line, given) == ["refused"]


def test_a_function_at_a_declared_name_with_an_index():
    given = r"given m_k \in \mathbb{R}^d; let G(v) = v^\top v"
    lines = (r"G(m_k) = m_k^\top m_k", r"G(m_k) = 2 m_k^\top m_k", r"G(m_k) = m_k m_k")
    assert [one(line, given).kind for line in lines] == ["equal", "refused", "ill-formed"]


def test_an_unread_derivative_of_a_function_defines_nothing():
    wrong = r"$$ \phi'(u) = 5 u \lim_{t \to 0} 1 $$"
    assert kinds(f"$$ \\phi(u) = u^2 $$\n\n{wrong}\n\n{wrong}") == [
        "definition",
        "not readable",
        "not readable",
    ]


def test_a_zero_within_a_formula_may_be_an_array():
    given = r"given A \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n"
    lines = r"x - x = x - A \times 0", r"x - x = 0 - A x + A x", r"x - x = A - A x + A x"
    assert [one(line, given).kind for line in lines] == ["not readable", "equal", "ill-formed"]


ZERO = r"\frac{\partial r}{\partial c} = -2 \sum_i (z_i - c) = 0"


def test_a_derivative_that_the_text_has_set_to_0_is_set_to_0_below():
    start = "We have to set:\n\n$$ \\frac{\\partial r}{\\partial c} = 0 $$\n\nThe derivative is\n\n"
    assert [one.kind for one in verdicts(f"{start}$$ {ZERO} $$", SUM)] == [
        "nothing claimed",
        "equal",
        "not readable",
    ]
    wrong = ZERO.replace("-2", "-3")
    assert verdicts(f"{start}$$ {wrong} $$", SUM)[1].kind == "refused"


def test_what_may_follow_from_an_equation_of_another_section():
    text = f"We rewrite the condition.\n\n$$ {ZERO} $$\n\n# The mean\n\nWe use it here.\n\n"
    given = SUM + "; keep definitions"
    assert verdicts(text + r"$$ \sum_i z_i = n c $$", given)[-1].kind == "not readable"
    wrong = text + r"$$ \frac{\partial r}{\partial z_i} = z_i $$"
    assert verdicts(wrong, given)[-1].kind == "refused"


SENTENCES = (
    "We have to set:", "we must set", "we put", "We need", "Find $c$ such that", "For the best $c$,",
    "We let the derivative be zero:", "and force it to be zero", "so we look for a point where",
    "when the loss is minimal", "To find the minimum we differentiate and obtain",
)  # fmt: skip


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_that_imposes(sentence):
    (found,) = verdicts(f"{sentence}\n\n$$ \\frac{{\\partial r}}{{\\partial c}} = 0 $$", SUM)
    assert found.kind in ("not readable", "nothing claimed")


@pytest.mark.parametrize(
    "definition",
    [
        "",
        "$$ h_t = tanh(A u_t + B h_{t-1}) $$",
        r"$$ h_t = \tanh(a u_t + b h_{t-1}) $$",
        "$$ h_{t+1} = b h_t $$",
    ],
)
def test_a_state_may_depend_on_an_earlier_one(definition):
    product = r"$$ \frac{\partial h_3}{\partial h_1} = 2 \frac{\partial h_3}{\partial h_2} \frac{\partial h_2}{\partial h_1} $$"
    for line in (r"$$ \frac{\partial h_3}{\partial h_2} = 0 $$", r"$$ \nabla_{h_2} h_3 = 0 $$", product):
        assert sight(f"{definition}\n\n{line}")[-1].kind == "not readable"
    assert sight(r"$$ \frac{\partial x_i}{\partial x_j} = \delta_{ij} $$")[0].kind == "equal"
