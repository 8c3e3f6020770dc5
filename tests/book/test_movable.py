"""Figures that a reader moves: their formulas in JavaScript are the package's, and hand and keyboard move them."""

from __future__ import annotations

import importlib
import pkgutil
import re

import numpy as np
import pytest

from backpass.figures import movable
from backpass.figures.movable import Movable, Number, fill

from .conftest import BOOK

FIGURES = [
    importlib.import_module(f"backpass.figures.movable.{module.name}").FIGURE
    for module in pkgutil.iter_modules(movable.__path__)
    if module.name not in ("marks", "movable")
]
SCRIPT = (BOOK / "_static" / "figures.js").read_text()
SETTINGS = 200

# What a reader sees and hears of a figure: each attribute and text that the script changes.
SHOWN = """() => [...document.querySelectorAll('.backpass-movable svg, .backpass-movable svg *')].flatMap(
  e => [...e.attributes].filter(a => a.name.startsWith('data-set-') && a.name !== 'data-set-aria-valuetext').map(
    ({name}) => name === 'data-set-text' ? e.textContent : e.getAttribute(name.slice(9))
  )
)"""


@pytest.fixture(scope="module")
def page(browser):
    """A page with every figure, as the script leaves it when it opens; ``before`` is what was shown until then."""
    page = browser.new_context(viewport={"width": 360, "height": 800}).new_page()
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.set_content("".join(figure.to_html("A caption.") for figure in FIGURES))
    page.before = page.evaluate(SHOWN)
    page.add_script_tag(content=SCRIPT)
    page.evaluate("document.dispatchEvent(new Event('DOMContentLoaded'))")
    yield page
    assert page.complaints == []
    page.context.close()


def settings(figure: Movable) -> list[dict[str, float]]:
    """Random numbers that the reader may choose, and the bounds."""
    rng = np.random.default_rng(7)

    def drawn(number: Number) -> float:
        steps = round((number.high - number.low) / number.step)
        return number.low + number.step * int(rng.integers(0, steps + 1))

    found = [{number.name: drawn(number) for number in figure.numbers} for _ in range(SETTINGS)]
    bounds = [
        {number.name: float(getattr(number, end)) for number in figure.numbers} for end in ("low", "high")
    ]
    return [figure.first(), *bounds, *found]


def test_formulas_are_the_packages(page):
    """At the numbers that a figure opens with, at their bounds, and at random ones."""
    given = {figure.name: settings(figure) for figure in FIGURES}
    found = page.evaluate(
        "given => Object.entries(given).map(([name, all]) => all.map(backpassFigures[name]))", given
    )
    for figure, theirs in zip(FIGURES, found, strict=True):
        ours = [figure.values(numbers) for numbers in given[figure.name]]
        assert all(one.keys() == other.keys() for one, other in zip(ours, theirs, strict=True))
        for name in ours[0]:
            one, other = (np.array([values[name] for values in each]) for each in (ours, theirs))
            if one.dtype.kind == "U":
                np.testing.assert_array_equal(other, one, f"{figure.name}: {name}")
            else:
                np.testing.assert_allclose(
                    other, one, rtol=1e-9, atol=1e-12, err_msg=f"{figure.name}: {name}"
                )


def test_the_script_shows_the_first_frame_as_it_was_drawn(page):
    number = re.compile(r"-?\d+\.?\d*")
    after = page.evaluate(SHOWN)
    assert len(page.before) == len(after) > 20 * len(FIGURES)
    for ours, theirs in zip(page.before, after, strict=True):
        assert number.sub("#", ours) == number.sub("#", theirs)
        near = [float(each) for each in number.findall(ours)]
        np.testing.assert_allclose([float(each) for each in number.findall(theirs)], near, atol=0.0101)


@pytest.mark.parametrize("name", ["softmax", "chain_rule"])
def test_hand_and_keyboard_move_it(page, name):
    """A handle follows the pointer, answers to the arrow keys, stays within its bounds, and agrees with its box."""
    (figure,) = (figure for figure in FIGURES if figure.name == name)
    here = page.locator(f"figure[data-figure={figure.name}]")
    numbers = {number.name: number for number in figure.numbers}

    def value(name: str) -> float:
        return float(here.locator(f"input[name={name}]").input_value())

    assert here.locator(".handle").count() >= 1
    handle = here.locator(".handle").last
    way = "across" if handle.get_attribute("data-across") else "up"
    name, pixels = handle.get_attribute(f"data-{way}").split()
    number = numbers[name]
    ahead = 1 if number.high - number.value >= number.value - number.low else -1  # where there is more room
    keys = {"across": ("ArrowLeft", "ArrowRight"), "up": ("ArrowDown", "ArrowUp")}[way][::ahead]
    room = round((number.high - number.value if ahead > 0 else number.value - number.low) / number.step)

    handle.focus()
    before = page.evaluate(SHOWN)
    page.keyboard.press(keys[1])
    assert value(name) == pytest.approx(number.value + ahead * number.step)
    assert page.evaluate(SHOWN) != before
    assert float(handle.get_attribute("aria-valuenow")) == value(name)
    said = figure.first() | {name: value(name)}
    template = handle.get_attribute("data-set-aria-valuetext")
    assert handle.get_attribute("aria-valuetext") == fill(template, said | figure.values(said))
    page.keyboard.press(f"Shift+{keys[1]}")
    assert value(name) == pytest.approx(number.value + ahead * number.step * min(11, room))
    for key, end in (("End", number.high), ("Home", number.low)):
        page.keyboard.press(key)
        assert value(name) == end

    here.get_by_role("button", name="Reset").click()
    assert {name: value(name) for name in numbers} == pytest.approx(figure.first())

    box = handle.locator("circle").nth(1).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    scale = here.locator("svg").bounding_box()["width"] / figure.size[0]
    steps = ahead * min(room, max(1, int(30 / number.step / float(pixels))))
    along = steps * number.step * float(pixels) * scale
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(*((x + along, y) if way == "across" else (x, y - along)))
    page.mouse.up()
    page.mouse.move(x, y)  # released, it stays
    assert value(name) == pytest.approx(number.value + steps * number.step, abs=1.01 * number.step)

    typed = here.locator(f"input[name={name}]")
    typed.fill(f"{number.low:g}")
    assert value(name) == number.low and float(handle.get_attribute("aria-valuenow")) == number.low
    typed.fill("")
    assert float(handle.get_attribute("aria-valuenow")) == number.low
    here.get_by_role("button", name="Reset").click()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_without_the_script_it_is_a_picture(figure):
    """It has one description, no control that would do nothing, and no hole that is not filled; and each handle changes
    a number of the figure."""
    shown = figure.to_html("A caption.")
    picture = re.sub(r' data-set-[\w-]+="[^"]*"', "", shown[: shown.index("<form")])
    assert picture.count('role="img"') == 1 and "tabindex" not in picture
    assert "[" not in picture and "nan" not in picture
    assert '<form class="movable-numbers"' in shown and shown.count(" hidden>") == 1
    assert len(figure.script()) < 2_000
    moved = set(re.findall(r'data-(?:across|up)="(\w+) ', shown))
    assert moved and moved <= {number.name for number in figure.numbers}
    assert all(number.low <= number.value <= number.high for number in figure.numbers)


def test_the_script_is_small_and_has_one_name():
    assert len(SCRIPT.encode()) <= 8_000
    assert set(re.findall(r"\b(?:self|window|globalThis)\.(\w+)", SCRIPT)) == {"backpassFigures"}


def test_holes_are_filled_with_sums_of_products():
    values = {"a": 2.0, "b": [1.0, -3.0], "name": "lost"}
    assert fill("[a*b.1*10+100] [a] [b.1:1] [b.0*-0.001:2] [name]", values) == "40 2 −3.0 0.00 lost"
    with pytest.raises(KeyError):
        fill("[c]", values)
