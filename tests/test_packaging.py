"""What is built and published: the source distribution, the pins, and the Pythons that are tested."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
PINS = {
    re.split("[=;]", line)[0].strip().lower().replace("_", "-")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
}


@pytest.mark.parametrize("path", PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"])
def test_what_the_source_distribution_leaves_out_is_there(path):
    assert (ROOT / path).exists()


def test_the_source_distribution_holds_nothing_under_another_licence():
    excluded = [ROOT / path for path in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"]]
    licences = [path for folder in ("assets", "src", "ext") for path in (ROOT / folder).rglob("LICENSE*")]
    assert licences
    for licence in licences:
        assert any(folder in licence.parents for folder in excluded), licence


def test_the_ledger_is_a_distribution_of_its_own():
    ledger = tomllib.loads((ROOT / "src/backpass_ledger/pyproject.toml").read_text(encoding="utf-8"))
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/backpass"]
    assert ledger["project"]["version"] == PROJECT["project"]["version"]
    assert ledger["project"]["requires-python"] == PROJECT["project"]["requires-python"]


def test_every_dependency_is_pinned():
    extras = PROJECT["project"]["optional-dependencies"]
    named = [
        *PROJECT["project"]["dependencies"],
        *extras["torch"],
        *extras["book"],
        *extras["test"],
        *extras["train"],
    ]
    names = {re.split(r"[\[<>=;! ]", requirement)[0].lower() for requirement in named} - {"backpass"}
    assert names - PINS == set()


def test_the_oldest_and_the_newest_python_are_tested():
    pythons = [
        entry.rpartition(" ")[2]
        for entry in PROJECT["project"]["classifiers"]
        if entry.startswith("Programming Language :: Python :: 3.")
    ]
    assert f">={pythons[0]}" == PROJECT["project"]["requires-python"]
    assert all(f'"{python}"' in CI for python in (pythons[0], pythons[-1]))
