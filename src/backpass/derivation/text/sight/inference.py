"""Infer the shapes of names from a text: what it states, and how it uses them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

from lark import Token, Tree

from backpass.derivation.language.functions import (
    BUILT_IN,
    called,
    head_of,
    is_function,
)
from backpass.derivation.language.names import axes_of
from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.text.contents import Document, Heading
from backpass.derivation.text.displays import Display
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.rewriting import parsed
from backpass.derivation.text.sight.names import (
    is_bold,
    is_capital,
    labelled,
    name_of,
    names_in,
)
from backpass.derivation.text.sight.prose import Prose, Stated, memberships
from backpass.derivation.text.sight.shapes import Shapes
from backpass.derivation.text.sight.sides import Found, Side
from backpass.derivation.text.statements import Statement, statements

# Losses; the first ones are numbers also with an index.
_VALUES = ("L", "J", r"\mathcal{L}", r"\mathcal{J}")
LOSSES = (*_VALUES, "E", "C", r"\ell", r"\mathcal{E}", r"\mathcal{C}")
_LETTERS = "nmpqdrshkuvwabcgtzlNMPQDKBSHRU"
_NAMES = re.compile(r"\\[a-zA-Z]+\{\\?[a-zA-Z]+\}|\\[a-zA-Z]+|[a-zA-Z]")
# A function of which nothing is known is tried as this one, with its own numbers.
_ANY = r"\frac{%d}{7} + \frac{%d}{3} #1 - \frac{%d}{5} #1^2 + \frac{%d}{13} #1^3"
_ACTIVATIONS = (r"\sigma", r"\phi", r"\varphi", r"\psi", r"\rho")
_FUNCTIONS = (*_ACTIVATIONS, *"fghFGpqlu", *LOSSES)
_LOGISTIC = r"\frac{1}{1 + e^{-#1}}"


_TRANSPOSED = re.compile(
    r"(?<![a-zA-Z\\])[A-Z]_(?:\w|\{\w\})\s*\^\s*\{?\s*(?:T|\\top|\\intercal|\\mathrm\{T\})(?![a-zA-Z])"
)
_LOSS = re.compile(r"\b(?:loss|cost|objective|error)\b", re.I)


@dataclass
class Use:
    """How a text uses a name: the numbers of its indices, and where."""

    line: int
    written: str = ""
    counts: set[int] = field(default_factory=set)
    lettered: bool = False
    letters: set[str] = field(default_factory=set)  # its indices, or labels
    bare: bool = False
    below: bool = False  # in a denominator
    root: bool = False  # whether it stands alone below a root


@dataclass
class Read:
    """An equation of the text: its trees, those of names on its left, and its place."""

    statement: Statement
    section: int
    line: int
    trees: list[Tree]
    head: str = ""
    derives: bool = False
    names: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()  # the names of its left side
    right: frozenset[str] = frozenset()


def all_statements(
    document: Document, prose: Prose | None = None
) -> Iterator[tuple[int, Statement]]:
    """Yield the statements of a document, also those of its prose, each with the number
    of its section."""
    section = 0
    starts = [item.start for item in document.items if isinstance(item, Heading)]
    for item in document.items:
        section += isinstance(item, Heading)
        if isinstance(item, Display):
            for statement in statements(item):
                yield section, statement
    for text in prose.equations if prose else ():
        members = tuple(side.strip() for side in text.split("="))
        if len(members) > 1 and all(member.characters for member in members):
            yield bisect_right(starts, text.origins[0]), Statement(members)


class Inference:
    """What is inferred of the names of a document, or of one of its sections."""

    def __init__(
        self, known: Knowledge, prose: Prose, section: int | None = None
    ) -> None:
        self.document, self.prose, self.section = known.document, prose, section
        self.functions: set[str] = set()
        self.arguments: dict[str, set[str]] = {}  # those of functions, as written
        self.factors: set[str] = set()  # names that also occur without a bracket
        self._before: list[tuple[str, Tree, Part]] = []  # names before brackets
        self.uses: dict[str, Use] = {}
        self.reads: list[Read] = []
        self.losses: set[str] = set()
        self._above: Counter[str] = Counter()  # how often a name is differentiated
        self._counts: Counter[str] = Counter()  # and how often it occurs
        self.found: dict[str, Found] = {}
        # Names in place of a divisor, each with the divisor and the names in it.
        self.divisors: dict[str, tuple[str, set[str]]] = {}
        self.counted: dict[str, str] = {}  # capital letters that are lengths, and why
        self._labelled: set[str] = set()
        self._valued: set[str] = set()  # losses with an index that are differentiated
        # Whether it transposes a capital with an index.
        self._transposes = _TRANSPOSED.search(known.source) is not None
        self._known = known
        self._shapes = Shapes(self.find, self.name_of)
        self._stated: list[Stated] = [*self.prose.stated]
        self._read()
        self._rank()
        self._unify()
        self._letters = self._free_letters()

    def find(self, name: str) -> Found | None:
        """Return the shape of a name; None if it is not one that has a shape."""
        return self.found.get(name)

    def name_of(self, tree: Tree | Token) -> tuple[str, list[Token]] | None:
        """Return the name and the indices of a node; None if it is not a name."""
        named = name_of(tree)
        if named and named[0] in self._labelled and named[1]:
            if all(one.isdigit() for one in named[1]):
                return labelled(*named), []
        return named

    # ---- reading ---------------------------------------------------------------------

    def _read(self) -> None:
        document, known = self.document, self._known
        for section, statement in all_statements(document, self.prose):
            line = document.line_of(statement.members[0])
            trees, parts, head, left = [], [], "", frozenset()
            for number, member in enumerate(statement.members):
                self._stated += memberships(member.characters, document.line_of(member))
                try:
                    part, _ = known.without_membership(member)
                    if number == 0 and is_function(part):
                        head = head_of(part).name
                        self.functions.add(head)
                    tree = called(parsed(part), part.text, known.scope)
                except Unreadable:
                    if number == 0:
                        left = frozenset(_NAMES.findall(member.characters))
                    continue
                if trees and (named := _divisor(trees[-1], parts[-1], tree, part)):
                    self.divisors.setdefault(*named)
                trees.append(tree)
                parts.append(part)
                self._note_functions(tree, part)
                if number == 0 and len(statement.members) > 1:
                    head = head or _head(tree)
                    left = frozenset(name for name, _, _ in names_in(tree))
            for piece in statement.beside:
                self._stated += memberships(piece.characters, line)
            text = " ".join(member.characters for member in statement.members)
            derives = re.search(
                r"\\(?:partial|nabla|dot)(?![a-zA-Z])|\\frac\s*\{\s*\\?d", text
            )
            read = Read(statement, section, line, trees, head, bool(derives))
            read.left = left
            read.right = frozenset(
                name for tree in trees[1:] for name, _, _ in names_in(tree)
            )
            self.reads.append(read)
        self._note_calls()
        for read in self._here:
            for tree in read.trees:
                self._note_uses(tree, read.line)
        if not self.losses and _LOSS.search(self.prose.words):
            heads = {read.head for read in self.reads}
            self.losses |= {
                name
                for name, count in self._above.items()
                if count == self._counts[name] > 1 and len(name) == 1
            } - heads
        for name, use in self.uses.items():
            if use.counts and not use.lettered and not use.bare:
                self._labelled.add(name)
        for name in self._labelled:
            self.uses.pop(name)
        for read in self.reads:
            names = set()
            for tree in read.trees:
                for name, tokens, _ in names_in(tree):
                    if (
                        name in self._labelled
                        and tokens
                        and all(t.isdigit() for t in tokens)
                    ):
                        name = labelled(name, tokens)
                        self.uses.setdefault(name, Use(read.line, name, bare=True))
                    names.add(name)
            read.names = frozenset(names)

    def _note_functions(self, tree: Tree, part: Part) -> None:
        for node in tree.iter_subtrees():
            if node.data == "applied" or node.data == "slope":
                if named := name_of(node.children[0]):
                    self._note_function(named[0], node.children[-1], part)
            if node.data == "product":
                for before, factor in zip(
                    node.children, node.children[1:], strict=False
                ):
                    if (
                        not isinstance(factor, Tree)
                        or part.between(before, factor).strip()
                    ):
                        continue
                    if (named := name_of(before)) is None:
                        continue
                    inside = factor.children[0] if factor.data == "bracket" else None
                    named_inside = inside is not None and name_of(inside)
                    if factor.data == "arguments" or named_inside:
                        self._note_function(named[0], factor, part)
                    elif inside is not None and not named[1]:
                        self._before.append((named[0], factor, part))

    def _note_calls(self) -> None:
        """Take letters that are usual for functions, and stand only before brackets, as
        functions."""
        brackets = Counter(name for name, _, _ in self._before)
        bare = Counter(
            name
            for read in self.reads
            for tree in read.trees
            for name, tokens, _ in names_in(tree)
            if not tokens
        )
        self.factors = {name for name in bare if bare[name] > brackets[name]}
        for name, factor, part in self._before:
            if name in _FUNCTIONS and name not in self.factors:
                self._note_function(name, factor, part)

    def _note_function(self, name: str, argument: Tree, part: Part) -> None:
        self.functions.add(name)
        written = "," if argument.data == "arguments" else part.written(argument)
        self.arguments.setdefault(name, set()).add(written)

    def _note_uses(self, tree: Tree, line: int) -> None:
        for name, tokens, _ in names_in(tree):
            use = self.uses.setdefault(name, Use(line))
            self._counts[name] += 1
            if tokens:
                use.counts.add(len(tokens))
                use.lettered |= any(not t.isdigit() for t in tokens)
                use.letters |= {str(t) for t in tokens}
                if not use.written:
                    use.written, use.line = labelled(name, tokens), line
            else:
                use.bare = True
        for node in tree.iter_subtrees():
            if node.data == "power" and name_of(node) is None:
                named = name_of(node.children[0])
                if named and len(named[1]) == 1 and is_capital(named[0]):
                    above = node.children[1]
                    self._transposes |= isinstance(above, Tree) and "top" in above.data
            if node.data == "root":
                named = name_of(node.children[0])
                if named and not named[1]:
                    self.uses[named[0]].root = True
            if node.data == "fraction":
                for name, tokens, _ in names_in(node.children[1]):
                    if not tokens:
                        self.uses[name].below = True
            if node.data in ("partial", "nabla_of"):
                of = node.children[0 if node.data == "partial" else 1]
                named = name_of(of)
                if named and named[1] and named[0] in _VALUES:
                    self._valued.add(named[0])
                if named and not named[1]:
                    if named[0] in LOSSES:
                        self.losses.add(named[0])
                    self._above[named[0]] += 1

    # ---- ranks -----------------------------------------------------------------------

    def _rank(self) -> None:
        scope = self._known.scope
        stated: dict[str, list[Stated]] = {}
        for one in self._stated:
            stated.setdefault(one.name, []).append(one)
        for name, use in self.uses.items():
            if name in self.functions or _is_function_word(name):
                continue
            if name in self.losses:
                self.found[name] = Found(name, 0)
                continue
            found = Found(name, line=use.line)
            variable = scope.variables.get(name)
            if variable is not None:
                axes = axes_of(variable.shape)
                found.be(len(axes), "", 0, "declared")
                found.axes = [Side(side) for side in axes]
                found.row = len(axes) == 1 and variable.shape[0] == "1"
            elif name in scope.dimensions or name in scope.functions:
                continue
            elif said := stated.get(name):
                self._as_stated(found, said)
            if found.rank is None:
                self._of_use(found, use)
                found.positive = use.root
            self.found[name] = found

    def _as_stated(self, found: Found, said: list[Stated]) -> None:
        first = next((one for one in said if one.sides is not None), said[0])
        others = {(one.sides, one.indexed) for one in said if one.sides is not None}
        ranks = {one.rank for one in said}
        if len(others) > 1 or len(ranks) > 1:
            if max(ranks) > 1:
                found.rank = -1  # a matrix, or a number
            return
        why = f"“{first.words}”"
        if first.sides is None:
            if not first.indexed:
                found.be(first.rank, why, first.line, "guess")
            elif first.rank == 1:
                found.be(2, why, first.line)
                found.listed = True
            else:
                found.be(1, why, first.line)
                found.rank = -1 if first.rank else 1
            return
        sides = [Side(_label(side)) for side in first.sides if side != "1"]
        found.be(len(sides), why, first.line, "stated")
        found.row = first.sides[:1] == ("1",)
        found.positive = first.positive
        found.axes = sides
        if first.indexed and len(sides) == 1:
            found.be(2, why, first.line, "stated")
            found.listed, found.axes = True, [Side(), *sides]
        elif first.indexed and len(sides) == 0:
            found.be(1, why, first.line, "stated")
        elif first.indexed:
            found.rank = -1

    def _of_use(self, found: Found, use: Use) -> None:
        name = found.name
        if use.counts:
            count = max(use.counts)
            rows = count == 1 and is_capital(name) and use.bare and name not in LOSSES
            if rows or use.counts == {1, 2}:
                found.be(2, f"its rows {use.written}", use.line)
                found.sliced = True
            elif len(use.counts) > 1 or self._may_be_matrices(name, use):
                found.rank = -1
            elif count == 1 and is_bold(name) and not use.bare:
                found.be(2, f"its vectors {use.written}", use.line)
                found.listed = True
            else:
                found.be(count, f"its elements {use.written}", use.line, "index")
        elif is_capital(name):
            if use.below and not is_bold(name):
                found.be(0, "its place below a fraction bar", use.line)
            else:
                bold = "bold " if is_bold(name) else ""
                found.be(2, f"its {bold}capital letter", use.line)
        elif is_bold(name):
            found.be(1, "its bold letter", use.line)

    def _may_be_matrices(self, name: str, use: Use) -> bool:
        """Whether a name with indices may be a matrix: a capital letter with one index,
        unless it is a loss, or with the names of arrays as its label, as in W_{xh}."""
        if use.counts == {1}:
            loss = name in self._valued and not self._transposes
        else:
            loss = use.letters.isdisjoint({*self.uses, "x", "y"})
        return is_capital(name) and not loss

    # ---- sides -----------------------------------------------------------------------

    def _unify(self) -> None:
        shapes = self._shapes
        for fresh in (False, False, True, True):
            shapes.fresh = fresh
            self._visit_all()
        for found in self.found.values():
            if found.rank is None and found.name not in shapes.labels:
                found.be(0, "its lower-case letter", found.line)
        self._visit_all()
        self._count()

    def _count(self) -> None:
        """Read a capital letter as the length of the index with the same letter."""
        for name, found in [*self.found.items()]:
            sides = {
                id(one.root()): one for one in self._shapes.axes.get(name.lower(), ())
            }
            number = found.rank == 0 and found.strength == "guess"
            if not (number and len(sides) == 1 and re.fullmatch("[A-Z]", name)):
                continue
            (side,) = sides.values()
            heads = {read.head for read in self.reads}
            if side.label or {name, name.lower()} & (heads | {*self.losses, *LOSSES}):
                continue
            if name.lower() in self.uses or name in self.functions:
                continue
            side.label = name
            self.counted[name] = (
                f"{name} is the number of values of the index {name.lower()}"
            )
            del self.found[name]
            for other in self.found.values():
                if any(axis.label == name for axis in other.axes):
                    other.strength = "guess"

    @property
    def _here(self) -> list[Read]:
        """The equations of the section."""
        return [one for one in self.reads if self.section in (None, one.section)]

    def _visit_all(self) -> None:
        for read in self._here:
            if read.trees:
                self._shapes.equation(read.trees, read.line)

    def _free_letters(self) -> Iterator[str]:
        taken = {found.name for found in self.found.values()} | self.functions
        taken |= {side.label for found in self.found.values() for side in found.axes}
        for read in self.reads:
            for tree in read.trees:
                tokens = tree.scan_values(lambda one: isinstance(one, Token))
                taken.update(str(token) for token in tokens if len(token) == 1)
                for subscript in tree.find_data("subscript"):
                    taken.update(map(str, subscript.children))
        scope = self._known.scope
        taken |= {*scope.variables, *scope.dimensions, *scope.functions, *LOSSES}
        taken |= {use.partition("_")[0] for use in self.uses}
        free = [one for one in _LETTERS if one not in taken]
        free += [f"n_{{{number}}}" for number in range(1, 10) if "n" not in taken]
        return iter(free)

    # ---- what to declare -------------------------------------------------------------

    @property
    def lengths(self) -> set[str]:
        """The names that are lengths."""
        return self._shapes.labels | {
            side.label for found in self.found.values() for side in found.axes
        }

    def declarations(self, name: str) -> list[str]:
        """Return the directives that declare a name; [] if none is inferred."""
        if name in self.functions:
            return self._function(name)
        if name in self.divisors:
            return [f"let {name} = {self.divisors[name][0]}"]
        found = self.found.get(name)
        if found is None or found.rank is None or found.rank < 0:
            return []
        for side in found.axes:
            if not side.label:
                side.label = next(self._letters, "")
            if not side.label:
                return []
        sides = [side.label for side in found.axes]
        whole = ["1", *sides] if found.row else sides
        reals = r"\mathbb{R}_{>0}" if found.positive else r"\mathbb{R}"
        product = r" \times ".join(whole)
        space = rf" \in {reals}" + (f"^{{{product}}}" if whole else "")
        lines = [f"given {name}{space}"]
        if found.listed or found.sliced:
            lines.append(rf"slice {name}_{{i}} \in \mathbb{{R}}^{{{sides[1]}}}")
        return lines

    def with_divisors(self, names: frozenset[str]) -> list[str]:
        """Return names, preceded by those in the divisors that some of them replace."""
        mine = sorted(names & self.divisors.keys())
        inside = {one for name in mine for one in self.divisors[name][1]}
        return [*sorted((names | inside) - {*mine}), *mine]

    def suggestions(self, name: str) -> list[str]:
        """Return the directives that an author would write for a name."""
        if name in self.functions and name != r"\sigma":
            return []
        return [one.replace(r"\zeta", "t") for one in self.declarations(name)]

    def _function(self, name: str) -> list[str]:
        """Return the directive that defines a function of a number, if nothing in the
        text does."""
        arguments = self.arguments.get(name, {","})
        if "," in arguments or any(one.head == name for one in self.reads):
            return []
        if name in LOSSES or not self._is_of_numbers(name, arguments):
            return []
        body = _LOGISTIC if name == r"\sigma" else _cubic(name)
        return [rf"let {name}(\zeta) = {body.replace('#1', chr(92) + 'zeta ')}"]

    def _is_of_numbers(self, name: str, arguments: set[str]) -> bool:
        """Whether a function is applied to numbers, or to the elements of arrays."""
        if name.startswith("\\") and name in _ACTIVATIONS:
            return True
        inside = {one.strip("() ") for one in arguments}
        found = [self.found.get(one) for one in inside]
        return all(one is not None and one.rank == 0 for one in found)

    def reason(self, name: str) -> str:
        """Return in words what is inferred of a name, and from what."""
        if name in self.functions:
            if name == r"\sigma":
                return rf"{name} is the logistic function"
            return f"{name} is some function of a number (tried as a cubic)"
        found = self.found[name]
        if name in self.divisors:
            where = self.document.where(found.line)
            return f"{name} is {self.divisors[name][0]}, from its fraction in {where}"
        sides = [side.label for side in found.axes]
        if found.listed:
            what = f"a list of vectors of length {sides[1]}"
        elif found.rank == 0:
            what = "a positive number" if found.positive else "a number"
        elif found.rank == 1:
            what = f"a {'row ' if found.row else ''}vector of length {sides[0]}"
        elif found.rank == 2:
            what = f"a matrix of shape {sides[0]} × {sides[1]}"
        else:
            what = f"an array of shape {' × '.join(sides)}"
        return (
            f"{name} is {what}, from {found.why} in {self.document.where(found.line)}"
        )


def _label(side: str) -> str:
    """Return the label of a side that is written in a text."""
    label = side.strip("{}")
    if re.fullmatch(r"[a-zA-Z]|[0-9]", label):
        return label
    if match := re.fullmatch(r"([a-zA-Z])_(?:\{(\w)\}|(\w))", label):
        return f"{match[1]}_{{{match[2] or match[3]}}}"
    return ""


def _is_function_word(name: str) -> bool:
    word = re.fullmatch(r"\\text\{(\w+)\}", name)
    return bool(word and word[1].lower() in BUILT_IN) or name.startswith(r"\text")


def _divisor(
    first: Tree, before: Part, second: Tree, after: Part
) -> tuple[str, tuple[str, set[str]]] | None:
    """Return the name that replaces the divisor of the fraction before it, with this
    divisor and the names in it, or None."""
    if not first.data == second.data == "fraction":
        return None
    numerators = (before.written(first.children[0]), after.written(second.children[0]))
    named, below = name_of(second.children[1]), first.children[1]
    if not named or named[1] or name_of(below) or len({*map(_plain, numerators)}) > 1:
        return None
    names = {name for name, _, _ in names_in(below)}
    if named[0] in names:
        return None
    return named[0], (before.written(below), names)


def _plain(text: str) -> str:
    return "".join(text.split())


def _head(tree: Tree) -> str:
    """Return the name that is alone on the left side of an equation; "" if none is."""
    if tree.data == "power" and name_of(tree) is None:
        tree = tree.children[0]
    named = name_of(tree)
    if named is None or (named[1] and is_bold(named[0])):
        return ""  # x_{k+1} = … is a step of an iteration
    return named[0]


def _cubic(name: str) -> str:
    """Return a cubic that no other name has."""
    code = crc32(name.encode())
    sizes = ((3, 97), (5, 89), (11, 83), (7, 79))
    return _ANY % tuple(first + code // size % size for first, size in sizes)
