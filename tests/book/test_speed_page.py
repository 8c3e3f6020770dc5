"""The page of measured speed claims a GPU for what the records measured on one, and for nothing else."""

import re

import pytest

from backpass import records

from .chapters import BOOK, chapters, prose

PAGE = BOOK / "chapters" / "reference" / "kernels_measured.md"


def timed_on_a_gpu(name: str) -> bool:
    """Whether a record of that name times our kernels on a GPU."""
    found = [records.load(name, device) for device in records.devices(name)]
    return any(record.on_gpu and record.where(provider="our kernel") for record in found)


def title_and_opening() -> tuple[str, str]:
    """The page's title, and its first paragraph."""
    match = re.search(r"^# (.+)\n\n(.+)", prose(PAGE), re.MULTILINE)
    assert match, f"{PAGE.name}: expected a title and a paragraph below it"
    return match[1], match[2]


def test_the_title_names_the_cpu_until_the_kernels_are_timed_on_a_gpu():
    title, _ = title_and_opening()
    gpus = [d for d in records.devices("operations") if records.load("operations", d).on_gpu]
    assert not gpus, (
        f"the operations were timed on {', '.join(gpus)}: rename “{title}”, say in its first paragraph which kernels "
        "were timed on a GPU, and change this test"
    )
    assert title == "Speed, measured on a CPU"


def test_the_first_sentence_names_the_kernels_that_were_timed_on_a_gpu():
    _, opening = title_and_opening()
    first, rest = re.split(r"(?<=\.) ", opening, maxsplit=1)
    said = "Attention's is the only one of this book's Triton kernels that has been timed on a GPU."
    assert timed_on_a_gpu("attention_speed") and not timed_on_a_gpu("operations"), f"no longer true: {said}"
    assert first == said
    assert rest.startswith(
        "Every time outside [the section on attention](kernels-measured-attention) was measured on a CPU,"
    )
    on_gpu = {
        name for name in names_read() if any(records.load(name, d).on_gpu for d in records.devices(name))
    }
    assert on_gpu <= {"attention_speed", "attention_memory"}


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
