"""``FlopCounterMode`` with our formulas counts what the operations count."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backpass import cost, flop_counter, ops
from backpass import functional as B
from backpass.contract.shapes import parse
from backpass.cost.terms import terms_of
from backpass.models import gpt2
from backpass.models.layers.calls import call
from backpass.operation import Operation
from backpass.verify import cases
from backpass.verify.drawing import draw, options_for

STEMS = pytest.mark.parametrize("stem", ops.STEMS)


@pytest.fixture(autouse=True)
def operations_on_the_cpu(monkeypatch):
    """Also in a process that runs kernels in the interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def counting(run, convention="counted"):
    """What ``run`` returns, and the FLOPs that PyTorch's counter counts in it."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    with FlopCounterMode(display=False, custom_mapping=flop_counter.formulas(convention)) as counter:
        found = run()
    return found, counter.get_total_flops()


def step(stem, arrays, options, wanted=None, convention="counted", device="cpu"):
    """The FLOPs of a forward and of a backward for the wanted inputs; by default, for all."""
    operation = Operation(stem)
    inputs = [None if x is None else torch.from_numpy(np.array(x)).to(device) for x in arrays]
    names = [spec.name for spec in operation.inputs]
    chosen = [spec.name for spec in operation.differentiable] if wanted is None else wanted
    leaves = [
        x.requires_grad_() for name, x in zip(names, inputs, strict=True) if name in chosen and x is not None
    ]
    y, forward = counting(lambda: getattr(B, stem)(*inputs, **options), convention)
    _, backward = counting(lambda: torch.autograd.grad(y, leaves, torch.ones_like(y)), convention)
    return forward, backward


def uncustomised(run):
    """The FLOPs that a counter counts to which nobody gave formulas."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_a_counter_counts_the_operations_as_it_counts_pytorchs_own():
    """Forward, backward, and both."""
    x, w = (torch.randn(*shape, requires_grad=True) for shape in ((16, 8), (8, 4)))
    assert uncustomised(lambda: B.linear(x, w)) == uncustomised(lambda: x @ w) == 1024
    for function in (lambda: B.linear(x, w), lambda: x @ w):
        assert uncustomised(lambda: function().sum().backward()) == 3072  # noqa: B023
        y = function()
        assert uncustomised(lambda: y.sum().backward()) == 2048  # noqa: B023
    q, k, v = (torch.randn(2, 3, 16, 8) for _ in range(3))
    own = uncustomised(lambda: B.flash_attention(q, k, v, causal=True))
    assert own == uncustomised(lambda: q @ k.mT @ v) == 2 * (2 * 2 * 3 * 16 * 16 * 8)


def test_a_counters_own_formulas_stay():
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    x, w = torch.randn(16, 8), torch.randn(8, 4)
    mapping = {torch.ops.backpass.linear: lambda *args, **kwargs: 7}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        B.linear(x, w)
    assert counter.get_total_flops() == 7
    _, flops = counting(lambda: B.linear(x, w))
    assert flops == 16 * 4 * (2 * 8 - 1)


@STEMS
def test_it_counts_what_the_operations_formulas_say(stem):
    """At every case, on tensors with and without values."""
    for arrays, options in cases(stem, np.random.default_rng(5)):
        if any(0 in np.shape(x) for x in arrays if x is not None):
            continue
        of_data = {"distinct": 0} if stem == "embedding" else {}
        shapes = [None if x is None else np.shape(x) for x in arrays]
        expected = cost.formula(stem, *shapes, **options, **of_data)
        assert step(stem, arrays, options) == expected
        assert step(stem, arrays, options, device="meta") == expected


@pytest.mark.parametrize("stem", [stem for stem in ops.STEMS if Operation(stem).takes_wanted])
def test_it_counts_only_the_wanted_gradients(stem):
    rng = np.random.default_rng(7)
    arrays, options = draw(stem, rng), options_for(stem)
    shapes = [None if x is None else np.shape(x) for x in arrays]
    for spec, x in zip(Operation(stem).inputs, arrays, strict=True):
        if x is not None and spec in Operation(stem).differentiable:
            expected = cost.formula(stem, *shapes, **options, wanted=(spec.name,))
            assert step(stem, arrays, options, wanted=(spec.name,)) == expected


@pytest.mark.parametrize(
    "stem", ["linear", "attention", "flash_attention", "feed_forward", "linear_cross_entropy"]
)
@pytest.mark.parametrize("causal", [False, True])
def test_products_are_those_of_the_tally(stem, causal):
    arrays = draw(stem, np.random.default_rng(3))
    module, operation = ops.load(stem), Operation(stem)
    options = options_for(stem) | ({"causal": causal} if "causal" in operation.option_names else {})
    options.pop("tile", None)  # the tally's tiles are the default
    given = dict(zip([spec.name for spec in operation.inputs], arrays, strict=True))
    lengths = parse(module.SHAPES).dimensions(given) | options
    wanted = [spec.name for spec in operation.differentiable if given[spec.name] is not None]
    terms = terms_of(call("it", module, wanted, **lengths))
    expected = [
        sum(2 * term.product.run for term in terms if term.product and term.way == way)
        for way in ("forward", "backward")
    ]
    assert [*step(stem, arrays, options, convention="products")] == expected


@pytest.mark.parametrize("convention", ["products", "products-whole"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [None, 2])
def test_whole_products_of_attention_are_pytorchs(convention, causal, tile):
    """PyTorch's formulas for its own FlashAttention, which it counts on a GPU."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count  # imports Triton

    shapes = (2, 6, 9, 4), (2, 6, 11, 4), (2, 6, 11, 5)
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    options = {"causal": causal, "tile": tile}
    y, forward = counting(lambda: B.flash_attention(q, k, v, **options), convention)
    _, backward = counting(lambda: torch.autograd.grad(y, (q, k, v), torch.ones_like(y)), convention)
    theirs = sdpa_flop_count(*shapes), sdpa_backward_flop_count(y.shape, *shapes)
    if convention == "products" and causal:
        assert forward < theirs[0] and backward < theirs[1]
    else:
        assert (forward, backward) == theirs


def test_matrix_products_count_as_pytorchs_own():
    a, b = (torch.randn(shape, device="meta", requires_grad=True) for shape in ((3, 5, 7), (3, 7, 2)))
    for run in (lambda: B.matmul(a, b), lambda: a @ b):
        y, forward = counting(run, "products")
        _, backward = counting(lambda y=y: torch.autograd.grad(y, (a, b), torch.ones_like(y)), "products")
        assert (forward, backward) == (2 * 3 * 5 * 7 * 2, 4 * 3 * 5 * 7 * 2)


def test_an_optional_input_that_is_not_given_is_not_counted():
    x, w, b = (torch.randn(shape, requires_grad=True) for shape in ((3, 5), (5,), (5,)))
    for inputs in ((x, w, b), (x, w), (x,)):
        y, forward = counting(lambda inputs=inputs: B.layer_norm(*inputs))
        _, backward = counting(lambda y=y, inputs=inputs: torch.autograd.grad(y, inputs, torch.randn_like(y)))
        assert (forward, backward) == cost.formula("layer_norm", *(tuple(each.shape) for each in inputs))


@pytest.mark.parametrize("convention", ["counted", "products", "products-whole"])
def test_a_network_counts_as_its_tally(convention):
    """A GPT-2 of our functions, without memory, at full width."""
    config = replace(gpt2.PRESETS["gpt2"], layers=2)
    b, s = 3, 1024
    shapes = gpt2.parameter_shapes(config)
    w = {name: torch.empty(shape, device="meta", requires_grad=True) for name, shape in shapes.items()}
    tokens = torch.zeros((b, s), dtype=torch.int64, device="meta")
    y, forward = counting(lambda: loss_of(config, w, tokens), convention)
    _, backward = counting(lambda: torch.autograd.grad(y, [*w.values()]), convention)
    found = cost.tally(config, b, s).only(lambda row: row.term.stem != "fork").flops(convention)
    # Autograd adds the gradients of a value that is used twice; the tally's forks do.
    assert (forward, backward) == (found["forward"], found["backward"])


def loss_of(config, w, tokens):
    """A GPT-2, each step one function."""

    def heads(x):
        return x.unflatten(-1, (config.heads, -1)).transpose(-3, -2)

    x = B.position_embedding(B.embedding(tokens, w["wte.weight"]), w["wpe.weight"])
    for i in range(config.layers):
        of = {name.removeprefix(f"h.{i}."): value for name, value in w.items() if name.startswith(f"h.{i}.")}
        normed = B.layer_norm(x, of["ln_1.weight"], of["ln_1.bias"])
        joint = B.linear(normed, of["attn.c_attn.weight"], of["attn.c_attn.bias"])
        attended = B.attention(*(heads(part) for part in joint.chunk(3, -1)), causal=True)
        merged = attended.transpose(-3, -2).flatten(-2)
        x = B.residual(x, B.linear(merged, of["attn.c_proj.weight"], of["attn.c_proj.bias"]))
        normed = B.layer_norm(x, of["ln_2.weight"], of["ln_2.bias"])
        up = B.linear(normed, of["mlp.c_fc.weight"], of["mlp.c_fc.bias"])
        x = B.residual(
            x, B.linear(B.gelu(up, approximate="tanh"), of["mlp.c_proj.weight"], of["mlp.c_proj.bias"])
        )
    x = B.layer_norm(x, w["ln_f.weight"], w["ln_f.bias"])
    return B.cross_entropy(B.linear(x, w["wte.weight"].T), tokens)


@pytest.mark.parametrize("stem", ["linear", "layer_norm"])
def test_no_rows_count_nothing(stem):
    inputs = [torch.zeros(0, 5), torch.zeros(5, 6) if stem == "linear" else torch.zeros(5)]
    y, forward = counting(lambda: getattr(B, stem)(*[x.requires_grad_() for x in inputs]))
    _, backward = counting(lambda: torch.autograd.grad(y, inputs, torch.ones_like(y)))
    assert (forward, backward) == (0, 0)
