"""A baseline records which lines were judged, and the command fails where a line is worse."""

import json

import pytest

from backpass.cli import main

GIVEN = "<!-- derive: given x \\in \\mathbb{R}^n, a \\in \\mathbb{R} -->\n\n"
RIGHT = "$$ a + a = 2 a $$\n\n"
WRONG = "$$ a + a = 3 a $$\n\n"
UNREAD = "$$ a \\approx b $$\n\n"


@pytest.fixture
def derive(tmp_path, capsys):
    """Judges a text against the baseline; returns the exit status and what is said."""
    text, baseline = tmp_path / "text.md", tmp_path / "baseline.json"

    def run(source, *options):
        text.write_text(source, encoding="utf-8")
        status = main(["derive", str(text), "--baseline", str(baseline), *options])
        return status, capsys.readouterr().err

    run.baseline = baseline
    return run


def test_what_was_wrong_or_unread_passes_and_what_is_new_fails(derive):
    assert derive(GIVEN + RIGHT + WRONG + UNREAD, "--update-baseline") == (0, "")
    assert derive(GIVEN + RIGHT + WRONG + UNREAD) == (0, "")
    assert derive("\n\n" + GIVEN + UNREAD + "Moved.\n\n" + WRONG + RIGHT)[0] == 0
    assert derive(GIVEN + RIGHT + WRONG + "$$ a  +  a=2  a $$\n")[0] == 0
    status, said = derive(GIVEN + RIGHT + WRONG + "$$ a - a = a $$\n")
    assert status == 1 and "text.md, line 7: wrong, but was not before: a" in said
    status, said = derive(GIVEN + RIGHT + WRONG + WRONG)
    assert status == 1 and said.count("wrong, but was not before") == 1


def test_a_line_that_is_not_judged_any_more(derive):
    right = "$$ \\sum_i x_i a = a \\sum_j x_j $$\n\n"
    derive(GIVEN + right, "--update-baseline")
    status, said = derive(
        GIVEN.replace("x", "y").replace("given y", "given x, z") + right.replace("$$ ", "$$ \\!")
    )
    assert status == 0, said
    status, said = derive("<!-- derive: given x \\in \\mathbb{R}, a \\in \\mathbb{R} -->\n\n" + right)
    assert status == 1 and "line 3: no longer judged: a \\sum_j x_j" in said
    assert derive(GIVEN)[0] == 0  # a line that is deleted is not worse


def test_strict_and_invalid_definitions_count(derive):
    derive(GIVEN + RIGHT + UNREAD, "--update-baseline")
    assert derive(GIVEN + RIGHT + UNREAD, "--strict")[0] == 1
    assert derive("<!-- derive: given x -->\n" + RIGHT)[0] == 2


def test_several_files_are_kept_apart(tmp_path, capsys):
    one, two, baseline = (tmp_path / name for name in ("one.md", "two.md", "baseline.json"))
    one.write_text(GIVEN + WRONG)
    two.write_text(GIVEN + RIGHT)
    common = ["--baseline", str(baseline)]
    assert main(["derive", str(one), str(two), *common, "--update-baseline"]) == 0
    assert set(json.loads(baseline.read_text())["files"]) == {"one.md", "two.md"}
    assert main(["derive", str(one), str(two), *common]) == 0
    two.write_text(GIVEN + WRONG)
    assert main(["derive", str(one), str(two), *common]) == 1
    assert main(["derive", str(two), *common, "--update-baseline"]) == 0
    assert main(["derive", str(one), str(two), *common]) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--update-baseline writes it"),
        ("{}", "expected a baseline that this command has written"),
        ('{"version": 9, "files": {}}', "expected a baseline of version 1; got 9"),
    ],
)
def test_a_baseline_that_cannot_be_read(derive, capsys, content, said):
    if content is not None:
        derive.baseline.write_text(content)
    with pytest.raises(SystemExit) as stopped:
        derive(GIVEN + RIGHT)
    assert stopped.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_an_update_needs_a_file(tmp_path, capsys):
    (tmp_path / "text.md").write_text(RIGHT)
    with pytest.raises(SystemExit):
        main(["derive", str(tmp_path / "text.md"), "--update-baseline"])
    assert "expected --baseline FILE as well" in " ".join(capsys.readouterr().err.split())
