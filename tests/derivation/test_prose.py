"""A condition in the prose of a section may restrict its lines, which are not refused if they hold under it."""

import pytest

from .judging import kinds, verdicts

GIVEN = r"given s \in \mathbb{R}^n; let Z = \sum_k e^{s_k}; let a_i = \frac{e^{s_i}}{Z}"
OTHERS = r"$$ \frac{\partial a_i}{\partial s_j} = \frac{-e^{s_i} e^{s_j}}{Z^2} = -a_i a_j $$"
SAME = r"$$ \frac{\partial a_i}{\partial s_j} = a_i (1 - a_j) $$"


@pytest.mark.parametrize("prose", [r"### Case 2: $i \neq j$", "Where $i \\ne j$, we have", "(2) i ≠ j:"])
def test_a_line_that_holds_under_a_condition_above_it_is_asked_about(prose):
    found = verdicts(f"{prose}\n\n{OTHERS}", GIVEN)
    assert [one.kind for one in found] == 2 * ["not readable"]
    assert r"say: when i \ne j" in found[0].message
    assert kinds(f"{prose}\n\n{OTHERS.replace('= -a', '= 2 a')}", GIVEN)[1] == "refused"
    assert kinds(f"{prose}\n\n<!-- derive: when i \\ne j -->\n\n{OTHERS}", GIVEN) == 2 * ["equal"]


def test_so_is_one_that_holds_for_equal_indices():
    assert kinds(f"For $i = j$,\n\n{SAME}", GIVEN) == ["not readable"]


@pytest.mark.parametrize("prose", ["", "### Case 1: $i = j$", "### Case: $i \\ne j$\n\n### All"])
def test_another_condition_or_one_of_another_section_excuses_nothing(prose):
    assert kinds(f"{prose}\n\n{OTHERS}", GIVEN)[0] == "refused"


LOSS = r"given z, t \in \mathbb{R}^n; let p_i = \frac{e^{z_i}}{\sum_k e^{z_k}}; let C = -\sum_i t_i \log p_i"
ENTROPY = r"$$ \frac{\partial C}{\partial z_i} = p_i - t_i $$"


@pytest.mark.parametrize("prose", ["Here $t$ is one-hot.", "The targets sum to one:"])
def test_so_is_one_that_holds_for_labels_that_the_prose_describes(prose):
    (found,) = verdicts(f"{prose}\n\n{ENTROPY}", LOSS)
    assert found.kind == "not readable" and r"assume \sum_i t_i = 1" in found.message
    assert kinds(f"{prose}\n\n{ENTROPY.replace('-', '+')}", LOSS) == ["refused"]
    assert kinds(ENTROPY, LOSS) == ["refused"]


def test_so_is_one_that_holds_for_positive_letters():
    text = r"$$ \sqrt{z^2} = z $$"
    given = r"given z \in \mathbb{R}"
    assert kinds(f"Let $z > 0$.\n\n{text}", given) == ["equal"]
    assert kinds(f"We take the positive root.\n\n{text}", given) == ["not readable"]
    assert kinds(text, given) == ["refused"]
    assert kinds(f"Let $z > 0$.\n\n{text.replace('= z', '= 2 z')}", given) == ["refused"]
