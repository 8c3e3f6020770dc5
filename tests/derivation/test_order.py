"""The directives of a comment may come in any order."""

import pytest

from backpass.derivation.language.parse import Unreadable

from .judging import kinds, verdicts

RIGHT = r"$$ \frac{\partial q}{\partial x_i} = 2 x_i $$"
WRONG = RIGHT.replace("2 x_i", "3 x_i")
DEFINITIONS = [
    r"given x \in \mathbb{R}^n; let q = \sum_i x_i^2; loss q",
    r"loss q; let q = \sum_i x_i^2; given x \in \mathbb{R}^n",
    r"let q = r^2; let r = \sqrt{\sum_i x_i^2}; loss q; given x \in \mathbb{R}^n",
    r"let q = e^2; let e = \sqrt{\sum_i x_i^2}; given x \in \mathbb{R}^n",
]


@pytest.mark.parametrize("definitions", DEFINITIONS)
def test_definitions_may_stand_above_what_they_use(definitions):
    assert kinds(f"{RIGHT}\n\n{WRONG}", definitions) == ["equal", "refused"]
    assert kinds(f"<!-- derive: {definitions} -->\n\n{RIGHT}\n\n{WRONG}") == ["equal", "refused"]


def test_a_display_defines_the_loss_before_a_comment_calls_it_so():
    text = "$$ q = \\sum_i x_i^2 $$\n\n<!-- derive: loss q -->\n\n" + f"{RIGHT}\n\n{WRONG}"
    assert kinds(text, r"given x \in \mathbb{R}^n") == ["definition", "equal", "refused"]


def test_a_name_without_a_definition_is_an_error_still():
    with pytest.raises(Unreadable, match="r is not declared"):
        verdicts(RIGHT, r"let q = r^2; loss q; given x \in \mathbb{R}^n")
    with pytest.raises(Unreadable, match="the loss is a number with a definition, but x is declared"):
        verdicts(RIGHT, r"given x \in \mathbb{R}^n; loss x")


def test_a_definition_in_a_display_below_is_named():
    found = verdicts(f"{RIGHT}\n\n$$ q = \\sum_i x_i^2 $$", r"given x \in \mathbb{R}^n")
    assert "line 3 defines it, below: move that display up" in found[0].message
