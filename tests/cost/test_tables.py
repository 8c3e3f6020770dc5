"""The table of formula and count: right in both renderings, and seen to disagree when it does."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from backpass import cost, ops
from backpass.ops import softmax
from backpass.verify import draw
from backpass.verify.drawing import options_for

LINEAR = [(2, 3, 5), (5, 4), (4,)]


@pytest.mark.parametrize("stem", ops.STEMS)
def test_agrees_and_is_sound_html(stem):
    table = cost.table(stem, *draw(stem, np.random.default_rng(0)), **options_for(stem))
    assert table.agrees
    root = ElementTree.fromstring(table._repr_html_())
    headings = root.findall(".//th")
    assert all(heading.get("scope") in ("col", "row") for heading in headings)
    assert all(heading.text for heading in headings)
    assert len({len(row) for row in root.findall(".//tr")}) == 1
    assert f"{table.cost.forward.total:,} ✓" in table._repr_html_()
    assert "≠" not in repr(table)


def test_terminal():
    lines = repr(cost.table("softmax", (300, 5))).splitlines()
    assert lines[0] == "softmax at m = 300, n = 5"
    assert lines[2].split("  ")[0] == "forward FLOPs"
    assert lines[2].split()[-3:] == ["5,700", "5,700", "="]
    assert lines[-1].split() == ["saved", "bytes", "y[300,", "5]", "float64", "12,000"]


def test_some_gradients_alone():
    table = cost.table("linear", (3, 5), (5, 7), wanted=["x"])
    assert table.agrees and table.cost.saved_bytes == 0
    first, *_ = repr(table).splitlines()
    assert first == "linear at m = 3, n = 5, p = 7; gradients wanted: x"
    assert str(table.text.backward) == str(cost.symbolic_formula("linear", wanted=["x"]).backward)
    assert cost.table("linear", (3, 5), (5, 7), wanted=()).title.endswith("; gradients wanted: none")


def test_the_formula_shown_is_that_of_the_inputs_given():
    assert r"+ m p" in cost.table("linear", *LINEAR)._repr_html_()
    assert r"+ m p" not in cost.table("linear", *LINEAR[:2])._repr_html_()


def test_a_wrong_formula_is_seen():
    class Wrong:
        SHAPES = softmax.SHAPES
        forward = staticmethod(softmax.forward)
        backward = staticmethod(softmax.backward)
        forward_flops = staticmethod(lambda m, n: 4 * m * n)
        backward_flops = staticmethod(softmax.backward_flops)

    table = cost.table(Wrong, (3, 5))
    assert not table.agrees
    assert "≠" in repr(table)
    assert "57 ✗ differs" in table._repr_html_()


def test_an_options_value_is_put_into_the_formula():
    table = cost.table("dropout", (3, 5), training=False)
    assert (table.text.forward, table.text.backward) == ("0", "0") and table.agrees
    assert cost.table("dropout", (3, 5), p=0.25).title == "dropout at m = 15"
