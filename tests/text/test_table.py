"""One table in a terminal and in a page."""

from xml.etree import ElementTree

from backpass.text import table
from backpass.text.table import Cell

ROWS = [("", "bytes"), ("weights & bias", "1,024"), ("y", "8")]


def test_columns_are_as_wide_as_their_widest_cell():
    assert table.aligned(ROWS, right=(1,)) == [
        "                bytes",
        "weights & bias  1,024",
        "y                   8",
    ]
    assert table.aligned(ROWS)[2] == "y               8"
    assert table.widths(ROWS) == [14, 5]


def test_no_line_ends_in_spaces():
    assert table.aligned([("a", "long"), ("b", "")]) == ["a  long", "b"]


def test_a_page_gets_headings_a_caption_and_a_group_that_scrolls():
    root = ElementTree.fromstring(table.page(ROWS[0], ROWS[1:], caption="Saved & kept"))
    assert root.attrib["role"] == "group" and root.attrib["tabindex"] == "0"
    assert root.attrib["aria-label"] == root.findtext(".//caption") == "Saved & kept"
    assert [(cell.tag, cell.text) for cell in root.find("./table/thead/tr")] == [
        ("td", None),
        ("th", "bytes"),
    ]
    first = root.findall("./table/tbody/tr")[0]
    assert [(cell.tag, cell.text) for cell in first] == [("th", "weights & bias"), ("td", "1,024")]
    assert first[0].attrib["scope"] == "row"


def test_strings_are_escaped_and_cells_are_not():
    shown = table.page(("a", "b"), [("<x>", Cell("<code>y</code>", 'class="z"'))], label='"quoted"')
    assert '<th scope="row">&lt;x&gt;</th><td class="z"><code>y</code></td>' in shown
    assert 'aria-label="&quot;quoted&quot;"' in shown and "<caption" not in shown


def test_a_caption_that_is_html_still_names_the_region():
    assert 'aria-label="a &amp; b"' in table.page(("x",), [("1",)], caption=Cell("a &amp; b"))
