"""PyTorch's own schemes, ``fully_shard`` and DTensor, agree with those of this package."""

import numpy as np
import pytest

pytest.importorskip("torch.distributed.tensor")

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from backpass.ops import feed_forward, layer_norm
from backpass.parallel import on_processes
from backpass.parallel.network import Network
from backpass.parallel.sharded import Sharded
from backpass.parallel.tensor import Block, Norm, Parts
from backpass.training import adamw, clipping

from ..models.hugging_face import as_numpy, gpt2_case, llama_case, precise

CASES = {
    "gpt2": gpt2_case("gpt2", 7, ignored=5),
    "llama": llama_case("llama", "Llama", 7, ignored=5),
}
STEPS, CLIP = 5, 0.3
OPTIONS = {"lr": 0.01, "weight_decay": 0.1}


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    precise(monkeypatch)


def whole(x):
    return np.asarray((x.full_tensor() if isinstance(x, DTensor) else x).detach())


def by_fully_shard(group, name):
    """Return the losses and norms of PyTorch's steps, and the parameters after them."""
    case = CASES[name]
    model, (tokens, targets) = case.model(), case.batch()
    mesh = init_device_mesh("cpu", (group.size,))
    layers = model.transformer.h if name == "gpt2" else model.model.layers
    for module in (*layers, model):
        fully_shard(module, mesh=mesh)
    kinds = [[p for p in model.parameters() if (p.ndim > 1) == decays] for decays in (True, False)]
    rates = (OPTIONS["weight_decay"], 0.0)
    groups = [{"params": some, "weight_decay": rate} for some, rate in zip(kinds, rates, strict=True)]
    optimiser = torch.optim.AdamW(groups, lr=OPTIONS["lr"])
    rows = slice(group.rank, group.rank + 1)
    losses, norms = [], []
    for _ in range(STEPS):
        optimiser.zero_grad()
        scores = model(tokens[rows], use_cache=False).logits
        loss = functional.cross_entropy(scores.flatten(0, 1), targets[rows].flatten(), reduction="sum")
        loss = loss / (targets != -100).sum()
        (loss * group.size).backward()  # fully_shard averages over the ranks
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        losses.append(float(group.all_reduce(loss.detach())))
        norms.append(float(whole(norm)))
    return losses, norms, {n: whole(p) for n, p in model.named_parameters()}


def by_us(group, name):
    case = CASES[name]
    batch = [np.asarray(x) for x in case.batch()]
    network = Sharded(group, case.module, case.ours(), data=group.size)
    shapes = case.module.parameter_shapes(case.ours())
    given = as_numpy(dict(case.model().named_parameters()))
    prefix = "transformer." if name == "gpt2" else "model."
    own = network.share({n.removeprefix(prefix): x for n, x in given.items()})
    decayed = [n for n, shape in shapes.items() if len(shape) > 1]
    state, losses, norms = adamw.start(own), [], []
    for _ in range(STEPS):
        loss, gradients = network.gradients(own, *batch)
        gradients, norm = clipping.clip(gradients, CLIP, of_each=network.norms(gradients))
        adamw.update(own, gradients, state, decayed=decayed, **OPTIONS)
        losses.append(float(loss))
        norms.append(norm)
    found = network.whole(own)
    return losses, norms, {prefix * (n != "lm_head.weight") + n: x for n, x in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_steps_of_fully_shard(name):
    theirs, ours = on_processes(lambda group: [run(group, name) for run in (by_fully_shard, by_us)], 2)[0]
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-9)
    for parameter, x in theirs[2].items():
        np.testing.assert_allclose(ours[2][parameter], x, rtol=0, atol=1e-9)


def by_dtensor(group):
    """Return loss and gradients of a Llama with PyTorch's plan for tensor parallelism."""
    case = CASES["llama"]
    model, (tokens, targets) = case.model(), case.batch()
    columns, rows = ColwiseParallel, RowwiseParallel
    plan = {
        "model.embed_tokens": rows(input_layouts=Replicate()),
        "lm_head": columns(output_layouts=Shard(-1), use_local_output=False),
    }
    for layer in range(case.sizes["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        plan |= {f"{of}self_attn.{c}_proj": columns() for c in "qkv"} | {f"{of}self_attn.o_proj": rows()}
        plan |= {f"{of}mlp.gate_proj": columns(), f"{of}mlp.up_proj": columns(), f"{of}mlp.down_proj": rows()}
    parallelize_module(model, init_device_mesh("cpu", (group.size,)), plan)
    scores = model(tokens, use_cache=False).logits
    with loss_parallel():
        loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        loss.backward()
    return float(whole(loss)), {n: whole(p.grad) for n, p in model.named_parameters()}


def by_tensor_parallel(group):
    case = CASES["llama"]
    network = Network(group, case.module, case.ours(), tensor=group.size)
    given = as_numpy(dict(case.model().named_parameters()))
    share = network.share({n.removeprefix("model."): x for n, x in given.items()})
    loss, gradients = network.gradients(share, *(np.asarray(x) for x in case.batch()))
    return float(loss), network.whole(gradients)


def test_a_llama_of_dtensors():
    """Heads, hidden columns, and tokens of the vocabulary are divided, and the loss is parallel too."""
    (loss, theirs), (same, ours) = on_processes(
        lambda group: [run(group) for run in (by_dtensor, by_tensor_parallel)], 2
    )[0]
    assert abs(same - loss) < 1e-12 * loss
    for name, exact in theirs.items():
        found = ours[name.removeprefix("model.")]
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-12 * np.abs(exact).max())


def drawn():
    rng = np.random.default_rng(0)
    shapes = {
        "x": (2, 4, 6),
        "w": (6,),
        "b": (6,),
        "w_up": (6, 8),
        "b_up": (8,),
        "w_down": (8, 6),
        "b_down": (6,),
    }
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}, rng.normal(size=(2, 4, 6))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))


def by_sequence_parallel(group):
    """PyTorch's norm on parts of the sequence, and its block between an all-gather and a reduce-scatter."""
    given, dy = ({n: torch.tensor(x) for n, x in found.items()} for found in (drawn()[0], {"dy": drawn()[1]}))
    layer = Layer().double()
    names = {
        "norm.weight": given["w"],
        "norm.bias": given["b"],
        "up.weight": given["w_up"].T,
        "up.bias": given["b_up"],
        "down.weight": given["w_down"].T,
        "down.bias": given["b_down"],
    }
    layer.load_state_dict(names)
    mesh = init_device_mesh("cpu", (group.size,))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(layer, mesh, plan)
    part = slice(group.rank * 2, group.rank * 2 + 2)
    x = given["x"][:, part].clone().requires_grad_()
    y = layer(x)
    y.backward(dy["dy"][:, part].contiguous())
    found = {name: whole(p.grad) for name, p in layer.named_parameters()}
    turned = {"w_up": found["up.weight"].T, "w_down": found["down.weight"].T}
    named = {"w": "norm.weight", "b": "norm.bias", "b_up": "up.bias", "b_down": "down.bias"}
    return y.detach().numpy(), {"x": x.grad.numpy()} | turned | {n: found[own] for n, own in named.items()}


def by_parts(group):
    given, dy = drawn()
    stream = Parts(group)
    norm = Norm(layer_norm, stream, None)
    block = Block(feed_forward, stream, once=("b_down",))
    part, hidden = (slice(group.rank * n, (group.rank + 1) * n) for n in (2, 4))
    a, normed = norm.forward(given["x"][:, part], given["w"], given["b"])
    own = {"w_up": given["w_up"][:, hidden], "b_up": given["b_up"][hidden], "w_down": given["w_down"][hidden]}
    y, saved = block.forward(a, **own, b_down=given["b_down"], activation="gelu_tanh")
    da, dw_up, dw_down, db_up, db_down, *_ = block.backward(dy[:, part], saved.own, wanted=saved.wanted)
    dx, dw, db = norm.backward(da, normed.own, wanted=normed.wanted)
    cat = [
        np.concatenate(list(group.all_gather(np.moveaxis(d, axis, 0))))
        for d, axis in ((dw_up, 1), (dw_down, 0), (db_up, 0))
    ]
    gathered = {"w_up": cat[0].T, "w_down": cat[1], "b_up": cat[2]}
    return y, {"x": dx, "w": dw, "b": db, "b_down": db_down} | gathered


def test_a_norm_and_a_block_on_parts_of_the_sequence():
    theirs, ours = (on_processes(run, 2) for run in (by_sequence_parallel, by_parts))
    for (y, exact), (same, found) in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(same, y, rtol=1e-12, atol=1e-12)
        for name, d in exact.items():
            np.testing.assert_allclose(found[name], d, rtol=1e-12, atol=1e-12, err_msg=name)
