"""Private names of PyTorch: what each is needed for, so that a release that changes one fails here."""

import ast
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from backpass import torch_internals as internals

FILES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))


def test_a_transform_is_seen_while_it_runs():
    seen = []
    assert not internals.transformed()
    torch.func.vmap(lambda x: seen.append(internals.transformed()) or x)(torch.ones(3))
    torch.func.grad(lambda x: seen.append(internals.transformed()) or x)(torch.tensor(1.0))
    assert seen == [True, True] and not internals.transformed()


def test_forward_mode_is_seen_while_it_is_on():
    """Outside it, the public way to ask for a tangent raises or asks what the innermost level is."""
    assert not internals.dual_level()
    with forward_ad.dual_level():
        assert internals.dual_level()
    assert not internals.dual_level()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_share_memory_and_copies_do_not(device):
    x = torch.ones(4, 6, device=device)
    assert internals.share_memory(x, x[1:].T) and internals.share_memory(x, x.detach())
    assert not internals.share_memory(x, x.clone()) and not internals.share_memory(x, torch.ones_like(x))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_storage_is_told_from_another_also_without_memory(device):
    x, y = torch.ones(4, device=device), torch.ones(4, device=device)
    assert internals.storage_id(x) == internals.storage_id(x[1:]) != internals.storage_id(y)


def test_tensors_without_values_are_fake_under_torch_compile():
    seen = []

    @torch.library.custom_op("backpass_test::seen", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @operator.register_fake
    def _(x):
        seen.append(internals.is_fake(x))
        return torch.empty_like(x)

    torch.compile(lambda x: operator(x) + 1, backend="eager")(torch.ones(2))
    assert seen and all(seen)
    assert not internals.is_fake(torch.ones(2)) and not internals.is_fake(torch.ones(2, device="meta"))


def test_a_mode_sees_the_operator_that_reads_a_number():
    called = []

    class Watching(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    with Watching():
        int(torch.tensor([3]))
    assert internals.READ in called


def test_a_function_that_counts_to_a_length_leaves_it_open():
    """A comparison or a loop in the operator itself would make the length a constant."""
    traced = []

    def pieces(inputs, options):
        (x,), (least,) = inputs, options
        traced.append(x.shape)
        rows = [x[at : at + 2] for at in range(0, x.shape[0], 2)]
        return [torch.cat(rows).T, x.new_empty(int(x.shape[0] > least))]

    @torch.library.custom_op("backpass_test::pieces", mutates_args=())
    def operator(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.empty_strided((x.shape[1], x.shape[0]), (1, x.shape[1]))
        return [y.fill_(x.shape[0]), x.new_empty(1)]

    @operator.register_fake
    def _(x):
        return internals.on_stand_ins(pieces, [x], (2,))

    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: operator(x)[0] + 1, fullgraph=True, backend=graphs, dynamic=True)
    for rows in (5, 7, 9):
        assert torch.equal(compiled(torch.ones(rows, 3)), torch.full((3, rows), rows + 1.0))
    assert graphs.frame_count == len(traced) == 1
    assert all(isinstance(length, torch.SymInt) for length in traced[0])


def test_few_lines_that_read_no_value_are_traceable():
    def few(inputs, options):
        return inputs[0] * options[0]

    def reading(inputs, options):
        return inputs[0] * float(inputs[0].sum())

    def many(inputs, options):
        return [row + 1 for row in inputs[0]]

    x = torch.ones(internals.FEW, 2)
    assert internals.is_traceable(few, [x, None], (2,))
    assert internals.is_traceable(many, [x[:3], None], ())
    assert not internals.is_traceable(reading, [x, None], ())
    assert not internals.is_traceable(many, [x, None], ())


def test_no_more_is_run_than_shows_that_lines_are_many():
    found = []

    def endless(inputs, options):
        while True:
            found.append(inputs[0] + 1)

    assert not internals.is_traceable(endless, [torch.ones(2)], ())
    assert len(found) == internals.FEW


def private_names(tree):
    """Imports and attributes of torch with a part that begins with one underscore."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        for name in names:
            first, *parts = name.split(".")
            if first in ("torch", "forward_ad") and any(p.startswith("_") and p[1] != "_" for p in parts):
                yield name


def test_no_other_file_uses_a_private_name_of_torch():
    found = {path.name: [*private_names(ast.parse(path.read_text()))] for path in FILES}
    assert found.pop("torch_internals.py")
    assert {name: used for name, used in found.items() if used} == {}


def test_an_operator_reads_what_it_needs_the_values_of():
    """Not what it makes views of, asks the shape of, or overwrites."""
    aten, x, y = torch.ops.aten, torch.ones(4), torch.zeros(4)
    read = {
        aten.add.Tensor: ((x, y), [x, y]),
        aten.cat.default: (([x, y],), [x, y]),
        aten.copy_.default: ((x, y), [y]),
        aten.view.default: ((x, [2, 2]), []),
        aten.detach.default: ((x,), []),
        aten.empty_like.default: ((x,), []),
        aten.new_zeros.default: ((x, [3]), []),
    }
    for func, (args, expected) in read.items():
        assert [id(t) for t in internals.read_by(func, args, {})] == [id(t) for t in expected], func


def test_an_operator_that_is_defined_in_python_has_its_function():
    @torch.library.custom_op("backpass_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    own = internals.body(torch.ops.backpass_test.doubled.default)
    assert torch.equal(own(torch.ones(3)), torch.full((3,), 2.0))
    assert internals.body(torch.ops.aten.add.Tensor) is None


def test_operators_that_call_functions_are_told_from_others():
    assert internals.is_higher_order(torch.ops.higher_order.cond)
    assert not internals.is_higher_order(torch.ops.aten.add.Tensor)


def test_a_mode_of_torch_functions_can_be_suspended():
    class Counting(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Counting() as mode:
        with internals.without_torch_functions():
            assert not torch.ones(3).is_cuda
        assert mode.seen == 0
        assert not torch.ones(3).is_cuda
        assert mode.seen > 0


def test_a_storage_is_found_by_a_weak_reference():
    x = torch.arange(6.0)
    weak = StorageWeakRef(x.untyped_storage())
    assert internals.storage_id(
        torch.empty(0).set_(internals.storage_from(weak.cdata), 0, (6,), (1,))
    ) == internals.storage_id(x)


def test_the_formulas_of_active_counters_are_those_they_count_with():
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    x = torch.ones(2, 2)
    assert internals.flop_registries() == []
    with FlopCounterMode(display=False) as outer, FlopCounterMode(display=False) as inner:
        first, second = internals.flop_registries()
        assert first is outer.flop_registry and second is inner.flop_registry
        second[torch.ops.aten.sin] = lambda *args, **kwargs: 5
        torch.sin(x)
    assert (outer.get_total_flops(), inner.get_total_flops()) == (0, 5)


def test_the_transforms_that_run_are_named():
    seen = []

    def function(x):
        seen.append(internals.transforms())
        return x.sum()

    function(torch.ones(2))
    torch.func.grad(function)(torch.ones(2))
    torch.func.vjp(function, torch.ones(2))
    torch.func.vmap(torch.func.grad(function))(torch.ones(2, 2))
    torch.func.jvp(function, (torch.ones(2),), (torch.ones(2),))
    assert seen == [[], ["grad"], ["grad"], ["vmap", "grad"], ["jvp"]]


def test_a_graph_of_a_function_writes_nothing_in_place():
    def changed(x):
        y = x * 2
        y += x
        return [y]

    x = torch.arange(6.0)
    graph = internals.graph_of(changed, [x.requires_grad_()])
    assert [str(node.target) for node in graph.graph.nodes][1:3] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert torch.equal(graph(x)[0], 3 * x)


def test_an_outlined_result_has_the_layout_of_the_function():
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    y = internals.outlined(lambda x: (x + 1).mT, [x])
    assert (y.shape, y.stride(), y.dtype, y.requires_grad) == ((3, 2), (1, 3), torch.float64, False)


def test_an_operator_that_returns_a_view_is_recognised():
    aten = torch.ops.aten
    assert internals.is_viewing(aten.transpose.int) and internals.is_viewing(aten.expand.default)
    assert not any(
        map(internals.is_viewing, (aten.add.Tensor, aten.add_.Tensor, aten.clone.default, "output"))
    )


def test_an_operator_that_allocates_its_only_result_is_recognised():
    aten = torch.ops.aten
    assert internals.allocates(aten.add.Tensor) and internals.allocates(aten.empty.memory_format)
    others = aten.add_.Tensor, aten.add.out, aten.transpose.int, aten.topk.default, aten.split.Tensor
    assert not any(map(internals.allocates, others))


def test_an_operator_writes_to_what_its_schema_says():
    x, y = torch.ones(2), torch.ones(2)
    aten, none = torch.ops.aten, {}
    assert [*internals.written_by(aten.add.Tensor, (x, y), none)] == []
    assert [id(t) for t in internals.written_by(aten.add_.Tensor, (x, y), none)] == [id(x)]
    assert [id(t) for t in internals.written_by(aten.add.out, (x, y), {"out": y})] == [id(y)]
    assert [id(t) for t in internals.written_by(aten._foreach_add_.Scalar, ([x, y], 1), none)] == [
        id(x),
        id(y),
    ]


def test_generated_code_gets_the_graph_and_tensors_without_a_gradient(monkeypatch):
    found = []
    monkeypatch.setattr("torch._inductor.compile", lambda *given: found.append(given))
    x = torch.ones(3, requires_grad=True)
    graph = internals.graph_of(lambda x: [x + 1], [x])
    internals.generated(graph, [x])
    ((same, (tensor,)),) = found
    assert same is graph and not tensor.requires_grad and torch.equal(tensor, x)
