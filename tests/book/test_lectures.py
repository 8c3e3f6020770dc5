"""The lectures lead to sections and exercises that exist, under the exercises' own names."""

import re

import pytest

from .chapters import BOOK, chapters, code_cells
from .test_chapters import EXERCISE

PAGE = BOOK / "chapters" / "reference" / "lectures.md"
PLANS = [cell for cell in code_cells(PAGE) if cell.startswith("lecture(")]
LINK = re.compile(r"\[([^\]]+)\]\(([\w-]+)\)")


@pytest.fixture(scope="module")
def labels() -> dict[str, str]:
    """Each label of the book, with the name of the exercise that has it, "" for a section."""
    found = {}
    for page in chapters():
        text = page.read_text()
        found |= dict.fromkeys(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE), "")
        for exercise in EXERCISE.finditer(text):
            label = re.search(r"^:label: (\S+)$", exercise["body"], re.MULTILINE)[1]
            found[label] = exercise["title"].split(": ", 1)[1]
    return found


def test_there_are_twelve():
    assert len(PLANS) == 12


@pytest.mark.parametrize("plan", PLANS, ids=range(1, len(PLANS) + 1))
def test_a_lecture_leads_to_what_exists(plan, labels):
    for line in plan.splitlines()[1:-1]:
        _, kind, content = line.split(" | ")
        links = LINK.findall(content)
        assert all(label in labels for _, label in links), content
        if kind == "Exercises":
            assert len(links) == 3
            for name, label in links:
                assert name.lower() == labels[label].lower()
        else:
            assert all(not labels[label] for _, label in links)
