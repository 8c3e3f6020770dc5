"""Writes a page of the site in typst's markup.

An element that has no form on paper is an error, so that nothing is lost unseen. Formulas are written as marks, which
`Formulas.placed` replaces when all of them are converted; a link is written to whatever it names, and typst fails on a
name that nothing has.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from urllib.parse import unquote

from bs4 import NavigableString, Tag
from bs4.element import PreformattedString

from paper import PaperError, formulas, tables
from paper.terms import Index

SPECIAL = re.compile(r"[\\#$*_\[\]<>@~`/=+\-'\";{}]")
ENUMERATION = re.compile(r"(?<![^\s])(\d+)\.(?=\s|$)")
MATHS = re.compile(r"\\\((.+?)\\\)", re.DOTALL)
MARK = re.compile("\x00([ids])(\\d+)\x00")
LONG = 24  # letters of code without a space, after which a line may break inside
UNBROKEN = re.compile(r"\S{90}(?=\S)")  # about as many letters of code as fit a line
BREAKS = re.compile(r"(?<=[_./,(=:|\[])(?=[^\s_./,(=:|\[)\]])")
INCHES = re.compile(r"max-width:\s*(?P<in>[\d.]+)in")
REMS = re.compile(r"max-width:\s*(?P<in>[\d.]+)rem")
FONT = re.compile(r"font:\s*(?P<size>[\d.]+px)\s[^;}]*")
PROPER = {"viewbox": "viewBox"}  # what an HTML parser writes small
INLINE = frozenset("a abbr b br cite code em i kbd math small span strong sub sup var".split())
HIDDEN = frozenset("script style link".split())


def escaped(text: str) -> str:
    """Plain text, so that typst sets it as it is."""
    return ENUMERATION.sub(r"\1\\.", SPECIAL.sub(r"\\\g<0>", text))


def string(text: str) -> str:
    """A string in typst's code."""
    inside = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "    ")
    return f'"{inside}"'


def breakable(code: str, long: int = LONG) -> str:
    """Code in which a name with more letters may break after its dots, slashes and underscores."""
    return " ".join(BREAKS.sub("\u200b", word) if len(word) > long else word for word in code.split(" "))


def drawing(attributes: dict[str, str], inside: str) -> str:
    """An inline SVG as a file: in black, where a page takes the colour of its text, and with the fonts of paper."""
    kept = " ".join(
        f'{PROPER.get(name, name)}="{html.escape(value if isinstance(value, str) else " ".join(value))}"'
        for name, value in attributes.items()
        if name in ("viewbox", "fill", "class", "width", "height")
    )
    inside = FONT.sub(r"font-size: \g<size>; font-family: 'New Computer Modern'", inside)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {kept}>{inside}</svg>'
    return svg.replace("currentColor", "#000000").replace("currentcolor", "#000000")


class Formulas:
    """The formulas that the pages use, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.first: dict[str, str] = {}  # the chapter that uses it first

    def mark(self, latex: str, form: str, chapter: str) -> str:
        """A mark that stands for the formula; `form` is i (inline), d (inline, in display style) or s (its own line)."""
        latex = formulas.plain(latex)
        if latex.startswith(r"\displaystyle"):
            latex, form = latex.removeprefix(r"\displaystyle").strip(), "d" if form == "i" else form
        self.first.setdefault(latex, chapter)
        return f"\x00{form}{self.numbers.setdefault(latex, len(self.numbers))}\x00"

    def converted(self, pandoc: str) -> list[str]:
        """All formulas, converted, by their numbers. An error names the chapters."""
        latex = list(self.numbers)
        try:
            return formulas.converted(latex, pandoc)
        except PaperError as error:
            named = [f"{self.first[each]}: {each}" for each in latex if each in str(error)]
            raise PaperError("\n".join([str(error), *named])) from None

    @staticmethod
    def placed(text: str, found: list[str]) -> str:
        """The text with the converted formulas in place of their marks."""

        def formula(match: re.Match) -> str:
            typst = found[int(match[2])]
            return f"${typst}$" if match[1] == "i" else f"$display({typst})$"

        return MARK.sub(formula, text)


def label(page: str, anchor: str = "") -> str:
    """The label of a page, or of a place in it."""
    return f"{page}#{anchor}" if anchor else page


class Writer:
    """One page's way from HTML to typst.

    `labels` has every place of the book that a link can lead to; `index` takes note of the terms.
    """

    def __init__(
        self,
        page: str,
        labels: set[str],
        maths: Formulas,
        index: Index | None = None,
    ) -> None:
        self.page, self.labels, self.maths, self.index = page, labels, maths, index or Index()
        self.pictures: dict[str, str] = {}  # SVGs by the name of their file
        self.pending: list[str] = []  # labels of what comes next
        self.figures = 0
        self.parents: list[Tag] = []

    def chapter(self, article: Tag) -> str:
        """The whole page. Its title is a heading of level 2; the parts have level 1."""
        body = self.blocks(article)
        return f"#metadata(none)#label({string(label(self.page))})\n{body}"

    # Blocks

    def blocks(self, parent: Tag) -> str:
        """The children of an element, with paragraphs around text that stands alone."""
        out, loose = [], []
        for child in parent.children:
            if self._is_inline(child):
                loose.append(child)
                continue
            out += [self._paragraph(loose), self.block(child)]
            loose = []
        return "\n\n".join(filter(None, [*out, self._paragraph(loose)]))

    def _is_inline(self, node) -> bool:
        if isinstance(node, PreformattedString):
            return True
        return isinstance(node, NavigableString) or (
            node.name in INLINE and not (node.name == "span" and node.find(["p", "div", "table", "section"]))
        )

    def _paragraph(self, nodes: list) -> str:
        return "".join(map(self.inline, nodes)).strip()

    def block(self, node: Tag) -> str:
        """One element that stands on its own lines."""
        if node.name in HIDDEN:
            return ""
        if "id" in node.attrs and node.name not in ("section", "dt"):
            self.pending.append(node["id"])
        classes = node.get("class") or []
        methods = (getattr(self, f"_class_{name.replace('-', '_')}", None) for name in classes)
        method = next(filter(None, methods), None) or getattr(self, f"_tag_{node.name}", None)
        if method is None:
            raise PaperError(f"{self.page}: <{node.name}> has no form on paper: {str(node)[:200]}")
        self.parents.append(node)
        try:
            return method(node)
        finally:
            self.parents.pop()

    def anchors(self) -> str:
        """The labels that wait for something to stand on."""
        names, self.pending = self.pending, []
        return "".join(f"#anchor({string(label(self.page, name))});" for name in names)

    def _tag_div(self, node: Tag) -> str:
        return self.blocks(node)

    _tag_article = _tag_nav = _tag_fieldset = _tag_form = _tag_div

    def _tag_section(self, node: Tag) -> str:
        self.pending += [node["id"]] if "id" in node.attrs else []
        return self.blocks(node)

    def _heading(self, node: Tag) -> str:
        number = node.select_one(".section-number")
        digits = number.extract().get_text().strip().rstrip(".") if number else ""
        level = int(node.name[1]) + 1
        names, self.pending = self.pending, []
        first = string(label(self.page, names[0])) if names else "none"
        more = "".join(f"#anchor({string(label(self.page, name))});" for name in names[1:])
        if names and not node.find("code"):
            self.index.heading(node.get_text(), label(self.page, names[0]))
        title = self._paragraph(list(node.children))
        return f"#titled({level}, {string(digits)}, {first})[{title}]" + (f"\n{more}" if more else "")

    _tag_h1 = _tag_h2 = _tag_h3 = _tag_h4 = _tag_h5 = _heading

    def _tag_p(self, node: Tag) -> str:
        text = self.anchors() + self._paragraph(list(node.children))
        return text

    def _class_rubric(self, node: Tag) -> str:
        return f"#rubric[{self.anchors()}{self._paragraph(list(node.children))}]"

    def _class_paper_verdict(self, node: Tag) -> str:
        return f"#verdict[{self.anchors()}{self._paragraph(list(node.children))}]"

    def _class_paper_instead(self, node: Tag) -> str:
        return f"#instead[{self.anchors()}{self._paragraph(list(node.children))}]"

    def _tag_ul(self, node: Tag) -> str:
        return self._items("list", node)

    def _tag_ol(self, node: Tag) -> str:
        return self._items(f"enum.with(start: {int(node.get('start', 1))})", node)

    def _items(self, function: str, node: Tag) -> str:
        before = self.anchors()
        items = []
        for item in node.find_all("li", recursive=False):
            self.pending += [item["id"]] if "id" in item.attrs else []
            items.append(f"[{self.anchors()}{self.blocks(item)}]")
        tight = all(
            len(item.find_all("p", recursive=False)) < 2 for item in node.find_all("li", recursive=False)
        )
        return f"{before}#{function}(tight: {str(tight).lower()}, {', '.join(items)})"

    def _tag_dl(self, node: Tag) -> str:
        """A definition list; those of the API have signatures as terms."""
        out = []
        for child in node.find_all(["dt", "dd"], recursive=False):
            self.pending += [child["id"]] if "id" in child.attrs else []
            if child.name == "dd":
                out.append(f"#meaning[{self.anchors()}{self.blocks(child)}]")
            elif "sig" in (child.get("class") or ()):
                words = breakable(" ".join(child.get_text().split()))
                out.append(f"#signature[{self.anchors()}#raw({string(words)})]")
            else:
                out.append(f"#term[{self.anchors()}{self._paragraph(list(child.children))}]")
        return "\n".join(out)

    def _tag_blockquote(self, node: Tag) -> str:
        return f"#quote(block: true)[{self.anchors()}{self.blocks(node)}]"

    def _tag_hr(self, node: Tag) -> str:
        return "#line(length: 100%, stroke: .4pt)"

    def _tag_pre(self, node: Tag) -> str:
        return self._code(node, "output")

    def _code(self, node: Tag, kind: str, language: str = "") -> str:
        text = UNBROKEN.sub("\\g<0>\u200b", node.get_text().strip("\n"))
        return f"{self.anchors()}#{kind}({string(text)}{f', {string(language)}' if language else ''})"

    def _class_highlight(self, node: Tag) -> str:
        names = " ".join(" ".join(each.get("class") or ()) for each in [node, *list(node.parents)[:2]])
        if "highlight-ipython3" in names or "highlight-python" in names:
            return self._code(node, "code", "python")
        return self._code(node, "output" if "output" in names else "code")

    def _class_math(self, node: Tag) -> str:
        number = node.select_one(".eqno")
        words = escaped(number.extract().get_text().strip("# \n")) if number else ""
        return f"#displayed[{words}][{self.anchors()}{self.maths.mark(node.get_text(), 's', self.page)}]"

    # What the book's own objects show

    def _class_derivation(self, node: Tag) -> str:
        before = self.anchors()
        rows = []
        if name := self.index.derived(node.get("data-operation", "")):
            before += f"#anchor({string(name)});"
        for row in node.select_one(".derivation-lines").find_all("div", recursive=False):
            if "derivation-line" not in row["class"]:
                rows.append(f"(whole: [{self._maths_in(row)}])")
                continue
            left, right, reason = (
                row.select_one(f".derivation-{name}") for name in ("left", "right", "reason")
            )
            number = row.select_one(".derivation-number").get_text().strip()
            anchor = f"#anchor({string(label(self.page, row['id']))});"
            begins = str("derivation-begins" in row["class"]).lower()
            reason = f"[{self._maths_in(reason)}]" if reason else "none"
            rows.append(
                f"(left: [{self._maths_in(left)}], right: [{self._maths_in(right)}], reason: {reason}, "
                f"number: [{anchor}{escaped(number)}], begins: {begins})"
            )
        return f"{before}#derivation((\n  " + ",\n  ".join(rows) + ",\n))"

    def _maths_in(self, node: Tag) -> str:
        return self._paragraph(list(node.children))

    def _tag_figure(self, node: Tag) -> str:
        before = self.anchors()
        caption = node.find("figcaption")
        words = self._paragraph(list(caption.children)) if caption else ""
        drawings = "\n".join(map(self._tag_svg, node.select("svg")))
        self.figures += 1
        return f"{before}#drawn({self.figures})[{drawings}][{words}]"

    def _tag_svg(self, node: Tag) -> str:
        """A drawing, as wide as it asks for."""
        inside = node.get_text()
        name = f"{self.page.replace('/', '-')}-{len(self.pictures) + 1}.svg"
        self.pictures[name] = drawing(node.attrs, inside)
        inches = INCHES.search(node.get("style", "")) or REMS.search(inside)
        width = float(inches["in"]) if inches else 4.8
        width /= 6.4 if inches and inches.re is REMS else 1
        return f"#picture({string(name)}, {width:.2f}in, {string(node.get('aria-label', ''))})"

    def _tag_table(self, node: Tag) -> str:
        return self.anchors() + tables.table(node, self.cell, self._caption(node))

    def _caption(self, node: Tag) -> str:
        caption = node.find("caption")
        return self._paragraph(list(caption.children)) if caption else ""

    def cell(self, node: Tag) -> str:
        """The contents of a cell of a table."""
        return self.anchors() + self.blocks(node)

    def _class_claim(self, node: Tag) -> str:
        return f"#claim[{self.blocks(node)}]"

    def _class_admonition(self, node: Tag) -> str:
        before = self.anchors()
        title = node.select_one(".admonition-title")
        words = "" if title is None else self._paragraph(list(title.extract().children))
        if solution := node.get("data-solution"):
            words += f" #aside({string(label(self.page, solution))})[solution];"
        if title is not None and (exercise := title.get("data-exercise")):
            words += f" #aside({string(label(self.page, exercise))})[exercise];"
        kind = "solution" if "solution" in node["class"] else "boxed"
        return f"#{kind}[{before}{words}][{self.blocks(node)}]"

    def _class_citation(self, node: Tag) -> str:
        name = node.select_one(".label").extract().get_text().strip()
        return f"#cited({string(name)})[{self.anchors()}{self.blocks(node)}]"

    # Text

    def inline(self, node) -> str:
        """Text, and what is in a line of it."""
        if isinstance(node, PreformattedString):  # a comment
            return ""
        if isinstance(node, NavigableString):
            return self._text(node)
        method = getattr(self, f"_inline_{node.name}", None)
        if method is None:
            raise PaperError(f"{self.page}: <{node.name}> has no form in a line: {str(node)[:200]}")
        if "id" in node.attrs:
            self.pending.append(node["id"])
        return method(node)

    def _text(self, node: NavigableString) -> str:
        pieces = [str(node)]
        if node.find_parent(class_="tex2jax_process") and not node.find_parent(
            "section", class_="tex2jax_process"
        ):
            pieces = MATHS.split(str(node))
        return "".join(
            self.maths.mark(piece, "i", self.page) if at % 2 else self._prose(piece, node)
            for at, piece in enumerate(pieces)
        )

    def _prose(self, piece: str, node: NavigableString) -> str:
        words = re.sub(r"\s+", " ", piece)
        if self.within("table"):
            words = tables.TIMES.sub("\u00a0×\u00a0", words)
        if self._is_prose(node) and (found := self.index.method(words, self.page)):
            at, name = found
            return f"{escaped(words[:at])}#anchor({string(name)});{escaped(words[at:])}"
        return escaped(words)

    def _is_prose(self, node) -> bool:
        """Whether the index may look for terms here."""
        apart = self.within("citation", "claim", "table", "figure", "derivation", "paper-verdict", "dl")
        return not apart and node.find_parent(re.compile("h[1-6]|dt")) is None

    def _inside(self, node: Tag) -> str:
        return "".join(map(self.inline, node.children))

    def _wrapped(self, function: str, node: Tag) -> str:
        inside = self._inside(node)
        return f"#{function}[{inside}];" if inside.strip() else inside

    def _inline_span(self, node: Tag) -> str:
        if "math" in (node.get("class") or ()):
            return self.maths.mark(node.get_text(), "i", self.page)
        if "derivation-word" in (node.get("class") or ()):
            return self._wrapped("word", node)
        if "derivation-reason" in (node.get("class") or ()):
            return "#h(1em)" + self._wrapped("reason", node)
        if not node.contents:
            return ""  # a target alone: its label waits for what comes next
        here = self.anchors() if "id" in node.attrs else ""
        return here + self._inside(node)

    def _inline_em(self, node: Tag) -> str:
        entry = self._indexed("term", node)
        return entry + self._wrapped("emph", node)

    _inline_i = _inline_cite = _inline_var = _inline_em

    def _inline_strong(self, node: Tag) -> str:
        entry = self._indexed("term", node)
        return entry + self._wrapped("strong", node)

    _inline_b = _inline_strong

    def _indexed(self, kind: str, node: Tag) -> str:
        if not self._is_prose(node):
            return ""
        words = " ".join(node.get_text().split())
        name = self.index.term(words, self.page) if kind == "term" else self.index.stem(words, self.page)
        return f"#anchor({string(name)});" if name else ""

    def _inline_small(self, node: Tag) -> str:
        return self._wrapped("minor", node)

    def _inline_sup(self, node: Tag) -> str:
        return self._wrapped("super", node)

    def _inline_sub(self, node: Tag) -> str:
        return self._wrapped("sub", node)

    def _inline_abbr(self, node: Tag) -> str:
        return self._inside(node)

    def _inline_br(self, node: Tag) -> str:
        return "#linebreak();"

    def _inline_code(self, node: Tag) -> str:
        words = re.sub(r"\s+", " ", node.get_text())
        entry = self._indexed("code", node)
        longest = 9 if self.within("table") else LONG
        return f"{entry}#raw({string(breakable(words, longest))});"

    _inline_kbd = _inline_code

    def _inline_a(self, node: Tag) -> str:
        inside, target = self._inside(node), node.get("href", "")
        here = self.anchors() if "id" in node.attrs else ""
        if not target or not inside.strip():
            return here + inside
        if re.match(r"[a-z]+:", target):
            return f"{here}#outside({string(target)})[{inside}];"
        page, _, anchor = target.partition("#")
        page = posixpath.normpath(posixpath.join(posixpath.dirname(self.page), page)) if page else self.page
        page, anchor = page.removesuffix(".html"), unquote(anchor)
        name = label(page, anchor)
        if name not in self.labels:
            name = page  # the place was left out
        if name not in self.labels:
            return here + inside  # an index that the site has
        prose = not self.within(
            "claim", "table", "nav", "admonition-claims-of-other-texts-judged-by-this-page"
        )
        prose = prose and node.find_parent("span", class_="bibtex-citation") is None
        function = "see" if prose and page != self.page else "to"
        return f"{here}#{function}({string(name)})[{inside}];"

    def within(self, *names: str) -> bool:
        """Whether what is being written is in an element with one of these names or classes."""
        return any(
            parent.name in names or set(names) & set(parent.get("class") or ()) for parent in self.parents
        )


def anchors_of(page: str, article: Tag) -> Iterator[str]:
    """Every label that the page will have."""
    yield page
    for node in article.select("[id]"):
        if node.find_parent("svg") is None and node.name not in ("svg", "input"):
            yield label(page, node["id"])
