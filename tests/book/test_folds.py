"""What the site folds: what supports a page, and nothing that a reader follows. `test_site` has that nothing is lost."""

import pytest
from backpass_folds import Cell, Fold, fold, fold_rest, fold_tables
from docutils import nodes
from sphinx_exercise.nodes import exercise_enumerable_node

PRINTED = "for n in (1, 2):\n" + "    x = n\n" * 8 + "    print(n)"


def cell(code, *shown, tags=()):
    """A cell as MyST-NB hands it on."""
    source = nodes.container("", nodes.literal_block(code, code), nb_element="cell_code_source")
    node = nodes.container(
        "", source, nb_element="cell_code", classes=["cell", *(f"tag_{tag}" for tag in tags)]
    )
    if shown:
        node.append(nodes.container("", *shown, nb_element="cell_code_output"))
    return node


def printed(text="1"):
    return nodes.literal_block(text, text, classes=["output", "stream"])


def section(title, *children):
    return nodes.section("", nodes.title(text=title), *children)


def placed(node, title="The derivation"):
    section("A page", section(title, node))
    return node


def folds(node, title="The derivation", guide=False):
    """The kind and line of each fold of the cell after its section of this title was treated."""
    fold(Cell(placed(node, title)), guide)
    return [(each["kind"], each["line"]) for each in node.findall(Fold)]


def test_the_package_s_source_is_behind_its_names_everywhere():
    code = "from backpass.book.show import source\n\nsource(softmax.Saved, softmax.backward)"
    shown = nodes.literal_block("def f():\n    pass", "def f():\n    pass")
    line = "The package’s `softmax.Saved`, `softmax.backward`: 2 lines"
    assert folds(cell(code, shown.deepcopy()), "The backward, step by step") == [("source", line)]
    assert folds(cell(code, shown.deepcopy()), guide=True) == [("source", line)]
    assert folds(cell(f"x = 1\n{code}", shown)) == []


def test_a_cell_that_asserts_is_behind_its_last_assertion():
    code = "y = f(x)\nassert y > 0\nassert np.allclose(\n    y,\n    z,\n)"
    assert folds(cell(code)) == [("assertion", "Asserted: `np.allclose(y, z)`")]
    assert folds(cell(code), "The backward, step by step") == []  # it computes, too
    assert folds(cell("assert y > 0"), "The backward, step by step") == [("assertion", "Asserted: `y > 0`")]
    assert folds(cell(code), guide=True) == []


def test_the_code_of_printed_numbers_stands_below_them():
    node = cell(PRINTED, printed())
    assert folds(node) == [("code", "The code: 10 lines")]
    assert [type(child) for child in node.children] == [nodes.container, Fold]
    assert folds(cell(PRINTED, printed()), "The mistake people make here") == []
    assert folds(cell("print(1)", printed())) == []
    assert folds(cell("x = 1\n" * 4 + "print(x)", printed()), "The cost") == [("code", "The code: 5 lines")]
    value = nodes.literal_block("1", "1", classes=["output", "text_plain"])
    assert folds(cell(PRINTED, value)) == []


@pytest.mark.parametrize(("kind", "folded"), [("Derive", 1), ("Write", 1), ("Debug", 0)])
def test_the_cell_of_an_exercise_is_folded_unless_it_has_the_mistake(kind, folded):
    node = cell("answer = 0\nattempt(answer)")
    exercise_enumerable_node("", nodes.title(text=f"Exercise 1.1 ({kind}, level 1: a name)"), node)
    fold(Cell(node), guide=False)
    assert len(list(node.findall(Fold))) == folded


def test_a_table_of_many_rows_is_behind_its_caption():
    def table(rows):
        text = f"<table><caption>Times of <b>f</b></caption>{'<tr><td>1</td></tr>' * rows}</table>"
        return nodes.raw("", text, format="html")

    long, short = cell("f()", table(40)), cell("f()", table(4))
    for each in (long, short):
        fold_tables(Cell(placed(each)))
    assert [each["html"] for each in long.findall(Fold)] == ["Times of <b>f</b>"]
    assert list(short.findall(Fold)) == []


def test_the_rest_of_a_section_is_folded_below_its_first_paragraphs():
    first, leading, after = (
        nodes.paragraph(text="The result."),
        nodes.paragraph(text="As here:"),
        nodes.paragraph(),
    )
    shown, hidden = cell("1 + 1"), cell("2 + 2")
    inner = section("Below", leading, shown, hidden)
    whole = section("The cost", first, after, inner)
    fold_rest(whole, "The count")
    assert [type(child) for child in whole.children] == [nodes.title, nodes.paragraph, Fold, nodes.section]
    assert whole.children[2].children == [after]
    assert inner.children[1:3] == [leading, shown] and inner.children[3].children == [hidden]
