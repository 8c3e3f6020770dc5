"""What a compiler sees of a function: its lines, which it can fuse, or an operator, which it cannot."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from backpass import functional as B
from backpass import ops

from .support import drawn

# Three read a value, to check a sum; the fourth takes many tiles here.
HIDDEN = {"linear_attention", "multilinear_attention", "simplex_norm", "flash_attention"}


@pytest.fixture(autouse=True)
def operations_on_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def seen(function, *inputs, **settings):
    """The operators of ours in the graphs that a compiler gets for the forward and the backward, and how many others."""
    torch._dynamo.reset()
    found = []

    def compiler(graph, _):
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph)

    compiled = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=compiler), **settings)
    y = compiled(*inputs)
    y.backward(torch.randn_like(y))
    ours = {name.split(".")[1] for name in found if name.startswith("backpass")}
    return ours, len(found)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_a_compiler_sees_few_lines_that_read_no_value(stem):
    inputs, options = drawn(stem)
    ours, _ = seen(lambda *values: getattr(B, stem)(*values, **options), *inputs)
    assert ours == ({stem, f"{stem}_backward"} if stem in HIDDEN else set())


def test_it_sees_the_lines_of_a_dropout_that_drops_nothing():
    x = torch.randn(3, 5, requires_grad=True)
    assert seen(lambda x: B.dropout(x, p=0.0), x)[0] == set()
    assert seen(B.dropout, x)[0] == {"dropout", "dropout_backward"}


def test_it_sees_one_operator_in_place_of_many_lines():
    q, k, v = (torch.randn(1, 1, 2048, 8, requires_grad=True) for _ in range(3))
    names = {"flash_attention", "flash_attention_backward"}
    assert seen(B.flash_attention, q, k, v)[0] == names
    short = [x[:, :, :64] for x in (q, k, v)]
    assert seen(B.flash_attention, *short)[0] == set()


def test_it_sees_an_operator_where_a_length_is_open():
    x = torch.randn(3, 5, requires_grad=True)
    assert seen(lambda x: B.gelu(x), x)[0] == set()
    assert seen(lambda x: B.gelu(x), x, dynamic=True)[0] == {"gelu", "gelu_backward"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_its_graph_refuses_what_is_outside(backend):
    table, head = torch.randn(7, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)

    def loss(t):
        return B.cross_entropy(B.embedding(t, table) @ head, t)

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    t = torch.tensor([1, -100, 4])
    with pytest.raises(RuntimeError, match="t: expected tokens from 0 to 6"):
        compiled(t)
    with pytest.raises(RuntimeError, match="t: expected targets from 0 to 4, or -100 to ignore"):
        compiled(t.abs() % 7 + 2)
    assert torch.equal(compiled(t.clamp(0)), loss(t.clamp(0)))


def test_it_computes_no_gradient_that_nobody_needs():
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    both, one = (seen(B.linear, x, weight)[1] for weight in (w, w.detach()))
    assert one < both
