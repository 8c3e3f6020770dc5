"""The sizes of networks: what a ``config.json``, options, and symbols may ask for, and what is rejected by name."""

import sys
from pathlib import Path

import pytest
import sympy

from backpass import cost
from backpass.cost.measured import autograd_memory, measured_activations
from backpass.cost.steps import published_steps
from backpass.cost.timeline import measured_timeline
from backpass.models import encoder, gpt2, llama, seq2seq

ENCODER = encoder.Config(6, 2, 3, 5)
SEQ2SEQ = seq2seq.Config(6, 2, 3, 3, 5)
DROPPING = gpt2.Config(7, 6, 6, 2, 3, 5, attention_dropout=0.3)


@pytest.mark.parametrize(
    "fault, call",
    [
        ("source: expected at least 1; got 0", lambda: cost.tally(SEQ2SEQ, 2, 3, source=0)),
        ("source: expected at least 1; got -3", lambda: cost.tally(SEQ2SEQ, 2, 3, source=-3)),
        ("source: expected an integer; got float", lambda: cost.tally(SEQ2SEQ, 2, 3, source=2.5)),
        ("sequence: expected an integer; got tuple", lambda: cost.tally(SEQ2SEQ, 2, (3, 4))),
        ("masks: expected True or False; got int", lambda: cost.tally(DROPPING, 2, 3, masks=1)),
        ("flash: expected True or False; got str", lambda: cost.tally(ENCODER, 2, 3, flash="no")),
        ("flash: expected True or False; got NoneType", lambda: cost.traffic("gpt2", 2, 3, flash=None)),
        ("chunked: expected True or False; got str", lambda: cost.tally("gpt2", 2, 3, chunked="no")),
        (
            "chunked: expected False for a stack of layers, which has no output head; got True",
            lambda: cost.tally(ENCODER, 2, 3, chunked=True),
        ),
        ("chunked: expected False for a stack", lambda: cost.tally(SEQ2SEQ, 2, 3, chunked=True)),
        ("distinct: expected at most 6, the number of tokens", lambda: cost.tally("gpt2", 2, 3, distinct=7)),
        (
            "no option of gpt2 is called 'bogus'; there are: flash, chunked, masks, distinct, wanted",
            lambda: cost.tally("gpt2-124m", 1, 8, bogus=1),
        ),
        ("no option of gpt2 is called 'source'; there are", lambda: cost.traffic("gpt2", 1, 8, source=0)),
        (
            "no option of llama is called 'mask'; there are: flash, chunked, distinct, wanted",
            lambda: cost.duration("llama-3-8b", 1, 8, "h100", mask=True),
        ),
        (
            "no option of encoder is called 'masks'; there are: flash, wanted",
            lambda: cost.tally(ENCODER, 2, 3, masks=True),
        ),
        (
            "no option of seq2seq is called 'sources'; did you mean 'source'",
            lambda: cost.tally(SEQ2SEQ, 2, 3, sources=4),
        ),
        (
            "no option of gpt2 is called 'tide'; did you mean 'tied'",
            lambda: cost.symbolic_tally("gpt2", tide=True),
        ),
        (
            "no option of llama is called 'source'; there are",
            lambda: cost.symbolic_traffic("llama", source=3),
        ),
    ],
)
def test_options_that_do_not_fit_a_network(fault, call):
    with pytest.raises((TypeError, ValueError), match=fault):
        call()


def test_options_that_fit():
    assert cost.tally(SEQ2SEQ, 2, 3, source=3).rows == cost.tally(SEQ2SEQ, 2, 3).rows
    assert cost.tally(SEQ2SEQ, 2, 3, source=4).total() > cost.tally(SEQ2SEQ, 2, 3, source=None).total()
    assert cost.tally(ENCODER, 2, 3, chunked=False).rows == cost.tally(ENCODER, 2, 3).rows
    assert cost.tally(DROPPING, 2, 3, masks=True).total() > cost.tally(DROPPING, 2, 3).total()


@pytest.mark.parametrize("of_family", [cost.symbolic_tally, cost.symbolic_traffic])
@pytest.mark.parametrize("family", ["gpt2", "llama", "encoder", "seq2seq"])
def test_what_symbols_lack_is_rejected(of_family, family):
    layers = "encoder_layers" if family == "seq2seq" else "layers"
    for option, fault in (
        (
            {"flash": True},
            "flash: expected False in symbols, because FlashAttention's tiles depend on the numbers",
        ),
        ({"chunked": "no"}, "chunked: expected True or False; got str"),
        ({"masks": True}, "masks: expected False in symbols, which have no dropout; got True"),
        ({"flash": "no"}, "flash: expected True or False; got str"),
        (
            {"wanted": ["x"]},
            "wanted: expected None, for all gradients, where the number of layers is a symbol; "
            f"give {layers} a number",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=fault):
            of_family(family, **option)
    plain = of_family(family, flash=False, chunked=False, masks=False, wanted=None)
    assert plain.rows == of_family(family).rows


@pytest.mark.parametrize("of_family", [cost.symbolic_tally, cost.symbolic_traffic])
def test_a_chunked_head_in_symbols(of_family):
    of_config = {cost.symbolic_tally: cost.tally, cost.symbolic_traffic: cost.traffic}[of_family]
    config = gpt2.Config(7, 6, 6, 2, 3, 5)
    expected = of_config(config, 2, 4, chunked=True).total()
    formula = of_family("gpt2", chunked=True).total()
    numbers = {"b": 2, "s": 4, "h": 6, "n_h": 3, "f": 5, "V": 7, "S": 6, "L": 2}
    assert formula.subs({letter: numbers[letter.name] for letter in formula.free_symbols}) == expected
    assert of_config(config, 2, 4).total() != expected
    with pytest.raises(ValueError, match="chunked: expected False for a stack of layers"):
        of_family("encoder", chunked=True)


def test_symbols_with_numbers_of_layers_have_a_choice_of_gradients():
    found = cost.symbolic_tally("gpt2", layers=3, wanted=["h.1.mlp.c_fc.bias"]).flops()
    config = gpt2.Config(7, 6, 6, 3, 3, 5)
    expected = cost.tally(config, 2, 4, wanted=["h.1.mlp.c_fc.bias"]).flops()
    numbers = {"b": 2, "s": 4, "h": 6, "n_h": 3, "f": 5, "V": 7, "S": 6}
    for way, flops in expected.items():
        formula = sympy.sympify(found[way])
        assert formula.subs({letter: numbers[letter.name] for letter in formula.free_symbols}) == flops


GPT2 = gpt2.to_hugging_face(gpt2.Config.preset("gpt2"))
LLAMA = llama.to_hugging_face(llama.Config.preset("llama-3-8b"))


@pytest.mark.parametrize(
    "json, names, wrong",
    [
        (LLAMA, ["LlamaForSequenceClassification"], "'LlamaForSequenceClassification'"),
        (LLAMA, ["LlamaForCausalLM", "LlamaModel"], "'LlamaModel'"),
        (GPT2, ["GPT2DoubleHeadsModel"], "'GPT2DoubleHeadsModel'"),
        (GPT2, ["GPT2Model"], "'GPT2Model'"),
        (GPT2, [None], "None"),
    ],
)
def test_another_head_or_none_is_rejected(json, names, wrong):
    fault = f"architectures: expected names that end in ForCausalLM or LMHeadModel, .* got {wrong}"
    with pytest.raises(ValueError, match=fault):
        cost.from_hugging_face(json | {"architectures": names})


@pytest.mark.parametrize("json", [GPT2, LLAMA])
def test_a_file_without_classes_has_an_output_head(json):
    expected = cost.from_hugging_face(json)
    without = {key: value for key, value in json.items() if key != "architectures"}
    for given in (without, json | {"architectures": None}, json | {"architectures": []}):
        assert cost.from_hugging_face(given) == expected
    with pytest.raises(ValueError, match="architectures: expected a list of names; got 'GPT2LMHeadModel'"):
        cost.from_hugging_face(json | {"architectures": "GPT2LMHeadModel"})


MISTRAL = {
    **{key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "head_dim")},
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": None,
}


@pytest.mark.parametrize("given", [{}, {"num_key_value_heads": 4}, {"head_dim": 64}], ids=str)
def test_a_mistral_without_a_sliding_window_is_a_llama(given):
    """It has the parameters of Hugging Face's network, with its defaults for missing keys."""
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
    json = {**MISTRAL, **small, "intermediate_size": 50, **given}
    config = cost.from_hugging_face(json)
    theirs = transformers.MistralForCausalLM(transformers.MistralConfig(**json)).state_dict()
    shapes = llama.parameter_shapes(config)
    assert {name.removeprefix("model."): tuple(x.shape) for name, x in theirs.items()} == shapes
    of_object = transformers.MistralConfig(**json).to_dict()
    assert cost.from_hugging_face(of_object) == config


def test_a_sliding_window_is_rejected_by_name():
    missing = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    for json in (MISTRAL | {"sliding_window": 4096}, missing):  # Hugging Face's default is 4096
        for use in ({}, {"use_sliding_window": False}):  # which a Mistral does not read
            with pytest.raises(ValueError, match="sliding_window: 4096 is not available; only None"):
                cost.from_hugging_face(json | use)


@pytest.mark.parametrize(
    "given, hint",
    [
        (LLAMA, r"got dict; for a config\.json, pass cost\.from_hugging_face\(config\)"),
        (Path("config.json"), r"got PosixPath; for a file, pass cost\.from_hugging_face\(json\.loads"),
        ("config.json", r"no preset is called 'config\.json'.*; for a file, pass cost\.from_hugging_face"),
        ("models/llama", r"for a file, pass cost\.from_hugging_face"),
    ],
    ids=str,
)
@pytest.mark.parametrize("function", [cost.tally, cost.activations, published_steps])
def test_what_has_to_be_read_first(function, given, hint):
    with pytest.raises((TypeError, LookupError), match=hint):
        function(given, 1, 8)


def test_an_object_of_transformers_has_to_be_read_first():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(**LLAMA)
    hint = r"got LlamaConfig; pass cost\.from_hugging_face\(config\.to_dict\(\)\)"
    with pytest.raises(TypeError, match=hint):
        cost.tally(config, 1, 8)
    assert cost.from_hugging_face(config.to_dict()) == llama.Config.preset("llama-3-8b")


def test_a_rotation_of_a_part_of_each_head_is_not_free():
    """Unlike a scaling of the rotations, which costs nothing."""
    scaled = LLAMA | {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "partial_rotary_factor": 1.0}}
    assert cost.from_hugging_face(scaled).head_width == 128
    assert cost.from_hugging_face(LLAMA).base == llama.Config.preset("llama-3-8b").base
    with pytest.raises(ValueError, match="rope_theta: expected a number above 0; got 0"):
        cost.from_hugging_face(LLAMA | {"rope_parameters": {"rope_theta": 0}})
    for key in ("rope_parameters", "rope_scaling"):
        with pytest.raises(ValueError, match=r"partial_rotary_factor: 0\.5 is not available; only 1\.0"):
            cost.from_hugging_face(LLAMA | {key: {"partial_rotary_factor": 0.5}})


@pytest.mark.parametrize("function", [cost.timeline, measured_timeline, measured_activations])
def test_without_pytorch_the_extra_is_named(monkeypatch, function):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ImportError, match=rf"{function.__name__} needs PyTorch, which comes with backpass\[torch\]"
    ):
        function("gpt2", 1, 8)
    with pytest.raises(ImportError, match=r"autograd_memory needs PyTorch"):
        autograd_memory(lambda p: p["w"].sum(), {})
