"""A text's own notation is read as what the text declares, and nothing else is."""

import pytest

from backpass.derivation.document import read_document
from backpass.derivation.judge import judge
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.notation import notation
from backpass.derivation.text.passages import Text


def text(characters):
    return Text(characters, tuple(range(len(characters))))


def replaced(how, written):
    return notation(text(how), how).applied(text(written), written)


@pytest.mark.parametrize(
    ("how", "written", "found"),
    [
        (r"D_{#1} as \operatorname{diag}(#1)", r"D_x + D_\alpha", r"\operatorname{diag}(x) + \operatorname{diag}(\alpha)"),
        (r"D_{#1} as \operatorname{diag}(#1)", r"D_{\exp(x)} A", r"\operatorname{diag}(\exp(x)) A"),
        (r"D_{#1} as \operatorname{diag}(#1)", r"D_{D_x u}", r"\operatorname{diag}(\operatorname{diag}(x) u)"),
        (r"D_{#1} as \operatorname{diag}(#1)", r"\hat{D}_x + E_x + D + D^2", r"\hat{D}_x + E_x + D + D^2"),
        (r"<#1, #2> as \langle #1, #2 \rangle", r"<A^T B, C> + <x,y>", r"\langle A^T B, C \rangle + \langle x, y \rangle"),
        (r"<#1, #2> as \langle #1, #2 \rangle", r"<f(x, y), g>", r"\langle f(x, y), g \rangle"),
        (r"<#1, #2> as \langle #1, #2 \rangle", r"a < b", r"a < b"),
        (r"\stackrel{#1}{#2} as #2_{#1}", r"\stackrel{m}{Q} \stackrel m K", r"Q_{m} K_{m}"),
        (r"\stackrel{#1}{#2} as #2_{#1}", r"\dot{\stackrel{m}{Q}}", r"\dot{Q_{m}}"),
        (r"\stackrel{#1}{#2} as #2_{#1}", r"( {\stackrel{m}{Q}} + x)^{\stackrel{m}{Q}}", r"( Q_{m} + x)^{Q_{m}}"),
        (r"x^{#1} as x_{#1}", r"\exp(x^1) + x^i", r"\exp(x_{1}) + x_{i}"),
        (r"\alpha(B) as a", r"\alpha (B) x \alpha(C)", r"a x \alpha(C)"),
        (r"d f(#1) as \partial f(#1)", r"d f(x + (y))z", r"\left( \partial f(x + (y)) \right)z"),
        (r"N as a + b", "2 N N^2", r"2 \left( a + b \right) \left( a + b \right)^2"),
        (r"V(#1) as 2 (#1)", "V(c)^2", r"\left( 2 (c) \right)^2"),
        (r"* as \cdot", "a * b", r"a \cdot b"),
        (r"^\star as ^\top", r"A^\star", r"A^\top"),
        (r"t as a", r"\operatorname{tr}(t) + \text{softmax}(t)", r"\operatorname{tr}(a) + \text{softmax}(a)"),
    ],
)  # fmt: skip
def test_what_is_declared_is_replaced(how, written, found):
    assert replaced(how, written).characters == found


def test_each_character_keeps_a_place_in_the_text():
    written = r"a + D_{x y} b"
    found = replaced(r"D_{#1} as \operatorname{diag}(#1)", written)
    for character in "+xyb":
        at = found.characters.index(character)
        assert written[found.origins[at]] == character
    assert found.origins[found.characters.index("\\")] == written.index("D")
    assert found.origins[found.characters.index(")")] == written.index("}")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (r"D_{#1}", "expected read … as …"),
        (r"D_{#1} as x as y", "expected read … as …"),
        (r"D_{#2} as x", "expected each of #1, #2, … exactly once"),
        (r"D_{#1}^{#1} as #1", "expected each of #1, #2, … exactly once"),
        (r"D_{#1} as E_{#2}", "uses an argument that does not stand before as"),
        (r"D#1 as E_{#1}", "where does #1 begin and end"),
        (r"#1! as E_{#1}", "where does #1 begin and end"),
    ],
)
def test_a_notation_that_is_not_certain_is_rejected(how, why):
    with pytest.raises(Unreadable, match=why):
        notation(text(how), how)


def test_an_argument_is_not_torn_apart_by_its_place():
    (verdict,) = judge(
        read_document("$$ N_{x + y} = 2 x + 2 y $$", "markdown"),
        r"given x, y \in \mathbb{R}; read N_{#1} as 2 #1",
    )
    assert verdict.kind == "not readable"
    assert "so it must be one letter, digit, or command; got x + y" in verdict.message


TEXT = r"""
<!-- derive: given A, B \in \mathbb{R}^{n \times n}, x, y \in \mathbb{R}^n; read D_{#1} as \operatorname{diag}(#1); read <#1, #2> as \langle #1, #2 \rangle -->

$$ D_x y = x \odot y $$

$$ <A x, y> = <x, A^T y> $$

$$ <A x, y> = <x, A y> $$

$$ D_{A x} B = D_{B x} A $$
"""


def test_displays_are_judged_in_the_notation_of_their_text():
    found = judge(read_document(TEXT, "markdown"))
    assert [verdict.kind for verdict in found] == ["equal", "equal", "refused", "refused"]
    without = judge(read_document(TEXT.replace("read D_{#1} as", "read E_{#1} as"), "markdown"))
    idle, *rest = without
    assert idle.display == -1 and "no formula below" in idle.message
    assert [verdict.kind for verdict in rest] == ["not readable", "equal", "refused", "not readable"]


def test_a_notation_that_matches_nothing_is_said():
    text = "<!-- derive: given x \\in \\mathbb{R}\nread a as x\nread a + a as 2 x -->\n\n$$ a + a = 2 x $$"
    idle, line = judge(read_document(text, "markdown"))
    assert (idle.line, idle.kind, line.kind) == (3, "not readable", "equal")
    assert "the read lines above it apply first" in idle.message
    turned = text.replace("read a as x\nread a + a as 2 x", "read a + a as 2 x\nread a as x")
    assert [verdict.kind for verdict in judge(read_document(turned + "\n\n$$ a = x $$", "markdown"))] == 2 * [
        "equal"
    ]


@pytest.mark.parametrize("factor", ["", "2 "])
def test_a_sum_is_a_template_without_brackets(factor):
    definitions = rf"given x \in \mathbb{{R}}^K; read S as {factor}\sum_{{k=1}}^K"
    right = judge(read_document(rf"$$ S x_k = {factor} \sum_j x_j $$", "markdown"), definitions)[0]
    wrong = judge(read_document(r"$$ S x_k = 3 \sum_j x_j $$", "markdown"), definitions)[0]
    assert (right.kind, wrong.kind) == ("equal", "refused")


def test_a_variation_is_a_template_without_brackets():
    given = (
        r"given A, B \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n; layout denominator; let f(v) = v^T v;"
        r" read \partial t as \partial (\operatorname{tr}(A B)); read \partial f as \partial f(x)"
    )
    for left, right, wrong in (
        (r"\frac{\partial t}{\partial A}", "B^T", "B"),
        (r"\frac{\partial f}{\partial x_k}", "2 x_k", "x_k"),
    ):
        for side, kind in ((right, "equal"), (wrong, "refused")):
            (verdict,) = judge(read_document(f"$$ {left} = {side} $$", "markdown"), given)
            assert verdict.kind == kind


STATED = r"""<!-- derive: given X \in \mathbb{R}^n, m \in \mathbb{R}, s \in \mathbb{R}_{>0}; let Y = \frac{X - m \mathbf{1}}{\sqrt{s}};
read (\sigma^2 + \epsilon)^{-1/2}(X - \mu) as \frac{X - m \mathbf{1}}{\sqrt{s}} -->
"""
ROW = r"$$ Y = (\sigma^2 + \epsilon)^{-1/2}(X - \mu) $$"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (r"\sigma^2 +", r"\sigma^2 -", "- is here in place of +"),
        (r"- \mu", "", r"- \mu is missing here"),
        (r"\sigma^2 + \epsilon", r"\sigma + \epsilon", "^ 2 is missing here"),
        (r"-1/2}", r"-1/2}2", "2 is only here"),
        (r"(X - \mu)", r"(X - s)", r"s is here in place of \mu"),
    ],
)  # fmt: skip
def test_a_formula_that_differs_from_the_one_in_a_comment_is_wrong(old, new, why):
    (right,) = judge(read_document(STATED + ROW, "markdown"))
    assert right.kind == "equal"
    comment, row = judge(read_document(STATED + ROW.replace(old, new), "markdown"))
    assert (comment.display, row.kind) == (-1, "ill-formed")
    assert why in row.message and "the comment in line 2" in row.message


@pytest.mark.parametrize(
    "rows",
    [
        ROW.replace("+", "-") + f"\n\n{ROW}",  # the notation is used: it may be another formula
        ROW.replace("+", "-") + "\n\n" + ROW.replace("+", "-"),  # the comment may be wrong
        r"$$ Y = (\sigma^2 - \epsilon)^{-1/2}(X - m) $$",  # two places
        r"$$ Y = (\sigma^2 + \epsilon)^{-1/2} \odot \exp(X) $$",
    ],
)
def test_a_formula_that_may_be_another_one_is_not_accused(rows):
    found = [one.kind for one in judge(read_document(STATED + rows, "markdown"))]
    assert "ill-formed" not in found and "refused" not in found


def test_the_last_sum_of_a_notation_takes_what_follows():
    given = r"given p, f, g \in \mathbb{R}^n, a \in \mathbb{R}; read E_s as \sum_s p_s; read M_s as \frac{1}{n} \sum_s; read \mu as \frac1n \sum_i f_i"
    for row, kind in (
        (r"E_s f_s = \sum_i p_i f_i", "equal"),
        (r"a E_s [a f_s + g_s] = a^2 E_s f_s + a E_s g_s", "equal"),
        (r"E_s [f_s + g_s] = E_s f_s", "refused"),
        (r"E_s f_s + a = a + \sum_i p_i f_i", "equal"),
        (r"E_s f_s - E_s g_s = \sum_i p_i (f_i - g_i)", "equal"),
        (r"M_s f_s = \mu", "equal"),
        (r"M_s f_s g_s = \mu", "refused"),
        (r"a \mu g_i = \frac{a}{n} g_i \sum_j f_j", "equal"),  # μ shows no i, so its sum ends
        (r"a \mu g_i = \frac{a}{n} \sum_j f_j", "refused"),
    ):
        (verdict,) = judge(read_document(f"$$ {row} $$", "markdown", given), given)
        assert verdict.kind == kind, (row, verdict)


def test_a_notation_holds_until_its_section_ends():
    """The same notation in a comment of another section does not count as used here."""
    first = "# A\n" + STATED + ROW + "\n\n# B\n"
    wrong = first + STATED + ROW.replace("+", "-")
    assert [one.kind for one in judge(read_document(wrong, "markdown"))][-1] == "ill-formed"
    assert {one.kind for one in judge(read_document(first + STATED + ROW, "markdown"))} == {"equal"}
    within = STATED + ROW + "\n\n# B\n" + STATED.split("\n")[1].join(("<!-- derive: ", "\n")) + ROW
    assert {one.kind for one in judge(read_document(within, "markdown"))} == {"equal"}


@pytest.mark.parametrize("between", ["restart; ", ""])
def test_a_comment_does_not_accuse_a_row_below_a_restart_or_one_that_another_comment_reads(between):
    text = (
        r"<!-- derive: given w \in \mathbb{R}; read E_n(\boldsymbol{W}) as w -->"
        + "\n\n$$ w + w = 2 w $$\n\n"
    )
    text += rf"<!-- derive: {between}given q \in \mathbb{{R}}^n; let E = \sum_i q_i; "
    read = r"read E(\boldsymbol{W}) as E"
    row = "\n\n" + r"$$ E(\boldsymbol{W}) = \sum_i q_i = \int_0^1 \sum_i q_i \, ds $$"
    found = judge(read_document(f"{text}{read} -->{row}", "markdown"))
    assert [one.kind for one in found if one.display >= 0] == ["equal", "equal", "not readable"]
    if not between:
        found = judge(read_document(f"{text} -->{row}", "markdown"))
        assert "ill-formed" in [one.kind for one in found]
