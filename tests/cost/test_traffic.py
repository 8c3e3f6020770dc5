"""The bytes that a network's calls read and write: those of the arrays that its operations are given, save, and return
when it runs; and symbols have the bytes of numbers."""

import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sympy
import torch

from backpass import cost, ops
from backpass.cost.sizes import LETTERS
from backpass.cost.traffic import _SAVED, accesses_of
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.models.layers.calls import call
from backpass.ops import fork, linear, linear_cross_entropy, softmax

CONFIGS = {
    "gpt2": gpt2.Config(11, 9, 6, 2, 3, 5),
    "gpt2, head apart": gpt2.Config(11, 9, 6, 2, 3, 5, tied=False),
    "gpt2, dropout": gpt2.Config(11, 9, 6, 2, 3, 5, 1e-5, True, 0.25, 0.5, 0.25),
    "llama": llama.Config(13, 6, 2, 4, 2, 4, 5),
    "qwen2, tied": llama.Config(8, 6, 2, 4, 1, 2, 5, biases=True, tied=True),
    "qwen3": llama.Config(8, 6, 2, 4, 2, 4, 5, query_key_norm=True),
    "encoder": encoder.Config(6, 3, 2, 5, norm_first=True),
    "seq2seq": seq2seq.Config(6, 2, 3, 3, 5),
}
SIZES = {"b": 2, "s": 7}


def place(x):
    """What identifies the elements of an array, and their bytes."""
    return (x.data_ptr(), x.numel()), x.numel() * x.element_size()


def arrays_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from arrays_in(part)


@contextmanager
def observed(parameters):
    """The bytes of each operation and way while the block runs: all, and those that are read of ``parameters``."""
    moved, of_parameters, depth = Counter(), Counter(), [0]
    fixed = {x.untyped_storage().data_ptr() for x in parameters.values()}
    stems = [stem for stem in _SAVED if stem != "fork"]
    originals = {}

    def note(stem, way, before, after):
        """``before`` is there when the call begins, ``after`` when it ends."""
        read = dict(map(place, before))
        moved[stem, way] += sum(read.values())
        moved[stem, way] += sum(size for key, size in dict(map(place, after)).items() if key not in read)
        seen = dict(place(x) for x in before if x.untyped_storage().data_ptr() in fixed)
        of_parameters[stem, way] += sum(seen.values())

    def wrapped(stem, name, function):
        def run(*arguments, **options):
            depth[0] += 1
            found = function(*arguments, **options)
            depth[0] -= 1
            if depth[0]:
                return found
            inputs, (y, saved) = [*arrays_in(arguments)], found
            if stem == "dropout" and saved.seed is None:
                return found
            if stem in ("embedding", "position_embedding"):  # of the table, rows
                rows = y if stem == "embedding" else y[0]
                inputs = [x for x in inputs if x.data_ptr() != arguments[1].data_ptr()]
                moved[stem, "forward"] += rows.numel() * rows.element_size()
                of_parameters[stem, "forward"] += rows.numel() * rows.element_size()
            note(stem, "forward", inputs, [y, *arrays_in(saved)])
            return found

        def run_back(*arguments, **options):
            depth[0] += 1
            found = function(*arguments, **options)
            depth[0] -= 1
            if depth[0]:
                return found
            *dw, dy, saved = arguments
            results = [x for x in arrays_in(found if isinstance(found, tuple) else (found,))]
            results = [x for x in results if x.data_ptr() != dy.data_ptr()]
            if not results:
                return found
            if name == "backward_onto":  # of the table's gradient, rows, which are read and written
                moved[stem, "backward"] += 2 * dy.numel() * dw[0].element_size()
                results = []
            note(stem, "backward", [dy, *arrays_in(saved)], [])
            moved[stem, "backward"] += sum(x.numel() * x.element_size() for x in results)
            return found

        return run if name == "forward" else run_back

    for stem in stems:
        module = ops.load(stem)
        for name in ("forward", "backward", "backward_once", "backward_onto"):
            if hasattr(module, name):
                originals[module, name] = getattr(module, name)
                setattr(module, name, wrapped(stem, name, getattr(module, name)))
    try:
        yield moved, of_parameters
    finally:
        for (module, name), function in originals.items():
            setattr(module, name, function)


def run(config, dtype, *, masks=None, flash, chunked, wanted=None):
    generator = torch.Generator().manual_seed(5)
    module = sys.modules[type(config).__module__]

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    parameters = {name: draw(*shape) for name, shape in module.parameter_shapes(config).items()}
    options = {"config": config, "flash": flash, "wanted": wanted}
    with observed(parameters) as found:
        if module in (gpt2, llama):
            if masks:
                options["masks"] = masks
            tokens, targets = torch.randint(
                config.vocabulary, (2, SIZES["b"], SIZES["s"]), generator=generator
            )
            _, saved = module.forward(parameters, tokens, targets, chunked=chunked, **options)
            module.backward(saved)
        else:
            rows = [draw(*SIZES.values(), config.width) for _ in range(1 + (module is seq2seq))]
            y, saved = module.forward(parameters, *rows, **options)
            module.backward(draw(*y.shape), saved)
    return found


def predicted(config, dtype, **options):
    found = cost.traffic(config, *SIZES.values(), dtype=dtype, **options)

    def by_stem(rows):
        each = rows.by(lambda row: row.access.stem)
        return {
            (stem, way): size
            for stem, ways in each.items()
            for way, size in ways.items()
            if size and stem != "fork"
        }

    read = found.parameters().only(lambda row: not row.access.written)
    tables = read.only(lambda row: row.access.array not in ("cos", "sin", "dx", "dw"))
    return by_stem(found), by_stem(tables)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_bytes_are_those_of_the_arrays(name, fast, dtype):
    config, masks = CONFIGS[name], {}
    if name == "gpt2, dropout":
        masks = {"masks": (3, 1)}
    options = {"flash": fast, "chunked": fast and hasattr(config, "vocabulary")}  # a stack has no head
    ran, read = run(config, getattr(torch, dtype), **options, **masks)
    options |= {"masks": True} if masks else {}
    expected, parameters = predicted(config, dtype, **options)
    assert expected == {key: size for key, size in ran.items() if size}
    assert parameters == {key: size for key, size in read.items() if size}


@pytest.mark.parametrize("name", ["gpt2", "qwen2, tied", "llama"])
def test_unwanted_gradients_move_nothing(name):
    config = CONFIGS[name]
    module = sys.modules[type(config).__module__]
    for wanted in [*module.parameter_shapes(config)][::4]:
        for fast in (False, True):
            options = {"flash": fast, "chunked": fast, "wanted": [wanted]}
            ran, _ = run(config, torch.float32, **options)
            expected, _ = predicted(config, "float32", **options)
            assert expected == {key: size for key, size in ran.items() if size}, wanted


def test_a_linear_layer_by_hand():
    """3 rows of 5 numbers to 7: each array once, in both ways."""
    found = accesses_of(call("up", linear, ("x", "w", "b"), m=3, n=5, p=7), "float64")
    by_array = {(access.way, access.array): (access.bytes, access.written) for access in found}
    assert by_array == {
        ("forward", "x"): (8 * 15, False),
        ("forward", "w"): (8 * 35, False),
        ("forward", "b"): (8 * 7, False),
        ("forward", "y"): (8 * 21, True),
        ("backward", "dy"): (8 * 21, False),
        ("backward", "x"): (8 * 15, False),
        ("backward", "w"): (8 * 35, False),
        ("backward", "dx"): (8 * 15, True),
        ("backward", "dw"): (8 * 35, True),
        ("backward", "db"): (8 * 7, True),
    }
    assert {access.array for access in found if access.parameter} == {"w", "b", "dw", "db"}


def test_a_parameters_gradient_counts_with_the_parameters():
    """The head in chunks computes dx[3, 5] and dw[5, 7] in its forward, and scales both in its backward."""
    head = call("head", linear_cross_entropy, ("x", "w"), m=3, h=5, V=7, has_b=False, has_weight=False)
    found = accesses_of(head, "bfloat16")
    sizes = [(access.way, access.array, access.bytes) for access in found if access.parameter]
    assert sizes == [
        ("forward", "w", 2 * 35),
        ("forward", "dw", 4 * 35),  # in float32, in which it is summed
        ("backward", "dw", 4 * 35),
        ("backward", "dw", 2 * 35),
    ]
    assert {access.array for access in found if not access.parameter} == {"x", "t", "y", "dx", "dy"}


def test_a_fork_moves_bytes_only_in_its_backward():
    x = torch.randn(5, 3)
    y, saved = fork.forward(x, copies=4)
    assert y.data_ptr() == x.data_ptr()
    dy = torch.randn(4, 5, 3)
    found = accesses_of(call("four", fork, ("x",), m=15, k=4))
    assert {access.way for access in found} == {"backward"}
    assert sum(access.bytes for access in found) == 4 * (dy.numel() + fork.backward(dy, saved).numel())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "family, options, name",
    [
        ("gpt2", {}, "gpt2"),
        ("gpt2", {"tied": False}, "gpt2, head apart"),
        ("llama", {"biases": True, "tied": True}, "qwen2, tied"),
        ("llama", {"query_key_norm": True}, "qwen3"),
        ("encoder", {"norm_first": True, "final_norm": True}, "encoder"),
        ("seq2seq", {}, "seq2seq"),
    ],
)
def test_symbols_are_numbers(family, options, name, dtype):
    config, how = CONFIGS[name], {"dtype": dtype, "recompute": 1}
    if family == "encoder":
        config = replace(config, final_norm=True)
    symbolic = cost.symbolic_traffic(family, **how, **options).bytes()
    found = cost.traffic(config, 3, 4, **how).bytes()
    values = {letter: getattr(config, field, None) for field, letter in LETTERS.items()} | {"b": 3, "s": 4}
    for way, size in found.items():
        formula = sympy.sympify(symbolic[way])
        assert formula.subs({symbol: values[symbol.name] for symbol in formula.free_symbols}) == size


def test_recomputation_is_the_forward_of_the_layers():
    plain, again = (cost.traffic("llama-3-8b", 1, 64, recompute=how) for how in (None, 1))
    layers = plain.only(lambda row: row.part == "layer")
    assert again.bytes()["recomputation"] == layers.bytes()["forward"] > 0
    assert again.total() == plain.total() + layers.bytes()["forward"]


def test_every_byte_is_a_parameters_or_an_activations():
    found = cost.traffic("gpt2", 2, 8)
    assert found.parameters().total() + found.activations().total() == found.total()
    by_part = found.by(lambda row: row.part)
    assert sum(sum(each.values()) for each in by_part.values()) == found.total()
    assert "12 × up projection" in repr(found)
    assert "12 × up projection" in found._repr_html_()


@pytest.mark.parametrize(
    "fault, run",
    [
        (r"config: expected a Config .* got int", lambda: cost.traffic(3, 1, 1)),
        (r"'gpt-2'.*gpt2", lambda: cost.traffic("gpt-2", 1, 1)),
        (r"sequence: expected at least 1; got 0", lambda: cost.traffic("gpt2", 1, 0)),
        (r"dtype: expected 'float16' or .* got 'int8'", lambda: cost.traffic("gpt2", 1, 2, dtype="int8")),
        (r"recompute: .*'all'", lambda: cost.traffic("gpt2", 1, 2, recompute="all")),
        (r"'bert'", lambda: cost.symbolic_traffic("bert")),
        (r"'softmax'", lambda: accesses_of(call("weights", softmax, ("x",), m=2, n=3))),
    ],
)
def test_faults_are_named(fault, run):
    with pytest.raises((LookupError, TypeError, ValueError), match=fault):
        run()
