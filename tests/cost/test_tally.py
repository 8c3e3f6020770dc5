"""The rows of a network's tally sum to what is counted when it runs, under the conventions too; its products are those
that PyTorch counts; and symbols have the FLOPs of numbers."""

import csv
import io
import math

import numpy as np
import pytest
import sympy
import torch
import transformers

from backpass import cost
from backpass.cost.tally import CONVENTIONS
from backpass.interpreters import closed_world, counting
from backpass.models import encoder, gpt2, llama, seq2seq

CONFIGS = {
    "gpt2": gpt2.Config(7, 6, 6, 2, 3, 5),
    "llama": llama.Config(8, 6, 2, 4, 2, 4, 5),
    "qwen2, tied": llama.Config(8, 6, 2, 4, 1, 2, 5, biases=True, tied=True),
    "qwen3": llama.Config(8, 6, 2, 4, 2, 4, 5, query_key_norm=True),
}


def run(module, config, monkeypatch, **options):
    """What is counted in a forward and a backward: the FLOPs, and the sums of elements."""
    rng = np.random.default_rng(3)
    parameters = {
        name: counting.array(rng.standard_normal(shape))
        for name, shape in module.parameter_shapes(config).items()
    }
    tokens, targets = rng.integers(0, config.vocabulary, (2, 2, 5))
    sums = []
    of_last = closed_world.Namespace._sum_last

    def counted(self, terms, zero):
        if terms.dtype == object:  # of numbers that count, not of integers
            sums[-1] += math.prod(terms.shape[:-1])
        return of_last(self, terms, zero)

    monkeypatch.setattr(closed_world.Namespace, "_sum_last", counted)
    found = []
    for way in ("forward", "backward"):
        sums.append(0)
        with counting.tally() as each:
            if way == "forward":
                inputs = counting.array(tokens), counting.array(targets)
                _, saved = module.forward(parameters, *inputs, config=config, **options)
            else:
                module.backward(saved)
        found.append((each.total, sums[-1]))
    return found, len(np.unique(tokens))


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_rows_are_what_is_counted(name, chunked, monkeypatch):
    config = CONFIGS[name]
    module = gpt2 if name == "gpt2" else llama
    options = {"flash": False, "chunked": chunked}
    (forward, backward), distinct = run(module, config, monkeypatch, **options)
    found = cost.tally(config, 2, 5, distinct=distinct, **options)
    assert found.flops() == {"forward": forward[0], "backward": backward[0], "recomputation": 0}
    if not chunked:  # a chunk's sum goes on in the next chunk's, and is one sum of the tally's
        of_sums = found.flops("sum-n")
        assert of_sums == {"forward": sum(forward), "backward": sum(backward), "recomputation": 0}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_rows_of_flash_attention_are_its_formula(name):
    config = CONFIGS[name]
    module = gpt2 if name == "gpt2" else llama
    names = list(module.parameter_shapes(config))
    for wanted in (None, names[:1], names[3:5], names[-1:]):
        found = cost.tally(config, 2, 5, flash=True, wanted=wanted)
        parts = module.calls(config, 2, 5, flash=True, chunked=False, wanted=wanted)
        for way in ("forward", "backward"):
            expected = sum(
                part.repeats * sum(getattr(call, f"{way}_flops")() for call in part.calls) for part in parts
            )
            assert found.flops()[way] == expected


def hugging_face(name):
    """A model of Hugging Face on the meta device, with plain attention, and our tally's config."""
    if name == "gpt2":
        config, ours = transformers.GPT2Config(), gpt2.Config.preset("gpt2")
        kind = transformers.GPT2LMHeadModel
    else:
        ours = llama.Config.preset("llama-3-8b")
        config = transformers.LlamaConfig(
            vocab_size=ours.vocabulary,
            hidden_size=ours.width,
            num_hidden_layers=ours.layers,
            num_attention_heads=ours.heads,
            num_key_value_heads=ours.key_heads,
            head_dim=ours.head_width,
            intermediate_size=ours.feed_forward,
        )
        kind = transformers.LlamaForCausalLM
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return kind(config), ours


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_products_are_those_that_pytorch_counts(name):
    model, config = hugging_face(name)
    b, s = 1, 1024
    tokens = torch.zeros((b, s), dtype=torch.int64, device="meta")
    # It imports triton, which tests/kernels has to set up before any test runs.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as forward:
        loss = model(tokens).logits.float().mean()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    found = cost.tally(config, b, s).flops("products-whole")
    assert forward.get_total_flops() == found["forward"]
    assert backward.get_total_flops() == found["backward"]


@pytest.mark.parametrize(
    "family, options, config",
    [
        ("gpt2", {}, CONFIGS["gpt2"]),
        ("llama", {"biases": True, "tied": True}, CONFIGS["qwen2, tied"]),
        ("llama", {"query_key_norm": True}, CONFIGS["qwen3"]),
        ("encoder", {"norm_first": True}, encoder.Config(6, 3, 2, 5, norm_first=True)),
        ("seq2seq", {}, seq2seq.Config(6, 2, 3, 3, 5)),
    ],
)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_symbols_are_numbers(family, options, config, convention):
    symbolic = cost.symbolic_tally(family, **options).flops(convention)
    found = cost.tally(config, 3, 4).flops(convention)
    names = {"h": "width", "L": "layers", "n_h": "heads", "n_kv": "key_heads", "d": "head_width"}
    names |= {"f": "feed_forward", "V": "vocabulary", "L_e": "encoder_layers", "L_d": "decoder_layers"}
    values = {letter: getattr(config, field, None) for letter, field in names.items()} | {"b": 3, "s": 4}
    for way, flops in found.items():
        formula = sympy.sympify(symbolic[way])
        assert formula.subs({symbol: values[symbol.name] for symbol in formula.free_symbols}) == flops


def test_recomputation_is_the_forward_of_the_layers():
    plain, again = (cost.tally("llama-3-8b", 1, 64, recompute=how) for how in (None, 1))
    layers = plain.only(lambda row: row.part == "layer")
    assert again.flops()["recomputation"] == layers.flops()["forward"] > 0
    assert again.model().flops() == plain.flops()
    assert again.ratio() > plain.ratio()


def test_scores_by_mask():
    of_scores = cost.tally("gpt2", 1, 1024).only(lambda row: row.term.stem == "attention")
    whole, halved, triangle = (of_scores.total(f"products-{how}") for how in ("whole", "halved", "triangle"))
    assert whole == 12 * 12 * 1024**2 * 64 * 2 * 6
    assert halved * 2 == whole
    assert triangle * 2 * 1024 == whole * 1025
    flash = cost.tally("gpt2", 1, 1024, flash=True).only(lambda row: row.term.stem == "flash_attention")
    assert flash.model().total("products-triangle") == triangle
    assert flash.total("products-whole") * 6 == whole * 7


def test_a_choice_of_parts_and_the_csv():
    found = cost.tally("gpt2", 2, 8, recompute=1)
    layers = found.without("embedding", "last norm", "output head")
    assert {row.part for row in layers.rows} == {"layer"}
    by_part = found.by(lambda row: row.part)
    assert sum(sum(flops.values()) for flops in by_part.values()) == found.total()
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert sum(int(row["counted"]) for row in rows) == found.total()
    assert {row["call"] for row in rows} >= {"up projection", "attention", "output head"}
    assert "12 × up projection" in repr(found)
    assert "recomputation" in repr(found)
    assert "recomputation" not in repr(cost.tally("gpt2", 2, 8))
    assert "12 × up projection" in found._repr_html_()


@pytest.mark.parametrize(
    "fault, call",
    [
        (r"config: expected a Config .* got int", lambda: cost.tally(3, 1, 1)),
        (r"'llama-3-8'.*llama-3-8b", lambda: cost.tally("llama-3-8", 1, 1)),
        (r"batch: expected at least 1; got 0", lambda: cost.tally("gpt2", 0, 1)),
        (r"sequence: expected an integer; got float", lambda: cost.tally("gpt2", 1, 2.0)),
        (
            r"recompute: expected the number of layers .*; got 'all'",
            lambda: cost.tally("gpt2", 1, 2, recompute="all"),
        ),
        (
            r"recompute: expected names among attention, .*; got 'gelu'",
            lambda: cost.tally("gpt2", 1, 2, recompute=["gelu"]),
        ),
        (r"a Config of a model .* or the name of a preset; got int", lambda: cost.tally(3, 1, 2)),
        (r"'gpt2-124'.*gpt2-124m", lambda: cost.tally("gpt2-124", 1, 2)),
        (r"'6M'", lambda: cost.tally("gpt2", 1, 2).flops("6M")),
        (r"'head'", lambda: cost.tally("gpt2", 1, 2).without("head")),
        (r"'gpt'", lambda: cost.symbolic_tally("gpt")),
    ],
)
def test_faults_are_named(fault, call):
    with pytest.raises((LookupError, TypeError, ValueError), match=fault):
        call()
