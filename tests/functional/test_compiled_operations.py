"""Each operation compiled by itself, within ``compiled_operations``.

Most tests run the graphs that the compiler gets, without generating code: two of them generate it.
"""

import warnings

import pytest
import torch

from backpass import functional as B
from backpass import ops
from backpass import torch_internals as internals
from backpass.torch_door import compiled, lines
from backpass.torch_door.compiled import compiled_operations

from .support import differentiable, drawn
from .test_compiled import HIDDEN

SCATTERED = {"embedding", "position_embedding"}  # whose backward adds rows at places that an array gives


@pytest.fixture
def graphs(monkeypatch):
    """Graphs in place of generated code, in the order in which they were traced."""
    found = []

    def traced(graph, tensors):
        found.append(graph)
        return graph

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(internals, "generated", traced)
    monkeypatch.setattr(compiled, "_kept", {})
    monkeypatch.setattr(compiled, "without_compiler", lambda: None)
    return found


def results(stem, inputs, options, dy=None):
    y = getattr(B, stem)(*inputs, **options)
    dy = torch.randn_like(y, generator=None) if dy is None else dy
    return y, dy, torch.autograd.grad(y, differentiable(stem, inputs), dy)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_every_operation_has_the_same_values_and_gradients(stem, graphs):
    inputs, options = drawn(stem)
    y, dy, exact = results(stem, inputs, options)
    with compiled_operations():
        for _ in range(2):
            again, _, found = results(stem, inputs, options, dy)
            assert again.grad_fn.name() == f"{stem}Backward"
            torch.testing.assert_close(again, y, rtol=1e-14, atol=1e-14)
            for one, other in zip(found, exact, strict=True):
                assert one.dtype == other.dtype
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    assert len(graphs) == (0 if stem in HIDDEN else 1 if stem in SCATTERED else 2)


def test_nothing_is_compiled_outside(graphs):
    x = torch.randn(3, 5, requires_grad=True)
    with compiled_operations():
        B.softmax(x)
    assert len(graphs) == 1
    B.softmax(x).sum().backward()
    assert len(graphs) == 1


def test_each_shape_dtype_option_and_layout_is_compiled_once(graphs):
    x = torch.randn(4, 6)
    calls = [
        lambda: B.gelu(x),
        lambda: B.gelu(x[:3]),
        lambda: B.gelu(x.mT),
        lambda: B.gelu(x.double()),
        lambda: B.gelu(x, approximate="tanh"),
        lambda: B.gelu(x.clone().requires_grad_()),
    ]
    expected = [call() for call in calls]
    with compiled_operations():
        for _ in range(2):
            for call, y in zip(calls, expected, strict=True):
                torch.testing.assert_close(call(), y)
    assert len(graphs) == len(calls)


def test_a_gradient_that_lies_otherwise_in_memory_has_a_backward_of_its_own(graphs):
    x = torch.randn(4, 4, requires_grad=True)
    with compiled_operations():
        for dy in (torch.randn(4, 4), torch.randn(4, 4).mT, torch.ones(()).expand(4, 4)) * 2:
            (found,) = torch.autograd.grad(B.softmax(x), x, dy)
            (exact,) = torch.autograd.grad(torch.softmax(x, -1), x, dy)
            torch.testing.assert_close(found, exact)
    assert len(graphs) == 1 + 3


def test_only_gradients_that_are_needed_are_computed(graphs):
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with compiled_operations():
        for weight in (w, w.detach()):
            B.linear(x, weight).sum().backward()
    products = [sum("mm" in str(node.target) for node in graph.graph.nodes) for graph in graphs]
    assert products == [1, 2, 1, 1]


def test_a_changed_array_and_a_second_derivative_are_rejected(graphs):
    x = torch.randn(3, 5, requires_grad=True)
    with compiled_operations():
        y = B.softmax(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="expected one derivative, in reverse mode"):
            dx.sum().backward()
        y = B.softmax(x)
        with torch.no_grad():
            y += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_autocast_keeps_its_dtypes(graphs):
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)

    def both():
        with torch.autocast("cpu", torch.bfloat16):
            y = B.layer_norm(B.linear(x, w))
        return y, *torch.autograd.grad(y, (x, w), torch.ones_like(y))

    expected = both()
    with compiled_operations():
        found = both()
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_after_the_last_shape_that_is_compiled_the_lines_run(graphs, monkeypatch):
    monkeypatch.setattr(compiled, "MOST", 2)
    with compiled_operations():
        B.relu(torch.randn(1)), B.relu(torch.randn(2))
        with pytest.warns(UserWarning, match=r"functional\.relu: 2 shapes or sets of options were compiled"):
            y = B.relu(torch.tensor([-1.0, 2.0, 3.0]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            B.relu(torch.randn(2))
    assert y.tolist() == [0, 2, 3] and len(graphs) == 2


def test_without_a_compiler_it_says_so_and_the_lines_run(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(internals, "generated", None)
    monkeypatch.setattr(compiled, "_kept", {})
    x = torch.randn(3, 5)
    y = B.softmax(x)
    with pytest.warns(
        UserWarning, match=r"needs a C\+\+ compiler on a CPU, and no-such-compiler is not found"
    ):
        with compiled_operations():
            assert torch.equal(B.softmax(x), y)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.skipif(compiled.without_compiler() is not None, reason="there is no C++ compiler")
def test_generated_code_is_as_accurate_and_notices_a_wrong_target(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(6, 37, requires_grad=True)
    t = torch.tensor([3, 36, -100, 0, 7, 7])
    exact = torch.autograd.grad(B.cross_entropy(x.double(), t), x)
    with compiled_operations():
        (found,) = torch.autograd.grad(B.cross_entropy(x, t), x)
        torch.testing.assert_close(found, exact[0], rtol=1e-6, atol=1e-8)
        with pytest.raises(RuntimeError, match="t: expected targets from 0 to 36, or -100 to ignore"):
            B.cross_entropy(x, t + 1)


def saved_by(call):
    """Return the result of a call, and what autograd saves for it."""
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: stored.append(x) or x, lambda x: x):
        y = call()
    return y, [x for x in stored if x.numel()]


def test_a_norm_saves_two_numbers_of_each_row_and_sums_its_rows_in_blocks(graphs):
    """So the forward does not write the normalised rows, the backward does not sum them again, and its loops read
    memory in order."""
    m, n = 256, 16
    x, w, b = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((m, n), (n,), (n,)))
    dy = torch.randn(m, n, dtype=torch.float64)
    exact = torch.autograd.grad(torch.nn.functional.layer_norm(x, (n,), w, b), (x, w, b), dy)
    with compiled_operations():
        y, stored = saved_by(lambda: B.layer_norm(x, w, b))
        assert {z.data_ptr() for z in stored[:2]} == {z.data_ptr() for z in (x, w)}
        assert [z.shape for z in stored[2:]] == [(m, 1)] * 2
        found = torch.autograd.grad(y, (x, w, b), dy)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    backward = graphs[1]
    blocks = [node.args[1] for node in backward.graph.nodes if node.target is torch.ops.aten.reshape.default]
    assert blocks.count([4, lines.BLOCK, n]) == 2
    of_rows = [node for node in backward.graph.nodes if node.args[1:] == ([-1], True)]
    assert len(of_rows) == 2
    # Inductor computes what a graph returns before the loops that read it: here, mean and rstd of each row.
    _, _, _, *once = backward.graph.output_node().args[0]
    assert [node.meta["val"].shape for node in once] == [(m, 1)] * 2


def test_a_loss_saves_two_numbers_of_each_row_and_takes_each_exponential_once(graphs):
    x, t = torch.randn(6, 50, requires_grad=True), torch.tensor([3, 49, -100, 0, 7, 7])
    exact = torch.autograd.grad(B.cross_entropy(x, t), x)
    with compiled_operations():
        y, stored = saved_by(lambda: B.cross_entropy(x, t))
        assert [z.shape for z in stored] == [x.shape, t.shape, (6, 1), (6, 1)]
        torch.testing.assert_close(torch.autograd.grad(y, x), exact)
    names = [[node.target for node in graph.graph.nodes] for graph in graphs]
    assert [each.count(torch.ops.aten.exp.default) for each in names] == [1, 1]
    assert torch.ops.aten.amax.default not in names[1]


def test_softmax_saves_its_result_alone(graphs):
    x = torch.randn(6, 50, requires_grad=True)
    with compiled_operations():
        y, stored = saved_by(lambda: B.softmax(x))
    assert [z.data_ptr() for z in stored] == [y.data_ptr()]


def test_without_a_gradient_a_forward_returns_its_result_alone(graphs):
    with compiled_operations():
        B.layer_norm(torch.randn(6, 50)), B.linear(torch.randn(6, 50), torch.randn(50, 3))
    assert [len(graph.graph.output_node().args[0]) for graph in graphs] == [1, 1]


def test_no_line_divides_an_array_by_a_power_of_two(graphs):
    """A product with the reciprocal has the same result, and a division takes several times as long."""
    x = torch.randn(6, 50, requires_grad=True)
    with compiled_operations():
        y = B.gelu(x)
        (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, B.gelu(x)) and torch.equal(found, torch.autograd.grad(B.gelu(x).sum(), x)[0])
    assert not [node for graph in graphs for node in graph.graph.nodes if "div" in str(node.target)]


def test_a_compiler_is_searched_for_once(monkeypatch):
    """A search looks into each folder of the path, which takes as long as a small operation."""
    monkeypatch.setenv("CXX", "python3")
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/local/bin")
    first = compiled.without_compiler()
    monkeypatch.setattr(compiled.shutil, "which", None)  # calling it raises
    assert compiled.without_compiler() == first
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TypeError):
        compiled.without_compiler()


def test_an_operation_with_products_saves_what_it_computed(graphs):
    q, k, v = (torch.randn(1, 2, 7, 3, requires_grad=True) for _ in range(3))
    with compiled_operations():
        B.attention(q, k, v).sum().backward()
    forward, backward = graphs
    assert len(forward.graph.output_node().args[0]) > 1
    assert sum("bmm" in str(node.target) for node in backward.graph.nodes) == 4
