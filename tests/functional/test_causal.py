"""Causal attention in blocks of queries."""

import pytest
import torch

from backpass import functional as B
from backpass.ops import attention, flash_attention
from backpass.torch_door import causal
from backpass.torch_door.compiled import compiled_operations

from .test_compiled_operations import graphs  # noqa: F401  # a fixture

USUAL = {"causal": True, "window": None, "dropout_p": 0.0}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(causal, "LEAST", 2)


def drawn(s=11, n_kv=2, **like):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, s, 3), (2, n_kv, s, 3), (2, n_kv, s, 5), (2, 4, s, 5)
    *inputs, dy = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.to(**like).requires_grad_() for x in inputs], dy.to(**like)


@pytest.mark.parametrize("options", [{}, {"softcap": 0.5, "scale": 0.3, "head_order": "interleaved"}])
def test_the_blocks_together_are_the_operation(options, graphs):  # noqa: F811
    inputs, dy = drawn()
    y = B.attention(*inputs, causal=True, **options)
    exact = torch.autograd.grad(y, inputs, dy)
    with compiled_operations():
        again = B.attention(*inputs, causal=True, **options)
        found = torch.autograd.grad(again, inputs, dy)
    torch.testing.assert_close((again, *found), (y, *exact), rtol=1e-13, atol=1e-13)
    forward, backward = (sum("bmm" in str(node.target) for node in graph.graph.nodes) for graph in graphs)
    assert forward == 8 and (options or backward == 16)


def test_gradients_that_are_not_wanted_are_not_computed(graphs):  # noqa: F811
    (q, k, v), dy = drawn()
    exact = torch.autograd.grad(B.attention(q, k, v, causal=True), (q, k, v), dy)
    for at, x in enumerate((q, k, v)):
        given = [z if z is x else z.detach() for z in (q, k, v)]
        with compiled_operations():
            (found,) = torch.autograd.grad(B.attention(*given, causal=True), x, dy)
        torch.testing.assert_close(found, exact[at], rtol=1e-13, atol=1e-13)
    products = [sum("bmm" in str(node.target) for node in graph.graph.nodes) for graph in graphs[1::2]]
    assert products == [8, 8, 4]


def test_a_second_derivative_is_rejected(graphs):  # noqa: F811
    inputs, _ = drawn()
    with compiled_operations():
        y = B.attention(*inputs, causal=True)
        found = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        torch.testing.assert_close(
            found, torch.autograd.grad(B.attention(*inputs, causal=True).square().sum(), inputs)
        )
        with pytest.raises(RuntimeError, match="expected one derivative, in reverse mode"):
            found[0].sum().backward()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_sees_them():
    inputs, dy = drawn()
    counts = []

    def counting(graph, _):
        counts.append(sum("bmm" in str(node.target) for node in graph.graph.nodes))
        return graph

    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(fw_compiler=counting, bw_compiler=counting)
    compiled = torch.compile(
        lambda *x: B.attention(*x, causal=True), fullgraph=True, dynamic=False, backend=backend
    )
    found = torch.autograd.grad(compiled(*inputs), inputs, dy)
    exact = torch.autograd.grad(B.attention(*inputs, causal=True), inputs, dy)
    torch.testing.assert_close(found, exact, rtol=1e-13, atol=1e-13)
    assert counts[0] == 8 and counts[1] >= 16


def test_only_what_the_blocks_compute_is_replaced():
    (q, k, v), _ = drawn()
    half, none = q.bfloat16(), (None, None, None)
    assert causal.instead(attention, (q, k, v, *none), USUAL) is causal
    others = [
        (attention, (q, k, v, *none), USUAL | {"causal": False}),
        (attention, (q, k, v, *none), USUAL | {"window": 3}),
        (attention, (q, k, v, *none), USUAL | {"dropout_p": 0.5}),
        (attention, (q, k, v, q, None, None), USUAL),
        (attention, (q, k, v, None, None, q), USUAL),
        (attention, (half, half, half, *none), USUAL),
        (attention, (q[..., 1:, :], k, v, *none), USUAL),
        (attention, (q[..., :7, :], k[..., :7, :], v[..., :7, :], *none), USUAL),
        (flash_attention, (q, k, v, *none), USUAL),
    ]
    for op, inputs, options in others:
        assert causal.instead(op, inputs, options) is op
