"""A record is drawn as it was measured, and said in words."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from backpass import figures
from backpass.records import Record


@pytest.fixture
def record() -> Record:
    return Record(
        name="memory",
        question="How much?",
        device="any",
        threads=1,
        versions={},
        date="2026-01-31",
        commit="0123456789ab",
        dirty=False,
        columns=[["s", "length", ""], ["provider", "provider", ""], ["mebibytes", "peak", "MiB"]],
        rows=[
            {"s": 512, "provider": "ours", "mebibytes": 1.5},
            {"s": 1024, "provider": "ours", "mebibytes": 12345.6},
            {"s": 512, "provider": "theirs", "mebibytes": 2.0},
            {"s": 1024, "provider": "theirs", "mebibytes": None},
        ],
    )


def test_each_provider_is_a_line_of_its_rows(record):
    _, axes, _ = figures.of_record(record, "s", "mebibytes")
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    np.testing.assert_array_equal(lines["ours"], [[512, 1.5], [1024, 12345.6]])
    np.testing.assert_array_equal(lines["theirs"], [[512, 2.0]])
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "1,024"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("length", "peak, MiB")


def test_its_figures_are_said_in_words(record):
    figure, _, words = figures.of_record(record, "s", "mebibytes")
    assert words == (
        "peak, MiB against length, both axes logarithmic. ours: 1.5 at 512, 12,300 at 1,024; theirs: 2 at 512."
    )
    assert 'role="img"' in figures.to_html(figure, alt=words, caption="Memory.")


def test_a_caption_stands_below_it_with_its_mathematics():
    figure, _ = figures.new()
    shown = figures.to_html(figure, "A grid.", "Where $a < b$ & so on.")
    assert r'mathjax_process">Where \(a &lt; b\) &amp; so on.</figcaption></figure>' in shown
    for alt, caption, missing in (("", "A caption.", "alt"), ("A grid.", " ", "caption")):
        with pytest.raises(ValueError, match=f"^{missing}: expected a sentence"):
            figures.to_html(figure, alt, caption)
