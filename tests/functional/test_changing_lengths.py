"""Lengths that change from call to call: ``torch.compile`` makes no graph for each, and ``torch.export`` leaves them open."""

import pytest
import torch
import torch._dynamo.testing
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import proofs
from backpass import functional as B
from backpass import ops
from backpass.operation import Operation
from backpass.verify import cases
from backpass.verify.drawing import generator, options_for

from .support import differentiable, drawn_longer, tensors

STEMS = pytest.mark.parametrize("stem", ops.STEMS)
# A compiled operation depends on the operation's code and on the code between it and PyTorch.
ROTATES = pytest.mark.rotates(
    share=0.1, of=lambda stem, half=0: [proofs.imports(f"backpass.ops.{stem}", "backpass.functional")]
)


@pytest.fixture(autouse=True)
def operations_on_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch._dynamo.reset()


def check(stem, function, inputs, options):
    """Whether a compiled function has the values and the gradients of the operation, bit for bit."""
    leaves = differentiable(stem, inputs)
    exact, y = getattr(B, stem)(*inputs, **options), function(*inputs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    assert torch.equal(y, exact)
    for got, expected in zip(
        torch.autograd.grad(y, leaves, dy), torch.autograd.grad(exact, leaves, dy), strict=True
    ):
        assert torch.equal(got, expected)


def counting():
    return torch._dynamo.testing.CompileCounterWithBackend("aot_eager")


@ROTATES
@STEMS
def test_lengths_that_change_need_two_graphs(stem):
    """One for the first lengths, one for all others. Every axis of every input changes, except the numbers of heads."""
    graphs = counting()
    _, options = drawn_longer(stem, 0)
    compiled = torch.compile(
        lambda *inputs: getattr(B, stem)(*inputs, **options), fullgraph=True, backend=graphs
    )
    for by in range(4):
        check(stem, compiled, drawn_longer(stem, by)[0], options)
    assert graphs.frame_count <= 2


@ROTATES
@pytest.mark.parametrize("stem", [stem for stem in ops.STEMS if Operation(stem).shapes.factors])
def test_so_do_numbers_of_heads(stem):
    graphs = counting()
    _, options = drawn_longer(stem, 0)
    compiled = torch.compile(
        lambda *inputs: getattr(B, stem)(*inputs, **options), fullgraph=True, backend=graphs
    )
    for by in range(3):
        check(stem, compiled, drawn_longer(stem, by, heads=True)[0], options)
    assert graphs.frame_count <= 2


@ROTATES
@STEMS
def test_an_axis_may_be_marked_as_dynamic(stem):
    """PyTorch raises if a marked length becomes a constant."""
    graphs = counting()
    inputs, options = drawn_longer(stem, 0)
    compiled = torch.compile(
        lambda *inputs: getattr(B, stem)(*inputs, **options), fullgraph=True, backend=graphs
    )
    for x in inputs:
        for axis in range(0 if x is None else x.dim()):
            if x.shape[axis] > 1:
                torch._dynamo.mark_dynamic(x, axis)
    check(stem, compiled, inputs, options)
    check(stem, compiled, drawn_longer(stem, 2)[0], options)
    assert graphs.frame_count == 1


@STEMS
def test_an_exported_function_takes_other_lengths(stem):
    inputs, options = drawn_longer(stem, 0)

    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return getattr(B, stem)(*inputs, **options)

    DYNAMIC, AUTO = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
    lengths = tuple(
        None if x is None else {axis: DYNAMIC if length > 1 else AUTO for axis, length in enumerate(x.shape)}
        for x in inputs
    )
    exported = torch.export.export(Module(), tuple(inputs), dynamic_shapes=(lengths,)).module()
    for by in (0, 3):
        others = drawn_longer(stem, by)[0]
        assert torch.equal(exported(*others), getattr(B, stem)(*others, **options))


@pytest.fixture
def numbers_that_depend_on_data():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.usefixtures("numbers_that_depend_on_data")
def test_the_number_of_rows_may_depend_on_data():
    """Tokens and targets that a mask selects: nobody knows how many until the graph runs."""
    torch.manual_seed(0)
    leaves = [torch.randn(7, 4, requires_grad=True), torch.randn(4, 7, requires_grad=True)]

    def loss(t, chosen, table, head):
        t = t[chosen]
        x = B.rms_norm(B.embedding(t, table))
        return B.cross_entropy(B.linear(x, head), t) + B.linear_cross_entropy(x, head, t)

    graphs = counting()
    compiled = torch.compile(loss, fullgraph=True, backend=graphs)
    for rows in (6, 9, 11, 5):
        t, chosen = torch.randint(7, (rows,)), torch.arange(rows) % 3 > 0
        y, exact = (function(t, chosen, *leaves) for function in (compiled, loss))
        assert torch.equal(y, exact)
        assert all(map(torch.equal, torch.autograd.grad(y, leaves), torch.autograd.grad(exact, leaves)))
    assert graphs.frame_count <= 2


def detached(inputs):
    return [None if x is None else x.detach() for x in inputs]


def is_half(inputs):
    return any(x is not None and x.dtype == torch.float16 for x in inputs)


def halved(inputs):
    return [x.half() if x is not None and x.is_floating_point() else x for x in inputs]


def general(mode, x, source):
    """``x`` without its values, with a symbol for each of its lengths."""
    lengths = StatelessSymbolicContext([DimDynamic.DYNAMIC] * x.dim())
    return mode.from_tensor(x, source=source, symbolic_context=lengths)


def operator_of(stem, options):
    """The operator with the options in place, a function of the inputs."""
    schema = getattr(torch.ops.backpass, stem).default._schema
    count = len(Operation(stem).inputs)
    defaults = {p.name: p.default for p in getattr(B, stem).__signature__.parameters.values()}
    defaults |= {"seed": 0}
    chosen = [(defaults | options).get(a.name) for a in schema.arguments[count:]]
    return lambda *inputs: getattr(torch.ops.backpass, stem)(*inputs, *chosen)


def lengths_of(results, symbols=None):
    """The shape, strides, dtype, and device of each tensor, with numbers for its symbols."""

    def numbers(lengths):
        return tuple(
            int(n.node.expr.xreplace(symbols)) if isinstance(n, torch.SymInt) else n for n in lengths
        )

    y, own, sources, facts = results
    return [(numbers(x.shape), numbers(x.stride()), x.dtype, x.device) for x in (y, *own, sources, facts)]


@ROTATES
@pytest.mark.parametrize("half", [0, 1])
@STEMS
def test_the_shapes_inferred_without_values_are_those_of_the_results(stem, half):
    """For every second case, of everything that an operator returns: the output, what it saves, and where it lies. Each
    length is a symbol, which the numbers of longer inputs then replace."""
    found = [(detached(tensors(stem, arrays)), options) for arrays, options in cases(stem, generator(0, 0))]
    usual, options = detached(drawn_longer(stem, 0)[0]), options_for(stem)
    found = [(inputs, inputs, options) for inputs, options in found if not is_half(inputs)]
    found += [(inputs, inputs, options) for inputs in [halved(usual)]]
    found += [(usual, detached(drawn_longer(stem, 3)[0]), options)]
    for inputs, others, options in found[half::2]:
        env, symbols = ShapeEnv(duck_shape=False), {}
        operator = operator_of(stem, options)
        with FakeTensorMode(shape_env=env) as mode:
            fakes = []
            for at, (x, other) in enumerate(zip(inputs, others, strict=True)):
                fakes.append(x if x is None else general(mode, x, ConstantSource(f"x{at}")))
                for n, length in () if x is None else zip(fakes[-1].shape, other.shape, strict=True):
                    if isinstance(n, torch.SymInt):
                        symbols[n.node.expr] = length
            without_values = operator(*fakes)
        assert not env.guards
        assert lengths_of(without_values, symbols) == lengths_of(operator(*others))
