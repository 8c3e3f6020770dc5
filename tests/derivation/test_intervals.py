"""A line whose equality cannot be decided is refused if it is wrong at one point."""

import pytest

from .judging import one

GIVEN = r"given x, y, a, b \in \mathbb{R}, p \in \mathbb{R}_{>0}"
COSINE = r"\frac{\partial}{\partial x} (\cos(e^{\sin(x)})) = "


@pytest.mark.parametrize(
    "line",
    [
        r"\sqrt{x^2} = x",
        r"(x^4)^{1/4} = x",
        r"\sqrt{(x - y)^2} = x - y",
        r"\frac{\sqrt{x^2}}{x} = 1",
        r"x^a x^b = x^{ab}",
        r"p^a p^b = p^{a b}",
        COSINE + r"\sin(e^{\sin(x)}) e^{\sin(x)} \cos(x)",
    ],
)
def test_a_point_refutes_what_cannot_be_decided(line):
    verdict = one(line, GIVEN)
    assert verdict.kind == "refused"
    assert verdict.counterexample.expected != verdict.counterexample.found


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (r"\sqrt{x^2} \sqrt{x^2} = x^2", "equal"),
        (r"\sqrt{p^2} = p", "equal"),
        (r"\log x^2 = 2 \log x", "equal"),  # where both are defined
        (COSINE + r"-\sin(e^{\sin(x)}) e^{\sin(x)} \cos(x)", "equal"),
        (r"p^a p^b = p^{a + b}", "equal"),
        (r"p^a = e^{a \log p}", "equal"),
    ],
)
def test_a_right_line_is_not_refused(line, kind):
    verdict = one(line, GIVEN)
    assert verdict.kind == kind
    assert kind == "equal" or verdict.message.startswith(
        "no difference was found, but equality cannot be decided"
    )


def test_the_counterexample_is_where_the_sides_differ():
    verdict = one(r"\sqrt{x^2} = x", GIVEN)
    assert any(where.startswith("x = -") for where in verdict.counterexample.where)
    assert verdict.message.startswith("no difference was found where its letters are positive")
    assert one(r"\sqrt{x^2} = 2 x", GIVEN).message == ""


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\|c v\|", r"|c| \|v\|", r"c \|v\|"),
        (r"\sqrt{p^2 + 2 p q + q^2}", "p + q", "p - q"),
        (r"\sqrt{x^2 + 2 x y + y^2}", "|x + y|", "x + y"),
        (r"\|v v^\top\|_F", r"\|v\|^2", r"\|v\|"),
    ],
)
def test_the_root_of_a_square_is_refused_only_where_it_differs(left, right, wrong):
    given = r"given x, y, c \in \mathbb{R}, p, q \in \mathbb{R}_{>0}, v \in \mathbb{R}^n"
    found, other = (one(f"{left} = {side}", given) for side in (right, wrong))
    assert found.kind in ("equal", "not readable")
    assert other.kind == "refused"
