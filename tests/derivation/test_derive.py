"""Derivations of real operations pass, the same with one wrong line do not, and the message says where."""

import re
import string
import time
from types import SimpleNamespace

import pytest

from backpass.derivation import DerivationError, Unreadable, derive
from backpass.derivation.equality.check import trial_sizes

NAMES = ("softmax", "log-softmax", "layer-norm", "matmul", "linear", "attention")

# Line by line what authors get wrong; the first two of layer-norm are printed in a published account of this gradient.
MISTAKES = [
    ("layer-norm", r"- 2 \sum_{j \neq i} \frac{\partial \mu}", r"+ 2 \sum_{j \neq i} \frac{\partial \mu}"),
    ("layer-norm", r"- \sum_{j \neq i} \left( \frac{1}{n} +", r"+ \sum_{j \neq i} \left( \frac{1}{n} +"),
    ("layer-norm", r"\frac{1}{n} \sum_j (x_j - \mu) \right]", r"\frac{1}{n} \sum_j x_j - \mu \right]"),
    ("layer-norm", r"\bar{\gamma}_i = \bar{y}_i \hat{x}_i", r"\bar{\gamma}_i = \bar{y}_i x_i"),
    ("softmax", r"= -y_j y_i", r"= y_j y_i"),
    ("softmax", r"\quad (j \ne i)", ""),
    ("softmax", r"y_i (1 - y_i) - \sum", r"y_i (1 - y_i) + \sum"),
    ("softmax", r"\sum_{j \ne i} \bar{y}_j y_j y_i", r"\sum_j \bar{y}_j y_j y_i"),
    ("softmax", r"e^{x_i} S - e^{x_i} e^{x_i}", r"e^{x_i} S - e^{x_i}"),
    ("softmax", r"\sum_j \bar{y}_j y_j \right)", r"\sum_j \bar{y}_j y_i \right)"),
    ("log-softmax", r"e^{y_i} \sum_j", r"y_i \sum_j"),
    ("log-softmax", r"= x_i - \log", r"= x_i + \log"),
    ("matmul", r"\delta_{ri} B_{kj}", r"B_{kj}"),
    ("matmul", r"\sum_i A_{ik} \bar{Y}_{ij}", r"\sum_i A_{ik} \bar{Y}_{ij} + A_{1k}"),
    ("linear", r"\langle X^\top \bar{Y}, \dot{W} \rangle", r"2 \langle X^\top \bar{Y}, \dot{W} \rangle"),
    ("linear", r"\bar{W} = X^\top \bar{Y}", r"\bar{W} = -X^\top \bar{Y}"),
    ("linear", r"+ \mathbf{1}_m b^\top", ""),
    ("attention", r"+ \langle A^\top \bar{Y}, \dot{V} \rangle", ""),
    ("attention", r"\quad (\dot{A} = 0)", ""),
]


@pytest.mark.parametrize("name", NAMES)
def test_right_derivations_pass(name, sources):
    assert derive(sources[name], name=name).chains


@pytest.mark.parametrize(("name", "right", "wrong"), MISTAKES)
def test_a_wrong_line_is_caught(name, right, wrong, sources):
    assert right in sources[name]
    with pytest.raises(DerivationError, match="does not equal the line above it"):
        derive(sources[name].replace(right, wrong), name=name)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("linear", r"X W + \mathbf{1}_m", r"W X + \mathbf{1}_m"),
        ("linear", r"\bar{X} = \bar{Y} W^\top", r"\bar{X} = \bar{Y} W"),
        ("attention", r"\bar{V} = A^\top \bar{Y}", r"\bar{V} = \bar{Y}"),
        ("matmul", r"A_{ik} B_{kj}" + "\n", r"A_{ik} B_{jk}" + "\n"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_evaluated(name, right, wrong, sources):
    assert right in sources[name]
    with pytest.raises(Unreadable):
        derive(sources[name].replace(right, wrong), name=name)


def test_the_message_names_line_sizes_indices_and_both_values(sources):
    with pytest.raises(DerivationError) as caught:
        derive(sources["softmax"].replace("= -y_j y_i", "= y_j y_i"), name="softmax")
    assert str(caught.value) == (
        "softmax: this line does not equal the line above it\n"
        "    12: = y_j y_i\n"
        "          ^\n"
        "  at n = 2, i = 1, j = 2:\n"
        "    above: -exp(x_1)*exp(x_2)/S**2  (-0.247604 at one point)\n"
        "    here:  y_1*y_2  (0.247604 at one point)"
    )


def test_the_left_side_is_derived_from_the_definitions(sources):
    with pytest.raises(DerivationError, match="does not equal the line above it\n    6:"):
        derive(
            sources["softmax"].replace(r"\frac{e^{x_i}}{S}" + "\n\n", r"\frac{2 e^{x_i}}{S}" + "\n\n"),
            name="softmax",
        )


def test_a_gradient_of_an_intermediate_goes_through_what_is_below_it():
    derive(
        r"""
        given x, \bar{y} \in \mathbb{R}^n
        let h_i = x_i^2
        let m = \sum_j h_j
        let y_i = m h_i
        \bar{h}_i = m \bar{y}_i + \sum_j \bar{y}_j h_j
        \bar{m} = \sum_j \bar{y}_j h_j
        \bar{x}_i = 2 x_i \bar{h}_i
        \frac{\partial \mathcal{L}}{\partial x_i} = \bar{x}_i
        \frac{\partial y_i}{\partial m} = h_i
        """,
        name="chain",
    )


def test_the_maximum_may_be_ignored_where_nothing_depends_on_it():
    softmax = r"""
        given x \in \mathbb{R}^n
        let m = \max_j x_j
        let y_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}
        y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}
        \frac{\partial y_i}{\partial m} = 0
        \bar{x}_i = y_i \left( \bar{y}_i - \sum_j \bar{y}_j y_j \right)
    """
    derive(softmax, name="stable", operation="softmax")
    unstable = r"""
        given x \in \mathbb{R}^n
        let m = \max_j x_j
        let y_i = e^{x_i - m}
        \bar{x}_i = \bar{y}_i y_i
    """
    with pytest.raises(Unreadable, match="a maximum may not be ignored here"):
        derive(unstable, name="unstable")


def test_facts_products_and_conditions():
    derive(
        r"""
        given x, y, \bar{z} \in \mathbb{R}^n, c \in \mathbb{R}
        let z_i = c \, x_i \prod_{j \ne i} y_j
        y_i z_i = c \, x_i \prod_{j=1}^n y_j
        \sum_{j < i} x_j + \sum_{j \ge i} x_j = \sum_j x_j
        \sum_{i,j} \delta_{ij} x_i y_j = \sum_i x_i y_i
        \frac{\partial z_i}{\partial x_j} = 0 \quad (i < j)
        \dot{z}_i = \dot{c} x_i \prod_{j \ne i} y_j + c \dot{x}_i \prod_{j \ne i} y_j \quad (\dot{y} = 0)
        \tanh^2(c) = 1 - \frac{\partial}{\partial c} \tanh(c)
        x_1 / x_2 = \left( \frac{x_2}{x_1} \right)^{-1}
        """,
        name="facts",
    )


ROTATION = r"""
    given a, b, \theta, \bar{c}, \bar{d} \in \mathbb{R}^k
    let c_i = a_i \cos \theta_i - b_i \sin \theta_i
    let d_i = a_i \sin \theta_i + b_i \cos \theta_i
    \bar{a}_i = \bar{c}_i \cos \theta_i + \bar{d}_i \sin \theta_i
    \bar{b}_i = \bar{d}_i \cos \theta_i - \bar{c}_i \sin \theta_i
    \bar{\theta}_i = \bar{d}_i c_i - \bar{c}_i d_i
    \sin^2(\theta_i) + \cos^2(\theta_i) = 1
    \cos(\theta_i - \theta_j) = \cos(\theta_i) \cos \theta_j + \sin(\theta_i) \sin \theta_j
    2 \cos^2 \left( \frac{\theta_i}{2} \right) = 1 + \cos \theta_i
"""


def test_a_rotation_and_its_transpose():
    assert derive(ROTATION, name="rotation", sizes=[{"k": 2}]).survivors() == []


def test_a_rotation_turned_the_wrong_way_is_refused():
    wrong = ROTATION.replace(r"\cos \theta_i - \bar{c}_i", r"\cos \theta_i + \bar{c}_i")
    with pytest.raises(DerivationError, match="does not equal"):
        derive(wrong, name="rotation")


def test_the_gelu_in_both_forms_with_their_irrational_constants():
    gelu = r"""
        given x, \bar{y} \in \mathbb{R}^n
        let \Phi_i = \frac12 + \frac12 \operatorname{erf}\left( \frac{x_i}{\sqrt2} \right)
        let y_i = x_i \Phi_i
        \bar{x}_i = \bar{y}_i \left( \Phi_i + \frac{x_i}{\sqrt{2 \pi}} e^{-x_i^2 / 2} \right)
    """
    derive(gelu, name="erf", sizes=[{"n": 2}])
    with pytest.raises(DerivationError, match="does not equal"):
        derive(gelu.replace(r"\sqrt{2 \pi}", r"\sqrt{\pi}"), name="erf")
    by_tanh = r"""
        given x, \bar{y} \in \mathbb{R}^n
        let u_i = \sqrt{\frac{2}{\pi}} (x_i + 0.044715 x_i^3)
        let y_i = \frac12 x_i (1 + \tanh u_i)
        \bar{x}_i = \frac12 \bar{y}_i (1 + \tanh u_i) \left(
            1 + x_i (1 - \tanh u_i) \sqrt{\frac{2}{\pi}} (1 + 0.134145 x_i^2) \right)
    """
    derive(by_tanh, name="tanh", sizes=[{"n": 2}])
    with pytest.raises(DerivationError, match="does not equal"):
        derive(by_tanh.replace("0.134145", "0.134146"), name="tanh")


@pytest.mark.parametrize("letter", "abcdfghklmopqrstuvwxyz")
def test_the_root_of_a_square_is_not_a_sum_whatever_its_name(letter):
    line = rf"\sqrt{{\sum_{{i,j}} {letter}_i {letter}_j}} = \sum_i {letter}_i"
    with pytest.raises(DerivationError, match="does not equal"):
        derive(f"given {letter} \\in \\mathbb{{R}}^n\n{line}", name="root", sizes=[{"n": 2}])


@pytest.mark.parametrize("line", [r"\frac{1}{0} = \frac{2}{0}", r"\frac{1}{y - x^2} = \frac{2}{y - x^2}"])
def test_a_line_that_divides_by_zero_is_not_a_line(line):
    with pytest.raises(Unreadable, match="divides by 0"):
        derive(f"given x \\in \\mathbb{{R}}\nlet y = x^2\n{line}", name="zero")


LEAST_SQUARES = r"""
    given X \in \mathbb{R}^{m \times n}, w \in \mathbb{R}^n, t \in \mathbb{R}^m
    let r = X w - t
    let \mathcal{L} = \frac12 \sum_i r_i^2
    \mathcal{L} = \frac12 r^\top r
    \bar{\mathcal{L}} = 1
    \bar{r} = r
    \bar{w} = X^\top r
    \frac{\partial \mathcal{L}}{\partial X} = r w^\top
    \frac{\partial \mathcal{L}}{\partial w_j} = \sum_i X_{ij} r_i
    \dot{\mathcal{L}} = \langle r, \dot{X} w + X \dot{w} - \dot{t} \rangle
"""


def test_a_loss_that_is_defined_has_the_gradient_1():
    derive(LEAST_SQUARES, name="least-squares")
    for right in (r"\frac12 \sum", r"\bar{w} = X", r"r w^\top", "= 1"):
        with pytest.raises(DerivationError, match="does not equal"):
            wrong = right.replace("12", "13").replace("= ", "= 2 \\cdot ").replace("r w", "2 r w")
            derive(LEAST_SQUARES.replace(right, wrong), name="least-squares")


def test_any_two_dimensions_differ_in_one_trial_or_more():
    names = [f"n_{{{letter}}}" for letter in string.ascii_letters[:27]]
    scope = SimpleNamespace(dimensions=names)
    trials = trial_sizes(scope)
    assert len({tuple(sizes[name] for sizes in trials) for name in names}) == 27
    assert all(len({sizes[name] for name in names[:3]}) == 3 for sizes in trials)
    with pytest.raises(DerivationError, match="give sizes: 28 dimensions are too many"):
        trial_sizes(SimpleNamespace(dimensions=[*names, "n"]))


def test_matrices_and_their_elements_in_one_derivation():
    derive(
        r"""
        given Q, K \in \mathbb{R}^{s \times d}, u \in \mathbb{R}^s, r \in \mathbb{R}^{1 \times s}
        let S = Q K^\top / \sqrt{d}
        let P_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}
        P \mathbf{1}_s = \mathbf{1}_s
        \langle P, S \rangle = \sum_{i,j} P_{ij} S_{ij}
            = \mathbf{1}_s^\top (P \odot S) \mathbf{1}_s
            = \operatorname{tr}(P^\top S)
        \operatorname{diag}(u) P I_s = (u \mathbf{1}_s^\top) \odot P
        r u = \sum_i r_i u_i
        \bar{S} = P \odot (\bar{P} - (P \odot \bar{P}) \mathbf{1}_s \mathbf{1}_s^\top)
        \bar{Q} = \frac{1}{\sqrt{d}} \bar{S} K
        \frac{\partial \mathcal{L}}{\partial K} = \frac{1}{\sqrt{d}} \bar{S}^\top Q
        """,
        name="mixed",
        sizes=[{"s": 2, "d": 3}],
    )


def test_one_derivation_goes_on_from_another(sources):
    head, _, tail = sources["softmax"].partition("    \\bar{x}_i")
    first = derive(head, name="softmax")
    second = derive("\\bar{x}_i" + tail, name="softmax", after=first, operation="softmax")
    assert (first.first_number, second.first_number) == (1, 9)
    assert "(9)" in str(second) and "(8)" not in str(second)
    with pytest.raises(DerivationError):
        derive(("\\bar{x}_i" + tail).replace("1 - y_i", "1 + y_i"), name="softmax", after=first)


@pytest.mark.parametrize(("name", "seconds"), [("softmax", 1.0), ("layer-norm", 3.0)])
def test_is_fast_enough_to_run_with_every_page(name, seconds, sources):
    derive(RELU, name="relu")  # imports what derive needs
    start = time.process_time()
    derive(sources[name] + "\n    note   timed, so that nothing is remembered", name=name)
    assert time.process_time() - start < seconds


RELU = r"""
    given x, \bar{y} \in \mathbb{R}^n
    let y_i = \max(0, x_i)
    \max(0, x_i) = x_i \left[ x_i > 0 \right]
    \bar{x}_i = \bar{y}_i \frac{\partial y_i}{\partial x_i}
        = \bar{y}_i [x_i > 0]
        = \bar{y}_i [y_i > 0]
"""


def test_cases_are_checked_on_either_side():
    derivation = derive(RELU, name="relu", operation="relu")
    assert derivation.survivors() == []
    signs = [s for one in derivation.evaluators() for of in one.signs.values() for s in of.values()]
    assert set().union(*signs) == {-1, 0, 1}


@pytest.mark.parametrize(
    "wrong",
    [
        "[x_i < 0]",
        "[x_i > 1]",
        "[x_1 > 0]",
        "(1 - [x_i > 0])",
        r"\max(0, x_i)",
        r"\frac{\max(0, x_i)}{x_1}",
        r"\cdot 1",
        r"\cdot 0",
        "[x_i > 0.001]",
        "[x_i > 0] [x_i < 100]",
        r"([x_i > 0] + [x_1 > 2] [x_2 < x_1] [x_2 > x_1 - 1])",
    ],
)
def test_a_wrong_case_is_refused(wrong):
    text = RELU.partition("[y_i > 0]")[0] + rf"{wrong}"
    with pytest.raises(DerivationError, match="does not equal the line above"):
        derive(text, name="relu")


def test_cases_with_a_gap_are_refused():
    gap = r"\begin{cases} x_i & x_i > 0 \\ 0 & x_i < -0.001 \end{cases}"
    with pytest.raises(Unreadable, match="no case applies here"):
        derive(RELU + rf"\max(0, x_i) = {gap}", name="relu")


def test_a_comparison_is_checked_with_both_results_at_each_size():
    text = r"(n - 2) (n - 3) [20 n + x_1 > 0] = (n - 2) (n - 3)"  # wrong from n = 4, if x_1 < -80
    with pytest.raises(DerivationError, match=r"at n = 4, around x_1 = -80"):
        derive(r"given x \in \mathbb{R}^n" + "\n" + text, name="sizes")


def test_the_rejection_gives_the_values_at_the_point():
    with pytest.raises(DerivationError) as caught:
        derive(r"given x \in \mathbb{R}" + "\n" + r"\max(0, x) = x [x > 100]", name="threshold")
    point, value = re.search(
        r"around x = (\S+):\s+above: x  \((\S+) at one point", str(caught.value)
    ).groups()
    assert float(value) == pytest.approx(float(point), rel=0.05)


def test_the_rejection_says_around_which_point():
    with pytest.raises(
        DerivationError, match=r"at n = 2, i = \d, around x_1 = -?\d\.?\d*, x_2 = -?\d\.?\d*:"
    ):
        derive(RELU.replace(r"[x_i > 0]" + "\n        = ", "[x_i < 0]\n    = "), name="relu")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y_i [x_i^2 + 1 > 0] = y_i", r"positive at all \d+ points tried: one case was not checked"),
        (r"y_i [x_i \ne 0] = y_i", r"an indicator compares with <, >, \\le or \\ge"),
        (r"y_i [x_i > \max_j x_j] = y_i", "this comparison depends on a maximum"),
        (r"\max(x, x^\top) = y", "a matrix of shape n × 1 cannot be compared with a matrix of shape 1 × n"),
        ("y_i [x_i > 0 = y_i", "cannot read this|expected"),
    ],
)
def test_what_is_not_a_case_is_refused_with_its_reason(line, message):
    with pytest.raises(Unreadable, match=message):
        derive(RELU + line, name="relu")


def test_no_case_stands_on_an_equality():
    derive(
        r"""
        given a, b \in \mathbb{R}_{>0}, x \in \mathbb{R}^n
        [x_i > x_i] = 0
        [x_i \ge x_i] = 1
        [a > b] + [b \ge a] = 1
        \max(x_i, x_j) = x_i + (x_j - x_i) [x_j > x_i]
        \max(x_i, x_j) + \max(-x_i, -x_j) = (x_i - x_j) (2 [x_i > x_j] - 1)
        \max_j x_j - \max_j x_j = 0
        """,
        name="equal",
    )


def test_a_defined_name_is_compared_by_its_definition_and_a_matrix_by_its_elements():
    text = r"""
        given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times p}, \bar{Z} \in \mathbb{R}^{m \times p}
        let U = X W
        let Z_{ik} = \max(0, U_{ik})
        \bar{U}_{ik} = [U_{ik} > 0] \bar{Z}_{ik}
        \bar{X} = \bar{U} W^\top
    """
    derive(text, name="layer")
    with pytest.raises(DerivationError, match="does not equal"):
        derive(text.replace("[U_{ik} > 0]", "[U_{ik} < 0]"), name="layer")


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"text": ""}, ValueError, "a: expected lines of a derivation; got none"),
        ({"text": "  \n \n"}, ValueError, "a: expected lines of a derivation; got none"),
        ({"text": 3}, TypeError, "text: expected a derivation's lines; got int"),
        ({"name": 3}, ValueError, "name: expected small letters, digits and hyphens, for anchors; got 3"),
        ({"after": "b"}, TypeError, "after: expected an earlier derivation, as derive returns it; got 'b'"),
        ({"sizes": {"n": 2}}, TypeError, "sizes: expected a list such as [{'n': 2}, {'n': 3}]; got {'n': 2}"),
        (
            {"operation": "scale", "options": {"facto": "c"}},
            DerivationError,
            "a: options of scale: expected factor; got facto",
        ),
        ({"operation": "softmax", "options": {"dim": 1}}, DerivationError, "a: options of softmax: expected none; got dim"),
    ],
)  # fmt: skip
def test_what_is_not_a_derivation_is_refused_in_one_line(given, kind, message):
    text = (
        "given c \\in \\mathbb{R}, x, \\bar{y} \\in \\mathbb{R}^n\nlet y_i = c x_i\n\\bar{x}_i = c \\bar{y}_i"
    )
    arguments = {"text": text, "name": "a"} | given
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        derive(arguments.pop("text"), **arguments)


BLAME = r"""
    given x, \bar{y} \in \mathbb{R}^n
    let y_i = x_i^2
    \bar{x}_i = 2 x_i \bar{y}_i
        = 3 x_i \bar{y}_i
        = x_i \bar{y}_i \cdot 3
        = x_i \bar{y}_i + x_i \bar{y}_i
        = 4 x_i \bar{y}_i
    \sum_i x_i = \sum_j x_j
    \bar{x}_i = x_i
        = 2 x_i
        = 2 x_i \bar{y}_i
"""


def test_each_wrong_line_is_blamed_once_and_no_other():
    with pytest.raises(DerivationError) as caught:
        derive(BLAME, name="blame")
    reports = [tuple(report.splitlines()[:2]) for report in str(caught.value).split("\n\n")]
    assert reports == [
        ("blame: this line does not equal the line above it", r"    4: = 3 x_i \bar{y}_i"),
        ("this line equals the line above it, which is wrong", r"    5: = x_i \bar{y}_i \cdot 3"),
        ("this line does not equal the line above it", r"    7: = 4 x_i \bar{y}_i"),
        ("this line does not equal the line above it", r"    9: \bar{x}_i = x_i"),
        ("this line does not equal the left side in line 9", r"    10: = 2 x_i"),
    ]
    shown = caught.value.derivation
    assert [row.split()[1] for row in str(shown).splitlines() if "✗" in row] == [
        "(3)",
        "(4)",
        "(6)",
        "(8)",
        "(9)",
    ]
    assert shown._repr_html_().count("✗") == 5


def test_a_line_is_compared_with_the_last_correct_one():
    text = BLAME.replace(r"= x_i \bar{y}_i \cdot 3", r"= 5 x_i \bar{y}_i")
    with pytest.raises(
        DerivationError, match=r"does not equal line 3, the last correct line above it\n    5: = 5 x_i"
    ):
        derive(text, name="blame")


def test_a_line_wrong_at_some_sizes_alone_is_wrong():
    text = "given x \\in \\mathbb{R}^n\n\\sum_i x_i = x_1 + x_2\n= x_2 + x_1\n= \\sum_j x_j"
    with pytest.raises(DerivationError) as caught:
        derive(text, name="sizes")
    message = str(caught.value)
    assert message.count("at n = 3") == 1 and "n = 2" not in message
    assert "    4:" not in message


def test_what_has_no_value_after_a_wrong_line_is_reported_too():
    text = "given x \\in \\mathbb{R}\nlet y = x^2\nx = 2 x\n\\frac{1}{y - x^2} = \\frac{2}{y - x^2}"
    with pytest.raises(
        DerivationError, match=r"(?s)does not equal .*    3:.*divides by 0 everywhere.*    4:"
    ):
        derive(text, name="both")


def test_which_is_the_output_is_asked_where_a_gradient_occurs():
    text = "given x \\in \\mathbb{R}^n\nlet s = \\sum_i x_i\nlet r = \\sum_i x_i^2\n\\frac{\\partial r}{\\partial x_j} = 2 x_j"
    derive(text, name="facts")
    derive(f"{text}\n\\dot{{s}} = \\sum_i \\dot{{x}}_i", name="facts")
    for gradient in (r"\bar{x}_i", r"\frac{\partial \mathcal{L}}{\partial x_i}", r"\dot{\mathcal{L}}"):
        with pytest.raises(Unreadable, match=r"which of s, r is the output\?.*\n    5:"):
            derive(f"{text}\n{gradient} = {gradient}", name="asked")
