"""Training as people train: data parallel or sharded, in 16 bits with a ``GradScaler``, recomputed, compiled, with lengths
that change. The gradients of two processes, each with half of a batch, are those of one process with all of it."""

from contextlib import nullcontext
from functools import cache

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import proofs
from backpass import functional as B
from backpass.ops import rope
from backpass.parallel import on_processes
from pairwise import pairs

VOCABULARY, WIDTH, HEADS, HIDDEN, LENGTHS = 23, 12, 3, 20, (7, 9, 6)
SCALE = 2.0**12
REENTRANT, NOT_REENTRANT = True, False  # of a checkpoint


def weights(generator, *shape):
    return nn.Parameter(torch.randn(*shape, generator=generator) / shape[0] ** 0.5)


class Block(nn.Module):
    """Llama's layer: attention with rotated heads, and a gated feed-forward block."""

    def __init__(self, generator):
        super().__init__()
        self.norms = nn.Parameter(torch.ones(2, WIDTH))
        self.qkv, self.out = (weights(generator, WIDTH, n * WIDTH) for n in (3, 1))
        self.gate, self.up = (weights(generator, WIDTH, HIDDEN) for _ in range(2))
        self.down = weights(generator, HIDDEN, WIDTH)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        qkv = B.linear(B.rms_norm(x, self.norms[0]), self.qkv)
        q, k, v = qkv.view(b, s, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        y = B.attention(B.rope(q, cos, sin), B.rope(k, cos, sin), v, causal=True)
        x = x + B.linear(y.transpose(1, 2).reshape(b, s, WIDTH), self.out)
        n = B.rms_norm(x, self.norms[1])
        return x + B.linear(B.swiglu(B.linear(n, self.gate), B.linear(n, self.up)), self.down)


class Model(nn.Module):
    def __init__(self, dtype, recompute=None):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table, self.recompute = weights(generator, VOCABULARY, WIDTH), recompute
        self.head = weights(generator, WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block(generator) for _ in range(2))
        self.to(dtype)

    def forward(self, tokens, targets):
        x = B.embedding(tokens, self.table)
        tables = rope.tables(tokens.shape[1], WIDTH // HEADS, like=x)
        for block in self.blocks:
            if self.recompute is None:
                x = block(x, *tables)
            else:
                x = checkpoint(block, x, *tables, use_reentrant=self.recompute)
        return B.linear_cross_entropy(x, self.head, targets, reduction="sum")


def batch(length):
    tokens = torch.randint(VOCABULARY, (4, length + 1), generator=torch.Generator().manual_seed(length))
    tokens[0, -1] = tokens[3, -2] = 0
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    return tokens[:, :-1], targets


def steps(model, rows, processes, scaled):
    """Train for a step of each length, and return the gradients of each step and the parameters after the last."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled)
    found = []
    for length in LENGTHS:
        tokens, targets = batch(length)
        with torch.autocast("cpu", torch.float16) if scaled else nullcontext():
            loss = model(tokens[rows], targets[rows]) / (targets != -100).sum()
        scaler.scale(loss * processes).backward()  # both schemes average over the processes
        scaler.unscale_(optimiser)
        found.append([whole(p.grad) for p in model.parameters()])
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
    assert scaler.get_scale() == (SCALE if scaled else 1)  # no step was left out
    return [*found, [whole(p) for p in model.parameters()]]


def whole(x):
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def on_one(group, dtype, scaled):
    return steps(Model(dtype), slice(None), 1, scaled)


@cache
def by_one_process(dtype, scaled):
    return on_processes(on_one, 1, dtype, scaled)[0]


def on_two(group, scheme, dtype, recompute, compiled, scaled):
    torch._dynamo.reset()
    model = Model(dtype, recompute)
    if compiled and group.rank == 0:  # the other rank runs the same block as it is, in a fraction of the time
        model.blocks[0].compile(fullgraph=True, backend="aot_eager")
    if scheme == "fully_shard":
        mesh = init_device_mesh("cpu", (2,))
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh)
    else:
        model = DistributedDataParallel(model, process_group=distributed.new_group())
    return steps(model, slice(2 * group.rank, 2 * group.rank + 2), 2, scaled)


WAYS = {
    "compiled": (None, True, False),
    "reentrant": (REENTRANT, False, False),
    "not_reentrant-compiled": (NOT_REENTRANT, True, False),
    "not_reentrant-scaled": (NOT_REENTRANT, False, True),
    "compiled-scaled": (None, True, True),
}


# Each compiled case takes ten seconds. Its result depends on the code between an operation and the compiler.
TESTED = ("backpass.functional", "backpass.ops")
ROTATES = pytest.mark.rotates(share=0.3, of=lambda scheme, way: [proofs.imports(*TESTED)])
CASES = [
    pytest.param(scheme, way, marks=ROTATES if WAYS[way][1] else ())
    for scheme, way in pairs(("DistributedDataParallel", "fully_shard"), WAYS, of=TESTED, meet=1)
]


@pytest.mark.parametrize(("scheme", "way"), CASES)
def test_two_processes_have_the_gradients_of_one(scheme, way, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    recompute, compiled, scaled = WAYS[way]
    dtype = torch.float32 if scaled else torch.float64
    halves = on_processes(on_two, 2, scheme, dtype, recompute, compiled, scaled, timeout=300)
    exact = by_one_process(dtype, scaled)
    for found in halves:
        for step, (got, expected) in enumerate(zip(found, exact, strict=True)):
            for one, other in zip(got, expected, strict=True):
                # Halves of a batch are rounded to 16 bits on their own.
                atol = (1e-2 if scaled else 1e-13) * (1 + step) * other.abs().max().item()
                torch.testing.assert_close(one, other, rtol=0, atol=atol)
