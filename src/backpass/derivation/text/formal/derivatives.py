"""Read fractions, and derivatives in each of their notations."""

from __future__ import annotations

from dataclasses import replace

from backpass.derivation.text.formal.reading import Reading
from backpass.derivation.text.formal.tokens import EACH, TIMES, mark_of
from backpass.derivation.text.formal.trees import Node, Unclear, number


class Derivatives(Reading):
    def fraction(self) -> Node:
        return self.of_fraction(self.argument(), self.argument())

    def of_fraction(self, above: list[str], below: list[str]) -> Node:
        mark = mark_of(above)
        if mark and mark_of(below):
            return self.derivative(above, below)
        return Node("quotient", "", (self.inner(above), self.inner(below)))

    def derivative(self, above: list[str], below: list[str]) -> Node:
        rest, order = above[mark_of(above) :], 1
        if rest[:1] == ["^"]:
            reader = type(self)(rest[1:], self.manner)
            text = "".join(reader.argument())
            if text != "2":
                raise Unclear("a higher derivative")
            rest, order = rest[1 + reader.at :], 2
        variables = self.variables(below, order)
        if rest:
            of = self.inner(rest)
        elif self.token in ("(", "["):
            of = self.factor()
            if self.begins() or self.token in TIMES:
                raise Unclear("of what is this the derivative?")
        else:
            of = self.run()
            if self.token in TIMES | EACH:
                raise Unclear("of what is this the derivative?")
        for variable in reversed(variables):
            of = Node("slope", "", (of, variable))
        return of

    def variables(self, below: list[str], order: int) -> list[Node]:
        found: list[Node] = []
        reader = type(self)(below, self.manner)
        while reader.token:
            size = mark_of(below[reader.at :])
            if not size:
                raise Unclear("by what is this the derivative?")
            reader.at += size
            one = reader.factor()
            if one.kind == "power" and one.parts[1] == number(order) and order > 1:
                found += [one.parts[0]] * order
            elif one.kind == "power" and all(two.kind == "name" for two in one.parts):
                name, label = one.parts
                found.append(replace(name, sups=(*name.sups, label.value)))
            else:
                found.append(one)
        if len(found) != order or any(
            one.kind not in ("name", "apply", "top", "slope", "other") for one in found
        ):
            raise Unclear("by what is this the derivative?")
        return found

    def nabla(self) -> Node:
        by = Node("name", r"\nabla")
        while self.token == "_":
            self.take()
            by = self.inner(self.argument())
        order = 1
        while self.token in ("^", "_"):
            if self.take() == "_":
                by = self.inner(self.argument())
            elif self.argument() == ["2"] and order == 1:
                order = 2
            else:
                raise Unclear("a higher derivative")
        found = self.factor()
        for _ in range(order):
            found = Node("slope", "", (found, by))
        return found

    def partial(self) -> Node:
        if self.token != "_":
            raise Unclear("a differential")
        self.take()
        by = self.inner(self.argument())
        return Node("slope", "", (self.factor(), by))
