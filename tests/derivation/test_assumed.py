"""The prose of a text states the signs of names."""

import pytest

from tests.derivation.judging import kinds, verdicts

GIVEN = r"given x, y \in \mathbb{R}"


@pytest.mark.parametrize(
    ("words", "right", "wrong"),
    [
        ("Let $x > 0$.", r"\sqrt{x^2} = x", r"\sqrt{x^2} = -x"),
        ("Let $x, y > 0$.", r"\sqrt{x^2 y^2} = x y", r"\sqrt{x^2 y^2} = -x y"),
        ("For $x < 0$,", "|x| = -x", "|x| = x"),
        (r"Assume $x \geq 2$.", "|x - 2| = x - 2", "|x - 3| = x - 3"),
        ("Suppose that $x$ is positive.", r"\max(0, x) = x", r"\max(0, x) = 0"),
        ("where $x$ is a negative number:", r"\max(0, x) = 0", r"\max(0, x) = x"),
    ],
)
def test_an_assumption_holds_for_the_lines_below_it(words, right, wrong):
    assert kinds(f"{words}\n\n$$ {right} $$", GIVEN) == ["equal"]
    assert kinds(f"{words}\n\n$$ {wrong} $$", GIVEN) == ["refused"]


def test_the_verdict_quotes_the_assumption():
    (verdict,) = verdicts("Let $x > 0$.\n\n$$ |x| = x $$", GIVEN)
    assert verdict.inferred == ("“Let $x > 0$”",)
    assert verdict.basis.condition == "x > 0"


def test_an_assumption_of_one_case_ends_with_its_display():
    text = "For $x > 0$:\n\n$$ |x| = x $$\n\nFor $x < 0$:\n\n$$ |x| = -x $$\n\nIn general:\n\n$$ |x| = x $$"
    assert kinds(text, GIVEN) == ["equal", "equal", "refused"]
    assert kinds("Let $x > 0$.\n\n# Another\n\n$$ |x| = x $$", GIVEN) == ["refused"]


def test_not_positive_is_negative():
    text = "Here $x$ is not positive.\n\n$$ |x| = {} $$"
    assert kinds(text.replace("{}", "-x"), GIVEN) == ["equal"]
    assert kinds(text.replace("{}", "x"), GIVEN) == ["refused"]
