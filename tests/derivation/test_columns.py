"""Vectors that are printed as lists of their entries."""

import pytest

from .judging import kinds, one

GIVEN = r"given u \in \mathbb{R}^n, M \in \mathbb{R}^{n \times n}; let g = u^\top u"
BOLD = GIVEN.replace("u", r"\mathbf{u}")


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        ("u", r"(u_1, \ldots, u_n)^\top", r"(2 u_1, \ldots, 2 u_n)^\top"),
        ("u", r"\left[ u_1, u_2, \dots, u_n \right]^T", r"\left[ -u_1, -u_2, \dots, -u_n \right]^T"),
        ("e u", r"(e u_1, \ldots, e u_n)^{\top}", r"(u_1, \ldots, u_n)^{\top}"),
        (
            r"\frac{\partial g}{\partial u}",
            r"\left( \frac{\partial g}{\partial u_1}, \ldots, \frac{\partial g}{\partial u_n} \right)^\top",
            r"\left( 2 \frac{\partial g}{\partial u_1}, \ldots, 2 \frac{\partial g}{\partial u_n} \right)^\top",
        ),
        (r"\frac{\partial g}{\partial u}", r"(2 u_1, \ldots, 2 u_n)^\top", r"(u_1, \ldots, u_n)^\top"),
    ],
)
def test_a_list_in_brackets_is_a_column_once_it_is_transposed(left, right, wrong):
    given = f"layout denominator; {GIVEN}; given e \\in \\mathbb{{R}}"
    assert one(f"{left} = {right}", given).kind == "equal"
    # A second value of u itself may be a definition.
    assert one(f"{left} = {wrong}", given).kind == ("not readable" if left == "u" else "refused")


@pytest.mark.parametrize(
    "entries",
    [
        r"(u_1, \ldots, u_n)^\top",
        r"[u_1, u_2, \ldots, u_n]",
        r"\begin{bmatrix} u_1 \\ \vdots \\ u_n \end{bmatrix}",
        r"\begin{pmatrix} u_1 & u_2 & \cdots & u_n \end{pmatrix}",
    ],
)
@pytest.mark.parametrize(("given", "name"), [(GIVEN, "u"), (BOLD, r"\mathbf{u}")])
def test_what_names_the_entries_of_a_vector_does_not_define_it(entries, given, name):
    right = rf"{name}^\top M {name} = \sum_{{ij}} {name}_i M_{{ij}} {name}_j"
    wrong = right.replace("_j", "_i")
    found = kinds(f"$$ {name} = {entries} $$\n\n$$ {right} $$\n\n$$ {wrong} $$", given)
    assert found[1:] == ["equal", "refused"]


def test_other_entries_may_define_a_vector():
    found = kinds("$$ u = (u_1^2, \\ldots, u_n^2)^\\top $$\n\n$$ u^\\top u = \\sum_i u_i^4 $$", GIVEN)
    assert found[1] == "not readable"


def test_a_long_list_of_derivatives_is_read_in_no_time():
    entries = ", ".join(rf"\frac{{\partial \ell}}{{\partial \theta_{{{k}}}}}" for k in range(1, 12))
    assert (
        one(rf"u = [{entries}, \cdots, \frac{{\partial \ell}}{{\partial \theta_{{n}}}}]", GIVEN).kind
        == "not readable"
    )
