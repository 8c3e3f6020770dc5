"""Names that no comment declares: a line that holds for numbers only is not equal for what may be a matrix."""

import pytest

from tests.derivation.test_first_sight import displays, kinds, sight

# The prose and displays above, a line that holds also for matrices, and one that does not.
ORDER = {
    "an index of time": ([], "K_k (H_k + M_k) = K_k H_k + K_k M_k", "K_k (H_k + M_k) = H_k K_k + K_k M_k"),
    "a matrix with an index of time": (
        [r"where $K_k$ is the Kalman gain matrix.", "$$ P_k = (I - K_k H) M_k $$"],
        "P_k = M_k - K_k H M_k",
        "P_k = M_k - H K_k M_k",
    ),
    "a stated matrix with an index": (
        [r"Let $A_t \in \mathbb{R}^{n \times n}$ and $B_t \in \mathbb{R}^{n \times n}$."],
        "A_t (B_t + A_t) = A_t B_t + A_t A_t",
        "A_t B_t = B_t A_t",
    ),
    "an inverse of a step": (
        [],
        r"2 (K_t H_t)^{-1} = (K_t H_t)^{-1} + (K_t H_t)^{-1}",
        r"(K_t H_t)^{-1} = K_t^{-1} H_t^{-1}",
    ),
    "accents": (
        [],
        r"\hat{A} (\tilde{B} + \hat{A}) = \hat{A} \tilde{B} + \hat{A} \hat{A}",
        r"\hat{A} \tilde{B} = \tilde{B} \hat{A}",
    ),
    "an estimate transposed": (
        [],
        r"(\hat{X}^T \hat{X})^T = \hat{X}^T \hat{X}",
        r"\hat{X}^T \hat{X} = \hat{X} \hat{X}^T",
    ),
    "Greek capitals": ([], r"\Sigma (A + \Sigma) = \Sigma A + \Sigma \Sigma", r"\Sigma A = A \Sigma"),
    "an inverse of Greek capitals": (
        [],
        r"(\Sigma \Lambda)^{-1} = \Lambda^{-1} \Sigma^{-1}",
        r"(\Sigma \Lambda)^{-1} = \Sigma^{-1} \Lambda^{-1}",
    ),
    "a trace": (
        [],
        r"\operatorname{tr}(\Sigma_2 \Sigma_1) = \operatorname{tr}(\Sigma_1 \Sigma_2)",
        r"\operatorname{tr}(\Sigma_2^{-1} \Sigma_1) = \operatorname{tr}(\Sigma_2^{-1}) \operatorname{tr}(\Sigma_1)",
    ),
    "a declared vector beside it": (
        [r"<!-- derive: given x \in \mathbb{R}^n -->"],
        r"x^T (\Sigma x + \Sigma x) = 2 x^T \Sigma x",
        r"x^T \Sigma x = \Sigma x^T x",
    ),
    "another face": (
        [],
        r"\mathcal{K} (M + \mathcal{K}) = \mathcal{K} M + \mathcal{K} \mathcal{K}",
        r"\mathcal{K} M = M \mathcal{K}",
    ),
    "blackboard bold": (
        [],
        r"\mathbb{A} (\mathbb{B} + \mathbb{A}) = \mathbb{A} \mathbb{B} + \mathbb{A} \mathbb{A}",
        r"\mathbb{A} \mathbb{B} = \mathbb{B} \mathbb{A}",
    ),
    "labels that are names": (
        [],
        "2 W_{xh} W_{hh} = W_{xh} W_{hh} + W_{xh} W_{hh}",
        "W_{xh} W_{hh} = W_{hh} W_{xh}",
    ),
    "names that are stated together": (
        ["Let $u$ and $v$ be square matrices."],
        "u (v + u) = u v + u u",
        "u v + v u = 2 u v",
    ),
    "matrices of a kind": (
        [r"Let $\Sigma$ and $\Lambda$ be covariance matrices."],
        r"\Sigma + \Lambda = \Lambda + \Sigma",
        r"\Sigma \Lambda = \Lambda \Sigma",
    ),
    "matrices with accents": (
        [r"Let $\hat{a}$ and $\hat{b}$ be matrices."],
        r"\hat{a} + \hat{b} = \hat{b} + \hat{a}",
        r"\hat{a} \hat{b} = \hat{b} \hat{a}",
    ),
}


@pytest.mark.parametrize("case", ORDER)
def test_what_may_be_a_matrix_keeps_its_place_in_a_product(case):
    above, right, wrong = ORDER[case]
    for line, expected in ((right, "equal"), (wrong, "not readable")):
        text = "\n\n".join([*above, displays(line)])
        assert sight(text)[-1].kind == expected, line


def test_a_lower_case_letter_that_is_stated_to_be_a_matrix_is_no_number():
    line = "\n\n" + displays("a_t b_t = b_t a_t")
    stated = r"Let $a_t \in \mathbb{R}%s$ and $b_t \in \mathbb{R}%s$."
    assert kinds(stated % ("", "") + line) == ["equal"]
    assert kinds(stated % (r"^{n \times n}", r"^{n \times n}") + line) == ["not readable"]


def test_a_capital_letter_that_is_stated_to_be_a_number_is_one():
    line = displays(r"\frac{1}{N} \sum_{i=1}^N \hat{A}_i x_i = \frac{1}{N} \sum_{i=1}^N x_i \hat{A}_i")
    assert kinds(line) == ["not readable"]
    assert kinds(r"Let $\hat{A}_i \in \mathbb{R}$." + "\n\n" + line) == ["equal"]
    assert kinds(r"where $\hat{A}_i$ is a scalar." + "\n\n" + line) == ["equal"]


@pytest.mark.parametrize("head", [r"\pi(a)", r"\delta(a)", "I(a)"])
def test_two_equations_for_a_function_of_which_the_first_cannot_be_read_do_not_crash(head):
    text = rf"$$ {head} = h(a’) \quad {head} = N(a) $$"
    assert kinds(text) == ["not readable", "not readable"]
