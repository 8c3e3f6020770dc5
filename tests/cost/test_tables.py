"""The table of formula and count: right in both renderings, and seen to disagree when it does."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from backpass import cost, ops
from backpass.ops import softmax

INPUTS = {
    "softmax": [(3, 5)],
    "log_softmax": [(3, 5)],
    "nll": [(3, 5), np.array([4, 0, -100])],
    "cross_entropy": [(3, 5), np.array([4, 0, -100])],
    "linear": [(2, 3, 5), (5, 4), (4,)],
    "matmul": [(2, 1, 3, 4), (5, 4, 2)],
    "scale": [(3,)],
    "fork": [(3,)],
    "residual": [(3,), (3,)],
    "layer_norm": [(2, 3, 5), (5,), (5,)],
    "rms_norm": [(2, 3, 5), (5,)],
}
OPTIONS = {"scale": {"factor": 0.5}}


@pytest.mark.parametrize("stem", ops.STEMS)
def test_agrees_and_is_sound_html(stem):
    table = cost.table(stem, *INPUTS[stem], **OPTIONS.get(stem, {}))
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


def test_the_formula_shown_is_that_of_the_inputs_given():
    assert r"+ m p" in cost.table("linear", *INPUTS["linear"])._repr_html_()
    assert r"+ m p" not in cost.table("linear", *INPUTS["linear"][:2])._repr_html_()


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
