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
        "definition", "definition", "equal", "not readable",
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
        r"\; \textrm{if} \; x_i = 0",
        r"\; \textit{unless} \; c = 0",
        r"\quad \text{where we assume} \; x_i = 0",
        r"\; \text{as soon as} \; x_i = 0",
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


@pytest.mark.parametrize("over", ["d", "?", r"\text{a.s.}", r"\mathcal{D}"])
def test_another_sign_over_an_equals_sign_is_not_guessed(over):
    verdict = one(rf"2 c \overset{{{over}}}{{=}} c", OF_SQUARES)
    assert verdict.kind == "not readable"
    assert "what does" in verdict.message


def test_two_columns_hold_two_equations():
    text = r"$$ \begin{aligned} y &= 2 c && z = 3 c \\ y + z &= 5 c & y - z &= c \end{aligned} $$"
    assert kinds(text, OF_SQUARES)[:2] == ["definition", "definition"]
    assert kinds(r"$$ \begin{alignedat}{2} 2 c &= c && + c \end{alignedat} $$", OF_SQUARES) == ["equal"]


# ---- where --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"z = 2 u, \quad \text{where } u = 2 c", ["definition", "definition"]),
        (r"2 u = 4 c, \quad \text{where } u = 2 c", ["equal", "definition"]),
        (r"2 u = 5 c, \quad \text{where } u = 2 c", ["refused", "definition"]),
        (r"2 u = 4 q c^2, \text{ where } u = 2 w c, \quad w = q c", ["equal", "definition", "definition"]),
        (r"2 u = 5 q c^2, \text{ where } u = 2 w c, \quad w = q c", ["refused", "definition", "definition"]),
        (r"2 x_i = x_i + x_i, \quad \text{with } q = \sum_i x_i^2", ["equal", "equal"]),
        # A clause that is neither a definition nor known is a restriction.
        (r"2 x_i = x_i, \quad \text{where } x_i = 0", ["not readable"]),
        (r"2 x_i = x_i, \quad \text{where } q = 0", ["not readable"]),
        (r"q = 2, \quad \text{where } c = 3", ["not readable"]),
    ],
)  # fmt: skip
def test_what_where_introduces_is_defined_first_or_restricts(formula, expected):
    assert kinds(f"$$ {formula} $$", OF_SQUARES) == expected


def test_a_display_behind_where_defines_names_of_the_one_above():
    text = "$$ 2 u = 4 c $$\n\nwhere\n\n$$ u = 2 c $$"
    found = verdicts(text, OF_SQUARES)
    assert [(v.kind, v.line) for v in found] == [("equal", 1), ("definition", 5)]
    assert kinds(text.replace("4 c", "5 c"), OF_SQUARES) == ["refused", "definition"]
    assert kinds(text.replace("where", "Later"), OF_SQUARES) == ["not readable", "definition"]
    restricting = "$$ 2 u = 4 c $$\n\nwhere\n\n$$ q = 0 $$"
    assert kinds(restricting, OF_SQUARES) == ["not readable", "refused"]


# ---- derivatives of products, and of functions at their arguments --------------------------

OF_ARRAYS = r"given x, a, w \in \mathbb{R}^n, A, B \in \mathbb{R}^{n \times n}, y \in \mathbb{R}^m, X \in \mathbb{R}^{m \times n}, b \in \mathbb{R}"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\frac{\partial}{\partial x}(a^T x)", "a", "x"),
        (r"\frac{\partial}{\partial x} \left( x^T A x \right)", "(A + A^T) x", "2 A x"),
        (r"\frac{\partial}{\partial w} (X w)", "X^T", "2 X^T"),
        (r"\frac{\partial a^T x}{\partial x}", "a", "2 a"),
        (r"\frac{\partial X w}{\partial w}", "X^T", "-X^T"),
        (r"\frac{\partial \, x^T A x}{\partial x_i}", r"(A x)_i + (A^T x)_i", r"2 (A x)_i"),
        (r"\frac{\partial \operatorname{tr}(A B)}{\partial A}", "B^T", "B"),
        (r"\frac{\partial e^{a^\top x}}{\partial x_i}", r"a_i e^{a^\top x}", r"x_i e^{a^\top x}"),
    ],
)
def test_a_derivative_of_a_product_by_an_array(left, right, wrong):
    for layout, top in (("denominator", ""), ("numerator", "^T")):
        given = f"layout {layout}; {OF_ARRAYS}"
        top = "" if "_i" in left else top
        assert one(f"{left} = ({right}){top}", given).kind == "equal"
        assert one(f"{left} = ({wrong}){top}", given).kind == "refused"


def test_a_derivative_by_an_array_needs_a_layout_and_has_its_shape():
    derivative = r"\frac{\partial}{\partial x} (a^T x)"
    assert "declare layout numerator or denominator" in one(f"{derivative} = a", OF_ARRAYS).message
    assert one(f"{derivative} = a^T", f"layout denominator; {OF_ARRAYS}").kind == "not readable"
    # How far does the derivative reach?
    for sum_or_product in (
        r"\frac{\partial a^T x + b}{\partial x} = a",
        r"\frac{\partial}{\partial x} a^T x = a",
    ):
        assert one(sum_or_product, f"layout denominator; {OF_ARRAYS}").kind == "not readable"


FUNCTIONS = displays(
    r"f(x) = x^T A x", r"L(w) = \frac12 \| y - X w \|^2", r"M(w, b) = b w^T w", r"g(t) = t^2"
)


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"\nabla f = (A + A^T) x", "equal"),
        (r"\nabla f = 2 A x", "refused"),
        (r"\frac{\partial f}{\partial x_k} = \sum_j A_{kj} x_j + \sum_i x_i A_{ik}", "equal"),
        (r"\frac{\partial f}{\partial x_k} = 2 \sum_j A_{kj} x_j", "refused"),
        (r"\nabla_w L = -X^T (y - X w)", "equal"),
        (r"\nabla_{w} L = X^T (y - X w)", "refused"),
        (r"\frac{\partial L}{\partial w} = X^T (X w - y)", "equal"),
        (r"\frac{\partial L}{\partial w} = X^T (y - X w)", "refused"),
        (r"\frac{\partial M}{\partial b} = w^T w", "equal"),
        (r"\frac{\partial M}{\partial w} = 2 b w", "equal"),
        (r"\frac{\partial M}{\partial w} = b w", "refused"),
        # Of which of its arguments, and at which point?
        (r"\nabla M = 2 b w", "not readable"),
        (r"\frac{\partial g}{\partial b} = 2 b", "not readable"),
        (r"\frac{\partial f}{\partial w} = 0 w", "not readable"),
        (r"\nabla_x f \, b = (A + A^T) x \, b", "equal"),
        (r"\nabla_x f \, b = 2 b A x", "refused"),
    ],
)
def test_a_function_is_differentiated_at_the_arguments_it_was_defined_with(formula, kind):
    assert kinds(FUNCTIONS + f"\n\n$$ {formula} $$", OF_ARRAYS) == [*4 * ["definition"], kind]


def test_a_number_that_is_not_the_loss_has_a_gradient_by_a_name():
    given = OF_ARRAYS + "; let s = x^T x"
    assert one(r"\nabla_x s = 2 x", given).kind == "equal"
    assert one(r"\nabla_x s = x", given).kind == "refused"
    assert one(r"\nabla s = 2 x", given).kind == "not readable"
    for whole in (r"\nabla_x x^T x = 2 x", r"\nabla_x s b = 2 b x"):
        assert one(whole, given).kind == "equal"


OF_LOSS = r"given \mathbf{w} \in \mathbb{R}^n, y \in \mathbb{R}^m, X \in \mathbb{R}^{m \times n}; let z = X \mathbf{w}"
LOSS = r"""
$$ \mathcal{L}(\mathbf{w}) = \frac12 \| z - y \|^2 $$
$$ \nabla \mathcal{L}(\mathbf{w}) = X^T (z - y) $$
$$ \nabla \mathcal{L}\left(\mathbf{w}\right) = X^T (z + y) $$
$$ \nabla_\mathbf{w} \mathcal{L} = X^T (z - y) $$
$$ \nabla \mathcal{L} = X^T (z + y) $$
$$ \frac{\partial \mathcal{L}}{\partial z} = z - y $$
$$ \frac{\partial \mathcal{L}}{\partial z} = z + y $$
$$ \mathcal{L}(\mathbf{w}) = \frac12 z^T z - z^T y + \frac12 y^T y $$
$$ \mathcal{L}(y) = 1 $$
"""


def test_a_loss_may_be_written_as_a_function_of_declared_names():
    after = ["equal", "refused", "equal", "refused", "equal", "refused", "equal", "not readable"]
    assert kinds(LOSS, OF_LOSS) == ["definition", *after]
    named = LOSS.replace(r"\mathcal{L}", "J")
    assert kinds(named, OF_LOSS + "; loss J") == ["definition", *after]
    defined = OF_LOSS + r"; loss J; let J(\mathbf{w}) = \frac12 \| z - y \|^2"
    assert kinds(named, defined) == ["equal", *after]


def test_the_gradient_of_a_loss_of_several_names_is_by_one_of_them():
    text = displays(
        r"L(w, b) = b w^T w", r"\nabla_w L = 2 b w", r"\nabla_w L(w, b) = b w", r"\nabla L = 2 b w"
    )
    given = r"loss L; given w \in \mathbb{R}^n, b \in \mathbb{R}"
    assert kinds(text, given) == ["definition", "equal", "refused", "not readable"]


# ---- numbers and vectors added to arrays ---------------------------------------------------

SPREAD = r"given z, y \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times k}, b \in \mathbb{R}^k, c \in \mathbb{R}; let \sigma(t) = \frac{1}{1 + e^{-t}}"


@pytest.mark.parametrize(
    ("formula", "without", "broadcast"),
    [
        (r"\sigma'(z) = \sigma(z) \odot (1 - \sigma(z))", "equal", "equal"),
        (r"\sigma'(z) = \sigma(z) \odot (1 + \sigma(z))", "refused", "refused"),
        (r"\sum_i (1 - z)_i = n - \sum_i z_i", "equal", "equal"),
        (r"\sum_i (1 - z)_i = 1 - \sum_i z_i", "refused", "refused"),
        (r"(\tfrac12 - X)_{ij} = \frac12 - X_{ij}", "equal", "equal"),
        (r"(\tfrac12 - X)_{ij} = 1 - X_{ij}", "refused", "refused"),
        # The 1 may be the identity, and c a number that was forgotten.
        (r"(1 - A)_{ij} = 1 - A_{ij}", "not readable", "equal"),
        (r"(1 - A)_{ij} = \delta_{ij} - A_{ij}", "not readable", "refused"),
        (r"(c + z)_i = c + z_i", "not readable", "equal"),
        (r"(c + z)_i = z_i", "not readable", "refused"),
        (r"(X W + b)_{ij} = \sum_a X_{ia} W_{aj} + b_j", "not readable", "equal"),
        (r"(X W + b)_{ij} = \sum_a X_{ia} W_{aj} + 2 b_j", "not readable", "refused"),
        (r"(X W - b^\top)_{ij} = \sum_a X_{ia} W_{aj} - b_j", "not readable", "equal"),
        (r"(A + y)_{ij} = A_{ij} + y_j", "not readable", "equal"),
        (r"(A + y)_{ij} = A_{ij} + y_i", "not readable", "refused"),
        (r"(X + b)_{ij} = X_{ij} + b_j", "ill-formed", "ill-formed"),
        (r"\frac{\partial (X W + b)_{ij}}{\partial b_l} = \delta_{jl}", "not readable", "equal"),
        (r"\text{softmax}(X)_{ij} = \frac{e^{X_{ij}}}{\sum_a e^{X_{ia}}}", "not readable", "equal"),
        (r"\text{softmax}(X)_{ij} = \frac{e^{X_{ij}}}{\sum_a e^{X_{aj}}}", "not readable", "refused"),
        (r"\text{softmax}(X W + b)_{ij} = \frac{e^{(X W)_{ij} + b_j}}{\sum_a e^{(X W)_{ia} + b_a}}", "not readable", "equal"),
    ],
)  # fmt: skip
def test_what_is_added_to_each_element_or_row(formula, without, broadcast):
    assert one(formula, SPREAD).kind == without
    assert one(formula, SPREAD + "; broadcast").kind == broadcast


def test_a_derivation_of_the_book_writes_its_ones():
    with pytest.raises(ValueError, match="cannot be added to"):
        derive(SPREAD.replace("; ", "\n") + "\n(1 - z)_i = 1 - z_i", name="ones")


# ---- marks --------------------------------------------------------------------------------

MARKS = r"given z, y \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, X \in \mathbb{R}^{m \times n}, c, d \in \mathbb{R}"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"||z||^2", r"z^{\mathrm T} z", r"2 z^{\rm T} z"),
        (r"\left|\left| z \right|\right|^2", r"z^\mathrm{T} z", "1"),
        (r"\Vert z \Vert^2", r"z^{\sf T} z", r"z^{\sf T} y"),
        (r"\| X \|_\textrm{F}^2", r"\sum_{i,j} X_{ij}^2", r"\sum_{i,j} X_{ij}"),
        (r"\| X \|_{\mathrm{F}}^2", r"\operatorname{tr}(X^T X)", "0"),
        ("|c|", r"c \, \mathrm{sign}(c)", "c"),
        (r"\left| c \right|", r"\max(c, -c)", r"\max(c, 0)"),
        (r"2 |c| |d|", "2 |c d|", "2 c d"),
        (r"\lvert c - d \rvert", r"\max(c, d) - \min(c, d)", "c - d"),
        (r"\sum_i |z_i|", r"\sum_i z_i \operatorname{sgn}(z_i)", r"\sum_i z_i"),
        (r"\frac{\partial |c|}{\partial c}", r"\mathrm{sign}(c)", "1"),
        (r"\mathbb{1}^T z", r"\sum_i z_i", "n"),
        (r"\mathbb{1}_n^T z", r"\sum_i z_i", "n"),
        (r"\mathbb{1}[c > 0] c", r"\max(0, c)", r"\max(1, c)"),
        (r"\mathbb{1}_{c > 0} \, c", r"\max(0, c)", r"\min(0, c)"),
        (r"\mathbb{1}\{c > 0\}", r"1 - \mathbb{1}\left( c \le 0 \right)", r"\mathbb{1}(c < 0)"),
        (r"\mathbb{1}_{i=j} z_i", r"\delta_{ij} z_j", "2 z_j"),
        (r"\mathbb{1}\left[i = j\right] z_i", r"\delta_{ij} z_j", "z_i"),
        (r"z \circ y", r"y \odot z", r"2 y \odot z"),
        (r"X \circ X", r"X \odot X", "X"),
    ],
)  # fmt: skip
def test_a_mark_of_other_texts_is_read(left, right, wrong):
    assert one(f"{left} = {right}", MARKS).kind == "equal"
    assert one(f"{left} = {wrong}", MARKS).kind == "refused"


@pytest.mark.parametrize(
    "formula",
    [
        "|z| = 3",  # a norm, or each element?
        "|A| = 3",  # a determinant?
        "|c|d|c| = c",
        "|c + |d| c| = c",
        "p(c|d) p(d) = p(d|c)",
        r"A \circ A = A \odot A",  # a composition?
        r"c \circ d = c d",
        r"\mathbb{1}\{z_i = c\} = 1",
    ],
)
def test_a_mark_with_several_meanings_is_not_guessed(formula):
    assert one(formula, MARKS + "; factor c, d").kind == "not readable"


def test_a_row_may_begin_with_a_product():
    text = r"$$ \begin{{aligned}} 2 c d &= 2 c \\ & \hspace{{1em}} \cdot {} \end{{aligned}} $$"
    assert kinds(text.format("d"), MARKS) == ["equal"]
    assert kinds(text.format("c"), MARKS) == ["refused"]


@pytest.mark.parametrize("below", [r"{\substack{j=1 \\ j \ne i}}", r"{j=1 \atop j \neq i}"])
def test_a_sum_may_have_two_rows_below(below):
    assert one(rf"\sum_{below}^n z_j = \sum_j z_j - z_i", MARKS).kind == "equal"
    assert one(rf"\sum_{below}^n z_j = \sum_j z_j", MARKS).kind == "refused"


# ---- superscripts and differentials under a declaration -------------------------------------


def test_a_superscript_is_an_index_or_a_name_as_it_is_declared():
    given = r"loss L; given X \in \mathbb{R}^{m \times n}, w \in \mathbb{R}^n, y \in \mathbb{R}^m, c \in \mathbb{R}; slice X_i \in \mathbb{R}^n; let L = w^T w"
    reads = r"; read x^{(#1)} as X_{#1}; read y^{(#1)} as y_{#1}; read w^{(new)} as w_{\text{new}}"
    text = displays(
        r"\sum_i x^{(i)} (x^{(i)})^\top = X^T X", r"\sum_i x^{(i)} y^{(i)} = X^T y", r"\sum_i x^{(i)} y^{(i)} = 2 X^T y",
        r"w^{(new)} = w - c \nabla_w L", r"w^{(new)} = (1 - 2 c) w",
    )  # fmt: skip
    assert kinds(text, given + reads) == ["equal", "equal", "refused", "definition", "equal"]
    assert set(kinds(text, given)) == {"not readable"}


DIFFERENTIALS = r"loss L; given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times p}, \mathbf{x} \in \mathbb{R}^n; let \hat{\mathbf{x}} = 2 \mathbf{x}; let Y = X W; let L = \frac12 \lVert Y \rVert_F^2"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        ("dY", "dX W + X dW", "X dW"),
        (r"\mathrm{d} Y", r"\mathrm{d} X \, W + X \, \mathrm{d} W", "2 dX W"),
        (r"d\hat{\mathbf{x}}", r"2 \, d\mathbf{x}", r"d\mathbf{x}"),
        ("dL", r"\operatorname{tr}(Y^T dY)", r"\operatorname{tr}(Y^T dX W)"),
        (r"d Y_{ij}", r"\sum_k dX_{ik} W_{kj} + \sum_k X_{ik} dW_{kj}", r"\sum_k dX_{ik} dW_{kj}"),
    ],
)
def test_a_d_is_a_differential_under_its_word(left, right, wrong):
    word = DIFFERENTIALS + "; d differential"
    assert one(f"{left} = {right}", word).kind == "equal"
    assert one(f"{left} = {wrong}", word).kind == "refused"
    assert one(f"{left} = {right}", DIFFERENTIALS).kind == "not readable"


@pytest.mark.parametrize("right", [r"2 c \, dc", r"(dc) (dc)", r"dc^\top dc"])
def test_whether_a_d_comes_before_a_power_is_not_guessed(right):
    (verdict,) = verdicts(rf"$$ d c^2 = {right} $$", r"given c \in \mathbb{R}; d differential")
    assert verdict.kind == "not readable"


def test_a_name_d_is_not_a_differential():
    (verdict,) = verdicts(r"<!-- derive: given d \in \mathbb{R}; d differential -->")
    assert "d is a name here" in verdict.message
    assert one(r"\frac{d (c^2)}{d c} = 2 c", r"given c \in \mathbb{R}; d differential").kind == "equal"


# ---- names and words -----------------------------------------------------------------------

NAMES = r"given \boldsymbol{\theta}, \vec{x}, u_o, u_k, \mathsf{Z} \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, c \in \mathbb{R}; slice A_i \in \mathbb{R}^n; loss L; let L = \boldsymbol{\theta}^T \vec{x}"


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\boldsymbol\theta^T \vec x = \sum_i \boldsymbol{\theta}_i \vec{x}_i", ["equal"]),
        (r"\bm{\theta}^T \vec x = \sum_i \vec{x}_i", ["refused"]),
        (r"\nabla_{\boldsymbol{\theta}} L = \vec{x}", ["equal"]),
        (r"\nabla_{\vec x} L = 2 \boldsymbol\theta", ["refused"]),
        (r"u^T_o u_k = u^T_{k} u_o", ["equal"]),
        (r"u^T_o u_k = u^T_{k} u_k", ["refused"]),
        (r"A^T_i A_i = A_i^T A_i", ["not readable"]),  # a row of A, or of its transpose?
        (r"\mathsf{Z}^T u_o = u_o^T \mathsf{Z}", ["equal"]),
        (r"\therefore c + c = c", ["refused"]),
        (r"u_o^Tu_k = u_k^Tu_o", ["equal"]),
        (r"u_o^Tu_k = u_k^Tu_k", ["refused"]),
        (r"c + c = 2c \; \textrm{and} \; c + c = 3 c", ["equal", "refused"]),
        # One of two equations may be wrong.
        (r"c + c = 2 c \text{ or } c = 3", ["not readable", "not readable"]),
        (r"c = 3 \quad \text{or} \quad c + c = 2 c", ["not readable", "not readable"]),
    ],
)
def test_names_and_words_between_equations(formula, expected):
    assert kinds(f"$$ {formula} $$", NAMES) == expected


def test_a_display_may_hold_a_name_still():
    given = r"loss L; d differential; given x, w \in \mathbb{R}^n; let L = x^T w"
    text = r"$$ dL = w^T dx \Rightarrow \frac{\partial L}{\partial x} = w $$"
    assert kinds(text, given) == ["not readable", "equal"]
    still = rf"<!-- derive: when \dot{{w}} = 0 -->{text}"
    assert kinds(still, given) == ["equal", "equal"]
    assert kinds(still.replace("= w^T", "= 2 w^T"), given) == ["not readable", "equal"]
    assert kinds(still.replace("= w^T", "= 2 w^T").replace(r"\Rightarrow", r"\quad"), given) == [
        "refused",
        "equal",
    ]


def test_a_gradient_of_a_loss_that_cannot_be_read_is_not_refused():
    given = r"loss L; given x \in \mathbb{R}^n; let y = 2 x"
    text = displays(
        r"L = \int_0^1 y \, dt",
        r"\frac{\partial L}{\partial y_i} = 1",
        r"\frac{\partial L}{\partial x_i} = 2 \frac{\partial L}{\partial y_i}",
    )
    assert kinds(text, given) == ["not readable", "not readable", "equal"]
    assert kinds(text.partition("\n\n")[2], given) == ["refused", "equal"]


@pytest.mark.parametrize("word", ["since", "because", "by", "using", "from"])
def test_a_reason_with_mathematics_may_restrict_a_line(word):
    reason = rf"\quad \text{{{word} }} \frac{{\partial x_j}}{{\partial x_i}} = \delta_{{ij}}"
    assert one(rf"\frac{{\partial q}}{{\partial x_i}} = 2 x_i {reason}", OF_SQUARES).kind == "equal"
    assert one(rf"\frac{{\partial q}}{{\partial x_i}} = 3 x_i {reason}", OF_SQUARES).kind == "not readable"


def test_words_beside_a_row_hold_for_its_whole_chain():
    text = r"$$ \begin{{align}} \frac{{\partial q}}{{\partial x_i}} &= 2 x_i && \text{{since }} \frac{{\partial x_i}}{{\partial x_j}} = \delta_{{ij}} \\ &= {} x_i && \text{{since the sum is 1}} \\ &= x_i + x_i \quad (3) \end{{align}} $$"
    assert kinds(text.format(2), OF_SQUARES) == ["equal", "equal", "equal"]
    assert kinds(text.format(3), OF_SQUARES) == ["equal", "not readable", "equal"]
    numbered = r"$$ \begin{{align}} \frac{{\partial q}}{{\partial x_i}} &= 2 x_i \quad (1) \\ &= {} x_i \qquad (2) \end{{align}} $$"
    assert kinds(numbered.format(2), OF_SQUARES) == ["equal", "equal"]
    assert kinds(numbered.format(3), OF_SQUARES) == ["equal", "refused"]
