"""The page of measured speed claims a GPU for what the records measured on one, and for nothing else."""

import re

import pytest

from backpass import kernels
from backpass.recorded import records

from .chapters import BOOK, chapters, prose

PAGE = BOOK / "chapters" / "reference" / "kernels_measured.md"


def title_and_opening() -> tuple[str, str]:
    """The page's title, and its first paragraph."""
    match = re.search(r"^# (.+)\n\n(.+)", prose(PAGE), re.MULTILINE)
    assert match, f"{PAGE.name}: expected a title and a paragraph below it"
    return match[1], match[2]


def test_the_first_sentence_claims_what_was_timed_on_a_gpu():
    title, opening = title_and_opening()
    assert title == "Speed, measured"
    first = re.split(r"(?<=\.) ", opening, maxsplit=1)[0]
    assert first == (
        "Every Triton kernel of this book except those of dropout and the soft cap has been timed on one H100, and every operation "
        "below in array code on a CPU, each beside PyTorch's own function."
    )
    gpus = {d for name in ("operations", "attention_speed") for d in records.devices(name) if "H100" in d}
    assert len(gpus) == 1
    timed = {
        row["operation"].partition(",")[0] for row in of_a_gpu("operations").where(provider="our kernel")
    }
    assert of_a_gpu("attention_speed").where(provider="our kernel")
    assert set(kernels.STEMS) - timed == {"dropout", "flash_attention", "softcap"}


def of_a_gpu(name: str) -> records.Record:
    return records.load(name, gpu=True)


def names_read() -> set[str]:
    """The names of the records that the page reads."""
    return set(re.findall(r"records\.(?:load|devices)\(\"(\w+)\"", PAGE.read_text(encoding="utf-8")))


def test_the_page_reads_the_records_that_its_first_sentence_is_judged_by():
    assert names_read() == {"operations", "attention_speed", "attention_memory"}


@pytest.mark.parametrize(
    "page", [*chapters(), BOOK / "README.md", BOOK / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_no_page_uses_the_title_that_claimed_measured_kernels(page):
    assert "kernels, measured" not in page.read_text(encoding="utf-8").lower()
