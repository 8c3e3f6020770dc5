"""A claim's record, the verdicts that findings support, and the figures that a check holds."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

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
from backpass_ledger.claims.record import WrongVerdict, claims_of, figures

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


def F1(it):
    """Half of 2,048
    is 1024.

    So it is, and 0.5 is a half.
    """
    half = 2048 // 2
    it.as_printed(half == 1_024)


def read(row, check=F1, **more):
    """The claim of a module with this row and this check."""
    module = SimpleNamespace(__name__=__name__, CLAIMS=f"\n{row}\n", **{check.__name__: check}, **more)
    (claim,) = claims_of(module)
    return claim


def a_claim(verdict="true", topic="softmax", harm="0"):
    return read(f"F1  {verdict}  {harm}  {topic}  operations/softmax  §1, at the end")


def test_a_claim_is_read_from_its_row_and_its_function():
    claim = a_claim(harm="3")
    assert (claim.name, claim.number, claim.says) == ("F1", 1, "Half of 2,048 is 1024.")
    assert (claim.where, claim.verdict, claim.harm) == ("§1, at the end", TRUE, 3)
    assert (claim.topic, claim.page, claim.shown_by) == ("softmax", "operations/softmax", ())
    assert claim.truth == "So it is, and 0.5 is a half."
    assert claim.code == "half = 2048 // 2\nit.as_printed(half == 1_024)"
    assert claim.unchecked_figures() == ["0.5"]


def test_tests_are_listed_with_the_claims_that_they_show():
    row = "F1  true  0  loss  operations/softmax  §1"
    shown = read(row, SHOWN_BY="\na.py::test_a  F1 F2\nb.py::test_b  F2\nc.py::test_c  F1\n")
    assert shown.shown_by == ("a.py::test_a", "c.py::test_c")


def test_a_formula_may_be_broken_before_a_minus():
    def F2(it):
        """One.

        Two takes $4n
        - 1$ steps.

        - an item
        - another
        """
        it.as_printed(True)

    truth = read("F2  true  0  loss  operations/softmax  §1", F2).truth
    assert truth == "Two takes $4n - 1$ steps.\n\n- an item\n- another"


@pytest.mark.parametrize("verdict", [v for v in VERDICTS if v is not TRUE and v is not UNCHECKABLE])
def test_a_claim_with_another_verdict_fails(verdict):
    a_claim().run()
    with pytest.raises(WrongVerdict, match=f"F1: the record says {verdict.words}; its check finds true"):
        a_claim(verdict.key).run()


def test_records_that_are_not_complete_are_rejected():
    def F2(it):
        """Only a claim."""

    def nameless(it):
        """A claim."""
        it.as_printed(True)

    for row, check, message in (
        ("F1  true  0  softmaxes  operations/softmax  §1", F1, "F1: topic: expected one of"),
        ("F1  true  11  loss  operations/softmax  §1", F1, "F1: harm: expected 0 to 10; got '11'"),
        (
            "F1  right  0  loss  operations/softmax  §1",
            F1,
            "F1: verdict: expected one of true, caveat, false",
        ),
        ("F1  true  0  loss  §1", F1, "F1: row: expected number, verdict, harm, topic, chapter, and place"),
        ("F1  uncheckable  0  loss  operations/softmax  §1", F1, "F1: body: expected a check, unless"),
        ("F3  true  0  loss  operations/softmax  §1", F1, "F3: check: expected a function F3 in "),
        ("F2  true  0  loss  operations/softmax  §1", F2, "F2: body: expected a check, unless"),
        ("F2  false  0  loss  operations/softmax  §1", F2, "F2: docstring: expected a second paragraph"),
        (
            "nameless  true  0  loss  operations/softmax  §1",
            nameless,
            "number: expected a capital letter and a number",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read(row, check)
    with pytest.raises(ValueError, match="F2: expected a row in CLAIMS of "):
        read("F1  true  0  loss  operations/softmax  §1", F2=F2)


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


def test_a_check_judges_the_equations_of_its_record():
    definitions = r"given x \in \mathbb{R}^5; let y_i = e^{x_i}; loss L"
    it = Evidence(
        says=r"For all $i$, $\frac{\partial L}{\partial x_i} = y_i \frac{\partial L}{\partial y_i}$.",
        truth=r"It is $\frac{\partial L}{\partial x_i} = -y_i \frac{\partial L}{\partial y_i}$.",
    )
    it.derives(definitions)
    it.derives_right(definitions)
    assert (it.printed, it.mended) == ([True], [False])


def test_a_record_without_an_equation_cannot_be_judged():
    with pytest.raises(
        ValueError, match=r"expected an equation between dollar signs; got 'The sum over \$j\$"
    ):
        Evidence(says=r"The sum over $j$ and $\sum_{j=1}^n x_j$.").derives()


def test_the_example_for_contributors_is_a_claim_whose_check_supports_its_verdict(tmp_path):
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?CLAIMS.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    path = tmp_path / "heads.py"
    path.write_text(example)
    spec = spec_from_file_location("heads", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    (claim,) = claims_of(module)
    assert claim.run().verdict is FALSE and claim.unchecked_figures() == [] and claim.harm == 3
    assert claim.says.startswith("Twice as many heads") and claim.truth.endswith("FLOPs each.")
