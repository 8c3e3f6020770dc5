"""The formulas of what a network saves equal the storages that its Saved keeps, exactly and array by array."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch

from backpass import cost
from backpass.cost import networks
from backpass.cost.kept import _arrays, storage_of
from backpass.cost.letters import LAYERS, Probes, in_latex, in_text, symbol
from backpass.cost.measured import autograd_memory, measured_activations
from backpass.cost.networks import network_memory
from backpass.cost.sizes import network_of
from backpass.models import encoder, gpt2, llama, seq2seq
from pairwise import pairs
from proofs import proving

DRAWS = 8 if proving() == "all" else 2
AGAIN = (None, None, 1, 2, np.int64(3), 7, ["attention"], ("feed_forward", "norms"))
DTYPES = ("float16", "bfloat16", "float32", "float64")
FAMILIES = ("gpt2", "llama", "qwen2", "qwen3", "encoder", "seq2seq")


def length(rng):
    return int(rng.choice([1, 1, 2, 3, 4, 5, 6]))


def drawn_config(family, rng):
    """A configuration at random, in which lengths are often 1 or equal."""
    d, heads, f, V = (length(rng) for _ in range(4))
    layers = int(rng.integers(1, 6))
    flag = bool(rng.random() < 0.5)
    if family == "gpt2":
        p = 0.25 if rng.random() < 0.4 else 0.0
        rates = {"embedding_dropout": p, "residual_dropout": p}
        return gpt2.Config(V + 1, 9, d * heads, layers, heads, f, tied=flag, **rates)
    if family == "encoder":
        return encoder.Config(
            d * heads, layers, heads, f, norm_first=flag, final_norm=bool(rng.random() < 0.5)
        )
    if family == "seq2seq":
        return seq2seq.Config(d * heads, layers, int(rng.integers(1, 6)), heads, f, norm_first=flag)
    relatives = {"biases": family == "qwen2", "query_key_norm": family == "qwen3", "tied": flag}
    return llama.Config(V + 1, length(rng), layers, heads * length(rng), heads, 2 * d, f, **relatives)


def run(config, lengths, dtype, library, rng, wanted=None, **options):
    """What a forward on random arrays saved, and the parameters."""

    def array(shape, integer):
        if integer:
            x = rng.integers(0, lengths["V"], shape)
        else:
            x = rng.standard_normal(shape).astype(np.float64 if dtype == "bfloat16" else dtype)
        if library == "numpy":
            return x
        return torch.tensor(x) if integer else torch.tensor(x).to(getattr(torch, dtype))

    shapes = network_of(config).shapes
    parameters = {name: array(shape, False) for name, shape in shapes.items()}
    inputs, _ = networks.inputs_of(network_of(config), lengths, array)
    options = {"flash": True, "chunked": True, "dropout": False} | options
    return networks.forward(network_of(config), parameters, inputs, wanted=wanted, **options), parameters


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("every_gradient", [True, False], ids=["all", "wanted"])
def test_each_storage_that_forward_keeps(family, every_gradient):
    rng = np.random.default_rng(FAMILIES.index(family) + 10 * every_gradient)
    for _ in range(DRAWS):
        config, batch = drawn_config(family, rng), length(rng)
        sequence = length(rng) if family != "seq2seq" else (length(rng), length(rng))
        library, dtype = rng.choice(["numpy", "torch"]), str(rng.choice(DTYPES, p=[0.1, 0.1, 0.4, 0.4]))
        library = "torch" if dtype == "bfloat16" else library
        options = {"flash": bool(rng.random() < 0.6), "chunked": bool(rng.random() < 0.5)}
        options["recompute"] = AGAIN[rng.integers(len(AGAIN))]
        options["dropout"] = family == "gpt2" and bool(rng.random() < 0.5)
        if not every_gradient:
            names = network_of(config).shapes
            options["wanted"] = [name for name in names if rng.random() < rng.choice([0.1, 0.5])]
        predicted = cost.activations(config, batch, sequence, dtype=dtype, **options)
        with np.errstate(all="ignore"):
            saved, parameters = run(config, predicted.lengths, dtype, library, rng, **options)
        found = [x for x in networks.found(network_of(config), saved, parameters) if x.kind != "parameter"]
        at = {symbol(letter): n for letter, n in predicted.lengths.items()}
        assert Counter(
            (
                r.part,
                r.operation,
                r.array,
                tuple(int(n.subs(at)) for n in r.shape),
                r.dtype,
                r.bytes,
                r.others,
                r.constant,
            )
            for r in predicted.rows
        ) == Counter(
            (x.part, x.operation, x.array, x.shape, x.dtype, x.bytes, x.others, x.kind == "constant")
            for x in found
        ), (config, batch, sequence, dtype, library, options)
        # The same by cost.memory's rule for what an operation saves.
        every = dict(storage_of(x) for _, x in _arrays(saved, "") if not isinstance(x, np.generic))
        for x in parameters.values():
            every.pop(storage_of(x)[0], None)
        loss = saved.loss.nbytes if library == "numpy" and hasattr(saved, "loss") else 0
        assert sum(every.values()) + loss == predicted.bytes + predicted.constants
        if every_gradient:
            tables = at[symbol("s")] * at[symbol("d")] * np.dtype(dtype.replace("bf", "f")).itemsize
            assert predicted.constants == (tables if "key_heads" in vars(config) else 0)
        memory = network_memory(config, saved, parameters)
        assert predicted.bytes == memory.activations
        assert all(int(r.formula.subs(at)) == r.bytes for r in predicted.rows)
        assert sum(predicted.by_part().values()) == predicted.bytes == int(predicted.formula.subs(at))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("flash", [True, False])
def test_the_symbols_stand_for_any_lengths_above_1(family, flash):
    rng = np.random.default_rng(7)
    for _ in range(4):
        config = drawn_config(family, rng)
        heads = (
            {"heads": 6, "key_heads": 2, "width": 5}
            if hasattr(config, "key_heads")
            else {"heads": 3, "width": 6}
        )
        config = replace(config, feed_forward=int(rng.integers(2, 9)), **heads)
        sequence = (2, 5) if family == "seq2seq" else 5
        found = cost.activations(config, 3, sequence, flash=flash)
        layers = {letter: getattr(config, name) for name, letter in LAYERS.items() if hasattr(config, name)}
        values = {symbol(letter): n for letter, n in {**found.lengths, **layers}.items()}
        assert cost.symbolic_activations(config, flash=flash).formula.subs(values) == found.bytes


class Watched(list):
    """What the parts saved; ``sizes`` has the saved bytes each time the backward takes a part."""

    def __init__(self, config, saved, parameters):
        super().__init__(saved.parts)
        self.about, self.sizes = (config, saved, parameters), []
        saved.parts.clear()

    def pop(self, *at):
        part = super().pop(*at)
        if hasattr(part, "run_again") and not part.parts:
            part.run_again()
        config, saved, parameters = self.about
        count = len(network_of(config).model.part_names(config))
        alive = [*self, part, *[None] * (count - len(self) - 1)]
        memory = network_memory(config, saved._replace(parts=alive), parameters)
        self.sizes.append(memory.activations)
        return part


@pytest.mark.parametrize(
    ("name", "every", "frozen", "chunked"),
    pairs(("gpt2", "llama"), (1, 2, 3, 5, 9), (0, 3), (True, False), of=("backpass.cost",)),
)
def test_the_most_bytes_that_a_step_with_segments_saves(name, every, frozen, chunked):
    """While a real backward runs, in which each segment runs again."""
    config = {"gpt2": gpt2.Config(7, 9, 12, 5, 3, 20), "llama": llama.Config(7, 12, 5, 4, 2, 6, 20)}[name]
    names = [*network_of(config).shapes]
    layers = [(n, int(n.split(".")[1])) for n in names if n.split(".")[1].isdigit()]
    wanted = [n for n, i in layers if i >= frozen] if frozen else None
    options = {"recompute": every, "wanted": wanted, "chunked": chunked}
    found = cost.activations(config, 2, 4, dtype="float64", **options)
    saved, parameters = run(
        config, found.lengths, "float64", "numpy", np.random.default_rng(1), **{**options, "flash": True}
    )
    watched = Watched(config, saved, parameters)
    network_of(config).model.backward(saved._replace(parts=watched))
    assert watched.sizes[0] == found.bytes
    assert max(watched.sizes) == found.most
    assert len(found.segments) == -(-(5 - frozen) // every)
    assert found.again == max(own for own, _ in found.segments) > 0
    assert f"at most {found.most:,} bytes" in repr(found)


def test_without_segments_the_end_of_the_forward_holds_the_most():
    for recompute in (None, ("attention",)):
        found = cost.activations("gpt2", 1, 8, recompute=recompute)
        assert (found.again, found.most) == (0, found.bytes)
    assert cost.symbolic_activations("gpt2").most is None


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b"])
def test_a_budget_with_segments_adds_the_one_that_runs_again(name):
    config = cost.configuration(name)
    kept = cost.activations(config, 2, 16).by_part()
    (of_layer,) = {size for part, size in kept.items() if networks.layer_of(part)[1] is not None}
    of_input, L = 4 * 2 * 16 * config.width, config.layers
    plain = cost.memory_budget(config, 2, 16).bytes
    for k in (1, 4):
        budget = cost.memory_budget(config, 2, 16, recompute=k)
        assert budget.bytes == plain - L * of_layer + L // k * of_input + k * of_layer
        of = {share.what: share.bytes for share in budget.shares}
        assert of["one segment, recomputed"] == k * of_layer


def test_a_budget_of_what_is_trained():
    config = gpt2.Config(7, 9, 12, 5, 3, 20, residual_dropout=0.25)
    names = ["h.1.mlp.c_fc.bias", "ln_f.weight"]
    budget = cost.memory_budget(config, 2, 4, dtype="bfloat16", wanted=names, dropout=True)
    of = {share.what: share for share in budget.shares}
    for what in ("master weights", "gradients", "AdamW's means", "AdamW's squares"):
        assert of[what].elements == 20 + 12
    kept = cost.activations(config, 2, 4, dtype="bfloat16", wanted=names, dropout=True)
    assert of["activations"].bytes == kept.bytes
    assert kept.bytes == cost.activations(config, 2, 4, dtype="bfloat16", wanted=names).bytes
    with pytest.raises(ValueError, match="wanted: expected names of parameters"):
        cost.memory_budget(config, 2, 4, wanted=["w"])


def test_a_family_by_name():
    b, s, h, n_h, f, V, L = (symbol(x) for x in ("b", "s", "h", "n_h", "f", "V", "L"))
    per_layer = 32 * b * s * h + 8 * b * s * f + 4 * b * n_h * s + 8 * b * s
    outside = 8 * b * s * h + 12 * b * s + 4 * h * V + 4
    assert sympy.expand(cost.symbolic_activations("gpt2").formula - (L * per_layer + outside)) == 0
    with pytest.raises(LookupError, match="gpt2"):
        cost.symbolic_activations("gpt")


def test_a_preset_by_name():
    config = cost.configuration("qwen3-0.6b")
    for function in (cost.activations, cost.memory_budget):
        assert function("qwen3-0.6b", 2, 5) == function(config, 2, 5)
    by_name = measured_activations("gpt2-124m", 1, 3)
    assert by_name == measured_activations(cost.configuration("gpt2-124m"), 1, 3)


def test_flash_attention_saves_the_weights_and_chunks_save_the_scores():
    b, s, n_h, V, h = (symbol(x) for x in ("b", "s", "n_h", "V", "h"))
    plain = cost.symbolic_activations("llama", flash=False, chunked=False)
    rows = {row.array: row for row in plain.rows}
    assert rows["attended.attended.a"].formula == 4 * b * n_h * s**2
    assert rows["loss.p"].formula == 4 * b * s * V
    assert rows["loss.p"].times == 1 and rows["attended.attended.a"].times == symbol("L")
    chunked = cost.symbolic_activations("llama")
    assert {row.array: row.formula for row in chunked.rows}["both.dw"] == 4 * h * V
    assert not [row for row in chunked.rows if row.formula.has(s**2)]


def test_a_view_keeps_its_whole_storage_alive():
    """GPT-2's queries, keys, and values are views of the rows that one projection computed."""
    rows = {row.array: row for row in cost.symbolic_activations("gpt2").rows}
    q = rows["attended.attended.q"]
    assert q.others == ("attended.attended.k", "attended.attended.v")
    assert q.formula == 12 * symbol("b") * symbol("s") * symbol("h")
    # Plain attention saves scaled queries, which are a copy; the keys still keep all three alive.
    plain = {row.array: row for row in cost.symbolic_activations("gpt2", flash=False).rows}
    assert plain["attended.attended.k"].formula == q.formula


LLAMA_3_8B = llama.Config.preset("llama-3-8b")
LLAMA_3_70B = llama.Config(128_256, 8192, 8, 64, 8, 128, 28_672, 1e-5, 500_000.0)


@pytest.mark.parametrize(
    ("config", "sequence", "options"),
    [
        (LLAMA_3_8B, 8192, {"flash": False}),
        (LLAMA_3_8B, 512, {"chunked": False}),
        (LLAMA_3_70B, 8192, {"flash": False, "chunked": False}),
        (LLAMA_3_70B, 200, {}),
    ],
    ids=["8B", "8B, flash", "8 layers of 70B", "8 layers of 70B, flash"],
)
def test_full_size_without_the_memory(config, sequence, options):
    predicted = cost.activations(config, 1, sequence, dtype="bfloat16", **options)
    measured = measured_activations(config, 1, sequence, dtype="bfloat16", **options)
    assert predicted.bytes == measured.activations > 2e9
    places = [f"{row.part}.{row.array}" for row in predicted.rows]
    assert {*places} <= {kept.name for kept in measured.arrays}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_beside_what_autograd_saves_for_a_layer(name):
    """The same network in PyTorch, with its fused operators.

    PyTorch's layer norm also saves each row's mean. Its RMS norm saves x beside the normalised rows, and its product of SwiGLU SiLU(g).
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import training_models

    config = {"gpt2": gpt2.Config(97, 8, 12, 4, 3, 48), "llama": llama.Config(97, 12, 4, 4, 2, 4, 24)}[name]
    shapes = network_of(config).shapes
    rng = np.random.default_rng(0)
    parameters = {
        n: torch.tensor(rng.standard_normal(shape), dtype=torch.float32) for n, shape in shapes.items()
    }
    tokens = torch.arange(16).reshape(2, 8)
    network = getattr(training_models, name)

    def theirs(layers):
        few = replace(config, layers=layers)
        return autograd_memory(lambda p: network(p, tokens, tokens, few), parameters).activations

    def ours(layers):
        return cost.activations(replace(config, layers=layers), 2, 8).bytes

    rows, h, f, width = 2 * 8, config.width, config.feed_forward, 4
    more = -2 * rows if name == "gpt2" else -rows * f - 2 * rows * h
    for n in (1, 2, 3):
        assert (ours(n + 1) - ours(n)) - (theirs(n + 1) - theirs(n)) == width * more


def test_autograd_of_a_known_function():
    x, w = torch.randn(5, 3), torch.randn(3, 7)
    # x @ w saves both; tanh saves its result; the product with 2 saves nothing.
    found = autograd_memory(lambda p: 2 * torch.tanh(x @ p["w"]).mean(), {"w": w})
    assert (found.activations, found.parameters) == (4 * (15 + 35), 0)
    found = autograd_memory(lambda p: (p["a"] @ p["w"]).tanh().mean(), {"w": w, "a": x})
    assert (found.activations, found.parameters) == (4 * 35, 4 * (15 + 21))


def test_shown_in_a_terminal_and_in_a_notebook():
    found = cost.activations(gpt2.Config.preset("gpt2"), 1, 1024)
    assert "h.0 … h.11  gelu" in repr(found) and "4·b·s·f" in repr(found)
    assert found._repr_html_().count("<tr>") == len(repr(found).splitlines()) - 2
    assert f"{found.bytes:,} bytes = {found.bytes / 2**20:,.1f} MiB" in repr(found)
    assert r"\(4\,b\,s\,f\)" in found._repr_html_()


def test_numbers_are_read_as_products():
    probes = Probes(free=True)
    own = probes.lengths
    b, s, n_h, n_kv, d, V = (symbol(x) for x in ("b", "s", "n_h", "n_kv", "d", "V"))
    assert probes.read(own["b"] * own["n_h"] * own["s"] ** 2) == b * n_h * s**2
    assert probes.read(own["n_h"] // own["n_kv"] * own["s"]) == n_h * s / n_kv
    assert probes.read(own["d"] // 2) == d / 2
    with pytest.raises(ValueError, match="expected a product of"):
        probes.read(own["s"] * own["V"] + 1)
    assert in_text(3 * V * s**2 * b + s * d / 2 + 4) == "3·b·s²·V + s·d/2 + 4"
    assert in_latex(n_h * s / n_kv) == r"n_{h}\,s/n_{kv}"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: cost.activations(c, 0, 3), ValueError, "batch: expected at least 1; got 0"),
        (lambda c: cost.activations(c, 2, 2.0), TypeError, "sequence: expected an integer; got float"),
        (lambda c: cost.activations(c, 2, 10), ValueError, "sequence: expected at most 9"),
        (
            lambda c: cost.activations(c, 2, (2, 3)),
            ValueError,
            r"sequence: expected one length; got \(2, 3\)",
        ),
        (lambda c: cost.activations(c, 2, 3, dtype="int8"), ValueError, "dtype: expected 'float16' or"),
        (
            lambda c: cost.activations(c, 2, 3, wanted="wte.weight"),
            TypeError,
            "wanted: expected a collection",
        ),
        (
            lambda c: cost.activations(c, 2, 3, wanted=["w"]),
            ValueError,
            "wanted: expected names of parameters",
        ),
        (
            lambda c: cost.activations(None, 2, 3),
            TypeError,
            "config: expected a Config of a model .* or the name",
        ),
        (lambda c: cost.activations("gpt2-124", 2, 3), LookupError, "gpt2-124m"),
        (lambda c: cost.memory_budget("gpt2-124", 2, 3), LookupError, "gpt2-124m"),
        (lambda c: measured_activations("gpt2-124", 2, 3), LookupError, "gpt2-124m"),
    ],
)
def test_rejections(call, error, message):
    with pytest.raises(error, match=message):
        call(gpt2.Config(7, 9, 6, 2, 3, 5))
