"""The book as one PDF: what each thing of a page becomes on paper, and the whole of it where pandoc and typst are."""

from __future__ import annotations

import html
import io
import json
import re
import sys
from types import SimpleNamespace

import backpass_pdf
import numpy as np
import pytest
from backpass_pdf import FIRST_PARAGRAPH, main_file, offer, write_sources
from build import chapters
from paper import PaperError, tables
from paper.formulas import mended, plain, prepared
from paper.pages import Part, article, page, parts
from paper.terms import Index
from paper.writer import Formulas, Writer, anchors_of, escaped, string

from backpass import figures
from backpass.derivation import Derivation, DerivationError, derive
from backpass.figures.movable.softmax import FIGURE as SOFTMAX
from backpass.ops import softmax
from backpass.verify import attempt, check

from .conftest import BOOK

NEEDED = "pandoc and typst are not installed; `make pdf` installs them"
STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


def typst_of(body: str, name: str = "part/page", labels=(), index: Index | None = None) -> str:
    """The markup of a page with this body, with LaTeX in place of the formulas."""
    found = article(f'<article class="bd-article">{body}</article>', name)
    maths = Formulas()
    writer = Writer(name, {*anchors_of(name, found), *labels}, maths, index)
    text = writer.chapter(found)
    typst_of.pictures = writer.pictures
    return Formulas.placed(text, [f"<{latex}>" for latex in maths.numbers])


# Order and contents


def test_the_parts_have_the_chapters_of_the_table_of_contents_in_its_order():
    assert [name for part in parts(BOOK) for name in part.chapters] == chapters(BOOK)
    assert [part.title for part in parts(BOOK)][:3] == ["", "Foundations", "Operations"]


def test_the_main_file_includes_each_chapter_once_in_order_and_parts_have_titles():
    text = main_file(parts(BOOK), Index(), SimpleNamespace(commit="", date="", timestamp=0))
    assert re.findall(r'#include "/(.*)\.typ"', text) == chapters(BOOK)
    assert (
        text.index('#part("Operations"') < text.index("operations/linear") < text.index('#part("Attention"')
    )


# Text


def test_text_that_means_something_in_typst_is_escaped():
    text = typst_of("<p>a_b *c* #d $e @f [g] `h` // i -- j; = k ~ l \\m \"n\" 'o'</p><p>1. p</p>")
    assert r"a\_b \*c\* \#d \$e \@f \[g\] \`h\` \/\/ i \-\- j\; \= k \~ l \\m" in text
    assert "1\\. p" in text
    assert escaped("version 1.2 ends here.") == "version 1.2 ends here."
    assert string('a "b" \\c\nd') == r'"a \"b\" \\c\nd"'


def test_what_follows_a_call_is_not_read_as_part_of_it():
    text = typst_of('<p><em>a</em>.b <code>c</code>(d) <a href="https://x.org/">e</a>[f]</p>')
    assert '#emph[a];.b #raw("c");(d)' in text
    assert '#outside("https://x.org/")[e];\\[f\\]' in text


def test_links_lead_to_places_that_are_printed_and_else_to_their_page():
    text = typst_of(
        '<p id="here"><a href="other.html#there">one</a> <a href="other.html#left-out">two</a> '
        '<a href="#here">three</a> <a href="../genindex.html">four</a></p>',
        labels=("part/other", "part/other#there"),
    )
    assert '#see("part/other#there")[one];' in text
    assert '#see("part/other")[two];' in text
    assert '#to("part/page#here")[three];' in text and '#anchor("part/page#here");' in text
    assert text.count("four") == 1 and "genindex" not in text


def test_an_element_without_a_form_on_paper_is_an_error_that_names_the_page():
    with pytest.raises(PaperError, match=r"part/page: <marquee>"):
        typst_of("<marquee>a</marquee>")
    with pytest.raises(PaperError, match=r"part/page: <blink>"):
        typst_of("<p><em><blink>a</blink></em></p>")
    with pytest.raises(PaperError, match="no article"):
        article("<p>a</p>", "part/page")


# What the book's objects show


def test_a_derivation_has_its_lines_with_numbers_reasons_and_anchors():
    shown = derive(
        r"""
        given x, \bar{y} \in \mathbb{R}^n
        let   y_i = x_i^2
        \bar{x}_i = \sum_j \bar{y}_j \frac{\partial y_j}{\partial x_i}    | chain rule, with $y$
            = 2 x_i \bar{y}_i
        """,
        name="on-paper",
    )._repr_html_()
    numbers = re.findall(r'id="on-paper-(\d+)"', shown)
    text = typst_of(shown)
    assert len(numbers) == 3
    assert re.findall(r"number: \[#anchor\(\"part/page#on-paper-(\d+)\"\);\((\d+)\)\]", text) == [
        (number, number) for number in numbers
    ]
    assert r"(whole: [#word[given]; $display(<x, \bar{y} \in \mathbb{R}^n>)$])" in text
    assert "reason: [chain rule, with $<y>$]" in text and "reason: none" in text
    assert r"left: [$display(<\bar{x}_i>)$]" in text
    assert "class" not in text and r"\(" not in text


def test_a_wrong_line_keeps_its_mark():
    with pytest.raises(DerivationError) as raised:
        derive("given x \\in \\mathbb{R}^n\nx_i + x_i = 3 x_i", name="wrong-on-paper")
    derivation = raised.value.derivation
    assert isinstance(derivation, Derivation)
    assert "✗" in typst_of(derivation._repr_html_())


@pytest.fixture(scope="module")
def wrong():
    def backward(dy, saved):
        return softmax.backward(2 * dy, saved)

    return SimpleNamespace(forward=softmax.forward, backward=backward)


def test_a_report_is_one_line_and_the_findings_of_a_failure_are_a_list(wrong):
    x = np.random.default_rng(0).normal(size=(3, 5))
    methods = ["finite_difference", "complex_step"]
    passed = typst_of(check(softmax, x, methods=methods)._repr_html_())
    assert "#verdict[✓ #strong[softmax];: 2 passed" in passed
    assert "tabular" not in passed and "#list" not in passed

    failed = typst_of(check(wrong, x, methods=methods, raises=False)._repr_html_())
    assert "#verdict[✗ " in failed and "#list(" in failed and "2 FAILED" in failed
    assert "tabular" not in failed


def test_an_attempt_is_one_line(wrong):
    x = np.random.default_rng(0).normal(size=(3, 5))
    text = typst_of(attempt(wrong, x)._repr_html_())
    assert text.count("✗") == 1 and "Not yet" in text and "#list" not in text


def picture(low: float):
    figure, axes = figures.new(size=(3.0, 2.0))
    axes.plot([0, 1], [low, 1])
    return figure, f"A line from {low}."


def test_a_slider_shows_its_first_step_and_says_what_it_changes():
    shown = figures.steps_to_html(
        {"0": picture(0), "0.5": picture(0.5), "0.75": picture(0.75)}, "The start", "With $x$ below.", first=1
    )
    text = typst_of(shown)
    assert len(typst_of.pictures) == 1 and "A line from 0.5." in text
    assert "With $<x>$ below. (On the site a slider changes: The start. Here it is 0.5.)" in text
    (svg,) = typst_of.pictures.values()
    assert svg.startswith("<svg xmlns=") and "viewBox=" in svg and "currentcolor" not in svg.lower()
    assert ", 3.00in, " in text


def test_a_figure_to_drag_is_its_first_frame():
    text = typst_of(SOFTMAX.to_html("Drag a score."))
    assert len(typst_of.pictures) == 1 and "Four scores; their weights 0.29, 0.49" in text
    assert "Drag a score. (On the site the reader changes the numbers of this figure.)" in text
    assert "Reset" not in text and "backpassFigures" not in text
    (svg,) = typst_of.pictures.values()
    assert "0.49</text>" in svg and "currentcolor" not in svg.lower()


def test_choices_show_the_one_that_is_chosen():
    labels = "".join(
        f'<label><input type="radio"{" checked" if at == 1 else ""}> choice {"abc"[at]}</label>'
        for at in range(3)
    )
    shown = "".join(f"<div><p>shown {at}</p></div>" for at in range(3))
    text = typst_of(f"<div><fieldset><legend>Which</legend>{labels}</fieldset>{shown}</div>")
    assert "Which: choice b. The site offers 3 choices." in text
    assert "shown 1" in text and "shown 0" not in text and "shown 2" not in text


def test_the_calculator_is_a_sentence():
    assert "#instead[The calculators are on the site" in typst_of(
        '<div id="calculator"><p>JavaScript</p></div>'
    )


def test_folded_source_is_left_out_and_code_and_output_stay():
    cell = '<div class="cell {tags}">{input}<div class="cell_output"><div class="output text_plain highlight-myst-ansi"><div class="highlight"><pre>3\n</pre></div></div></div></div>'
    source = '<div class="cell_input"><div class="highlight-ipython3"><div class="highlight"><pre><span class="n">a</span> &lt; "b"\n</pre></div></div></div>'
    fold = f'<details class="hide above-input"><summary><p>Show the source</p></summary>{source}</details>'
    assert '#code("a < \\"b\\"", "python")\n\n#output("3")' in typst_of(cell.format(tags="", input=source))
    folded = typst_of(cell.format(tags="tag_hide-input", input=fold))
    assert "#code" not in folded and "Show" not in folded and '#output("3")' in folded


def test_what_the_site_folds_is_printed_in_the_order_of_the_notebook():
    source = '<div class="cell_input"><div class="highlight-ipython3"><div class="highlight"><pre>f()\n</pre></div></div></div>'
    shown = '<div class="cell_output"><div class="output text_plain highlight-myst-ansi"><div class="highlight"><pre>3\n</pre></div></div></div>'
    fold = '<details class="fold {kind}"><summary>The line</summary>{inside}</details>'
    code = '#code("f()", "python")\n\n#output("3")'
    below = f'<div class="cell">{shown}{fold.format(kind="code", inside=source)}</div>'
    within = f'<div class="cell">{fold.format(kind="source", inside=source + shown)}</div>'
    rest = fold.format(kind="rest", inside=f"<p>A sentence.</p>{below}")
    for each in (below, within, rest):
        assert code in typst_of(each) and "The line" not in typst_of(each)
    assert "A sentence." in typst_of(rest)


def test_solutions_stand_at_the_end_under_their_numbers():
    def exercise(number):
        return (
            f'<div class="exercise admonition" id="ex-{number}"><p class="admonition-title"><span class="caption-number">'
            f"Exercise 7.{number} </span></p><p>Ask {number}.</p></div>"
            f'<div class="solution dropdown admonition" id="so-{number}"><p class="admonition-title">Solution</p>'
            f"<p>Answer {number}.</p></div>"
        )

    text = typst_of(f"<section><h1>T</h1>{exercise(1)}{exercise(2)}<p>The end.</p></section>")
    order = ["Ask 1", "Ask 2", "The end", "[Solutions]", "Solution of Exercise 7.1", "Answer 1", "Answer 2"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert '#aside("part/page#so-1")[solution];' in text and '#aside("part/page#ex-2")[exercise];' in text


def test_numbers_of_chapters_and_equations_are_those_of_the_site():
    text = typst_of(
        '<section id="t"><h1><span class="section-number">7. </span>Title</h1>'
        '<div class="math" id="equation-e"><span class="eqno">(7.1)</span>\\[a = b\\]</div></section>'
    )
    assert '#titled(2, "7", "part/page#t")[Title]' in text
    assert '#displayed[(7.1)][#anchor("part/page#equation-e");$display(<a = b>)$]' in text


# Tables


def table(columns: int, cell: str = "1.5") -> str:
    head = "".join(f"<th>column {at}</th>" for at in range(columns))
    row = f"<th>name</th>{f'<td>{cell}</td>' * (columns - 1)}"
    return (
        f"<table><caption>Rates</caption><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table>"
    )


def test_a_table_has_a_heading_a_caption_and_numbers_on_the_right():
    text = typst_of(table(3))
    assert "[Rates], true)[#table(columns: 3" in text
    assert "table.header([column 0], [column 1], [column 2])" in text
    assert "(left, right, right,)" in text
    assert "(left, left,)" in typst_of(table(2, cell="some words"))


def test_a_table_with_many_columns_is_set_smaller():
    sizes = [
        float(re.search(r"#tabular\(([\d.]+)pt", typst_of(table(n, "12,345,678")))[1]) for n in (3, 9, 12)
    ]
    assert sizes[0] == tables.SIZES[0] > sizes[1] > sizes[2]
    assert "2,048\u00a0×\u00a01,024" in typst_of(table(2, "2,048 × 1,024"))


# Formulas


def test_a_size_that_is_given_by_hand_becomes_one_that_typst_finds():
    assert prepared(r"a \Big( \sum_{ij} b \Big) c") == r"a \left( \sum_{ij} b \right) c"
    assert (
        prepared(r"\big\langle x, \Big[ y \Big] \big\rangle")
        == r"\left\langle x, \left[ y \right] \right\rangle"
    )
    assert prepared(r"\frac{\Big( a}{b} \Big)").replace(" ", "") == r"\frac{(a}{b})"
    assert prepared(r"\bigodot x") == r"\bigodot x"


def test_what_only_a_browser_understands_is_dropped():
    assert plain(r"\(\class{derivation-come}{a} + b\)") == "{a} + b"
    assert plain("\\[\na\n\\]") == "a"


def test_names_of_an_older_typst_are_replaced():
    assert mended('a dot.circle b dot.circle.big "tr" upright("if") my.dot.circle') == (
        'a dot.o b dot.o.big op("tr") upright("if") my.dot.circle'
    )


# The index


def test_the_index_has_operations_methods_terms_and_short_titles():
    index = Index(["softmax"], ["complex step", "finite differences"])
    cell = (
        '<div class="cell"><details class="hide"><summary></summary><div class="cell_input">derive(r"", operation="softmax")'
        '</div></details><div class="cell_output"><div class="derivation"><div class="derivation-lines"></div></div></div></div>'
    )
    text = typst_of(
        '<section id="s"><h1>T</h1><section id="a"><h2>The Jacobian</h2></section>'
        '<section id="b"><h2>What is saved</h2></section>'
        "<p>A <em>cotangent</em> is <em>always</em> here. A <em>cotangent</em> again.</p>"
        f"<p><code>softmax</code> by the complex step, a complex step.</p>{cell}</section>",
        index=index,
    )
    entries = {entry.term: entry for entry in index.sorted()}
    assert set(entries) == {"softmax", "complex step", "cotangent", "Jacobian", "T"}
    assert len(entries["cotangent"].places) == len(entries["complex step"].places) == 1
    assert len(entries["softmax"].main) == len(entries["softmax"].places) == 1 and entries["softmax"].is_code
    for entry in entries.values():
        for name in (*entry.main, *entry.places):
            assert f'#anchor("{name}");' in text or f'"{name}")[' in text


# The command


def test_the_site_is_offered_the_pdf_once(tmp_path):
    path = tmp_path / f"{backpass_pdf.OFFERED_ON}.html"
    path.parent.mkdir(parents=True)
    path.write_text(
        '<h1>Side</h1><p>bar</p><article class="bd-article">\n<h1>T</h1>\n<p>One.</p><p>Two.</p></article>'
    )
    for pages in (500, 600):
        offer(tmp_path, pages, 8.4)
    text = path.read_text()
    assert text.count("book-as-pdf") == 1 and "(600 pages, 8 MB)" in text
    assert '<p>One.</p>\n<p id="book-as-pdf"><a href="../../backpass.pdf">' in text


def test_without_its_packages_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pypandoc", None)
    monkeypatch.setattr(sys, "argv", ["backpass_pdf.py"])
    assert backpass_pdf.main() == 1
    assert "make pdf" in capsys.readouterr().err


def test_without_the_site_the_command_says_to_build_it_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pypandoc", SimpleNamespace(get_pandoc_path=lambda: "pandoc"))
    monkeypatch.setitem(sys.modules, "typst", SimpleNamespace())
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: intro\n")
    monkeypatch.setattr(sys, "argv", ["backpass_pdf.py", "--book", str(tmp_path)])
    assert backpass_pdf.main() == 1
    assert "intro: there is no" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["_toc.yml"]


def test_what_the_pdf_needs_is_pinned():
    pins = (BOOK / "constraints.txt").read_text().lower().replace("_", "-")
    for name in ("pypandoc-binary", "typst", "beautifulsoup4", "pyyaml"):
        assert f"\n{name}==" in pins, name


# With pandoc and typst


@pytest.fixture(scope="module")
def pandoc() -> str:
    pytest.importorskip("typst", reason=NEEDED)
    return pytest.importorskip("pypandoc", reason=NEEDED).get_pandoc_path()


@pytest.fixture
def small(tmp_path):
    """A book of one page whose site is written by hand."""

    def write(body: str):
        (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: intro\n")
        (tmp_path / "assets").mkdir(exist_ok=True)
        (tmp_path / "assets" / "logo.svg").write_text((BOOK / "assets" / "logo.svg").read_text())
        site = tmp_path / "_build" / "html"
        site.mkdir(parents=True, exist_ok=True)
        (site / "intro.html").write_text(
            f'<article class="bd-article"><section id="t"><h1>T</h1>{body}</section></article>'
        )
        folder = tmp_path / "typst"
        folder.mkdir()
        return folder

    return write


def test_a_formula_that_pandoc_cannot_convert_is_named_with_its_chapter(small, tmp_path, pandoc):
    folder = small(r'<p><span class="math">\(\nosuchcommand{x}\)</span></p>')
    with pytest.raises(PaperError, match=r"(?s)nosuchcommand.*intro: .nosuchcommand"):
        write_sources(tmp_path, folder, pandoc, lambda words: None)


def test_a_formula_that_typst_rejects_is_named_with_its_chapter(small, tmp_path, pandoc):
    folder = small(r'<p><span class="math">\(\alpha + \beta\)</span></p>')
    formulas = write_sources(tmp_path, folder, pandoc, lambda words: None)
    path = folder / "intro.typ"
    path.write_text(path.read_text().replace("$alpha + beta$", "$alpha + nothing.such$"))
    formulas["alpha + nothing.such"] = formulas["alpha + beta"]
    with pytest.raises(PaperError, match=r"(?s)intro\.typ.*the formula .alpha \+ .beta, first in intro"):
        backpass_pdf.typeset(folder, formulas)


def pages_between_margins(folder) -> int:
    """How many pages there are, after making sure that each has white margins."""
    import typst
    from PIL import Image

    compiler = typst.Compiler(input=folder / "main.typ", root=folder, ignore_system_fonts=True)
    pages = compiler.compile(format="png", ppi=36)
    for number, png in enumerate(pages, start=1):
        grey = np.asarray(Image.open(io.BytesIO(png)).convert("L"))
        height, width = grey.shape
        edge = round(56 / 595 * width)
        assert grey[:, :edge].min() > 200 and grey[:, -edge:].min() > 200, f"page {number}"
        assert grey[-round(28 / 842 * height) :].min() > 200, f"page {number}"
    return len(pages)


@pytest.mark.parametrize("terms", [4, 7, 20])
def test_what_is_too_wide_for_a_line_stays_between_the_margins(small, tmp_path, pandoc, terms):
    term = r"\sum_j \bar{y}_j \frac{\partial y_j}{\partial x_i}"
    line = (
        '<div class="derivation-line derivation-begins" id="d-{at}"><div class="derivation-left">{left}</div>'
        '<div class="derivation-body"><div class="derivation-right">{right}</div>'
        '<div class="derivation-reason">a reason</div></div><a class="derivation-number">({at})</a></div>'
    )
    right, left = rf"\(\displaystyle {{}} = {' + '.join([term] * terms)}\)", rf"\(\displaystyle {term * 4}\)"
    rows = line.format(at=1, left=r"\(a\)", right=right) + line.format(at=2, left=left, right=r"\(= 0\)")
    code = f'<div class="highlight-python"><div class="highlight"><pre>x = "{"abc_" * 30 * terms}"</pre></div></div>'
    folder = small(
        f'<div class="derivation tex2jax_process"><div class="derivation-lines">{rows}</div></div>'
        f"{code}{table(12, '12,345,678')}"
    )
    formulas = write_sources(tmp_path, folder, pandoc, lambda words: None)
    backpass_pdf.typeset(folder, formulas)
    assert pages_between_margins(folder) > 3


def test_a_warning_of_typst_is_an_error(small, tmp_path, pandoc):
    folder = small("<p>a</p>")
    formulas = write_sources(tmp_path, folder, pandoc, lambda words: None)
    main = folder / "main.typ"
    main.write_text(main.read_text() + '\n#text(font: "No such font")[a]\n')
    with pytest.raises(PaperError, match="unknown font family"):
        backpass_pdf.typeset(folder, formulas)


@pytest.fixture(scope="module")
def sources(site, pandoc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("typst")
    return SimpleNamespace(
        folder=folder, formulas=write_sources(BOOK, folder, pandoc, lambda words: None), site=site
    )


def test_every_displayed_formula_and_line_of_the_site_is_displayed_on_paper(sources):
    for name in chapters(BOOK):
        found = page(sources.site, name)
        text = STRINGS.sub("", (sources.folder / f"{name}.typ").read_text())
        assert text.count("#displayed[") == len(found.select("div.math")), name
        assert text.count("(left: [") == len(found.select(".derivation-line")), name
        assert text.count("#drawn(") == len(found.select("figure")), name
        assert text.count("#claim[") == len(found.select(".claim")), name


def test_every_displayed_formula_of_the_notebooks_is_in_the_pdf(sources):
    known = {" ".join(latex.partition(", first in ")[0].split()) for latex in sources.formulas.values()}
    notebooks = sorted((BOOK / "_build" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) > 40
    for path in notebooks:
        for cell in json.loads(path.read_text())["cells"]:
            texts = ["".join(cell["source"])] if cell["cell_type"] == "markdown" else []
            for output in cell.get("outputs", ()):
                texts += ["".join(output.get("data", {}).get("text/markdown", ""))]
            for latex in re.findall(r"\$\$(.+?)\$\$", "\n".join(texts), re.DOTALL):
                latex = re.sub(r"\\tag\{[^}]*\}", "", latex).replace(r"\displaystyle", "")
                assert " ".join(plain(latex).split()) in known, (path.name, latex)


def test_no_latex_and_no_myst_is_left_in_the_text(sources):
    for name in chapters(BOOK):
        text = STRINGS.sub('""', (sources.folder / f"{name}.typ").read_text())
        assert re.findall(r"\\[A-Za-z]", text) == [], name
        assert re.findall(r"\{[a-z:]+\}`|^:::|\$\$", text, re.MULTILINE) == [], name
        assert "\x00" not in text, name


def test_every_character_is_in_the_fonts(sources):
    import typst

    characters = {
        letter
        for name in chapters(BOOK)
        for letter in (sources.folder / f"{name}.typ").read_text()
        if letter > "~" and letter not in "\u00a0\u200b\u2061"
    }
    assert "✓" in characters and "ȳ" in characters
    missing = "\u0378"  # no letter
    forms = ("{}", "*{}*", '#raw("{}")', '$"{}"$')
    shown = "\n#pagebreak()\n".join(
        form.format(letter) for form in forms for letter in (missing, *sorted(characters))
    )
    (sources.folder / "letters.typ").write_text(
        '#import "/book.typ": *\n#show: book\n#set page(width: 50pt, height: 50pt, margin: 2pt, header: none, footer: none)\n'
        + shown
    )
    compiler = typst.Compiler(
        input=sources.folder / "letters.typ", root=sources.folder, ignore_system_fonts=True
    )
    drawn = [tuple(re.findall(rb' d="([^"]*)"', each)) for each in compiler.compile(format="svg")]
    size = len(characters) + 1
    assert len(drawn) == size * len(forms)
    for at, form in enumerate(forms):
        nothing, *each = drawn[at * size : (at + 1) * size]
        lost = [
            letter
            for letter, shape in zip(sorted(characters), each, strict=True)
            if not shape or shape == nothing
        ]
        assert lost == [], form


def test_the_book_is_set_without_a_warning_and_nothing_runs_into_the_margins(sources):
    pdf = backpass_pdf.typeset(sources.folder, sources.formulas)
    assert pdf.startswith(b"%PDF") and backpass_pdf.pages_in(pdf) > 400

    assert pages_between_margins(sources.folder) == backpass_pdf.pages_in(pdf)


def test_the_page_that_offers_the_pdf_has_a_place_for_it(site):
    text = (site / f"{backpass_pdf.OFFERED_ON}.html").read_text()
    assert FIRST_PARAGRAPH.search(text)
    assert html.escape(backpass_pdf.NAME) not in text or (site / backpass_pdf.NAME).exists()


def test_parts_need_no_titles_and_may_have_sections(tmp_path):
    (tmp_path / "_toc.yml").write_text(
        "root: intro\nchapters:\n  - file: a\n    sections:\n      - file: b\nparts:\n  - caption: C\n    chapters:\n      - file: d\n"
    )
    assert parts(tmp_path) == [Part("", ("intro", "a", "b")), Part("C", ("d",))]
