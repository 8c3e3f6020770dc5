"""Expand the macros that a text defines, as TeX does.

Definitions by ``\\newcommand`` and its kin, ``\\def``, ``\\let``,
``\\DeclareMathOperator``, and ``\\newenvironment`` are removed from the text and
applied to what follows them. A use that cannot be expanded with certainty stays in the
text behind a question mark, which no formula contains, and the reason is recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from backpass.derivation.language.brackets import close

Characters = list[tuple[str, int]]  # each character with its place in the source
EXPANSIONS = 1000  # within one use
LENGTH = 20_000  # of what one use expands to

_NEW = {"newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"}
_DOCUMENT = {"NewDocumentCommand", "RenewDocumentCommand", "ProvideDocumentCommand"}
_DEF = {"def", "gdef", "edef", "xdef"}
_OTHER = {"let", "DeclareMathOperator"}
_ENVIRONMENT = {"newenvironment", "renewenvironment"}
_DEFINING = _NEW | _DOCUMENT | _DEF | _OTHER | _ENVIRONMENT
# Commands that take the next token as their argument if no brace follows them.
_TAKES_ONE = re.compile(
    r"\\(?:[dt]?frac|sqrt|bar|overline|dot|ddot|hat|widehat|tilde|widetilde|check|breve|vec|underline"
    r"|math(?:bf|rm|cal|bb|sf|it|tt|frak|scr)|boldsymbol|bm|text(?:rm|bf|it|sf|tt)?"
    r"|operatorname)\s*\Z"
)
_ATOM = re.compile(
    r"[a-zA-Z0-9]|\\[a-zA-Z]+|\\(?:math\w+|boldsymbol|bm|text\w*|operatorname)\s*\{[^{}]*\}"
)


@dataclass(frozen=True)
class Macro:
    """A macro: its body, with #1, #2, … for its arguments.

    `fault` says why it cannot be expanded, or is empty. The body of a `primitive` macro
    is not expanded again.
    """

    body: str
    parameters: int = 0
    fault: str = ""
    primitive: bool = False


class _Missing(Exception):
    """Raised where an argument or a part of a definition is missing."""


@dataclass
class Expander:
    """Expands texts one after the other; definitions pass from one to the next.

    `grouped` says whether a definition ends with its group, as in LaTeX. `faults` are
    the reasons for what was not expanded, by its place.
    """

    grouped: bool = False
    macros: dict[str, Macro] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)

    def expand(self, source: str) -> tuple[str, tuple[int, ...]]:
        """Return the text with its macros expanded, and the place of each character in
        the source. The places ascend."""
        self._input = [(c, at) for at, c in enumerate(source)][::-1]
        self._output: Characters = []
        self._outer: list[dict[str, Macro]] = []
        # The use in progress: the height of the input below it, its place in the
        # output, its name and place, and the number of expansions.
        self._floor, self._mark, self._use = len(self._input), 0, ("", 0)
        self._count = 0
        while self._input:
            self._step()
        origins, last = [], 0
        for _, origin in self._output:
            last = max(last, origin)
            origins.append(last)
        return "".join(c for c, _ in self._output), tuple(origins)

    def _step(self) -> None:
        self._taken: Characters = []
        within = len(self._input) > self._floor
        character, origin = self._pop()
        if character != "\\":
            self._output.append((character, origin))
            self._group(character)
            return
        name = self._name()
        if name in _DEFINING:
            self._define(name)
        elif name in self.macros:
            self._expand(name, origin, within)
        elif name in ("begin", "end"):
            self._environment(name, origin, within)
        else:
            self._output += self._taken
            if name in ("[", "]"):
                self._group("{" if name == "[" else "}")

    # ---- reading ---------------------------------------------------------------------

    def _pop(self) -> tuple[str, int]:
        if not self._input:
            raise _Missing
        self._taken.append(self._input.pop())
        return self._taken[-1]

    def _put_back(self, count: int) -> None:
        """Return to the input all but the first characters of what was read."""
        self._input += self._taken[count:][::-1]
        del self._taken[count:]

    def _next(self) -> str:
        return self._input[-1][0] if self._input else ""

    def _name(self) -> str:
        """Read the name of a command, whose backslash has been read."""
        name = self._pop()[0] if self._input else ""
        while name.isascii() and name.isalpha() and _is_letter(self._next()):
            name += self._pop()[0]
        return name

    def _spaces(self) -> None:
        lines = 0
        while self._next().isspace():
            lines += self._pop()[0] == "\n"
        if lines > 1:  # the end of a paragraph
            raise _Missing

    def _braced(self, opening: str = "{", closing: str = "}") -> Characters:
        """Read what stands between two brackets."""
        if self._next() != opening:
            raise _Missing
        self._pop()
        found: Characters = []
        depth = 0
        while depth or self._next() != closing:
            found.append(self._pop())
            depth += (found[-1][0] == "{") - (found[-1][0] == "}")
            if found[-1][0] == "\\":
                found.append(self._pop())
        self._pop()
        return found

    def _argument(self) -> Characters:
        """Read a group without its braces, or one token."""
        self._spaces()
        if self._next() == "{":
            found = self._braced()
            if re.search(r"\n\s*\n", _text(found)):
                raise _Missing
            return found
        if self._next() in ("}", "$", "&", ""):
            raise _Missing
        start = len(self._taken)
        if self._pop()[0] == "\\":
            self._name()
        return self._taken[start:]

    # ---- definitions -----------------------------------------------------------------

    def _group(self, character: str) -> None:
        if self.grouped and character == "{":
            self._outer.append(self.macros)
        elif self.grouped and character == "}" and self._outer:
            self.macros = self._outer.pop()

    def _define(self, command: str) -> None:
        try:
            new = self._definitions(command)
        except _Missing:
            self._put_back(len(command) + 1)
            self._output += self._taken
            return
        # Leave spaces in place of what was read.
        self._output += [(c if c == "\n" else " ", at) for c, at in self._taken]
        for name, macro in new.items():
            old = self.macros.get(name)
            if command in ("providecommand", "ProvideDocumentCommand") and old:
                continue
            if (
                self.grouped
                and command in ("newcommand", "NewDocumentCommand")
                and old not in (None, macro)
            ):
                macro = Macro("", fault="has two definitions")
            self.macros = {**self.macros, name: macro}
            if command in ("gdef", "xdef"):
                self._outer = [{**outer, name: macro} for outer in self._outer]

    def _definitions(self, command: str) -> dict[str, Macro]:
        """Read a definition; that of an environment is one of two macros, for its
        beginning and its end."""
        if self._next() == "*":
            self._pop()
        self._spaces()
        if command not in _ENVIRONMENT:
            match = re.fullmatch(r"\\([a-zA-Z]+)", _text(self._argument()).strip())
            if not match:
                raise _Missing
            return {match[1]: self._definition(command)}
        name = _text(self._braced())
        self._spaces()
        if self._next() == "[":
            raise _Missing  # arguments are not read
        ends = [f"begin{{{name}}}", f"end{{{name}}}"]
        return {end: Macro(_text(self._argument())) for end in ends}

    def _definition(self, command: str) -> Macro:
        """Read the rest of a command's definition, behind its name."""
        if command in _DEF:
            return self._plain_definition()
        self._spaces()
        if command == "let":
            if self._next() == "=":
                self._pop()
            body = _text(self._argument())
            return self.macros.get(body[1:]) or Macro(body, primitive=True)
        if command == "DeclareMathOperator":
            return Macro(rf"\operatorname{{{_text(self._argument())}}}")
        fault, count = "", 0
        if command in _DOCUMENT:
            kinds = "".join(_text(self._braced()).split())
            count = len(kinds)
            fault = "" if set(kinds) <= {"m"} else "has an optional argument"
        elif self._next() == "[":
            number = _text(self._braced("[", "]")).strip()
            count = int(number) if re.fullmatch("[0-9]", number) else 0
            self._spaces()
            if self._next() == "[":
                self._braced("[", "]")
                fault = "has an optional argument"
        return Macro(_text(self._argument()), count, fault)

    def _plain_definition(self) -> Macro:
        """Read the parameters and the body of a definition by \\def."""
        parameters = ""
        while self._next() != "{":
            parameters += self._pop()[0]
        body = _text(self._braced())
        parameters = parameters.strip()
        count = len(parameters) // 2
        if parameters != "".join(f"#{k}" for k in range(1, count + 1)):
            return Macro("", fault="has delimited arguments")
        return Macro(body, count)

    # ---- uses ------------------------------------------------------------------------

    def _environment(self, command: str, origin: int, within: bool) -> None:
        """Read the beginning or the end of an environment."""
        match = re.match(r"\{([^{}\s]*)\}", _text(self._input[:-42:-1]))
        name = f"{command}{match[0]}" if match else ""
        if match and name in self.macros:
            for _ in match[0]:
                self._pop()
            self._expand(name, origin, within)
        else:
            self._output += self._taken
            self._group("{" if command == "begin" else "}")

    def _expand(self, name: str, origin: int, within: bool) -> None:
        """Replace a use, which may be within the expansion of another, by its body."""
        macro = self.macros[name]
        if not within:
            self._mark, self._use, self._count = len(self._output), (name, origin), 0
            self._floor = len(self._input)
        try:
            if macro.fault:
                raise _Fault(rf"the macro \{name} {macro.fault}")
            arguments = [self._argument() for _ in range(macro.parameters)]
            self._floor = min(self._floor, len(self._input))
            found = self._placed(name, _filled(macro.body, arguments, origin))
            self._count += 1
            if (
                self._count > EXPANSIONS
                or len(self._input) + len(found) - self._floor > LENGTH
            ):
                raise _Fault(
                    rf"the macro \{self._use[0]} does not come to an end: does it contain "
                    "itself?"
                )
        except _Missing:
            self._put_back(len(name) + 1)
            self._leave(rf"the macro \{name} lacks an argument")
        except _Fault as fault:
            self._leave(str(fault))
        else:
            if macro.primitive:
                self._output += found
            else:
                self._input += found[::-1]

    def _placed(self, name: str, found: Characters) -> Characters:
        """Return an expansion in a form that prints the same at the end of the output.

        Braces around a single symbol are removed where they would only group, and added
        where the symbol is an argument.
        """
        text = _text(found)
        before = _text(self._output[-200:])
        is_group = text.startswith("{") and close(text) == len(text) - 1
        if _TAKES_ONE.search(before) or _is_second_argument(before):
            if _ATOM.fullmatch(text):
                found = [("{", found[0][1]), *found, ("}", found[-1][1])]
            elif not is_group:
                raise _Fault(
                    rf"the macro \{name} is where an argument is expected: write braces "
                    "around it"
                )
        elif (
            is_group
            and _ATOM.fullmatch(text[1:-1])
            and not before.rstrip().endswith(("^", "_"))
        ):
            found = found[1:-1]
        if found and _ends_in_word(before) and _is_letter(found[0][0]):
            found = [(" ", found[0][1]), *found]
        if _ends_in_word(_text(found)) and _is_letter(self._next()):
            found = [*found, (" ", found[-1][1])]
        return found

    def _leave(self, why: str) -> None:
        """Leave the use in progress as it is, behind a question mark."""
        name, origin = self._use
        del self._input[min(self._floor, len(self._input)) :]
        del self._output[self._mark :]
        self._output += [(c, origin) for c in rf"?\{name}"]
        self.faults[origin] = why
        self._floor = len(self._input)


class _Fault(Exception):
    """Raised for a use that cannot be expanded, with the reason."""


def _filled(body: str, arguments: list[Characters], origin: int) -> Characters:
    """Return the body of a macro with its arguments."""
    found: Characters = []
    for number, words in re.findall(r"#([1-9])|(##|[^#]+|#)", body):
        if not number:
            new = [(c, origin) for c in words.replace("##", "#")]
        elif int(number) <= len(arguments):
            new = arguments[int(number) - 1]
        else:
            raise _Missing
        if new and _ends_in_word(_text(found[-40:])) and _is_letter(new[0][0]):
            found.append((" ", origin))
        found += new
    return found


def _text(characters: Characters) -> str:
    return "".join(c for c, _ in characters)


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _ends_in_word(text: str) -> bool:
    """Whether a text ends in the name of a command, which a letter would continue."""
    match = re.search(r"(\\+)[a-zA-Z]+\Z", text)
    return match is not None and len(match[1]) % 2 == 1


def _is_second_argument(before: str) -> bool:
    """Whether a text ends in \\frac and its first argument."""
    for match in re.finditer(r"\\[dt]?frac(?![a-zA-Z])\s*", before):
        rest = before[match.end() :].rstrip()
        if rest.startswith("{") and close(rest) == len(rest) - 1:
            return True
        if re.fullmatch(r"\\[a-zA-Z]+|[^\s\\{}]", rest):
            return True
    return False
