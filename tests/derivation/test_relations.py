"""A relation other than = ends an equality: what comes before it is not compared with what comes after it."""

import pytest

from backpass.derivation.text.relations import declares

from .judging import kinds, one, verdicts

GIVEN = r"given x, y \in \mathbb{R}^n, a \in \mathbb{R}; let q = \sum_i x_i^2"
OTHER = "not readable"


def rows(*lines):
    return r"$$ \begin{aligned}" + r" \\ ".join(lines) + r"\end{aligned} $$"


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"q = \sum_i x_i^2 < q + 1 = q", ["equal", OTHER, "refused"]),
        (r"q = \sum_i x_i^2 < q + 1 = 1 + q", ["equal", OTHER, "equal"]),
        (r"0 \le q = \sum_i x_i^2", [OTHER, "equal"]),
        (r"0 \le q = \sum_i x_i", [OTHER, "refused"]),
        (r"q < 3 q = q + 2 \sum_i x_i^2 = 3 q", [OTHER, "equal", "equal"]),
        (r"q \propto 2 q = 4 q", [OTHER, "refused"]),
        (r"q + q = 2 q \approx 3 q = 2 q", ["equal", OTHER, "refused"]),
        (r"q + q = 2 q \approx 3 q = q + 2 q", ["equal", OTHER, "equal"]),
        (r"q = x^\top x \neq 2 q = 2 x^\top x", ["equal", OTHER, "equal"]),
        (r"q = x^\top x \not= 2 q = 3 q", ["equal", OTHER, "refused"]),
        (r"q = x^\top x \to 2 q", ["equal", OTHER]),
        (r"q = x^\top x \in [0, 1]", ["equal", OTHER]),
        (r"q = x^\top x \in \mathbb{R}", ["equal"]),
        (r"q + 0 = x^\top x > 0", ["equal", OTHER]),
        (r"a \gets a - 2 a = - a", ["nothing claimed", "equal"]),
        (r"a \gets a - 2 a = a", ["nothing claimed", "refused"]),
        (r"a \leftarrow 2 a", ["nothing claimed"]),
        (r"a < a + 1 \le a + 2", [OTHER]),
        (r"M = a^2 \ge 0", ["definition", OTHER]),
    ],
)
def test_each_equality_of_a_chain_is_judged_by_itself(formula, expected):
    assert kinds(f"$$ {formula} $$", GIVEN) == expected


@pytest.mark.parametrize(
    "lines, expected",
    [
        ((r"q &= \sum_i x_i^2", r"&\le 2 q", r"&= 2 \sum_i x_i^2"), ["equal", OTHER, "equal"]),
        ((r"q &= \sum_i x_i^2", r"&\le 2 q", r"&= q"), ["equal", OTHER, "refused"]),
        ((r"q &\approx 2 q", r"&= q"), [OTHER, "refused"]),
        ((r"q &\approx 2 q", r"&= q + \sum_i x_i^2"), [OTHER, "equal"]),
        ((r"q &= \sum_i x_i^2", r"q &\ge 0", r"2 q &= q + q"), ["equal", OTHER, "equal"]),
        ((r"q &\ge", r"& 0 = a - a"), [OTHER, "equal"]),
        ((r"q &\ge", r"& 0 = a"), [OTHER, "refused"]),
    ],
)
def test_a_row_may_begin_or_end_with_a_relation(lines, expected):
    assert kinds(rows(*lines), GIVEN) == expected


def test_a_relation_names_its_sign_and_stands_on_its_own_line():
    found = verdicts("$$\n\\begin{aligned} q &= q \\\\\n &< 2 q \\\\\n &= 3 q \\end{aligned}\n$$", GIVEN)
    assert [verdict.line for verdict in found] == [2, 3, 4]
    assert found[1].message == "only = is judged, so the two sides of < are not compared"
    assert found[2].compared == "2 q"


@pytest.mark.parametrize("notation", ["", r"; read <#1, #2> as \langle #1, #2 \rangle"])
def test_angles_are_brackets(notation):
    expected = ["equal" if notation else OTHER, "equal"]
    assert kinds(r"$$ x^\top y = <x, y> = \sum_i x_i y_i $$", GIVEN + notation) == expected
    expected[-1] = "refused" if notation else OTHER
    assert kinds(r"$$ x^\top y = <x, y> = \sum_i x_i $$", GIVEN + notation) == expected


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"q = x^\top x \overset{\text{Jensen}}{\le} 2 q = 3 q", ["equal", OTHER, "refused"]),
        (r"q = x^\top x \overset{(a)}{\le} 2 q = q + q", ["equal", OTHER, "equal"]),
        (r"q = x^\top x \mathrel{\le} 2 q = q + q", ["equal", OTHER, "equal"]),
        (r"q = x^\top x \xrightarrow{n} 2 q = q + q", ["equal", OTHER, "equal"]),
        (r"q = x^\top x \overset{d}{=} 2 q = q + q", ["equal", OTHER, "equal"]),
        (r"q = x^\top x \stackrel{?}{=} 2 q = 3 q", ["equal", OTHER, "refused"]),
        (r"q = x^\top x \overset{(a)}{=} 2 q", ["equal", "refused"]),
        (r"\sum_i x_i = 1 \iff q = 2 q", [OTHER, OTHER]),
    ],
)
def test_words_over_a_sign(formula, expected):
    assert kinds(f"$$ {formula} $$", GIVEN) == expected


def test_a_display_that_begins_with_a_relation_continues_the_one_above():
    assert kinds("$$ q = x^\\top x $$\n\n$$ \\le 2 q = q + q $$", GIVEN) == ["equal", OTHER, "equal"]
    assert kinds("$$ q = x^\\top x $$\n\n$$ \\le 2 q = 3 q $$", GIVEN) == ["equal", OTHER, "refused"]


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"q = x^\top x =: r", ["equal", "definition"]),
        (r"x^\top x =: r", ["definition"]),
        (r"q = x^\top x \eqqcolon r", ["equal", "definition"]),
        (r"2 q = q + q =: q", ["equal", "refused"]),
    ],
)
def test_a_name_may_be_defined_at_the_end(formula, expected):
    assert kinds(f"$$ {formula} $$", GIVEN) == expected


def test_comparisons_within_brackets_and_sums_are_not_relations():
    assert one(r"\sum_{i < j} x_i [x_i > 0] = \sum_{i < j} x_i [0 < x_i]", GIVEN).kind == "equal"


def test_a_membership_of_a_known_name_raises_nothing():
    assert one(r"q \in \mathbb{R}", GIVEN).kind == "nothing claimed"
    assert one(r"x \in \mathbb{R}^n", GIVEN).kind == "nothing claimed"
    assert one(r"x \in \mathbb{R}^m", GIVEN).kind == OTHER


def test_all_equalities_of_a_premise_may_be_restricted():
    found = kinds(rows(r"q &= 2 q < a = 2 a", r"\implies a &= q"), GIVEN)
    assert "refused" not in found


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"x \sim \mathcal{N}(0, 1)", "nothing claimed"),
        (r"x_i \sim p(x)", "nothing claimed"),
        (r"f(n) \sim n^2", "not readable"),
        (r"x \approx y", "not readable"),
        (r"x \in A = B \in C", "not readable"),
    ],
)
def test_what_says_of_what_kind_a_name_is_claims_nothing(formula, expected):
    assert expected in kinds(f"$$ {formula} $$")


def test_a_question_claims_nothing():
    given = r"given x \in \mathbb{R}"
    assert kinds(r"$$ \frac{\partial x^2}{\partial x} = ? $$", given) == ["nothing claimed"]
    assert kinds(r"$$ x + x = 3 x = ? $$", given) == ["refused", "nothing claimed"]


def test_a_membership_in_the_row_below():
    given = r"given x \in \mathbb{R}^n"
    assert kinds("$$ x + x = 2 x \\\\\n\\in \\R^n $$", given) == ["equal"]
    assert kinds("$$ x + x = 3 x \\\\\n\\in \\R^n $$", given) == ["refused"]


def test_a_long_formula_without_a_declaration_is_looked_at_once():
    long = r"\mathbf{abcdefghijkl} " * 30
    assert (
        not declares(long) and not declares(long + r"\in [0, 1]") and declares(r"x \sim \text{Uniform}(0, 1)")
    )
