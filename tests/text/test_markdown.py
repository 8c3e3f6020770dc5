"""What a cell shows as Markdown is shown as it was meant."""

from backpass.text.markdown import Markdown, code, division, escaped, folded, table


def test_a_cell_shows_markdown():
    assert Markdown("*a*")._repr_markdown_() == "*a*"


def test_plain_text_is_escaped():
    assert escaped("x[i_k] * <y>") == r"x\[i\_k\] \* \<y\>"


def test_a_table_has_a_heading():
    assert table([["a", "b"], ["1", "2"]], ":--|--:") == "| a | b |\n|:--|--:|\n| 1 | 2 |"


def test_data_attributes_are_escaped():
    first, *_, last, _ = division(["text"], "claim", kind='a "b"', caught_by="c")
    assert first == '<div class="claim" data-kind="a &quot;b&quot;" data-caught-by="c">'
    assert last == "</div>"


def test_code_is_folded_below_its_summary():
    assert folded("The twins", code("x = 1")) == [
        "<details><summary>The twins</summary>",
        "",
        "```python",
        "x = 1",
        "```",
        "",
        "</details>",
        "",
    ]
