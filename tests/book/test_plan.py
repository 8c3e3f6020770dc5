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


def step_line(seconds: float, peaks: str = "the H100's published peaks") -> str:
    return f"A step: {digits(seconds)} s at best ({peaks}), {digits(1.5 * seconds)} s as runs reach"


def test_the_page_opens_with_the_plan_of_one_gpu(page):
    step = cost.duration("llama-3-8b", 1, 8192, "h100", dtype="bfloat16", flash=True)
    budget = cost.memory_budget("llama-3-8b", 1, 8192, dtype="bfloat16", flash=True, chunked=False)
    hours = 1e9 / 8192 * step.seconds / 3600
    assert MACHINES["h100"].capacity == 80 * 2**30 < budget.bytes
    assert page.evaluate(PLAN) == [
        f"✗ Does not fit: {digits(budget.bytes / 2**30)} of 80.00 GiB on one GPU (set data for more)",
        step_line(step.seconds),
        f"10⁹ tokens on one GPU: {digits(hours)} GPU-hours at best; {digits(1.5 * hours)} GPU-hours as runs reach",
    ]
    page.click("#calculator-plan a")
    assert page.evaluate("document.activeElement.id") == "mesh-data"


def test_the_plan_and_the_whole_run_have_one_price(page):
    """That of the mesh, whose MFU and ranks the button takes."""
    mesh = cost.Mesh(data=4, tensor=8, pipeline=2)
    step = cost.mesh_step("llama-3-70b", mesh, "h100", 64, 8192)
    held = cost.mesh_memory("llama-3-70b", mesh, 64, 8192)
    page.select_option("#A-preset", "llama-3-70b")
    fields = {"A-b": 64, "mesh-data": 4, "mesh-tensor": 8, "mesh-pipeline": 2, "run-tokens": "1T"}
    for name, value in (fields | {"run-hourPrice": "2.5"}).items():
        page.fill(f"#{name}", str(value))
    days = math.ceil(1e12 / (64 * 8192)) * step.seconds / 86400

    def costs(times: float) -> str:
        hours = 64 * 24 * days * times
        return f"{digits(days * times)} days, {digits(hours)} GPU-hours, price {digits(2.5 * hours)}"

    assert page.evaluate(PLAN) == [
        f"✓ Fits: {digits(held.bytes / 2**30)} of 80.00 GiB on the fullest of 64 GPUs",
        step_line(step.seconds),
        f"1T tokens on 64 GPUs: {costs(1)} at best; {costs(1.5)} as runs reach",
    ]
    page.click("text=Use this MFU under products-whole for the whole run")
    assert page.input_value("#run-devices") == "64"
    assert float(page.input_value("#run-mfu")) == pytest.approx(100 * step.mfu(), rel=1e-5)
    rows = page.locator("#calculator-run tbody tr")
    for name, number in (("days on these GPUs", days), ("price of the GPU-hours", 2.5 * 64 * 24 * days)):
        text = rows.filter(has_text=name).locator("td").text_content()
        assert float(text.replace(",", "")) == pytest.approx(number, rel=1e-3)


def test_the_plan_repeats_why_a_mesh_is_rejected(page):
    page.fill("#mesh-data", "8")
    first, second, *_ = page.evaluate(PLAN)
    fault = "data: expected b to be a multiple of data × micro-batch = 8; got 1"
    assert first == f"Not on this mesh: {fault}. The plan is of one GPU."
    assert second.startswith("✗ Does not fit: 157.7 of 80.00 GiB on one GPU")
    assert page.text_content("#mesh-faults") == fault


def test_frozen_layers_save_nothing(page):
    """A plan that fits is said to fit."""
    page.fill("#plan-capacity", "24")
    for name in ("recompute", "chunked", "frozen"):
        page.check(f"#A-{name}")
    page.fill("#A-L_f", "31")
    page.select_option("#memory-master", "none")
    page.select_option("#memory-moments", "bfloat16")
    # tests/cost proves the formulas of the page equal to the package.
    assert page.evaluate(PLAN)[0].startswith("✓ Fits: 22.32 of 24.00 GiB on one GPU")


def test_own_rates_are_named_as_such(page):
    page.fill("#time-call", "5")
    assert "s at best (the rates below), " in page.evaluate(PLAN)[1]


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
