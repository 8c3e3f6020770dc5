"""A record is drawn as it was measured, and said in words."""

import io
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import matplotlib

from backpass import figures
from backpass.recorded.records import Record
from backpass.training.run import Record as Step


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


def test_a_figure_is_drawn_once_with_the_layout_of_its_file():
    (figure, axes), (twin, of_twin) = figures.new(), figures.new()
    for each in (axes, of_twin):
        each.set(xlabel="steps", ylabel="loss")
    twin.savefig(io.BytesIO(), format="svg")
    drawn, draw, before = [], axes.draw, (figure.get_layout_engine(), figure.canvas)
    axes.draw = lambda renderer: drawn.append(draw(renderer))

    with matplotlib.rc_context({"figure.autolayout": True}):  # a reader's own setting
        shown = figures.to_html(figure, "A grid.", "A caption.")
    assert len(drawn) == 1 and axes.get_position().bounds == of_twin.get_position().bounds
    assert (figure.get_layout_engine(), figure.canvas) == before
    assert figures.to_html(figure, "A grid.", "A caption.") == shown


def test_norms_by_part_are_lines_named_at_their_ends():
    every = [({"wte": 1.0, "h.0": 4.0, "ln_f": 0.0}, 0), ({"wte": 9.0, "h.0": 2.0, "ln_f": 0.5}, 1)]
    _, axes, words = figures.of_norms(Step(step, 1.0, 0.1, 5.0, norms, 1.0) for norms, step in every)
    drawn = [line.get_xydata() for line in axes.get_lines()]
    np.testing.assert_array_equal(drawn[0], [[0, 1], [1, 9]])
    np.testing.assert_array_equal(drawn[1], [[0, 4], [1, 2]])
    np.testing.assert_array_equal(drawn[2], [[0, np.nan], [1, 0.5]])
    names = {text.get_text(): text.xy[1] for text in axes.texts}
    assert names["ln_f"] < names["h.0"] < names["wte"]
    assert "wte: at most 9, in step 1; h.0: at most 4, in step 0" in words
    assert axes.get_yscale() == "log"


def test_norms_at_the_same_height_have_names_that_do_not_overlap():
    norms = dict.fromkeys(("a", "b", "c"), 1.0) | {"low": 0.1}
    _, axes, _ = figures.of_norms([Step(0, 1.0, 0.1, 2.0, norms, 1.0)])
    heights = sorted(text.xy[1] for text in axes.texts)
    assert len(heights) == 4 and min(np.diff(heights)) > 0.05


def test_norms_need_a_record():
    with pytest.raises(ValueError, match="records: expected at least one"):
        figures.of_norms([])


def steps() -> dict:
    return {f"{at}": (figures.new()[0], f"Step {at}.") for at in range(3)}


def test_a_slider_shows_one_step_at_a_time_and_the_first_one_in_print():
    shown = figures.steps_to_html(steps(), "Time $t$", "Three steps.", first=1)
    assert shown.count('role="img"') == 3
    assert re.findall(r'data-value="(\d)"( hidden)?', shown) == [
        ("0", " hidden"),
        ("1", ""),
        ("2", " hidden"),
    ]
    assert '<p class="steps-control" hidden>' in shown and 'max="2" step="1" value="1"' in shown


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": dict([*steps().items()][:1])},
        {"first": 3},
        {"first": -1},
        {"label": ""},
        {"caption": " "},
    ],
)
def test_a_slider_without_steps_or_words_is_rejected(changed):
    with pytest.raises(ValueError, match="expected"):
        figures.steps_to_html(**{"steps": steps(), "label": "Time", "caption": "Three steps."} | changed)


def test_a_diagram_has_the_size_that_fits_and_the_same_unit_both_ways():
    figure, axes = figures.diagram(10, 5)
    assert tuple(figure.get_size_inches()) == (4.8, 2.4)
    figures.box(axes, (1, 1), 2, 1, "x", colour=0)
    figures.grid(axes, (5, 1), 2, 3, 0.5, filled=[(0, 2)])
    figures.arrow(axes, (3, 1.5), (5, 1.5), "dx", backward=True)
    corners = {tuple(round(v, 9) for v in patch.get_xy()) for patch in axes.patches if patch.get_alpha()}
    assert corners == {(1, 1), (6.0, 1.5)}  # row 0 is at the top
    assert axes.get_aspect() == 1
