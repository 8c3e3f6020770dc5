"""Rules for probabilities and matrices that are written out: what follows is equal at first sight, a slip is not."""

from random import Random

import pytest

from tests.derivation.slips import slips
from tests.derivation.test_first_sight import displays, kinds, sight

Q, P = r"q(z \mid x)", r"p(x \mid z)"
MEAN = r"\mathbb{E}_{q(z \mid x)}"
# The displays above, a left side, a right side that is equal to it, and a wrong twin.
RULES = {
    "Bayes' rule": ([], r"\log p(w \mid D)", r"\log p(D \mid w) + \log p(w) - \log p(D)", r"\log p(D \mid w) + \log p(w) + \log p(D)"),
    "a joint probability": ([], "2 p(x, z)", r"2 p(x \mid z) p(z)", r"2 p(x \mid z) p(x)"),
    "an integral of a joint one": ([], r"2 p(x)", r"\int 2 p(x \mid z) p(z) dz", r"\int 2 p(x \mid z) p(x) dz"),
    "a divergence": (
        [],
        r"\text{KL}(q(z \mid x) \parallel p(z)) + 0",
        rf"{MEAN}[\log q(z \mid x) - \log p(z)]",
        rf"{MEAN}[\log q(z \mid x) + \log p(z)]",
    ),
    "a bound of the evidence": (
        [],
        r"\log p(x) - \text{KL}(q(z \mid x) \parallel p(z \mid x))",
        rf"{MEAN}[\log p(x \mid z)] - \text{{KL}}(q(z \mid x) \parallel p(z))",
        rf"{MEAN}[\log p(x \mid z)] + \text{{KL}}(q(z \mid x) \parallel p(z))",
    ),
    "a determinant": (
        [],
        r"\det \begin{bmatrix} a & b \\ c & d \end{bmatrix}",
        "a d - b c",
        "a d + b c",
    ),
    "a product of matrices": (
        [r"R = \begin{pmatrix} \cos \phi & -\sin \phi \\ \sin \phi & \cos \phi \end{pmatrix}"],
        r"R \begin{pmatrix} x \\ y \end{pmatrix}",
        r"\begin{pmatrix} x \cos \phi - y \sin \phi \\ x \sin \phi + y \cos \phi \end{pmatrix}",
        r"\begin{pmatrix} x \cos \phi + y \sin \phi \\ x \sin \phi + y \cos \phi \end{pmatrix}",
    ),
    "a characteristic polynomial": (
        [r"A = \begin{bmatrix} 2 & 1 \\ 1 & 3 \end{bmatrix}"],
        r"\det(A - \lambda I)",
        r"\lambda^2 - 5 \lambda + 5",
        r"\lambda^2 - 5 \lambda + 6",
    ),
    "an inverse of a matrix": (
        [],
        r"\begin{bmatrix} a & b \\ c & d \end{bmatrix}^{-1}",
        r"\frac{1}{a d - b c} \begin{bmatrix} d & -b \\ -c & a \end{bmatrix}",
        r"\frac{1}{a d - b c} \begin{bmatrix} d & -c \\ -b & a \end{bmatrix}",
    ),
    "a transpose of a column": (
        [],
        r"\begin{bmatrix} a \\ b \end{bmatrix}^T \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}",
        r"\begin{bmatrix} a + 3 b & 2 a + 4 b \end{bmatrix}",
        r"\begin{bmatrix} a + 2 b & 3 a + 4 b \end{bmatrix}",
    ),
    "the inverse of a number times I": (
        [],
        r"x^\top (I + W^\top (\sigma^2 I)^{-1} W) x",
        r"\frac{1}{\sigma^2} x^\top (\sigma^2 I + W^\top W) x",
        r"\frac{1}{\sigma^2} x^\top (I + W^\top W) x",
    ),
    "a trace": (
        [],
        r"\operatorname{tr}(A B C + 2 C^\top)",
        r"\operatorname{tr}(C A B) + 2 \operatorname{tr}(C)",
        r"\operatorname{tr}(C B A) + 2 \operatorname{tr}(C)",
    ),
    "the trace of an outer product": ([], r"\operatorname{tr}(A x x^\top)", r"x^\top A x", r"x^\top x A"),
    "an exponent that is a sum": (
        [],
        r"\sum_{x=1}^{\infty} x (1 - p)^{x - 1} p",
        r"\frac{p}{1 - p} \sum_{x=1}^{\infty} x (1 - p)^x",
        r"\frac{1 - p}{p} \sum_{x=1}^{\infty} x (1 - p)^x",
    ),
    "the exponential of a logarithm": ([], r"\frac{X_n}{X_0}", r"e^{\log \left( \frac{X_n}{X_0} \right)}", r"e^{-\log \left( \frac{X_n}{X_0} \right)}"),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_what_follows_is_equal_and_a_slip_is_not(name):
    above, left, right, wrong = RULES[name]
    assert _last(above, left, right) == "equal"
    drawn = [new for _, new in Random(39).sample(slips(right), 2)]
    for one in (wrong, *drawn):
        assert _last(above, left, one) != "equal", one


def _last(above, left, right):
    return kinds(displays(*above, f"{left} = {right}"))[-1]


# A display that defines, and a twin that claims, or may claim, something.
DEFINITIONS = [
    (r"P(y_1 \succ y_2 \mid x) = \sigma(R(x, y_1) - R(x, y_2))", r"P(Y = 1) = 1 - P(Y = 0)"),
    (r"p(y = 1 \mid x) = \sigma(w^\top x)", r"p(y = 1 \mid x) = 1 - p(y = 0 \mid x)"),
    (r"\text{gate}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}", r"\text{gate}(z + c)_i = \text{gate}(z)_i"),
    (r"d X_t = -\nabla U(X_t) dt + \sigma(X_t) d B_t", r"d W = A^T d Z"),
    (r"x^{t+1} = h(x^t, v)", r"(x y)^{t+1} = x^t y^t x y"),
    ("y[n] = g(x[n])", "2 y[n] = g(x[n])"),
    (r"RSS_{x y} = \sum_i (x_i - c) (y_i - d)", r"2 RSS_{x y} = \sum_i (x_i - c) (y_i - d)"),
    (r"\mathbf{m}^b = [b_x, b_y, b_z]^T", r"2 \mathbf{m}^b = [b_x, b_y, b_z]^T"),
    (r"P(A \mid B, c) = f(A, [B, c])", r"P(A \mid B) = \frac{P(B \mid A) P(B)}{P(A)}"),
    (r"E_{in}(w) = \frac{1}{N} \sum_{n=1}^N [e_n, 1]", r"E_{in}(w) + 1 = \frac{1}{N} \sum_{n=1}^N [e_n, 1]"),
]


@pytest.mark.parametrize(("right", "wrong"), DEFINITIONS)
def test_a_left_side_that_names_something_new_is_defined(right, wrong):
    assert kinds(displays(right)) == ["definition"]
    assert kinds(displays(wrong)) != ["definition"]
    assert kinds(displays(right, right.replace("= ", "= 2 ")))[1] != "definition"


def test_a_name_on_the_right_that_is_new_is_defined():
    above = r"Let $A$ be a matrix, and $u$ a column.\n\n"
    assert kinds(above + displays(r"A u = s")) == ["definition"]
    assert kinds(above + "Its value is $s$.\n\n" + displays("A u = s")) == ["not readable"]
    assert kinds(above + displays(r"A u = e")) == ["not readable"]


def test_a_name_in_a_sentence_is_not_yet_given_a_value():
    text = r"The north $$\mathbf{m}$$ is a column: $$\mathbf{m} = [B, 0, 0]^T$$."
    assert kinds(text)[-1] == "definition"
    assert kinds(text.replace("^T$$.", "^T$$.\n\n$$ \\mathbf{m} = [0, B, 0]^T $$"))[-1] != "definition"


def test_what_is_random_stays_below_its_expectation():
    text = displays(
        r"z = g(\epsilon) + 1",
        r"2 \mathbb{E}_{p(\epsilon \mid x)}[\log p(z) + \log p(x)] = 2 LAST + 2 \log p(x)",
    )
    kept = r"\mathbb{E}_{p(\epsilon \mid x)}[\log p(z)]"
    assert kinds(text.replace("LAST", kept))[-1] == "equal"
    assert kinds(text.replace("LAST", r"\log p(z)"))[-1] != "equal"


def test_a_kernel_is_not_a_joint_probability():
    assert kinds(displays(r"q(x' \mid x) q(x) + 0 = q(x \mid x') q(x')")) == ["not readable"]


def test_matrices_of_matrices_and_of_other_sizes_are_not_compared():
    column = r"\begin{bmatrix} A \\ B \end{bmatrix}"
    assert kinds(displays(rf"{column}^T {column} = A^2 + B^2")) != ["equal"]
    assert kinds(
        displays(r"\begin{bmatrix} 1 & 2 \end{bmatrix} \begin{bmatrix} 3 & 4 \end{bmatrix} = 11")
    ) != ["equal"]


def test_a_verdict_on_probabilities_says_what_it_rests_on():
    (verdict,) = sight(displays(r"2 p(x, z) = 2 p(x \mid z) p(z)"))
    assert verdict.inferred[-1] == "conditional probabilities are quotients of joint ones"


def test_what_a_calculation_finds_defines_no_name_above_it():
    found = displays(r"2 e^{-3 z} = 1 + e^{-z}", r"\Rightarrow z = 0")
    assert kinds(found)[0] != "equal"
    assert kinds(displays(r"2 e^{-3 z} = 1 + e^{-z}", "z = 0"))[0] != "equal"
    for found in (r"\therefore x = y + b", "x = y + b"):
        assert kinds(displays("2 y - 2 x = -2 b", found))[0] != "equal"
    introduced = displays("2 y - 2 x = -2 b") + "\n\nwhere\n\n" + displays("x = y + b")
    assert kinds(introduced)[0] == "equal"


def test_a_number_for_a_name_is_not_put_into_other_equations():
    assert kinds(displays("y = 0", "p = 0", "y + p = 1"))[-1] != "equal"


def test_a_transposed_name_is_not_an_element_of_a_vector():
    above = r"The matrix $G$.", r"C = G^T K_k^T P_k"
    assert (
        kinds("\n\n".join([above[0], displays(above[1], r"(I - K_k G) P_k = (I - G K_k) P_k")]))[-1]
        != "equal"
    )


@pytest.mark.parametrize(
    "above",
    [
        r"w = w - \eta g",
        r"w = w - \eta g + 2 h",
        "n = n + 1",
        "u = 2 u",
        "2 w = 0",
        "d (f g) = f d g + g d f",
    ],
)
def test_no_equation_follows_from_an_update_or_from_a_product_that_is_0(above):
    for wrong in ("a + b = a - b", r"\sum_i a_i = \sum_i a_i - b_i", r"2 \eta g = 4 h"):
        assert kinds(displays(above, wrong))[-1] != "equal"


def test_the_reason_behind_because_is_not_a_part_of_the_chain():
    text = "For $z, y \\in \\mathbb{R}^N$:\n\n" + displays(
        r"\sum_{i=1}^N y_i \ln e^{z_i} = \sum_{i=1}^N y_i \ln e^{z_i} \\ \because \ln e^{z_i} = z_i \\ = \sum_{i=1}^N y_i z_i"
    )
    assert not {"refused", "ill-formed"} & {*kinds(text)}
