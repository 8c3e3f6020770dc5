"""What the names of a derivation stand for, and what kind of thing each expression is.

The analysis runs before anything is evaluated, once for all sizes: every name is known, every index runs over one
dimension, every matrix product fits. It leaves behind what evaluation needs: what each reference refers to, and what each
bound index ranges over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.parse import Line, Part, Unreadable, parse

Shape = tuple[str, ...]  # names of dimensions; () is a number, ("n", "1") a column, ("1", "n") a row


@dataclass(eq=False)
class Variable:
    """A name that a derivation declares or defines.

    `kind` is "given", "constant" or "defined"; a definition has the letters of its left side and its right side.
    """

    name: str
    shape: Shape
    kind: str
    positive: bool = False
    letters: tuple[str, ...] = ()
    definition: Expression | None = None
    backward: bool = False  # defined by means of a gradient or a differential

    @property
    def axes(self) -> Shape:
        """The dimensions that an index may stand for: those that are not 1."""
        return tuple(side for side in self.shape if side != "1")


@dataclass(frozen=True)
class Reference:
    """What a name in an expression stands for.

    `kind` is "variable", "dimension", "delta", "identity", "ones", "euler", "pi" or "loss"; `accent` is "bar", "dot" or
    ""; `indices` are its subscripts, letters or numbers.
    """

    kind: str
    name: str
    accent: str = ""
    indices: tuple[Token, ...] = ()


@dataclass(eq=False)
class Expression:
    """An analysed piece of mathematics. `references` and `ranges` are keyed by the identity of the tree's nodes."""

    part: Part
    tree: Tree
    shape: Shape = ()
    references: dict[int, Reference] = field(default_factory=dict)
    ranges: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)


class Index:
    """An index letter: the dimension it runs over, shared with the letters it was found to run along with."""

    def __init__(self) -> None:
        self.found: list = [None]

    @property
    def dimension(self) -> str | None:
        return self.found[0]

    def runs_over(self, dimension: str) -> bool:
        """Note the dimension; False when another is known already."""
        self.found[0] = self.found[0] or dimension
        return self.found[0] == dimension

    def runs_with(self, other: Index) -> bool:
        dimension = self.dimension or other.dimension
        agree = self.dimension in (None, dimension) and other.dimension in (None, dimension)
        other.found[0] = self.found[0] = dimension
        if other.found is not self.found:
            other.found = self.found
        return agree


class Scope:
    """The names declared so far, in order, and the dimensions that their shapes speak of."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.dimensions: list[str] = []

    # ---- declarations ----------------------------------------------------------------------------

    def declare(self, line: Line) -> None:
        """Take in a `given` or a `constant` line."""
        for declaration in parse(line.right, "declarations").children:
            *names, reals, space = declaration.children
            shape = tuple(_canonical(side) for side in space.children) if space else ()
            for side in shape:
                if not side.isdigit() and side not in self.dimensions:
                    self.dimensions.append(side)
            if len(shape) == 1:
                shape = (*shape, "1")
            for tree in names:
                name = _written_name(tree)
                if name in self.variables:
                    raise Unreadable(f"{name} is declared already", line.right, tree.meta.start_pos)
                self.variables[name] = Variable(name, shape, line.kind, positive=reals.endswith(r"_{>0}"))

    def define(self, line: Line) -> None:
        """Take in a `let` line. Its left side is a name, or a name with one letter for each index."""
        left = parse(line.left, "moved")
        name, letters = _written_name(left, indexed=True), tuple(map(str, _subscripts(left)))
        if f"{name}_{{{''.join(letters)}}}" in self.variables or name in self.variables:
            raise Unreadable(f"{name} is declared already", line.left)
        if len(set(letters)) < len(letters):
            raise Unreadable("an index stands twice on the left of a definition", line.left)
        if line.conditions:
            raise Unreadable("a definition holds for all its indices", line.conditions)
        analysis = Analysis(self)
        analysis.expression = Expression(line.left, left)
        expected = self.variables.get(rf"\bar{{{name}}}")
        for letter, side in zip(letters, expected.axes if expected else (), strict=False):
            analysis.index(letter).runs_over(side)
        (definition,) = analysis.run([line.right])
        for letter, index in analysis.free.items():
            if letter not in letters:
                raise Unreadable(f"the index {letter} stands on the right only", line.right)
            if index.dimension is None:
                raise Unreadable(f"what does {letter} run over? declare the shape of \\bar{{{name}}}", line.left)
        sides = tuple(analysis.index(letter).dimension for letter in letters)
        if None in sides:
            raise Unreadable(f"what does {letters[sides.index(None)]} run over? declare the shape of \\bar{{{name}}}", line.left)
        if letters and definition.shape:
            raise Unreadable("the right side is a matrix, the left side one of its elements", line.right)
        shape = definition.shape if not letters else (*sides, "1") if len(sides) == 1 else sides
        self.variables[name] = Variable(
            name, shape, "defined", letters=letters, definition=definition, backward=self._is_backward(definition)
        )

    def _is_backward(self, definition: Expression) -> bool:
        return any(
            reference.accent or reference.name.startswith(r"\bar") or self.variables[reference.name].backward
            for reference in definition.references.values()
            if reference.kind == "variable"
        )

    def outputs(self) -> list[Variable]:
        """The definitions whose gradients are given: those whose \\bar is declared, else the one that no other uses."""
        forward = [v for v in self.variables.values() if v.kind == "defined" and not v.backward]
        declared = [v for v in forward if rf"\bar{{{v.name}}}" in self.variables]
        if declared:
            return declared
        used = {reference.name for v in forward for reference in v.definition.references.values()}
        last = [v for v in forward if v.name not in used]
        if len(last) > 1:
            names = ", ".join(v.name for v in last)
            raise Unreadable(f"which of {names} is the output? Declare its gradient: given \\bar{{{last[-1].name}}} …")
        return last

    def upstream(self, variables: list[Variable]) -> set[str]:
        """The names of the variables and of everything that their definitions use."""
        names = {v.name for v in variables}
        for v in variables:
            if v.definition:
                used = {r.name for r in v.definition.references.values() if r.kind == "variable"}
                names |= self.upstream([self.variables[name] for name in used])
        return names

    # ---- references ------------------------------------------------------------------------------

    def resolve(self, tree: Tree, part: Part) -> Reference | None:
        """What a `reference`, `power_of_name` or `scalar` node stands for; None when it is no name known here."""
        accent, inner = _take_accent(tree)
        name, subscripts = _written_name(tree, indexed=True, strip_accent=bool(accent)), _subscripts(tree)
        whole = rf"\{accent}{{{name}}}" if accent else name
        for candidate, kept in ((whole, ""), (name, accent)):
            labelled = f"{candidate}_{{{''.join(subscripts)}}}" if subscripts else candidate
            if labelled in self.variables:
                return Reference("variable", labelled, kept)
            if candidate in self.variables:
                return Reference("variable", candidate, kept, tuple(subscripts))
        labelled = f"{name}_{{{''.join(subscripts)}}}" if subscripts else name
        if labelled in self.dimensions and not accent:
            return Reference("dimension", labelled)
        special = _SPECIAL.get(name)
        if special and (not accent or (special == "loss" and accent == "dot")):
            return Reference(special, name, accent, tuple(subscripts))
        return None


_SPECIAL = {
    "e": "euler",
    r"\pi": "pi",
    r"\delta": "delta",
    "I": "identity",
    r"\mathbf{1}": "ones",
    r"\mathcal{L}": "loss",
}


def _canonical(node: Tree | Token) -> str:
    """A name as this package writes it: \\bar{x} for \\bar x, \\mathbf{1} for \\mathbf 1, n_{h} for n_h."""
    if isinstance(node, Token):
        text = str(node)
        if node.type == "UPRIGHT":
            text = text.replace(" ", "")
            return text if text.endswith("}") else f"{text[:-1]}{{{text[-1]}}}"
        return text
    if node.data == "accented":
        accent = {"\\overline": "\\bar", "\\widehat": "\\hat"}.get(str(node.children[0]), str(node.children[0]))
        return f"{accent}{{{_canonical(node.children[1])}}}"
    if node.data in ("power_of_letter", "power_of_name", "power"):
        return f"{_canonical(node.children[0])}^{_canonical(node.children[1])}"
    if node.data == "subscript":
        return f"_{{{''.join(node.children)}}}"
    return "".join(_canonical(child) for child in node.children)


def _reference_of(tree: Tree) -> tuple[Tree, str]:
    """The `reference` inside a node that may carry a power, and the power: σ_i^2 is a reference and "^2"."""
    if tree.data in ("power_of_name", "power"):
        return tree.children[0], f"^{_canonical(tree.children[1])}"
    return tree, ""


def _take_accent(tree: Tree) -> tuple[str, Tree | None]:
    reference, _ = _reference_of(tree)
    head = reference.children[0]
    if isinstance(head, Tree) and head.data == "accented" and _canonical(head)[1:4] in ("bar", "dot"):
        return _canonical(head)[1:4], head.children[1]
    return "", None


def _subscripts(tree: Tree) -> list[Token]:
    reference, _ = _reference_of(tree)
    last = reference.children[-1]
    return list(last.children) if isinstance(last, Tree) and last.data == "subscript" else []


def _written_name(tree: Tree, indexed: bool = False, strip_accent: bool = False) -> str:
    """The name in a node, with its power, and with its subscript unless that is a list of indices."""
    reference, power = _reference_of(tree)
    if indexed:
        head = reference.children[0]
        name = _canonical(head.children[1]) if strip_accent else _canonical(head)
    else:
        name = _canonical(reference)
    return name + power


class Analysis(Interpreter):
    """Visits expressions that share their free indices; a visit returns the shape of what it visited."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.free: dict[str, Index] = {}
        self.bound: list[tuple[str, Index]] = []

    def run(self, parts: list[Part], conditions: Part | None = None) -> list[Expression]:
        expressions = []
        pending = []
        if conditions:
            self.part, self.expression = conditions, Expression(conditions, parse(conditions, "conditions"))
            self.visit(self.expression.tree)
            expressions.append(self.expression)
        for part in parts:
            self.part, self.expression = part, Expression(part, parse(part))
            self.pending: dict[int, tuple[Tree, list[tuple[str, Index]]]] = {}
            self.expression.shape = self.visit(self.expression.tree)
            pending.append((self.expression, self.pending))
            expressions.append(self.expression)
        for expression, ranges in pending:
            for key, (tree, letters) in ranges.items():
                for letter, index in letters:
                    if index.dimension is None:
                        raise Unreadable(f"what does {letter} run over?", expression.part, tree.meta.start_pos)
                expression.ranges[key] = tuple((letter, index.dimension) for letter, index in letters)
        return expressions

    def refuse(self, message: str, where: Tree | Token):
        position = where.start_pos if isinstance(where, Token) else where.meta.start_pos
        raise Unreadable(message, self.part, position)

    def index(self, letter: str) -> Index:
        for name, index in reversed(self.bound):
            if name == letter:
                return index
        self.expression.free.add(letter)
        return self.free.setdefault(letter, Index())

    def run_together(self, first: Token, second: Token) -> None:
        if not self.index(str(first)).runs_with(self.index(str(second))):
            self.refuse(f"{first} and {second} run over different dimensions", first)

    # ---- names -----------------------------------------------------------------------------------

    def reference(self, tree: Tree) -> Shape:
        found = self.scope.resolve(tree, self.part)
        if found is None:
            self.refuse(f"{self.part.text[tree.meta.start_pos : tree.meta.end_pos]} is not declared or defined above", tree)
        self.expression.references[id(tree)] = found
        return getattr(self, f"_shape_of_{found.kind}")(found, tree)

    scalar = power_of_name = reference

    def _shape_of_variable(self, found: Reference, tree: Tree) -> Shape:
        variable = self.scope.variables[found.name]
        if found.accent and variable.kind == "constant":
            self.refuse(f"{found.name} is a constant", tree)
        if not found.indices:
            return variable.shape
        if len(found.indices) != len(variable.axes):
            wanted = f"{len(variable.axes)} indices" if variable.axes else "no index"
            self.refuse(f"{found.name} takes {wanted}; got {len(found.indices)}", tree)
        for token, side in zip(found.indices, variable.axes, strict=True):
            if not token.isdigit() and not self.index(str(token)).runs_over(side):
                other = self.index(str(token)).dimension
                self.refuse(f"{token} runs over {other} elsewhere, and over {side} here", token)
        return ()

    def _shape_of_dimension(self, found: Reference, tree: Tree) -> Shape:
        return ()

    _shape_of_euler = _shape_of_pi = _shape_of_dimension

    def _shape_of_loss(self, found: Reference, tree: Tree) -> Shape:
        if not found.accent:
            self.refuse(r"\mathcal{L} stands only in \dot{\mathcal{L}} and \frac{\partial \mathcal{L}}{\partial …}", tree)
        return ()

    def _shape_of_delta(self, found: Reference, tree: Tree) -> Shape:
        if len(found.indices) != 2:
            self.refuse(r"\delta takes two indices", tree)
        self.run_together(*found.indices)
        return ()

    def _shape_of_identity(self, found: Reference, tree: Tree) -> Shape:
        side = self._side(found, tree)
        return (side, side)

    def _shape_of_ones(self, found: Reference, tree: Tree) -> Shape:
        return (self._side(found, tree), "1")

    def _side(self, found: Reference, tree: Tree) -> str:
        side = "".join(found.indices)
        if side not in self.scope.dimensions:
            self.refuse(f"{found.name} needs its size as a subscript, one of {', '.join(self.scope.dimensions)}", tree)
        return side

    # ---- numbers ---------------------------------------------------------------------------------

    def number(self, tree: Tree) -> Shape:
        return ()

    def fraction(self, tree: Tree) -> Shape:
        above, below = map(self.visit, tree.children)
        if below:
            self.refuse("a matrix cannot stand below a fraction bar", tree.children[1])
        return above

    def power(self, tree: Tree) -> Shape:
        base, exponent = tree.children
        if self._is_name(tree):
            return self.reference(tree)
        shape = self.visit(base)
        if exponent.data == "top":
            if len(shape) not in (0, 2):
                self.refuse("only matrices can be transposed", base)
            return shape[::-1]
        if shape or self.visit(exponent):
            self.refuse("powers are of numbers; write a matrix product out", tree)
        return ()

    def _is_name(self, tree: Tree) -> bool:
        """Whether a power is a name of its own, such as σ^2 after `let \\sigma^2 = …`."""
        base, exponent = tree.children
        if base.data != "reference" or exponent.data != "number":
            return False
        found = self.scope.resolve(tree, self.part)
        return found is not None and found.kind == "variable"

    def root(self, tree: Tree) -> Shape:
        if self.visit(tree.children[0]):
            self.refuse("functions are of numbers; write the matrix by its elements", tree)
        return ()

    def apply(self, tree: Tree) -> Shape:
        function, argument = tree.children
        name, shape = str(function.children[0]), self.visit(argument)
        if name.endswith("{tr}"):
            if len(shape) != 2 or shape[0] != shape[1]:
                self.refuse(f"the trace is of a square matrix; this is {_words(shape)}", argument)
            return ()
        if name.endswith("{diag}"):
            if len(shape) != 2 or shape[1] != "1":
                self.refuse(f"diag is of a column; this is {_words(shape)}", argument)
            return (shape[0], shape[0])
        if shape:
            self.refuse("functions are of numbers; write the matrix by its elements", argument)
        return ()

    # ---- sums and products -----------------------------------------------------------------------

    def bracket(self, tree: Tree) -> Shape:
        return self.visit(tree.children[0])

    def sum(self, tree: Tree) -> Shape:
        return self._same_shape([child for child in tree.children if isinstance(child, Tree)], "added to")

    def hadamard(self, tree: Tree) -> Shape:
        return self._same_shape(tree.children, r"multiplied (\odot) by")

    def inner(self, tree: Tree) -> Shape:
        self._same_shape(tree.children, "paired with")
        return ()

    def _same_shape(self, trees: list[Tree], verb: str) -> Shape:
        first, *rest = ((tree, self.visit(tree)) for tree in trees)
        for tree, shape in rest:
            if shape != first[1]:
                self.refuse(f"{_words(first[1])} cannot be {verb} {_words(shape)}", tree)
        return first[1]

    def product(self, tree: Tree) -> Shape:
        shape = self.visit(tree.children[0])
        for factor in tree.children[1:]:
            other = self.visit(factor)
            if shape and other:
                if len(shape) != 2 or len(other) != 2 or shape[1] != other[0]:
                    self.refuse(f"{_words(shape)} cannot be multiplied by {_words(other)}", factor)
                shape = (shape[0], other[1])
                shape = () if shape == ("1", "1") else shape
            else:
                shape = shape or other
        return shape

    def big(self, tree: Tree) -> Shape:
        sign, limits, *upper, body = tree.children
        relation = next((t for t in limits.children if t.type == "RELATION"), None)
        tokens = [t for t in limits.children if t.type == "INDEX"]
        letters = [str(tokens[0])] if relation else [str(t) for t in tokens]
        depth = len(self.bound)
        for letter, token in zip(letters, tokens, strict=False):
            if not letter.isalpha() and not letter.startswith("\\"):
                self.refuse("a sum runs over a letter", token)
            if letter in self.free or any(letter == name for name, _ in self.bound):
                self.refuse(f"{letter} is in use outside this {sign[1:]}", token)
        new = [(letter, Index()) for letter in letters]
        self.bound += new
        if relation:
            self.run_together(tokens[0], tokens[1])
        for side in upper:
            found = self.scope.resolve(side if isinstance(side, Tree) else Tree("reference", [Tree("name", [side])]), self.part)
            if found is None or found.kind != "dimension":
                self.refuse("a sum ends at a dimension", side)
            new[0][1].runs_over(found.name)
        shape = self.visit(body)
        del self.bound[depth:]
        for letter in letters:
            if letter in self.free:
                self.refuse(f"{letter} is in use outside this {sign[1:]}", tokens[0])
        if sign == r"\max" and shape:
            self.refuse("the maximum is of numbers", body)
        self.pending[id(tree)] = (tree, new)
        return shape

    # ---- derivatives -----------------------------------------------------------------------------

    def partial(self, tree: Tree) -> Shape:
        above, below = tree.children
        found = self.scope.resolve(above, self.part)
        if found is not None and found.kind == "loss":
            self.expression.references[id(above)] = found
            shape = ()
        else:
            shape = self.visit(above)
        if shape:
            self.refuse("partial derivatives are of numbers: write the matrix's element", above)
        self._with_respect_to(below, whole=found is not None and found.kind == "loss")
        return self.scope.variables[self.expression.references[id(below)].name].shape if self._whole(below) else ()

    def _whole(self, tree: Tree) -> bool:
        reference = self.expression.references[id(tree)]
        return bool(self.scope.variables[reference.name].axes) and not reference.indices

    def differentiate(self, tree: Tree) -> Shape:
        operator, argument = tree.children
        self._with_respect_to(operator.children[0], whole=False)
        if self.visit(argument):
            self.refuse("partial derivatives are of numbers: write the matrix's element", argument)
        return ()

    def _with_respect_to(self, tree: Tree, whole: bool) -> None:
        shape = self.visit(tree)
        found = self.expression.references[id(tree)]
        if found.kind != "variable" or found.accent or self.scope.variables[found.name].kind == "constant":
            self.refuse("a derivative is with respect to an input or a definition", tree)
        if shape and not whole:
            self.refuse("partial derivatives are with respect to numbers: write the matrix's element", tree)

    # ---- conditions ------------------------------------------------------------------------------

    def conditions(self, tree: Tree) -> None:
        self.visit_children(tree)

    def condition(self, tree: Tree) -> None:
        first, *rest = tree.children
        if isinstance(first, Token):
            self.run_together(first, rest[1])
            return
        self.visit(first)
        if self.expression.references[id(first)].accent != "dot":
            self.refuse(r"a condition is j \ne i or \dot{X} = 0", first)


def _words(shape: Shape) -> str:
    return f"a {' × '.join(shape)} matrix" if shape else "a number"
