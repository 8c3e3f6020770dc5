"""Check a backward by independent methods.

The methods are finite differences, complex steps, symbols, autograd, PyTorch's
operator, and kernels. ``check(op, *inputs)`` runs every method that applies and returns
a table; see the page ``reference/check_your_own``.
"""

from backpass.verify.all_operations import Overview, check_all
from backpass.verify.attempt import Attempt, attempt
from backpass.verify.checking import METHODS, check
from backpass.verify.diagnosis import Diagnosis, diagnose
from backpass.verify.drawing import cases, draw
from backpass.verify.report import Report, Row, VerificationError
from backpass.verify.survivors import Survey, mutate

__all__ = [
    "METHODS",
    "Attempt",
    "Diagnosis",
    "Overview",
    "Report",
    "Row",
    "Survey",
    "VerificationError",
    "attempt",
    "cases",
    "check",
    "check_all",
    "diagnose",
    "draw",
    "mutate",
]
