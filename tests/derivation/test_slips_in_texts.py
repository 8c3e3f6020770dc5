"""A slip in a line of a text is refused if every reading makes the line wrong, and a right line is not accused."""

import pytest

from backpass.derivation.document import read_document
from backpass.derivation.judge import judge

from .judging import kinds, one

LAYERS = r"given x \in \mathbb{R}^n, W^{(1)}, W^{(2)} \in \mathbb{R}^{n \times n}; let h^{(1)} = W^{(1)} x"
SQUARE = r"given x \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, b \in \mathbb{R}^n; layout denominator"
NORM = r"given x \in \mathbb{R}^n; let \mu = \frac1n \sum_i x_i; let \sigma^2 = \frac1n \sum_i (x_i - \mu)^2"
SUMS = r"given x, y, z \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}"
NUMBERS = r"given x, w \in \mathbb{R}; let y = w x; let L = y^2"


@pytest.mark.parametrize(
    ("line", "given"),
    [
        (r"\nabla_x (x^\top A x) = (A + x^\top) x", SQUARE),
        (r"\nabla_x (x^\top x) = 2", SQUARE),
        (r"\frac{\partial (x^\top A x)}{\partial x} = 2 x^\top (A + A^\top)", SQUARE),
        (r"W^{(2)} h^{(1)} + x = W^{(3)} h^{(1)} + x", LAYERS),
        (r"W^{(2)} h^{(1)} = h^{(2)} h^{(1)}", LAYERS),
        (r"\frac1n \sum_i (x_i - \mu)^2 + 1 = \sigma + 1", NORM),
        (r"\frac1n \sum_i (x_i - \mu)^2 + 1 = \sigma^3 + 1", NORM),
        (r"\sum_i x_i y_i + \sum_i x_i z_i = x_i y_i + \sum_j x_j z_j", SUMS),
    ],
)
def test_what_every_reading_makes_wrong(line, given):
    assert one(line, given).kind == "ill-formed"


@pytest.mark.parametrize(
    ("line", "given"),
    [
        (r"\frac{\partial (x^\top A x)}{\partial x} = x^\top (A + A^\top)", SQUARE),  # a row
        (r"\frac{\partial (b^\top x)}{\partial b_i} = x", SQUARE),  # an array for its elements
        (r"\nabla_x (\mathbf{1}^\top x) = 1", SQUARE),
        (r"W^{(1)} x = W^{(1)} h^{(0)}", LAYERS),  # h^{(0)} may be x
        (r"W^{(2)} h^{(1)} = W h^{(1)} \quad \text{with } W \text{ as in code}", LAYERS),
        (r"\sum_i (x_i - \mu)^2 = n \sigma \sigma", NORM),  # a standard deviation
        (r"\sum_i x_i y_i = x_i y_i", SUMS),
    ],
)
def test_what_a_reading_may_make_right(line, given):
    assert one(line, given).kind == "not readable"


def test_a_name_that_the_text_has_elsewhere_may_have_a_meaning():
    line = "$$ W^{(2)} h^{(1)} + x = W^{(3)} h^{(1)} + x $$"
    assert kinds(line, LAYERS) == ["ill-formed"]
    assert kinds(f"The weights are tied, $W^{{(3)}} = W^{{(2)}}$.\n\n{line}", LAYERS) == ["not readable"]


def test_words_that_leave_out_sums():
    line = r"$$ \sum_i x_i y_i + \sum_i x_i z_i = x_i y_i + \sum_j x_j z_j $$"
    assert kinds(f"We omit some of the sum signs.\n\n{line}", SUMS) == ["not readable"]


def test_a_derivative_that_identities_imply():
    arrow = r"\implies \frac{\partial L}{\partial w} ="
    assert kinds(rf"$$ L = w^2 x^2 {arrow} 2 w x^2 = 2 y x $$", NUMBERS) == ["equal"] * 3
    assert kinds(rf"$$ L = w^2 x^2 {arrow} w x^2 $$", NUMBERS) == ["equal", "refused"]
    for restricted in (
        rf"$$ w x = 1 {arrow} 2 x $$",  # a premise that does not hold everywhere
        rf"$$ L = w^2 x^2 {arrow} 0 $$",  # imposed
        r"$$ L = w^2 x^2 \implies w x = 1 $$",  # a solution
        rf"$$ L = w^2 x^2, w = 1 {arrow} 2 x $$",
    ):
        assert kinds(restricted, NUMBERS)[-1] == "not readable"


def test_a_clause_that_gives_a_defined_name_another_value():
    assert kinds(r"$$ L = y^2, \quad \text{where } y = w x $$", NUMBERS) == ["equal", "equal"]
    assert kinds(r"$$ L = y^2, \quad \text{where } y = w + x $$", NUMBERS) == ["equal", "refused"]
    for restriction in (r"L = y^2, \quad \text{where } y = 2", r"L = x^2, \quad \text{where } y = x"):
        assert "refused" not in kinds(f"$$ {restriction} $$", NUMBERS)


def test_a_comma_in_brackets_begins_no_equation():
    assert kinds(r"$$ x + x = \foo\left(x, w\right) + \text{bar}(w, x) = 3 x $$", NUMBERS)[-1] == "refused"
    assert kinds(r"$$ x + x = \foo\left(x, w\right), w = 3 x $$", NUMBERS)[-1] == "not readable"


def at_sight(*displays):
    text = "\n\n".join(f"$$ {display} $$" for display in displays)
    return [verdict.kind for verdict in judge(read_document(text, "markdown", ""), "", infer=True)]


def test_at_first_sight_what_is_wrong_for_all_shapes():
    line = r"s = \frac{\lambda}{2} \|W\|_F^2", r"\frac{\partial s}{\partial W} = "
    assert at_sight(line[0], line[1] + r"\lambda W") == ["definition", "equal"]
    assert at_sight(line[0], line[1] + r"2 \lambda W") == ["definition", "refused"]
    assert at_sight(line[0], line[1] + r"\lambda V") == ["definition", "not readable"]  # V may be W


def test_at_first_sight_a_name_with_two_definitions():
    below = at_sight("f(x) = x^2", r"\frac{df}{dx} = 2 x", "f(x) = x^3", r"\frac{df}{dx} = 3 x^2")
    assert below[1] == "equal"
    assert "refused" not in below
