"""Read a formula as it is printed, without knowing what its names are."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from backpass.derivation.text.formal.derivatives import Derivatives
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.tokens import (
    BARS,
    BIGS,
    BOLD,
    CALLS,
    CLOSE,
    CLOSED,
    COMPARED,
    DOTS,
    EACH,
    FACES,
    LABEL,
    NAMED,
    NORMS,
    PROSE,
    SEPARATORS,
    TIMES,
    TOPS,
    bound_by,
    groups_of,
    joined,
    macro,
    mark_of,
    tokens_of,
)
from backpass.derivation.text.formal.trees import Node, Unclear, number


def read_formula(text: str, manner: Manner) -> Node:
    """Return the tree of a formula. Raises `Unclear` for what is not understood."""
    tokens = joined(tokens_of(text), manner.words)
    reader = _Reader(tokens, manner)
    return reader.inner(tokens)


_COLUMN = re.compile(r"\\(?:mathbf|boldsymbol|bm|vec|pmb)\{[a-z]\}")  # has no powers
_COMPOSED = ("product", "hadamard", "quotient", "power", "sum", "minus", "big")


class _Reader(Derivatives):
    # ---- sums and products -----------------------------------------------------------

    def expression(self) -> Node:
        terms: list[Node] = []
        sign = "+"
        if self.token in ("+", "-"):
            sign = self.take()
        while True:
            term = self.term()
            terms.append(Node("minus", "", (term,)) if sign == "-" else term)
            if self.token not in ("+", "-"):
                break
            sign = self.take()
        return terms[0] if len(terms) == 1 else Node("sum", "", tuple(terms))

    def term(self) -> Node:
        found = self.run()
        while True:
            token = self.token
            if token in TIMES:
                self.take()
                is_minus = self.token == "-"
                if is_minus:
                    self.take()
                found = Node("product", "", (found, self.run()))
                if is_minus:
                    found = Node("minus", "", (found,))
            elif token in EACH:
                self.take()
                found = Node("hadamard", "", (found, self.run()))
            elif token == r"\otimes":
                self.take()
                second = self.factor()
                if found.kind == "product" or self.begins():
                    raise Unclear("where does a factor of \\otimes end?")
                found = Node("other", "kronecker", (found, second))
            elif token in ("/", r"\div"):
                self.take()
                divisor = self.factor()
                if self.begins():
                    raise Unclear("does the product after / stand below it?")
                found = Node("quotient", "", (found, divisor))
            else:
                return found

    def run(self) -> Node:
        """Read factors that stand side by side."""
        factors = [self.factor()]
        while self.begins():
            factors.append(self.factor())
        return factors[0] if len(factors) == 1 else Node("product", "", tuple(factors))

    def begins(self) -> bool:
        """Whether a factor begins here."""
        token = self.token
        if not token or token in TIMES | EACH | DOTS:
            return token in DOTS
        if token in "([{" or token in (r"\{", r"\langle", r"\lbrace", r"\lfloor"):
            return True
        if token in (r"\lvert", r"\lVert") or (token == r"\|" and not self.norms):
            return True
        if token[0].isalnum():
            return True
        name = token[1:]
        return token[0] == "\\" and (
            name in FACES
            or name.startswith("text{")
            or name in CALLS
            or name in BIGS
            or name in NAMED
            or name
            in ("frac", "dfrac", "tfrac", "cfrac", "nabla", "partial", "begin", "Pr")
            or bool(macro(name, self.manner.operands))
        )

    def factor(self) -> Node:
        base = self.base()
        while self.token in ("_", "^", "'", "!"):
            if self.token == "!":
                self.take()
                base = Node("call", "factorial", (base,))
            else:
                base = self.script(base)
        return base

    # ---- scripts ---------------------------------------------------------------------

    def script(self, base: Node) -> Node:
        sign = self.take()
        if sign == "'":
            return self.labelled(base, "'")
        inside = self.argument()
        if sign == "_":
            groups = groups_of(inside)
            if base.kind == "name":
                return replace(base, subs=base.subs + groups)
            if base.kind == "big" and base.value == "E" and not any(base.sups):
                mean = "".join(self.tokens[self.from_ + 1 : self.to])
                return Node("name", rf"\text{{E{mean}}}", (), groups)
            return Node("other", "element", (base,), groups)
        return self.above(base, inside)

    def labelled(self, base: Node, label: str) -> Node:
        if base.kind == "name":
            return replace(base, sups=(*base.sups, label))
        raise Unclear(f"{label} above a formula")

    def above(self, base: Node, inside: list[str]) -> Node:
        text = "".join(inside)
        if text in TOPS:
            return Node("top", "", (base,))
        if inside and all(one in (r"\prime", "'") for one in inside):
            for _ in inside:
                base = self.labelled(base, "'")
            return base
        if inside[:1] == ["-"] and "".join(inside[1:]) in TOPS:
            below = Node("power", "", (base, number(-1)))
            return Node("top", "", (below,))
        if len(inside) > 1 and "".join(inside[-1:]) in TOPS and inside[0] in ("(", "["):
            return Node("top", "", (self.above(base, inside[:-1]),))
        if text in ("*", r"\ast", r"\star", r"\dagger", "+", r"\circ"):
            return self.labelled(base, text)
        pair = inside[:1] + inside[-1:]
        if base.kind == "name" and pair in (["(", ")"], ["[", "]"]):
            return self.labelled(base, " ".join(inside))
        if base.kind == "name" and re.fullmatch("[a-zA-Z]{3,}", text):
            return self.labelled(base, text)  # a word: h^{enc}
        if base.kind == "name" and self.is_label(base, text):
            return self.labelled(base, " ".join(inside))
        return Node("power", "", (base, self.inner(inside)))

    def is_label(self, base: Node, text: str) -> bool:
        """Whether what stands above a name is part of it, and not an exponent."""
        plain = LABEL.fullmatch(text)
        if base.value in self.manner.sequences and (plain or text.isdigit()):
            return True
        if plain is None:
            return False
        return (
            plain[1] in self.manner.labels
            or (
                not base.sups
                and re.fullmatch("[a-z]", text)
                and _COLUMN.fullmatch(base.value)
            )
            is not None
        )

    # ---- what stands alone -----------------------------------------------------------

    def base(self) -> Node:
        token = self.take()
        if token[0].isdigit():
            return number(Fraction(token))
        if token in CLOSE:
            return self.within_brackets(token)
        if token == "{":
            self.at -= 1
            before = self.tokens[self.at - 1] if self.at else ""
            tokens = self.argument()
            return self.printed(before, tokens, self.inner(tokens))
        if token in BARS | NORMS:
            return self.within_bars(token)
        if token == r"\lfloor":
            inside = self.expression()
            self.take(r"\rfloor")
            return Node("other", "floor", (inside,))
        if token == r"\langle":
            parts = [self.expression()]
            while self.token in (",", "|"):
                self.take()
                parts.append(self.expression())
            self.take(r"\rangle")
            return Node("other", "inner", tuple(parts))
        if token in DOTS:
            return Node("other", "dots")
        if token.isalpha():
            counts = token in self.manner.counts
            return self.after_name(Node("name", token, counts=counts))
        if token[0] == "\\":
            return self.command(token[1:])
        raise Unclear(f"{token} is not understood")

    def printed(self, before: str, tokens: list[str], group: Node) -> Node:
        """Return a formula in braces, which print nothing, if it is one without them
        too; `before` is what stands before them."""
        if tokens[0] in CLOSE and _reach(tokens) == len(tokens):
            return group
        raised = self.token == "^" and group.kind in _COMPOSED
        apart = before in ("", "+", *CLOSE, *SEPARATORS) and self.token in (
            "", "+", "-", *CLOSED, *SEPARATORS,
        )  # fmt: skip
        if raised or (group.kind in ("sum", "minus") and not apart):
            raise Unclear("braces that print nothing around a sum")
        return group

    def within_brackets(self, token: str) -> Node:
        """Read a bracket, or a list in brackets."""
        found = [self.expression()]
        while self.token in (",", ";") or (len(found) > 1 and self.token in BARS):
            self.take()
            found.append(self.expression())
        self.take(CLOSE[token])
        if len(found) > 1:
            return Node("other", "list", tuple(found))
        value = self.tokens[self.at + 1 : self.at + 3]
        if self.token == "(" and value[1:] in ([")"], [","]) and not (
            value[0].isdigit() or found[0].kind == "number"
        ):  # fmt: skip
            raise Unclear("a value, or a product?")
        return found[0]

    def within_bars(self, token: str) -> Node:
        self.norms += token in NORMS
        inside = self.expression()
        self.norms -= token in NORMS
        self.take()
        if self.tokens[self.at - 1] not in (BARS if token in BARS else NORMS):
            raise Unclear("bars that do not close")
        return Node("other", "absolute" if token in BARS else "norm", (inside,))

    def command(self, name: str) -> Node:
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return self.fraction()
        if name == "sqrt":
            degree = 2
            if self.token == "[":
                self.take()
                if not (self.token.isdigit() and int(self.token)):
                    raise Unclear("a root of another degree")
                degree = int(self.take())
                self.take("]")
            root = number(Fraction(1, degree))
            return Node("power", "", (self.inner(self.argument()), root))
        if name == "nabla":
            return self.nabla()
        if name == "partial":
            return self.partial()
        if name.startswith("text{"):
            return self.word(name[5:-1])
        if name in FACES:
            tokens = self.argument()
            inside = "".join(tokens)
            if name in BOLD and "^" in tokens:
                return self.bold(name, tokens)
            if name not in ("mathbb", "mathcal") and set("_^") & {*tokens}:
                return self.after_name(self.accented(name, tokens))
            if name == "mathbb" and inside == "E":
                return self.expectation()
            if name == "mathbb" and inside == "1":
                return self.after_name(Node("name", r"\mathbb{1}"))
            if not re.fullmatch(r"\\?[a-zA-Z]+|\\[a-z]+\{\\?[a-zA-Z]+\}|[01]", inside):
                return self.bold(name, tokens)
            return self.after_name(Node("name", rf"\{name}{{{inside}}}"))
        if name in BIGS:
            return self.big(BIGS[name])
        if name in CALLS:
            return self.call(name)
        if name == "Delta" and re.fullmatch(
            r"[a-zA-Z]|\\(?:theta|mathbf|boldsymbol|phi|omega|beta|mu|vec)", self.token
        ):
            of = self.base()
            if of.kind != "name":
                raise Unclear("a difference of a formula")
            return self.after_name(replace(of, value=rf"\Delta{{{of.value}}}"))
        if name in NAMED:
            counts = rf"\{name}" in self.manner.counts
            return self.after_name(Node("name", rf"\{name}", counts=counts))
        if self.token != "{" and (own := macro(name, self.manner.operands)):
            return self.after_name(Node("name", own))
        if name == "begin":
            return self.environment()
        raise Unclear(f"\\{name} is not understood")

    def bold(self, face: str, tokens: list[str]) -> Node:
        """Read a formula in another face, such as \\mathbf{\\Sigma^{-1} x}."""
        if face not in BOLD:
            raise Unclear(f"\\{face} of a formula")

        def changed(node: Node) -> Node:
            if node.kind != "name":
                return node.mapped(changed)
            if "{" in node.value:
                return node
            return replace(node, value=rf"\{face}{{{node.value}}}")

        return changed(self.inner(tokens))

    def accented(self, accent: str, tokens: list[str]) -> Node:
        """Read \\hat{y_i} as the name \\hat{y}, with its index."""
        name = self.inner(tokens)
        if name.kind == "power" and name.parts[1].kind == "number":  # \\hat{\\sigma^2}
            below, exponent = name.parts
            if below.kind == "name" and not below.subs:
                return replace(
                    below, value=rf"\{accent}{{{below.value}^{exponent.value}}}"
                )
        if name.kind != "name":
            raise Unclear(f"\\{accent} of a formula")
        return replace(name, value=rf"\{accent}{{{name.value}}}")

    def environment(self) -> Node:
        """Take a matrix, or cases, as it is written."""
        start, depth = self.at, 1
        while depth:
            token = self.take()
            depth += (token == r"\begin") - (token == r"\end")
        self.argument()
        return Node("other", "array " + " ".join(self.tokens[start : self.at]))

    def word(self, word: str) -> Node:
        joined = "".join(word.split())
        lower = joined.lower()
        if lower in BIGS and lower not in ("sum", "int"):
            return self.big(BIGS[lower])
        if lower in CALLS:
            return self.call(lower)
        if joined == "E" and self.token in ("_", "[", "("):
            return self.expectation()
        if PROSE.search(word.lower()) or not re.fullmatch(r"[\w -]+", word):
            raise Unclear(f"words: {word}")
        return self.after_name(Node("name", rf"\text{{{joined}}}"))

    # ---- names and functions ---------------------------------------------------------

    def after_name(self, name: Node) -> Node:
        """Read what follows a name: its scripts, and its arguments if it is a
        function."""
        while self.token in ("_", "^", "'"):
            before = self.at
            found = self.script(name)
            if found.kind != "name":
                if (square := self.squared(name, found)) is not None:
                    return square
                self.at = before
                break
            name = found
        opens_mean = self.token == "[" or (self.manner.expects and self.token == "(")
        round_ = "(" if self.manner.expects else "["
        opens_law = name.subs and self.token in ("[", round_, r"\{")
        if name.value == "E" and not name.sups and (opens_mean or opens_law):
            return self.expectation(name)
        is_word = name.value.startswith(r"\text")
        opens = self.token == "(" or (
            self.token in ("[", r"\{") and (is_word or r"\mathbb" in name.value)
        )
        if self.token == "[" and name.value in self.manner.signals:
            opens = is_word = True
        if not opens or not (is_word or self.manner.is_function(name.value)):
            return name
        if name.value in self.manner.plain:
            self.arguments()
            return name
        separators, arguments = self.arguments()
        if not (is_word or name.value == "D"):  # p(x \\| t), in which the bar is a |
            separators = separators.replace("‖", "|")
        return Node("apply", separators, (name, *arguments))

    def squared(self, name: Node, power: Node) -> Node | None:
        """Read what follows \\sigma^2: its subscript, or arguments; None if
        neither follows."""
        exponent = power.parts[-1]
        if power.kind != "power" or exponent.kind != "number" or exponent == number(-1):
            return None
        if self.token == "_" and not name.subs:
            self.take()
            inner = self.after_name(replace(name, subs=groups_of(self.argument())))
        elif self.token == "(" and name.value in (r"\sigma", r"\hat{\sigma}"):
            inside = self.tokens[self.at : self.at + _reach(self.tokens[self.at :])]
            if {"+", "-", *TIMES} & {*inside} or r"\frac" in inside:
                return None
            inner = self.after_name(name)
        else:
            return None
        return Node("power", "", (inner, exponent))

    def arguments(self) -> tuple[str, tuple[Node, ...]]:
        """Read arguments in brackets, and what separates them."""
        norms = self.norms
        self.norms = int(_divides(self.tokens[self.at :]))
        found = self.separated()
        self.norms = norms
        return found

    def separated(self) -> tuple[str, tuple[Node, ...]]:
        close = CLOSE[self.take()]
        found, separators = [self.compared()], ""
        while self.token != close:
            token = self.take()
            if token not in SEPARATORS:
                raise Unclear(f"{token} among arguments")
            if token in NORMS or (token == "|" and self.token == "|"):
                self.at += token == "|"
                token = "‖"
            separators += "|" if token in BARS else token
            found.append(self.compared())
        self.take(close)
        return separators, tuple(found)

    def compared(self) -> Node:
        """Read an argument that may be an event, such as X = x, or the place of one."""
        following = self.tokens[self.at + 1 : self.at + 2]
        if self.token == r"\cdot" and following and following[0] in SEPARATORS | CLOSED:
            return Node("other", self.take())
        found = self.expression()
        while self.token in COMPARED:
            sign = self.take()
            if sign in ("<", ">") and self.token == "=":
                sign += self.take()
            found = Node("other", f"event {sign}", (found, self.expression()))
        return found

    def call(self, name: str) -> Node:
        sups: tuple[str, ...] = ()
        exponent: Node | None = None
        while self.token in ("_", "^"):
            sign, inside = self.take(), self.argument()
            if sign == "_":
                sups = ("".join(inside),)
            else:
                exponent = self.inner(inside)
                if exponent == number(-1):
                    raise Unclear("an inverse function")
        name = {"ln": "log", "sgn": "sign"}.get(name, name)
        bracketed = self.token in ("(", "[", r"\{", "{")
        inside_node = self.base() if bracketed else self.factor()
        if bracketed and self.token in ("^", "_"):
            raise Unclear("a script after a function's argument")
        if not (
            bracketed or inside_node.kind == "apply" or self.ends(name, inside_node)
        ):
            raise Unclear(f"where does the argument of {name} end?")
        found = Node("call", name, (inside_node,), (), sups)
        if name == "exp":
            found = Node("power", "", (Node("name", "e"), inside_node))
        return found if exponent is None else Node("power", "", (found, exponent))

    def ends(self, function: str, inside: Node) -> bool:
        """Whether the argument of a function surely ends here: before another function,
        before the d of an integral, or behind an angle."""
        if not self.begins() or self.token[1:] in CALLS:
            return True
        mark = mark_of([self.token])
        if mark and r"\int" in self.tokens and inside.kind in ("quotient", "apply"):
            return True
        angle = inside.kind == "name" and inside.value[1:] in NAMED
        return angle and self.token == "(" and function in ("sin", "cos", "tan")

    def expectation(self, name: Node | None = None) -> Node:
        law = [" ".join(" ".join(group) for group in name.subs)] if name else []
        while self.token == "_":
            self.take()
            law.append(" ".join(self.argument()))
        if self.token not in ("[", "(", r"\{"):
            return Node("big", "E", (self.term(),), (), tuple(law))
        start_of = self.at
        close = CLOSE[self.take()]
        body = self.expression()
        if self.token in BARS:
            start = self.at
            while self.token != close:
                self.take()
            law.append(" ".join(self.tokens[start : self.at]))
        self.take(close)
        self.from_, self.to = start_of, self.at - 1
        return Node("big", "E", (body,), (), tuple(law))

    def big(self, name: str) -> Node:
        if name == "arg":
            following = self.take()
            if following not in (r"\max", r"\min"):
                raise Unclear("arg of what?")
            name = "arg" + following[1:]
        below: list[str] = []
        above: list[str] = []
        while self.token in ("_", "^"):
            if self.take() == "_":
                below += self.argument()
            else:
                above += self.argument()
        bound = bound_by(below) if name in ("sum", "prod") else ()
        limits = tuple(" ".join(one) for one in (below, above) if one)
        if name in ("max", "min") and self.token in ("(", r"\{") and not below:
            separators, arguments = self.arguments()
            return Node("apply", separators, (Node("name", rf"\{name}"), *arguments))
        if self.token == "-" and name not in ("sum", "prod", "int"):
            self.take()
            return Node(
                "big", name, (Node("minus", "", (self.term(),)),), bound, limits
            )
        return Node("big", name, (self.term(),), bound, limits)


def _reach(tokens: list[str]) -> int:
    """Return how many tokens a bracket has, with its end."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token in CLOSE) - (token in CLOSED)
        if not depth:
            return at + 1
    return len(tokens)


def _divides(tokens: list[str]) -> bool:
    """Whether a double bar divides the arguments in a bracket, as in KL(p \\| q)."""
    depth = bars = 0
    for token in tokens[: _reach(tokens)]:
        depth += (token in CLOSE) - (token in CLOSED)
        bars += depth == 1 and token in NORMS - {r"\lVert", r"\rVert"}
    return bars == 1
