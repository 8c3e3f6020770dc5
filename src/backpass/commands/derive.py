"""``backpass derive``: judge the displayed mathematics of a text, line by line."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backpass.commands.command import JSON, Command, switch, value
from backpass.commands.first_sight import inferred, remaining, suggested, waiting
from backpass.commands.output import coloured, say
from backpass.text import terminal
from backpass.text.table import aligned

if TYPE_CHECKING:
    from backpass.derivation.document import Document
    from backpass.derivation.text.verdict import Basis, Verdict

EPILOG = r"""
examples:
  backpass derive notes.md
  backpass derive paper.tex appendix.tex --definitions definitions.txt --strict
  cat notes.md | backpass derive - --json
  backpass derive notes.md --annotate > annotated.md

FILE is Markdown ($$, \[ \], or a fenced block of math), LaTeX (\[ \], equation,
align, gather, and similar environments), reStructuredText (.. math::), a notebook
(its Markdown cells), or - for standard input. A LaTeX text is read with the files that
it includes.

Verdicts: ✓ equal; ✗ refused (wrong) or ill-formed (its shapes or indices cannot fit);
– follows (it repeats an earlier mistake); = definition; ○ not readable, with the reason.

A text needs no declarations to begin with: names have the shapes that the text states or
implies, by x \in \mathbb{R}^n in its prose, by indices, products, and letters. A line that
depends on such a shape is marked with *, and a list below the table says what was
inferred. --suggest prints it as a comment; --declared infers nothing.

A comment declares names, and holds until its section ends:

  <!-- derive: given x \in \mathbb{R}^n; let S = \sum_j e^{x_j}; loss L -->
  % derive: given x \in \mathbb{R}^n; let S = \sum_j e^{x_j}; loss L
  .. derive: given x \in \mathbb{R}^n; let S = \sum_j e^{x_j}; loss L

A comment may contain:

  given, constant, let  declarations and definitions, as in the book's derivations;
                        let f(x) = 2 x defines a function
  assume \sum_i y_i = 1
                        an equation that constants satisfy: here, they sum to 1
  range t = 1, \dots, T t is an index of time: given x_t \in \mathbb{R}^n
  random z \in \mathbb{R}^n
                        a random name; independent, identical, mean, and variance
                        say what is known of its distribution
  slice A_i \in \mathbb{R}^n
                        A_i is row i of the matrix A, here as a column
  factor a, x           a and x before a bracket are factors: x(a + 1) is a product
  read D_{#1} as \operatorname{diag}(#1)
                        a notation of the text; #1 stands for an argument
  loss L                L is the loss
  bar gradient          a bar marks a gradient of the loss
  dot differential      a dot marks a differential
  d differential        d X is the differential of X
  broadcast             a number is added to each element of an array, and a vector
                        to each row of a matrix; softmax(X) is that of each row
  layout numerator, layout denominator
                        the shape of a derivative with respect to an array
  when j \ne i          the condition of the next display
  partial applied       a bracket after a partial derivative is a direction
  partial total         partial derivatives go through all definitions
  partial direct        a partial derivative of y holds the other names in the
                        definition of y constant
  sums implied          an index that occurs twice in a product is summed over
  keep definitions      definitions hold beyond the end of their section
  restart               forget what the text and its comments have declared

A displayed equation whose left side is a new name defines that name.

Macros are expanded: \newcommand, \renewcommand, \providecommand, \def, \let,
\DeclareMathOperator, and \newenvironment in the text, in a derive comment, or
in the file of definitions.

The exit status is 0 if no line is refused or ill-formed, 1 if one is, and 2 if the
command or a definition is not valid. With --strict, it is also 1 if a line is not
readable, or if a part of the text is not looked at. With --baseline, it is 1 only if a
line is wrong that was not wrong before, or if a line that was judged before is now not
readable. With several files, it is the highest of their statuses.
"""
SECONDS = 20.0  # for one line
_FORMS = {
    "markdown": "Markdown",
    "latex": "LaTeX",
    "notebook": "a notebook",
    "rst": "reStructuredText",
}
FORMAT = 1  # of the JSON
MARKS = {
    "equal": "✓",
    "refused": "✗",
    "ill-formed": "✗",
    "follows": "–",
    "definition": "=",
    "not readable": "○",
}


class Judged(NamedTuple):
    """A text, its name, and the verdicts on its lines."""

    name: str
    document: Document
    verdicts: list[Verdict]


def run(arguments: argparse.Namespace) -> int:
    """Print the verdicts; return the exit status."""
    from backpass.derivation.document import form_of, read_document
    from backpass.derivation.judge import judge, suggest
    from backpass.derivation.language.parse import Unreadable
    from backpass.text.progress import Progress

    names, error = arguments.files, arguments.parser.error
    for option in ("annotate", "suggest"):
        if getattr(arguments, option) and len(names) > 1:
            error(f"--{option}: expected one file; got {len(names)}")
    if arguments.suggest and arguments.declared:
        error("--suggest: expected inferences; got --declared")
    if arguments.update_baseline and not arguments.baseline:
        error("--update-baseline: expected --baseline FILE as well")
    if [*names, arguments.definitions].count("-") > 1:
        error("standard input (-) can be read only once")
    documents, definitions, name = [], "", arguments.definitions
    try:
        if name:
            definitions = _read(name)
        for name in names:
            source = _read(name)
            form = form_of(name, source)
            if arguments.annotate and form != "markdown":
                error(f"--annotate: expected Markdown; got {_FORMS[form]}")
            path = None if name == "-" else Path(name)
            documents.append(read_document(source, form, definitions, path))
    except OSError as fault:
        error(f"{fault.filename}: {fault.strerror}")
    except ValueError as fault:
        error(f"{name}: {fault}")
    found, suggestion = [], None
    baseline = Baseline(arguments)
    for name, document in zip(names, documents, strict=True):
        with Progress(f"checking {name}") as progress:

            def show(line: int, shown: Progress = progress) -> None:
                shown.now(f"line {line}")

            try:
                given = document, definitions, show, arguments.seconds
                if arguments.suggest:
                    verdicts, suggestion = suggest(*given)
                else:
                    verdicts = judge(*given, infer=not arguments.declared)
            except Unreadable as fault:
                error(f"--definitions: {fault}")
        found.append(Judged(name, document, verdicts))
        if len(names) > 1 and not arguments.json:
            _say(_name(name), *table(document, verdicts), "")
    if arguments.json:
        facts = [_facts(*judged) for judged in found]
        _say(json.dumps(facts if len(facts) > 1 else facts[0], indent=2))
    elif suggestion is not None:
        form = form_of(names[0], found[0].document.source)
        _say(*suggested(suggestion, form))
        for line in remaining(found[0].document, suggestion, found[0].verdicts):
            print(line, file=sys.stderr)
    elif arguments.annotate:
        _say(_annotated(*found[0][1:]).rstrip("\n"))
        for line in _of_comments(*found[0][1:]):
            print(line, file=sys.stderr)
    else:
        _say(*(summary(found) if len(found) > 1 else report(*found[0][1:])))
    if arguments.baseline:
        return baseline.status(found, arguments.strict)
    return max(status_of(judged, arguments.strict) for judged in found)


def _say(*lines: str) -> None:
    say(*map(coloured, lines))


def status_of(judged: Judged, strict: bool) -> int:
    """Return the exit status for the verdicts on a text."""
    verdicts = judged.verdicts
    if strict and judged.document.unseen:
        return max(1, status_of(judged, False))
    if any(verdict.display < 0 for verdict in verdicts):
        return 2
    kinds = {verdict.kind for verdict in verdicts}
    wrong = {"refused", "ill-formed"} | ({"not readable"} if strict else set())
    return int(bool(kinds & wrong))


class Baseline:
    """The record of earlier verdicts that an option names, if any."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from backpass.derivation.text import baseline

        self._file, self._update = arguments.baseline, arguments.update_baseline
        self._before: baseline.Record = {}
        if not self._file or (self._update and not Path(self._file).exists()):
            return
        try:
            self._before = baseline.read(_read(self._file))
        except OSError as fault:
            arguments.parser.error(
                f"--baseline: {self._file}: {fault.strerror}; --update-baseline writes it"
            )
        except ValueError as fault:
            arguments.parser.error(f"--baseline: {self._file}: {fault}")

    def _name(self, name: str) -> str:
        """Return a text's name, relative to the folder of the record."""
        if name == "-":
            return name
        return Path(os.path.relpath(name, Path(self._file).parent)).as_posix()

    def status(self, found: list[Judged], strict: bool) -> int:
        """Print what is worse than recorded, or write the record; return the exit
        status."""
        from backpass.derivation.text import baseline

        invalid = any(v.display < 0 for judged in found for v in judged.verdicts)
        if self._update:
            now = {self._name(j.name): baseline.recorded(j.verdicts) for j in found}
            text = baseline.written(dict(sorted({**self._before, **now}.items())))
            Path(self._file).write_text(text, encoding="utf-8")
            return 2 if invalid else 0
        worse = 0
        for judged in found:
            before = self._before.get(self._name(judged.name), {})
            for change in baseline.changes(judged.name, judged.verdicts, before):
                where = judged.document.where(change.verdict.line)
                words = (
                    "wrong, but was not before"
                    if change.way == "wrong"
                    else "no longer judged"
                )
                latex = change.verdict.latex
                print(
                    f"{_name(judged.name)}, {where}: {words}: {latex}", file=sys.stderr
                )
                worse = 1
        if strict:
            unread = any(v.kind == "not readable" for j in found for v in j.verdicts)
            worse = max(worse, int(unread), *(bool(j.document.unseen) for j in found))
        return 2 if invalid else worse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds, or 0 for no limit; got {text}"
        )
    return seconds


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        text = Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8; {error}") from error
    if "\0" in text:
        raise ValueError("expected text; got NUL characters")
    return text


def _name(name: str) -> str:
    return "standard input" if name == "-" else name


def _numbered(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _of_each_kind(verdicts: list[Verdict]) -> Counter[str]:
    return Counter(verdict.kind for verdict in verdicts if verdict.display >= 0)


def _counts(verdicts: list[Verdict]) -> str:
    """Return in words how many lines have each verdict."""
    counts = _of_each_kind(verdicts)
    words = {
        "follows": f"{counts['follows']} equal to a refused line",
        "definition": _numbered(counts["definition"], "definition"),
    }
    each = ", ".join(words.get(k, f"{counts[k]} {k}") for k in MARKS if counts[k])
    total = sum(counts[kind] for kind in MARKS)
    text = _numbered(total, "line") + (f": {each}" if each else "")
    if nothing := counts["nothing claimed"]:
        text += f"; {_numbered(nothing, 'formula')} without a claim"
    if unread := sum(v.display < 0 for v in verdicts):
        text += f"; {_numbered(unread, 'definition')} in comments cannot be read"
    return text


def report(document: Document, verdicts: list[Verdict]) -> list[str]:
    """Return the lines of the table of verdicts, with an explanation of each line that
    is not right, and of the summary."""
    if not verdicts and not document.unseen:
        return table(document, verdicts)
    judged = Judged("", document, verdicts)
    return [*table(document, verdicts), "", *summary([judged])]


def table(document: Document, verdicts: list[Verdict]) -> list[str]:
    """Return the lines of the table of verdicts, with an explanation of each line that
    is not right."""
    if not verdicts:
        return ["the text has no displayed mathematics"]
    width = max(terminal.width(), 40)
    rows = [("line", "", "verdict", "formula")]
    for verdict in verdicts:
        if verdict.kind not in MARKS:
            continue
        place = document.place(verdict.line)
        kind = f"{verdict.kind}*" if verdict.inferred else verdict.kind
        rows.append((place, MARKS[verdict.kind], kind, _formula(verdict)))
    lines = [_cut(line, width) for line in aligned(rows)]
    lines += inferred(document, verdicts, width)
    for verdict in verdicts:
        if verdict.kind in ("refused", "ill-formed", "follows", "not readable"):
            lines.append("")
            for line in _explanation(document, verdict):
                pointer = line.startswith("    ")
                lines += [line] if pointer else terminal.folded(line, width)
    return lines


def summary(found: list[Judged]) -> list[str]:
    """Return the lines that count the verdicts, and say what "equal" rests on."""
    width = max(terminal.width(), 40)
    verdicts = [verdict for judged in found for verdict in judged.verdicts]
    files = f"{_numbered(len(found), 'file')}, " if len(found) > 1 else ""
    lines = terminal.folded(f"{files}{_counts(verdicts)}", width)
    lines += [e for line in waiting(verdicts) for e in terminal.folded(line, width)]
    equal = [verdict for verdict in verdicts if verdict.kind == "equal"]
    bases = [verdict.basis for verdict in equal if verdict.basis]
    if bases:
        lines += terminal.folded(_rests(bases), width)
    for judged in found:
        lines += [
            each
            for line in _not_looked_at(judged, len(found) > 1)
            for each in terminal.folded(line, width)
        ]
    return lines


def _not_looked_at(judged: Judged, named: bool) -> Iterator[str]:
    """Yield a line that says what of a text was not looked at, if anything."""
    if unseen := judged.document.unseen:
        each = ", ".join(
            f"{what} ({judged.document.where(line)})" for line, what in unseen
        )
        name = f" in {_name(judged.name)}" if named else ""
        yield f"not looked at{name}: {each}"


def _formula(verdict: Verdict) -> str:
    """Return a side as written, and where it was compared if not everywhere."""
    basis = verdict.basis
    where = f"  (where {basis.condition})" if basis and basis.condition else ""
    return f"{verdict.latex}{where}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _head(document: Document, verdict: Verdict) -> str:
    where = document.where(verdict.line)
    return f"{MARKS[verdict.kind]} {where}: {verdict.kind}"


def _explanation(document: Document, verdict: Verdict) -> list[str]:
    head = _head(document, verdict)
    if (example := verdict.counterexample) is None:
        first, *rest = verdict.message.splitlines()
        lines = [f"{head}: {first}", *rest]
        if verdict.kind == "ill-formed" and verdict.basis:
            lines.append(f"  with {_names(document, verdict.basis)}")
        return lines
    lines = [f"{head}: it does not equal {_other_side(document, verdict)}"]
    lines.append(f"    {_formula(verdict)}")
    if example.where:
        lines.append(f"  at {', '.join(example.where)}:")
    lines += [f"    expected: {example.expected}", f"    found:    {example.found}"]
    if verdict.message:
        lines.append(f"  {verdict.message}")
    if verdict.basis and verdict.basis.definitions:
        lines.append(f"  with {_names(document, verdict.basis)}")
    return lines


def _other_side(document: Document, verdict: Verdict) -> str:
    """Return in words the side with which a refused side was compared."""
    if verdict.against == verdict.line:
        if verdict.to_left:
            return "the left-hand side"
        return f"{verdict.compared}, earlier in this line"
    side = "left" if verdict.to_left else "right"
    return f"the {side}-hand side in {document.where(verdict.against)}"


def _of_comments(document: Document, verdicts: list[Verdict]) -> Iterator[str]:
    """Yield what is wrong with the definitions in comments."""
    for verdict in verdicts:
        if verdict.display < 0:
            yield from _explanation(document, verdict)


def _names(document: Document, basis: Basis) -> str:
    return ", ".join(
        f"{name} ({document.where(line)})" if line else f"{name} (definitions)"
        for name, line in basis.definitions
    )


def _rests(bases: list[Basis]) -> str:
    """Return in words what the verdict "equal" rests on."""
    words = "equal: compared exactly, as functions"
    if points := max(basis.points for basis in bases):
        words += f" (around {points} random points where a sign matters)"
    sizes = {n for basis in bases for each in basis.sizes for n in each.values()}
    if sizes:
        words += f", at sizes {', '.join(map(str, sorted(sizes)))}"
    return f"{words}, with the definitions that each line uses (--json lists them)"


def _facts(name: str, document: Document, verdicts: list[Verdict]) -> dict[str, Any]:
    counts = _of_each_kind(verdicts)
    return {
        "version": FORMAT,
        "file": name,
        "counts": {kind: counts[kind] for kind in MARKS},
        # Only statements count for --strict.
        "statements": sum(counts[kind] for kind in MARKS),
        "without a relation": counts["nothing claimed"],
        "lines": [_fact(document, verdict) for verdict in verdicts],
        "not looked at": [
            {"line": line, "place": document.place(line), "what": what}
            for line, what in document.unseen
        ],
    }


def _fact(document: Document, verdict: Verdict) -> dict[str, Any]:
    basis, example = verdict.basis, verdict.counterexample
    name, line = document.file_and_line(verdict.line)
    return {
        "line": line,
        **({"file": name} if name else {}),
        "place": document.place(verdict.line),
        "verdict": verdict.kind,
        "in": "definitions" if verdict.display < 0 else "display",
        "latex": verdict.latex,
        "against": verdict.against or None,
        "compared with": verdict.compared or None,
        "message": verdict.message,
        "inferred": list(verdict.inferred),
        "waits for": list(verdict.waits),
        "counterexample": example
        and {
            "where": list(example.where),
            "expected": example.expected,
            "found": example.found,
        },
        "rests on": basis
        and {
            "definitions": [
                {"name": name, "line": line or None} for name, line in basis.definitions
            ],
            "condition": basis.condition or None,
            "sizes": list(basis.sizes),
            "points": basis.points,
            "how": "around random points"
            if basis.points
            else "exact"
            if verdict.kind != "ill-formed"
            else "form",
        },
    }


def _annotated(document: Document, verdicts: list[Verdict]) -> str:
    """Return the Markdown with the verdicts on each display quoted below it."""
    source, found, at = document.source, "", 0
    for item in document.items:
        mine = [v for v in verdicts if v.display == item.start and v.kind in MARKS]
        end = getattr(item, "end", 0)
        if not mine or not end:
            continue
        found += f"{source[at:end]}\n\n" + "".join(
            f"> {line}\n" for verdict in mine for line in _note(document, verdict)
        )
        at = end
        if not source[at:].startswith("\n"):
            found += "\n"
    return found + source[at:]


def _note(document: Document, verdict: Verdict) -> list[str]:
    note = f"- {_head(document, verdict)}"
    if example := verdict.counterexample:
        where = f" at {', '.join(example.where)}" if example.where else ""
        note += f":{where} `{example.found}` instead of `{example.expected}`"
    elif verdict.message:
        note += f": {verdict.message.splitlines()[0]}"
    if verdict.inferred:
        note += f" ({'; '.join(verdict.inferred)})"
    return [note]


COMMAND = Command(
    "derive",
    help="judge displayed mathematics of your own, line by line",
    description="Compare each displayed line of a text with the last correct line of\n"
    "its chain, exactly and at several sizes.",
    options=(
        value("files", "FILE", "a text, or - for standard input", nargs="+"),
        value(
            "--definitions",
            "FILE",
            "a file of definitions and macros that hold for every FILE",
        ),
        switch(
            "--strict",
            help="also exit with status 1 if a line is not readable, or not looked at",
        ),
        value(
            "--seconds",
            "N",
            "the limit of CPU seconds for one line; a line that exceeds it is not "
            f"readable (default: {SECONDS:g}; 0: no limit). Windows does not support it",
            type=_seconds,
        ).but(default=SECONDS),
        switch(
            "--declared",
            help="do not infer the shapes of undeclared names",
        ),
        value(
            "--baseline",
            "FILE",
            "a record of earlier verdicts: exit with status 1 only if a line is worse",
        ),
        switch("--update-baseline", help="write the verdicts to the --baseline FILE"),
        (
            JSON.but(
                help="print JSON: an object, or a list of objects for several files"
            ),
            switch(
                "--annotate",
                help="print a Markdown file with the verdicts below each display",
            ),
            switch(
                "--suggest",
                help="print a comment that declares what was inferred, to paste into the text",
            ),
        ),
    ),
    run=run,
    epilog=EPILOG,
)
