"""README quotes the record of the two commands' cost."""

import math
from pathlib import Path

from backpass.recorded import records

README = Path(__file__).resolve().parents[2] / "README.md"


def test_readme_has_the_minutes_of_the_record():
    facts = records.load("weight").facts
    book, test = (math.ceil(facts[f"{command}: minutes"]) for command in ("book", "test"))
    assert f"`make book` took {book} minutes and `make test` {test}," in README.read_text(encoding="utf-8")


def test_the_commands_keep_their_limits():
    """The limits are in CPU minutes, for the quiet machine of the record; a busy or a slow one may need more."""
    facts = records.load("weight").facts
    assert facts["book: CPU minutes"] <= 9 and facts["test: CPU minutes"] <= 22
