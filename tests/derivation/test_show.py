"""The author's LaTeX, order and numbering are what is shown."""

from html.parser import HTMLParser

import pytest

from backpass.derivation import DerivationError, derive


class Cells(HTMLParser):
    """Collects (class, id, text) of the elements that carry one."""

    def __init__(self, html):
        super().__init__()
        self.found, self.open = [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.open.append([attributes.get("class", ""), attributes.get("id"), "", attributes])
        self.found.append(self.open[-1])

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def texts(self, name):
        return [text for classes, _, text, _ in self.found if name in classes.split()]


TEXT = r"""
    given x, y \in \mathbb{R}^n   | two vectors
    let   s = \sum_i x_i  y_i
    note  Since $x y = y x$ & so on,
    \frac{\partial s}{\partial x_i} = y_i    | for every $i < n$
        = y_i + 0
    x_i x_j = x_j x_i \quad (i < j)
"""


def test_html_has_every_line_in_order():
    cells = Cells(derive(TEXT, name="dot")._repr_html_())
    assert cells.open == []
    assert cells.texts("derivation-left") == [
        r"let \(\displaystyle s\)",
        r"\(\displaystyle \frac{\partial s}{\partial x_i}\)",
        "",
        r"\(\displaystyle x_i x_j\)",
    ]
    assert cells.texts("derivation-right") == [
        r"\(\displaystyle {} = \sum_i x_i y_i\)",
        r"\(\displaystyle {} = y_i\)",
        r"\(\displaystyle {} = y_i + \class{derivation-come}{0}\)",
        r"\(\displaystyle {} = x_j x_i \qquad (i < j)\)",
    ]
    assert cells.texts("derivation-reason") == ["two vectors", r"for every \(i < n\)"]
    assert cells.texts("derivation-note") == [r"Since \(x y = y x\) & so on,"]
    assert cells.texts("derivation-given") == [r"given \(\displaystyle x, y \in \mathbb{R}^n\) two vectors"]


def test_lines_are_numbered_and_can_be_linked_to():
    first = derive(TEXT, name="dot")
    cells = Cells(first._repr_html_() + derive("x_i = x_i", name="dot", after=first)._repr_html_())
    assert [identifier for _, identifier, _, _ in cells.found if identifier] == [
        f"dot-{k}" for k in range(1, 6)
    ]
    links = [attributes["href"] for classes, *_, attributes in cells.found if classes == "derivation-number"]
    assert links == [f"#dot-{k}" for k in range(1, 6)]
    assert cells.texts("derivation-number") == [f"({k})" for k in range(1, 6)]


def test_lines_number_through_a_notebook_and_keep_their_numbers():
    first = derive("given x \\in \\mathbb{R}\nx = x\nx + x = 2 x", name="first")
    other = derive("given y \\in \\mathbb{R}\ny = y", name="other")
    again = derive(first.text, name="first")
    last = derive("2 x = x + x", name="first", after=first)
    assert [d.first_number for d in (first, other, again, last)] == [1, 3, 1, 4]
    with pytest.raises(DerivationError):
        derive("2 x = x", name="first", after=first)
    assert derive("x - x = 0", name="first", after=first).first_number == 5
    assert 'id="first-4"' in last._repr_html_() and str(last).startswith("(4)")


def test_html_marks_itself_for_mathjax_and_escapes():
    html = derive(TEXT, name="dot")._repr_html_()
    assert "tex2jax_process mathjax_process" in html
    assert "(i &lt; j)" in html and "(i < j)" not in html


def test_text_is_aligned_for_a_terminal():
    assert str(derive(TEXT, name="dot")).splitlines() == [
        r"     given x, y \in \mathbb{R}^n    | two vectors",
        r"(1)                            let s = \sum_i x_i y_i",
        r"     Since $x y = y x$ & so on,",
        r"(2)  \frac{\partial s}{\partial x_i} = y_i    | for every $i < n$",
        r"(3)                                  = y_i + 0",
        r"(4)                          x_i x_j = x_j x_i \quad (i < j)",
    ]


def test_a_line_of_declarations_may_break_after_each_set():
    shown = derive(
        "given x, y \\in \\mathbb{R}^n, c \\in \\mathbb{R}\nc \\, (x + y) = c x + c y", name="sets"
    )
    (given,) = Cells(shown._repr_html_()).texts("derivation-given")
    x_and_y, c = r"x, y \in \mathbb{R}^n", r"c \in \mathbb{R}"
    assert given == rf"given \(\displaystyle {x_and_y}\), \(\displaystyle {c}\)"
