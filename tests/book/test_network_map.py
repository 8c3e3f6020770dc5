"""The map of the network: one station lit, links to pages that exist, a text for who cannot see it."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from backpass import ops
from backpass.book.network_map import ATTENTION, FEED_FORWARD, NETWORKS, STATIONS, NetworkMap, page_of

ROOT = Path(__file__).parents[2]
PAGES = {stem: page_of(stem) for stem in ops.STEMS}
PLACES = {stem: ops.load(stem).PLACES for stem in ops.STEMS if hasattr(ops.load(stem), "PLACES")}


def test_it_is_a_drawing_with_a_text():
    svg = ElementTree.fromstring(NetworkMap("softmax").svg())
    assert svg.get("role") == "group"  # it holds links, which an "img" would hide
    assert svg.get("aria-label").endswith("Lit: weights")
    assert len(svg.findall(".//rect")) == len(STATIONS) + 2  # and the two frames


def test_the_present_station_is_lit_and_no_link():
    svg = NetworkMap("softmax").svg()
    assert svg.count('class="here"') == 1
    assert "operations/softmax.html" not in svg


def test_without_a_station_nothing_is_lit():
    assert 'class="here"' not in NetworkMap().svg()


def test_links_lead_to_chapters_from_where_the_page_is():
    links = re.findall(r'href="([^"]+)"', NetworkMap("softmax", root="../..").svg())
    assert links
    assert all(link.startswith("../../chapters/") for link in links)


# Stand-ins for attention that no model of the map has: they light its places, and other pages lead to them.
STAND_INS = {f"chapters/attention/{page}.html" for page in ("multilinear", "linear_time")}

# What goes on between machines has no place in a network.
BETWEEN_MACHINES = {page for page in PAGES.values() if page.startswith("chapters/parallel/")}


def test_every_page_of_an_operation_can_be_reached():
    assert {station.page for station in STATIONS} == set(PAGES.values()) - STAND_INS - BETWEEN_MACHINES


def test_every_page_of_an_operation_lights_a_place():
    assert {PAGES[stem] for stem in PLACES} == set(PAGES.values()) - BETWEEN_MACHINES


@pytest.mark.parametrize("stem", PLACES)
def test_the_places_of_an_operation_are_on_the_map(stem):
    assert PLACES[stem]
    assert {*PLACES[stem]} <= {station.label for station in STATIONS}


def test_a_station_leads_to_an_operation_that_lights_it():
    for station in STATIONS:
        assert station.label in PLACES[station.stem]


@pytest.mark.parametrize(
    ("label", "pages"),
    [
        ("rotate q, k", ["rope"]),
        ("add to stream", ["residual_stream", "residual_stream"]),
        ("up projection", ["feed_forward"]),
        ("normalise", ["layer_norm", "layer_norm", "rms_norm"]),
        ("logits", ["output_head"]),
        ("loss", ["cross_entropy"]),
    ],
)
def test_a_station_leads_to_the_page_about_its_place(label, pages):
    found = [station.page for station in STATIONS if station.label == label]
    assert found == [f"chapters/operations/{page}.html" for page in pages]


@pytest.mark.parametrize("page", sorted(set(PAGES.values())))
def test_every_page_exists(page):
    assert (ROOT / page).with_suffix(".md").exists()


def test_a_page_shows_the_strip_around_its_operation():
    strip = NetworkMap("softmax", root="../..")._repr_html_()
    text = " ".join(re.sub(r"<[^>]+>", " ", strip).split())
    assert text == "scale by 1/√d → ● weights (softmax) → weighted values The whole map"
    links = re.findall(r'href="([^"]+)"', strip)
    expected = [PAGES["scale"], PAGES["flash_attention"], "intro.html#the-map"]
    assert links == [f"../../{page}" for page in expected]
    assert "<svg" in NetworkMap()._repr_html_()


def test_a_strip_has_each_place_once_and_neighbouring_places_together():
    assert NetworkMap("attention").strip().count("●") == 1
    assert "scores → scale by 1/√d → weights → weighted values" in NetworkMap("attention").strip()
    assert NetworkMap("linear").strip().count("●") == 5
    assert "→" not in NetworkMap("cross_entropy").strip().partition("●")[2]


def test_skip_connections_pass_each_half_of_a_layer():
    ends = [(half[0].label, half[-1].label) for half in (ATTENTION, FEED_FORWARD)]
    assert ends == [("normalise", "add to stream")] * 2
    assert NetworkMap().svg().count(">× L<") == 2


def test_the_map_leads_to_every_page_about_networks():
    contents = (ROOT / "_toc.yml").read_text()
    listed = re.findall(r"file: (chapters/networks/\w+)", contents)
    pages = [f"{page}.html" for page in listed]
    assert pages and [*NETWORKS.values()] == pages
    for title, page in NETWORKS.items():
        assert f"\n# {title}\n" in (ROOT / page).with_suffix(".md").read_text()
    below = NetworkMap(root="up")._repr_html_().partition("</svg>")[2]
    assert re.findall(r'href="up/([^"]+)"', below) == pages


def test_the_frames_of_a_layer_lead_to_the_whole_network():
    links = re.findall(r'href="([^"]+)"[^>]*><text[^>]*>× L</text>', NetworkMap(root="up").svg())
    assert links == ["up/chapters/networks/whole_network.html"] * 2


def test_an_unknown_station_is_rejected():
    with pytest.raises(ValueError, match=r"here: expected one of .*softmax.*; got 'sofmax'"):
        NetworkMap("sofmax")


def test_every_stem_with_a_page_lights_a_station_or_says_that_it_lights_none():
    for stem in PAGES:
        svg = NetworkMap(stem).svg()
        assert ('class="here"' in svg) == (" Lit: " in svg)
    assert 'class="here"' in NetworkMap("fork").svg()
