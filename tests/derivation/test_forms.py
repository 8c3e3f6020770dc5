"""A line that is wrong in form is ill-formed where no reading of it is right, and not readable where one may be."""

import re

import pytest

from .judging import kinds, one, verdicts

MATRICES = r"given X \in \mathbb{R}^{m \times k}, W \in \mathbb{R}^{k \times p}; let Y = X W; loss L"
VECTORS = r"given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}, U \in \mathbb{R}^{p \times m}; let h = W x; let y = U h; loss L"
SOFTMAX = (
    r"given x, g \in \mathbb{R}^n; let S = \sum_j e^{x_j}; let y_i = \frac{e^{x_i}}{S}; loss L; let L = \sum_i g_i y_i; "
    r"constant t \in \mathbb{R}^n"
)
RANGES = r"given A \in \mathbb{R}^{H \times B}, x \in \mathbb{R}^B; let z_i = \sum_j A_{ij} x_j"
GRADIENT = r"\frac{\partial L}{\partial x_i} = "
ORDERS = r"given A \in \mathbb{R}^{p \times q}, c \in \mathbb{R}^p, u \in \mathbb{R}^q"


@pytest.mark.parametrize(
    "line, given, said",
    [
        (
            r"\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Y} W",
            MATRICES,
            r"m × p cannot be multiplied by .*W^\top",
        ),
        (
            r"\frac{\partial L}{\partial W} = X \frac{\partial L}{\partial Y}",
            MATRICES,
            r"it holds with X^\top",
        ),
        (
            r"\frac{\partial L}{\partial X} = W^T \frac{\partial L}{\partial Y}",
            MATRICES,
            "cannot be multiplied",
        ),
        (
            r"\frac{\partial L}{\partial x} = W \frac{\partial L}{\partial h}",
            VECTORS,
            r"it holds with W^\top",
        ),
        (
            r"\frac{\partial L}{\partial W} = \frac{\partial L}{\partial h} x",
            VECTORS,
            r"it holds with x^\top",
        ),
        (
            r"\frac{\partial L}{\partial x} = \frac{\partial L}{\partial h} W",
            VECTORS + "; layout denominator",
            "cannot be multiplied",
        ),
        (
            r"\frac{\partial L}{\partial W} = (\frac{\partial L}{\partial h})^T x^T",
            VECTORS + "; layout denominator",
            "without its transpose",
        ),
        (r"u^T A^T c = u^T c A^T", ORDERS, "cannot be multiplied"),
        (r"c^T A u = u^T A c", ORDERS, "cannot be multiplied"),
        (r"c^T A u = c^T u A", ORDERS, "cannot be multiplied"),
        (r"c^T A u = A c^T u", ORDERS, "cannot be multiplied"),
        (r"\operatorname{tr}(A) = 1", RANGES, "a square matrix"),
        (r"\sum_i A_{ii} = 1", RANGES, "runs over H elsewhere, but over B here"),
        (r"z_i + z_i = 2 \sum_j A_{ij} \delta_{ij} x_j", RANGES, "i and j run over different dimensions"),
        (
            r"\frac{\partial z_i}{\partial x_j} = A_{ji}",
            RANGES,
            "j runs over B elsewhere.*A_{ij} in place of A_{ji}",
        ),
        (r"z_i = \sum_j A_{ij} x_k", RANGES, "the index k is on this side only"),
        (r"z_i + z_i = 2 \sum_j A_{ji} x_j", RANGES, "A_{ij} in place of A_{ji}"),
        (
            GRADIENT + r"y_j (g_i - \sum_k g_k y_k)",
            SOFTMAX,
            "the index j is on this side only; .* y_i in place of y_j",
        ),
        (GRADIENT + r"y_i (g_i - \sum_i y_i)", SOFTMAX, "i is also used outside this sum"),
        (GRADIENT + r"y_i (g_i - \sum_k g_i y_i)", SOFTMAX, "the sum over k has no k"),
        (r"-\sum_i t_i \log y_i = -\log x_k", SOFTMAX, "the index k is on this side only"),
        (r"1 = \frac{\partial}{\partial x_i} \sum_j y_j", SOFTMAX, "the index i is on this side only"),
    ],
)
def test_what_no_reading_makes_right(line, given, said):
    verdict = one(line, given)
    assert verdict.kind == "ill-formed"
    assert re.search(re.escape(said).replace(r"\.\*", ".*"), verdict.message), verdict.message
    assert verdict.counterexample is None and verdict.basis.definitions


@pytest.mark.parametrize(
    "line, given",
    [
        # In numerator layout.
        (r"\frac{\partial L}{\partial W} = \frac{\partial L}{\partial Y} X", MATRICES),
        (r"\frac{\partial L}{\partial x} = \frac{\partial L}{\partial h} W", VECTORS),
        # With gradients as columns, beside Jacobians in numerator layout.
        (
            r"\frac{\partial L}{\partial x} = (\frac{\partial y}{\partial x})^T \frac{\partial L}{\partial y}",
            VECTORS + "; layout numerator",
        ),
        (
            r"\frac{\partial L}{\partial x} = (\frac{\partial y}{\partial x})^T \frac{\partial L}{\partial y}",
            VECTORS + "; layout denominator",
        ),
        # With vectors as rows.
        (r"h + h = x W^T + h", VECTORS),
        (r"\sum_i A_{ii} = \sum_j A_{jj}", RANGES),  # as far as the diagonal goes
        (r"\sum_i \sum_j A_{ij} x_i = \sum_k \sum_i A_{ik} x_i", RANGES),  # if H and B are the same
        (GRADIENT + r"y_i (g_i - \sum_i g_i y_i)", SOFTMAX),  # the inner i differs from the outer one
        (GRADIENT + r"y_i (g_i - g_j y_j)", SOFTMAX),  # the sum is understood
        (r"0 = \frac{\partial}{\partial x_i} \sum_j y_j", SOFTMAX),  # for every i
        (r"-\sum_i t_i \log y_i = -\log y_k", SOFTMAX),  # with a 1 at the label k
        (r"\sum_j y_j = \sum_k \frac{1}{n}", SOFTMAX),  # if k runs over n
        (r"u_i = A_{ij} x_j", RANGES),  # a definition
        (r"x_i = A_{ji}", RANGES),  # x may be meant to be another one
    ],
)
def test_what_a_reading_makes_right_is_not_readable(line, given):
    assert one(line, given).kind == "not readable"


def test_a_sum_that_may_be_understood_is_asked_about():
    line = rf"$$ {GRADIENT} y_i (g_i - g_j y_j) = y_i (g_i - \sum_j g_j y_j) $$"
    assert kinds(line, SOFTMAX) == ["not readable", "equal"]
    assert "say: sums implied" in verdicts(line, SOFTMAX)[0].message
    assert kinds("Repeated indices are summed over.\n\n" + line, SOFTMAX) == ["equal", "equal"]


def test_words_beside_a_line_leave_its_form_open():
    assert one(r"x_j = x_i \quad (\text{by symmetry})", SOFTMAX).kind == "not readable"


def test_a_function_of_the_definitions_in_a_sum_that_does_not_fit():
    given = r"given W \in \mathbb{R}^{h \times d}, V \in \mathbb{R}^{q \times h}, c \in \mathbb{R}; let \phi(t) = \tanh(t)"
    assert one(r"\phi(c) W = \phi(c) W + V", given).kind == "ill-formed"


def test_another_equation_may_begin_in_a_side_that_is_not_readable():
    given = r"given V \in \mathbb{R}^{m \times n}, U \in \mathbb{R}^{n \times n}, a, b \in \mathbb{R}"
    for line, found in (
        (r"V + V = 2 V \; \textrm{and} \; U + U = 2 U", ["equal", "equal"]),
        (r"z = 2 a, \; \textrm{and} \; b + b = 2 b", ["definition", "equal"]),
        (r"V + V = 2 V, U + U = 2 U", ["not readable", "not readable"]),
        (r"a + a = \foo(a), b = b", ["not readable", "not readable"]),
    ):
        assert kinds(f"$$ {line} $$", given) == found
    assert kinds(r"$$ a + a = \foo(a) = 3 a $$", given) == ["not readable", "refused"]


def test_a_shape_from_a_display_may_be_that_of_another_name():
    wrong = r"$$ b + b = 2 \sum_j \sum_i X_{ij} b_j $$"
    given = r"given b \in \mathbb{R}^n"
    assert kinds(rf"$$ X \in \mathbb{{R}}^{{m \times k}} $$ {wrong}", given)[-1] == "not readable"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"\delta_{ia} W_{bj}", r"\delta_{ia} W_{jj}"),
        (r"\delta_{ia} W_{bj}", r"\delta_{ja} W_{bj}"),
        (r"\sum_k \delta_{ia} \delta_{kb} W_{kj}", r"\sum_k \delta_{ia} \delta_{kj} W_{kj}"),
    ],
)
def test_an_index_over_two_lengths_in_a_derivative_that_holds_nothing(right, wrong):
    given = (
        r"given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times p}; "
        r"let Y_{ij} = \sum_k X_{ik} W_{kj}"
    )
    left = r"\frac{\partial Y_{ij}}{\partial X_{ab}} ="
    assert one(f"{left} {right}", given).kind == "equal"
    assert one(f"{left} {wrong}", given).kind == "ill-formed"


SQUARES = r"""given X \in \mathbb{R}^{m \times n}, w \in \mathbb{R}^n, t \in \mathbb{R}^m, A, B \in \mathbb{R}^{n \times n}, a, b \in \mathbb{R}
let L = \frac12 \lVert X w - t \rVert^2"""


@pytest.mark.parametrize(
    "row, kind",
    [
        (r"\frac{\partial L}{\partial w} = X^\top (X w - t)", "equal"),
        (r"\frac{\partial L}{\partial w} = X (X w - t)", "ill-formed"),
        (r"X(A + B) = X A + X B", "equal"),
        (r"X (A + B) = X A + B", "ill-formed"),
        (r"A(B w) = A B w", "equal"),
        (r"A (A + B) = A A + B A", "refused"),
        (r"A(w) = A w", "not readable"),  # an argument
        (r"A(a + b) = a A + b A", "not readable"),
        (r"w(a + b) = a w + b w", "not readable"),
    ],
)
def test_a_matrix_before_an_array_in_brackets_is_a_factor(row, kind):
    assert one(row, SQUARES).kind == kind


@pytest.mark.parametrize(
    "row, kind",
    [
        (r"\sum_i w_i^2 = w w", "ill-formed"),
        (r"w^\top A w = w A w", "ill-formed"),
        (r"\lVert w \rVert^2 = w w", "ill-formed"),
        (r"\sum_i w_i^2 = w w^\top", "not readable"),  # w may be a row
        (r"w = a", "not readable"),  # each element
        (r"w = \sum_i w_i", "not readable"),  # another w
        (r"w_i = w", "not readable"),  # an element for its array
        (r"A = A_{ij}", "not readable"),
        (r"A w = \sum_j A_{ij} w_j", "not readable"),
        (r"\frac{\partial L}{\partial w_i} = X^\top (X w - t)", "not readable"),
    ],
)
def test_an_array_is_not_a_number_that_arrays_give(row, kind):
    assert one(row, SQUARES).kind == kind


LAYERS = (
    r"layout numerator; given v \in \mathbb{R}^d, U \in \mathbb{R}^{d \times V}, g \in \mathbb{R}^V; "
    r"let \theta = U^\top v; loss J; let J = g^\top \theta"
)
CHAIN = r"\frac{\partial J}{\partial v} &= \frac{\partial J}{\partial \theta} \frac{\partial \theta}{\partial v} \\ &= "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r"g^\top U^\top", "equal"),
        (r"g^\top \frac{\partial \theta}{\partial v}", "equal"),
        (r"g \frac{\partial \theta}{\partial v}", "ill-formed"),
        (r"U^\top g^\top", "ill-formed"),
        (r"U g", "not readable"),  # the same in the other layout
        (r"2 g^\top U^\top", "refused"),
    ],
)
def test_a_transpose_is_forgotten_if_a_convention_in_which_the_lines_above_fit_does_not_supply_it(
    line, expected
):
    text = rf"$$ \begin{{aligned}} {CHAIN} {line} \end{{aligned}} $$"
    assert kinds(text, LAYERS) == ["equal", expected]


def test_a_sum_within_a_sum_over_the_same_letter_is_not_ill_formed():
    given = r"given x, y \in \mathbb{R}^n, w \in \mathbb{R}"
    (found,) = verdicts(r"$$ w = \sum_i x_i^2 \sum_i y_i^2 $$", given)
    assert found.kind == "not readable" and "also used outside" in found.message
