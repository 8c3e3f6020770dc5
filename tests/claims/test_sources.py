"""The sources' formulas and figures: recomputed, summed, and completed up to what our own layers count."""

from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import sympy

from backpass.cost.published import symbolic
from backpass.models.layers import encoder_layer, gpt2_layer, llama_layer
from backpass.ops import (
    cross_entropy,
    embedding,
    layer_norm,
    linear,
    position_embedding,
    rms_norm,
    silu,
    softmax,
)
from backpass_ledger import sources
from backpass_ledger.sources import (
    COMPLETED,
    GPT2_POST,
    GRADIENT_FLOW,
    NUMBERS,
    ROWS,
    STATEMENTS,
    THESIS,
    TOTALS,
)

b, s, h, n_h, n_kv, d, f, V, L, k = (
    symbolic(letter) for letter in ("b", "s", "h", "n_h", "n_kv", "d", "f", "V", "L", "k")
)


def row(source, name):
    (found,) = (row for row in ROWS if (row.source, row.name) == (source, name))
    return symbolic(found.expression)


def total(source, name):
    (found,) = (total for total in TOTALS if (total.source, total.name) == (source, name))
    return symbolic(found.printed)


def completed(source, name="backward"):
    (found,) = (total for total in COMPLETED if (total.source, total.name) == (source, name))
    return found


def number(name):
    (found,) = (number for number in NUMBERS if number.name == name)
    return found


def same(one, other):
    return sympy.expand(one - other) == 0


def test_names_are_unique_and_sources_are_in_the_bibliography(request):
    for records in (ROWS, TOTALS, COMPLETED):
        assert max(Counter((record.source, record.name) for record in records).values()) == 1
    assert max(Counter((n.source, n.place, n.name) for n in NUMBERS).values()) == 1
    keys = {record.source for records in (ROWS, TOTALS, NUMBERS, STATEMENTS, COMPLETED) for record in records}
    assert len(keys) == 5
    bibliography = (request.config.rootpath / "references.bib").read_text()
    assert all(f"{{{key}," in bibliography for key in keys)
    for records in (ROWS, TOTALS, NUMBERS, STATEMENTS):
        assert all(record.place and record.says.endswith(".") for record in records)


# Sums.


@pytest.mark.parametrize("total", TOTALS, ids=lambda total: f"{total.source}-{total.name}")
def test_a_total_is_the_sum_of_its_terms_or_misses_it_by_what_is_recorded(total):
    terms = sum(map(symbolic, total.terms))
    assert same(symbolic(total.printed) - terms, symbolic(total.off))
    assert total.consistent == same(symbolic(total.printed), terms)


def test_which_totals_are_inconsistent():
    wrong = {(total.source, total.name) for total in TOTALS if not total.consistent}
    assert wrong == {
        (GPT2_POST, "network"),
        (THESIS, "norm_text"),
        (THESIS, "norms_discussed"),
        (GRADIENT_FLOW, "backward"),
    }


# The GPT-2 post.

# What the post's table multiplies: how many products, and the shapes of each.
PRODUCTS = {
    "lm_head": [(b, s, V, h), (1, h, b * s, V)],
    "mlp_down": [(b, s, h, 4 * h), (1, 4 * h, b * s, h)],
    "mlp_up": [(b, s, 4 * h, h), (1, h, b * s, 4 * h)],
    "attn_out": [(b, s, h, h), (1, h, b * s, h)],
    "attn@value": [(b * n_h, s, d, s), (b * n_h, s, s, d)],
    "query@key": [(b * n_h, s, s, d), (b * n_h, d, s, s)],
    "qkv_proj": [(b, s, 3 * h, h), (1, h, b * s, 3 * h)],
}
GELU_STEPS = (1, 1, 3, 1, 1, 1, 1, 2, 4, 2, 2)  # as printed beside the lines of its listing
SOFTMAX_STEPS = (2, 1, 1)


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_posts_table_is_that_of_its_products(name):
    assert same(row(GPT2_POST, name), sum(2 * count * m * n * p for count, m, n, p in PRODUCTS[name]))


def test_the_posts_other_rows_are_the_sums_of_their_steps():
    assert same(row(GPT2_POST, "gelu"), sum(GELU_STEPS) * b * s * 4 * h)
    assert same(row(GPT2_POST, "softmax"), sum(SOFTMAX_STEPS) * b * n_h * s * s)
    assert same(row(GPT2_POST, "log_softmax"), 4 * b * s * V)
    assert same(row(GPT2_POST, "input"), b * s * (h + h + 2 * h + 4 * h))
    layer_norm = sum(row(GPT2_POST, name) for name in ("input", "scale", "shift"))
    assert same(layer_norm, total(GPT2_POST, "layer_norm"))
    parts = [name for name in PRODUCTS if name != "lm_head"]
    parts = [*parts, "softmax", "scaling", "gelu", "residual"]
    layer = sum(row(GPT2_POST, name) for name in parts) + 2 * layer_norm
    assert same(layer, total(GPT2_POST, "layer"))
    # Cross-entropy, which the network's sum names and does not add, is log-softmax.
    missing = L * layer + layer_norm + row(GPT2_POST, "lm_head") - total(GPT2_POST, "network")
    assert same(missing, 0)
    assert same(symbolic(next(t.off for t in TOTALS if t.name == "network")), -row(GPT2_POST, "log_softmax"))


def test_the_posts_completed_layer_is_ours_except_for_what_is_named_here():
    layer = sympy.expand(completed(GPT2_POST).symbolic()).coeff(L).subs(h, n_h * d)
    ours = gpt2_layer.backward_flops(b, s, n_h * d, n_h * d, 4 * n_h * d, n_h, flash=False)
    rows, width = b * s * n_h * d, n_h * d
    differences = [
        (7 + 3) * rows + b * n_h * s**2 + 12 * width**2,  # first terms of products' sums
        (9 + 4) * width + b * n_h * s,  # first terms of the parameters' and of softmax's
        (19 - 15) * 4 * rows,  # tanh-GELU's slope in fewer steps
        b * n_h * s**2 - rows,  # the scaling, of the queries in place of the scores
        2 * 2 * rows,  # x̂, which we save
    ]
    assert same(layer - ours, sum(differences))


# The thesis.


def test_the_thesiss_rows():
    names = ("out", "values", "softmax", "scores", "qkv")
    attention = sum(row(THESIS, name) for name in names)
    assert same(attention, total(THESIS, "attention"))
    m, n, p = (symbolic(letter) for letter in "mnp")
    product = row(THESIS, "product")

    def products(*shapes):
        return sum(product.subs({m: a, n: b, p: c}, simultaneous=True) for a, b, c in shapes)

    assert same(row(THESIS, "out"), products((h, s, h), (s, h, h)))
    assert same(row(THESIS, "values"), products((s, h, s), (s, s, h)))
    assert same(row(THESIS, "scores"), products((s, s, h), (s, s, h)) + 2 * s * h)
    assert same(row(THESIS, "qkv"), products(*3 * [(h, s, h), (s, h, h)]) + 2 * s * h)
    assert same(row(THESIS, "ffl_out"), products((f, 1, h), (1, h, f)))
    assert same(row(THESIS, "ffl_in"), products((h, 1, f), (1, f, h)))
    fed = s * (row(THESIS, "ffl_out") + row(THESIS, "relu") + row(THESIS, "ffl_in"))
    assert same(fed, total(THESIS, "feed_forward"))
    assert same(fed.subs(f, 4 * h), 32 * s * h**2)
    norm = s * (row(THESIS, "norm_w_summary") + row(THESIS, "norm_x"))
    assert same(norm, total(THESIS, "norm"))
    assert same(attention + fed.subs(f, 4 * h) + 2 * norm, total(THESIS, "block"))


def test_the_thesiss_completed_block_is_ours_except_for_what_is_named_here():
    ours = encoder_layer.backward_flops(1, s, h, 4 * h, 1, flash=False)
    differences = [
        12 * h**2 + (1 + 1 + 3 + 4 + 1) * s * h + s**2,  # first terms of products' sums
        2 * s * h,  # the sums of x's gradients, which one product for all three projections does
        (5 + 4) * h + s,  # first terms of the parameters' sums and of softmax's
        s * h,  # the scaling, of the queries alone
        -3 * (s - 1) * h,  # attention's biases, which the thesis's block does not have
    ]
    assert same(completed(THESIS).symbolic() - ours, sum(differences))


# The gradient-flow post.


@pytest.mark.parametrize("found", NUMBERS, ids=lambda n: f"{n.source}-{n.place}-{n.name}")
def test_a_figure_is_what_its_formula_gives_or_misses_it_by_what_is_recorded(found):
    assert Decimal(found.printed) - found.rounded == Decimal(found.off)
    decimals = len(found.printed.partition(".")[2])
    assert abs(found.exact - Fraction(found.rounded)) <= Fraction(1, 2 * 10**decimals)


def test_which_figures_are_off():
    off = {(n.place, n.name): n.off for n in NUMBERS if n.off != "0"}
    passes = ("forward", "backward")
    table = {
        f"{name}, {p}": {"forward": "10", "backward": "20"}[p] for name in ("W1", "W2", "W3") for p in passes
    }
    table |= {"Q projection, backward": "1", "K projection, forward": "1", "V projection, forward": "1"}
    table |= {f"{name}, backward": "1" for name in ("scores", "attention output", "O projection")}
    table |= {"forward": "32", "backward": "766"}
    memory = {
        ("1.5, box", "g1, g3, and SiLU(g1)"): "0.02",
        ("1.5, box", "the same of 80 layers"): "1",
        ("4.1", "80 layers without flash attention"): "-1",
        ("4.3, chart", "a checkpoint every 20"): "2",
        ("4.3, chart", "a checkpoint every 5"): "2",
        ("4.4, table", "saving of a checkpoint every 20"): "-2",
        ("4.4, table", "saving of a checkpoint every 5"): "-1",
    }
    assert off == {("6.1, table", name): error for name, error in table.items()} | memory


def test_the_table_of_flops_is_that_of_its_products():
    at = sources.LLAMA_70B
    rows, q, kv, f = at["s"], at["n_h"] * at["d"], at["n_kv"] * at["d"], at["f"]
    shapes = {
        "Q projection": (1, rows, at["h"], q),
        "K projection": (1, rows, at["h"], kv),
        "V projection": (1, rows, at["h"], kv),
        "scores": (at["n_h"], rows, at["d"], rows),
        "attention output": (at["n_h"], rows, rows, at["d"]),
        "O projection": (1, rows, q, at["h"]),
        "W1": (1, rows, at["h"], f),
        "W3": (1, rows, at["h"], f),
        "W2": (1, rows, f, at["h"]),
    }
    forward = 0
    for name, (count, m, n, p) in shapes.items():
        flops = 2 * count * m * n * p
        forward += flops
        assert number(f"{name}, forward").exact == flops / sympy.Integer(10**9)
        assert number(f"{name}, backward").exact == 2 * flops / sympy.Integer(10**9)
    again = number("scores again").exact * 10**9
    layer = [
        n.exact * 10**9 for n in NUMBERS if n.place == "6.1, table" and n.name in ("forward", "backward")
    ]
    assert layer == [forward, 2 * forward + again]
    # Backward to forward, of the products that ran: 2.07, and not 2.1.
    assert round(float(layer[1] / layer[0]), 3) == 2.068
    assert (
        completed(GRADIENT_FLOW, "forward").printed
        and symbolic(completed(GRADIENT_FLOW, "forward").printed).subs(
            {symbolic(a): n for a, n in at.items()}
        )
        == 80 * forward
    )


def test_the_saved_bytes_are_those_of_the_arrays():
    b, s, h, n_h, n_kv, d, f = (sources.LLAMA_70B[a] for a in ("b", "s", "h", "n_h", "n_kv", "d", "f"))
    shapes = [[b, s, h], [b, s, h], [b, s, h], [b, s, n_kv * d], [b, s, n_kv * d], [b, s, h], [b, s, h]]
    shapes += [[b, s, f]] * 3
    without = sum(2 * int(np.prod(shape)) for shape in shapes)
    assert without == 2016 * 2**20
    assert without + 2 * b * n_h * s * s == 10208 * 2**20


def test_what_checkpoints_cost_and_save():
    layers = 80
    memory = {every: every * 2016 + layers // every * 128 for every in (1, 2, 5, 10, 20)}
    # The post's own formula has less at every 5 than at each layer, and least at every 2 of these.
    assert memory[5] < memory[1] and min(memory, key=memory.get) == 2
    said = {s.place: s for s in STATEMENTS if s.source == GRADIENT_FLOW and "4." in s.place}
    F = symbolic("F")
    for every in (1, 2, 5, 10, 20):
        segments = [range(start, start + every) for start in range(0, layers, every)]
        run_again = sum(len(segment) for segment in segments)
        listing = sum(i - segment.start + 1 for segment in segments for i in segment)
        at = {F: layers, k: every}
        assert symbolic(said["4.4"].right).subs(at) == run_again
        assert (symbolic(said["4.4"].printed).subs(at) == run_again) == (every == 1)
        assert symbolic(said["4.2, first listing"].printed).subs(at) == listing


def test_the_flow_posts_completed_layer_is_ours_except_for_what_is_named_here():
    g, half = sympy.symbols("g half", positive=True, integer=True)  # n_h = g·n_kv, d = 2·half
    queries, keys = g * n_kv * 2 * half, n_kv * 2 * half
    lengths = (b, s, h, half, queries, keys, f, *5 * [False])
    q, kv, scores = b * s * queries, b * s * keys, b * g * n_kv * s**2

    def layer(name):
        whole = sympy.expand(completed(GRADIENT_FLOW, name).symbolic())
        return whole.coeff(L).subs({n_h: g * n_kv, d: 2 * half})

    forward = [
        (q + 2 * kv + b * s * h) + (scores + q) + (2 * b * s * f + b * s * h),  # products' sums
        scores - q,  # the scaling, of the queries in place of the scores
        b * g * n_kv * s,  # first terms of softmax's sums
        (5 - 7) * b * s * f,  # a sigmoid in three steps for our five
    ]
    assert same(layer("forward") - llama_layer.forward_flops(*lengths, flash=False), sum(forward))

    weights = 2 * h * queries + 2 * h * keys + 3 * h * f
    backward = [
        weights + 5 * b * s * h + q + b * s * f + scores + q + 2 * kv,  # products' sums
        2 * b * s * queries * s + 3 * scores,  # the scores and weights that run again
        2 * q,  # heads' sums, which our products do
        2 * q - q,  # the scaling, of the queries alone
        b * g * n_kv * s + 2 * h,  # first terms of softmax's and of the parameters' sums
        2 * (9 - 8) * b * s * h + 2 * b * s,  # x̂, which we save, and a division per row
        (11 - 13) * b * s * f,  # the sigmoid again
    ]
    assert same(layer("backward") - llama_layer.backward_flops(*lengths, flash=False), sum(backward))


def test_what_statements_say_follows_from_rows_figures_and_counts():
    said = {(statement.source, statement.place): statement for statement in STATEMENTS}

    def both(source, place):
        statement = said[source, place]
        return symbolic(statement.printed), symbolic(statement.right)

    printed, right = both(THESIS, "3.1.3")
    assert same(printed, row(THESIS, "norm_w"))
    more = next(term for term in completed(THESIS).added if "parameters" in term.name)
    assert same(symbolic(more.expression), 2 * s * (right - row(THESIS, "norm_w_summary")))

    block = total(THESIS, "block")
    crossing = symbolic(said[THESIS, "4.2.2"].right)
    assert same(block.coeff(h, 2).subs(s, crossing) * h**2, block.coeff(s, 2).coeff(h, 1) * crossing**2 * h)
    fed = total(THESIS, "feed_forward").subs({f: 4 * h, s: 2 * h})
    attended = total(THESIS, "attention").subs(s, 2 * h)
    assert same(attended.coeff(h, 3), fed.coeff(h, 3))

    printed, right = both(GRADIENT_FLOW, "1.3, box")
    assert same(printed, row(GRADIENT_FLOW, "rms_norm"))
    norms = next(term for term in completed(GRADIENT_FLOW).added if term.name == "norms")
    assert same(
        symbolic(norms.expression), (2 * L + 1) * (right - b * s * h)
    )  # section 6 divides a row's sum by d
    ours = rms_norm.backward_flops(b * s, h)
    assert same(right - ours, 2 * b * s * h + b * s + h)  # x̂, that division, and a sum's first terms

    printed, right = both(GRADIENT_FLOW, "4.1")
    states = sum(int(number(name).printed) for name in ("master weights", "first moment", "second moment"))
    weights, masters, gradients = (int(number(n).printed) for n in ("weights", "master weights", "gradients"))
    kept = number("80 layers with flash attention")
    activations, unit = int(kept.printed), sources.UNITS[kept.unit]
    assert printed == activations + states + weights + masters == 1421
    in_gb = kept.exact * unit / 10**9
    assert states + weights + gradients == total(GRADIENT_FLOW, "states")
    assert right == in_gb + states + weights + gradients
    assert (round(in_gb), round(right)) == (169, 1289)

    at = {symbolic(a): n for a, n in sources.LLAMA_70B.items()}
    printed, right = both(GRADIENT_FLOW, "4.3")
    assert same(printed, symbolic(number("a checkpoint each layer").expression))
    assert same(printed - right, symbolic(number("normalised input").expression))
    assert [int(each.subs(at)) / 2**20 for each in (printed, right)] == [12_256, 12_128]
    for every, name, saved, chart in ((20, "every 20", "74.7", 42), (5, "every 5", "92.5", 14)):
        saving = number(f"saving of a checkpoint {name}")
        assert f"{100 * float(1 - Fraction(every * 2016 + 80 // every * 128, 161_280)):.1f}" == saved
        assert f"{float(saving.exact):.1f}" == saved
        assert round(100 * (1 - chart / 157.5)) == int(saving.printed)

    printed, right = both(GRADIENT_FLOW, "4.1, table")
    assert printed == total(GRADIENT_FLOW, "activations_flash") * 2**20
    normed, statistics = number("normalised input"), 4 * b * n_h * s
    assert same(right - printed, symbolic(normed.expression) + statistics)

    printed, right = both(GRADIENT_FLOW, "6.1, below the table")
    assert printed == total(GRADIENT_FLOW, "step") * 10**12
    layers = right.subs(at)
    head = next(term for term in completed(GRADIENT_FLOW, "forward").added if term.name == "head")
    with_head = layers + 3 * symbolic(head.expression).subs({**at, V: 128_256})
    assert [round(each / 10**12) for each in (layers, with_head)] == [3892, 3944]
    products = [n for n in NUMBERS if n.place == "6.1, table" and n.name.endswith(", forward")]
    assert len(products) == 9 and layers == 3 * 80 * sum(n.exact for n in products) * 10**9

    printed, right = both(GRADIENT_FLOW, "4.5")
    assert right.subs({symbolic(a): n for a, n in sources.LLAMA_70B.items()}) == sum(
        number(f"{name}, forward").exact * 10**9 for name in ("W1", "W3")
    )
    assert same(right, 2 * printed)

    printed, right = both(GPT2_POST, "Residual connections")
    assert printed == row(GPT2_POST, "residual")
    forks = next(term for term in completed(GPT2_POST).added if term.name == "residual sums")
    assert same(symbolic(forks.expression), L * right)
    rows = {name: row(GPT2_POST, name).free_symbols for name in ("softmax", "log_softmax", "input")}
    assert {name for name, letters in rows.items() if h in letters} == {"input"}

    assert both(GRADIENT_FLOW, "4.4")[0] == row(GRADIENT_FLOW, "checkpointing")
    assert both(GRADIENT_FLOW, "4.4, table") == both(GRADIENT_FLOW, "4.4")
    assert both(GRADIENT_FLOW, "4.2, first listing")[1] == both(GRADIENT_FLOW, "4.4")[1]
    printed, right = both(sources.TWICE_NOTE, "Total backward")
    assert same(printed, total(sources.TWICE_NOTE, "backward")) and same(right, printed)


def test_rows_outside_the_totals():
    assert same(row(GPT2_POST, "positions"), position_embedding.backward_flops(b, s, h))
    assert row(GPT2_POST, "nll") == 0
    m, n, p = (symbolic(letter) for letter in "mnp")
    assert row(THESIS, "product") == row(GRADIENT_FLOW, "product") == 2 * m * n * p


def outside_of(source, *, norm):
    """Return what a source's completed total has outside the layers, less what our operations count."""
    distinct = sympy.Symbol("distinct")
    ours = norm.backward_flops(b * s, h) + linear.backward_flops(b * s, h, V, has_b=False)
    ours += cross_entropy.backward_flops(b * s, V) + embedding.backward_flops(b * s, h, distinct)
    whole = sympy.expand(completed(source).symbolic()).coeff(L, 0)
    return whole - ours, distinct


def test_the_completed_ends_are_ours_except_for_what_is_named_here():
    head = b * s * h + h * V  # first terms of products' sums
    left, distinct = outside_of(GPT2_POST, norm=layer_norm)
    differences = [
        head + 2 * h + distinct * h,  # and of the norm's and the table's
        2 * b * s * h,  # x̂, which we save
        2 * b * s * V - b * s - 1,  # log-softmax's gradient without its sum, which is known
        position_embedding.backward_flops(b, s, h) + V * h,  # the positions, and the tied table's sum
    ]
    assert same(left, sum(differences))
    for source in (GPT2_POST, GRADIENT_FLOW):  # the scatter is a bound, reached by no batch
        scatter = next(term for term in completed(source).added if term.name == "token scatter")
        exact = embedding.backward_flops(b * s, h, distinct)
        assert same(exact, (b * s - distinct) * h) and same(
            symbolic(scatter.expression) - exact, distinct * h
        )
    left, distinct = outside_of(GRADIENT_FLOW, norm=rms_norm)
    assert same(left, head + h + distinct * h + (9 - 8) * b * s * h + b * s - 1)
    forward = sympy.expand(completed(GRADIENT_FLOW, "forward").symbolic()).coeff(L, 0)
    ours = rms_norm.forward_flops(b * s, h) + linear.forward_flops(b * s, h, V, has_b=False)
    ours += cross_entropy.forward_flops(b * s, V)
    assert same(forward - ours, b * s * V + b * s)  # first terms of the head's and the softmax's sums


@pytest.mark.parametrize("total", COMPLETED, ids=lambda total: f"{total.source}-{total.name}")
def test_a_completed_total_is_its_printed_one_and_more(total):
    at = {"b": 2, "s": 1024, "h": 768, "n_h": 12, "n_kv": 12, "d": 64, "f": 3072, "V": 50257, "L": 12}
    more = sum(symbolic(term.expression) for term in total.added)
    assert same(total.symbolic(), symbolic(total.printed) + more)
    printed = symbolic(total.printed).subs({symbolic(a): n for a, n in at.items()})
    assert printed < total.at(**at)
    assert len({term.name for term in total.added}) == len(total.added)


def test_the_twice_note():
    m, n, p = (symbolic(letter) for letter in "mnp")
    forward = row(sources.TWICE_NOTE, "forward")
    assert same(row(sources.TWICE_NOTE, "dx") + row(sources.TWICE_NOTE, "dw"), 2 * forward)
    assert forward.subs({m: 1024, n: 1600, p: 1600}) == 5242880000


def test_the_twice_notes_exceptions():
    said = {s.place: s for s in STATEMENTS if s.source == sources.TWICE_NOTE}
    x, dy = np.random.default_rng(0).normal(size=(2, 7))
    y, saved = silu.forward(x)
    sigma = 1 / (1 + np.exp(-x))
    slope = silu.backward(dy, saved) / dy
    assert np.allclose(slope, y * (1 - sigma) + sigma, rtol=1e-13)
    assert np.abs(slope - (y * (1 - y) + sigma)).min() > 1e-3
    assert silu.forward_flops(1) < silu.backward_flops(1) < 2 * silu.forward_flops(1)

    of_softmax = softmax.backward_flops(1, s)
    assert same(of_softmax, symbolic(said["Special cases, 2"].right))
    assert same(of_softmax, softmax.forward_flops(1, s))
    elements = b * s * h
    forward, backward = (
        sympy.expand(count(b * s, h)).coeff(elements)
        for count in (layer_norm.forward_flops, layer_norm.backward_flops)
    )
    assert forward < backward < 2 * forward

    m, n, p = (symbolic(letter) for letter in "mnp")
    frozen = linear.backward_flops(m, n, p, has_b=False, wanted=("x",))
    assert same(frozen, m * n * (2 * p - 1))  # one product and not two
