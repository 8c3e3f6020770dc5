"""Matrices that are written out: their sums, products, transposes, and determinants.

A grid is a list of rows of formulas, each of which is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations

from backpass.derivation.text.formal.kinds import is_array, is_identity, is_scalar
from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.tokens import CELL, DOTS, ROW
from backpass.derivation.text.formal.trees import Node, Unclear, number, power, product

Grid = list[list[Node]]
Value = Node | Grid

_ARRAY = re.compile(
    r"array \{ (?P<face>(?:[bpvB] |s m a l l )?m a t r i x|a r r a y) \}"
    r" (?P<columns>\{ [lcr| ]*\} )?(?P<body>.*) \\end \{ .* \}",
    re.S,
)
_MOST = 4  # rows of a determinant
_ZERO, _ONE = number(0), number(1)


def has_grid(node: Node) -> bool:
    """Whether a matrix is written out in a formula."""
    return any(
        one.kind == "other" and _ARRAY.fullmatch(one.value) is not None
        for one in node.walk()
    )


class Grids:
    """Computes formulas with matrices entry by entry; `meaning` is the formula that
    defines a name, or None."""

    def __init__(self, manner: Manner, meaning: Callable[[Node], Node | None]) -> None:
        self.manner, self.meaning = manner, meaning

    def value(self, node: Node) -> Value:
        """Return the entries of a formula, or the number that it is. Raises
        `Unclear`."""
        return getattr(self, f"_of_{node.kind}", self._of_number)(node)  # type: ignore[no-any-return]

    def _of_number(self, node: Node) -> Value:
        values: list[Node] = []
        for one in map(self.value, node.parts):
            if isinstance(one, list):
                raise Unclear(f"a {node.kind} of matrices")
            values.append(one)
        return Node(
            node.kind,
            node.value,
            tuple(values),
            node.subs,
            node.sups,
            node.counts,
        )

    def _of_name(self, node: Node) -> Value:
        found = self.meaning(node)
        if found is not None and has_grid(found):
            return self.value(found)
        if is_array(node) and not (node.subs and re.fullmatch("[A-Z]", node.value)):
            raise Unclear("a matrix that is not written out")
        return node

    def _of_other(self, node: Node) -> Value:
        if (match := _ARRAY.fullmatch(node.value)) is not None:
            rows = _rows(match["body"].split(), self.manner)
            grid = [[self._number(one) for one in row] for row in rows]
            if any(n.kind == "top" for row in grid for one in row for n in one.walk()):
                raise Unclear("a matrix of blocks")
            return _determinant(grid) if match["face"] == "v m a t r i x" else grid
        if node.value == "list":
            return [[self._number(one) for one in node.parts]]
        if node.value == "absolute":
            inside = self.value(node.parts[0])
            if isinstance(inside, list):
                return _determinant(inside)
        return self._of_number(node)

    def _number(self, node: Node) -> Node:
        found = self.value(node)
        if isinstance(found, list):
            raise Unclear("a matrix of matrices")
        return found

    def _of_sum(self, node: Node) -> Value:
        values = [self._or_identity(part) for part in node.parts]
        grids = [one for one in values if isinstance(one, list)]
        if not grids:
            return Node("sum", "", tuple(values))  # type: ignore[arg-type]
        rows, columns = len(grids[0]), len(grids[0][0])
        terms = [
            _identity(one.parts[0], rows)
            if isinstance(one, Node) and one.kind == "identity" and rows == columns
            else one
            for one in values
        ]
        if any(
            not isinstance(one, list) or _size(one) != (rows, columns) for one in terms
        ):
            raise Unclear("a sum of different sizes")
        return [
            [Node("sum", "", tuple(one[i][j] for one in terms)) for j in range(columns)]  # type: ignore[index, misc]
            for i in range(rows)
        ]

    def _or_identity(self, node: Node) -> Value:
        """Return the value of a term, or a number times the identity matrix."""
        if node.kind == "minus":
            found = self._or_identity(node.parts[0])
            return _scaled(number(-1), found)
        factors = node.parts if node.kind == "product" else (node,)
        rest = [one for one in factors if not is_identity(one)]
        if len(rest) == len(factors) - 1 and self.meaning(node) is None:
            return Node(
                "identity", "", (product(*map(self._number, rest)) if rest else _ONE,)
            )
        return self.value(node)

    def _of_minus(self, node: Node) -> Value:
        return _scaled(number(-1), self.value(node.parts[0]))

    def _of_product(self, node: Node) -> Value:
        found: Value = _ONE
        for part in node.parts:
            found = _times(found, self.value(part))
        return found

    def _of_hadamard(self, node: Node) -> Value:
        first, second = map(self.value, node.parts)
        if not isinstance(first, list) or not isinstance(second, list):
            return _times(first, second)
        if _size(first) != _size(second):
            raise Unclear("a product of different sizes")
        return [
            [product(a, b) for a, b in zip(*rows, strict=True)]
            for rows in zip(first, second, strict=True)
        ]

    def _of_quotient(self, node: Node) -> Value:
        above, below = node.parts
        return _scaled(power(self._number(below), number(-1)), self.value(above))

    def _of_top(self, node: Node) -> Value:
        found = self.value(node.parts[0])
        if not isinstance(found, list):
            return found if is_scalar(found) else Node("top", "", (found,))
        return [list(column) for column in zip(*found, strict=True)]

    def _of_power(self, node: Node) -> Value:
        found = self.value(node.parts[0])
        if not isinstance(found, list):
            return power(found, self._number(node.parts[1]))
        exponent = node.parts[1]
        if exponent in (number(-1), Node("minus", "", (_ONE,))):
            return _inverse(found)
        if exponent not in (number(2), number(3)):
            raise Unclear("a power of a matrix")
        whole: Value = found
        for _ in range(int(exponent.value) - 1):
            whole = _times(whole, found)
        return whole

    def _of_call(self, node: Node) -> Value:
        found = self.value(node.parts[0])
        if not isinstance(found, list):
            return Node("call", node.value, (found,), node.subs, node.sups)
        if node.value == "det":
            return _determinant(found)
        if node.value == "tr" and len(found) == len(found[0]):
            return Node("sum", "", tuple(row[k] for k, row in enumerate(found)))
        raise Unclear(f"{node.value} of a matrix")


def paired(first: Value, second: Value) -> list[tuple[Node, Node]]:
    """Return the entries of two values beside each other. Raises `Unclear`."""
    if isinstance(first, Node) and isinstance(second, Node):
        return [(first, second)]
    if not isinstance(first, list) or not isinstance(second, list):
        raise Unclear("a matrix and a number")
    if _size(first) != _size(second):
        raise Unclear("matrices of different sizes")
    return [
        pair
        for rows in zip(first, second, strict=True)
        for pair in zip(*rows, strict=True)
    ]


def _rows(tokens: list[str], manner: Manner) -> list[list[Node]]:
    """Return the formulas in the rows of a matrix. Raises `Unclear`."""
    rows: list[list[list[str]]] = [[[]]]
    depth = 0
    for token in tokens:
        depth += (token == r"\begin") - (token == r"\end")
        if token == ROW and not depth:
            rows.append([[]])
        elif token == CELL and not depth:
            rows[-1].append([])
        else:
            rows[-1][-1].append(token)
    if rows[-1] == [[]]:
        rows.pop()
    if len({len(row) for row in rows}) != 1 or {*tokens} & (DOTS | {r"\hline"}):
        raise Unclear("a matrix with dots")
    return [[read_formula(" ".join(cell), manner) for cell in row] for row in rows]


def _size(grid: Grid) -> tuple[int, int]:
    return len(grid), len(grid[0])


def _scaled(by: Node, value: Value) -> Value:
    if isinstance(value, list):
        return [[product(by, one) for one in row] for row in value]
    if value.kind == "identity":
        return Node("identity", "", (product(by, value.parts[0]),))
    return product(by, value)


def _times(first: Value, second: Value) -> Value:
    if not isinstance(first, list):
        return _scaled(first, second)
    if not isinstance(second, list):
        return _scaled(second, first)
    (rows, inner), (outer, columns) = _size(first), _size(second)
    if inner != outer:
        if _size(first) != _size(second) or inner != 1:
            raise Unclear("a product of other sizes")
        first = [[row[0] for row in first]]  # the product of two columns
        rows, inner = 1, outer
    made = [
        [
            Node("sum", "", tuple(product(row[k], second[k][j]) for k in range(inner)))
            for j in range(columns)
        ]
        for row in first
    ]
    return made[0][0] if (rows, columns) == (1, 1) else made


def _identity(by: Node, size: int) -> Grid:
    return [[by if i == j else _ZERO for j in range(size)] for i in range(size)]


def _determinant(grid: Grid) -> Node:
    size = len(grid)
    if size != len(grid[0]) or not 1 < size <= _MOST:
        raise Unclear("the determinant of a matrix that is not square")
    terms = []
    for order in permutations(range(size)):
        falls = sum(
            order[i] > order[j] for i in range(size) for j in range(i + 1, size)
        )
        sign = number(-1 if falls % 2 else 1)
        terms.append(product(sign, *(grid[i][order[i]] for i in range(size))))
    return Node("sum", "", tuple(terms))


def _inverse(grid: Grid) -> Grid:
    size = len(grid)
    whole = power(_determinant(grid), number(-1))
    if size > 3:
        raise Unclear("the inverse of a large matrix")

    def cofactor(i: int, j: int) -> Node:
        rest = [
            [grid[a][b] for b in range(size) if b != j] for a in range(size) if a != i
        ]
        minor = rest[0][0] if size == 2 else _determinant(rest)
        return product(number((-1) ** (i + j)), minor, whole)

    return [[cofactor(j, i) for j in range(size)] for i in range(size)]
