"""Matrices are read as written out; what dots leave out is read where one pattern is certain."""

import pytest

from backpass.derivation import DerivationError, Unreadable, derive

from .judging import kinds

GIVEN = r"""
    given x \in \mathbb{R}^{1 \times m}, W \in \mathbb{R}^{m \times n}, c \in \mathbb{R}
    let z = x W
"""
RIGHT = [
    r"z_i = x_1 W_{1i} + x_2 W_{2i} + \cdots + x_m W_{mi}",
    r"z_i = x_1 W_{1i} + \dots + x_m W_{mi}",
    r"z_i^2 = (x_1 W_{1i} + x_2 W_{2i} + ... + x_m W_{mi})^2",
    r"\sum_i z_i = z_1 + z_2 + \ldots + z_n",
    r"z = \begin{bmatrix} z_1 & z_2 & \cdots & z_n \end{bmatrix}",
    r"W_{1i} = \begin{pmatrix} 1 & 0 \end{pmatrix} \begin{pmatrix} W_{1i} \\ W_{2i} \end{pmatrix}",
    r"""z^\top = \begin{bmatrix} W_{11} & W_{21} & \cdots & W_{m1} \\ W_{12} & W_{22} & \cdots & W_{m2} \\
        \vdots & \vdots & \ddots & \vdots \\ W_{1n} & W_{2n} & \cdots & W_{mn} \end{bmatrix} x^\top""",
    r"x^\top = \begin{bmatrix} x_1 \\ x_2 \\ \vdots \\[2pt] x_m \end{bmatrix}",
    r"""\begin{bmatrix} x_1 & x_1 W_{11} \\ \vdots & \vdots \\ x_m & x_m W_{m1} \end{bmatrix}
        \begin{bmatrix} c \\ 1 \end{bmatrix} = c x^\top + \begin{bmatrix} x_1 W_{11} \\ \vdots \\ x_m W_{m1} \end{bmatrix}""",
    r"""\begin{bmatrix} \frac{\partial z_1}{\partial x_1} & \cdots & \frac{\partial z_n}{\partial x_1} \end{bmatrix}
        = \begin{bmatrix} W_{11} & \cdots & W_{1n} \end{bmatrix}""",
    r"\begin{bmatrix} 1 & c \\ 0 & 1 \end{bmatrix} \begin{bmatrix} 1 & -c \\ 0 & 1 \end{bmatrix} = \begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}",
    r"\begin{bmatrix} c \end{bmatrix} = c",
]


@pytest.mark.parametrize("line", RIGHT)
def test_what_is_right_is_equal(line):
    derive(GIVEN + " ".join(line.split()), name="right")


@pytest.mark.parametrize(
    ("line", "right", "wrong"),
    [
        (RIGHT[0], "x_m W_{mi}", "x_m W_{mi} + x_1"),
        (RIGHT[0], "x_1 W_{1i} + x_2 W_{2i}", "x_1 W_{i1} + x_2 W_{i2}"),
        (RIGHT[4], "z_1 & z_2", "x_1 & x_2"),
        (RIGHT[6], "W_{21}", "W_{12}"),
        (RIGHT[6], r"& \cdots & W_{mn}", r"& \cdots & W_{nm}"),
        (RIGHT[7], r"\\[2pt] x_m", r"\\[2pt] x_n"),
        (RIGHT[9], r"& W_{1n} \end", r"& W_{n1} \end"),
        (RIGHT[10], "-c", "c"),
    ],
)
def test_what_is_wrong_is_not_equal(line, right, wrong):
    with pytest.raises(DerivationError):
        derive(GIVEN + " ".join(line.replace(right, wrong).split()), name="wrong")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r"c = x_1 + x_3 + \cdots + x_m", "do not follow one pattern"),
        (r"c = x_1 + x_2 + \cdots + x_5", "differ in more than an index"),
        (r"c = x_1 + x_2 + \cdots + W_{mm}", "differ in more than an index"),
        (r"c = x_1 + x_2 + \cdots", "before the last term"),
        (r"c = x_1 + \cdots + x_m + c", "before the last term"),
        (r"c = x_1 - x_2 + \cdots + x_m", r"only the sign \+"),
        (r"c = x_1 + x_2 + \cdots + x_q", "q, where the dots end, is not a dimension"),
        (r"c = W_{11} + \cdots + W_{mn}", "one dimension in the last"),
        (r"c = \begin{bmatrix} c & c \\ c \end{bmatrix}", "different lengths"),
        (r"c = \begin{bmatrix} x & c \end{bmatrix}", "an entry must be a number"),
        (r"z = \begin{bmatrix} z_1 & z_2 & \cdots \end{bmatrix}", "before the last term"),
        (r"c = \max(W)", "takes a column or a row"),
    ],
)
def test_what_is_not_certain_is_not_read(line, said):
    with pytest.raises(Unreadable, match=said):
        derive(GIVEN + line, name="unclear")


def test_a_maximum_of_a_column():
    derive(
        r"""
        given x \in \mathbb{R}^n
        \max(x) = \max_j x_j
        \text{softmax}(x)_i = \frac{e^{x_i - \max(x)}}{\sum_j e^{x_j - \max(x)}}
        """,
        name="max",
    )


def test_a_letter_above_is_part_of_a_name_and_of_its_gradient():
    text = r"""
        given X \in \mathbb{R}^{m \times n}, W^Q, W^K \in \mathbb{R}^{n \times p}
        given \bar{S} \in \mathbb{R}^{m \times m}
        let Q = X W^Q
        let K = X W^K
        let S = Q K^\top
        \bar{W}^Q = X^\top \bar{S} K
        \bar{W^K} = X^\top \bar{S}^\top Q
        \frac{\partial \mathcal{L}}{\partial W^Q} = \bar{W}^Q
        \bar{X} = \bar{Q} W^{Q\top} + \bar{K} W^{K^\top}
    """
    derive(text, name="above")
    with pytest.raises(DerivationError, match="does not equal"):
        derive(text.replace(r"\bar{S}^\top Q", r"\bar{S} Q"), name="above")
    with pytest.raises(DerivationError, match="does not equal"):
        derive(text.replace(r"W^{Q\top}", r"W^{K\top}"), name="above")
    with pytest.raises(Unreadable, match="not declared"):
        derive(text.replace(r"W^{Q\top}", r"W^{P\top}"), name="above")


def test_a_declared_factor_before_a_bracket():
    given = r"given x \in \mathbb{R}, X, P \in \mathbb{R}^{m \times n}, t \in \mathbb{R}^n"
    line = r"$$ x(x + 1) = x^2 + x $$ $$ X(2 t) = 2 X t $$"
    assert kinds(line, given) == ["not readable", "equal"]
    assert kinds(line, f"{given}; factor x, X") == ["equal", "equal"]
    assert kinds(line.replace("2 X t", "X t"), f"{given}; factor x, X") == ["equal", "refused"]
    assert kinds("<!-- derive: factor q -->", given) == ["not readable"]


def test_d_before_a_name_is_a_factor_where_that_is_certain():
    line = r"$$ d x = x d $$"
    assert kinds(line, r"given x, d \in \mathbb{R}") == ["not readable"]
    assert kinds(line, r"given x, d \in \mathbb{R}; factor d") == ["equal"]
    assert kinds(r"$$ d u^T = (u d^T)^T $$", r"given d, u \in \mathbb{R}^n") == ["equal"]


def test_a_matrix_in_a_row_that_is_aligned():
    text = (
        r"$$ \begin{aligned} x &= \begin{bmatrix} x_1 & \cdots & x_n \end{bmatrix} \\ &= 2 x \end{aligned} $$"
    )
    assert kinds(text, r"given x \in \mathbb{R}^{1 \times n}") == ["equal", "refused"]


def test_a_line_that_begins_with_a_name_in_words():
    given = r"given n \in \mathbb{R}; let \text{Layer FLOPs} = 2 n; let \text{attn_out} = n"
    assert kinds(r"$$ \text{Layer FLOPs} = \text{attn_out} + \text{attn_out} $$", given) == ["equal"]
    assert kinds(r"$$ \text{Layer FLOPs} = \text{attn_out} $$", given) == ["refused"]
