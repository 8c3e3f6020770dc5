"""Displayed mathematics is judged line by line: right lines are accepted, a wrong one is refused on its own line, once."""

import json
import re

import pytest

from backpass.derivation import derive
from backpass.derivation.document import form_of, read_document
from backpass.derivation.judge import judge
from backpass.derivation.parse import Unreadable


def verdicts(text, definitions="", name="text.md"):
    return judge(read_document(text, form_of(name, text)), definitions)


def kinds(text, definitions="", name="text.md"):
    return [verdict.kind for verdict in verdicts(text, definitions, name)]


def one(text, definitions=""):
    """The only verdict on the text of one display."""
    (verdict,) = verdicts(f"$$ {text} $$", definitions)
    return verdict


SOFTMAX = r"""
    given x, \bar{y} \in \mathbb{R}^n
    let S = \sum_j e^{x_j}
    let y_i = \frac{e^{x_i}}{S}
    \frac{\partial y_i}{\partial x_i} = \frac{e^{x_i} S - e^{x_i} e^{x_i}}{S^2}
        = y_i (1 - y_i)
    \frac{\partial \mathcal{L}}{\partial x_i} = \sum_j \bar{y}_j \frac{\partial y_j}{\partial x_i}
        = \sum_j \bar{y}_j y_j (\delta_{ij} - y_i)
        = y_i \left( \bar{y}_i - \sum_j \bar{y}_j y_j \right)
"""
LAYER_NORM = r"""
    given x, \bar{y} \in \mathbb{R}^n
    constant \epsilon \in \mathbb{R}_{>0}
    let \mu = \frac{1}{n} \sum_j x_j
    let v = \frac{1}{n} \sum_j (x_j - \mu)^2
    let s = \sqrt{v + \epsilon}
    let y_i = \frac{x_i - \mu}{s}
    \frac{\partial v}{\partial x_i} = \frac{2}{n} (x_i - \mu)
    \frac{\partial s}{\partial x_i} = \frac{1}{2 s} \cdot \frac{2}{n} (x_i - \mu)
        = \frac{y_i}{n}
    \bar{x}_i = \frac{1}{s} \left( \bar{y}_i - \frac{1}{n} \sum_j \bar{y}_j - \frac{y_i}{n} \sum_j \bar{y}_j y_j \right)
"""
MATMUL = r"""
    given X \in \mathbb{R}^{m \times k}, W \in \mathbb{R}^{k \times p}, \bar{Y} \in \mathbb{R}^{m \times p}
    let Y = X W
    \bar{X}_{ia} = \sum_j \bar{Y}_{ij} W_{aj}
    \frac{\partial \mathcal{L}}{\partial X} = \bar{Y} W^\top
    \frac{\partial \mathcal{L}}{\partial W} = X^\top \bar{Y}
"""
DENOMINATOR = r"""
    layout denominator
    given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}, U \in \mathbb{R}^{p \times m}
    given \bar{y} \in \mathbb{R}^p
    let h = W x
    let y = U h
    \frac{\partial y}{\partial x} = \frac{\partial h}{\partial x} \frac{\partial y}{\partial h}
        = W^\top U^\top
    \frac{\partial \mathcal{L}}{\partial x} = \frac{\partial y}{\partial x} \frac{\partial \mathcal{L}}{\partial y}
        = W^\top U^\top \bar{y}
"""
NUMERATOR = r"""
    layout numerator
    given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}, U \in \mathbb{R}^{p \times m}
    given \bar{y} \in \mathbb{R}^p
    let h = W x
    let y = U h
    \frac{\partial y}{\partial x} = \frac{\partial y}{\partial h} \frac{\partial h}{\partial x}
        = U W
    \frac{\partial \mathcal{L}}{\partial x} = \frac{\partial \mathcal{L}}{\partial y} \frac{\partial y}{\partial x}
        = \bar{y}^\top U W
"""
TEXTS = {
    "softmax": SOFTMAX,
    "layer-norm": LAYER_NORM,
    "matmul": MATMUL,
    "denominator": DENOMINATOR,
    "numerator": NUMERATOR,
}


def split(text):
    """The declarations and the statements of a derivation."""
    lines = [line.strip() for line in text.strip().splitlines()]
    declared = [n for n, line in enumerate(lines) if line.startswith(("given", "constant", "let", "layout"))]
    return lines[: declared[-1] + 1], lines[declared[-1] + 1 :]


def markdown(text):
    """A derivation as somebody else might print it, one line of it on each line."""
    definitions, lines = split(text)
    rows = [rf"{line} \\".replace(" = ", " &= ", 1) for line in lines]
    comment = "; ".join(definitions)
    return "\n".join([f"<!-- derive: {comment} -->", "$$", r"\begin{aligned}", *rows, r"\end{aligned}", "$$"])


def latex(text):
    definitions, lines = split(text)
    rows = [rf"{line.replace('^' + chr(92) + 'top', '^T')} \label{{r{n}}} \\" for n, line in enumerate(lines)]
    comments = [f"% derive: {one}" for one in definitions]
    return "\n".join([*comments, r"\begin{align*}", *rows, r"\end{align*}"])


@pytest.mark.parametrize("written", [markdown, latex])
@pytest.mark.parametrize("name", TEXTS)
def test_right_lines_are_accepted(name, written):
    text = written(TEXTS[name])
    assert set(kinds(text, name="text.tex" if written is latex else "text.md")) == {"equal"}


@pytest.mark.parametrize("name", TEXTS)
def test_each_single_mistake_is_blamed_on_its_own_line_and_once(name):
    derivation = derive(TEXTS[name], name=name)
    right = verdicts(markdown(TEXTS[name]))
    survivors = {(flip.flip.line, flip.flip.text) for flip in derivation.survivors()}
    count = 0
    for flip in derivation.flips():
        if derivation.lines[flip.line].kind in ("let", "given", "constant", "layout"):
            continue
        if (flip.line, flip.text) in survivors or flip.side == "left":
            continue
        found = verdicts(markdown(flip.text))
        at = flip.line - len(split(TEXTS[name])[0])
        assert len(found) == len(right)
        changed = found[at]
        # A change may leave what has no meaning: a free index, or matrices that do not fit.
        assert changed.kind in ("refused", "not readable"), str(flip)
        if changed.kind == "refused":
            count += 1
            assert changed.counterexample.expected != changed.counterexample.found
        others = [verdict.kind for n, verdict in enumerate(found) if n != at]
        assert set(others) <= {"equal"}, str(flip)
    assert count > 5
