"""What claims nothing is not counted; what is not looked at is said; and more forms of a text are read."""

import json

import pytest

from backpass.cli import main
from backpass.derivation.document import form_of, read_document
from backpass.derivation.judge import judge

from .judging import kinds, one, verdicts

GIVEN = r"given x \in \mathbb{R}^n, a \in \mathbb{R}"


@pytest.mark.parametrize(
    "formula",
    [
        r"\frac{\partial L}{\partial x}",
        "x_i",
        r"\sum_{i=1}^n x_i",
        r"W^{(l)}, \quad b^{(l)}",
        r"\vdots",
        r"x \leftarrow 2 x",
    ],
)
def test_a_formula_without_a_relation_claims_nothing(formula):
    assert set(kinds(f"$$ {formula} $$", GIVEN)) == {"nothing claimed"}


@pytest.mark.parametrize(
    "formula",
    [
        r"x \approx 1",
        r"x \le 1",
        "x < 1",
        r"x \overset{(a)}{=} 1",
        r"x \stackrel{!}{\equiv} 1",
        r"x \to 0",
        r"\text{the sum of } x \text{ is } 1",
        r"p \propto x",
        r"A \succeq 0",
        r"x := 1 +",
    ],
)
def test_another_relation_or_words_are_not_readable(formula):
    assert one(formula, GIVEN).kind == "not readable"


def test_what_claims_nothing_does_not_count(tmp_path, capsys):
    text = tmp_path / "text.md"
    text.write_text("$$ x_i $$\n\n$$ 1 + 1 = 2 $$\n", encoding="utf-8")
    assert main(["derive", str(text), "--strict"]) == 0
    shown = capsys.readouterr().out
    assert "1 line: 1 equal; 1 formula without a claim" in shown and "x_i" not in shown
    assert main(["derive", str(text), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["version"] == 1
    assert sum(facts["counts"].values()) == 1
    assert [line["verdict"] for line in facts["lines"]] == ["nothing claimed", "equal"]
    main(["derive", str(text), "--annotate"])
    assert capsys.readouterr().out.count("> - ") == 1


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("text.tex", "1\n\\begin{empheq}{align}1 = 2\\end{empheq}", (2, "empheq")),
        ("text.tex", "1\n\n\\input{sections/one}", (3, r"\input")),
        ("text.tex", "\\include{one}", (1, r"\include")),
        ("text.md", "1\n\n```latex\n\\[ 1 = 2 \\]\n```", (3, "a fence of latex")),
    ],
)
def test_what_is_not_looked_at_is_said(name, text, what, tmp_path, capsys):
    assert read_document(text, form_of(name, text)).unseen == (what,)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert main(["derive", str(path)]) == 0
    assert f"not looked at: {what[1]} (line {what[0]})" in capsys.readouterr().out
    assert main(["derive", str(path), "--strict"]) == 1
    capsys.readouterr()
    assert main(["derive", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not looked at"][0]["what"] == what[1]


def test_what_is_read_or_commented_out_is_not_said():
    text = "% \\input{one}\n\\begin{verbatim}\\include{two}\\end{verbatim}\n\\begin{align}1 &= 1\\end{align}"
    assert read_document(text, "latex").unseen == ()
    assert read_document("```python\n1\n```\n\n:::{math}\n1 = 1\n:::\n", "markdown").unseen == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "text.tex",
            "\\begin{IEEEeqnarray}{rCl}\n1 + 1 & = & 2 \\IEEEnonumber \\\\\n & = & 3\n\\end{IEEEeqnarray}",
        ),
        ("text.tex", "\\begin{dmath*}\n1 + 1 = 2 \\\\ = 3\n\\end{dmath*}"),
        ("text.md", ":::{math}\n:label: one\n1 + 1 = 2 \\\\\n= 3\n:::\n"),
        ("text.rst", ".. math::\n   :label: one\n\n   1 + 1 &= 2 \\\\\n   &= 3\n\nText.\n"),
        ("text.rst", ".. math::\n\n   1 + 1 = 2\n\n   1 + 1 = 3\n\nText 1 = 4.\n"),
    ],
)
def test_more_displays_are_read(name, text):
    assert kinds(text, name=name) == ["equal", "refused"]


def test_definitions_in_restructured_text():
    text = ".. derive: given x \\in \\mathbb{R}^n\n\n.. math:: \\sum_i x_i = \\sum_j x_j\n"
    assert kinds(text, name="text.rst") == ["equal"]


@pytest.mark.parametrize(
    "rest", ["", "\n<!-- another -->\n", "\n<!-- derive: given y \\in \\mathbb{R} -->\n"]
)
def test_a_comment_without_an_end(rest, tmp_path, capsys):
    path = tmp_path / "text.md"
    path.write_text("<!-- derive: given x \\in \\mathbb{R}\n" + rest, encoding="utf-8")
    assert main(["derive", str(path)]) == 2
    assert "this comment has no end: write -->" in capsys.readouterr().out


def test_a_binary_file(tmp_path, capsys):
    path = tmp_path / "text.md"
    path.write_bytes(b"\0\0 $$ 1 = 1 $$")
    with pytest.raises(SystemExit) as stopped:
        main(["derive", str(path)])
    assert stopped.value.code == 2
    assert "expected text; got NUL" in capsys.readouterr().err


def test_places():
    assert [verdict.line for verdict in verdicts("\n$$ 1 = $$")] == [2]
    cells = [{"cell_type": "markdown", "source": ["$$ x = 2 $$\n", "\n", "$$ x + 1 = 4 $$"]}]
    text = json.dumps({"cells": cells})
    (_, refused) = judge(read_document(text, "notebook"))
    assert refused.line == 3
    assert read_document(text, "notebook").where(3) == "cell 1, line 3"
    assert read_document("1", "markdown").where(3) == "line 3"
