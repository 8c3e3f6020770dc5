"""Matrices as texts print them, and formulas with the escapes of Markdown."""

import pytest

from .judging import kinds, verdicts

GIVEN = r"given a, b, c, d \in \mathbb{R}, S \in \mathbb{R}^{n \times n}"
ENTRIES = r"a & b \\ c & d"


@pytest.mark.parametrize(
    "determinant",
    [
        rf"\det\left[\begin{{matrix}} {ENTRIES} \end{{matrix}}\right]",
        rf"\det \left( \begin{{array}}{{cc}} {ENTRIES} \end{{array}} \right)",
        rf"\det \bigl[ \begin{{array}}{{c|c}} {ENTRIES} \end{{array}} \bigr]",
        rf"\left| \begin{{array}}{{rr}} {ENTRIES} \end{{array}} \right|",
        rf"\begin{{vmatrix}} {ENTRIES} \end{{vmatrix}}",
    ],
)
def test_matrices_in_brackets_and_determinants(determinant):
    assert kinds(rf"$$ {determinant} = a d - b c $$", GIVEN) == ["equal"]
    assert kinds(rf"$$ {determinant} = a d + b c $$", GIVEN) == ["refused"]
    assert kinds(rf"$$ a {determinant} = a \cdot (a d - b c) $$", GIVEN) == ["equal"]


def test_a_row_of_a_matrix_keeps_its_line():
    text = "$$\n\\left[\\begin{matrix} a \\\\\nc \\\\\n d + q \\end{matrix}\\right] = S\n$$"
    (found,) = verdicts(text, GIVEN)
    assert found.line == 4 and found.kind == "not readable"


@pytest.mark.parametrize("sign", ["matrix", "array}{c"])
def test_a_number_above_another_may_be_a_choice(sign):
    kind = sign.partition("}")[0]
    (found,) = verdicts(rf"$$ a = \left(\begin{{{sign}}} a \\ b \end{{{kind}}}\right) $$", GIVEN)
    assert found.kind == "not readable"


@pytest.mark.parametrize("top", [r"\text{T}", r"{\text{T}}", r"\mathbf{T}", r"{\mathrm T}", r"\textrm{T}"])
def test_signs_of_a_transpose(top):
    given = f"{GIVEN}, R \\in \\mathbb{{R}}^{{n \\times n}}"
    assert kinds(rf"$$ (R S)^{top} = S^{top} R^{top} $$", given) == ["equal"]
    assert kinds(rf"$$ (R S)^{top} = S^{top} R $$", given) == ["refused"]


def test_the_escapes_of_markdown():
    text = r"""
$$
\begin{aligned}
\sum\_i x\_i (y\_i + 1) &= \sum\_i x\_i y\_i + \sum\_i x\_i \\\\
&= \max\\{0, 0\\} + \sum\_i x_i (1 + y\_i)
\end{aligned}
$$"""
    given = r"given x, y \in \mathbb{R}^n"
    assert kinds(text, given) == ["equal", "equal"]
    assert kinds(text.replace("(1 +", "(2 +"), given) == ["equal", "refused"]
    latex = text.replace("$$", "").replace("aligned", "align*")
    assert "equal" not in kinds(latex, given, "text.tex")
