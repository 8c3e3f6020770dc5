"""A page says where it is, and its table of contents shows the pages of its part."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from backpass_navigation import find_places, folded, places, say_where
from build import chapters

from .conftest import BOOK

PLACES = dict(places(BOOK))
CONTENTS = """<p class="caption" role="heading"><span class="caption-text">One &amp; two</span></p>
<ul class="nav"><li><a href="a.html">A</a></li></ul>
<p class="caption" role="heading"><span class="caption-text">Three</span></p>
<ul class="current nav"><li class="current"><a href="#">B</a></li></ul>"""


def test_every_page_but_the_first_has_a_place():
    assert [*PLACES] == chapters(BOOK)[1:]
    place = PLACES["chapters/operations/softmax"]
    assert place[:2] == ("Operations", "chapters/operations/linear")
    assert re.fullmatch(r"\d+ minutes · needs: the chain rule", place.reading)
    assert "[" not in "".join(place.reading for place in PLACES.values())  # no Markdown


def test_a_part_folds_unless_it_has_the_page():
    closed, opened = re.findall(r"<details.*?</details>", folded(CONTENTS), re.DOTALL)
    assert (
        "<summary>One &amp; two</summary>" in closed and 'href="a.html"' in closed and " open" not in closed
    )
    assert "<summary>Three</summary>" in opened and '<details class="bp-part" open' in opened
    assert "caption" not in folded(CONTENTS)


def body(name: str, before: dict) -> str:
    context = {"body": "<h1>Title</h1><p>Text.</p>", "pathto": "../{}.html".format}
    say_where(SimpleNamespace(env=SimpleNamespace(places=before)), name, "", context, None)
    return context["body"]


def test_the_line_below_the_title_links_to_the_parts_first_page():
    assert (
        '</h1>\n<p class="bp-where"><a href="../chapters/operations/linear.html">Operations</a>, page '
        in body("chapters/operations/softmax", PLACES)
    )
    assert '</h1>\n<p class="bp-where">Operations, page 1 of ' in body("chapters/operations/linear", PLACES)
    assert body("intro", PLACES) == "<h1>Title</h1><p>Text.</p>"


def test_a_page_is_written_again_if_its_place_has_changed(tmp_path):
    (tmp_path / "_toc.yml").write_text(
        "root: intro\nparts:\n- caption: One\n  chapters:\n  - file: a\n  - file: b\n"
    )
    env = SimpleNamespace(found_docs={"intro", "a", "b"})
    app = SimpleNamespace(srcdir=tmp_path)
    assert sorted(find_places(app, env)) == ["a", "b"]
    assert find_places(app, env) == []
    (tmp_path / "_toc.yml").write_text("root: intro\nparts:\n- caption: One\n  chapters:\n  - file: a\n")
    assert sorted(find_places(app, env)) == ["a", "b"]


@pytest.mark.parametrize("name", chapters(BOOK))
def test_a_page_of_the_site_opens_its_part_alone(site, name):
    text = Path(site / f"{name}.html").read_text()
    opened = re.findall(r'<details class="bp-part" open="">\s*<summary>(.*?)</summary>', text)
    said = re.findall(r'<p class="bp-where">(?:<a [^>]*>)?(.*?)(?:</a>)?, page \d', text)
    part = [PLACES[name].part] if name in PLACES else []
    assert [*map(unescape, opened)] == [*map(unescape, said)] == part
