r"""Typesets the formulas when the book is built: replaces the LaTeX of each page with MathML, which browsers show without a
script.

The formulas of a page are those of its text and those in the HTML that its cells show, between `\(` and `\)`, or `\[` and
`\]`. Temml (`ext/temml`) converts them, in V8, from the package mini-racer. Each formula keeps its LaTeX in the attribute
`data-tex`, from which the PDF is typeset. A formula that Temml cannot read is a warning, and fails the build.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import html
import json
import multiprocessing
import re
from collections.abc import Callable, Iterable, Set
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.mathjax import html_visit_displaymath, html_visit_math
from sphinx.util import logging

TEMML = Path(__file__).with_name("temml") / "temml.min.js"
FONT = Path(__file__).with_name("fonts") / "backpass_math.woff2"
FONT_SCRIPT = "mathematics_font.js"
LOAD = """(function () {
  const data = Uint8Array.from(atob("%s"), (character) => character.charCodeAt(0));
  document.fonts.add(new FontFace("Backpass Math", data));
})();
"""
CONVERT = r"""function converted(formulas, macros) {
  const settings = { macros, throwOnError: true, strict: false, trust: ({ command }) => command === "\\class" };
  return JSON.stringify(formulas.map(([latex, displayMode]) => {
    try {
      return [temml.renderToString(latex, { ...settings, displayMode, macros: { ...macros } }), ""];
    } catch (error) {
      return ["", String(error)];
    }
  }));
}"""
LITERAL = re.compile(
    r"<!--.*?-->|<(?P<name>code|math|pre|script|style|svg|textarea)\b(?:[^>\"']|\"[^\"]*\"|'[^']*')*>.*?</(?P=name)>"
    r"|<(?:[^>\"']|\"[^\"]*\"|'[^']*')*>",
    re.DOTALL,
)
FORMULA = re.compile(r"\\\((?P<inline>.*?)\\\)|\\\[(?P<display>.*?)\\\]", re.DOTALL)
TEXT = re.compile(r"(\\text\s*\{)([^{}]*)(\})")
# How far letters lean over their right edge, in twentieths of an em. Chromium and Safari do not allow for it.
LEAN = {
    letter: twentieths
    for twentieths, letters in enumerate(["", "CEHIKSXZfζξν∂Σ", "JMNUτ", "FPTWΓ", "VY"])
    for letter in letters
}
# A formula in a sentence, and the punctuation behind it, which must not begin a line.
HELD = re.compile(r'<span class="math[^"]*"><math\b(?:(?!</math>).)*</math></span>[.,;:!?)]+', re.DOTALL)
SCRIPTS = frozenset({"msub", "msup", "msubsup"})
TALL = frozenset({"mfrac", "mroot", "mtable", "munder", "munderover"})
TALL_SIGNS = frozenset("∑∏∫⨀⨁⨂")
Formula = tuple[str, bool]  # the LaTeX, and whether it is displayed

logger = logging.getLogger(__name__)


class Typesetter:
    """Converts formulas, each once."""

    def __init__(self, macros: dict[str, str]):
        self.macros = {f"\\{name}": meaning for name, meaning in macros.items()}
        self._known: dict[Formula, tuple[str, str]] = {}

    def converted(self, formulas: Iterable[Formula]) -> dict[Formula, tuple[str, str]]:
        """Return for each formula its MathML and "", or "" and why it cannot be converted."""
        formulas = list(dict.fromkeys(formulas))
        if new := [formula for formula in formulas if formula not in self._known]:
            given = [[readable(latex), displayed] for latex, displayed in new]
            found = json.loads(self._v8.eval(f"converted({json.dumps(given)}, {json.dumps(self.macros)})"))
            for formula, (mathml, problem) in zip(new, found, strict=True):
                self._known[formula] = mathml and adapted(mathml), problem
        return {formula: self._known[formula] for formula in formulas}

    @cached_property
    def _v8(self):
        from py_mini_racer import MiniRacer

        v8 = MiniRacer()
        atexit.register(v8.close)  # one that is still open when Python ends never lets it end
        v8.eval(TEMML.read_text())
        v8.eval(CONVERT)
        return v8


class SharedTypesetter:
    """A typesetter in a process of its own, for all processes that Sphinx forks: V8 does not survive a fork."""

    def __init__(self, macros: dict[str, str]):
        self._lock = multiprocessing.Lock()
        self._ours, theirs = multiprocessing.Pipe()
        multiprocessing.Process(target=serve, args=(macros, theirs, self._ours), daemon=True).start()
        theirs.close()

    def converted(self, formulas: Iterable[Formula]) -> dict[Formula, tuple[str, str]]:
        """Return what ``Typesetter.converted`` does."""
        with self._lock:
            self._ours.send(list(formulas))
            return self._ours.recv()


def serve(macros: dict[str, str], pipe: Connection, other_end: Connection) -> None:
    """Answer until nobody holds the other end of the pipe."""
    other_end.close()
    typesetter = Typesetter(macros)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(typesetter.converted(pipe.recv()))


AnyTypesetter = Typesetter | SharedTypesetter


def readable(latex: str) -> str:
    r"""Return the formula as Temml reads it: an underscore in `\text` is a character."""
    return TEXT.sub(lambda match: match[1] + re.sub(r"(?<!\\)_", r"\\_", match[2]) + match[3], latex)


def adapted(mathml: str) -> str:
    """Return the MathML as browsers show it well: lines above and below are borders, brackets have the usual size around
    what is not tall, and letters that lean have room."""
    root = ElementTree.fromstring(mathml)
    for line in root.iter("menclose"):
        line.tag = "mrow"
        del line.attrib["notation"]
    for row in root.iter("mrow"):
        if len(row) > 1 and is_bracket(row[0]) and is_bracket(row[-1]) and not any(map(is_tall, row[1:-1])):
            for bracket in (row[0], row[-1]):
                bracket.set("stretchy", "false")
    make_room(root)
    unwrap(root)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def unwrap(element: ElementTree.Element) -> None:
    """Remove rows that hold one element, and the row or the style of the whole formula: the fewer elements a page has, the
    sooner a browser has laid it out."""
    if element.tag == "math" and len(element) == 1 and element[0].tag in ("mrow", "mstyle"):
        (whole,) = element
        if set(whole.keys()) <= {"displaystyle", "scriptlevel"} and whole.get("scriptlevel", "0") == "0":
            if "displaystyle" in whole.keys():
                element.set("displaystyle", whole.get("displaystyle"))
            element[:] = list(whole)
    for at, child in enumerate(element):
        while child.tag == "mrow" and len(child) == 1 and not child.keys():
            child = element[at] = child[0]
        unwrap(child)


def is_bracket(element: ElementTree.Element) -> bool:
    """Whether it is what `\\left` or `\\right` gave."""
    return element.tag == "mo" and element.get("fence") == element.get("stretchy") == "true"


def is_tall(element: ElementTree.Element) -> bool:
    return any(
        each.tag in TALL or (each.tag == "mo" and (each.text in TALL_SIGNS or "minsize" in each.keys()))
        for each in element.iter()
    )


def make_room(parent: ElementTree.Element) -> None:
    """Give a class to each leaning letter that something else than its own index or exponent follows."""
    for at, child in enumerate(parent):
        if at or parent.tag not in SCRIPTS:
            letter = child[0] if child.tag == "mover" else child
            room = (
                LEAN.get(letter.text or "")
                if letter.tag == "mi" and letter.get("mathvariant") is None
                else None
            )
            if room:
                child.set("class", f"{child.get('class', '')} lean-{room}".strip())
        if child.tag != "mover":
            make_room(child)


def with_source(mathml: str, latex: str) -> str:
    """Return the MathML with its LaTeX as an attribute."""
    return mathml.replace("<math", f'<math data-tex="{html.escape(" ".join(latex.split()))}"', 1)


def typeset(page: str, typesetter: AnyTypesetter, complain: Callable[[str, str], None]) -> str:
    """Return the HTML with its formulas as MathML. One that cannot be converted stays, and ``complain`` gets its LaTeX and
    the reason."""
    pieces, start = [], 0  # text at even places, tags and literal elements at odd ones
    for literal in LITERAL.finditer(page):
        pieces += [page[start : literal.start()], literal[0]]
        start = literal.end()
    pieces.append(page[start:])
    known = typesetter.converted(formula(match) for text in pieces[::2] for match in FORMULA.finditer(text))

    def converted(match: re.Match) -> str:
        mathml, problem = known[formula(match)]
        if problem:
            complain(formula(match)[0], problem)
        return with_source(mathml, formula(match)[0]) if mathml else match[0]

    pieces[::2] = [FORMULA.sub(converted, text) for text in pieces[::2]]
    return HELD.sub(r'<span class="held">\g<0></span>', "".join(pieces))


def formula(match: re.Match) -> Formula:
    displayed = match["inline"] is None
    return html.unescape(match["display"] if displayed else match["inline"]).strip(), displayed


def typesetter_of(app: Sphinx) -> SharedTypesetter:
    """The one of this build."""
    if not hasattr(app, "backpass_typesetter"):
        app.backpass_typesetter = SharedTypesetter(app.config.mathematics_macros)
    return app.backpass_typesetter


def typeset_page(
    parts: Set[str], app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    def complain(latex: str, problem: str) -> None:
        logger.warning("cannot typeset %r: %s", latex, " ".join(problem.split()), location=page)

    for part in parts & {*context}:
        context[part] = typeset(context[part], typesetter_of(app), complain)


def write_font(app: Sphinx) -> None:
    """Write the font as it is, for pages without scripts, and as a script: a font that a script holds is there before the
    first formula is laid out, whereas one that a style sheet names arrives later and moves what follows the formulas. It
    also works for pages that are opened from disk, whose fonts Firefox does not load from another folder."""
    if app.builder.format != "html":
        return
    folder, data = Path(app.outdir, "_static"), FONT.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FONT.name).write_bytes(data)
    (folder / FONT_SCRIPT).write_text(LOAD % base64.b64encode(data).decode())
    app.add_js_file(FONT_SCRIPT)


def setup(app: Sphinx) -> dict:
    app.add_config_value("mathematics_macros", {}, "env")  # by name without the backslash, as of \newcommand
    app.add_html_math_renderer("mathml", (html_visit_math, None), (html_visit_displaymath, None))
    app.connect("builder-inited", write_font)
    # The contents before the theme reads them; the text after all who add to it.
    app.connect("html-page-context", partial(typeset_page, {"toc"}), priority=100)
    app.connect("html-page-context", partial(typeset_page, {"body"}), priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
