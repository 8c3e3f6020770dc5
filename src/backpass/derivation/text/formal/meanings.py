"""What a text says of its names: the functions among them, and their definitions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from backpass.derivation.text.formal.chains import order_of
from backpass.derivation.text.formal.free import free_indices
from backpass.derivation.text.formal.heads import (
    Key,
    head_of_left,
    is_claim,
    is_closed_form,
    key_of,
    names_itself,
    squared,
)
from backpass.derivation.text.formal.kinds import IDENTITY, is_array, is_vector
from backpass.derivation.text.formal.manners import manner_of, tree_of
from backpass.derivation.text.formal.routes import Routes
from backpass.derivation.text.formal.slopes import Meaning, base, names
from backpass.derivation.text.formal.trees import Groups, Node, Unclear, renamed
from backpass.derivation.text.passages import Text

LETTER = re.compile(r"\\[a-zA-Z]+(?:\{\\?[a-zA-Z]+\})?|[a-zA-Z]")


@dataclass
class Read:
    """An equation, as far as it can be read: the trees of its members, each with its
    place, and the number of its section. `line` is that on which it begins."""

    members: tuple[Text, ...]
    trees: list[Node | None]
    section: int
    line: int
    shown: bool = True  # whether it is displayed
    certain: bool = True  # whether no condition stands beside it, but a range
    stands: bool = True  # the same, but it may follow from the equation beside it
    usable: bool = True  # whether nothing stands beside it
    introduced: bool = False  # whether the sentence above it draws no conclusion
    called: bool = False  # whether that sentence says that it defines something
    begins: int = 0  # where its display begins in the source
    signed: bool = False  # whether its sign does, as := does
    defines: Key | None = None
    held: bool = False  # whether it may be a solution of equations above it


class Meanings:
    """The equations of a text, in order, and what they say of its names."""

    def __init__(
        self,
        reads: list[Read],
        formulas: list[str],
        dependent: frozenset[str],
        expects: bool = False,
        source: str = "",
        marked: Callable[[Node | None], Node | None] = lambda tree: tree,
    ) -> None:
        self.manner = manner_of(formulas, expects, source)
        self.reads, self.dependent = reads, dependent
        for read in reads:
            read.trees = [
                marked(tree_of(member.characters, self.manner))
                for member in read.members
            ]
        self.unread = {
            letter
            for read in reads
            for member, tree in zip(read.members, read.trees, strict=True)
            if tree is None
            for letter in LETTER.findall(member.characters)
        }
        self._heads: dict[Key, list[Read]] = defaultdict(list)
        self.summed = {
            token
            for read in reads
            for tree in read.trees
            if tree is not None
            for node in tree.walk()
            if node.kind == "big" or node.value == r"\delta"
            for group in node.subs
            if len(group) == 1
            for token in group
        }
        # Letters that are names of their own, and so labels in W_y.
        self._named = {
            letter
            for read in reads
            if read.shown and (head := head_of_left(read.trees[0])) is not None
            for letter in re.findall(r"[a-zA-Z]\Z", head.value.rstrip("}"))
            if letter not in self.summed
        }
        self._named |= {
            node.value
            for read in reads
            for tree in read.trees
            for node in (tree.walk() if tree else ())
            if node.kind == "name" and re.fullmatch("[a-hq-zA-Z]", node.value)
        } - self.summed
        self.heads: set[str] = set()
        self.computed: set[str] = set()  # names that are differentiated
        self.applied: set[str] = set(self.manner.plain)
        self.columns = not any(
            _is_row(first, second)
            for read in reads
            for tree in read.trees
            if tree is not None
            for node in tree.walk()
            if node.kind == "product"
            for first, second in pairwise(node.parts)
        )
        # The orders in which chain rules with arrays have their factors.
        self.turns = {
            turn
            for read in reads
            if (first := read.trees[0]) is not None
            for tree in read.trees[1:]
            if tree is not None and (turn := order_of(first, tree))
        }
        self._define()
        self.identity = not any(
            IDENTITY.fullmatch(name) for name in self.heads | self.applied
        )
        self._facts: dict[Node, Node] = {}

    def _define(self) -> None:
        seen: set[tuple[int, Key]] = set()
        used: set[tuple[int, Key]] = set()  # by definitions
        headed: set[tuple[int, Key]] = set()  # given a value above
        varied: set[Key] = set()  # by which something is differentiated
        for read in self.reads:
            left, *rest = read.trees
            head = head_of_left(left)
            self._note_names(read)
            key = (read.section, key_of(left)) if head is not None and left else None
            if head is not None and key is not None and rest:
                is_known = head.value in self.heads
                self.heads.add(head.value)
                self._heads[key[1]].append(read)
                introduced = read.introduced and key[1] not in varied
                is_new = key not in seen and (key not in used or introduced)
                if left is not None and squared(left):
                    root = (read.section, key_of(left.parts[0]))
                    is_new &= root not in seen and root not in headed
                # \phi'(u) is derived from \phi(u), even by a line that is not readable.
                is_value = left is not None and left.kind == "apply"
                is_new &= not (is_value and is_known and "'" in head.sups)
                states = read.signed or (introduced and read.called)
                if (
                    (is_new or (states and key not in headed))
                    and read.certain
                    and rest[0] is not None
                    and not names_itself(head, rest[0])
                    and left is not None
                    and not is_closed_form(left, rest[0])
                    and not is_claim(left, rest[0], is_known)
                    and not self.has_free_index(left, rest[0])
                ):
                    read.defines = key[1]
            named = used if read.defines is not None else seen
            shown = read.trees[1:] if head is not None else read.trees
            for tree in shown if rest or not _is_mention(left) else ():
                if tree is None:
                    continue
                named |= {(read.section, key_of(one)) for one in _alone(tree)}
                varied |= {
                    key_of(node.parts[1])
                    for node in tree.walk()
                    if node.kind == "slope" and node.parts[1].kind == "name"
                }
            if key is not None and rest:
                seen.add(key)
                headed.add(key)

    def has_free_index(self, left: Node | None, right: Node) -> bool:
        """Whether a right side has an index that the left side does not have, and over
        which other formulas sum."""
        assert left is not None
        free = free_indices(right) - left.tokens
        free -= {value for value, _ in names(left)} | self._named
        repeated = {
            letter
            for letter in free
            if len(
                {
                    n
                    for n in right.walk()
                    if n.kind == "name" and any(letter in group for group in n.subs)
                }
            )
            > 1
        }
        return bool(free & self.summed or repeated)

    def _note_names(self, read: Read) -> None:
        for tree in read.trees:
            for node in tree.walk() if tree else ():
                if node.kind == "slope" and node.parts[0].kind == "name":
                    self.computed.add(node.parts[0].value)
                if node.kind == "apply":
                    self.applied.add(node.parts[0].value)

    # ---- the meaning at a place ------------------------------------------------------

    def at(self, place: Read | None) -> Meaning:
        """Return the meaning of names at an equation: no definition below it."""
        return Meaning(
            lambda node: self._value(node, place),
            self.is_input,
            self._users,
            self._facts.get,
        )

    def definition(self, node: Node, place: Read | None) -> Read | None:
        """Return the equation that defines a name for an equation: that of its section,
        or the only one of the text. None if there are several, or none."""
        heads = self._heads.get(key_of(node)) or self._functions(node)
        heads = [one for one in heads if _subs_of(one) == node.subs] or heads
        if place is not None:
            mine = [one for one in heads if one.section == place.section]
            beside = [one for one in mine if one.line == place.line and one.certain]
            if len(mine) > 1 and beside and beside[0] is not place:
                return beside[0] if beside[0].usable and beside[0].trees[1] else None
            heads = mine or heads
        first = heads[0] if heads else None
        if first is None or first.defines is None or first is place:
            return None
        if first.held or not first.usable:
            return None
        if any(one.section != first.section for one in heads[1:]):
            return None
        if place is not None and first.section != place.section:
            return first if first.line <= place.line and len(heads) == 1 else None
        return first

    def _functions(self, node: Node) -> list[Read]:
        """Return the equations that define the function that a name is."""
        if node.kind != "name":
            return []
        found = [
            heads
            for (value, sups, _), heads in self._heads.items()
            if (value, sups) == (node.value, node.sups)
            and (left := heads[0].trees[0]) is not None
            and left.kind == "apply"
            and left.parts[0] == node
        ]
        return found[0] if len(found) == 1 else []

    def _value(self, node: Node, place: Read | None) -> Node | None:
        read = self.definition(node, place)
        if read is None:
            return None
        left, right = read.trees[0], read.trees[1]
        assert left is not None and right is not None
        if right.kind == "number":
            return None  # a number is the value in one case
        if left.kind == "apply" and left.parts[0] == node:
            return None if node.value in {one for one, _ in names(right)} else right
        if left.kind != node.kind:
            return None
        if right.kind == "name" and not read.shown:
            return None
        head = head_of_left(left)
        if head is None or base(head) in names(right):
            return None  # a recurrence
        try:
            if node.kind == "apply":
                return _applied(left, right, node)
            return _with_indices(left, right, node)
        except Unclear:
            return None

    def is_input(self, name: Node) -> bool:
        """Whether the text does not say that a name depends on others."""
        value = name.value
        return not (
            value in self.heads
            or value in self.computed
            or value in self.applied
            or value in self.dependent
            or re.match(r"\\(?:hat|bar|mean|tilde|widehat|overline|text)\b", value)
            or value in self.unread & self.dependent
        )

    def is_apart(self, name: Node, other: Node) -> bool:
        """Whether the text gives a name no value that depends on another one."""
        if name.value == other.value or name.value in self.unread:
            return False
        if self.is_input(name):
            return True
        if name.value in self.computed | self.applied | self.dependent:
            return False
        waiting, seen = [name.value], {name.value}
        while waiting:
            for one in self._uses[waiting.pop()] - seen:
                if one == other.value:
                    return False
                seen.add(one)
                waiting.append(one)
        return True

    @cached_property
    def _uses(self) -> dict[str, set[str]]:
        """The names in the values of each name."""
        found: dict[str, set[str]] = defaultdict(set)
        for read in self.reads:
            head = head_of_left(read.trees[0])
            members = zip(read.members[1:], read.trees[1:], strict=True)
            if head is None:
                continue
            for member, tree in members:
                used = _names_outside(tree, set()) if tree else ()
                found[head.value] |= {*used} or {*LETTER.findall(member.characters)}
        return found

    def _users(self, name: Node) -> list[Node] | None:
        """Return the names whose definitions contain a name; None if some equation with
        it is unread."""
        if name.value in self.unread:
            return None
        found: list[Node] = []
        for reads in self._heads.values():
            for read in reads:
                left, right = read.trees[0], read.trees[1]
                if left is None or right is None or base(name) not in names(right):
                    continue
                formulas = {(one.trees[0], one.trees[1]) for one in reads}
                if left.kind != "name" or len(formulas) > 1:
                    return None
                if left.subs != name.subs and left.subs:
                    return None
                found.append(left)
        return [*dict.fromkeys(found)]

    def reached(self, trees: Iterable[Node], place: Read) -> list[Node]:
        """Return the definitions that formulas may be expanded by."""
        found: dict[Node, None] = {}
        waiting = [node for tree in trees for node in tree.walk()]
        while waiting:
            node = waiting.pop()
            if node.kind == "slope" and (fact := self._facts.get(node)) is not None:
                if fact not in found:
                    found[fact] = None
                    waiting += fact.walk()
            if node.kind not in ("name", "apply"):
                continue
            value = self._value(node, place)
            if value is not None and value not in found and len(found) < 60:
                found[value] = None
                waiting += value.walk()
        return [*found]

    def has_only_numbers(self, read: Read) -> bool:
        """Whether all names of an equation, and of the definitions that it may use, are
        declared as numbers."""
        trees = [tree for tree in read.trees if tree is not None]
        trees += self.reached(trees, read)
        nodes = [node for tree in trees for node in tree.walk() if node.kind == "name"]
        return bool(nodes) and all(node.counts for node in nodes)

    def only_through(self, of: Node, by: Node, paths: list[list[Node]]) -> bool:
        """Whether the text's equations let a name depend on another only through
        others."""
        inner = [one for path in paths for one in path]
        if len(self.turns) > 1 and sum(map(is_array, (of, by, *inner))) > 1:
            return False  # the order of factors is uncertain
        return self._routes.only_through(of, by, paths)

    @cached_property
    def _routes(self) -> Routes:
        equations: list[tuple[Node, list[Node | set[str]]]] = []
        slopes: list[tuple[Node, Node]] = []
        for read in self.reads:
            first, head = read.trees[0], head_of_left(read.trees[0])
            if head is not None:
                members = zip(read.members[1:], read.trees[1:], strict=True)
                values = [t or {*LETTER.findall(m.characters)} for m, t in members]
                equations.append((head, values))
            if first is not None and first.kind == "slope":
                slopes += [(first, tree) for tree in read.trees[1:] if tree]
        return Routes(equations, slopes, self.summed)

    def functions(self, name: Node) -> list[tuple[Node, ...]]:
        """Return the functions whose value the text says that a name is, as in
        z = f(x, y), each with its arguments."""
        found = {
            right.parts: None
            for read in self.reads
            for left, right in pairwise(read.trees[:2])
            if left == name and right is not None and right.kind == "apply"
        }
        return [one for one in found if not one[0].subs and not one[0].sups]

    def add_fact(self, slope: Node, value: Node) -> None:
        """Note a derivative that a line of the text shows."""
        if slope.kind == "slope" and slope not in set(value.walk()):
            self._facts[slope] = value


def _is_mention(tree: Node | None) -> bool:
    """Whether a display is a name in a sentence, which says nothing of its value."""
    if tree is not None and tree.kind in ("power", "other"):
        return bool(tree.parts) and tree.parts[0].kind == "name"
    return tree is not None and tree.kind in ("name", "apply")


def _subs_of(read: Read) -> Groups:
    """Return the indices of the name to which an equation gives a value."""
    head = head_of_left(read.trees[0])
    return head.subs if head is not None else ()


def _is_row(first: Node, second: Node) -> bool:
    """Whether a vector stands before a matrix, as a row does."""
    return (
        is_vector(first)
        and not first.subs
        and second.kind == "name"
        and bool(
            re.fullmatch(r"[A-Z]|\\(?:mathbf|boldsymbol)\{[A-Z]\}", second.value)
            and not re.fullmatch(r"[nmcabdktsh]", first.value)
        )
    )


def _alone(tree: Node) -> Iterable[Node]:
    """Yield the names of a tree outside derivatives and arguments."""
    if tree.kind == "name":
        yield tree
    elif tree.kind not in ("slope", "apply"):
        for part in tree.parts:
            yield from _alone(part)


def _names_outside(tree: Node, functions: set[str]) -> Iterable[str]:
    """Yield the names of a tree, but not those in arguments of some functions."""
    if tree.kind == "name":
        yield tree.value
        yield from tree.tokens
    if tree.kind == "apply" and tree.parts[0].value in functions:
        yield tree.parts[0].value
        return
    for part in tree.parts:
        yield from _names_outside(part, functions)


def _with_indices(left: Node, right: Node, node: Node) -> Node:
    """Return the definition of a name with the indices of a use."""
    if len(left.subs) != len(node.subs):
        raise Unclear("another number of indices")
    for own, used in zip(left.subs, node.subs, strict=True):
        if own == used:
            continue
        if len(own) > 1 or len(used) > 1 or own[0].isdigit():
            raise Unclear("indices that are computed")
        right = renamed(right, own[0], used[0])
    return right


def _applied(left: Node, right: Node, node: Node) -> Node:
    """Return the value of a function at its arguments."""
    name, *parameters = left.parts
    used, *arguments = node.parts
    if left.value != node.value or len(parameters) != len(arguments):
        raise Unclear("another number of arguments")
    if left == node:
        return right
    right = _with_indices(name, right, used) if name != used else right
    if any(one.kind != "name" for one in parameters):
        raise Unclear("a parameter that is not a name")
    swap = dict(zip(parameters, arguments, strict=True))
    if len(swap) < len(parameters):
        raise Unclear("a parameter twice")
    bound = {
        t for one in right.walk() if one.kind == "big" for g in one.subs for t in g
    }
    if any(bound & one.tokens for one in arguments):
        raise Unclear("an index has two meanings")
    wanted = {base(one) for one in parameters}
    for one in right.walk():
        if one.kind == "name" and base(one) in wanted and one not in swap:
            raise Unclear("an element of a parameter")
    return _swapped(right, swap)


def _swapped(node: Node, swap: dict[Node, Node]) -> Node:
    if node in swap:
        return swap[node]
    return replace(node, parts=tuple(_swapped(part, swap) for part in node.parts))
