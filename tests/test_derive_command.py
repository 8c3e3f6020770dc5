"""``backpass derive`` prints the verdicts as a table, as JSON, and in the text; its exit status tells whether a line is refused."""

import io
import json
import sys
import time

import pytest

from backpass.cli import main
from backpass.derivation.judge import _Judging

RIGHT = "<!-- derive: given x \\in \\mathbb{R}^n -->\n$$ \\sum_j 2 x_j = 2 \\sum_j x_j $$\n"
WRONG = RIGHT.replace("= 2", "= 3")


def run(capsys, monkeypatch, text, *options):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    status = main(["derive", "-", *options])
    return status, capsys.readouterr().out


def test_the_table_and_the_exit_status(capsys, monkeypatch):
    status, shown = run(capsys, monkeypatch, RIGHT)
    assert (status, "1 lines: 1 equal" in shown) == (0, True)
    assert "at sizes 2, 3, 4" in shown
    status, shown = run(capsys, monkeypatch, WRONG)
    assert (status, "✗ line 2: refused" in shown) == (1, True)


def test_a_line_that_takes_too_long_is_not_readable(capsys, monkeypatch):
    monkeypatch.setattr(_Judging, "_compare", lambda *_: time.sleep(30))
    status, shown = run(capsys, monkeypatch, RIGHT, "--seconds", "0.05")
    assert (status, "line 2: not readable: it took longer than 0.05 s" in " ".join(shown.split())) == (
        0,
        True,
    )


def test_json(capsys, monkeypatch):
    status, shown = run(capsys, monkeypatch, WRONG, "--json")
    (line,) = json.loads(shown)["lines"]
    assert (status, line["verdict"], line["line"]) == (1, "refused", 2)
    assert line["counterexample"]["where"] == ["n = 2"]
    assert line["rests on"]["definitions"] == [{"name": "x", "line": 1}]


def test_shapes_that_do_not_fit(capsys, monkeypatch):
    text = "<!-- derive: given X \\in \\mathbb{R}^{m \\times k} -->\n$$ X = X^\\top $$\n"
    status, shown = run(capsys, monkeypatch, text)
    assert status == 1
    assert "✗ line 2: refused: this is k × m, but it is set equal to m × k" in shown
    assert "  with X (line 1)" in shown
    status, shown = run(capsys, monkeypatch, text, "--json")
    (line,) = json.loads(shown)["lines"]
    assert (status, line["counterexample"], line["rests on"]["how"]) == (1, None, "shapes")
    assert "> - ✗ line 2: refused: this is k × m" in run(capsys, monkeypatch, text, "--annotate")[1]


def test_annotated(capsys, monkeypatch):
    _, shown = run(capsys, monkeypatch, WRONG, "--annotate")
    assert shown.startswith(WRONG)
    assert "> - ✗ line 2: refused: at n = 2" in shown


def test_a_definition_that_cannot_be_read_exits_with_2(capsys, monkeypatch):
    assert run(capsys, monkeypatch, "<!-- derive: given x -->\n")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["absent.md"],
        ["-", "--definitions", "absent"],
        ["-", "--json", "--annotate"],
        ["-", "--seconds", "-1"],
        ["-", "--seconds", "soon"],
    ],
)
def test_a_command_that_is_not_valid(capsys, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as caught:
        main(["derive", *arguments])
    assert caught.value.code == 2
