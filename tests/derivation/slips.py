r"""Make single slips in lines that `backpass derive` accepts, and count the verdicts on the changed lines.

    PYTHONPATH=src python -m tests.derivation.slips [COUNT] [--texts DIRECTORY] [--verbose]

The lines are those of the chapters' derivations and, if a directory is given, the accepted rows of its texts: NAME.md, with the
definitions of NAME.txt. A slip is what an author does in haste: a sign, an index, a transpose, a factor, a number, a sum, the
order of a product. The slips are drawn with a seed. A changed line that is accepted is printed: it has to be another way to
write the same value.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from sympy import sympify

from backpass.derivation.document import read_document
from backpass.derivation.equality.check import scope_of
from backpass.derivation.equality.comparing import members_chain
from backpass.derivation.judge import judge
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.parse import DECLARING, Part, Unreadable, parse, read
from backpass.derivation.language.values.points import Point

CHAPTERS = Path(__file__).parents[2] / "chapters"
_CELL = re.compile(r'(?:(\w+) = )?derive\(r"""(.*?)"""([^\n]*)\)', re.S)
_AFTER = re.compile(r"after=(\w+)")


@dataclass(frozen=True)
class Row:
    """An accepted equation: what stands before its right side in a text, that side, and what stands behind it."""

    before: str
    right: str
    after: str
    definitions: str
    where: str

    def text(self, right: str) -> str:
        return self.before + right + self.after

    def verdict(self, right: str) -> str:
        """The verdict on the row with another right side."""
        document = read_document(self.text(right), "markdown", self.definitions)
        try:
            found = judge(document, self.definitions)
        except Exception as error:
            return f"raised {type(error).__name__}"
        line = self.before.count("\n") + 1
        here = [verdict for verdict in found if verdict.line == line and verdict.display >= 0]
        mine = [
            verdict for verdict in here if verdict.latex and " ".join(right.split()).startswith(verdict.latex)
        ]
        kinds = [verdict.kind for verdict in mine or here]
        return kinds[-1] if kinds else "not readable"


def holds_at_other_sizes(row: Row, right: str) -> bool:
    """Whether a row of a chapter holds with another right side in numbers of 30 digits, at sizes and points at which it was not
    judged."""
    left = row.before.removeprefix("$$ ").removesuffix(" = ")
    condition = re.search(r"\\quad \((.*)\) \$\$", row.after)
    scope = scope_of(read(row.definitions))
    parts = [Part(text, 0, text) for text in (left, right, *(condition.groups() if condition else ()))]
    chain = members_chain(scope, parts[0], parts[0], parts[1], parts[2] if condition else None)
    signs = any(one.compared for one in (*scope.definitions, *chain.expressions))
    sizes = {side: 5 + k % 3 for k, side in enumerate(scope.dimensions)}
    for draw in range(20, 24):
        evaluator = Evaluator(scope, sizes, draw if signs else None)
        point = evaluator.point or Point(draw, sizes)
        cases = list(chain.cases(evaluator))
        for indices in Random(draw).sample(cases, min(2, len(cases))):
            values = (evaluator.value(one, indices, chain.still) for one in chain.expressions)
            for pair in zip(*map(np.ravel, values), strict=True):
                one, other = (evaluator.calculus.at(sympify(value), point) for value in pair)
                if one.is_real and other.is_real and abs(one - other) > 1e-15 * (1 + abs(one)):
                    return False
    return True


def rows_of_chapters(pages: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield the statements of the derivations in the chapters, or in some of them, each on its own."""
    for page in sorted(CHAPTERS.rglob("*.md")):
        if pages and page.stem not in pages:
            continue
        known: dict[str, str] = {}
        for name, text, options in _CELL.findall(page.read_text(encoding="utf-8")):
            after = _AFTER.search(options)
            if after and after[1] not in known:
                continue
            definitions = known[after[1]] if after else ""
            try:
                lines = read(text)
            except Unreadable:
                continue
            left = condition = ""
            for line in lines:
                if line.kind in DECLARING:
                    word = "let" if line.kind == "function" else line.kind
                    definitions += f"{word} {line.latex}\n"
                elif line.kind in ("statement", "step"):
                    if line.left:
                        left = " ".join(line.left.text.split())
                        condition = rf" \quad ({line.conditions.text})" if line.conditions else ""
                    right = " ".join(line.right.text.split())
                    yield Row(f"$$ {left} = ", right, f"{condition} $$\n", definitions, page.stem)
            known[name] = definitions


def rows_of_texts(directory: Path) -> Iterator[Row]:
    """Yield the accepted right sides of texts, each in its text."""
    for page in sorted(directory.glob("*.md")):
        source = page.read_text(encoding="utf-8")
        definitions = page.with_suffix(".txt").read_text(encoding="utf-8")
        for verdict in judge(read_document(source, "markdown", definitions), definitions):
            written = r"\s+".join(map(re.escape, verdict.latex.split()))
            lines = source.splitlines(keepends=True)
            start = sum(map(len, lines[: verdict.line - 1]))
            found = re.compile(written).search(source, start) if written else None
            if verdict.kind == "equal" and found and found.start() < start + len(lines[verdict.line - 1]):
                before, after = source[: found.start()], source[found.end() :]
                yield Row(before, found[0], after, definitions, page.stem)


# ---- slips ---------------------------------------------------------------------------

_NAME = re.compile(
    r"(?:\\(?:bar|dot|hat|mathbf|tilde)\{?(?:\\[a-z]+|[A-Za-z])\}?|\\(?:gamma|beta|sigma|mu|theta)(?![a-z])|(?<![A-Za-z\\{])[A-Za-z](?![A-Za-z]))(?:_(?:\{[^{}]*\}|\w))?"
)
_SUBSCRIPT = re.compile(r"_(?:\{([a-z]{1,3})\}|([a-z]))")
_MATRIX = re.compile(r"(?:\\(?:bar|dot)\{[A-Z]\}|(?<![A-Za-z\\{])[A-Z](?![A-Za-z_^]))")
_ORDERED = re.compile(rf"({_MATRIX.pattern}(?:\^(?:\\top|T))?) ?({_MATRIX.pattern}(?:\^(?:\\top|T))?)")
_SUM = re.compile(r"\\sum_(?:\{[^{}]*\}|\w)(?:\^(?:\{[^{}]*\}|\w))?")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_TORN = re.compile(
    r"(?:^|[{(\[+\-=,]|\\(?:cdot|times|odot|left\(|left\[|partial))\s*(?:$|[_^})\],=]|\\(?:cdot|times|odot|right))|\s[_^]"
)
_LETTERS = "ijklmnabcpqrst"


def slips(right: str) -> list[tuple[str, str]]:
    """Return single slips in a right side: what each is, and the changed side. Braces stay balanced."""
    found: list[tuple[str, str]] = []

    def put(what: str, start: int, end: int, new: str) -> None:
        found.append((what, right[:start] + new + right[end:]))

    inside = [
        m.span()
        for m in re.finditer(r"_\{[^{}]*\}|\\begin\{[^{}]*\}|\\end\{[^{}]*\}|\\text\{[^{}]*\}", right)
    ]

    def free(at: int) -> bool:
        return not any(start <= at < end for start, end in inside)

    for m in re.finditer(r"[+-]", right):
        if free(m.start()):
            put("sign", *m.span(), "-" if m[0] == "+" else "+")
    for m in re.finditer(r"\^\{?(?:\\top|T)(?![A-Za-z])\}?", right):
        put("transpose dropped", *m.span(), " ")
    for m in _MATRIX.finditer(right):
        put("transpose added", m.end(), m.end(), r"^\top")
    letters = sorted({letter for m in _SUBSCRIPT.finditer(right) for letter in m[1] or m[2]} & {*_LETTERS})
    for m in _SUBSCRIPT.finditer(right):
        own = m[1] or m[2]
        if right[: m.start()].endswith(("\\sum", "\\max", "\\prod")):
            continue
        for k, letter in enumerate(own):
            for other in letters:
                if other != letter:
                    new = own[:k] + other + own[k + 1 :]
                    put("index", *m.span(), f"_{{{new}}}")
        if len(own) == 2 and own[0] != own[1]:
            put("indices exchanged", *m.span(), f"_{{{own[::-1]}}}")
    for m in re.finditer(r"(?<![A-Za-z0-9_.])\d(?![0-9.])", right):
        if free(m.start()):
            put("number", *m.span(), str(int(m[0]) + 1))
    for one, other in (
        (r"\sin", r"\cos"),
        (r"\max", r"\min"),
        (r"\log", r"\exp"),
        (r"\le", r"\ge"),
        ("<", ">"),
    ):
        for a, b in ((one, other), (other, one)):
            for m in re.finditer(re.escape(a) + "(?![a-z])", right):
                put("function or relation", *m.span(), b)
    for m in _ORDERED.finditer(right):
        put("order", *m.span(), f"{m[2]} {m[1]}")
    for m in _SUM.finditer(right):
        put("sum dropped", *m.span(), " ")
    for m in re.finditer(r"\^2(?!\d)", right):
        put("square dropped", *m.span(), " ")
    for m in _FRACTION.finditer(right):
        put("fraction turned", *m.span(), rf"\frac{{{m[2]}}}{{{m[1]}}}")
        put("fraction dropped", *m.span(), " ")
    names = [m for m in _NAME.finditer(right) if free(m.start()) or right[m.start()] != "_"]
    names = [m for m in names if not re.search(r"[_^]\{?$|\\[a-z]+$|\\partial ?$", right[: m.start()])]
    for m in names:
        put("factor dropped", *m.span(), " ")
        for other in {o[0] for o in names} - {m[0]}:
            if ("_" in other) == ("_" in m[0]):
                put("other name", *m.span(), other)
    return sorted(
        {(what, new) for what, new in found if new.split() != right.split() and _is_formula(right, new)}
    )


def _is_formula(right: str, new: str) -> bool:
    """Whether a slip leaves something that an author would see as a formula, and not a sign without an operand."""
    try:
        parse(Part(right, 0, right))
    except Unreadable:
        return not _TORN.search(new) and (new.strip() != "")
    try:
        parse(Part(new, 0, new))
    except Unreadable:
        return False
    return True


def accepted(texts: Path | None = None, pages: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """The rows that are accepted as they are, of all chapters or of some."""
    found = [row for row in rows_of_chapters(pages) if row.verdict(row.right) == "equal"]
    return (*found, *(rows_of_texts(texts) if texts else ()))


def drawn(rows: tuple[Row, ...], count: int, seed: int = 39) -> Iterator[tuple[Row, str, str]]:
    """Yield slips: a row, what the slip is, and the changed side. Each row has at most as many as it takes to reach the count, and
    the kinds of slips take turns."""
    random = Random(seed)
    left: list[tuple[Row, list[tuple[str, str]]]] = []
    for row in rows:
        own = slips(row.right)
        random.shuffle(own)
        left.append((row, own))
    random.shuffle(left)
    given = 0
    while left and given < count:
        for row, own in list(left):
            if not own:
                left.remove((row, own))
            elif given < count:
                what, new = own.pop()
                given += 1
                yield row, what, new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--texts", type=Path)
    parser.add_argument(
        "--verbose", action="store_true", help="print the lines that are not readable as well"
    )
    arguments = parser.parse_args()
    rows = accepted(arguments.texts)
    verdicts: Counter[str] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    for row, what, new in drawn(rows, arguments.count):
        verdict = row.verdict(new)
        verdicts[verdict] += 1
        kinds[what, verdict] += 1
        if verdict == "equal" and row.before.startswith("$$ "):
            verdict += ", at other sizes too" if holds_at_other_sizes(row, new) else ", AT SMALL SIZES ONLY"
        if verdict.split(",")[0] in ("equal", "definition", "follows", "nothing claimed") or (
            arguments.verbose and verdict != "refused"
        ):
            print(
                f"{verdict} | {row.where} | {what} | {row.before[-60:].strip()} | {row.right} | {new}",
                flush=True,
            )
    print(len(rows), "accepted rows;", dict(verdicts))
    for (what, verdict), number in sorted(kinds.items()):
        print(f"  {what:22s} {verdict:14s} {number}")


if __name__ == "__main__":
    main()
