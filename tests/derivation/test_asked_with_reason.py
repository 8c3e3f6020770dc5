"""What is asked about a wrong line needs a reason in the text; without one, the line is wrong."""

import pytest

from backpass.derivation.language.parse import Line, Part
from backpass.derivation.text.knowledge import Knowledge

from .judging import kinds, verdicts

MATRICES = r"given x, w, v \in \mathbb{R}^n, A, S, T, R \in \mathbb{R}^{n \times n}"


@pytest.mark.parametrize(
    ("above", "kind"),
    [
        (r"$$ u_i = \sum_m W_{im} a_m $$ $$ z_i = \sum_m V_{im} a_m $$", "ill-formed"),
        (r"$$ u_i = \sum_m W_{im} a_m $$", "not readable"),
        (r"$$ u_i = \sum_k W_{ik} a_k $$ $$ z_i = \sum_k V_{ik} a_k $$", "not readable"),
        (
            r"$$ u_i = \sum_m W_{im} a_m $$ $$ z_i = \sum_m V_{im} a_m $$ We omit the sum below.",
            "not readable",
        ),
    ],
    ids=[
        "written twice",
        "written once",
        "another letter",
        "said to be left out",
    ],
)
def test_a_sum_that_the_text_writes_is_not_implied(above, kind):
    given = r"given a \in \mathbb{R}^n, W, V \in \mathbb{R}^{p \times n}"
    text = above + r" Twice as much is $$ 2 u_i = 2 W_{im} a_m $$"
    assert kinds(text, given)[-1] == kind
    for said in (r" (sum over $m$).", r" in suffix notation.", r" where $m$ is one class."):
        assert kinds(text + said, given)[-1] == "not readable"


@pytest.mark.parametrize(
    ("formula", "mend"),
    [
        (r"(A x)^\top - w^\top = x^\top A^\top - w", r"w^\top"),
        (r"(v + w) v^\top = v v + w v^\top", r"v^\top"),
        (r"(A x - w)(A x - w)^\top = A x x^\top A^\top - A x w - w x^\top A^\top + w w^\top", r"w^\top"),
    ],
)
def test_a_vector_whose_transpose_is_written_beside_it_is_a_column(formula, mend):
    (verdict,) = verdicts(f"$$ {formula} $$", MATRICES)
    assert verdict.kind == "ill-formed" and f"it holds with {mend}" in verdict.message


def test_columns_beside_each_other_may_be_a_dyad():
    text = r"With the dyad $v v$, $$ (v + w) v^\top = v v + w v^\top $$"
    assert kinds(text, MATRICES) == ["not readable"]


@pytest.mark.parametrize("formula", [r"x^\top A^\top - v = (A x)^\top - v", r"(A x) v = A x v"])
def test_a_vector_that_the_line_never_transposes_may_be_a_row(formula):
    assert kinds(f"$$ {formula} $$", MATRICES) == ["not readable"]


SLIP = r"We begin with $$ x - K (w - H x) = x + K w - K H x $$"


@pytest.mark.parametrize(
    ("between", "kind"),
    [
        ("", "not readable"),
        (r"$$ v = v $$ $$ w = w $$ $$ x = x $$", "refused"),
        ("\n\n## The gain\n\n", "refused"),
    ],
    ids=["at once", "after three displays", "in another section"],
)
def test_a_name_that_is_found_much_later_has_any_value_before(between, kind, monkeypatch):
    """The command may read ahead. The inverse is of a singular matrix, so the definition cannot be tried."""
    text = SLIP + between + r"so that $$ K = A (A - A)^{-1} $$"
    at, initialise = text.index("K = A (A"), Knowledge.__init__

    def read_ahead(known, document):
        initialise(known, document)
        known.contested["K"] = Line("let", Part(text, at, "K"), Part(text, at + 4, r"A (A - A)^{-1}"))

    monkeypatch.setattr(Knowledge, "__init__", read_ahead)
    found = verdicts(text, r"given K, H, A \in \mathbb{R}^{n \times n}, x, v, w \in \mathbb{R}^n")
    assert found[0].kind == kind
    assert kind == "refused" or "may define it" in found[0].message


def test_a_row_may_end_with_the_minus_sign_of_a_name():
    text = "$$\ne = x - x_k^- \\\\\nA e = A x - A x_k^- \\\\\n$$"
    given = r"given x, x_k^- \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}"
    assert kinds(text, given) == ["definition", "equal"]
    assert kinds(text.replace("A x -", "A x +"), given) == ["definition", "refused"]


@pytest.mark.parametrize("index", ["", "_i"])
def test_an_equation_in_the_prose_restricts_a_name_that_is_defined(index):
    space = r"\mathbb{R}^n" if index else r"\mathbb{R}"
    given = rf"given r, q, t \in {space}, Z \in \mathbb{{R}}; let p{index} = Z q{index}"
    line = rf"$$ p{index} r{index} = r{index}^2 t{index} $$"
    said = rf"This is a special case, where $p{index} = r{index} t{index}$. Then the product is"
    (asked,) = verdicts(f"{said}\n\n{line}", given)
    assert asked.kind == "not readable" and "as the text says" in asked.message
    assert kinds(f"{said}\n\n{line.replace('^2', '^3')}", given) == ["refused"]
    assert kinds(f"The product is\n\n{line}", given) == ["refused"]
    macro = r"\newcommand{\prior}{r}" + "\n\n" + said.replace(f"= r{index}", rf"= \prior{index}")
    (asked,) = [one for one in verdicts(f"{macro}\n\n{line}", given) if one.display > 0]
    assert asked.kind == "not readable" and "as the text says" in asked.message


def test_an_equation_above_a_restart_or_a_declaration_defines_no_name_below():
    above = r"$$ y = a x + b $$" + "\n\n"
    row = "\n\n" + r"$$ y + a x = y - a x $$"
    given = r"<!-- derive: {}given x, y, a, b \in \mathbb{{R}} -->"
    (_, asked) = verdicts(given.format("") + "\n\n" + above + row)
    assert asked.kind == "refused" or "may define it" in asked.message
    found = verdicts(given.format("") + "\n\n" + above + given.format("restart; ") + row)
    assert found[-1].kind == "refused"
    found = verdicts(above + given.format("") + row)
    assert found[-1].kind == "refused"
