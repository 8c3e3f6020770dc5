"""A LaTeX text is read with the files that it includes; verdicts name the file and the line."""

import json

import pytest

from backpass.cli import main
from backpass.derivation.document import read_document
from backpass.derivation.judge import judge

MAIN = r"""\documentclass{article}
\input{macros}
\begin{document}
% \input{absent}
\[ x + x = 2 x \]
\include{parts/one} \input parts/two
\[ x^2 = x x \]
\end{document}
"""
PARTS = {
    "macros.tex": r"\newcommand{\R}{\mathbb{R}}" + "\n% derive: given x \\in \\R\n",
    "parts/one.tex": "First.\n\n\\[ x + 1 = 1 + x \\]\n\\[ 2 x = 3 x \\]\n\\endinput\n\\[ 1 = 2 \\]\n",
    "parts/two.tex": "\\documentclass{subfiles}\n\\begin{document}\n\n\\[ x = 2 \\cdot \\]\n\\end{document}\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in {"main.tex": MAIN, **PARTS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / "main.tex"


def test_the_parts_are_judged_in_their_places(tree):
    document = read_document(tree.read_text(), "latex", path=tree)
    found = judge(document)
    assert [verdict.kind for verdict in found] == ["equal", "equal", "refused", "not readable", "equal"]
    places = [document.file_and_line(verdict.line) for verdict in found]
    one, two = (str(tree.parent / "parts" / name) for name in ("one.tex", "two.tex"))
    assert places == [("", 5), (one, 3), (one, 4), (two, 4), ("", 7)]
    assert document.where(found[2].line) == f"{one}, line 4"
    assert "\n    " in found[3].message and " 4: " in found[3].message
    assert document.unseen == ()


def test_the_command_names_the_file_and_the_line(tree, capsys):
    assert main(["derive", str(tree)]) == 1
    shown = "".join(capsys.readouterr().out.split())
    assert f"✗{tree.parent}/parts/one.tex,line4:refused" in shown
    main(["derive", str(tree), "--json"])
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [line["line"] for line in lines] == [5, 3, 4, 4, 7]
    assert lines[2]["file"].endswith("one.tex") and "file" not in lines[0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("main.tex", "\n\\input{absent}", "main.tex: line 2: \\input{absent}: expected a file; there is no"),
        (
            "parts/one.tex",
            "\n\n\\input{parts/one}",
            "one.tex, line 3: \\input{parts/one}: this file includes itself",
        ),
        ("parts/two.tex", "\\input{main}", "two.tex, line 1: \\input{main}: this file includes itself"),
        (
            "parts/one.tex",
            "\\subimport{parts/}{three}",
            "one.tex, line 1: \\subimport{parts/}{three}: expected a file",
        ),
    ],
)
def test_a_file_that_is_missing_or_includes_itself(tree, capsys, name, text, said):
    (tree.parent / name).write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["derive", str(tree)])
    assert stopped.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_subfile_finds_its_own_parts(tree):
    (tree.parent / "parts/two.tex").write_text("\\input{three}", encoding="utf-8")
    (tree.parent / "parts/three.tex").write_text("\\[ x = x \\]", encoding="utf-8")
    main_text = MAIN.replace("\\input parts/two", "\\subimport{parts/}{two}")
    with pytest.raises(ValueError, match="there is no"):
        read_document(main_text, "latex", path=tree)
    text = MAIN.replace("\\input parts/two", "\\subfile{parts/three}")
    assert len(judge(read_document(text, "latex", path=tree))) == 5
