"""The report: what passes, what is said of code that raised, and how the table looks in a terminal."""

import html
import json
import math
import re
import traceback

import pytest

from backpass.verify.findings import SLOPES_DIFFER
from backpass.verify.report import (
    COULD_NOT_RUN,
    FAILED,
    NOT_RUN,
    PASSED,
    VACUOUS,
    Report,
    Row,
    VerificationError,
)


def raised_by(function) -> Exception:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def divide():
    return 1 / 0


class TestCouldNotRun:
    error = raised_by(divide)
    reason = "ZeroDivisionError: division by zero"
    line = f"{__file__.rpartition('/')[2]}:{divide.__code__.co_firstlineno + 1}, in divide"
    rows = (
        Row("contract", "all", PASSED),
        Row("complex step", "dx", PASSED, 1e-16, 1e-12),
        Row("torch autograd", "", COULD_NOT_RUN, reason=reason, exception=error),
        Row("low precision", "", COULD_NOT_RUN, reason=reason, exception=error),
    )
    report = Report("own", "x[3]", rows, ("dx",))

    def test_it_neither_passes_nor_fails(self):
        assert not self.report.passed
        assert not self.report.failed
        assert self.report.summary == "2 passed, 2 could not run"

    def test_the_finding_names_the_line_that_raised(self):
        (finding,) = self.report.findings()
        assert finding[0] == "(torch autograd, low precision)"
        assert finding[1].startswith(f"{self.reason} (") and finding[1].endswith(f"{self.line})")
        assert f"! (torch autograd, low precision): {self.reason}" in str(self.report)
        assert self.line in self.report._repr_html_()

    def test_the_traceback_is_kept(self):
        with pytest.raises(VerificationError) as caught:
            self.report.raise_unless_passed()
        assert caught.value.__cause__ is self.error
        assert "return 1 / 0" in "".join(traceback.format_exception(caught.value))

    def test_a_failure_has_no_cause(self):
        with pytest.raises(VerificationError) as caught:
            Report("own", "x[3]", (Row("complex step", "dx", FAILED),), ("dx",)).raise_unless_passed()
        assert caught.value.__cause__ is None

    def test_rows_compare_without_their_exceptions(self):
        assert self.rows[2] == Row("torch autograd", "", COULD_NOT_RUN, reason=self.reason)

    def test_a_library_is_named_only_where_the_users_own_code_did_not_call_it(self):
        def through_a_library():
            return traceback.extract_tb(7)

        row = Row("contract", "", COULD_NOT_RUN, exception=raised_by(through_a_library))
        assert row.raised_at.endswith("in through_a_library")
        assert Row("contract", "", COULD_NOT_RUN, exception=ValueError("never raised")).raised_at == ""


LONG = "8 random directions and all 24 coordinates, in steps that balance step² against rounding / step, and then some"
ROWS = (
    Row("contract", "all", PASSED, how="shapes"),
    Row("finite differences", "dx", FAILED, 0.34, 1e-7, how=LONG, reason="got = 2 × reference"),
    Row("complex step", "dx", FAILED, math.inf, 1e-12, how=LONG, reason="got = 2 × reference"),
    Row("complex step", "dw", PASSED, 3.7e-16, 1e-12, how=LONG, note="tolerance: the table is float32"),
    Row("torch autograd", "dx", VACUOUS, None, 1e-12, reason="the gradient is zero everywhere"),
    Row("PyTorch's operator", "", NOT_RUN, reason="no operator to compare with; give one as operator="),
)
TABLE = Report("own", "x[4, 6], w[6], float64, NumPy", ROWS, ("dx", "dw"), seed=3)


class TestText:
    def test_the_table_is_aligned_and_says_of_each_row_what_a_reader_needs(self):
        assert TABLE.text(80).splitlines() == [
            "own: x[4, 6], w[6], float64, NumPy",
            "method              quantity  verdict      error  tolerance",
            "───────────────────────────────────────────────────────────",
            "contract            all       ✓ passed",
            "finite differences  dx        ✗ FAILED   3.4e-01    1.0e-07  [1]",
            "complex step        dx        ✗ FAILED       inf    1.0e-12  [1]",
            "complex step        dw        ✓ passed   3.7e-16    1.0e-12",
            "    tolerance: the table is float32",
            "torch autograd      dx        ○ vacuous             1.0e-12",
            "    the gradient is zero everywhere",
            "PyTorch's operator            – not run",
            "    no operator to compare with; give one as operator=",
            "───────────────────────────────────────────────────────────",
            "2 passed, 2 FAILED, 1 vacuous, 1 not run",
            "[1] 8 random directions and all 24 coordinates, in steps that balance step²",
            "    against rounding / step, and then some",
            "✗ dx (finite differences, complex step): got = 2 × reference",
        ]

    @pytest.mark.parametrize("columns", [24, 40, 59, 60, 66, 80, 120])
    def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(self, columns, monkeypatch):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, str(TABLE).splitlines())) <= columns
        words = str(TABLE).replace("─", " ").split()
        for row in ROWS:
            assert set(f"{row.method} {row.verdict} {row.remark}".split()) <= set(words)

    def test_without_a_terminal_the_width_is_80(self, monkeypatch):
        monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.setattr("sys.__stdout__", None)
        assert str(TABLE) == TABLE.text(80) != TABLE.text(70)

    def test_the_error_and_the_page_say_the_same(self):
        with pytest.raises(VerificationError) as caught:
            TABLE.raise_unless_passed()
        assert str(caught.value) == str(TABLE)
        page = TABLE._repr_html_()
        for row in ROWS:
            assert row.remark in html.unescape(page)
        assert f"<li>finite differences dx, complex step dx: {LONG}</li>" in page


class TestPage:
    passed = Report("own", "x[3]", (ROWS[0], Row("complex step", "dx", PASSED, 3e-13, 1e-12)), ("dx",))

    def test_a_report_that_passed_is_one_line_that_opens(self):
        page = self.passed._repr_html_()
        line = "✓ <strong>own</strong>: 2 passed; the largest error is 0.3 of its tolerance"
        assert page.startswith(f'<details class="backpass-report"><summary>{line}</summary>')

    def test_one_that_did_not_is_open_with_its_findings(self):
        page = TABLE._repr_html_()
        assert page.startswith(
            '<details class="backpass-report" open><summary>✗ <strong>own</strong>: 2 passed, '
        )
        assert "<li><strong>dx (finite differences, complex step)</strong>: got = 2 × reference</li>" in page

    def test_quantities_are_columns(self):
        head, *lines = re.findall(r"<tr.*?</tr>", TABLE._repr_html_())
        assert re.findall(r"<th[^>]*>(.*?)</th>", head) == ["error, and tolerance", "dx", "dw"]
        cells = [
            re.sub(r"<[^>]+>", "", " | ".join(re.findall(r"<t[hd][^>]*>.*?</t[hd]>", line))) for line in lines
        ]
        assert cells == [
            "contract | ✓",
            "finite differences | ✗ FAILED 3.4e-01 of 1e-07 | ",
            "complex step | ✗ FAILED inf of 1e-12 | ✓ 3.7e-16 of 1e-12",
            "torch autograd | ○ vacuous of 1e-12 | ",
            "PyTorch&#x27;s operator | – not run",
        ]

    def test_what_a_method_judged_again_has_a_line_of_its_own(self):
        rows = [Row("varied inputs", quantity, PASSED, 0.0, 1e-12) for quantity in ("all", "dx", "dw", "dx")]
        page = Report("own", "x, w", tuple(rows), ("dx", "dw"))._repr_html_()
        assert page.count("<tr>") == 1 + 3 and page.count("✓ exact") == 4


class TestData:
    def test_json_holds_every_row(self):
        data = json.loads(TABLE.to_json())
        assert data == TABLE.to_dict()
        assert (data["name"], data["seed"], data["passed"]) == ("own", 3, False)
        assert [row["verdict"] for row in data["rows"]] == [row.verdict for row in ROWS]
        assert data["rows"][1]["error"] == 0.34 and data["rows"][4]["error"] is None
        assert data["findings"] == [
            {"where": "dx (finite differences, complex step)", "what": "got = 2 × reference"}
        ]

    @pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
    def test_numbers_that_json_lacks_are_words(self, number):
        report = Report("own", "x", (Row("complex step", "dx", FAILED, number, 1e-12),), ("dx",))
        (row,) = json.loads(report.to_json())["rows"]
        assert row["error"] == str(number)

    def test_what_could_not_run_says_where(self):
        row = TestCouldNotRun.report.to_dict()["rows"][2]
        assert row["verdict"] == "could not run" and row["raised_at"].endswith("in divide")


class TestVariations:
    first = Row("finite differences", "db", FAILED, 2.0, 1e-7, how=LONG, reason="the sign is wrong")
    rows = (
        first,
        *(
            Row(
                "varied inputs",
                "db",
                FAILED,
                2.0,
                1e-7,
                what,
                f"{what}: complex step: the sign is wrong",
                variation=what,
            )
            for what in ("length 1 in place of 3", "length 1 in place of 4", "b × 20")
        ),
        Row(
            "varied inputs",
            "db",
            FAILED,
            3.0,
            1e-7,
            "|b|",
            f"|b|: finite differences: {SLOPES_DIFFER}",
            variation="|b|",
        ),
        Row(
            "varied inputs",
            "da",
            FAILED,
            1.0,
            1e-7,
            "a × 20",
            "a × 20: complex step: got is 0",
            variation="a × 20",
        ),
        Row("varied inputs", "da", FAILED, 1.0, 1e-7, "|a|", "|a|: complex step: got is 0", variation="|a|"),
    )
    report = Report("own", "a[3], b[4]", rows, ("da", "db"))

    def test_those_that_show_one_fault_are_one_row_and_one_sentence(self):
        lists = [(row.quantity, row.how) for row in self.report.shown if row.method == "varied inputs"]
        assert lists == [("db", "length 1 in place of 3 and 4, b × 20, |b|"), ("da", "a × 20, |a|")]
        assert list(self.report.findings()) == [
            ("db (finite differences, varied inputs)", "the sign is wrong; the same at 4 variations"),
            ("da (varied inputs)", "a × 20: complex step: got is 0; the same at 1 more variation"),
        ]

    def test_the_json_has_them_all(self):
        assert len(self.report.to_dict()["rows"]) == len(self.rows)
