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


def test_a_lower_case_letter_that_is_stated_to_be_a_matrix_is_not_a_number():
    line = "\n\n" + displays("a_t b_t = b_t a_t")
    stated = r"Let $a_t \in \mathbb{R}%s$ and $b_t \in \mathbb{R}%s$."
    assert kinds(stated % ("", "") + line) == ["equal"]
    assert kinds(stated % (r"^{n \times n}", r"^{n \times n}") + line) == ["not readable"]


def test_a_capital_letter_that_is_stated_to_be_a_number_is_one():
    line = displays(r"\frac{1}{N} \sum_{i=1}^N \hat{A}_i x_i = \frac{1}{N} \sum_{i=1}^N x_i \hat{A}_i")
    assert kinds(line) == ["not readable"]
    assert kinds(r"Let $\hat{A}_i \in \mathbb{R}$." + "\n\n" + line) == ["equal"]
    assert kinds(r"where $\hat{A}_i$ is a scalar." + "\n\n" + line) == ["equal"]


# A right line, and one that is wrong for some numbers.
ROOTS = {
    "the root of a square": (r"\sqrt{x^2} = |x|", r"\sqrt{x^2} = x"),
    "a sum of them": (r"\sum_i \sqrt{x_i^2} = \sum_i |x_i|", r"\sum_i \sqrt{x_i^2} = \sum_i x_i"),
    "a square and a number": (r"\sqrt{a^2 b} = |a| \sqrt{b}", r"\sqrt{a^2 b} = a \sqrt{b}"),
    "a cube and a number": (r"\sqrt{a^3} = a \sqrt{a}", r"\sqrt{a^3 b} = a \sqrt{a b}"),
    "a product of roots": (r"\sqrt{a b} \sqrt{a b} = a b", r"\sqrt{a b} \sqrt{a c} = a \sqrt{b c}"),
    "the root of a product": (r"\sqrt{a b} = \sqrt{a} \sqrt{b}", r"\sqrt{a b} = \sqrt{a} b"),
    "a fractional power": (r"(x^2)^{3/2} = |x|^3", r"(x^2)^{3/2} = x^3"),
    "the logarithm of a square": (r"\log x^2 = 2 \log x", r"e^{\frac{1}{2} \log x^2} = x"),
    "a value of a function": (r"\sqrt{f(x)^2} \sqrt{f(x)^2} = f(x)^2", r"\sqrt{f(x)^2} = f(x)"),
    "a power of a matrix": (r"\sqrt{n^4} = n^2", r"\sqrt{A^4} = A^2"),
    "a deviation": (
        r"\frac{x}{\sqrt{\sigma^2}} = \frac{x}{\sigma}",
        r"\frac{x}{\sqrt{\rho^2}} = \frac{x}{\rho}",
    ),
}


@pytest.mark.parametrize("case", ROOTS)
def test_a_root_is_judged_where_names_are_negative_too(case):
    right, wrong = (sight(displays(line))[-1] for line in ROOTS[case])
    assert right.kind == "equal" and wrong.kind == "not readable"


def test_a_root_of_a_square_is_its_name_where_the_text_says_that_it_is_positive():
    line = "\n\n" + displays(r"\sqrt{r^2} + t = r + t")
    for said, expected in (("", "not readable"), ("_{>0}", "equal")):
        assert kinds(rf"Let $r \in \mathbb{{R}}{said}$." + line) == [expected]
        assert kinds(rf"<!-- derive: given r \in \mathbb{{R}}{said} -->" + line) == [expected]
    assert kinds("Let $r < 0$." + line) == ["not readable"]


def test_a_letter_that_is_usually_positive_is_so_unless_the_text_says_otherwise():
    line = displays(r"\frac{x + y}{\sqrt{\sigma^2}} = \frac{x + y}{\sigma}")
    last = sight(line)[-1]
    assert last.kind == "equal" and r"\sigma is positive" in last.inferred
    assert kinds(r"Let $\sigma \in \mathbb{R}$." + "\n\n" + line) == ["not readable"]


# The displays above, a chain rule, and one that leaves a route out.
STEPS = ["o_3 = f(x_3 W + o_2 W_h)", "o_4 = f(x_4 W + o_3 W_h)", r"\hat{y} = \sigma(o_4 W_y)"]
STEP = r"\frac{\partial L}{\partial W_h} = \frac{\partial L}{\partial \hat{y}} \frac{\partial \hat{y}}{\partial o_%d} \frac{\partial o_%d}{\partial W_h}"
THROUGH = r"\frac{\partial L}{\partial %s} = \frac{\partial L}{\partial %s} \frac{\partial %s}{\partial %s}"
LAYERS = r"\frac{\partial L}{\partial w} = \frac{\partial L}{\partial a} \frac{\partial a}{\partial z} \frac{\partial z}{\partial w}"
WEIGHT = r"\frac{\partial L}{\partial w} = \frac{\partial L}{\partial y} \frac{\partial y}{\partial z}"
ROUTES = {
    "the last step": (STEPS, STEP % (4, 4), STEP % (3, 3)),
    "the last layer": (
        ["h_2 = f(W h_1)", "h_1 = f(W h_0)"],
        THROUGH % ("W", "h_2", "h_2", "W"),
        THROUGH % ("W", "h_1", "h_1", "W"),
    ),
    "a step of a recurrence": (
        ["h_t = f(W h_{t-1})", "s = h_2"],
        THROUGH % ("u", "s", "s", "u"),
        THROUGH % ("W", "h_1", "h_1", "W"),
    ),
    "the layer with the weight": (
        ["a_2 = W_2 a_1", "a_1 = W_1 x"],
        THROUGH % ("W_1", "a_1", "a_1", "W_1"),
        THROUGH % ("W_2", "a_1", "a_1", "W_2"),
    ),
    "a name that is also written out": (
        ["z = w x", "y = s(z) = s(w x)"],
        WEIGHT + r" \frac{\partial z}{\partial w}",
        WEIGHT.replace("z", "x") + r" \frac{\partial x}{\partial w}",
    ),
}


@pytest.mark.parametrize("case", ROUTES)
def test_a_chain_rule_goes_through_the_label_that_the_definitions_show(case):
    above, right, wrong = ROUTES[case]
    assert sight(displays(*above, right))[-1].kind == "equal"
    assert sight(displays(*above, wrong))[-1].kind == "not readable"


def test_a_chain_rule_that_passes_a_weight_by_is_not_equal():
    assert sight(displays("z = g(x, w)", "a = h(z)", LAYERS))[-1].kind == "equal"
    assert sight(displays("z = g(x, w)", "a = h(z, w)", LAYERS))[-1].kind == "not readable"


def test_an_element_of_a_softmax_is_not_all_that_depends_on_one_logit():
    softmax = displays(r"y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}", THROUGH % ("x_i", "y_i", "y_i", "x_i"))
    assert sight(softmax)[-1].kind == "not readable"


def test_one_of_two_names_that_nothing_defines_is_not_the_only_route():
    assert kinds(displays(*(THROUGH % ("W_1", a, a, "W_1") for a in ("a_2", "a_3")))) == ["not readable"] * 2
    (one,) = sight(displays(THROUGH % ("W_1", "a_1", "a_1", "W_1")))
    assert one.kind == "equal" and one.inferred == ("L depends on W_{1} only through a_{1}",)


@pytest.mark.parametrize("style", ["", r"\textstyle", r"\small"])
def test_a_brace_around_all_rows_of_a_display_is_opened(style):
    for last, expected in (("2 x + 2 y", "equal"), ("2 x + y", "not readable")):
        rows = rf"\begin{{aligned}} 2 (x + y) = {last} \end{{aligned}}"
        assert kinds(f"$$\n{{{style}\n{rows}\n}}\n$$") == [expected]


@pytest.mark.parametrize("head", [r"\pi(a)", r"\delta(a)", "I(a)"])
def test_two_equations_for_a_function_of_which_the_first_cannot_be_read_do_not_crash(head):
    text = rf"$$ {head} = h(a’) \quad {head} = N(a) $$"
    assert kinds(text) == ["not readable", "not readable"]
