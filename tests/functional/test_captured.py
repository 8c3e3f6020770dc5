"""No operation, layer, network or training step waits for a device: each runs in a mode in which reading a value raises.

On a CUDA device, a step is also captured in a CUDA graph, and replayed.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from backpass import functional as B
from backpass import kernels, ops
from backpass.models.layers import gpt2_layer, llama_layer
from backpass.ops import position_embedding, rope
from backpass.torch_door import operators
from backpass.training import adamw, clipping, scaling
from backpass.verify import drawing

from ..models.small import NETWORKS
from ..models.small import drawn as drawn_network
from ..models.test_layers import GPT2, LLAMA, draw
from .captured import Read, captured
from .support import differentiable, tensors

STEMS = ops.STEMS
LOSSES = ("cross_entropy", "linear_cross_entropy", "nll")
IN_TRITON = [stem for stem in STEMS if stem in kernels.STEMS]


@pytest.fixture(autouse=True)
def by_operations(monkeypatch):
    """Outside the mode, the functions run operations rather than kernels in Triton's interpreter."""
    monkeypatch.setattr(operators, "_module", lambda stem, device: ops.load(stem))


def cases(stem):
    """Inputs and options: each optional input left out, and each example, except masks that NumPy draws. Large inputs
    and those in half precision take the same lines."""
    for inputs, options in drawing.cases(stem, np.random.default_rng(0)):
        given = [x for x in inputs if x is not None]
        small = sum(x.size for x in given) < 3000 and any(x.dtype == np.float64 for x in given)
        if small:
            yield tensors(stem, inputs), options


def run(function, stem, inputs, options):
    """The result of a function, and the gradients of its inputs."""
    y = function(*inputs, **options)
    leaves = differentiable(stem, inputs)
    return [y, *(torch.autograd.grad(y, leaves, torch.full_like(y, 0.3)) if leaves else ())]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stem", STEMS)
def test_an_operation_reads_no_value(stem):
    """Forward and backward, with each set of options; the values are those outside the mode."""
    function = getattr(B, stem)
    for inputs, options in cases(stem):
        expected = run(function, stem, inputs, options)
        with captured():
            found = run(function, stem, inputs, options)
        assert_equal(found, expected)


@pytest.mark.parametrize("stem", IN_TRITON)
def test_a_kernel_is_prepared_without_reading_a_value(stem):
    kernel = kernels.load(stem)
    for inputs, options in cases(stem):
        inputs = [x if x is None else x.detach() for x in inputs]
        with captured(), torch.no_grad():
            y, saved = kernel.forward(*inputs, **options)
            kernel.backward(torch.full_like(y, 0.3), saved)


@pytest.mark.parametrize(
    ("layer", "lengths", "options"),
    [
        (gpt2_layer, GPT2, {"heads": 2}),
        (gpt2_layer, GPT2, {"heads": 2, "flash": False}),
        (llama_layer, LLAMA, {}),
        (llama_layer, LLAMA, {"flash": False}),
    ],
)
def test_a_layer_reads_no_value(layer, lengths, options):
    inputs = [torch.from_numpy(x) for x in draw(layer, lengths, ())]

    def step():
        y, saved = layer.forward(*inputs, **options)
        return y, *layer.backward(torch.full_like(y, 0.3), saved)

    expected = step()
    with captured():
        found = step()
    assert_equal(found, expected)


@pytest.mark.parametrize("options", [{}, {"flash": False, "chunked": False}], ids=["chunked", "whole"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_trained_without_reading_a_value(name, options):
    """Loss, gradients, their clipping, and the optimiser's step."""
    module, config, parameters, batch = drawn_network(name)
    batch = [torch.from_numpy(x) for x in batch]

    def step():
        own = {name: torch.tensor(w) for name, w in parameters.items()}
        state = adamw.start(own)
        if captures:
            with captured():
                loss = once(own, state)
        else:
            loss = once(own, state)
        return [*loss, *own.values()]

    def once(own, state):
        loss, saved = module.forward(own, *batch, config=config, **options)
        gradients, norm = clipping.clip(module.backward(saved), 0.25, in_place=True)
        adamw.update(own, gradients, state, in_place=True)
        return loss, norm

    captures = False
    expected = step()
    captures = True
    found = step()
    assert isinstance(expected[1], float) and expected[1] > 0.25
    assert_equal(found, [torch.as_tensor(x, dtype=torch.float64) for x in expected])


class Network(nn.Module):
    """A network of a user: one layer of Llama, with every kind of loss."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weights(*shape):
            return nn.Parameter(torch.randn(shape, generator=generator) / shape[0] ** 0.5)

        self.table, self.head, self.norm = weights(11, 8), weights(8, 11), weights(8)
        self.qkv, self.out, self.up, self.down = (weights(8, n) for n in (24, 8, 10, 8))
        self.down = weights(10, 8)

    def forward(self, t, targets, cos, sin):
        x = B.embedding(t, self.table)
        qkv = B.linear(B.rms_norm(x, self.norm), self.qkv)
        q, k, v = qkv.view(*t.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = B.flash_attention(B.rope(q, cos, sin), B.rope(k, cos, sin), v, causal=True)
        x = x + B.linear(y.transpose(1, 2).reshape(x.shape), self.out)
        x = x + B.linear(B.gelu(B.linear(B.layer_norm(x, self.norm, self.norm), self.up)), self.down)
        scores = B.linear(x, self.head)
        return (
            B.linear_cross_entropy(x, self.head, targets, label_smoothing=0.1)
            + B.cross_entropy(scores, targets)
            + B.nll(B.log_softmax(scores), targets)
            + B.soft_cross_entropy(scores, B.softmax(-scores.detach()))
        )


def user_step(device, capturable):
    """A function that trains a network of a user for one step, and returns its loss; and the network."""
    network = Network().to(device)
    t = torch.arange(10, device=device).reshape(2, 5)
    targets = torch.where(t == 4, -100, (t + 3) % 11)
    cos, sin = rope.tables(5, 4, like=network.norm)
    # Its state is on the device, also the number of the step.
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, capturable=capturable)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = network(t, targets, cos, sin)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, network


def test_a_step_of_a_user_reads_no_value():
    expected, found = (user_step("cpu", capturable) for capturable in (False, True))
    losses = [expected[0]() for _ in range(2)]
    with captured():
        again = [found[0]() for _ in range(2)]
    for one, other in zip(
        (*again, *found[1].parameters()), (*losses, *expected[1].parameters()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_is_captured_in_a_graph(monkeypatch):
    """Three steps before the capture, as PyTorch advises, then one replayed for each of three."""
    monkeypatch.undo()  # kernels run
    (expected, _), (step, _network) = (user_step("cuda", True) for _ in range(2))
    losses = [expected() for _ in range(6)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        again = [step() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(3):
        graph.replay()
        again.append(loss.clone())
    torch.testing.assert_close(torch.stack(again), torch.stack(losses), rtol=1e-5, atol=1e-6)


def test_what_a_patched_model_calls_reads_no_value():
    """The attention, the rotation, and the loss that ``hugging_face.patch`` puts into a model of transformers."""
    pytest.importorskip("transformers")
    from backpass import hugging_face

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator) for _ in range(3))
    cos, sin = (table.repeat(2, 1, 2) for table in rope.tables(5, 4, like=q))
    scores, labels = torch.randn(2, 5, 7, generator=generator), torch.arange(10).reshape(2, 5) % 7
    mask, count = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril(), torch.tensor(8)

    def call():
        turned = hugging_face.rotated(q, k, cos, sin)
        y, _ = hugging_face.attention(nn.Module(), *turned, v, mask, scaling=0.5)
        return y, hugging_face.language_model_loss(scores, labels, num_items_in_batch=count)

    expected = call()
    with captured():
        found = call()
    assert_equal(found, expected)


def test_tables_are_computed_on_the_device():
    like = torch.empty(1)
    for table in (
        lambda: rope.tables(7, 6, like=like),
        lambda: [position_embedding.sinusoidal(7, 5, like=like)],
    ):
        expected = table()
        with captured():
            found = table()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def drawn_gradients(scale, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = {"scalar": (), "bias": (7,), "matrix": (5, 3), "empty": (0, 4)}
    draws = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: (x.double() * scale).to(dtype) for name, x in draws.items()}


@pytest.mark.parametrize(
    ("dtype", "scale", "max_norm"),
    [
        (torch.float64, 1.0, 0.5),
        (torch.float64, 1.0, 100.0),  # nothing is clipped
        (torch.float64, 1e200, 1.0),
        (torch.float64, 1e-250, 1e-252),
        (torch.float32, 1e30, 1.0),
        (torch.float32, 1e37, 1e-4),  # the factor is less than the least normal number of float32
        (torch.float32, 1e-40, 1e-9),
        (torch.float16, 1e3, 2.0),
        (torch.bfloat16, 1e-3, 1e-4),
        (torch.float64, 0.0, 1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_are_clipped_by_a_factor_that_is_computed_on_the_device(dtype, scale, max_norm, in_place):
    expected, norm = clipping.clip(drawn_gradients(scale, dtype), max_norm)
    gradients = drawn_gradients(scale, dtype)
    with captured():
        found, norm_there = clipping.clip(gradients, max_norm, in_place=in_place)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    assert norm_there.shape == () and norm_there.item() == pytest.approx(norm, rel=tolerance, abs=0)
    assert {name: x.dtype for name, x in found.items()} == dict.fromkeys(expected, dtype)
    assert all((found[name] is gradients[name]) == in_place for name in found)
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=max(tolerance, torch.finfo(dtype).eps), atol=0)


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_device_reports_a_norm_that_is_not_finite(wrong):
    gradients = drawn_gradients(1.0)
    gradients["bias"][3] = wrong
    with captured(), pytest.raises(RuntimeError, match="gradients: their norm is not finite"):
        clipping.clip(gradients, 1.0)


@pytest.mark.parametrize("overflow", [False, True])
def test_loss_scaling_waits_for_the_device_once(overflow, monkeypatch):
    """To know whether to skip the step, as PyTorch's does."""
    gradients, state = drawn_gradients(1.0, torch.float32), scaling.start(8.0)
    if overflow:
        gradients["matrix"][2, 1] = math.inf
    reads = []
    monkeypatch.setattr(scaling, "is_remote", lambda x: True)
    read = torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda x: reads.append(x) or read(x))
    found = scaling.unscaled(gradients, state)
    assert len(reads) == 1 and (found is None) == overflow


# The mode sees each way of reading.


PLANTED = {
    "item": lambda x: x.item(),
    "int": lambda x: int(x),
    "bool": lambda x: bool(x > 0),
    "float of a sum": lambda x: float(torch.sum(x)),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: torch.nonzero(x),
    "unique": lambda x: torch.unique(x),
    "an index of booleans": lambda x: x[x > 0],
    "an index of booleans, written": lambda x: x.clone().__setitem__(x > 0, 0),
    "an index in a list": lambda x: x.reshape(1)[[0]],
    "a tensor of numbers": lambda x: torch.tensor([1.0], device=x.device),
    "a tensor of the host": lambda x: torch.where(x > 0, torch.tensor(1.0), x),
    "asarray of NumPy": lambda x: torch.asarray(np.ones(2), device=x.device),
}


@pytest.mark.parametrize("read", PLANTED.values(), ids=PLANTED)
def test_the_mode_sees_each_read_and_names_the_line(read):
    x = torch.tensor(2.0)
    read(x)  # which works outside
    with captured(), pytest.raises(Read, match=r"of a tensor on a device, in test_captured.py, line \d+$"):
        read(x)


def test_the_mode_sees_a_read_in_a_backward(monkeypatch):
    """It names the line of the package. Here a loss reads its divisor, as it once did."""

    def reading(divisor, targets):
        return int(divisor)

    monkeypatch.setattr("backpass.ops.linear_cross_entropy.at_least_one", reading)
    x, w, t = torch.ones(3, 2, requires_grad=True), torch.ones(2, 4), torch.tensor([0, 1, 2])
    with captured(), pytest.raises(Read, match=r"in ops/linear_cross_entropy.py, line \d+$"):
        B.linear_cross_entropy(x, w, t)

    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return dy * dy.sum().item()

    y = Reading.apply(x).sum()
    with captured(), pytest.raises(Read, match="the value"):
        y.backward()


def test_the_host_may_read_its_own_tensors():
    with captured():
        assert torch.tensor([2.0, 3.0]).tolist() == [2, 3]
        assert torch.zeros(2, device="cpu").sum().item() == 0


# Errors of tokens, targets and sums.


BAD = {
    "embedding": (B.embedding, [torch.tensor([1, 5]), torch.ones(5, 2)], "t: expected tokens from 0 to 4"),
    "nll": (
        B.nll,
        [torch.ones(2, 5), torch.tensor([1, -3])],
        "t: expected targets from 0 to 4, or -100 to ignore",
    ),
    "cross_entropy": (
        B.cross_entropy,
        [torch.ones(2, 5), torch.tensor([1, 5])],
        "t: expected targets from 0 to 4, or -100 to ignore",
    ),
    "linear_cross_entropy": (
        B.linear_cross_entropy,
        [torch.ones(2, 3), torch.ones(3, 5), torch.tensor([1, 7])],
        "t: expected targets from 0 to 4, or -100 to ignore",
    ),
    "simplex_norm": (B.simplex_norm, [-torch.ones(2, 3)], "x: expected rows whose sums are positive"),
    "narrow": (rope.narrow, [torch.arange(4.0)], "table: expected each row to consist of equal halves"),
}


@pytest.mark.parametrize(("function", "inputs", "message"), BAD.values(), ids=BAD)
def test_a_device_reports_bad_values(function, inputs, message):
    """On the CPU they raise at once; on a device an assertion does, which a captured graph repeats."""
    with pytest.raises((IndexError, ValueError), match=message):
        function(*inputs)
    with captured(), pytest.raises(RuntimeError, match=message):
        function(*inputs)


@pytest.mark.parametrize("stem", LOSSES)
def test_without_a_target_that_counts_the_mean_is_nan_and_the_gradient_0_on_a_device(stem):
    inputs = {name: torch.ones(2, 3, requires_grad=True) for name in "x"} | {"t": torch.tensor([-100, -100])}
    if stem == "linear_cross_entropy":
        inputs["w"] = torch.ones(3, 4)
    with captured():
        y = getattr(B, stem)(**inputs)
        (dx,) = torch.autograd.grad(y, inputs["x"])
    assert math.isnan(y.item()) and not dx.any()
