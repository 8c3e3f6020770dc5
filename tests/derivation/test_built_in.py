"""A display that defines e, I, \\pi, or \\delta gives the name that meaning; without a definition, it has the usual one."""

import pytest

from .judging import kinds, one, verdicts

GIVEN = r"""
given x, y \in \mathbb{R}^n, a, b \in \mathbb{R}, A \in \mathbb{R}^{n \times n}
let \sigma(t) = \frac{1}{1 + e^{-t}}
"""


def text(*formulas):
    return "\n\n".join(f"$$ {formula} $$" for formula in formulas)


@pytest.mark.parametrize(
    "definition, right, wrong, name",
    [
        ("e = a - b", "e^2 = a^2 - 2 a b + b^2", "e^2 = a^2", "Euler's number"),
        ("e = a - b", r"\frac{\partial e}{\partial a} = 1", r"\frac{\partial e}{\partial a} = e", "Euler's number"),
        ("e = x - y", r"e^\top e = \sum_i (x_i - y_i)^2", r"e^\top e = \sum_i x_i^2", "Euler's number"),
        ("e_i = x_i - y_i", r"\sum_i e_i = \sum_i x_i - \sum_j y_j", r"e_i = x_i", "Euler's number"),
        ("e_1 = a - b", r"e_1^2 = (a - b)^2", r"e_1^2 = a^2", "Euler's number"),
        ("I = a + b", "I^2 = a^2 + 2 a b + b^2", "I^2 = a^2 + b^2", "the identity matrix"),
        (r"\pi = a b", r"\frac{\partial \pi}{\partial a} = b", r"\frac{\partial \pi}{\partial a} = a", "the number π"),
        (r"\pi_i = \frac{e^{x_i}}{\sum_j e^{x_j}}", r"\sum_i \pi_i = 1", r"\sum_i \pi_i = 2", "the number π"),
        (r"\delta = x - y", r"\delta^\top \delta = \sum_i (x_i - y_i)^2", r"\delta^\top x = 0", "Kronecker's delta"),
        (r"\delta_i = x_i - y_i", r"\delta_i + y_i = x_i", r"\delta_i + x_i = y_i", "Kronecker's delta"),
    ],
)  # fmt: skip
def test_the_definition_of_a_text_goes_before_the_usual_meaning(definition, right, wrong, name):
    found = verdicts(text(definition, right, wrong), GIVEN)
    assert [verdict.kind for verdict in found][:2] == ["definition", "equal"]
    assert found[2].kind in ("refused", "not readable")
    assert found[0].message.endswith(f"in place of {name}")


@pytest.mark.parametrize("definition", ["e = x - y", "e = a - b", "e_i = x_i - y_i", "e_1 = a"])
def test_an_exponential_stays_one_beside_a_name_e(definition):
    right = [
        r"e^{a} = \exp(a)",
        r"e^{x_1 + x_2} = e^{x_1} e^{x_2}",
        r"\frac{\partial}{\partial a} (e^{2 a}) = 2 e^{2 a}",
        r"\sigma(a) = \text{sigmoid}(a)",
        r"\sum_i \text{softmax}(x)_i = 1",
    ]
    assert kinds(text(definition, *right), GIVEN) == ["definition"] + 5 * ["equal"]
    wrong = [r"e^{a} = e^{2 a}", r"\frac{\partial}{\partial a} (e^{2 a}) = e^{2 a}"]
    assert kinds(text(definition, *wrong), GIVEN) == ["definition", "refused", "refused"]


def test_an_exponential_stays_one_beside_a_declared_e():
    given = r"given e, a \in \mathbb{R}"
    assert kinds(text(r"\frac{\partial}{\partial a} (e^a) = e^a", "e^2 = e e", "e^a = e"), given) == [
        "equal",
        "equal",
        "refused",
    ]


def test_kronecker_s_delta_and_an_identity_of_a_size_stay_beside_the_names():
    found = kinds(
        text(r"\delta_i = x_i - y_i", r"\frac{\partial x_i}{\partial x_j} = \delta_{ij}", r"\delta_{ij} = 0"),
        GIVEN,
    )
    assert found == ["definition", "equal", "refused"]
    found = kinds(text("I = a + b", "A I_n = A", "A I_n = I A"), GIVEN)
    assert found == ["definition", "equal", "refused"]


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"\pi = 3.14", "not readable"),
        (r"e = 2.718", "not readable"),
        (r"e = 3 e", "not readable"),
        (r"\pi = \pi \frac{a}{a}", "equal"),
        (r"\delta_{ij} = \frac{\partial x_i}{\partial x_j}", "equal"),
        (r"\delta_{ij} = x_i y_j", "refused"),
        (r"I = A A^{-1}", "not readable"),
        (r"\pi(t) = t^2", "not readable"),
        (r"e = a - c", "not readable"),
    ],
)
def test_what_may_be_the_usual_meaning_is_not_redefined(formula, expected):
    assert one(formula, GIVEN).kind == expected


def test_a_refused_definition_says_how_to_define_the_letter():
    assert r"in a comment: let \pi = …" in one(r"\pi = 3.14", GIVEN).message
    assert r"in a comment: let \delta_{ij} = …" in one(r"\delta_{ij} = x_i y_j", GIVEN).message


@pytest.mark.parametrize(
    "declared",
    [
        r"given i, j \in \mathbb{R}",
        r"given W_i, W_j, b_{ij} \in \mathbb{R}",
        r"given A \in \mathbb{R}^{i \times j}",
        r"range i = 1, \dots, T; range j = 1, \dots, T",
        r"given e \in \mathbb{R}",
        r"given e \in \mathbb{R}^T",
    ],
)
def test_the_names_of_a_text_do_not_change_a_built_in_function(declared):
    given = rf"{declared}; given z \in \mathbb{{R}}^K, a \in \mathbb{{R}}; let s = \text{{softmax}}(z)"
    right = [
        r"\sum_k \text{softmax}(z)_k = 1",
        r"\text{softmax}(z)_k = \exp(z_k - \text{logsumexp}(z))",
        r"\text{logsoftmax}(z)_k = z_k - \text{logsumexp}(z)",
        r"\frac{\partial s_k}{\partial z_l} = s_k (\delta_{kl} - s_l)",
        r"K \, \text{mean}(z) = \sum_k z_k",
        r"\text{sigmoid}(a) = \frac{1}{1 + \exp(-a)}",
        r"\|z\|^2 = \sum_k z_k^2",
    ]
    assert kinds(text(*right), given) == ["equal"] * len(right)
    wrong = [
        r"\sum_k \text{softmax}(z)_k = K",
        r"\text{softmax}(z)_k = \exp(z_k + \text{logsumexp}(z))",
        r"\text{mean}(z) = \sum_k z_k",
        r"\frac{\partial s_k}{\partial z_l} = s_k (1 - s_l)",
    ]
    found = verdicts(text(*wrong), given)
    assert {one.kind for one in found} <= {"refused", "not readable"}
    assert [one.kind for one in found[:3]] == ["refused"] * 3


def test_a_value_of_a_usual_letter_may_be_a_definition():
    (found,) = verdicts("The probability is\n\n$$ \\pi = 0.3 $$")
    assert found.kind == "not readable" and r"let \pi" in found.message
