"""``backpass derive`` prints the verdicts as a table, as JSON, and in the text; its exit status says whether a line is refused."""

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from backpass.cli import COMMANDS, main
from backpass.derivation.document import form_of

RIGHT = "<!-- derive: given x \\in \\mathbb{R}^n -->\n$$ \\sum_j 2 x_j = 2 \\sum_j x_j $$\n"
WRONG = RIGHT.replace("= 2", "= 3")


def run(capsys, monkeypatch, text, *options):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    status = main(["derive", "-", *options])
    return status, capsys.readouterr().out


def test_the_table_and_the_exit_status(capsys, monkeypatch):
    status, shown = run(capsys, monkeypatch, RIGHT)
    assert (status, "1 line: 1 equal" in shown) == (0, True)
    assert "at sizes 2, 3, 4" in shown
    status, shown = run(capsys, monkeypatch, WRONG)
    assert (status, "✗ line 2: refused" in shown) == (1, True)


def test_a_line_that_takes_too_long_is_not_readable(capsys, monkeypatch):
    def busy(*_):
        while True:
            pass

    monkeypatch.setattr("backpass.derivation.judge.equality", busy)
    status, shown = run(capsys, monkeypatch, WRONG, "--seconds", "0.05")
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
    assert "✗ line 2: ill-formed: this is k × m, but it is set equal to m × k" in shown
    assert "  with X (line 1)" in shown
    status, shown = run(capsys, monkeypatch, text, "--json")
    (line,) = json.loads(shown)["lines"]
    assert (status, line["counterexample"], line["rests on"]["how"]) == (1, None, "form")
    assert "> - ✗ line 2: ill-formed: this is k × m" in run(capsys, monkeypatch, text, "--annotate")[1]


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
        ["-", "-"],
        ["-", "--definitions", "-"],
        ["-", "-", "--annotate"],
        ["-", "--seconds", "-1"],
        ["-", "--seconds", "soon"],
    ],
)
def test_a_command_that_is_not_valid(capsys, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as caught:
        main(["derive", *arguments])
    assert caught.value.code == 2


def written(tmp_path, **texts):
    """Files with these texts, by their stems: Markdown, or LaTeX for a stem of "tex"."""
    paths = [tmp_path / f"{stem}.{'tex' if stem == 'tex' else 'md'}" for stem in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return list(map(str, paths))


def test_several_files(capsys, tmp_path):
    latex = "% derive: given x \\in \\mathbb{R}^n\n\\[ \\sum_j x_j = \\sum_i x_i \\]\n"
    paths = written(tmp_path, right=RIGHT, wrong=WRONG, tex=latex, none="# Nothing\n")
    assert main(["derive", *paths]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in paths] == paths
    assert sum(line.startswith("line ") for line in lines) == 3
    assert "the text has no displayed mathematics" in lines
    assert "4 files, 3 lines: 2 equal, 1 refused" in lines
    assert main(["derive", *paths[:1], *paths[2:]]) == 0


def test_the_status_of_several_files_is_the_highest(capsys, tmp_path):
    paths = written(tmp_path, unread="<!-- derive: given x -->\n", wrong=WRONG, right=RIGHT)
    assert main(["derive", *paths]) == 2
    assert (
        "3 files, 2 lines: 1 equal, 1 refused; 1 definition in comments cannot be read"
        in capsys.readouterr().out
    )


def test_json_of_several_files_is_a_list(capsys, tmp_path):
    paths = written(tmp_path, right=RIGHT, wrong=WRONG)
    assert main(["derive", "--json", *paths]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [facts["file"] for facts in found] == paths
    assert [facts["counts"]["refused"] for facts in found] == [0, 1]
    main(["derive", "--json", paths[0]])
    assert json.loads(capsys.readouterr().out) == found[0]


def test_annotated_takes_one_file(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["derive", "--annotate", *written(tmp_path, a=RIGHT, b=RIGHT)])
    assert "--annotate: expected one file; got 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["derive", "--annotate", *written(tmp_path, tex=RIGHT)])
    assert "--annotate: expected Markdown; got LaTeX" in capsys.readouterr().err


def test_annotated_says_what_is_wrong_with_a_comment(capsys, tmp_path):
    assert main(["derive", "--annotate", *written(tmp_path, a="<!-- derive: given x -->\n" + RIGHT)]) == 2
    assert "line 1: not readable" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(capsys, tmp_path):
    (tmp_path / "bad.md").write_bytes(b"\xff")
    for name, said in (
        ("absent.md", "No such file"),
        ("bad.md", "expected UTF-8"),
        ("bad.ipynb", "expected a notebook"),
    ):
        (tmp_path / "bad.ipynb").write_text("{}")
        with pytest.raises(SystemExit):
            main(["derive", *written(tmp_path, right=RIGHT), str(tmp_path / name)])
        shown = capsys.readouterr()
        assert name in shown.err and said in shown.err and not shown.out


def test_strict(capsys, monkeypatch):
    unread = RIGHT + "\n$$ x \\approx y $$\n"
    assert run(capsys, monkeypatch, unread)[0] == 0
    status, shown = run(capsys, monkeypatch, unread, "--strict")
    assert (status, "2 lines: 1 equal, 1 not readable" in shown) == (1, True)
    assert run(capsys, monkeypatch, RIGHT, "--strict")[0] == 0


def test_the_side_with_which_a_line_is_compared_is_named(capsys, monkeypatch):
    comment = "<!-- derive: given a \\in \\mathbb{R} -->\n"
    for text, said in (
        ("$$ a + a = 3 a $$", "line 2: refused: it does not equal the left-hand side"),
        ("$$ a + a = 2 a = 3 a $$", "line 2: refused: it does not equal 2 a, earlier in this line"),
        (
            "$$ a + a = 3 a = 4 a - a $$",
            "line 2: follows: it equals an earlier side of this line, which is refused",
        ),
        (
            "$$\\begin{aligned} a + a &= 2 a \\\\\n &= 3 a \\end{aligned}$$",
            "line 3: refused: it does not equal the right-hand side in line 2",
        ),
        (
            "$$\\begin{aligned} a + a \\\\\n &= 3 a \\end{aligned}$$",
            "line 3: refused: it does not equal the left-hand side in line 2",
        ),
    ):
        assert said in " ".join(run(capsys, monkeypatch, comment + text)[1].split())


@pytest.mark.parametrize(
    "text, counted",
    [
        ("$$ s = 2 $$", "1 line: 1 definition"),
        ("$$ s = 2 $$\n\n$$ t = s $$", "2 lines: 2 definitions"),
        (
            "$$ s = 2 = 1 + 1 = 3 = 4 - 1 $$",
            "4 lines: 1 equal, 1 refused, 1 equal to a refused line, 1 definition",
        ),
    ],
)
def test_counts_in_words(capsys, monkeypatch, text, counted):
    assert counted in run(capsys, monkeypatch, text)[1].splitlines()


ROOT = Path(__file__).parents[2]
ENDINGS = {"markdown": "a.md", "tex": "a.tex", "jupyter": "a.ipynb"}


def test_the_hook_runs_the_command_on_texts_that_it_reads():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, command, *rest = hook["entry"].split()
    assert (hook["id"], program, rest, hook["language"]) == ("backpass-derive", "backpass", [], "python")
    assert command in COMMANDS
    forms = [form_of(ENDINGS[kind], "") for kind in hook["types_or"]]
    assert forms == ["markdown", "latex", "notebook"]


SIGHT = "Let $W \\in \\mathbb{R}^{m \\times n}$.\n\n$$ y = W x $$\n\n$$ 2 z_{ij} = z_{ij} + z_{ijk} $$\n"


def test_what_is_inferred_is_said(capsys, monkeypatch):
    status, shown = run(capsys, monkeypatch, SIGHT)
    words = " ".join(shown.split())
    assert status == 0 and "3 = definition* W x" in words
    assert "* not declared, but inferred from the text: W is a matrix of shape m × n, from “W" in words
    assert "1 of 1 unread lines needs 1 name: --suggest prints a comment to start from" in words
    facts = json.loads(run(capsys, monkeypatch, SIGHT, "--json")[1])
    assert facts["lines"][0]["inferred"][1].startswith("x is a vector of length n")
    assert facts["lines"][1]["waits for"]
    assert "(W is a matrix" in run(capsys, monkeypatch, SIGHT, "--annotate")[1]


def test_only_what_is_declared(capsys, monkeypatch):
    shown = run(capsys, monkeypatch, SIGHT, "--declared")[1]
    assert "2 lines: 2 not readable" in shown and "*" not in shown


def test_the_suggestion_can_be_pasted(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(SIGHT))
    assert main(["derive", "-", "--suggest"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("<!-- derive:\ngiven ") and shown.out.endswith("-->\n")
    assert "declare or define these yourself: z" in shown.err
    _, again = run(capsys, monkeypatch, shown.out + SIGHT)
    assert "2 lines: 1 definition, 1 not readable" in again and "definition*" not in again


@pytest.mark.parametrize("options", [["--declared"], ["--json"], ["--annotate"], ["-"]])
def test_a_suggestion_is_for_one_text(options, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(SIGHT))
    with pytest.raises(SystemExit) as stopped:
        main(["derive", "-", "--suggest", *options])
    assert stopped.value.code == 2


def test_the_width_of_80_columns_is_kept(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(capsys, monkeypatch, SIGHT)[1]
    assert max(map(len, shown.splitlines())) <= 80
