"""A star is a label of a name that the author defines, or that is an argmin; otherwise it may be an adjoint."""

import pytest

from .judging import kinds, verdicts

SQUARE = r"$$ (\theta - \theta^*)^2 = \theta^2 - 2 \theta \theta^\star + \theta^{*2} $$"
SLIP = SQUARE.replace("- 2", "+ 2")


def test_a_declared_name():
    assert kinds(SQUARE, r"given \theta, \theta^* \in \mathbb{R}") == ["equal"]
    (verdict,) = verdicts(SLIP, r"given \theta \in \mathbb{R}; let \theta^{\ast} = 2 \theta")
    assert verdict.kind == "refused" and r"\theta^*" in verdict.latex and "text{*" not in verdict.latex


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (SLIP, r"given \theta, \theta^* \in \mathbb{R}"),
        (
            r"Let $w^*$ minimise $L$. $$ \nabla_w L = X^\top X (w - w^*) $$",
            r"given w, w^* \in \mathbb{R}^n, y \in \mathbb{R}^m, X \in \mathbb{R}^{m \times n}; let L = \frac12 \|X w - y\|^2",
        ),
        (
            r"$$ \|A x\|^2 = x^\top A^* A x $$",
            r"given A, A^* \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n",
        ),
    ],
)
def test_a_declared_name_may_be_a_minimiser_or_an_adjoint(text, given):
    (verdict,) = verdicts(text, given)
    assert verdict.kind == "not readable" and "define it with let" in verdict.message


@pytest.mark.parametrize("mark", ["*", "-", "+"])
def test_a_letter_that_is_an_index_in_the_line_is_not_a_label(mark):
    given = rf"given a_i^{mark}, a_j^{mark} \in \mathbb{{R}}, y \in \mathbb{{R}}^n"
    for formula in (
        rf"\sum_i a_i^{mark} y_i = a_i^{mark} \sum_i y_i",
        rf"\sum_i a_i^{mark} y_i = \sum_j a_j^{mark} y_j",
        rf"\frac{{\partial}}{{\partial y_j}} \sum_i a_i^{mark} y_i = a_j^{mark}",
        rf"\sum_{{i=1}}^n y_i (a_i^{mark} - 1) = (a_i^{mark} - 1) \sum_i y_i",
    ):
        assert kinds(f"$$ {formula} $$", given) == ["not readable"]


def test_a_name_that_is_an_argmin_is_one_of_its_own():
    text = r"$$ \theta^* = \arg\min_\theta L(\theta) $$" + SQUARE
    found = verdicts(text, r"given \theta \in \mathbb{R}")
    assert found[-1].message.startswith(r"\theta^* is not declared or defined above")


@pytest.mark.parametrize("name", [r"A^*", r"\mathbf{A}^\star", r"A_k^*", r"A_{k-1}^*", r"\hat{A}^{*}"])
def test_a_name_defined_by_let(name):
    given = rf"given B \in \mathbb{{R}}^{{n \times n}}, x \in \mathbb{{R}}^n; let {name} = 2 B"
    assert kinds(rf"$$ {name} x = 2 B x $$", given) == ["equal"]
    assert kinds(rf"$$ {name} x = 3 B x $$", given) == ["refused"]


def test_its_transpose():
    given = r"given w, x \in \mathbb{R}^n; let w^* = 2 w"
    assert kinds(r"$$ w^{*\top} x = x^\top w^* $$ $$ w^{*T} x = 2 x^\top w^* $$", given) == [
        "equal",
        "refused",
    ]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (r"$$ A^* A = A A $$", r"given A \in \mathbb{R}^{n \times n}"),
        ("The adjoint:\nlet $A^*$ be that of $A$. $$ A^* A = A A $$", r"given A \in \mathbb{R}^{n \times n}"),
        (r"The adjoint: $$ A^* := B $$ $$ A^* A = B A $$", r"given A, B \in \mathbb{R}^{n \times n}"),
    ],
)
def test_a_star_that_may_be_an_adjoint_is_not_read(text, given):
    assert {*kinds(text, given)} == {"not readable"}


def test_what_the_author_reads_a_star_as():
    given = r"given A, B \in \mathbb{R}^{n \times n}; read ^* as ^\top"
    assert kinds(r"$$ (A B)^* = B^* A^* $$ $$ (A B)^* = A^* B^* $$", given) == ["equal", "refused"]
    given = r"given B \in \mathbb{R}^{n \times n}; let C = 2 B; read A^* as C"
    assert kinds(r"$$ A^* := \arg\min_A f(A) $$ $$ A^* + B = 3 B $$", given)[-1] == "equal"


def test_a_label_that_is_a_declared_name_and_a_label_before_a_factor():
    given = r"given x \in \mathbb{R}^n; let \mu_x = \frac1n \sum_i x_i"
    assert kinds(r"$$ n \mu_x = \sum_i x_i $$ $$ \mu_x = \sum_i x_i $$", given) == ["equal", "refused"]
    given = r"given P_k^-, H, K \in \mathbb{R}^{n \times n}"
    assert kinds(r"$$ (K + H) P_k^- H = K P_k^- H + H P_k^- H $$", given) == ["equal"]
    assert kinds(r"$$ (K + H) P_k^- H = K P_k^- H - H P_k^- H $$", given) == ["refused"]


@pytest.mark.parametrize("star", ["_*", r"_\star", r"_{\ast}", r"_{ \star }", "_{**}", r"_{\star\star}"])
def test_a_star_below_is_a_label(star):
    given = rf"given K \in \mathbb{{R}}^{{n \times n}}, k{star}, y \in \mathbb{{R}}^n"
    right, wrong = (rf"$$ k{star}^\top K y = y^\top {K} k{star} $$" for K in (r"K^\top", "K"))
    assert kinds(right, given) == ["equal"]
    (verdict,) = verdicts(wrong, given)
    assert verdict.kind == "refused" and "star}" not in str(verdict)
    assert ("k_{**}" if len(star) > 10 or "**" in star else "k_*") in verdict.latex
