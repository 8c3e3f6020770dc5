"""A bar marks a gradient, unless the text says that it marks a mean."""

import pytest

from backpass.derivation.document import read_document
from backpass.derivation.judge import judge

from .judging import kinds, verdicts

LINES = r"""$$ \sum_i (x_i - \bar{x})^2 = \sum_i x_i^2 - n \bar{x}^2 $$

$$ \sum_i (x_i - \overline{x}) = 0 $$

$$ \sum_i (x_i - \bar{x})^2 = \sum_i x_i^2 + n \bar{x}^2 $$"""
GIVEN = r"given x \in \mathbb{R}^n"
JUDGED = ["equal", "equal", "refused"]


def seen(text):
    """The verdicts at first sight, with the names in GIVEN."""
    return [one.kind for one in judge(read_document(text, "markdown", GIVEN), GIVEN, infer=True)]


def test_a_definition_of_the_author():
    found = verdicts(LINES, rf"{GIVEN}; let \bar{{x}} = \frac1n \sum_i x_i")
    assert [one.kind for one in found] == JUDGED
    wrong = found[-1]
    assert wrong.latex == r"\sum_i x_i^2 + n \bar{x}^2"
    assert r"\bar{x}" in wrong.counterexample.found and "mean" not in str(wrong)


@pytest.mark.parametrize(
    "mean",
    [
        r"\bar{x} = \frac{1}{n} \sum_i x_i",
        r"\bar x := \frac1n \sum_{i=1}^n x_i",
        r"\bar{x} = \frac{\sum_{i=1}^n x_i}{n}",
        r"\overline{x} = \frac{1}{n}\sum\limits_{i=1}^{n} x_i.",
    ],
)
def test_a_mean_in_the_prose(mean):
    assert seen(f"Let ${mean}$ be the mean.\n\n{LINES}")[-3:] == JUDGED


def test_a_mean_in_a_display():
    text = r"$$ \bar{x} = \frac{1}{n} \sum_{i=1}^n x_i $$" + f"\n\nTwo facts.\n\n{LINES}"
    assert kinds(text, GIVEN) == ["definition", *JUDGED]


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        f"Let $m$ be the mean.\n\n{LINES}",
        r"We write the adjoint as $\bar{x} = \frac1n \sum_i x_i$." + f"\n\n{LINES}",
        r"Let $\bar{x} = \frac1n \sum_i x_i y_i$." + f"\n\n{LINES}",
        r"Let $\bar{x} = \frac1n \sum_i \bar{x}_i$." + f"\n\n{LINES}",
        r"Let $\bar{y} = \frac1n \sum_i y_i$." + f"\n\n{LINES}",
        r"The slope is $\bar{x}_j = \frac1n \sum_i x_i$." + f"\n\n{LINES}",
        r"Here $\sum_i x_i = g \bar{x}$." + f"\n\n{LINES}",
    ],
)
def test_a_bar_in_doubt(text):
    found = verdicts(text, GIVEN)[-3:]
    assert {one.kind for one in found} == {"not readable"}
    assert all(one.message.startswith(r"is \bar{x} a gradient?") for one in found)


def test_a_gradient_stays_one():
    text = r"$$ \bar{x}_i = \bar{y}_i a $$"
    given = r"given x, \bar{y} \in \mathbb{R}^n, a \in \mathbb{R}; let y = a x"
    assert kinds(text, given) == ["equal"]
    assert kinds(text.replace("a $$", "a^2 $$"), given) == ["refused"]


def test_the_mean_of_a_random_name():
    given = r"random x \in \mathbb{R}^n; given \bar{x} \in \mathbb{R}^n, A \in \mathbb{R}^{m \times n}; mean x = \bar{x}"
    assert kinds(r"$$ \mathbb{E}[A x] = A \bar{x} $$", given) == ["equal"]
    assert kinds(r"$$ \mathbb{E}[A x] = \bar{x} $$", given)[0] in ("refused", "ill-formed")


@pytest.mark.parametrize("accent", ["check", "breve", "widetilde"])
def test_other_accents_are_parts_of_names(accent):
    text = rf"$$ \{accent}{{x}}^\top \{accent} x = \sum_i \{accent}{{x}}_i^2 $$"
    given = rf"given \{accent}{{x}} \in \mathbb{{R}}^n"
    assert kinds(text, given) == ["equal"]
    assert kinds(text.replace("^2 $$", "^3 $$"), given) == ["refused"]


def test_a_sentence_that_defines_another_name_restricts_nothing():
    text = r"Let $m = \frac1n \sum_i x_i$ be the mean." + "\n\n" + r"$$ \sum_i x_i^2 = \sum_i x_i^2 + n m $$"
    assert seen(text)[-1] == "refused"
    assert seen(text.replace("be the mean", "with centred $x$"))[-1] == "not readable"


def test_what_follows_a_row_that_holds_is_not_said_to_be_imposed():
    text = "$$ v - v = 0 $$\n\n$$ v + v = 3 v $$"
    assert kinds(text, r"given v \in \mathbb{R}^n") == ["equal", "refused"]
