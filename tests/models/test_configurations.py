"""Configurations: what a ``config.json`` may ask for, and what is rejected by name."""

import json

import numpy as np
import pytest
import transformers

from backpass.models import gpt2, llama

from .hugging_face import FAMILIES


def file(family, **changes):
    """What transformers writes for the default configuration."""
    return json.loads(getattr(transformers, f"{family}Config")(**changes).to_json_string())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_defaults_of_transformers(family):
    config = FAMILIES[family].Config.from_hugging_face(file(family))
    if family == "GPT2":
        assert config == gpt2.Config.preset("gpt2")
    else:
        assert (config.biases, config.query_key_norm) == (family == "Qwen2", family == "Qwen3")
        assert (config.base, config.eps, config.tied) == (10000.0, 1e-6, False)


def test_the_file_of_a_published_model():
    """As Qwen2-0.5B's is: an older form, with a window that is not used."""
    published = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 131072,
        "max_window_layers": 24,
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }
    assert llama.Config.from_hugging_face(published) == llama.Config.preset("qwen2-0.5b")


REJECTED = [
    (
        "GPT2",
        {"activation_function": "relu"},
        "activation_function: 'relu' is not available; only 'gelu_new'",
    ),
    (
        "GPT2",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx: True is not available",
    ),
    ("GPT2", {"add_cross_attention": True}, "add_cross_attention: True is not available"),
    ("Llama", {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not available; only 'silu' or 'swish'"),
    ("Llama", {"attention_dropout": 0.1}, "attention_dropout: 0.1 is not available"),
    ("Llama", {"attention_bias": True}, "attention_bias: True is not available"),
    ("Llama", {"mlp_bias": True}, "mlp_bias: True is not available"),
    ("Llama", {"is_causal": False}, "is_causal: False is not available; only True"),
    ("GPT2", {"is_causal": False}, "is_causal: False is not available; only True"),
    ("Llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type: 'linear' is not available"),
    (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        "rope_type: 'yarn' is not available; only 'default'",
    ),
    ("Llama", {"sliding_window": 512}, "sliding_window: 512 is not available"),
    (
        "Llama",
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor: 0.5 is not available; only 1.0",
    ),
    (
        "Qwen2",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
        "partial_rotary_factor: 0.25 is not available; only 1.0",
    ),
    (
        "Llama",
        {"layer_types": "full_attention"},
        "layer_types: 'full_attention' is not available; only [] or ['full_attention']",
    ),
    ("Llama", {"hidden_size": "4096"}, "hidden_size: expected an integer of at least 1; got '4096'"),
    ("Llama", {"num_key_value_heads": 0}, "num_key_value_heads: expected an integer of at least 1; got 0"),
    ("Qwen3", {"head_dim": 0}, "head_dim: expected an integer of at least 1; got 0"),
    ("GPT2", {"n_embd": "768"}, "n_embd: expected an integer of at least 1; got '768'"),
    ("GPT2", {"n_inner": 0}, "n_inner: expected an integer of at least 1; got 0"),
    ("Llama", {"num_local_experts": 8}, "num_local_experts: 8 is not available"),
    ("Llama", {"quantization_config": {"bits": 4}}, "quantization_config: {'bits': 4} is not available"),
    ("Llama", {"rope_parameters": None, "rope_theta": 0}, "rope_theta: expected a number above 0; got 0"),
    (
        "Qwen3",
        {"rope_parameters": {"rope_theta": -1e4}},
        "rope_theta: expected a number above 0; got -10000.0",
    ),
    (
        "Qwen2",
        {"rope_parameters": {"rope_theta": 0.0}, "rope_theta": 1e4},
        "rope_theta: expected a number above 0",
    ),
    ("Llama", {"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta: expected a number above 0; got '1e4'"),
    ("Qwen3", {"use_sliding_window": True}, "use_sliding_window: True is not available"),
    (
        "Qwen3",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types: ['full_attention', 'sliding_",
    ),
]


@pytest.mark.parametrize(("family", "change", "message"), REJECTED, ids=lambda part: str(part)[:30])
def test_what_is_not_available_is_rejected_by_name(family, change, message):
    asked = file(family)
    if "rope_scaling" in change:
        del asked["rope_parameters"]
    with pytest.raises(ValueError) as raised:
        FAMILIES[family].Config.from_hugging_face(asked | change)
    heading, *faults = str(raised.value).splitlines()
    assert heading == "the configuration does not fit:"
    assert len(faults) == 1 and message in faults[0]


def test_heads_share_the_width_where_their_own_is_missing():
    asked = file("Llama") | {"hidden_size": 70, "num_attention_heads": 4, "num_key_value_heads": None}
    assert llama.Config.from_hugging_face(asked | {"head_dim": 6}).head_width == 6
    assert llama.Config.from_hugging_face(asked | {"hidden_size": 72, "head_dim": None}).head_width == 18
    assert llama.Config.from_hugging_face(asked | {"head_dim": 6}).key_heads == 4
    for given in ({"head_dim": None}, {}):
        change = {key: value for key, value in asked.items() if key != "head_dim"} | given
        fault = (
            "hidden_size: expected a multiple of num_attention_heads = 4 where head_dim is missing; got 70"
        )
        with pytest.raises(ValueError, match=fault):
            llama.Config.from_hugging_face(change)


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_a_window_is_not_used_by_default(family):
    """As in transformers, whose default is not to use it; Llama's files have no such key."""
    asked = {
        key: value for key, value in file(family).items() if key not in ("use_sliding_window", "layer_types")
    }
    asked["sliding_window"] = 4096
    theirs = getattr(transformers, f"{family}Config")(**asked)
    assert theirs.sliding_window is None
    assert llama.Config.from_hugging_face(asked) == llama.Config.from_hugging_face(file(family))


@pytest.mark.parametrize(
    ("change", "base"),
    [
        ({}, 10000.0),
        ({"rope_theta": None}, 10000.0),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_theta": None}}, 7.0),
        ({"rope_theta": 7.0, "rope_parameters": {}}, 7.0),
        ({"rope_theta": 7.0, "rope_scaling": {"rope_theta": 3.0}}, 3.0),
    ],
)
def test_the_base_of_the_rotations_is_read_and_has_a_default(change, base):
    lacking = {key: value for key, value in file("Llama").items() if not key.startswith("rope")}
    assert llama.Config.from_hugging_face(lacking | change).base == base


def test_every_fault_of_a_file_is_named_at_once():
    with pytest.raises(ValueError) as raised:
        llama.Config.from_hugging_face(
            {
                "model_type": "qwen3",
                "hidden_size": 8,
                "rope_theta": 0,
                "hidden_act": "gelu",
                "attention_bias": True,
            }
        )
    assert [line.strip().partition(":")[0] for line in str(raised.value).splitlines()[1:]] == [
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "rope_theta",
        "hidden_act",
        "attention_bias",
    ]


def test_gpt2s_rates_of_dropout_are_read():
    asked = {"embd_pdrop": 0.0, "attn_pdrop": 0.2, "resid_pdrop": 0.3}
    config = gpt2.Config.from_hugging_face(file("GPT2") | asked)
    assert (config.embedding_dropout, config.attention_dropout, config.residual_dropout) == (0.0, 0.2, 0.3)
    without = {key: value for key, value in file("GPT2").items() if key not in asked}
    assert gpt2.Config.from_hugging_face(without) == gpt2.Config.preset("gpt2")
    with pytest.raises(ValueError, match=r"residual_dropout: expected a probability from 0 to 1; got 1\.5"):
        gpt2.Config.from_hugging_face(file("GPT2") | {"resid_pdrop": 1.5})


def test_llamas_dropout_is_rejected_unless_the_file_is_read_without_it():
    asked = file("Llama") | {"attention_dropout": 0.1}
    with pytest.raises(ValueError, match=r"attention_dropout: 0\.1 is not available; only 0"):
        llama.Config.from_hugging_face(asked)
    config = llama.Config.from_hugging_face(asked, without_dropout=True)
    assert config == llama.Config.from_hugging_face(file("Llama"))


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "gpt2", None])
def test_another_architecture_is_rejected(model_type):
    with pytest.raises(
        ValueError, match=f"model_type: expected 'llama' or 'qwen2' or 'qwen3'; got {model_type!r}"
    ):
        llama.Config.from_hugging_face({"model_type": model_type})
    with pytest.raises(TypeError, match=r"json: expected the mapping of a config.json; got str"):
        llama.Config.from_hugging_face("config.json")


def test_sizes_that_do_not_fit():
    for build, message in (
        (lambda: gpt2.Config(7, 6, 6, 2, 4, 5), "heads: expected a divisor of width = 6; got 4"),
        (lambda: gpt2.Config(7, 6, 6, 0, 3, 5), "layers: expected an integer of at least 1; got 0"),
        (lambda: llama.Config(8, 6, 2, 4, 3, 4, 5), "key_heads: expected a divisor of heads = 4; got 3"),
        (lambda: llama.Config(8, 6, 2, 4, 2, 3, 5), "head_width: expected an even number; got 3"),
        (lambda: llama.Config(8, 6, 2, 4, 2, 4, 5, base=0.0), "base: expected a number above 0; got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


def test_values_of_a_wrong_kind_are_named():
    sizes = (8, 6, 2, 4, 2, 4, 5)
    for error, message, build in (
        (
            TypeError,
            "tied: expected True or False; got str",
            lambda: gpt2.Config(7, 6, 6, 2, 3, 5, tied="no"),
        ),
        (
            ValueError,
            "layers: expected an integer of at least 1; got '2'",
            lambda: gpt2.Config(7, 6, 6, "2", 3, 5),
        ),
        (TypeError, "biases: expected True or False; got int", lambda: llama.Config(*sizes, biases=1)),
        (TypeError, "base: expected a real number; got str", lambda: llama.Config(*sizes, base="1e4")),
        (ValueError, "layers: expected an integer .* got True", lambda: gpt2.Config(7, 6, 6, True, 3, 5)),
        (
            ValueError,
            "heads: expected an integer of at least 1; got 0",
            lambda: llama.Config.from_hugging_face(
                {k: v for k, v in file("Llama").items() if k != "head_dim"} | {"num_attention_heads": 0}
            ),
        ),
        (
            ValueError,
            "rope_parameters: expected a mapping; got list",
            lambda: llama.Config.from_hugging_face(file("Llama") | {"rope_parameters": [1]}),
        ),
        (
            ValueError,
            "rope_scaling: expected a mapping; got int",
            lambda: llama.Config.from_hugging_face(file("Llama") | {"rope_scaling": 0}),
        ),
    ):
        with pytest.raises(error, match=message):
            build()
    assert gpt2.Config(*map(np.int64, (7, 6, 6, 2, 3, 5))) == gpt2.Config(7, 6, 6, 2, 3, 5)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(LookupError, match="no preset is called 'gpt2-x'; did you mean 'gpt2-xl'"):
        gpt2.Config.preset("gpt2-x")


CONFIGS = [
    (gpt2, gpt2.Config(11, 9, 12, 2, 3, 20, eps=1e-3)),
    (gpt2, gpt2.Config(11, 9, 12, 2, 3, 48, 1e-5, False, 0.1, 0.2, 0.3)),
    (llama, llama.Config(11, 12, 2, 4, 2, 6, 10, eps=1e-5, base=50.0)),
    (llama, llama.Config(11, 12, 2, 4, 4, 3 * 2, 10, tied=True)),
    (llama, llama.Config(11, 12, 2, 6, 2, 2, 10, biases=True)),
    (llama, llama.Config(11, 12, 2, 4, 2, 8, 10, query_key_norm=True, tied=True)),
]


@pytest.mark.parametrize(("module", "config"), CONFIGS)
def test_the_file_that_is_written_is_read(module, config):
    written = json.loads(json.dumps(module.to_hugging_face(config)))
    assert module.Config.from_hugging_face(written) == config


@pytest.mark.parametrize(("module", "config"), CONFIGS)
def test_transformers_makes_the_same_model_of_it(module, config):
    written = module.to_hugging_face(config)
    theirs = transformers.AutoConfig.for_model(**written)
    model = transformers.AutoModelForCausalLM.from_config(theirs)
    assert type(model).__name__ == written["architectures"][0]
    prefixed = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert {name.removeprefix(module.PREFIX): shape for name, shape in prefixed.items()} == (
        module.parameter_shapes(config)
    )
    assert module.Config.from_hugging_face(json.loads(model.config.to_json_string())) == config


def test_a_model_that_hugging_face_lacks_is_not_written():
    both = llama.Config(11, 12, 2, 4, 2, 8, 10, biases=True, query_key_norm=True)
    with pytest.raises(ValueError, match="expected biases or query_key_norm; got both"):
        llama.to_hugging_face(both)


@pytest.mark.parametrize(("module", "config"), CONFIGS)
def test_the_names_of_the_parts(module, config):
    """One for each part that saves something; each parameter belongs to exactly one."""
    names = module.part_names(config)
    rng = np.random.default_rng(0)
    shapes = module.parameter_shapes(config)
    parameters = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    tokens = np.arange(5)
    _, saved = module.forward(parameters, tokens, tokens, config=config)
    assert len(names) == len(saved.parts) == len(set(names))
    for name in shapes:
        assert sum(name.startswith(f"{part}.") for part in names) == 1, name
    assert [i for i, name in enumerate(names) if name[-1].isdigit()] == [
        i for i, part in enumerate(saved.parts) if type(part).__module__.endswith("_layer")
    ]
