"""Name the kinds of variation, and those that run by default.

A variation runs by default only if it is in the domain of every function of such
arrays, or if the declaration allows it. What a forward accepts need not be in its
domain: code for matrices may accept a third axis, a boolean option may select a forward
without a backward, and in a mask a row of only False need not have a meaning.
"""

from __future__ import annotations

from collections.abc import Collection

from backpass.verify.case import Case

AXIS = "one more axis"
APART = "one input's length alone"
SQUARE = "one of two equal lengths of an input"
ONE = "length 1"
MULTIPLE = "a long multiple of the length"
LONGER = "another long length"
SHORT = "a length somewhat longer"  # if a long one exceeds the limit of work
FAR = "far from 0"
ZEROS = "a row of zeros"
TIES = "ties"
UNEQUAL = "an input of equal elements with different ones"
NO_ROWS = "no rows"
MANY = "many rows"
MASK = "a row of a declared mask"
IGNORED = "the ignored integer"
HALF = "many rows of half precision"
SCALED = "a scaled cotangent"
TWICE = "one array twice"
UNUSED = "an unused output"
LEFT_OUT = "an input left out"
SWITCH = "a boolean option"
OPTION = "another option"
OTHER = "other"

# By default without a declaration.
SAFE = frozenset(
    {APART, SQUARE, MULTIPLE, SHORT, FAR, ZEROS, TIES, UNEQUAL, NO_ROWS, IGNORED}
    | {SCALED, TWICE, UNUSED, LEFT_OUT, OPTION}
)
# By default if the object declares its shapes.
DECLARED = SAFE - {MULTIPLE} | {AXIS, ONE, LONGER, MANY, MASK}
ASKED_FOR = SAFE | DECLARED | {HALF, SWITCH, OTHER}


def chosen(case: Case, vary: bool | None) -> Collection[str]:
    """Return the kinds that run with this value of ``vary``, True or None."""
    if vary:
        return ASKED_FOR
    return DECLARED if case.subject.shapes else SAFE
