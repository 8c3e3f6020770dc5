"""The check of words finds each word of the table where people read it, and leaves right uses and code alone."""

import pytest

import words

SAID = {
    "refuse": "it refuses a shape",
    "take": "a function takes two arguments",
    "is another": "the scale is another number",
    "but for": "all but for one",
    "is no …": "a list is no array",
    "numbers of 16 bits": "numbers of 16 bits",
    "keep, make, let go": "what it keeps for the backward",
    "tell": "the message tells which",
    "goes by": "it goes by the sign",
    "stands": "the reason stands in the report",
    "found": "it shows what is found",
}


def found(source: str, path: str = "a.py") -> list[tuple[int, str]]:
    return [(line, row) for line, _, row in words.faults(path, source)]


@pytest.mark.parametrize("row", words.instead())
def test_each_row_of_the_table_is_found_where_people_read(row):
    said = SAID[row]
    first, last = said.rsplit(" ", 1)
    for source in (
        f'"""One line.\n\n{said}."""\n',
        f"x = 1\n\ny = 2  # {said}\n",
        f'x = 1\n\nfail("{said}")\n',
    ):
        assert found(source) == [(3, row)]
    assert found(f"def test_that_{said.replace(' ', '_')}():\n    pass\n") == [(1, row)]
    assert found(f"\n# {first}\n# {last}\n") == [(2, row)], "over the end of a line"
    assert found(f'\nfail(\n    "{first} "\n    "{last} of it"\n)\n') == [(3, row)], "over two strings"
    assert found(f"---\n{said}\n---\n\n# A page\n\n{said}\n", "a.md") == [(7, row)]


@pytest.mark.parametrize(
    "right",
    [
        "there is no file; if there\n    is no file; it is no longer than this",
        "a dot stands for an argument; the token stands last; where it stands; numbers stand in for symbols",
        "symbols tell the heads apart; to tell errors from those of the user",
        "there is another way; they are another model's; it goes by way of j",
    ],
)
def test_right_uses(right):
    assert not found(f'"""Say {right}."""\n')


def test_code_is_not_read():
    assert not found('refused = {"refused": tell}\nassert f"{refused} of" and told(but, "for")\n')
    assert not found('"""Call ``refuse(x)`` or `tell`."""\n')
    page = "```{code-cell}\n# refuse\n```\n\n$x stands$ and `tell`\n\n```python\n# told\n```\n"
    assert not found(page, "a.md")
    assert found("The kernel refuses it.\n", "src/a.py") == []
    assert [row for _, row in found("The line is refused.\n", "intro.md")] == ["refuse"]
    assert not found("The line is refused.\n", "chapters/reference/a.md")


def test_one_line_for_each_fault_and_the_status(capsys, monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("# It\n# refuses.\n")
    monkeypatch.setattr(words.sys, "argv", ["words.py", str(tmp_path / "a.py")])
    assert words.main() == 1
    assert capsys.readouterr().out == f"{tmp_path}/a.py:2: refuses: write raise, reject\n"
    (tmp_path / "a.py").write_text("# It rejects.\n")
    assert words.main() == 0
