"""The parts and chapters of the book, and each page of the site without what only a screen can show."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Tag

from paper import PaperError

CODE = re.compile(r"(<pre[^>]*>)(.*?)(</pre>)", re.DOTALL)
DRAWING = re.compile(r"(<svg[^>]*>)(.*?)(</svg>)", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
TYPESET = re.compile(r'<math data-tex="(?P<latex>[^"]*)"(?P<kind>[^>]*)>.*?</math>', re.DOTALL)
NOT_PRINTED = (
    "a.headerlink",
    "script",
    "style",
    "link",
    "div.toctree-wrapper",
    "div.step[hidden]",
    "details.hide > summary",
    "details.hide > .cell_input",  # the folded source of a figure or of a derivation
    "div.tag_hide-output details.hide",
    "div.tag_hide-cell details.hide",
    ".backpass-attempt > details",  # the line above it says the same
    "aside.takeaways",  # they are at the chapter's end, too
    "nav.bp-strip > p:last-child",  # the link to the whole map
    "p.bp-where",
    "p.backpass-card-index",
    ".cell:has(.backpass-sheet)",  # which repeats formulas of the card
)
OPERATION = re.compile(r"\boperation=[\"'](\w+)[\"']")
RESULT = re.compile(r"[✓✗!○]")  # a summary that begins so is the result of what it folds


@dataclass(frozen=True)
class Part:
    """A part of the book: its title, "" in front of the first, and the names of its chapters."""

    title: str
    chapters: tuple[str, ...]


def parts(book: Path) -> list[Part]:
    """The parts in the order of _toc.yml."""
    contents = yaml.safe_load((book / "_toc.yml").read_text())

    def names(node: dict) -> Iterator[str]:
        for key in ("chapters", "sections"):
            for child in node.get(key, ()):
                yield child["file"].removesuffix(".md")
                yield from names(child)

    first = Part("", (contents["root"], *names(contents)))
    return [first, *(Part(part["caption"], tuple(names(part))) for part in contents.get("parts", ()))]


def page(site: Path, name: str) -> Tag:
    """The page's article, without what is left out on paper."""
    path = site / f"{name}.html"
    if not path.exists():
        raise PaperError(f"{name}: there is no {path}; run `make book` first")
    return article(path.read_text(encoding="utf-8"), name)


def article(text: str, name: str) -> Tag:
    """The article of a page of the site, ready to be written.

    Code loses its colours and what a drawing has inside becomes text: they are nine in ten of a page's tags.
    """
    text = TYPESET.sub(_as_latex, text)
    text = DRAWING.sub(lambda match: match[1] + html.escape(match[2], quote=False) + match[3], text)
    text = CODE.sub(lambda match: match[1] + TAG.sub("", match[2]) + match[3], text)
    found = BeautifulSoup(text, "html.parser").select_one("article.bd-article")
    if found is None:
        raise PaperError(f"{name}: the page has no article")
    for at, link in enumerate(found.select("nav.bp-networks span + span")):
        link.insert_before(" · " if at else " ")
    for sheet in found.select("style"):
        for drawing in sheet.find_next_siblings("svg"):
            drawing.insert(0, f"<style>{sheet.get_text()}</style>")
    _name_what_is_derived(found)
    _say_what_moves(found)
    for selector in NOT_PRINTED:
        for each in found.select(selector):
            each.decompose()
    for details in found.select("details"):
        _unfold(details)
    _move_solutions(found)
    return found


def _as_latex(match: re.Match) -> str:
    """A formula as it was before `backpass_mathematics` typeset it."""
    latex = match["latex"].replace("&quot;", '"').replace("&#x27;", "'")
    return rf"\[{latex}\]" if 'display="block"' in match["kind"] else rf"\({latex}\)"


def _name_what_is_derived(found: Tag) -> None:
    """Note with a derivation the operation that its source, which is left out, binds it to."""
    for cell in found.select("div.cell"):
        derivation = cell.select_one(".derivation")
        source = cell.select_one(".cell_input")
        if derivation and source and (match := OPERATION.search(source.get_text())):
            derivation["data-operation"] = match[1]


def _say_what_moves(found: Tag) -> None:
    """Put a sentence in place of what a reader moves or fills in, and show its first state."""
    for figure in found.select("figure.backpass-steps"):
        label = figure.select_one(".steps-control label").get_text().strip()
        value = figure.select_one(".steps-control output").get_text().strip()
        figure.select_one(".steps-control").decompose()
        caption = figure.select_one("figcaption")
        caption.append(f" (On the site a slider changes: {label}. Here it is {value}.)")
    for figure in found.select("figure.backpass-movable"):
        figure.select_one(".movable-numbers").decompose()
        figure.select_one("figcaption").append(
            " (On the site the reader changes the numbers of this figure.)"
        )
    for choices in found.select("fieldset"):
        # Each choice is followed by what it shows, in elements of the same order.
        inputs = choices.select("input")
        chosen = next((at for at, each in enumerate(inputs) if each.has_attr("checked")), 0)
        shown = [each for each in choices.find_next_siblings() if each.name == "div"]
        for at, each in enumerate(shown):
            if len(shown) == len(inputs) and at != chosen:
                each.decompose()
        legend = choices.select_one("legend").get_text().strip()
        words = " ".join(choices.select("label")[chosen].get_text().split())
        choices.replace_with(_sentence(f"{legend}: {words}. The site offers {len(inputs)} choices."))
    for calculator in found.select("#calculator"):
        calculator.replace_with(
            _sentence("The calculators are on the site, where this page computes as you type.")
        )


def _sentence(words: str) -> Tag:
    return BeautifulSoup(f'<p class="paper-instead">{html.escape(words)}</p>', "html.parser").p


def _unfold(details: Tag) -> None:
    """Leave of a fold what a reader of paper needs.

    That is the line of a report, with the findings of one that failed; nothing of folded source; all of the rest.
    """
    if "fold" in (
        details.get("class") or ()
    ):  # of `backpass_folds`: paper has all of it, in the notebook's order
        details.find("summary").decompose()
        if "code" in details["class"]:
            details.parent.insert(0, details.extract())
        details.unwrap()
        return
    if "hide" in (details.get("class") or ()):  # MyST-NB's fold of a cell, whose source is gone by now
        details.unwrap()
        return
    summary = details.find("summary")
    folded = [child for child in details.children if isinstance(child, Tag) and child is not summary]
    if RESULT.match(summary.get_text().strip()):
        for child in folded:
            if "backpass-findings" not in (child.get("class") or ()):
                child.decompose()
        summary.name, summary["class"] = "p", ["paper-verdict"]
    elif all("highlight" in " ".join(child.get("class") or ()) for child in folded):
        details.decompose()
        return
    else:
        summary.name, summary["class"] = "p", ["rubric"]
    details.unwrap()


def _move_solutions(found: Tag) -> None:
    """Put the solutions into a section at the end, each under the number of its exercise."""
    solutions = found.select("div.solution")
    if not solutions:
        return
    builder = BeautifulSoup("<section id='paper-solutions'><h2>Solutions</h2></section>", "html.parser")
    section = builder.section
    for solution in solutions:
        exercise = solution.find_previous("div", class_="exercise")
        number = exercise.select_one(".caption-number").get_text().strip()
        title = solution.select_one(".admonition-title")
        title.string = f"Solution of {number}"
        title["data-exercise"] = exercise["id"]
        exercise["data-solution"] = solution["id"]
        section.append(solution.extract())
    found.find("section").append(section)
