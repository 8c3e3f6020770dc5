"""A claim's record, the verdicts that findings support, and the figures that a check holds."""

import numpy as np
import pytest

from backpass_ledger.claims.evidence import (
    CAVEAT,
    FALSE,
    INCONSISTENT,
    LEFT_OUT,
    TRUE,
    UNCHECKABLE,
    VERDICTS,
    Evidence,
)
from backpass_ledger.claims.record import WrongVerdict, claim, figures

SUPPORTED = {
    TRUE: [("as_printed", True)],
    CAVEAT: [("as_printed", True), ("elsewhere", False), ("right", True)],
    FALSE: [("as_printed", True), ("as_printed", np.False_), ("right", True)],
    INCONSISTENT: [("clashes", True), ("as_printed", False), ("right", True)],
    LEFT_OUT: [("left_out", 7), ("as_printed", True)],
    UNCHECKABLE: [],
}


def found(findings):
    it = Evidence()
    for method, value in findings:
        getattr(it, method)(value)
    return it


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.key)
def test_findings_support_one_verdict(verdict):
    assert found(SUPPORTED[verdict]).verdict is verdict


@pytest.mark.parametrize(
    "findings",
    [
        [("as_printed", False)],  # false, and nothing is right
        [("as_printed", True), ("right", False)],
        [("as_printed", False), ("right", True), ("right", False)],
        [("as_printed", True), ("elsewhere", True)],
        [("as_printed", False), ("elsewhere", False)],
        [("elsewhere", False)],
        [("clashes", False)],
        [("left_out", 0)],
    ],
)
def test_findings_that_support_nothing_are_rejected(findings):
    with pytest.raises(ValueError, match=r"support|does not hold"):
        _ = found(findings).verdict


@pytest.mark.parametrize("value", [1, 0.0, "true", None, np.array([True, True])])
def test_a_finding_is_a_truth_value(value):
    with pytest.raises(TypeError, match="expected True or False"):
        Evidence().as_printed(value)


def a_claim(verdict=TRUE, topic="softmax", harm=0):
    @claim("§1", verdict, topic=topic, page="operations/softmax", harm=harm)
    def F1(it):
        """Half of 2,048
        is 1024.

        So it is, and 0.5 is a half.
        """
        half = 2048 // 2
        it.as_printed(half == 1_024)

    return F1


def test_a_claim_is_read_from_its_function():
    F1 = a_claim()
    assert (F1.name, F1.number, F1.says) == ("F1", 1, "Half of 2,048 is 1024.")
    assert F1.truth == "So it is, and 0.5 is a half."
    assert F1.code == "half = 2048 // 2\nit.as_printed(half == 1_024)"
    assert F1.unchecked_figures() == ["0.5"]


def test_a_formula_may_be_broken_before_a_minus():
    @claim("§1", TRUE, topic="loss", page="operations/softmax")
    def F1(it):
        """One.

        Two takes $4n
        - 1$ steps.

        - an item
        - another
        """
        it.as_printed(True)

    assert F1.truth == "Two takes $4n - 1$ steps.\n\n- an item\n- another"


@pytest.mark.parametrize("verdict", [v for v in VERDICTS if v is not TRUE and v is not UNCHECKABLE])
def test_a_claim_with_another_verdict_fails(verdict):
    a_claim().run()
    with pytest.raises(WrongVerdict, match=f"F1: the record says {verdict.words}; its check finds true"):
        a_claim(verdict).run()


def test_records_that_are_not_complete_are_rejected():
    with pytest.raises(ValueError, match="F1: topic: expected one of"):
        a_claim(topic="softmaxes")
    with pytest.raises(ValueError, match="F1: harm: expected 0 to 10; got 11"):
        a_claim(harm=11)
    with pytest.raises(ValueError, match="F1: body: expected a check, unless"):
        a_claim(UNCHECKABLE)

    def F2(it):
        """Only a claim."""

    with pytest.raises(ValueError, match="F2: body: expected a check, unless"):
        claim("§1", TRUE, topic="loss", page="")(F2)
    with pytest.raises(ValueError, match="F2: docstring: expected a second paragraph"):
        claim("§1", FALSE, topic="loss", page="")(F2)
    with pytest.raises(ValueError, match="name: expected a capital and a number"):
        claim("§1", TRUE, topic="loss", page="")(lambda it: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$20{,}480$ MB are 20 GB", ["20480"]),
        ("8,192 and 1.5 and 12", ["8192", "1.5"]),
        ("$2^{-10}$, x_{12}, W1, `123` and (2017)", []),
        ("1,300,000.25", ["1300000.25"]),
        (r"16\,384 × 0.088", ["16384", "0.088"]),
        ("128,256,512", ["128256512"]),
    ],
)
def test_figures(text, expected):
    assert figures(text) == expected
