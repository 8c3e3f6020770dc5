"""Prose that announces a variant: an equation for a name that a comment defines may be another definition."""

import pytest

from .judging import verdicts

GIVEN = r"""range t = 1, \dots, T; given f_t, i_t, c_0, g_t, a, b, q \in \mathbb{R}
let c_t = f_t c_{t-1} + i_t g_t
let y = a b + q; let r(z) = a z
"""
OTHER = r"$$ y = a b - q $$"
OWN = "A sentence of its own, long enough to begin something new, follows the derivatives above it.\n\n"


def found(text):
    return [(verdict.kind, verdict.message) for verdict in verdicts(text, GIVEN)]


@pytest.mark.parametrize(
    "prose",
    [
        "In some variants, $i_t$ is simply replaced with $1 - f_t$, and the update would be rewritten as",
        "Alternatively, we subtract it:",
        "One could also define it with a minus:",
        "Another choice is",
        "Some authors subtract $q$ instead:",
        "An alternative. It has a minus:",
        "Rather than adding $q$, many implementations subtract it.",
        "## A different definition\n\nWe subtract it:",
        "# Variants\n\nWe subtract it:",
    ],
)
def test_a_variant_of_a_definition_is_asked_about(prose):
    ((kind, message),) = found(f"{prose}\n\n{OTHER}\n")
    assert kind == "not readable" and "may announce a variant" in message and "of y" in message


@pytest.mark.parametrize(
    "prose",
    [
        "The output is therefore",
        "We write the sum as",
        "Substituting gives",
        "In some variants, nothing is added.\n\nHere, however,",
        "# Variants\n\nNothing.\n\n# The layer\n\nIt is",
        "<!-- Alternatively -->\nIt is",
    ],
)
def test_without_a_variant_a_wrong_line_is_refused(prose):
    assert [kind for kind, _ in found(f"{prose}\n\n{OTHER}\n")] == ["refused"]


@pytest.mark.parametrize(
    "formula", [r"c_t = f_t c_{t-1} + (1 - f_t) g_t", "r(z) = b z", "y = a b - q = b a - q"]
)
def test_sequences_functions_and_chains_have_variants(formula):
    kinds = {kind for kind, _ in found(f"In another variant,\n\n$$ {formula} $$\n")}
    assert kinds == {"not readable"}


def test_a_variant_may_take_several_displays():
    text = f"In some variants,\n\n$$ r(z) = b z $$\n\nand\n\n{OTHER}\n"
    assert {kind for kind, _ in found(text)} == {"not readable"}


@pytest.mark.parametrize(
    "formula",
    [
        r"\frac{\partial y}{\partial a} = a",  # not a definition
        r"a y = a^2 b - q a",
        "y = q + a b = q - a b",  # the first member is a claim, and right
        "r(b) = b^2",
    ],
)
def test_announcing_a_variant_excuses_definitions_only(formula):
    assert "refused" in {kind for kind, _ in found(f"Alternatively,\n\n$$ {formula} $$\n")}


def test_lines_below_a_variant_are_asked_about_until_its_section_ends():
    lines = r"$$ \frac{\partial y}{\partial q} = -1 $$"
    text = f"# One\n\nAlternatively,\n\n{OTHER}\n\nThen\n\n{lines}\n\n# Two\n\nThen\n\n{lines}\n"
    kinds = found(text)
    assert [kind for kind, _ in kinds] == ["not readable", "not readable", "refused"]
    assert "is y meant as in line 5" in kinds[1][1]


def test_a_right_line_stays_right_below_a_variant():
    text = f"Alternatively,\n\n{OTHER}\n\nThen\n\n" + r"$$ \frac{\partial y}{\partial a} = b $$"
    assert [kind for kind, _ in found(text)] == ["not readable", "equal"]


@pytest.mark.parametrize("heading", ["", "## Details\n\n", "# Title\n\n"])
def test_a_line_that_no_variant_above_makes_right_is_refused(heading):
    below = (
        r"$$ \frac{\partial y}{\partial q} = -1 $$"
        + "\n\nand\n\n"
        + r"$$ \frac{\partial y}{\partial q} = 2 $$"
    )
    text = f"Instead of adding $q$, one may subtract it:\n\n{OTHER}\n\n{heading}Then\n\n{below}\n\n{OWN} Thus $$ y = a b + q^2 $$"
    assert [kind for kind, _ in found(text)] == ["not readable", "not readable", "refused", "refused"]


def test_lines_may_need_several_variants():
    variants = r"let u = a b; let v = b + q"
    lines = r"$$ u v = a^2 b $$" + "\n\n" + r"$$ u v = a^2 q $$"
    text = (
        f"In some variants,\n\n$$ u = a $$\n\nand\n\n$$ v = a b $$\n\nThen it is true of both that\n\n{lines}"
    )
    kinds = [one.kind for one in verdicts(text, GIVEN + variants)]
    assert kinds == ["not readable", "not readable", "not readable", "refused"]
