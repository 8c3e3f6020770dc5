"""The calculators' script: its tiles, presets, and memory are Python's, and it reads the same configurations of Hugging
Face. tests/book compares every row and every call at random settings."""

import json
import math
import random
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

import recorded
from backpass import cost
from backpass.cost import javascript
from backpass.cost.cluster import layers_of_stages
from backpass.cost.sizes import MODELS
from backpass.cost.steps import published_steps
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.ops import flash_attention

STATIC = Path(__file__).parents[2] / "assets" / "site" / "_static"


@pytest.fixture(scope="module")
def compute(tmp_path_factory):
    """Evaluate an expression of the calculators' script, with ``given`` in it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to run JavaScript in; tests/book runs the same script in Chromium")
    path = tmp_path_factory.mktemp("script") / "calculator.js"
    names = ("calculator_formulas", "calculator_core", "calculator_mesh")
    path.write_text("".join((STATIC / f"{name}.js").read_text() for name in names))

    def run(expression, given):
        program = (
            f"require({json.dumps(str(path))}); "
            "const core = backpassCalculator; const mesh = backpassMesh; const given = JSON.parse(require('fs').readFileSync(0)); "
            "const plain = (key, value) => typeof value === 'bigint' ? String(value) : value; "
            f"console.log(JSON.stringify({expression}, plain))"
        )
        ran = subprocess.run([node, "-e", program], input=json.dumps(given), capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def test_tiles_are_those_of_flash_attention(compute):
    rng = random.Random(3)
    cases = [(rng.randint(1, 40), rng.randint(1, 3000), rng.randint(1, 64)) for _ in range(60)]
    cases += [(1, s, 1) for s in (1, 64, 255, 256, 257, 512)]
    found = compute(
        "given.map(([b, s, n_h]) => core.tiles({b: BigInt(b), s: BigInt(s), n_h: BigInt(n_h)}))", cases
    )
    for (b, s, n_h), each in zip(cases, found, strict=True):
        tiling = flash_attention.tiling_of(s, s, b * n_h, True, "upper_left", None)
        assert (s, int(each["scores"]), int(each["tiles"])) == tiling.counts()


def test_presets_are_pythons(compute):
    """Each configuration is listed once, and its other names are too."""
    known = cost.presets()
    presets, aliases = compute("[backpassCost.presets, backpassCost.aliases]", None)
    assert presets == {name: javascript.setting(known[name]) for name in presets}
    named = [(name, name) for name in presets] + [(name, one) for one in aliases for name in aliases[one]]
    assert sorted(name for name, _ in named) == sorted(known)
    assert all(known[name] == known[one] for name, one in named)
    assert len({*map(repr, presets.values())}) == len(presets)
    families = ["gpt2", "llama", "qwen2", "qwen3", "tinyllama"]
    order = [(families.index(name.split("-")[0]), cost.tally(name, 1, 64).parameters) for name in presets]
    assert order == sorted(order)


def test_rules_are_the_published_formulas(compute):
    """By the names of ``published_steps``, for presets and for the smallest networks."""
    configs = [*cost.presets().values()]
    configs += [gpt2.Config(5, 9, 6, 3, 2, 7, tied=tied) for tied in (False, True)]
    configs += [
        llama.Config(5, 6, 3, 4, 2, 10, 7, tied=one, biases=other, query_key_norm=one != other)
        for one in (False, True)
        for other in (False, True)
    ]
    settings = [javascript.setting(config) | {"b": "3", "s": "7"} for config in configs]
    found = compute("given.map(each => core.rules(core.tally(each)))", settings)
    for config, rules in zip(configs, found, strict=True):
        published = published_steps(config, 3, 7)
        assert [*rules] == ["6n-all", "6n", "palm"]
        assert {name: int(flops) for name, flops in rules.items()} == {
            name: published[name] for name in rules
        }


NUMBERS = {
    "8192": 8192,
    " 8,192 ": 8192,
    "8 192": 8192,
    "1\u202f234\u00a0567": 1234567,
    "1,234,567": 1234567,
    "8,19": None,
    "8,1922": None,
    "81,92": None,
    "1,234 567": None,
    "8192,": None,
    "8.192": None,
    "-8,192": None,
    "8k": None,
    "": None,
}
FRACTIONS = {
    "1,979": 1979,
    "1 979.5": Fraction(3959, 2),
    "0.38": Fraction(19, 50),
    "1.8e13": 18 * 10**12,
    "2.5e-3": Fraction(1, 400),
    "0,38": None,
    "0": None,
    "15T": None,
}
TOKENS = {
    "15T": 15 * 10**12,
    "1.5 T": 15 * 10**11,
    "300B": 300 * 10**9,
    "300G": 300 * 10**9,
    "2.5M": 2_500_000,
    "1,000k": 1_000_000,
    "15e12": 15 * 10**12,
    "15m": None,
    "1e3k": None,
    "T": None,
}


def test_numbers_are_read_exactly(compute):
    """With separated thousands, and with suffixes where tokens are counted."""
    found = compute("given.map(text => core.integer(text) ?? null)", [*NUMBERS])
    assert [None if each is None else int(each) for each in found] == [*NUMBERS.values()]
    for cases, options in ((FRACTIONS, "{}"), (TOKENS, "{suffixes: true}")):
        found = compute(f"given.map(text => core.decimal(text, {options}) ?? null)", [*cases])
        assert [each and Fraction(int(each[0]), int(each[1])) for each in found] == [*cases.values()]


GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
}
CHANGES = {
    "gpt2": [
        {},
        {"n_inner": 100},
        {"n_inner": None},
        {"tie_word_embeddings": False},
        {"activation_function": "relu"},
        {"scale_attn_weights": 1},
        {"add_cross_attention": True, "is_causal": False},
        {"n_head": 7},
        {"n_layer": None},
        {"n_embd": "768"},
        {"n_inner": "3072"},
        {"n_inner": 0},
        {"vocab_size": 0},
        {"tie_word_embeddings": "no"},
        {"tie_word_embeddings": None},
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["GPT2DoubleHeadsModel"]},
        {"architectures": ["GPT2Model"], "n_layer": None},
        {"architectures": []},
        {"model_type": ["gpt2"]},
    ],
    "llama": [
        {},
        {"model_type": "qwen2", "num_key_value_heads": 4},
        {"model_type": "qwen3", "tie_word_embeddings": True},
        {"model_type": "qwen3", "hidden_size": 2048},
        {"model_type": "qwen2", "hidden_size": 2048},
        {"model_type": "qwen3", "head_dim": 64},
        {"model_type": "mixtral"},
        {"model_type": None},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "attention_dropout": 0.1},
        {"num_key_value_heads": 5},
        {"num_key_value_heads": None},
        {"head_dim": 63},
        {"sliding_window": 4096},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": ["full_attention"] * 32},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"num_local_experts": 8, "mlp_bias": True},
        {"hidden_act": "swish", "attention_bias": 0},
        {"hidden_size": 4096.5},
        {"quantization_config": {"bits": 4}},
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]},
        {"architectures": ["LlamaModel"]},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": ""},
        {"architectures": [7]},
        {"architectures": None},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": "8"},
        {"head_dim": 0},
        {"head_dim": None},
        {"hidden_size": "4096"},
        {"hidden_size": 4100},
        {"hidden_size": 4100, "head_dim": 128},
        {"hidden_size": 4100, "model_type": "qwen3"},
        {"num_attention_heads": 0},
        {"partial_rotary_factor": 0.5},
        {"partial_rotary_factor": 1},
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        {"rope_scaling": {"partial_rotary_factor": 1.0, "rope_type": "yarn"}},
        {"rope_scaling": {"partial_rotary_factor": 1.0}, "rope_parameters": {"partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5, "rope_parameters": {}},
        {"layer_types": "full_attention"},
        {"layer_types": None},
        {"layer_types": 32},
        {"model_type": "qwen2", "sliding_window": 4096},
        {"model_type": "qwen3", "sliding_window": 4096},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": None},
        {"model_type": "mistral"},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None},
        {"model_type": "mistral", "sliding_window": 4096, "use_sliding_window": False},
        {"model_type": "mistral", "sliding_window": None, "use_sliding_window": True, "head_dim": 64},
    ],
}


def test_configurations_are_read_as_python_does(compute):
    configs = [GPT2 | change for change in CHANGES["gpt2"]] + [LLAMA | change for change in CHANGES["llama"]]
    expression = (
        "given.map(each => { try { return core.readConfig(JSON.stringify(each)); } "
        "catch (error) { return error.message; } })"
    )
    refused = 0
    for config, found in zip(configs, compute(expression, configs), strict=True):
        try:
            expected = javascript.setting(cost.from_hugging_face(config))
        except (TypeError, ValueError) as error:
            refused += 1
            assert isinstance(found, str), config
            # The entries of the file that Python names; the page names sizes that do not fit together by letters.
            heading, *faults = str(error).splitlines()
            keys = {line.split(":")[0].strip() for line in faults or [heading]} - {
                "heads",
                "key_heads",
                "head_width",
            }
            keys = {"tie_word_embeddings" if key == "tied" else key for key in keys}
            assert keys <= {line.split(":")[0] for line in found.splitlines()}
        else:
            assert found == expected
    assert 30 <= refused < len(configs) - 20


@pytest.mark.parametrize(
    "text, fault", [("{", "not JSON"), ("[]", "expected the object"), ("null", "expected the object")]
)
def test_what_is_not_a_configuration_is_rejected(compute, text, fault):
    expression = "(() => { try { core.readConfig(given); } catch (error) { return error.message; } })()"
    assert fault in compute(expression, text)


FAULTS = [
    ({"h": "4097"}, "gpt2", "n_h: expected a divisor of h = 4097; got 12"),
    ({"s": "2000"}, "gpt2", "s: expected at most S = 1024, the number of learned positions; got 2000"),
    ({"n_kv": "5"}, "llama-3-8b", "n_kv: expected a divisor of n_h = 32; got 5"),
    ({"d": "127"}, "llama-3-8b", "d: expected an even number, because the rotations turn pairs; got 127"),
    ({"b": "0"}, "llama-3-8b", "b: expected an integer of at least 1; got 0"),
    ({"V": "-3"}, "llama-3-8b", "V: expected an integer of at least 1; got -3"),
    ({"f": ""}, "llama-3-8b", "f: expected an integer of at least 1; got nothing"),
    ({"frozen": True, "L_f": "33"}, "llama-3-8b", "L_f: expected at most L = 32; got 33"),
    ({"family": "bert"}, "gpt2", "family: expected one of gpt2, llama, encoder, seq2seq; got bert"),
    ({}, "gpt2", None),
]


def test_impossible_settings_are_rejected(compute):
    settings = [
        javascript.setting(cost.configuration(preset)) | {"b": "1", "s": "64"} | change
        for change, preset, _ in FAULTS
    ]
    found = compute("given.map(core.faults)", settings)
    assert found == [[] if fault is None else [fault] for *_, fault in FAULTS]


def test_fractions_are_rounded_once(compute):
    rng = random.Random(5)
    cases = [(rng.randint(0, 10**30), rng.randint(1, 10**12), rng.randint(0, 5)) for _ in range(100)]
    found = compute(
        "given.map(([a, b, n]) => core.fixed([BigInt(a), BigInt(b)], n))",
        [(str(a), str(b), n) for a, b, n in cases],
    )
    for (a, b, places), text in zip(cases, found, strict=True):
        scaled = (2 * a * 10**places + b) // (2 * b)  # halves go up
        whole, rest = divmod(scaled, 10**places)
        assert text == f"{whole:,}" + (f".{rest:0{places}}" if places else "")
    short = compute(
        "given.map(n => core.scientific(BigInt(n)))", ["0", "999999", "1234567", "99999999", "12344999"]
    )
    assert short == ["0", "999,999", "1.235 × 10⁶", "1.000 × 10⁸", "1.234 × 10⁷"]
    doubles = compute("given.map(core.significant)", [0, 1e-3, 0.99996, 12.344, 99995, 999949, 999950, 1e-4])
    assert doubles == ["0", "0.001000", "1.000", "12.34", "100,000", "999,900", "1.000 × 10⁶", "1.000 × 10⁻⁴"]


def test_a_whole_run(compute):
    setting = javascript.setting(cost.configuration("gpt2")) | {"b": "3", "s": "100", "recompute": True}
    rates = {"tokens": "1000", "peak": "0.5", "mfu": "40", "devices": "4"}
    rates |= {"power": "700.5", "energyPrice": "0.25", "hourPrice": "2"}
    found = compute(
        "(() => { const t = core.tally(given[0]); return core.run(t, core.totals(t.rows, 'products'), given[1]); })()",
        [setting, rates],
    )
    steps = cost.tally("gpt2", 3, 100, recompute=1)
    model = 4 * steps.model().total("products")
    assert (found["steps"], int(found["total"]), int(found["model"])) == (
        "4",
        4 * steps.total("products"),
        model,
    )
    values = {
        name: int(over) / int(under)
        for name, (over, under) in ((name, found[name]) for name in found if isinstance(found[name], list))
    }
    hours = model / (0.5e12 * 0.4) / 3600
    expected = {"hours": hours, "days": hours / 4 / 24, "energy": hours * 0.7005}
    expected |= {"energyCost": hours * 0.7005 * 0.25, "hireCost": hours * 2}
    assert values == pytest.approx(expected, rel=1e-12, abs=0)


def saved_as_python_does(config, setting, choices):
    """The bytes of the saved arrays and of the tables, by the page's names."""
    lengths = int(setting["b"]), int(setting["s"])
    options = {"dtype": choices["weights"], "flash": setting["flash"], "chunked": setting["chunked"]}
    found = cost.activations(config, *lengths, **options)
    parts = found.by_part()
    embedding, *layers, norm = (each for part, each in parts.items() if part not in ("lm_head", "loss"))
    assert len(layers) == config.layers and len({*layers}) == 1
    expected = {"tables of the rotations": found.constants, "saved by the embedding": embedding}
    if setting["recompute"]:
        # What a layer's input has: a float or half-precision number for each token and column.
        width = {"float32": 4}.get(choices["weights"], 2)
        inputs = math.prod((*lengths, config.width, config.layers, width))
        expected |= {"checkpoints: the layers' inputs": inputs, "saved by one layer, recomputed": layers[0]}
    else:
        expected["saved by the layers"] = sum(layers)
    head = parts["lm_head"] + parts.get("loss", 0)  # a chunked head computes the loss
    expected |= {"saved by the last norm": norm, "saved by the output head": head}
    if not setting["recompute"]:
        assert sum(expected.values()) == found.bytes + found.constants
    return expected


def test_memory_is_pythons_at_random_settings(compute):
    """The saved arrays by part, also where lengths are 1; and the total of a budget."""
    rng = random.Random(22)
    cases = []
    for i in range(16):
        config, lengths = cost.configuration(rng.choice([*cost.presets()])), (5000, 1024)
        if i % 2 == 0:  # the smallest networks, in which lengths are often 1
            heads, d, key_heads = (rng.choice([1, 2, 3]) for _ in range(3))
            tied, biases, norms = (rng.random() < 0.5 for _ in range(3))
            layers, f, V = rng.randint(1, 4), rng.randint(1, 2), rng.randint(2, 3)
            config = (
                gpt2.Config(V, 3, heads * d, layers, heads, f, tied=tied)
                if rng.random() < 0.5
                else llama.Config(
                    V, d, layers, heads * key_heads, key_heads, 2 * d, f,
                    tied=tied, biases=biases, query_key_norm=norms,
                )
            )  # fmt: skip
            lengths = (2, 2)
        setting = javascript.setting(config) | {
            letter: str(rng.randint(1, most)) for letter, most in zip("bs", lengths, strict=True)
        }
        setting |= {name: rng.random() < 0.6 for name in ("flash", "chunked", "recompute")}
        weights = rng.choice(["bfloat16", "float16", "float32"])
        master = "none" if weights == "float32" else "float32"
        choices = {"weights": weights, "gradients": weights, "master": master, "moments": "float32"}
        cases.append((config, setting, choices))
    assert any(setting["s"] == "1" and setting["flash"] for _, setting, _ in cases)
    found = compute(
        "given.map(([setting, choices]) => core.memory(core.tally(setting), choices))",
        [(setting, choices) for _, setting, choices in cases],
    )
    budgets = 0
    for (config, setting, choices), page in zip(cases, found, strict=True):
        page = {name: int(each) for name, each in page.items()}
        expected = saved_as_python_does(config, setting, choices)
        saved = {name: each for name, each in [*page.items()][4:] if each or name in expected}
        assert saved == expected, (config, setting, choices)
        if not setting["recompute"]:
            lengths, options = (
                (int(setting["b"]), int(setting["s"])),
                {"flash": setting["flash"], "chunked": setting["chunked"]},
            )
            budget = cost.memory_budget(config, *lengths, dtype=choices["weights"], **options)
            assert sum(page.values()) == budget.bytes
            budgets += 1
    assert 3 < budgets < len(cases) - 3


def test_memory_of_stacks_without_a_head(compute):
    """The saved arrays of an encoder, and of one with a decoder, also where lengths are 1."""
    rng = random.Random(31)
    cases = []
    for i in range(8):
        h_n, d, b, s, t, f = (rng.randint(1, 4 if i % 2 else 2) for _ in range(6))
        one, other = rng.randint(1, 5), rng.randint(1, 5)
        first, last, flash = (rng.random() < 0.5 for _ in range(3))
        if rng.random() < 0.4:
            config = encoder.Config(h_n * d, one, h_n, f, norm_first=first, final_norm=last)
        else:
            config = seq2seq.Config(h_n * d, one, other, h_n, f, norm_first=first)
        lengths = {letter: str(n) for letter, n in (("b", b), ("s", s), ("t", t))}
        cases.append((config, {**javascript.setting(config), **lengths, "flash": flash}))
    choices = {"weights": "float16", "gradients": "float16", "master": "none", "moments": "float32"}
    expression = "given[0].map(setting => core.memory(core.tally(setting), given[1]))"
    for (config, setting), page in zip(
        cases, compute(expression, [[each for _, each in cases], choices]), strict=True
    ):
        b, s, t = (int(setting[letter]) for letter in "bst")
        sequence = s if isinstance(config, encoder.Config) else (t, s)
        found = cost.activations(config, b, sequence, dtype="float16", flash=setting["flash"], chunked=False)
        assert sum(map(int, [*page.values()][4:])) == found.bytes + found.constants, setting
    setting = javascript.setting(encoder.Config(6, 3, 2, 5)) | {"b": "2", "s": "7"}
    whole, some = compute(expression, [[setting, setting | {"recompute": True}], choices])
    layer = int(whole["saved by the layers"]) // 3
    assert int(some["saved by one layer, recomputed"]) == layer
    assert int(some["checkpoints: the layers' inputs"]) == 3 * 2 * 7 * 6 * 2


def test_memory_of_frozen_parts(compute):
    """Gradients, states, and saved arrays are those of what is trained, also where lengths are 1."""
    rng = random.Random(65)
    cases = []
    for i in range(12):
        heads, d, key_heads, f = (rng.randint(1, 3 if i % 2 else 2) for _ in range(4))
        tied, biases, norms = (rng.random() < 0.5 for _ in range(3))
        config = (
            gpt2.Config(5, 7, heads * d, 3, heads, f, tied=tied)
            if i % 3
            else llama.Config(
                5, d, 3, heads * key_heads, key_heads, 2 * d, f,
                tied=tied, biases=biases, query_key_norm=norms,
            )
        )  # fmt: skip
        setting = javascript.setting(config) | {"b": str(rng.randint(1, 3)), "s": str(rng.randint(1, 6))}
        setting |= {name: rng.random() < 0.5 for name in ("flash", "chunked", "recompute")}
        setting |= {"frozen": True, "L_f": str(i % 4)}
        weights = rng.choice(["bfloat16", "float32"])
        master = "none" if weights == "float32" else "float32"
        choices = {"weights": weights, "gradients": weights, "master": master, "moments": "float32"}
        cases.append((config, setting, choices))
    expression = """given.map(([setting, choices]) => {
        const t = core.tally(setting);
        return [t.trained, core.memory(t, choices)];
    })"""
    found = compute(expression, [(setting, choices) for _, setting, choices in cases])
    for (config, setting, choices), (trained, page) in zip(cases, found, strict=True):
        frozen = javascript._frozen(setting["family"], int(setting["L_f"]))
        shapes = MODELS[setting["family"]].parameter_shapes(config)
        wanted = [name for name in shapes if not name.startswith(frozen)]
        options = {name: setting[name] for name in ("flash", "chunked")}
        options |= {"wanted": wanted, "recompute": 1 if setting["recompute"] else None}
        sizes = int(setting["b"]), int(setting["s"])
        budget = cost.memory_budget(config, *sizes, dtype=choices["weights"], **options)
        assert int(trained) == sum(math.prod(shapes[name]) for name in wanted)
        assert sum(map(int, page.values())) == budget.bytes, (config, setting, choices)


def on_mesh(config, mesh, batch, sequence, micro_batch, cluster, dtype, **flags):
    """A case for the page, and what Python says of it."""
    options = {"micro_batch": micro_batch, "dtype": dtype, **flags}
    step = cost.mesh_step(config, mesh, cluster, batch, sequence, **options)
    memory = cost.mesh_memory(config, mesh, batch, sequence, **options)
    setting = javascript.setting(config) | {"b": str(batch), "s": str(sequence), **flags}
    axes = {name: str(n) for name, n in [*vars(mesh).items(), ("micro_batch", micro_batch)]}
    return (setting, axes, cluster, dtype), step, memory


ON_MESH = """given.map(([setting, axes, cluster, dtype]) => {
    const found = core.tally(setting);
    const rates = {dtype, ...core.published(cluster, dtype)};
    const faults = mesh.faults(found, axes);
    if (faults.length) return {faults};
    const of = mesh.time(found, axes, mesh.links(cluster), rates);
    return {...of, faults, mfu: of.mfu("products-whole"), memory: mesh.memory(found, axes, dtype)};
})"""


def test_a_step_on_a_mesh_is_pythons(compute):
    """Its time by what takes it, and the bytes of the rank that holds most, for published and small networks."""
    rng = random.Random(41)
    presets = [c for c in cost.presets().values() if isinstance(c, gpt2.Config | llama.Config)]
    small = [
        gpt2.Config(24, 64, 16, 7, 4, 8),
        gpt2.Config(24, 64, 16, 6, 8, 8, tied=False),
        llama.Config(28, 16, 6, 4, 4, 4, 8, tied=True),
        llama.Config(28, 16, 5, 8, 4, 4, 8, biases=True, query_key_norm=True),
    ]
    cases = []
    while len(cases) < 40:
        config = rng.choice(small if len(cases) % 2 else presets)
        t, c, p = (rng.choice([1, 1, 2, 4]) for _ in range(3))
        chunks = rng.choice([1, 2, 3]) if p > 1 else 1
        mesh, micro = cost.Mesh(rng.choice([1, 2, 16]), t, c, p, chunks), rng.choice([1, 2])
        batch = mesh.data * micro * rng.randint(1, 9)
        sequence = rng.choice([16, 32]) if config in small else 1024
        flags = {"flash": rng.random() < 0.6, "recompute": rng.random() < 0.4}
        names = rng.choice(["h100", "a100"]), rng.choice(["bfloat16", "float32"])
        try:
            cases.append(on_mesh(config, mesh, batch, sequence, micro, *names, **flags))
        except ValueError:  # a mesh that does not divide
            continue
    assert {case[0][0]["family"] for case in cases} == {"gpt2", "llama"}
    found = compute(ON_MESH, [case for case, *_ in cases])
    for (case, step, memory), page in zip(cases, found, strict=True):
        assert page["faults"] == [] and page["ranks"] == step.mesh.ranks
        assert page["shares"] == pytest.approx(dict(step.shares), rel=1e-12, abs=0), case
        assert page["mfu"] == pytest.approx(step.mfu(), rel=1e-12)
        bytes_ = [int(n) for n in page["memory"]["bytes"].values()]
        assert [n for n in bytes_ if n] == [share.bytes for share in memory.shares], case
        assert int(page["memory"]["total"]) == memory.bytes


def test_stages_have_the_layers_that_python_says(compute):
    cases = [(layers, p) for layers in (1, 2, 7, 32, 126) for p in (1, 2, 3, 7, 16) if p <= layers]
    found = compute("given.map(([layers, p]) => mesh.layersOfStages(layers, p))", cases)
    assert found == [layers_of_stages(*case) for case in cases]


@pytest.mark.parametrize(
    ("axes", "faults"),
    [
        ({"tensor": "3"}, ["tensor: expected a divisor of n_h = 32; got 3"] * 1),
        ({"data": "3"}, ["data: expected b to be a multiple of data × micro-batch = 3; got 8"]),
        ({"context": "3"}, ["context: expected s to be a multiple of context × tensor = 3; got 1024"]),
        ({"pipeline": "33"}, ["pipeline: expected at most L = 32; got 33"]),
        ({"chunks": "2"}, ["chunks: expected 1 without a pipeline; got 2"]),
        ({"data": "0", "tensor": "", "chunks": "x"}, None),
    ],
)
def test_meshes_that_do_not_fit(compute, axes, faults):
    """The page rejects the meshes that Python rejects."""
    config = cost.configuration("llama-3-8b")
    setting = javascript.setting(config) | {"b": "8", "s": "1024"}
    given = dict.fromkeys((*vars(cost.Mesh()), "micro_batch"), "1") | axes
    (found,) = compute(ON_MESH, [(setting, given, "h100", "bfloat16")])
    said = [": ".join(each) for each in found["faults"]]
    if faults is None:
        assert [each[0] for each in found["faults"]] == [*axes]
        return
    assert all(fault in said for fault in faults)
    with pytest.raises(ValueError, match=next(iter(axes))):
        cost.mesh_step(config, cost.Mesh(**{n: int(x) for n, x in axes.items()}), "h100", 8, 1024)


def test_the_formulas_of_the_page_are_those_derived_now():
    script = javascript.script()
    assert len(script.encode()) < 150_000
    assert recorded.holds(javascript.SCRIPT, script), "`make records` writes what is derived"
