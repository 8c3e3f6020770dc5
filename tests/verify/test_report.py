"""The report: what passes, what is said of code that raised, and how the table looks in a terminal."""

import traceback

import pytest

from backpass.verify.report import COULD_NOT_RUN, FAILED, PASSED, Report, Row, VerificationError


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
