"""An author who declares more gets more lines judged: a true declaration lowers the number of judged lines nowhere."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from backpass.derivation.document import read_document
from backpass.derivation.judge import suggest
from backpass.derivation.text.sight.suggestion import suggestion_of
from tests.derivation.test_first_sight import displays, kinds, sight

JUDGED = {"equal", "definition", "refused", "ill-formed", "follows"}
MATRICES = r"given A, B, C \in \mathbb{R}^{n \times n}"

# A text, and declarations that are true of it.
TEXTS = {
    "a filter": (
        [
            r"x_k = A x_{k-1} + B u_{k-1}",
            r"y_k = C x_k + v_k",
            r"y_k - C x_k = v_k",
            r"e_k = y_k - C (A x_{k-1} + B u_{k-1}) = y_k - C x_k = v_k",
        ],
        [
            MATRICES,
            r"given x_{k-1}, u_{k-1} \in \mathbb{R}^n",
            r"given v_k \in \mathbb{R}^n",
            r"given x_k \in \mathbb{R}^n",
        ],
    ),
    "an unknown function": (
        [r"F(A, x) = A x + b", r"F(A, x) - b = A x", r"y = h(x, b) + A (x + b) = h(x, b) + A x + A b"],
        [MATRICES, r"given x, b \in \mathbb{R}^n", r"given y \in \mathbb{R}^n"],
    ),
    "a loss": (
        [r"L = \frac12 \sum_i (w x_i - t_i)^2", r"\frac{\partial L}{\partial w} = \sum_i (w x_i - t_i) x_i"],
        [r"given x \in \mathbb{R}^n", r"given w \in \mathbb{R}", r"constant t \in \mathbb{R}^n", "loss L"],
    ),
}


def number(text):
    return sum(kind in JUDGED for kind in kinds(text))


@pytest.mark.parametrize("name", TEXTS)
def test_a_true_declaration_never_lowers_the_number_of_judged_lines(name):
    rows, declarations = TEXTS[name]
    found = [
        number("".join(f"<!-- derive: {one} -->\n\n" for one in declarations[:count]) + displays(*rows))
        for count in range(len(declarations) + 1)
    ]
    assert all(after >= before for before, after in pairwise(found)), found


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_suggested_never_lowers_the_number_of_judged_lines(name):
    text = displays(*TEXTS[name][0])
    _, suggestion = suggest(read_document(text, "markdown"))
    comment = "\n".join(suggestion.lines("markdown"))
    assert number(f"{comment}\n\n{text}") >= number(text)


@pytest.mark.parametrize(
    ("costly", "kept"),
    [
        (["partial direct"], ["given s", "given w", "loss L"]),
        (["given w"], ["given s"]),
        (["given s", "given w"], []),
    ],
)
def test_no_directive_is_suggested_with_which_a_right_line_is_not_right(costly, kept):
    text = displays("w + w = 2 w", "s + s = 2 s", "s - s = 0")
    found = sight(text)
    assert [one.kind for one in found] == 3 * ["equal"]
    directives = [rf"{one} \in \mathbb{{R}}" for one in ("given s", "given w")]
    wanted = dict.fromkeys([*directives, "loss L", "partial direct"])

    def again(comment):
        is_lost = any(one in comment for one in costly)
        return [replace(found[0], kind="not readable"), *found[1:]] if is_lost else found

    made = SimpleNamespace(suggested=wanted, missing={})
    suggestion = suggestion_of(made, read_document(text, "markdown"), found, again)
    assert [one.partition(" \\in")[0] for one in suggestion.directives] == kept


RULES = r"h(x, b) + "  # of which nothing is known


@pytest.mark.parametrize(
    ("declared", "formula", "expected"),
    [
        (MATRICES, "A B = A B + A C - A C", "equal"),
        (MATRICES, "A B = B A", "not readable"),
        (r"given A, B \in \mathbb{R}", "A B = B A", "equal"),
        (r"given a, b \in \mathbb{R}^{n \times n}", "a b = b a", "not readable"),
        (r"given a, b \in \mathbb{R}^{n \times n}", r"a^\top b = b^\top a", "not readable"),
        (r"given a, b \in \mathbb{R}^n", r"a^\top b = b^\top a", "equal"),
        (r"given a, b \in \mathbb{R}^n", r"a b^\top = b a^\top", "not readable"),
        (r"given a, b \in \mathbb{R}^{1 \times n}", r"a^\top b = b^\top a", "not readable"),
        (r"given a \in \mathbb{R}^n, b \in \mathbb{R}", r"b a = a b", "equal"),
        (r"given a, c \in \mathbb{R}^n", r"a_i c_i = c_i a_i", "equal"),
        (r"given a \in \mathbb{R}", r"\sum_i a_i c = c \sum_j a_j", "not readable"),
        (
            r"given A \in \mathbb{R}^{n \times n}; layout numerator",
            r"\frac{\partial x^\top A x}{\partial x} = (A + A^\top) x",
            "not readable",
        ),
        (r"let A = 2", "A B = A B + 0", "not readable"),
    ],
)
def test_rules_for_any_names_respect_what_is_declared(declared, formula, expected):
    left, right = formula.split(" = ")
    text = f"<!-- derive: {declared} -->\n\n" + displays(f"{RULES}{left} = {RULES}{right}")
    assert kinds(text)[-1] == expected


def test_a_declared_name_has_the_value_that_an_equation_gives_it_or_none():
    given = "<!-- derive: given x, y \\in \\mathbb{R} -->\n\n"
    above = "y = 2 x"
    found = [
        kinds(given + displays(above, row))[-1] for row in ("y + x = 3 x", "y + x = 4 x", "x^2 + x = 2 x^2")
    ]
    assert found[0] != "refused"
    assert found[1:] == ["refused", "refused"]
    (_, asked) = sight(given + displays(above, "y + x = 3 x"))
    assert asked.kind == "equal" or "may define it" in asked.message


def test_sides_behind_a_declared_name_are_compared_with_each_other():
    given = f"<!-- derive: {MATRICES}; given x, y \\in \\mathbb{{R}}^n -->\n\n"
    right, wrong = (displays(f"y = (A + B) x = A x {sign} B x") for sign in "+-")
    assert kinds(given + right)[1] == "equal"
    assert kinds(given + wrong)[1] == "refused"


def test_rows_below_an_unread_equation_that_is_0_are_not_refused():
    given = f"<!-- derive: {MATRICES} -->\n\n"
    row = r"{first} + 2 A - 2 B &= 0 \\ A - B &= 0 \\ 2 A &= 2 B"
    text = r"\begin{align} " + row + r" \end{align}"
    assert "refused" not in kinds(given + displays(text.replace("{first}", r"\mathop{grad} q")))
    assert kinds(given + displays(text.replace("{first}", "C - C")))[-1] == "refused"


def test_no_later_side_of_a_chain_defines_the_left_side():
    given = f"<!-- derive: {MATRICES} -->\n\n"
    chain = r"\begin{align} P &= \limsup q \\ &= A B + A C \\ &= A (B SIGN C) \end{align}"
    found = [kinds(given + displays(chain.replace("SIGN", sign))) for sign in "+-"]
    assert found[0] == ["not readable", "not readable", "equal"]
    assert found[1] == ["not readable", "not readable", "not readable"]


# Declarations, a right line, and a wrong twin.
NOTATIONS = {
    "a matrix T": (r"given T, A \in \mathbb{R}^{n \times n}", r"(A T)^T = T^T A^T", r"(A T)^T = A^T T^T"),
    "functions in plain letters": (r"given x, y \in \mathbb{R}", "exp(x) exp(y) = exp(x + y)", "exp(x) exp(y) = exp(x y)"),
    "rows of a matrix": (
        r"given X \in \mathbb{R}^{m \times n}; broadcast",
        r"\sum_j softmax(X)_{ij} = 1",
        r"\sum_j softmax(X)_{ij} = 2",
    ),
    "two indices side by side": (
        r"given x \in \mathbb{R}^{n \times 2}, w_1, w_2 \in \mathbb{R}; let z_i = w_1 x_{i1} + w_2 x_{i2}",
        r"\frac{\partial z_i}{\partial w_2} = x_{i2}",
        r"\frac{\partial z_i}{\partial w_2} = x_{i1}",
    ),
    "labels": (
        r"given x_{k-1}, x_k \in \mathbb{R}^n; let e_{k-1} = x_k - x_{k-1}",
        r"e_{k-1} + x_{k-1} = x_k",
        r"e_{k-1} + x_k = x_{k-1}",
    ),
    "a loss of names with numbers": (
        r"given w_1, w_2 \in \mathbb{R}; loss J; let J = w_1^2 w_2",
        r"\frac{\partial J}{\partial w_1} = 2 w_1 w_2",
        r"\frac{\partial J}{\partial w_1} = w_1 w_2",
    ),
    "an expectation in letters": (
        r"random x, y \in \mathbb{R}",
        "E(x + 2 y) = E(x) + 2 E(y)",
        "E(x + 2 y) = E(x) + E(y)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTATIONS)
def test_what_is_declared_is_read_and_a_wrong_twin_is_refused(name):
    declared, right, wrong = NOTATIONS[name]
    comment = f"<!-- derive: {declared} -->\n\n"
    assert kinds(comment + displays(right)) == ["equal"]
    assert kinds(comment + displays(wrong)) == ["refused"]


def test_an_arrow_may_be_typed():
    given = "<!-- derive: given x, y \\in \\mathbb{R} -->\n\n"
    row = r"\begin{align} (x + y)^2 &= x^2 + 2 x y + y^2 \\ => 2 (x + y)^2 &= 2 x^2 + 4 x y SIGN 2 y^2 \end{align}"
    assert kinds(given + displays(row.replace("SIGN", "+"))) == ["equal", "equal"]
    assert kinds(given + displays(row.replace("SIGN", "-"))) == ["equal", "not readable"]
    assert kinds(given + displays(r"x - x = 0 <=> y = y + 0")) == ["equal", "equal"]


def test_a_reason_behind_because_is_judged_apart_and_the_chain_goes_on():
    given = "<!-- derive: given x, y \\in \\mathbb{R} -->\n\n"
    row = (
        r"\begin{align} \log(e^{x} e^{y}) &= \log e^{x + y} \quad \because e^{x} e^{y} = e^{x WITH y} \\"
        r"\because \log e^{x} &= x \\ &= x SIGN y \end{align}"
    )
    right = kinds(given + displays(row.replace("WITH", "+").replace("SIGN", "+")))
    assert right == 4 * ["equal"]
    for change in (("WITH", "-"), ("SIGN", "-")):
        text = row.replace(*change).replace("WITH", "+").replace("SIGN", "+")
        wrong = kinds(given + displays(text))
        assert sorted(wrong) == ["equal", "equal", "equal", "not readable"]


def test_words_at_the_beginning_of_a_row_are_read():
    given = "<!-- derive: given x \\in \\mathbb{R} -->\n\n"
    assert kinds(given + displays(r"\text{Let } u = 2 x", r"\text{Then } u + x = 3 x")) == [
        "definition",
        "equal",
    ]
    assert kinds(given + displays(r"\text{Let } u = 2 x", r"\text{Then } u + x = 4 x")) == [
        "definition",
        "not readable",
    ]
    based = r"\text{Based on (3)} => x + x = SIGN x"
    assert kinds(given + displays(based.replace("SIGN", "2"))) == ["equal"]
    assert kinds(given + displays(based.replace("SIGN", "3"))) == ["not readable"]
