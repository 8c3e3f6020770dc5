"""The methods that check a backward.

Each is a module with ``NAME``, as a table shows it, and ``run(case)``, which returns
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from backpass.verify.case import Case
    from backpass.verify.report import Row


class Method(Protocol):
    """What ``check`` uses of a method's module."""

    NAME: str

    def run(self, case: Case) -> list[Row]:
        """Return the method's rows. Raises NotRun if it does not apply."""
