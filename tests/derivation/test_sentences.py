"""Conditions within sentences, and claims that look like definitions."""

import pytest

from tests.derivation import judging
from tests.derivation.test_first_sight import displays, kinds, sight

PLAIN = r"given a matrix $$G \in R^{p\times q}$$ and $$h \in R^{p}$$"
SHAPES = r"given G \in \mathbb{R}^{p \times q}, h \in \mathbb{R}^p, v \in \mathbb{R}^q"
SQUARE = r"\|h - G v\|^2 = v^\top G^\top G v - COUNT v^\top G^\top h + h^\top h"
SENTENCES = {
    "dollars": f"We recall solving $$G v = h$$ {PLAIN}. If $$G$$ is invertible, we can compute $$v = G^{{-1}} h$$.",
    "one dollar": r"We solve $G v = h$, $G \in \mathbb{R}^{p \times q}$. If $G$ is invertible, then $v = G^{-1} h$.",
    "a section": f"Recall the problem of solving $$G v = h$$ {PLAIN}. When $$q = p$$ it can be $$v = G^{{-1}} h$$.\n\n## Next",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_remark_under_a_condition_defines_nothing(name):
    text = f"{SENTENCES[name]}\n\n"
    for wrong in (SQUARE.replace("COUNT", "4"), r"\|h - G v\|^2 = (h - G v)^\top (h + G v)"):
        assert kinds(text + displays(wrong))[-1] == "not readable"
    if name != "one dollar":
        assert kinds(text + displays(SQUARE.replace("COUNT", "2")))[-1] == "equal"


def test_a_solution_under_a_condition_is_a_claim():
    head = displays(r"k = \|h - G v\|^2") + "\n\nIf there are more rows than columns, the solution is\n\n"
    right, wrong = r"v = (G^\top G)^{-1} G^\top h", r"v = G^\top (G G^\top)^{-1} h"
    for row in (right, wrong):
        assert kinds(head + displays(row))[-1] == "not readable"
    new = r"s = G^\top h"  # a name that no formula above has
    assert kinds(head + displays(new))[-1] == "definition"


@pytest.mark.parametrize(
    ("sentence", "row"),
    [
        ("We expect a minimum at $$t = r$$.", "3 (t - r)^2 = t - r"),
        ("We expect a minimum at $$t = r$$.", "e^{-(t - r)^2} = 1"),
        ("When $$t = r$$ this is the variance.", "2 (t - r) = t - r"),
        ("There it takes the value for $$t = r$$ alone.", "2 (t - r) = t - r"),
        ("This can be computed unless $$t = r$$.", "2 (t - r) = t - r"),
    ],
)
def test_a_condition_in_a_sentence_claims_nothing(sentence, row):
    found = kinds(f"{sentence}\n\n{displays(row, 't + r = r + t')}")
    assert found == ["nothing claimed", "not readable", "equal"]


def test_an_inequality_that_is_a_condition_is_not_a_claim():
    text = "It is defined for $$i \\geq j$$ below.\n\n"
    assert kinds(text + displays("b_i = 2 c_i")) == ["nothing claimed", "definition"]
    assert kinds("Let us see that $$t^2 \\geq 0$$ holds.") == ["equal"]


def test_a_display_of_its_own_behind_for_is_a_definition():
    text = "For\n\n$$ y = 2 t $$\n\nwe have\n\n$$ y + t = COUNT t $$\n"
    assert kinds(text.replace("COUNT", "3")) == ["definition", "equal"]
    assert kinds(text.replace("COUNT", "4"))[1] != "equal"


def test_an_equation_to_be_solved_is_not_refused():
    comment = f"<!-- derive: {SHAPES} -->\n\n"
    for words in (
        "We recall the problem of solving $$G v = h$$ for $v$.",
        "It is found by solving\n\n$$ G v = h $$",
    ):
        found = kinds(f"{comment}{words}\n\n" + displays(SQUARE.replace("COUNT", "2")))
        assert found == ["nothing claimed", "equal"]
    assert kinds(f"{comment}We see that $$G v = h$$ holds.\n") == ["not readable"]
    assert kinds(f"{comment}$$G v = h$$\n") == ["refused"]


def test_a_matrix_cannot_stand_below_a_fraction_bar():
    row = r"\frac{1}{K} = K^{-1}"
    for stated in (
        r"Let $K \in \mathbb{R}^{n \times n}$.",
        r"$$K \in \mathbb{R}^{n \times n}$$",
        "$K$ is a matrix.",
    ):
        assert kinds(f"{stated}\n\n{displays(row)}")[-1] == "not readable"
    assert kinds(r"<!-- derive: given K \in \mathbb{R}^{n \times n} -->" + f"\n\n{displays(row)}") == [
        "not readable"
    ]
    assert kinds(displays(r"\frac{1}{k} = k^{-1}")) == ["equal"]
    norm = r"h(K) + \frac{1}{x^\top K x} + K = h(K) + K + \frac{1}{x^\top K x}"
    assert kinds(r"Let $K \in \mathbb{R}^{n \times n}$." + f"\n\n{displays(norm)}") == ["equal"]


def test_the_first_of_two_equations_in_a_row_may_have_two_letters():
    given = r"given t \in \mathbb{R}, b \in \mathbb{R}^n; let x = t^3"
    assert judging.kinds(r"$$ x = t, \quad y = 2 t $$", given) == ["refused", "definition"]
    assert judging.kinds(r"$$ z = t, \quad z + t = 2 t $$", given) == ["definition", "equal"]
    assert judging.kinds(r"$$ i = j, \quad \delta_{ij} = 1 $$", given) == ["equal"]


def test_a_notation_that_does_not_fit_is_not_readable():
    read = r"<!-- derive: read b_#1^{(k-1)} as \mathbf{b}^{(k-1)}_#1 -->" + "\n\n"
    row = r"z_i = \sum_j W_{ij} b_{10}^{(k-1)}"
    assert kinds(read + displays(row, "t + t = 2 t")) == ["not readable", "equal"]


def test_a_message_has_no_name_that_the_text_does_not_have():
    given = r"given x \in \mathbb{R}^n, y \in \mathbb{R}^m"
    (one,) = judging.verdicts(r"$$ x = \begin{bmatrix} y_1 \\ \vdots \\ y_n \end{bmatrix} $$", given)
    assert one.kind == "ill-formed" and "#" not in one.message


@pytest.mark.parametrize("second", [r"a r + 2 b r^2", r"a r + b r^2 + 7 c"])
def test_another_value_of_a_function_in_a_new_section_is_a_claim(second):
    above, below = displays("G(r) = a r + b r^2"), f"G(r) - a r = {second.removeprefix('a r + ')}"
    claim = displays(f"G(r) = {second}", below)
    assert kinds(f"# One\n\n{above}\n\n# Two\n\n{claim}") == ["definition", "not readable", "not readable"]
    for words in ("We now define\n\n", "<!-- derive: restart -->\n\n"):
        assert kinds(f"# One\n\n{above}\n\n# Two\n\n{words}{claim}") == ["definition", "definition", "equal"]
    (_, asked, _) = sight(f"# One\n\n{above}\n\n# Two\n\n{claim}")
    assert "differently" in asked.message


def test_the_same_value_or_another_formula_in_a_new_section_is_a_definition():
    above = displays("G(r) = a r + b r^2")
    for again in ("G(r) = a r + b r^2", "G(r) = p r + q r^2 + b"):
        assert kinds(f"# One\n\n{above}\n\n# Two\n\n{displays(again)}") == ["definition", "definition"]
