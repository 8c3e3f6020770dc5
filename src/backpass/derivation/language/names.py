"""Record declarations of names, and what references to them stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lark import Token, Tree

from backpass.derivation.language.chances import Chances
from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.language.patterns import Axis, Grid
from backpass.derivation.language.written import (
    accent_and_name,
    base_of,
    canonical,
    label_of,
    subscripts_of,
    with_label,
)

# The places of nested calls, outermost first, and a place in the innermost body.
Path = tuple[tuple[Part, int], ...]
# Names of dimensions: () is a number, ("n", "1") a column, ("1", "n") a row.
Shape = tuple[str, ...]


@dataclass(eq=False)
class Variable:
    """A name that a derivation declares or defines.

    `kind` is "given", "constant", "defined", or "promised" for a name that is defined
    below its first use. A defined name has the letters of its left side, and the
    definition is its right side.
    """

    name: str
    shape: Shape
    kind: str
    positive: bool = False
    letters: tuple[str, ...] = ()
    definition: Expression | None = None
    backward: bool = False  # whether the definition uses a gradient or a differential

    @property
    def axes(self) -> Shape:
        """The dimensions that take an index: those that are not 1."""
        return axes_of(self.shape)


@dataclass(frozen=True, eq=False)
class Function:
    """A function: its value is `body`, in which the parameters stand for its arguments.

    `letters` are the indices of its value, if that is an array. `uses` are the names
    of the variables in its body besides its parameters.
    """

    name: str
    parameters: tuple[str, ...]
    letters: tuple[str, ...]
    body: Part
    uses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reference:
    """What a name in an expression stands for.

    `kind` is "variable", "parameter", "dimension", "index", "delta", "identity",
    "ones", "euler", "pi" or "loss". `accent` is "bar", "dot" or "". `indices` are its
    subscripts, letters or numbers.
    """

    kind: str
    name: str
    accent: str = ""
    indices: tuple[Token, ...] = ()


@dataclass(eq=False)
class Expression:
    """An analysed piece of mathematics.

    `references`, `ranges`, `sums` (with dots), `matrices` and `calls` are keyed by the
    identity of the tree's nodes. `comparisons` are the nodes whose value depends on a
    sign, and `spread` the columns that are added to each row.
    """

    part: Part
    tree: Tree
    shape: Shape = ()
    references: dict[int, Reference] = field(default_factory=dict)
    ranges: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    # The shape of each sum, for one without terms.
    shapes: dict[int, Shape] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    comparisons: list[Tree] = field(default_factory=list)
    spread: set[int] = field(default_factory=set)
    sums: dict[int, Axis] = field(default_factory=dict)
    matrices: dict[int, Grid] = field(default_factory=dict)
    # The names over which each expectation is taken; () for all random names.
    averages: dict[int, tuple[str, ...]] = field(default_factory=dict)
    # The possible meanings of each call; all must have the same value.
    calls: dict[int, tuple[Call, ...]] = field(default_factory=dict)

    @property
    def called(self) -> list[Call]:
        """The possible meanings of all calls."""
        return [call for calls in self.calls.values() for call in calls]

    @property
    def parts(self) -> list[Expression]:
        """The expression, and the bodies of the functions in it."""
        return [self, *(part for call in self.called for part in call.body.parts)]

    @property
    def used(self) -> list[Reference]:
        """What the names stand for, in the expression and in the functions in it."""
        return [r for one in self.parts for r in one.references.values()]

    @property
    def compared(self) -> list[Path]:
        """The place of each node whose value depends on a sign, in each call of a
        function."""
        own: list[Path] = [
            ((self.part, tree.meta.start_pos or 0),) for tree in self.comparisons
        ]
        called = self.called
        return own + [(c.place, *path) for c in called for path in c.body.compared]


@dataclass(frozen=True, eq=False)
class Call:
    """A function at one place: its body, analysed for the argument's shape.

    `sides` are the dimensions of the function's letters. An `elementwise` call applies
    a function of a number to each element of an array. A function of a row whose value
    has the row's length is a row. `rows` is the dimension of the rows, if the function
    is applied to each row of a matrix.
    """

    place: tuple[Part, int]
    function: Function
    body: Expression
    sides: Shape
    elementwise: bool
    is_row: bool
    rows: str = ""

    @property
    def shape(self) -> Shape:
        if self.is_row:
            return (self.rows or "1", *self.sides)
        sides = (*self.sides, "1") if len(self.sides) == 1 else self.sides
        return sides or self.body.shape


class Scope:
    """The names declared so far, in order, and the dimensions in their shapes."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.functions: dict[str, Function] = {}
        # What is added to each element of an array: "numbers" as written, such as 1; or
        # "all" numbers, and vectors to each row of a matrix, as in broadcasting.
        self.spreads = ""
        self.direct = False  # whether ∂y/∂x holds the other names in y constant
        self.applied = False  # whether ∂Y/∂X (V) is a derivative applied to V
        self.factors: set[str] = set()  # names that a bracket multiplies
        # The declared shape of each slice, by its name and the pattern of its indices.
        self.slices: dict[tuple[str, str], Shape] = {}
        self.dimensions: list[str] = []
        self.times: dict[str, str] = {}  # declared ranges of letters
        # What is 0 behind the end of a sequence: an accent, a name, and a dimension.
        self.zeros: set[tuple[str, str, str]] = set()
        # What holds of constants: two sides, and the dimensions of their free indices.
        self.assumptions: list[tuple[Expression, Expression, dict[str, str]]] = []
        self.chances = Chances()
        self.layout = ""  # of derivatives by arrays: "numerator" or "denominator"

    # ---- declarations ----------------------------------------------------------------

    def declare(self, line: Line) -> None:
        """Add the names of a `given` or `constant` line. Raises `Unreadable`."""
        assert line.right is not None
        for declaration in parse(line.right, "declarations").children:
            *names, reals, space = declaration.children
            assert isinstance(reals, Token)
            shape = shape_of(space)
            for side in shape:
                if side in self.variables:
                    raise Unreadable(
                        f"{side} is already declared, and not as a dimension",
                        line.right,
                        space.meta.start_pos,
                    )
                if not side.isdigit() and side not in self.dimensions:
                    self.dimensions.append(side)
            for tree in names:
                name, whole = canonical(tree), shape
                tokens = subscripts_of(tree)
                time = self.times.get(str(tokens[0])) if len(tokens) == 1 else None
                if time:
                    name = name.removesuffix(f"_{{{tokens[0]}}}")
                    whole = (time, *(axes_of(shape) or "1"))
                    if shape:
                        self.slices[without_accent(name), "i"] = shape
                variable = Variable(
                    name, whole, line.kind, positive=reals.endswith(r"_{>0}")
                )
                self.add(variable, line.right, tree.meta.start_pos)

    def lay_out(self, line: Line) -> None:
        """Set the layout that a `layout` line names. Raises `Unreadable`."""
        assert line.right is not None
        if line.right.text not in LAYOUTS:
            raise Unreadable(f"expected {' or '.join(LAYOUTS)}", line.right)
        self.layout = line.right.text

    def hold(self, line: Line) -> None:
        """Let a partial derivative hold the other names of a definition constant."""
        self.direct = True

    def apply(self, line: Line) -> None:
        """Read a derivative before a bracket as applied to a direction."""
        self.applied = True

    def spread(self, line: Line) -> None:
        """Let numbers, or numbers and vectors, be added to arrays."""
        self.spreads = line.right.text if line.right else "all"

    def suppose_positive(self, line: Line) -> None:
        """Let a declared name be positive."""
        assert line.right is not None
        self.variables[line.right.text].positive = True

    def slice(self, line: Line) -> None:
        """Read A_i or A_{i,:} as row i of A, A_{:,j} as its column j, and X_i as a
        matrix of a three-dimensional X, in the declared shape. Raises `Unreadable`."""
        assert line.right is not None
        for declaration in parse(line.right, "declarations").children:
            *names, _, space = declaration.children
            shape = shape_of(space)
            for tree in names:
                accent, name = accent_and_name(tree)
                variable, tokens = self.variables.get(name), subscripts_of(tree)
                places = [token for token in tokens if token.type != "ALL"]
                if accent or variable is None or len(places) != 1:
                    raise Unreadable(
                        "a slice is a declared name with one index, such as A_i",
                        line.right,
                        tree.meta.start_pos,
                    )
                rest = sliced(variable.axes, tokens)[1]
                if not rest or rest != axes_of(shape):
                    raise Unreadable(
                        f"a slice of {name} is {' × '.join(rest) or 'a number'}",
                        line.right,
                        tree.meta.start_pos,
                    )
                self.slices[name, _pattern(tokens)] = shape

    def slice_of(self, name: str, tokens: Sequence[Token]) -> Shape:
        """Return the declared shape of a slice, or () if none is declared. A gradient's
        slice has the shape of the name's slice."""
        return self.slices.get((without_accent(name), _pattern(tokens)), ())

    def multiply(self, line: Line) -> None:
        """Read the names on a line, before a bracket, as factors. Raises
        `Unreadable`."""
        assert line.right is not None
        for name in re.split(r"\s*,\s*", line.right.text):
            part = Part(line.right.source, line.right.start, name)
            reference = self.resolve(parse(part, "moved"))
            if reference is None:
                raise Unreadable(f"{name} is not declared or defined above", line.right)
            self.factors.add(reference.name)

    def laid_out(self, above: Shape, below: Shape) -> Shape | None:
        """Return the shape of the derivative of one array by another, each a number or
        a column; None if it has none."""
        sides = []
        for shape in (above, below):
            if shape and (len(shape) != 2 or shape[1] != "1"):
                return None
            sides.append(shape[0] if shape else "1")
        if self.layout == "denominator":
            sides.reverse()
        return (sides[0], sides[1]) if self.layout else None

    def add(self, variable: Variable, part: Part, position: int = 0) -> None:
        """Add a name. Raises `Unreadable` unless it is distinct from the others."""
        name = variable.name
        above = self.variables.get(name)
        if above and (above.kind, variable.kind) == ("promised", "defined"):
            del self.variables[name]
            wanted = (above.shape[0] or variable.shape[0], *above.shape[1:])
            if variable.shape != wanted:
                raise Unreadable(
                    f"this is not what {name} was above its definition", part, position
                )
        if {name} & {*self.variables, *self.dimensions, *self.functions}:
            raise Unreadable(f"{name} is already declared", part, position)
        for other in self.variables.values():
            if (
                (_is_element(name, other) and not self._is_beside(variable, other))
                or (
                    _is_element(other.name, variable)
                    and not self._is_beside(other, variable)
                )
                or (
                    base_of(name) == base_of(other.name)
                    and not self._are_numbered(name)
                )
            ):
                raise Unreadable(
                    f"{name} cannot be told apart from {other.name}", part, position
                )
        self.variables[name] = variable
        if fault := self._floating():
            raise Unreadable(fault, part, position)

    def _are_numbered(self, name: str) -> bool:
        """Whether superscript numbers, as in a^0, a^1, and a^2, are labels, since the
        powers 0 and 1 are not written."""
        names = {name, *self.variables}
        first = any(f"{base_of(name)}^{number}" in names for number in "01")
        return first and base_of(name) not in names

    def _is_beside(self, one: Variable, sequence: Variable) -> bool:
        """Whether a name is the element before or behind a sequence, such as h_0."""
        shape = self.slices.get((sequence.name, "i"), ())
        return axes_of(one.shape) == sequence.axes[1:] and (
            one.shape == shape and one.name in _beside(sequence.name, sequence.axes[0])
        )

    def beside(self, name: str) -> Iterator[Variable]:
        """Yield the declared elements before and behind a sequence."""
        for side in self.dimensions:
            for one in _beside(name, side):
                if one in self.variables:
                    yield self.variables[one]

    def _floating(self) -> str:
        """Return what is wrong if a name that already has a meaning, such as \\bar{x},
        is declared with a different one; "" if nothing is."""
        loss = self.variables.get(LOSS)
        if loss and (loss.kind != "defined" or loss.shape or loss.backward):
            return rf"{LOSS} must be a number with a definition, or be left out"
        forward = self._forward
        users = {name: v.name for v in forward for name in self._used(v)}
        for name, variable in self.variables.items():
            if name.startswith(r"\dot") or name == gradient_of(LOSS):
                return f"{name} is derived, not given"
            if (gradient := gradient_of(name)) not in self.variables:
                continue
            why = f"{LOSS} is defined" if loss else ""
            if name in users:
                why = f"{users[name]} is defined by {name}"
            if variable not in forward:
                why = f"{name} is not an output"
            if why:
                return f"{gradient} is derived, not given: {why}"
        return ""

    @property
    def _forward(self) -> list[Variable]:
        """The definitions without gradients and differentials."""
        defined = (v for v in self.variables.values() if v.kind == "defined")
        return [v for v in defined if not v.backward]

    def other_meaning(self, letter: str) -> str:
        """Return what a letter stands for other than an index; "" if nothing."""
        if letter in self.dimensions:
            return "is a dimension"
        if letter in self.variables:
            return "is a name declared above"
        names = (name for name in self.variables if letter in label_of(name))
        return next((f"is the label of {name}" for name in names), "")

    def is_backward(self, definition: Expression) -> bool:
        """Whether an expression uses gradients or differentials, perhaps by a name."""
        return any(
            reference.kind == "loss"
            or reference.accent
            or reference.name.startswith(r"\bar")
            or self.variables[reference.name].backward
            for reference in definition.used
            if reference.kind in ("variable", "loss")
        )

    @property
    def definitions(self) -> list[Expression]:
        """The definitions of all names that have one."""
        return [v.definition for v in self.variables.values() if v.definition]

    def defined_as(self, part: Part) -> Variable:
        """Return the name whose definition is a piece of mathematics."""
        return next(
            variable
            for variable in self.variables.values()
            if variable.definition and variable.definition.part == part
        )

    def outputs(self) -> list[Variable]:
        """Return the definitions whose gradients are given.

        This is 𝓛 if it is defined; otherwise the definitions whose \\bar is declared;
        otherwise the one that no other uses. Raises `Unreadable` if there are several.
        """
        if LOSS in self.variables:
            return [self.variables[LOSS]]
        forward = self._forward
        declared = [v for v in forward if gradient_of(v.name) in self.variables]
        if declared:
            return declared
        used = {name for v in forward for name in self._used(v) - {v.name}}
        last = [v for v in forward if v.name not in used]
        if len(last) > 1:
            names = ", ".join(v.name for v in last)
            raise Unreadable(
                f"which of {names} is the output? Declare its gradient: "
                f"given \\bar{{{last[-1].name}}} …"
            )
        return last

    def are_random(self, names: Iterable[str]) -> bool:
        """Whether a variable among some names is random, or depends on one that is."""
        if not self.chances.random:
            return False
        found = [self.variables[name] for name in names if name in self.variables]
        return not self.chances.random.isdisjoint(self.upstream(found))

    def upstream(self, variables: list[Variable]) -> set[str]:
        """Return the names of the variables and of all that their definitions use."""
        names: set[str] = set()
        left = [*variables]
        while left:
            if (variable := left.pop()).name not in names:
                names.add(variable.name)
                left += self.used_by(variable)
        return names

    def states_with(self, variable: Variable) -> list[Variable]:
        """Return the variables that are defined by each other and by this one; none if
        it is not defined by itself."""
        above = self.upstream(self.used_by(variable))
        if variable.name not in above:
            return []
        together = (self.variables[name] for name in sorted(above))
        return [v for v in together if variable.name in self.upstream(self.used_by(v))]

    def used_by(self, variable: Variable) -> list[Variable]:
        """Return the variables that a definition uses."""
        return [self.variables[name] for name in self._used(variable)]

    def _used(self, variable: Variable) -> set[str]:
        """Return the names that a definition uses, with those beside a sequence; none
        if the variable is given."""
        references = variable.definition.used if variable.definition else ()
        names = {one.name for one in references if one.kind == "variable"}
        return names | {one.name for name in names for one in self.beside(name)}

    # ---- references ------------------------------------------------------------------

    def resolve(self, tree: Tree) -> Reference | None:
        """Return what a `reference`, `power_of_name` or `scalar` node refers to; None
        if the name is unknown."""
        accent, name = accent_and_name(tree)
        subscripts = subscripts_of(tree)
        whole = rf"\{accent}{{{name}}}" if accent else name
        for candidate, kept in ((whole, ""), (name, accent)):
            labelled = with_label(candidate, subscripts)
            if labelled in self.variables:
                return Reference("variable", labelled, kept)
            is_label = any(map(self.is_label, subscripts))
            if (
                candidate in self.variables
                and not is_label
                and not self._is_built_in(candidate, subscripts)
            ):
                return Reference("variable", candidate, kept, tuple(subscripts))
        labelled = with_label(name, subscripts)
        if labelled in self.dimensions and not accent:
            return Reference("dimension", labelled)
        special = _SPECIAL.get(name)
        if special in ("euler", "pi") and any(map(self.is_label, subscripts)):
            return None  # e_k, an error at time k
        if special and (not accent or (special == "loss" and accent == "dot")):
            return Reference(special, name, accent, tuple(subscripts))
        return None

    def is_label(self, token: Token) -> bool:
        """Whether a subscript is a word, or a letter that is a label of other names."""
        letter = letter_of(token) if token.type in ("INDEX", "SHIFTED") else ""
        meaning = self.other_meaning(letter) if letter.isalpha() else ""
        return token.type == "WORD" or meaning.startswith("is the label")

    def _is_built_in(self, name: str, subscripts: Sequence[Token]) -> bool:
        """Whether \\delta_{ij} or I_n has its usual meaning although \\delta or I is a
        name, which does not take these indices."""
        axes = len(self.variables[name].axes)
        if name == r"\delta":
            return len(subscripts) == 2 and axes < 2
        return name == "I" and [str(t) in self.dimensions for t in subscripts] == [True]


LAYOUTS = ("numerator", "denominator")
LOSS = r"\mathcal{L}"
BUILT_IN = {
    "euler": "Euler's number",
    "pi": "the number π",
    "delta": "Kronecker's delta",
    "identity": "the identity matrix",
}
_SPECIAL = {
    "e": "euler",
    r"\pi": "pi",
    r"\delta": "delta",
    "I": "identity",
    r"\mathbf{1}": "ones",
    LOSS: "loss",
}


def sliced(axes: Shape, tokens: Sequence[Token]) -> tuple[Shape, Shape]:
    """Split the axes of a name into those with an index and those without."""
    if tokens and tokens[0].type == "ALL":
        return axes[1:], axes[:1]
    count = sum(token.type != "ALL" for token in tokens)
    return axes[:count], axes[count:]


def _pattern(tokens: Sequence[Token]) -> str:
    return "".join(":" if token.type == "ALL" else "i" for token in tokens)


def shape_of(space: Tree | Token | None) -> Shape:
    """Return a declared shape; that of a number is ()."""
    if not isinstance(space, Tree):
        return ()
    shape = tuple(canonical(side) for side in space.children)
    return (*shape, "1") if len(shape) == 1 else shape


def axes_of(shape: Shape) -> Shape:
    """Return the dimensions that take an index: those that are not 1."""
    return tuple(side for side in shape if side != "1")


def is_special(name: str) -> bool:
    """Whether a name has a meaning without a declaration, such as e and I."""
    return name in _SPECIAL


def without_accent(name: str) -> str:
    """Return the name below a bar or a dot."""
    accented = re.fullmatch(r"\\(?:bar|dot)\{(.*)\}", name)
    return accented[1] if accented else name


def _beside(name: str, side: str) -> tuple[str, str]:
    """Return the names of the elements before and behind a sequence."""
    return f"{name}_{{0}}", f"{name}_{{{side}+1}}"


def gradient_of(name: str) -> str:
    """Return the name of the gradient: \\bar{W}_{1} for W_{1}."""
    head, subscript, label = name.partition("_{")
    return rf"\bar{{{head}}}{subscript}{label}"


def _is_element(name: str, array: Variable) -> bool:
    """Whether a name with a label prints like an element of an array."""
    return bool(array.axes and label_of(name)) and name.startswith(f"{array.name}_{{")


def in_words(shape: Shape) -> str:
    """Describe a shape for a message; the unknown size of a 1 or an I is a `?`."""
    sides = ["?" if side.startswith("?") else side for side in shape]
    return f"a matrix of shape {' × '.join(sides)}" if shape else "a number"


def never_equal(one: Shape, other: Shape) -> bool:
    """Whether two shapes of the same kind (columns, rows, or matrices) differ in every
    reading.

    Texts also add a number or a column to a matrix, and do not always tell a row from a
    column.
    """
    kinds = [[side == "1" for side in shape] for shape in (one, other)]
    return kinds[0] == kinds[1] and any(map(differ, one, other))


def differ(one: str, other: str) -> bool:
    """Whether two sides differ at some sizes that are not 1."""
    return one != other and not one.isdigit() and not other.isdigit()
