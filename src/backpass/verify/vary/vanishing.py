"""Leave out gradients of executed kernels that are 0 at other inputs, up to rounding.

Attention over one key has weights of 1, so the gradients of its scores are 0. A kernel
subtracts two equal terms there, each rounded in its own way. A reference that has
exactly 0 shows no bound for what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backpass.verify.case import Case
from backpass.verify.convert import EPSILON
from backpass.verify.magnitude import largest
from backpass.verify.methods.compiled import Executed
from backpass.verify.report import FAILED, NOT_RUN, Row

VANISHING = 1e-9  # of a gradient at the inputs given
ROUNDED = 32  # units in the last place of such a gradient


def unless_vanishing(
    rows: Sequence[Row], case: Case, done: Executed, given: Executed
) -> list[Row]:
    """Return the rows. One that failed is marked "not run" if the reference is 0 and
    the gradient is as small as rounding, compared with that at the inputs given."""
    before, got = (
        {case.subject.quantity(at): of for at, of in own.items() if of is not None}
        for own in map(case.slots.by_input, (given.gradients, done.gradients))
    )
    units = ROUNDED * EPSILON[case.dtype]
    found = []
    for row in rows:
        reference = case.found.references.get((row.method, row.quantity))
        known = row.quantity in before.keys() & got.keys()
        if row.verdict == FAILED and known and reference is not None:
            size = largest(before[row.quantity])
            zero = largest(reference) <= VANISHING * size
            if zero and largest(got[row.quantity]) <= units * size:
                reason = f"{row.quantity} is 0 there, up to rounding"
                row = replace(row, verdict=NOT_RUN, error=None, reason=reason)
        found.append(row)
    return found
