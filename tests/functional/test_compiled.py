"""What a compiler sees of a function: its lines, which it can fuse, or an operator, which it cannot."""

import shutil
from pathlib import Path

import grimp
import pytest
import torch
import torch._inductor.config
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

import proofs
from backpass import functional as B
from backpass import ops
from backpass.torch_door import operators

from .support import drawn

# Three read a value, to check a sum; the fourth takes many tiles here; the last draws a mask, in many lines.
HIDDEN = {"linear_attention", "multilinear_attention", "simplex_norm", "flash_attention", "dropout"}


@pytest.fixture(autouse=True)
def operations_on_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def seen(function, *inputs, **settings):
    """Return the names of the package's operators in the graphs of the forward and the backward, and the number of
    all calls in these graphs."""
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


@pytest.mark.rotates(
    share=0.2, of=lambda stem: [proofs.imports(f"backpass.ops.{stem}", "backpass.functional")]
)
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
def test_its_graph_rejects_what_is_outside(backend):
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


# A C++ compiler reads headers for seconds. Scalar code needs few of them, and for four files a header that is compiled
# first does not pay. A worker would import PyTorch again. The cache may hold vector code for the same graph, whose key does
# not say so.
QUICK = {
    "cpp.vec_isa_ok": False,
    "cpp_cache_precompile_headers": False,
    "compile_threads": 1,
    "force_disable_caches": True,
}


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@torch._inductor.config.patch(QUICK)
def test_inductor_has_the_same_gradients():
    """It generates code for all lines of a norm, a gate, a product and a loss."""
    g = torch.Generator().manual_seed(0)
    shapes = (5, 8), (8,), (8, 7)
    leaves = [torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes]
    t = torch.tensor([0, 6, -100, 2, 2])

    def loss(x, norm, head):
        n = B.rms_norm(x, norm, eps=1e-6)
        return B.cross_entropy(B.linear(B.swiglu(n, x), head), t)

    torch._dynamo.reset()
    y, exact = torch.compile(loss, fullgraph=True)(*leaves), loss(*leaves)
    torch.testing.assert_close(y, exact, rtol=1e-13, atol=0)
    for found, right in zip(torch.autograd.grad(y, leaves), torch.autograd.grad(exact, leaves), strict=True):
        assert (found - right).abs().max() <= 1e-13 * right.abs().max()


def test_it_computes_only_the_gradients_that_are_needed():
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    both, one = (seen(B.linear, x, weight)[1] for weight in (w, w.detach()))
    assert one < both


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "none"}])
def test_it_recomputes_the_softmax_of_a_loss_in_the_backward(options):
    """So the forward stores nothing of the scores' size, and each pass is a loop over the scores that a compiler can
    fuse: no line of it writes single elements."""
    x, t = torch.randn(6, 50, requires_grad=True), torch.tensor([3, 49, -100, 0, 7, 7])
    targets, results, saved = [], [], []

    def compiler(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph)

    def forward_compiler(graph, examples):
        results.extend(graph.graph.output_node().args[0])
        saved.extend(node for node in results if node.op != "placeholder" and node.meta["val"].numel() > 49)
        return compiler(graph, examples)

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=forward_compiler,
        bw_compiler=compiler,
        partition_fn=min_cut_rematerialization_partition,
    )
    y = torch.compile(lambda x: B.cross_entropy(x, t, **options), fullgraph=True, backend=backend)(x)
    dy = torch.randn_like(y)
    (found,), (exact,) = (torch.autograd.grad(loss, x, dy) for loss in (y, B.cross_entropy(x, t, **options)))
    assert torch.equal(found, exact)
    assert len(results) > 1 and not saved
    assert not [name for name in targets if "scatter" in name or "index_put" in name]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # it breaks the graph there
def test_its_graph_can_contain_the_backward():
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)

    def step(x, w):
        loss = B.softmax(B.linear(x, w)).pow(2).sum()
        loss.backward()
        return loss

    expected = torch.autograd.grad(B.softmax(B.linear(x, w)).pow(2).sum(), (x, w))
    torch._dynamo.reset()
    torch.compile(step, backend="aot_eager")(x, w)
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_a_second_derivative_in_its_graph_is_rejected():
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)

    def penalty(x):
        (dx,) = torch.autograd.grad(B.layer_norm(x, w, w).pow(3).sum(), x, create_graph=True)
        return dx.pow(2).sum()

    torch._dynamo.reset()
    with (
        torch._dynamo.config.patch(trace_autograd_ops=True),
        pytest.raises(RuntimeError, match="expected one derivative, in reverse mode"),
    ):
        torch.compile(penalty, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_a_transform_in_its_graph_is_rejected(transform):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: transform(lambda row: B.sphere_norm(row).sum())(x), backend="aot_eager", fullgraph=True
    )
    with pytest.raises(RuntimeError, match=r"got (a transform of torch\.func|vmap)"):
        compiled(torch.randn(3, 4))


def test_what_pytorch_keeps_on_disk_is_not_found_after_a_change_of_the_lines(monkeypatch, tmp_path):
    package = Path(operators.__file__).parents[1]
    imported = grimp.build_graph("backpass", exclude_type_checking_imports=True, cache_dir=None)
    below = imported.find_upstream_modules("backpass.ops", as_package=True)
    assert below <= {"backpass.contract", *imported.find_children("backpass.contract")}
    for folder in ("contract", "ops", "torch_door"):
        shutil.copytree(package / folder, tmp_path / folder)
    monkeypatch.setattr(operators, "__file__", str(tmp_path / "torch_door" / "operators.py"))
    versions = [operators._version.__wrapped__()]
    assert versions == [operators._version()]
    for changed in ("ops/gelu.py", "contract/arrays.py", "torch_door/operators.py"):
        with open(tmp_path / changed, "a") as file:
            file.write("# changed\n")
        versions.append(operators._version.__wrapped__())
    assert len({*versions}) == 4
    assert any(versions[0] in str(name) for name in torch.ops.backpass.__dict__ if "gelu_lines" in name)
