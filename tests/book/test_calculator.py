"""The page of calculators, in Chromium: its text is Python's numbers, by hand and from the address, and impossible
settings are rejected."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction
from urllib.parse import urlencode

import pytest

import proofs
from backpass import cost
from backpass.cost import javascript
from backpass.cost.sizes import MODELS
from backpass.cost.tally import CONVENTIONS
from backpass.models import encoder, gpt2, llama, seq2seq

from .conftest import SETTLED, WIDE, Visit
from .test_site import found_by_axe, turn

PAGE = "chapters/cost/calculator.html"
RULE = "6n-all: 6·N·tokens, N all parameters"
PHONE = {"width": 360, "height": 800}

# The summary's numbers by row, of setting A or B.
SUMMARY = """column => Object.fromEntries([...document.querySelectorAll('#calculator-summary tbody tr')].map(row =>
  [row.cells[0].textContent, (row.cells[column].querySelector('.calculator-exact') ?? row.cells[column]).textContent]))"""

MEMORY = """[...document.querySelectorAll('#calculator-memory tbody tr')].map(row =>
  [row.cells[0].textContent, row.cells[1].textContent])"""

AT_TIME = """[...document.querySelectorAll('#calculator-time table')[0].tBodies[0].rows].map(
  row => row.cells[1].textContent)"""

# The long tables have many rows that look alike, and axe needs a while for each cell.
FEW_ROWS = """document.querySelectorAll('#calculator :is(#calculator-terms, #calculator-calls) tbody').forEach(
  body => [...body.rows].slice(5).forEach(row => row.remove()))"""

# What the page says of both settings after each of these addresses, and what its script computes.
AT_ADDRESSES = f"""async given => {{
  const summary = {SUMMARY};
  const time = column => [...document.querySelectorAll('#calculator-time table')[0].tBodies[0].rows].map(
    row => row.cells[column].textContent);
  const plain = (key, value) => typeof value === 'bigint' ? String(value) : value;
  const computed = (setting, rates) => {{
    const tally = backpassCalculator.tally(setting);
    const {{spans, seconds}} = backpassCalculator.time(tally, rates);
    return {{csv: backpassCalculator.csv(tally.rows), trained: tally.trained, spans, seconds}};
  }};
  const found = [];
  for (const {{address, settings, rates}} of given) {{
    location.hash = address;
    await new Promise((done, fail) => {{
      addEventListener('hashchange', done, {{once: true}});
      setTimeout(() => fail(`no change of the address to ${{address}}`), 5000);
    }});
    found.push(settings.map((setting, i) => (
      {{summary: summary(i + 1), time: time(i + 1), ...computed(setting, rates)}})));
  }}
  return JSON.stringify(found, plain);
}}"""


@pytest.fixture(scope="module")
def visit(browser, site) -> Visit:
    """A window at the page, from disk."""
    visit = Visit(browser)
    visit.open(f"file://{site}/{PAGE}")
    yield visit
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith((f"file://{site}/", "data:", "blob:"))] == []
    visit.page.context.close()


@pytest.fixture
def page(visit, site):
    visit.page.set_viewport_size(WIDE)
    visit.open("about:blank")  # an address that differs only after # does not load the page again
    visit.open(f"file://{site}/{PAGE}#convention=counted")
    return visit.page


def expected(found, convention, tokens):
    """The summary's numbers as the page writes them."""
    flops, total, model = found.flops(convention), found.total(convention), found.model().total(convention)
    numbers = {**flops, "total": total, "model's FLOPs: nothing computed twice": model}
    numbers |= {"total a token, rounded": (2 * total + tokens) // (2 * tokens)}
    numbers |= {"N, parameters": found.parameters, RULE: 6 * found.parameters * tokens}
    ratio = Fraction(flops["backward"] + flops["recomputation"], flops["forward"])
    ten_thousandths = (2 * ratio.numerator * 10**4 + ratio.denominator) // (2 * ratio.denominator)
    texts = {name: f"{number:,}" for name, number in numbers.items()}
    return texts | {
        "backward and recomputation ÷ forward": f"{ten_thousandths // 10**4}.{ten_thousandths % 10**4:04}"
    }


def drawn(rng):
    """A setting of the page with random sizes and options, its configuration, and the options of Python."""
    heads = rng.choice([1, 3, 8, 25, 64, 128])
    flags = [rng.random() < 0.5 for _ in range(3)]
    feed_forward, vocabulary = rng.randint(1, 60000), rng.randint(2, 260000)
    layers = rng.randint(1, 128)
    longest = 2 ** rng.randint(0, 20)
    setting = {"b": str(rng.randint(1, 5000)), "s": str(rng.choice([longest, rng.randint(1, longest)]))}
    # Python lists the tiles of FlashAttention one by one.
    setting["flash"] = longest <= 2**16 and rng.random() < 0.7
    family = rng.choice(["gpt2", "llama", "llama", "encoder", "seq2seq"])
    width = heads * rng.randint(1, 256)
    if family == "encoder":
        config = encoder.Config(width, layers, heads, feed_forward, norm_first=flags[0], final_norm=flags[1])
        setting["recompute"] = flags[2]
        options = {"flash": setting["flash"], "recompute": 1 if flags[2] else None}
        return setting | javascript.setting(config), config, options
    if family == "seq2seq":
        config = seq2seq.Config(width, layers, rng.randint(1, 128), heads, feed_forward, norm_first=flags[0])
        source = rng.randint(1, longest)
        options = {"flash": setting["flash"], "source": source}
        return setting | javascript.setting(config) | {"t": str(source)}, config, options
    if family == "gpt2":
        config = gpt2.Config(vocabulary, 2**20, width, layers, heads, feed_forward, tied=flags[0])
    else:
        key_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
        d, width = 2 * rng.randint(1, 128), rng.randint(1, 20000)
        sizes = vocabulary, width, layers, heads, key_heads, d, feed_forward
        names = ("tied", "biases", "query_key_norm")
        config = llama.Config(*sizes, **dict(zip(names, flags, strict=True)))
    setting |= javascript.setting(config)
    setting |= {name: rng.random() < 0.5 for name in ("chunked", "recompute", "frozen")}
    options = {name: setting[name] for name in ("flash", "chunked")}
    options["recompute"] = 1 if setting["recompute"] else None
    if setting["frozen"]:
        setting["L_f"] = str(rng.choice([0, config.layers, rng.randint(0, config.layers)]))
        of_layers = {"gpt2": "h.", "llama": "layers."}[setting["family"]]
        fixed = ["wte.", "wpe.", "embed_tokens.", *(f"{of_layers}{i}." for i in range(int(setting["L_f"])))]
        names = MODELS[setting["family"]].parameter_shapes(config)
        options["wanted"] = [name for name in names if not name.startswith(tuple(fixed))]
    return setting, config, options


def rates(rng):
    """The fields of a random machine, and the machine."""
    dtype = rng.choice(["bfloat16", "float16", "float32"])
    texts = {name: f"{10 ** rng.uniform(-2, 3):.4g}" for name in ("products", "elements", "bandwidth")}
    texts["call"] = rng.choice(["0", f"{10 ** rng.uniform(-1, 4):.3g}"])
    products, elements, bandwidth, call = map(float, texts.values())
    machine = cost.Machine("drawn", {dtype: products * 1e12}, elements * 1e12, bandwidth * 1e12, call / 1e6)
    return {"dtype": dtype, **texts}, machine


def test_random_settings_are_pythons(page):
    """The text of both settings; each row of the tally under each convention; and each call's work and time."""
    rng = random.Random(proofs.seed())  # others at each commit
    cases, largest = [], 0
    for _ in range(80):
        settings = [drawn(rng) for _ in range(rng.choice([1, 2]))]
        convention, (texts, machine) = rng.choice([*CONVENTIONS]), rates(rng)
        address = {"convention": convention, **{f"time.{name}": text for name, text in texts.items()}}
        for prefix, (setting, *_) in zip(("", "B."), settings, strict=False):
            given = {name: "1" if value is True else value for name, value in setting.items() if value}
            address |= {prefix + name: value for name, value in given.items()}
        cases.append((convention, texts["dtype"], machine, settings))
        cases[-1] += (
            {"address": urlencode(address), "settings": [each[0] for each in settings], "rates": texts},
        )
    found = json.loads(page.evaluate(AT_ADDRESSES, [each[-1] for each in cases]))
    bounds = set()
    for each, (convention, dtype, machine, settings, given) in zip(found, cases, strict=True):
        for of_page, (setting, config, options) in zip(each, settings, strict=True):
            b, s = int(setting["b"]), int(setting["s"])
            time = cost.duration(config, b, s, machine, dtype=dtype, **options)
            tally = time.tally
            numbers = expected(tally, convention, b * s)
            if not hasattr(config, "vocabulary"):
                del numbers[RULE]  # a rule for networks with a head
            assert {name: of_page["summary"][name] for name in numbers} == numbers, given["address"]
            # The page names the layers by their role; Python names every layer "layer".
            assert (
                re.sub("^(frozen|first trained) layer,", "layer,", of_page["csv"], flags=re.M) == tally.csv()
            )
            for span, by_page in zip(time.spans, of_page["spans"], strict=True):
                about = (
                    by_page["part"].removeprefix("frozen ").removeprefix("first trained "),
                    by_page["call"],
                    by_page["way"],
                )
                assert about == (span.part, span.call, span.way)
                assert tuple(int(by_page[name]) for name in ("repeats", "products", "elements", "bytes")) == (
                    span.repeats,
                    *span.work,
                )
                assert by_page["seconds"] == pytest.approx(span.seconds, rel=1e-12, abs=0)
                assert by_page["bound"] == span.bound
                bounds.add(span.bound)
            assert of_page["seconds"] == pytest.approx(time.seconds, rel=1e-12, abs=0)
            shown = [time.seconds, b * s / time.seconds, 100 * time.mfu(), 100 * time.hfu()]
            if convention != "products-whole":
                peak = time.seconds * machine.product_rate(dtype)
                shown.append(100 * tally.model().total(convention) / peak)
            assert [as_number(text) for text in of_page["time"]] == [float(f"{one:.4g}") for one in shown]
            largest = max(largest, tally.total())
    assert sum(map(len, found)) > 80
    assert largest > 2**70  # far more than the 2**53 up to which a double is exact
    assert bounds == {"products", "elements", "memory", "call"}


def as_number(text):
    """Return the number that the page writes as 1,234, 0.01234 %, or 1.234 × 10⁻⁹."""
    text = text.removesuffix(" %").replace(",", "").replace(" × 10", "e")
    return float(text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))


def test_a_setting_is_typed_kept_in_the_address_and_opened_again(page):
    """With the keyboard only."""
    page.focus("#A-preset")
    page.keyboard.type("qwen3-8b")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.focus("#A-b")
    page.keyboard.press("Control+a")
    page.keyboard.type("3")
    page.keyboard.press("Tab")
    page.keyboard.type("1000")
    assert page.evaluate("document.activeElement.id") == "A-s"
    page.focus("#A-recompute")
    page.keyboard.press("Space")
    numbers = expected(cost.tally("qwen3-8b", 3, 1000, flash=True, recompute=1), "counted", 3000)
    assert numbers.items() <= page.evaluate(SUMMARY, 1).items()
    assert page.locator("#calculator-says").text_content().count("FLOPs a step of 3 × 1,000 tokens") == 1

    page.wait_for_url(lambda url: "recompute=1" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.input_value("#A-preset") == "qwen3-8b"
    assert numbers.items() <= page.evaluate(SUMMARY, 1).items()
    assert page.url == address


def test_an_encoder_with_a_decoder(page):
    page.select_option("#A-family", "seq2seq")
    assert "t: expected an integer of at least 1; got nothing" in page.text_content("#A-faults")
    assert not page.is_visible("#A-chunked") and not page.is_visible("#A-recompute")
    for letter, number in {"s": 100, "t": 300, "h": 512, "n_h": 8, "f": 2048, "L_e": 6, "L_d": 5}.items():
        page.fill(f"#A-{letter}", str(number))
    config = seq2seq.Config(512, 6, 5, 8, 2048)
    total = cost.tally(config, 1, 100, source=300, flash=True).total()
    assert page.evaluate(SUMMARY, 1)["total"] == f"{total:,}"
    saved = cost.activations(config, 1, (300, 100), dtype="bfloat16", chunked=False)
    parameters = 16 * cost.tally(config, 1, 100).parameters  # with gradients, a copy, and moments
    total = page.locator("#calculator-memory tbody tr").last.locator("td")
    assert total.locator(".calculator-exact").text_content() == f"{parameters + saved.bytes:,}"


def test_two_settings_and_their_terms(page, tmp_path):
    page.check("#compare")
    page.select_option("#B-preset", "gpt2-xl")
    page.fill("#B-s", "1000")
    page.uncheck("#B-flash")
    page.select_option("#convention", "products-halved")
    gpt2 = cost.tally("gpt2-xl", 1, 1000)
    assert expected(gpt2, "products-halved", 1000).items() <= page.evaluate(SUMMARY, 2).items()
    llama = cost.tally("llama-3-8b", 1, 8192, flash=True)
    assert expected(llama, "products-halved", 8192).items() <= page.evaluate(SUMMARY, 1).items()
    with page.expect_download() as download:
        page.click("text=Download B's terms as CSV")
    download.value.save_as(tmp_path / "terms.csv")
    assert (tmp_path / "terms.csv").read_text() == gpt2.csv()
    page.click("#calculator-terms > summary")
    row = page.locator("#calculator-terms tr", has_text="query, key, value projection").first
    row.locator("summary").click()
    assert row.locator(".calculator-formula").text_content() == "L × [6·b·h²·s]"
    page.wait_for_url(lambda url: "convention=products-halved" in url and "B.flash" not in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.input_value("#B-preset") == "gpt2-xl"
    assert expected(gpt2, "products-halved", 1000).items() <= page.evaluate(SUMMARY, 2).items()


def test_a_config_is_pasted_or_rejected(page):
    config = {
        "model_type": "qwen2",
        "vocab_size": 1000,
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 200,
    }
    page.click("#calculator-A summary")
    page.fill("#A-config", json.dumps(config))
    page.click("#calculator-A >> text=Read the config")
    found = cost.tally(cost.from_hugging_face(config), 1, 8192, flash=True)
    assert expected(found, "counted", 8192).items() <= page.evaluate(SUMMARY, 1).items()
    page.fill("#A-config", json.dumps(config | {"sliding_window": 4096, "use_sliding_window": True}))
    page.click("#calculator-A >> text=Read the config")
    refusal = page.text_content("#A-read")
    assert "sliding_window: 4096 is not available" in refusal
    assert "use_sliding_window: true is not available" in refusal
    assert refusal.endswith("Still showing the sizes in the fields.")
    assert page.input_value("#A-h") == "96"  # as before
    page.select_option("#A-preset", "gpt2-xl")
    assert page.text_content("#A-read") == ""
    page.click("#calculator-A >> text=Read the config")
    assert page.text_content("#A-read").endswith("Still showing gpt2-xl.")


def test_a_step_on_a_mesh(page):
    page.select_option("#A-preset", "llama-3-70b")
    page.fill("#A-b", "64")
    axes = {"data": "4", "tensor": "8", "pipeline": "2", "chunks": "2"}
    for name, value in axes.items():
        page.fill(f"#mesh-{name}", value)
    mesh = cost.Mesh(**{name: int(value) for name, value in axes.items()})
    step = cost.mesh_step("llama-3-70b", mesh, "h100", 64, 8192)
    held = cost.mesh_memory("llama-3-70b", mesh, 64, 8192)

    def numbers():
        tables = page.locator("#calculator-mesh table")
        rows = page.evaluate(
            "[...document.querySelectorAll('#calculator-mesh table')].map(t => [...t.tBodies[0].rows].map(r => "
            "(r.cells[1].querySelector('.calculator-exact') ?? r.cells[1]).textContent))"
        )
        assert tables.count() == 3
        return rows

    summary, shares, memory = numbers()
    assert summary[0] == "64" and abs(float(summary[1]) / step.seconds - 1) < 1e-3
    assert abs(float(summary[3].split()[0]) / (100 * step.mfu("counted")) - 1) < 1e-3
    expected = [share.seconds for share in step.shares if share.seconds]
    assert [float(x.replace(",", "")) for x in shares] == pytest.approx([1e3 * x for x in expected], rel=1e-3)
    assert memory == [f"{share.bytes:,}" for share in held.shares] + [f"{held.bytes:,}"]

    page.fill("#mesh-tensor", "7")
    assert page.text_content("#mesh-faults").startswith("tensor: expected a divisor of")
    assert page.get_attribute("#mesh-tensor", "aria-invalid") == "true"
    assert page.locator("#calculator-mesh table").count() == 0
    page.fill("#mesh-tensor", "8")
    page.select_option("#time-machine", "a100")
    assert page.input_value("#links-inside") == "300"
    page.wait_for_url(lambda url: "links.inside=300" in url and "mesh.tensor=8" in url)
    address = page.url
    there = numbers()
    page.goto("about:blank")
    page.goto(address)
    assert numbers() == there != [summary, shares, memory]


def test_an_impossible_setting_has_no_result(page):
    page.fill("#A-n_kv", "5")
    assert page.text_content("#A-faults") == "nkv: expected a divisor of nh = 32; got 5"
    assert page.get_attribute("#A-n_kv", "aria-invalid") == "true"
    assert not page.is_visible("#calculator-results")
    page.fill("#A-n_kv", "4")
    assert page.is_visible("#calculator-results")


def test_a_whole_run_and_memory(page):
    assert page.locator("#calculator-run tbody tr").count() == 0
    for name, value in {"tokens": "15e12", "peak": "989.4", "mfu": "38", "hourPrice": "2.5"}.items():
        page.fill(f"#run-{name}", value)
    found = cost.tally("llama-3-8b", 1, 8192, flash=True)
    steps = -(-15 * 10**12 // 8192)
    hours = steps * found.model().total() / (989.4e12 * 0.38) / 3600
    cells = page.locator("#calculator-run tbody td")
    assert cells.nth(0).locator(".calculator-exact").text_content() == f"{steps:,}"
    assert cells.nth(3).text_content() == f"{hours:,.1f}"
    assert cells.nth(4).text_content() == f"{hours * 2.5:,.2f}"
    page.fill("#run-mfu", "140")
    page.fill("#run-power", "much")
    refusal = page.text_content("#run-faults")
    assert "MFU, %: expected a number above 0 and at most 100" in refusal
    assert refusal.endswith("got much")
    assert page.locator("#calculator-run table").count() == 0
    page.select_option("#memory-moments", "bfloat16")
    saved = cost.activations("llama-3-8b", 1, 8192, dtype="bfloat16", chunked=False)
    in_all = found.parameters * (2 + 2 + 4 + 2 * 2) + saved.bytes + saved.constants
    total = page.locator("#calculator-memory tbody tr").last.locator("td")
    assert total.locator(".calculator-exact").text_content() == f"{in_all:,}"
    assert total.locator(".calculator-short").text_content() == f"{in_all / 2**30:,.3f} GiB"
    page.check("#A-recompute")
    lines = dict(page.evaluate(MEMORY))
    layer = saved.by_part()["layers.0"]
    assert lines["saved by one layer, recomputed"] == f"{layer:,}{layer / 2**30:,.3f} GiB"
    assert lines["tables of the rotations"] == f"{saved.constants:,}{saved.constants / 2**20:,.3f} MiB"
    assert "saved by the layers" not in lines


def test_the_time_on_a_machine(page):
    """Published rates, own rates, and the MFU that a whole run takes from them."""
    times = "[...document.querySelectorAll('#calculator-time table')[1].tBodies[0].rows].map(r => r.cells[2].textContent)"
    page.select_option("#time-machine", "a100")
    page.select_option("#time-dtype", "float32")
    assert page.input_value("#time-products") == "19.5"
    page.check("#A-recompute")
    found = cost.duration("llama-3-8b", 1, 8192, "a100", flash=True, recompute=1)
    of_ways = found.by(lambda span: span.way)
    ways = ("forward", "backward", "recomputation", "update")
    seconds = [*(of_ways[way] for way in ways), found.seconds]
    assert [*map(as_number, page.evaluate(times))] == [float(f"{1e3 * each:.4g}") for each in seconds]

    page.click("#calculator-calls > summary")
    row = page.locator("#calculator-calls tbody tr", has_text="32 × layer: gate projection").first
    (span,) = (one for one in found.spans if (one.call, one.way) == ("gate projection", "forward"))
    assert as_number(row.locator("td").first.text_content()) == float(f"{1e3 * span.total:.4g}")
    assert row.locator(".calculator-short").text_content() == f"forward, bound by {span.bound}"

    page.fill("#time-bandwidth", "fast")
    refusal = page.text_content("#time-faults")
    assert refusal == "memory, TB/s: expected a number above 0, such as 40 or 1.5e3; got fast"
    assert page.get_attribute("#time-bandwidth", "aria-invalid") == "true"
    assert page.locator("#calculator-time table").count() == 0
    assert page.input_value("#time-machine") == ""  # own rates
    page.fill("#time-bandwidth", "0.5")
    page.fill("#time-call", "12")
    rates = cost.Machine("own", {"float32": 19.5e12}, 19.5e12, 0.5e12, 12e-6)
    found = cost.duration("llama-3-8b", 1, 8192, rates, flash=True, recompute=1)
    assert as_number(page.evaluate(times)[-1]) == float(f"{1e3 * found.seconds:.4g}")
    page.wait_for_url(lambda url: "time.call=12" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert as_number(page.evaluate(times)[-1]) == float(f"{1e3 * found.seconds:.4g}")

    # The hours of a run are its steps times the seconds of a step.
    page.click("text=Use this MFU under counted for the whole run")
    assert page.evaluate("document.activeElement.id") == "run-mfu"
    page.fill("#run-tokens", "81920000")
    hours = page.locator("#calculator-run tbody tr", has_text="GPU-hours").locator("td").text_content()
    assert float(hours.replace(",", "")) == pytest.approx(10_000 * found.seconds / 3600, rel=1e-3)


def test_the_run_follows_the_prediction_until_it_is_edited(page):
    def shown():
        """The MFU of the prediction under the page's convention, the run's, and the run's peak."""
        convention = page.input_value("#convention")
        row = page.locator("#calculator-time tbody tr", has_text=f"MFU, {convention}").last.locator("td")
        fields = [page.input_value(f"#run-{name}") for name in ("mfu", "peak")]
        return as_number(row.text_content()), *map(float, fields)

    page.select_option("#convention", "products")
    page.click("text=Use this MFU under products for the whole run")
    found = [shown()]
    for change in (
        lambda: page.check("#A-recompute"),
        lambda: page.select_option("#convention", "products-whole"),
        lambda: page.select_option("#time-machine", "a100"),
        lambda: page.fill("#A-s", "4,096"),
    ):
        change()
        found.append(shown())
        convention = page.input_value("#convention")
        assert f"from the prediction above, under {convention}, " in page.text_content("#run-note")
        assert page.text_content("#run-mfu-label") == f"MFU under {convention}, %"
    for predicted, mfu, _ in found:
        assert float(f"{mfu:.4g}") == predicted
    assert len({mfu for _, mfu, _ in found}) == len(found)
    assert [peak for *_, peak in found] == [989.4, 989.4, 989.4, 312, 312]

    page.wait_for_url(lambda url: "s=4096" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.uncheck("#A-recompute")  # the link is in the address
    assert shown()[1] != found[-1][1]
    page.fill("#time-bandwidth", "")
    assert page.input_value("#run-mfu") == ""
    page.fill("#time-bandwidth", "2")
    page.fill("#run-mfu", "40")
    page.check("#A-recompute")
    assert page.input_value("#run-mfu") == "40" and page.text_content("#run-note") == ""


def test_an_address_that_cannot_be_read_is_reported(page, site):
    page.goto("about:blank")
    address = "#convention=prodcts&family=bert&time.dtype=int8&memory.moments=half&flash=yes&b=3&machine=h200&time.name=x"
    page.goto(f"file://{site}/{PAGE}{address}")
    faults = page.locator("#address-faults p").all_text_contents()
    names = ["convention", "family", "flash", "time.dtype", "memory.moments"]
    values = ["prodcts", "bert", "yes", "int8", "half"]
    assert [fault.split(":")[0] for fault in faults[:-1]] == names
    assert [fault.split("got ")[1] for fault in faults[:-1]] == [repr(value) for value in values]
    assert faults[0] == f"convention: expected one of {', '.join(CONVENTIONS)}; got 'prodcts'"
    assert faults[-1] == "The address has unknown names, which are ignored: machine, time.name"
    total = cost.tally("llama-3-8b", 3, 8192, flash=True).total(
        "products-whole"
    )  # the rest is the opening page's
    assert page.evaluate(SUMMARY, 1)["total"] == f"{total:,}"
    page.fill("#A-b", "4")
    assert page.text_content("#address-faults") == ""


def test_a_preset_lowers_the_length_to_its_positions(page):
    assert page.input_value("#A-s") == "8192"
    names = page.locator("#A-preset option").all_text_contents()
    sizes = ["gpt2, gpt2-124m", "gpt2-medium, gpt2-355m", "gpt2-large, gpt2-774m", "gpt2-xl, gpt2-1.5b"]
    assert names[1:5] == sizes
    page.select_option("#A-preset", "gpt2")
    assert page.input_value("#A-s") == "1024"
    said = "s was lowered from 8,192 to S = 1,024, the number of learned positions."
    assert page.text_content("#A-note") == said
    assert page.is_visible("#calculator-results")
    page.fill("#A-s", "100")
    assert page.text_content("#A-note") == ""
    page.select_option("#A-preset", "gpt2-xl")
    assert page.input_value("#A-s") == "100" and page.text_content("#A-note") == ""


def test_the_memory_has_the_dtype_of_the_time_until_it_is_edited(page):
    page.select_option("#time-dtype", "float32")
    assert page.input_value("#memory-weights") == "float32"
    parameters = dict(page.evaluate(MEMORY))["parameters"]
    assert parameters.startswith(f"{4 * cost.tally('llama-3-8b', 1, 8192).parameters:,}")
    page.select_option("#memory-weights", "bfloat16")
    page.select_option("#time-dtype", "float16")
    assert page.input_value("#memory-weights") == "bfloat16"
    page.wait_for_url(lambda url: "time.dtype=float16" in url and "memory.weights=bfloat16" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.select_option("#time-dtype", "float32")
    assert page.input_value("#memory-weights") == "bfloat16"


def test_an_mfu_above_100_percent_is_explained(page):
    note = "An MFU above 100 % counts FLOPs that do not run"
    assert note not in page.text_content("#calculator-time")
    page.uncheck("#A-flash")  # computes all scores
    page.fill("#time-products", "1")  # and 66.9 for everything else, which "counted" counts too
    whole, _, own = map(as_number, page.evaluate(AT_TIME)[2:])
    assert whole <= 100 < own
    assert note in page.text_content("#calculator-time")
    page.fill("#time-products", "989.4")
    page.select_option("#convention", "products")
    assert note not in page.text_content("#calculator-time")
    page.check("#A-flash")
    page.fill("#time-elements", "1e6")
    page.fill("#time-bandwidth", "1e6")
    page.fill("#A-s", "100000")  # half of the scores are masked
    assert as_number(page.evaluate(AT_TIME)[2]) > 100
    assert note in page.text_content("#calculator-time")


def test_the_page_opens_with_the_convention_of_mfu(page, site):
    page.goto("about:blank")
    page.goto(f"file://{site}/{PAGE}")
    assert page.input_value("#convention") == "products-whole"
    assert page.text_content("#run-mfu-label") == "MFU under products-whole, %"
    rows = page.locator("#calculator-time table").first.locator("tbody th").all_text_contents()
    assert [row.split(":")[0] for row in rows[2:]] == ["MFU, products-whole", "HFU, products"]
    assert page.text_content("#address-faults") == ""


def test_everything_open_is_accessible_and_fits_a_phone(browser, address):
    visit = Visit(browser)
    visit.open(f"{address}/{PAGE}")  # axe reads style sheets, which a page from disk may not
    page = visit.page
    page.check("#compare")
    page.select_option("#B-preset", "gpt2")
    page.fill("#B-s", "512")
    page.fill("#run-tokens", "1e9")
    for place in ("#calculator-A", "#calculator-B", "#calculator-terms >", "#calculator-calls >"):
        page.click(f"{place} summary")
    page.evaluate(FEW_ROWS)
    assert visit.complaints == []
    turn(page, "light")
    assert found_by_axe(page, context="#calculator") == []
    turn(page, "dark")
    assert found_by_axe(page, context="#calculator") == []
    page.fill("#time-bandwidth", "0")
    page.fill("#A-n_kv", "5")
    assert found_by_axe(page, context="#calculator") == []  # with a rejection
    page.set_viewport_size(PHONE)
    page.evaluate(SETTLED)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.fill("#A-n_kv", "4")
    page.fill("#time-bandwidth", "2")
    shades = page.eval_on_selector_all(
        ".calculator-scroll", "all => all.map(each => getComputedStyle(each).backgroundImage)"
    )
    assert shades and all("gradient" in each for each in shades)
    assert page.is_visible("#calculator-terms-inside table")
    assert page.is_visible("#calculator-calls-inside table")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visit.page.context.close()
