"""Whether the equations of a text let a name depend on another only through others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from backpass.derivation.text.formal.chains import steps
from backpass.derivation.text.formal.trees import Groups, Node

Key = tuple[str, Groups]


class Routes:
    """The names that the value of each name contains. Those with several labels count
    as one name for each label.

    `equations` are pairs of a left side and the formulas, or else the letters, on its
    right; `summed` are the letters that are indices somewhere.
    """

    def __init__(
        self,
        equations: Iterable[tuple[Node, list[Node | set[str]]]],
        slopes: list[tuple[Node, Node]],
        summed: set[str],
    ) -> None:
        self._equations, self._slopes = [*equations], slopes
        self._summed = summed | {*"ijklmn"}

    def only_through(self, of: Node, by: Node, paths: list[list[Node]]) -> bool:
        """Whether a name depends on another only through the names on some paths, each
        of them where it stands."""
        inner = [_plain(one) for path in paths for one in path]
        self._labelled = {one.value for one in inner if self._is_labelled(one)}
        if self._is_labelled(by) or not by.subs:
            self._labelled.add(by.value)
        uses = self._uses({one.value for one in inner})
        avoided = {self._key(one) for one in inner}
        if self._reaches(uses, [self._key(of)], by, avoided):
            return False
        for path in paths:
            for one, following in pairwise(map(_plain, path)):
                found = self._steps(one, following, avoided)
                if any(self._may_be(key, self._key(by)) for key in found):
                    return False
                if self._reaches(uses, found, by, avoided):
                    return False
        return (
            all(self._is_last(uses, one, by, avoided) for one in inner)
            and all(self._has_own_index(one, by) for one in inner)
            and self._agree_on(of, by, inner)
        )

    def _is_labelled(self, node: Node) -> bool:
        """Whether a name has a label. An index that takes all values is not one."""
        return bool(node.subs) and not all(
            len(group) == 1 and group[0] in self._summed for group in node.subs
        )

    def _key(self, node: Node) -> Key:
        return node.value, node.subs if node.value in self._labelled else ()

    def _uses(self, functions: set[str]) -> dict[Key, set[Key]]:
        """Return the names in the values of each name."""
        found: dict[Key, set[Key]] = defaultdict(set)
        self._each: dict[Key, list[set[Key]]] = defaultdict(list)
        for head, values in self._equations:
            for value in values:
                if isinstance(value, Node):
                    names = {*self._names_outside(value, functions)}
                else:
                    names = {(letter, ()) for letter in value}
                found[self._key(head)] |= names
                self._each[self._key(head)].append(names)
        return found

    def _steps(self, node: Node, following: Node, avoided: set[Key]) -> list[Key]:
        """Return the names in those values of a name that contain the next one, besides
        those to avoid; in all of its values if none contains it, but it has a value."""
        own, other = self._key(node), self._key(following)
        each = [
            names
            for key in self._each
            if self._may_be(key, own)
            for names in self._each[key]
        ]
        containing = [names for names in each if other in names]
        if not containing and other not in self._each:
            return []  # nothing is said of the next one
        each = containing or each
        return [one for names in each for one in names if one not in avoided]

    def _names_outside(self, tree: Node, functions: set[str]) -> Iterator[Key]:
        """Yield the names of a tree, but not those in arguments of some functions."""
        if tree.kind == "name":
            yield self._key(tree)
            yield from ((token, ()) for token in tree.tokens)
        if tree.kind == "apply" and tree.parts[0].value in functions:
            yield self._key(tree.parts[0])
            return
        for part in tree.parts:
            yield from self._names_outside(part, functions)

    def _may_be(self, key: Key, other: Key) -> bool:
        """Whether two names may be one: an index may have the value of a label, and a
        name without a label is that of any number, but not of a letter that is not an
        index."""
        if key[0] != other[0] or key == other:
            return key == other
        tokens = {
            token for _, subs in (key, other) for group in subs for token in group
        }
        is_whole = () in (key[1], other[1])
        return not self._summed.isdisjoint(tokens) or (
            is_whole and any(token.isdigit() for token in tokens)
        )

    def _reaches(
        self, uses: dict[Key, set[Key]], start: list[Key], by: Node, avoided: set[Key]
    ) -> bool:
        """Whether the value of a name contains another, also where the names to avoid
        are constant."""
        end, waiting, seen = self._key(by), [*start], {*start}
        while waiting:
            for one in self._values(uses, waiting.pop()):
                if self._may_be(one, end):
                    return True
                if one not in seen | avoided:
                    seen.add(one)
                    waiting.append(one)
        return False

    def _values(self, uses: dict[Key, set[Key]], key: Key) -> set[Key]:
        return {one for own in uses if self._may_be(own, key) for one in uses[own]}

    def _is_last(
        self, uses: dict[Key, set[Key]], node: Node, by: Node, avoided: set[Key]
    ) -> bool:
        """Whether the text shows that nothing depends on a name through the same name
        with another label: the value of this one contains that, or the other one's
        value depends on the name only through this one."""
        if node.value not in self._labelled:
            return True
        known = {*uses, *(one for each in uses.values() for one in each)}
        known |= {
            self._key(_plain(part))
            for slope in self._slopes
            for side in slope
            for one in side.walk()
            if one.kind == "slope"
            for part in one.parts
            if _plain(part).kind == "name"
        }
        others = {one for one in known if one[0] == node.value} - avoided
        if _is_numbered(self._key(node)):  # a letter may be the same number
            others = {one for one in others if one in uses or _is_numbered(one)}
        return all(
            self._contains(uses, self._key(node), one)
            or (one in uses and not self._reaches(uses, [one], by, avoided))
            for one in others
        )

    def _has_own_index(self, node: Node, by: Node) -> bool:
        """Whether an element depends on no other elements of a name, as far as the
        equations show, if both have the same index."""
        if not node.tokens & by.tokens:
            return True
        for head, values in self._equations:
            if head.value != node.value or len(head.subs) != len(node.subs):
                continue
            swap = dict(zip(head.subs, node.subs, strict=True))
            for value in values:
                for one in value.walk() if isinstance(value, Node) else ():
                    subs = tuple(swap.get(group, group) for group in one.subs)
                    if one.kind == "name" and one.value == by.value and subs != by.subs:
                        return False
        return True

    def _contains(self, uses: dict[Key, set[Key]], key: Key, other: Key) -> bool:
        waiting, seen = [key], {key}
        while waiting:
            found = {one for one in uses.get(waiting.pop(), ()) if one not in seen}
            if other in found:
                return True
            seen |= found
            waiting += found
        return False

    def _agree_on(self, of: Node, by: Node, inner: list[Node]) -> bool:
        """Whether each chain rule of the text from one name to another goes through one
        of some names."""
        avoided = {self._key(one) for one in inner}
        for first, tree in self._slopes:
            paths = steps(first, tree)
            if not paths or first.parts[0] != of or first.parts[1] != by:
                continue
            through = {self._key(_plain(one)) for path in paths for one in path}
            if not through & avoided:
                return False
        return True


def _is_numbered(key: Key) -> bool:
    return any(token.isdigit() for group in key[1] for token in group[:1])


def _plain(node: Node) -> Node:
    return node.parts[0] if node.kind == "apply" else node


def name_of(node: Node) -> str:
    """Return a name with its label, as it is written."""
    if not node.subs:
        return node.value
    inside = ", ".join(" ".join(group) for group in node.subs)
    return f"{node.value}_{{{inside}}}"
