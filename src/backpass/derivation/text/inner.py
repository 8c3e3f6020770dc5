"""Inner products that are written with a dot: w \\cdot x for columns w and x.

Some texts write \\cdot for the product of the elements instead, so both readings are
tried.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from lark import Tree

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import Scope
from backpass.derivation.language.parse import Part, Unreadable, parse, span_of

_DOT = re.compile(r"\\cdot(?![a-zA-Z])")


def with_products(part: Part, scope: Scope, is_inner: bool) -> Part:
    """Return a side with \\langle x, y \\rangle, or with x \\odot y, for x \\cdot y, if
    both are columns."""
    try:
        products = [*parse(part).find_data("product")]
    except Unreadable:
        return part
    text = part.text
    for node in sorted(products, key=span_of, reverse=True):
        if sides := _sides(part, node, scope):
            (start, middle), (after, end) = sides
            if end > len(text) or text[start:end] != part.text[start:end]:
                return part  # a product within another one
            first, second = text[start:middle], text[after:end]
            new = rf"\left( {first} \odot {second} \right)"
            if is_inner:
                new = rf"\langle {first}, {second} \rangle"
            text = text[:start] + new + text[end:]
    return replace(part, text=text) if text != part.text else part


def _sides(
    part: Part, node: Tree, scope: Scope
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return where the two columns of a product with one \\cdot are."""
    dots = [
        (span_of(before)[1], span_of(factor)[0])
        for before, factor in pairwise(node.children)
        if isinstance(before, Tree) and _DOT.search(part.between(before, factor))
    ]
    if len(dots) != 1:
        return None
    start, end = span_of(node)
    middle, after = dots[0]
    shapes = []
    for first, last in ((start, middle), (after, end)):
        piece = part.text[first:last]
        try:
            (expression,) = Analysis(scope).run([Part(piece, 0, piece)])
        except Unreadable:
            return None
        shapes.append(expression.shape)
    one, other = shapes
    is_column = len(one) == 2 and one[1] == "1" and one[0] != "1"
    return ((start, middle), (after, end)) if is_column and one == other else None
