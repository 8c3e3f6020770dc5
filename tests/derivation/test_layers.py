"""Names with the number of a layer above them, as texts on networks write them."""

import pytest

from .judging import kinds, one

PLAIN = (
    r"given a^{L-1} \in \mathbb{R}^n, W^L \in \mathbb{R}^{m \times n}, b^{L}, g \in \mathbb{R}^m;"
    r" let z^L = W^L a^{L-1} + b^L; let C = g^T z^L; loss C"
)
IN_BRACKETS = (
    r"given a^{(l-1)} \in \mathbb{R}^n, W^{(l)} \in \mathbb{R}^{m \times n}, b^{(l)} \in \mathbb{R}^m,"
    r" W^{(l+1)} \in \mathbb{R}^{q \times m}; let z^{(l)} = W^{(l)} a^{(l-1)} + b^{(l)};"
    r" let z^{(l+1)} = W^{(l+1)} z^{(l)}"
)
NUMBERED = (
    r"given a^0 \in \mathbb{R}^n, W^1, W^2, W^3 \in \mathbb{R}^{n \times n};"
    r" let a^1 = W^1 a^0; let a^2 = W^2 a^1; let a^3 = W^3 a^2"
)


@pytest.mark.parametrize(
    ("definitions", "left", "right", "wrong"),
    [
        (PLAIN, r"z^L_j", r"\sum_k W^L_{jk} a^{L-1}_k + b^L_j", r"\sum_k W^L_{jk} a^{L-1}_k - b^L_j"),
        (PLAIN, r"\frac{\partial C}{\partial W^{L}_{jk}}", r"g_j a^{L - 1}_k", r"2 g_j a^{L - 1}_k"),
        (
            PLAIN,
            r"\frac{\partial C}{\partial a_i^{L-1}}",
            r"\sum_j W_{ji}^{L} g_j",
            r"\sum_j W_{ji}^{L} z_j^{L}",
        ),
        (PLAIN, r"\frac{\partial C}{\partial a^{L-1}}", r"{W^{L}}^T g", r"2 (W^L)^T g"),
        (PLAIN, r"\frac{\partial C}{\partial W^L}", r"g {a^{L-1}}^T", r"-g {a^{L-1}}^T"),
        (
            IN_BRACKETS,
            r"z_j^{(l)}",
            r"\sum_k W^{(l)}_{jk} a^{(l-1)}_k + b^{(l)}_j",
            r"\sum_k W^{(l)}_{jk} a^{(l-1)}_k",
        ),
        (
            IN_BRACKETS,
            r"\frac{\partial z^{(l+1)}_i}{\partial a_k^{(l-1)}}",
            r"\sum_j W^{(l+1)}_{ij} W^{(l)}_{jk}",
            r"-\sum_j W^{(l+1)}_{ij} W^{(l)}_{jk}",
        ),
        (NUMBERED, r"a^3_i", r"\sum_j W^3_{ij} a^2_j", r"\sum_j W^3_{ij} a^1_j"),
        (NUMBERED, "a^3", "W^3 W^2 W^1 a^0", "W^3 W^1 W^2 a^0"),
    ],
)
def test_a_layer_above_a_name_is_part_of_it(definitions, left, right, wrong):
    assert one(f"{left} = {right}", definitions).kind == "equal"
    assert one(f"{left} = {wrong}", definitions).kind == "refused"


IN_ELL = IN_BRACKETS.replace("(l", r"(\ell")
PLAIN_ELL = r"given x \in \mathbb{R}^n, y, b^\ell \in \mathbb{R}^m, U^\ell \in \mathbb{R}^{m \times n}"


@pytest.mark.parametrize(
    ("definitions", "left", "right", "wrong"),
    [
        (
            IN_ELL,
            r"\frac{\partial z^{(\ell)}_j}{\partial a_k^{(\ell-1)}}",
            r"W^{(\ell)}_{jk}",
            r"W^{(\ell)}_{jk} + b^{(\ell)}_j",
        ),
        (IN_ELL, r"z^{(\ell+1)}", r"W^{(\ell+1)} z^{(\ell)}", r"2 W^{(\ell+1)} z^{(\ell)}"),
        (PLAIN_ELL, r"y^T U^\ell x", r"x^\top U^{\ell\top} y", r"-x^\top U^{\ell\top} y"),
        (PLAIN_ELL, r"y^T U^{\ell} x", r"x^T (U^\ell)^T y", r"-x^T {U^\ell}^T y"),
    ],
)
def test_the_label_of_a_layer_may_be_a_greek_letter_or_ell(definitions, left, right, wrong):
    assert one(f"{left} = {right}", definitions).kind == "equal"
    assert one(f"{left} = {wrong}", definitions).kind == "refused"


KALMAN = r"given F, P, Q, H \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n"


def test_a_sign_above_a_name_is_part_of_it():
    lines = (
        r"P^- = F P F^\top + Q",
        r"\hat{x}^{-} = F x",
        r"x^+ = \hat{x}^- + P^{-} x",
        r"x^+ - P^- x = F x",
        r"x^+ - P^- x = F^\top x",
        r"H P^- H^\top = H (F P F^\top + Q) H^\top",
        r"H P^- H^\top = H (F P F^\top - Q) H^\top",
        r"H P^+ = 0",
    )
    found = kinds("\n\n".join(f"$$ {line} $$" for line in lines), KALMAN)
    assert found == ["definition"] * 3 + ["equal", "refused", "equal", "refused", "not readable"]


def test_a_greek_power_needs_no_braces():
    given = r"given \alpha, \mu, a \in \mathbb{R}"
    assert one(r"e^\alpha e^\mu = e^{\alpha + \mu}", given).kind == "equal"
    assert one(r"e^\alpha e^\mu = e^{\alpha \mu}", given).kind == "refused"


def test_a_power_is_a_power_unless_it_is_declared():
    lines = ("x^{n-1} x = x^n", "x^{(n-1)} x = x^n", "x^{(n-1)(n-2)} = x^{n^2 - 3n + 2}")
    given = r"given x \in \mathbb{R}_{>0}, y \in \mathbb{R}^n"
    assert kinds("\n\n".join(f"$$ {line} $$" for line in lines), given) == 3 * ["equal"]
    assert one("x^{n-1} x = x^{n+1}", given).kind == "refused"


def test_a_number_above_a_name_is_a_power_if_no_layer_is_first():
    with pytest.raises(ValueError, match="cannot be told apart"):
        one("a = a", r"given a, a^2 \in \mathbb{R}")
    with pytest.raises(ValueError, match="cannot be told apart"):
        one("a^2 = a^2", r"given a^2, a^3 \in \mathbb{R}")
    with pytest.raises(ValueError, match="cannot be told apart"):
        one("a^1 = a^1", r"given a, a^1 \in \mathbb{R}")
