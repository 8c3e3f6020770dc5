"""Every single mistake in a derivation is made, and noticed; what goes unseen changes nothing."""

from collections import Counter

import pytest

from backpass.derivation import derive

# The mistakes that change no value: a factor of 0, and an index that Kronecker's delta makes equal to another.
UNSEEN = {
    "softmax": ["softmax (7), right side: factor S dropped"],
    "log-softmax": [],
    "linear": [],
    "attention": [],
    "matmul": [
        r"matmul (2), right side: index r → i after \bar{Y}_{",
        r"matmul (3), right side: index r → i after \bar{Y}_{",
    ],
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_survives_changes_no_value(name, sources):
    operation = name if name in ("softmax", "linear", "matmul") else None
    survivors = derive(sources[name], name=name, operation=operation).survivors()
    assert [str(survivor.flip) for survivor in survivors] == UNSEEN[name]
    assert all(survivor.equivalent for survivor in survivors)


@pytest.mark.parametrize("name", [*UNSEEN, "layer-norm"])
def test_no_sign_and_no_transpose_is_left_out(name, sources):
    derivation = derive(sources[name], name=name)
    shown = " ".join(line.latex for line in derivation.lines if line.numbered)
    made = [flip.description for flip in derivation.flips()]
    assert sum("→ + before" in mistake for mistake in made) == shown.count("-")
    assert sum("→ - before" in mistake for mistake in made) == shown.count("+")
    assert sum("transpose of" in mistake for mistake in made) == shown.count(r"^\top")


FACT = r"""
    given X \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n
    \sum_{j \ne i} 2 X_{ij} - x_i = \sum_{j \ne i} X_{ij} \cdot 2 - x_i
    X^\top (X \odot X) = X^\top (X \odot X)
    x_i x_j = x_j x_i \quad (i < j)
"""


def test_every_sign_index_factor_transpose_and_condition_is_flipped():
    flips = list(derive(FACT, name="fact").flips())
    assert [flip.description for flip in flips if (flip.number, flip.side) == (1, "left")] == [
        "- → + before x_i",
        "factor x_i → 1",
        r"j \ne i → j",
        "factor 2 dropped",
        "factor X_{ij} dropped",
        "2 → 3",
        "index i → j after X_{",
        "index j → i after X_{i",
    ]
    assert "transpose of X dropped" in [flip.description for flip in flips if flip.number == 2]
    assert [flip.description for flip in flips if flip.number == 3][-1] == r"\quad (i < j) dropped"
    assert Counter(flip.number for flip in flips) == {1: 16, 2: 10, 3: 9}


def test_a_flip_is_the_author_s_text_with_one_place_changed():
    derivation = derive("given x \\in \\mathbb{R}\nx - 1 = -1 + x", name="one")
    texts = {flip.description: flip.text for flip in derivation.flips() if flip.side == "left"}
    assert texts["- → + before 1"] == "given x \\in \\mathbb{R}\nx + 1 = -1 + x"
    assert texts["1 → 2"] == "given x \\in \\mathbb{R}\nx - 2 = -1 + x"


def test_functions_and_decimals_are_flipped():
    fact = r"given t \in \mathbb{R}" + "\n" + r"0.25 \sin^2 t = \frac14 - 0.25 \cos^2 t"
    made = [flip.description for flip in derive(fact, name="turn").flips()]
    assert [mistake for mistake in made if "→" in mistake and "factor" not in mistake] == [
        "0.25 → 1.25",
        "2 → 3",
        r"\sin → \cos",
        "- → + before 0.25 \\cos^2 t",
        "1 → 2",
        "4 → 5",
        "0.25 → 1.25",
        "2 → 3",
        r"\cos → \sin",
    ]


def test_a_definition_that_nothing_uses_shows_up_as_not_noticed():
    text = "given x, \\bar{y} \\in \\mathbb{R}\nlet u = 2 x\nlet y = 3 x\n\\bar{x} = 3 \\bar{y}"
    unnoticed = [str(survivor) for survivor in derive(text, name="loose").survivors()]
    assert unnoticed == [
        "loose (1), right side: factor 2 dropped — NOT NOTICED",
        "loose (1), right side: factor x dropped — NOT NOTICED",
        "loose (1), right side: 2 → 3 — NOT NOTICED",
    ]


def test_flips_reach_into_the_derivation_that_goes_before():
    first = derive("given x, \\bar{y} \\in \\mathbb{R}\nlet y = 2 x", name="first")
    second = derive("\\bar{x} = 2 \\bar{y}", name="second", after=first)
    assert {flip.piece.name for flip in second.flips()} == {"first", "second"}
    assert second.survivors() == []
    assert {survivor.equivalent for survivor in first.survivors()} == {False}


CASES = r"""
    given X \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n
    let h(t) = \begin{cases} -1 & t < -1 \\ t & -1 \le t \le 1 \\ 1 & \text{otherwise} \end{cases}
    h(x_i) = \max(-1, x_i) - \max(1, x_i) + 1
    X^{\odot 2} = X \odot X
    \sum_{j=1, j \ne i}^n x_j \delta_{ik} = \begin{cases} \sum_j x_j - x_k & i = k \\ 0 & i \ne k \end{cases}
"""


def test_cases_powers_of_elements_and_conditions_beside_a_range_are_flipped():
    derivation = derive(CASES, name="cases")
    assert [str(survivor) for survivor in derivation.survivors() if not survivor.equivalent] == []
    made = Counter(flip.description for flip in derivation.flips())
    for mistake, times in {
        "< → >": 1,
        r"\le → \ge": 2,
        r"= → \ne": 1,
        r"\ne → =": 1,
        "2 → 3": 1,
        r"j=1, j \ne i → j=1": 1,
        "factor t → 1": 1,
    }.items():
        assert made[mistake] == times, mistake


def test_a_flip_far_from_the_random_points_is_noticed():
    derivation = derive(
        r"""
        given x, \bar{y} \in \mathbb{R}^n
        let y_i = \min(100, x_i)
        \bar{x}_i = \bar{y}_i \frac{\partial y_i}{\partial x_i}
            = \bar{y}_i [x_i < 100]
        """,
        name="far",
    )
    assert derivation.survivors() == []
