"""What prints the same, or is spelled in another way, is read as the same."""

import pytest

from .judging import kinds, one, verdicts

GIVEN = r"given x, s \in \mathbb{R}^n, z \in \mathbb{R}, W^L \in \mathbb{R}^{n \times n}"


@pytest.mark.parametrize(
    "left, right, wrong",
    [
        (r"\sum^n_{k=1} x_k", r"\sum_{k=1}^n x_k", r"2 \sum^n_{k=1} x_k"),
        (r"\prod^{n}_{k=1} x_k", r"\prod_{k=1}^n x_k", r"\prod^{n}_{k=1} s_k"),
        (r"\mathrm{e}^{z}", "e^z", r"\mathrm{e}^{2 z}"),
        (r"||x||^2_2", "x^T x", "2 x^T x"),
        (r"\lVert x \rVert^2_2", "x^T x", "s^T x"),
        (r"\frac{\partial {}}{\partial {z}} (z^2)", "2 z", "z"),
        (r"\frac{\partial }{\partial z} (z^2)", "2 z", "z"),
        (r"(W^L x)_j", r"\sum_k W^L_{jk} x_k", r"\sum_k W^L_{kj} x_k"),
        (r"z + z", r"2 z \text{,}", r"3 z \text{.}"),
        (r"z + z", r"2 z \space.", r"3 z \space."),
    ],
)
def test_another_spelling_is_read(left, right, wrong):
    assert one(f"{left} = {right}", GIVEN).kind == "equal"
    assert one(f"{left} = {wrong}", GIVEN).kind == "refused"


@pytest.mark.parametrize(
    "label", [r"_\mathrm{sig}", r"_{\mathrm{sig}}", r"_{\text{sig}}", r"_{ \textrm{sig} }"]
)
def test_a_word_is_a_label_in_each_font(label):
    text = (
        rf"$$ f{label}(t) = \frac{{1}}{{1 + e^{{-t}}}} $$"
        + "\n\n"
        + rf"$$ f_{{\text{{sig}}}}(z) + f{label}(-z) = 1 $$"
    )
    assert kinds(text, GIVEN) == ["definition", "equal"]
    assert kinds(text.replace("= 1 $$", "= 2 $$"), GIVEN) == ["definition", "refused"]


@pytest.mark.parametrize("formula", [r"A^{-1}_{ij} = A_{ij}^{-1}", "A^2_{ij} = (A_{ij})^2"])
def test_a_power_before_an_index_is_not_moved(formula):
    assert one(formula, r"given A \in \mathbb{R}^{n \times n}").kind == "not readable"


def test_an_upright_e_beside_a_name_e_is_not_guessed():
    assert one(r"\mathrm{e}^z = e^z", r"given z, e \in \mathbb{R}").kind == "not readable"


@pytest.mark.parametrize("end", ["2 z", "3 z"])
def test_equations_in_an_array_or_a_box_are_judged(end):
    kind = "equal" if end == "2 z" else "refused"
    array = rf"\begin{{array}}{{rcl}} z + z &=& 2 z \\ &=& {end} \end{{array}}"
    assert kinds(f"$$ {array} $$", GIVEN) == ["equal", kind]
    assert one(rf"\bbox[yellow, 5px]{{ z + z = {end} }}", GIVEN).kind == kind


@pytest.mark.parametrize(
    "words", [(r"\text{if $i = j$}", r"\text{if $i \ne j$}"), (r"\text{i $=$ j}", r"\text{i $\ne$ j}")]
)
def test_a_condition_within_words_is_read_in_cases(words):
    given = GIVEN + r"; let a_i = \frac{e^{s_i}}{\sum_k e^{s_k}}"
    same, others = words
    cases = rf"\begin{{cases}} a_i (1 - a_i) & {same} \\ -a_i a_j & {others} \end{{cases}}"
    left = r"\frac{\partial a_i}{\partial s_j}"
    assert one(f"{left} = {cases}", given).kind == "equal"
    assert one(f"{left} = {cases.replace('-a_i', 'a_i')}", given).kind == "refused"


def test_a_variation_may_be_read_as_a_partial_derivative():
    given = GIVEN + r"; read \delta as \partial"
    assert one(r"\frac{\delta z^2}{\delta z} = 2 z", given).kind == "equal"
    assert one(r"\frac{\delta z^2}{\delta z} = z", given).kind == "refused"


def test_a_notation_for_a_bar_is_read_within_a_term():
    given = GIVEN + r"; let q_i = 2 x_i; read \bar y_i as q_i"
    assert one(r"\sum_i \bar y_i = 2 \sum_i x_i", given).kind == "equal"
    assert one(r"\sum_i \bar y_i = 3 \sum_i x_i", given).kind == "refused"
    assert "gradient" in one(r"\sum_i \bar y_i = 2 \sum_i x_i", GIVEN).message


def test_an_argument_between_bars_or_brackets_of_any_size_is_bounded():
    given = GIVEN + r"; read N(#1) as \| #1 \|^2; read M(#1) as \left( #1 \right)^T \left( #1 \right)"
    assert one("N(x - s) = M(x - s)", given).kind == "equal"
    assert one("N(x - s) = M(x + s)", given).kind == "refused"


def test_a_declaration_that_cannot_be_read_does_not_drop_the_others():
    comment = (
        r"<!-- derive: given u \in \mathbb{R}, \sigma_{\infty} \in \mathbb{R}, v \in \mathbb{R}_{>0} -->"
    )
    fault, line = verdicts(f"{comment}\n\n$$ u + v = v + u $$")
    assert (fault.kind, fault.display, line.kind) == ("not readable", -1, "equal")
    assert "u" not in fault.latex


def test_a_message_calls_the_loss_what_the_text_calls_it():
    text = "<!-- derive: loss M; let M = z^2; given M \\in \\mathbb{R} -->\n\n$$ M = z $$"
    for found in verdicts(text, GIVEN):
        assert r"\mathcal{L}" not in f"{found.message} {found.compared}"


SQUARE = r"given x \in \mathbb{R}^n, A, B \in \mathbb{R}^{n \times n}, c, f \in \mathbb{R}"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        # A gradient of the rest of its term, which is a trace or a squared norm.
        (r"\nabla_A \operatorname{tr}(A B)", "B^T", "B"),
        (r"\mathop{\nabla}_{A} \text{tr}(A B)", "B^T", "B"),
        (r"\nabla_A \mathrm{tr}\left(A^T (B + A)\right)", "B + 2 A", "B + A"),
        (r"\nabla_x \|x\|^2", "2 x", "x"),
        (r"\nabla_x \frac12 \| A x - x \|_2^2", "(A - I_n)^T (A x - x)", "2 (A - I_n)^T (A x - x)"),
        (r"\lVert x \rVert^{2}_{2}", r"\sum_i x_i^2", r"\sum_i x_i"),
        # Variations
        (r"\frac{\delta c^2}{\delta c}", "2 c", "c"),
        (r"\frac{\delta}{\delta c} (c^2)", "2 c", "c^2"),
        # Indicators
        (r"\frac{\partial x_k}{\partial x_i}", "1_{i=k}", "2 \\cdot 1_{i=k}"),
        (r"\frac{\partial x_k}{\partial x_i}", r"1 - \mathbf 1_{i \ne k}", r"\mathbf 1_{i \neq k}"),
        (r"\frac{\partial x_k}{\partial x_i}", r"\mathbb{1}_{[i = k]}", r"\mathbb{1}_{[i \ne k]}"),
        (r"\frac{\partial x_k}{\partial x_i}", "I(i = k)", r"\mathbb{I}[i \ne k]"),
        (r"\max(0, c)", r"c \mathbf{1}_{c > 0}", r"c 1_{c < 0}"),
    ],
)
def test_a_usual_notation_is_read(left, right, wrong):
    assert one(f"{left} = {right}", SQUARE).kind == "equal"
    assert one(f"{left} = {wrong}", SQUARE).kind == "refused"


@pytest.mark.parametrize(
    "formula",
    [
        r"\nabla_A \operatorname{tr}(A) B = B",  # of the trace alone, or of the product?
        r"\nabla_x \|x\|^2 x^T x = 2 x x^T x",
        r"\mathbf{1}_{x_i \ne c} = 1",
        r"\frac{\delta_{ij} c}{\delta_{ij} c} = 1",
    ],
)
def test_what_may_have_another_meaning_is_not_read(formula):
    assert one(formula, SQUARE).kind == "not readable"


def test_letters_within_words_are_compared_in_cases():
    cases = r"\begin{cases} 0, & \text{p $\ne$ m} \\[2ex] 1, & \text{p = m} \end{cases}"
    left = r"\frac{\partial x_p}{\partial x_m}"
    assert one(f"{left} = {cases}", SQUARE).kind == "equal"
    turned = cases.replace("0,", "2,")
    assert one(f"{left} = {turned}", SQUARE).kind == "refused"


def test_a_sign_that_a_condition_makes_certain_has_one_case():
    assert one(r"\max(0, c) = c \quad (c > 0)", SQUARE).kind == "equal"
    assert one(r"|c| = c \quad (c > 0)", SQUARE).kind == "equal"
    assert one(r"[c > 0] = 0 \quad (c > 0)", SQUARE).kind == "refused"
    assert one(r"[c > 1] = 1 \quad (c > 0)", SQUARE).kind == "refused"
    assert one(r"\max(0, c - f) = c - f \quad (c > 0)", SQUARE).kind == "refused"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\sum_{i=1}^n i", r"\frac{n(n+1)}{2}", r"\frac{n(n-1)}{2}"),
        (r"\sum_i x_i \cdot n", r"n \left(\sum_i x_i\right)", r"n^2(\sum_i x_i)"),
    ],
)
def test_a_length_before_a_bracket_is_a_factor(left, right, wrong):
    assert one(f"{left} = {right}", SQUARE).kind == "equal"
    assert one(f"{left} = {wrong}", SQUARE).kind == "refused"


def test_the_number_of_an_equation_beside_a_line_is_prose():
    assert one(r"x + x = 2 x \;\; \text{, via Eq. (1)}", SQUARE).kind == "equal"
    assert one(r"x + x = 3 x \;\; \text{, via Eq. (1)}", SQUARE).kind == "not readable"


def test_an_array_of_two_columns_is_a_chain():
    array = r"$$ \begin{array}{ll} x + x &= 2 x \\ &= 3 x \end{array} $$"
    assert kinds(array, SQUARE) == ["equal", "refused"]
