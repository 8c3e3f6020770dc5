"""What a planner asks comes first among the calculators, and stays in view: what fits, how long it takes, what it costs."""

from __future__ import annotations

import math

import pytest

from backpass import cost
from backpass.cost.duration import MACHINES

from .conftest import WIDE
from .test_calculator import PAGE, PHONE

PLAN = "[...document.querySelectorAll('#calculator-plan p')].map(line => line.innerText)"


@pytest.fixture
def page(visit, site):
    visit.open(f"file://{site}/{PAGE}")
    yield visit.page
    assert visit.complaints == []


def digits(number: float) -> str:
    """A number as the page shows it, with four digits."""
    places = 3 - math.floor(math.log10(number))
    return f"{round(number, places):,.{max(0, places)}f}"


def both(number: float, unit: str = "") -> str:
    return f"{digits(number)}{unit} at best, {digits(1.5 * number)}{unit} as runs reach"


def test_the_page_opens_with_the_plan_of_one_gpu(page):
    step = cost.duration("llama-3-8b", 1, 8192, "h100", dtype="bfloat16", flash=True)
    budget = cost.memory_budget("llama-3-8b", 1, 8192, dtype="bfloat16", flash=True, chunked=False)
    assert MACHINES["h100"].capacity == 80 * 2**30 < budget.bytes
    assert page.evaluate(PLAN) == [
        f"✗ Does not fit: {digits(budget.bytes / 2**30)} of 80.00 GiB on one GPU",
        f"A step: {both(step.seconds, ' s')}",
        f"GPU-hours of 10⁹ tokens: {both(1e9 / 8192 * step.seconds / 3600)}",
    ]


def test_the_plan_is_of_the_mesh_the_run_and_the_price(page):
    mesh = cost.Mesh(data=4, tensor=8, pipeline=2)
    step = cost.mesh_step("llama-3-70b", mesh, "h100", 64, 8192)
    held = cost.mesh_memory("llama-3-70b", mesh, 64, 8192)
    page.select_option("#A-preset", "llama-3-70b")
    fields = {
        "A-b": 64,
        "A-s": 8192,
        "mesh-data": 4,
        "mesh-tensor": 8,
        "mesh-pipeline": 2,
        "run-tokens": "1T",
    }
    for name, value in (fields | {"run-hourPrice": "2.5"}).items():
        page.fill(f"#{name}", str(value))
    hours = math.ceil(1e12 / (64 * 8192)) * step.seconds * 64 / 3600
    assert page.evaluate(PLAN) == [
        f"✓ Fits: {digits(held.bytes / 2**30)} of 80.00 GiB on the fullest of 64 GPUs",
        f"A step: {both(step.seconds, ' s')}",
        f"Price of the run: {both(2.5 * hours)}",
    ]


def test_the_memory_of_a_gpu_is_typed_and_kept_in_the_address(page):
    page.fill("#plan-capacity", "192")
    assert page.evaluate(PLAN)[0].startswith("✓ Fits: 157.7 of 192.0 GiB")
    page.wait_for_url(lambda url: "capacity=192" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.evaluate(PLAN)[0].startswith("✓ Fits: 157.7 of 192.0 GiB")
    page.fill("#plan-capacity", "none")
    assert page.evaluate(PLAN)[0].startswith("Memory: 157.7 GiB on one GPU")
    assert page.get_attribute("#plan-capacity", "aria-invalid") == "true"
    page.select_option("#time-machine", "a100")
    assert page.input_value("#plan-capacity") == "80"


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_the_plan_stays_in_view(page, size):
    page.set_viewport_size(size)
    for place in ("#calculator-time", "#calculator-mesh"):
        page.evaluate(
            f"document.querySelector('{place}').scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        box = page.locator("#calculator-plan").bounding_box()
        assert 0 <= box["y"] and box["y"] + box["height"] < size["height"] / 3


def test_the_convention_is_under_advanced(page, site):
    assert not page.is_visible("#convention")
    order = page.evaluate("[...document.querySelectorAll('#calculator :is(input, select)')].map(e => e.id)")
    assert order.index("A-preset") == 0 and order.index("time-machine") < order.index("convention")
    page.goto("about:blank")
    page.goto(f"file://{site}/{PAGE}#convention=counted")
    assert page.is_visible("#convention")
