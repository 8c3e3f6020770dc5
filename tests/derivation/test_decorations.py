"""What a formula contains for its looks is removed where its meaning stays the same, and only there."""

import pytest

from backpass.derivation.text.decorations import decorations

from .judging import kinds, one

GIVEN = r"given a, b, c \in \mathbb{R}, x \in \mathbb{R}^n"


def plain(text):
    for start, end in decorations(text):
        text = text[:start] + " " * (end - start) + text[end:]
    return " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{a + b} = b + a",
        r"a + b = \boxed{b + a}.",
        r"\boxed{a + b = b + a}",
        r"\boxed{a} + \boxed{b} = b + a",
        r"a + \underbrace{b c}_{\text{a term}} = b c + a",
        r"a + \underbrace{b + c}_{\text{(one)}} - b = c + \overbrace{a}^{\mathrm{two}}",
        r"\sum_i \underbrace{x_i a}_{\text{terms}} = a \sum_i x_i",
        r"\boxed{\underbrace{a}_{\text{in a box}} b} = b a",
        r"a + \underbrace{\sum_i x_i}_{\text{sum}} + b = a + b + \sum_i x_i",
        r"\underbrace{a}_{\text{first}} b = \frac{\underbrace{a + a}}{2} b",
        r"{\color{red} a + b} = b + \textcolor{blue}{a}",
        r"\color{red}{a} + b = b + \color[HTML]{FF0000} a",
        r"\frac{\color{red} a}{b} = \frac{a}{\color{red}{b}}",
        r"{\color{red} x_1} \cdot x_1 = {\color{red} x}_1^2",
        r"a &= {} a \nonumber \label{a:b} \tag{$1_{a}$} \\ &\phantom{= {}} + b - b",
        r"\displaystyle \sum\limits_i x_i = \textstyle\sum\nolimits_{i} x_i \mathstrut \vphantom{\sum_i^{a}}",
        r"a &= b + a - b \\ \intertext{where $x_{i}$ is a number} b &= b + a - a",
    ],
)
def test_right_lines_stay_right(text):
    body = rf"\begin{{aligned}} {text} \end{{aligned}}" if "&" in text else text
    assert set(kinds(f"$$ {body} $$", GIVEN)) == {"equal"}


@pytest.mark.parametrize(
    "text",
    [
        r"a \underbrace{b + c}_{\text{bracket?}} = a b + c",
        r"a - \underbrace{b + c}_{\text{bracket?}} = a - b + c",
        r"\underbrace{\sum_i x_i}_{\text{only this}} x_1 = \sum_i x_i x_1",
        r"\boxed{a b}^2 = a b^2",
        r"a / \underbrace{b c}_{\text{below}} = a / b \cdot c",
        r"\underbrace{a}_{c} = a",
        r"{\color{red} a b}^2 = a b^2",
        r"\cancel{a} + b = b",
        r"\stackrel{c}{a} = a",
        r"a \phantom{xxx} b = a b",
        r"\frac{1}{\exp \boxed{a} b} = 1",
        r"\exp \boxed{a} b = b \exp(a)",
    ],
)
def test_what_might_change_the_meaning_is_not_read(text):
    assert set(kinds(f"$$ {text} $$", GIVEN)) == {"not readable"}


def test_characters_keep_their_places():
    text = r"\boxed{a} + \underbrace{b}_{\text{c}} + {\color{red} d}"
    assert plain(text) == "a + b + d"
    for start, end in decorations(text):
        assert 0 <= start < end <= len(text)


def test_a_mistake_in_a_box_is_refused():
    assert one(r"\boxed{a + b} = \boxed{a - b}", GIVEN).kind == "refused"
    assert one(r"a + \underbrace{b}_{\text{twice}} = a + 2 b", GIVEN).kind == "refused"


@pytest.mark.parametrize(
    "label",
    [
        r" \quad \textbf{Q.E.D.}",
        r"\, \text{QED}.",
        r" \blacksquare",
        r" \qed",
        r". \quad \square",
        r" && \blacksquare",
    ],
)
def test_the_end_of_a_proof_is_not_read(label):
    rows = rf"\begin{{align}} a + a &= 2 a{label} \\ b + b &= c{label} \end{{align}}"
    assert kinds(rows, GIVEN) == ["equal", "refused"]


@pytest.mark.parametrize("blank", [r"\square", r"2 \square", r"a + \quad \square", r"2 \cdot \blacksquare"])
def test_a_blank_is_not_the_end_of_a_proof(blank):
    assert kinds(f"$$ a + a = {blank} $$", GIVEN) == ["not readable"]
