"""``backpass.functional``: every operation as PyTorch has its own, under autograd, ``torch.compile`` and autocast."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backpass import functional as B
from backpass import ops
from backpass.contract.shapes import parse
from backpass.cost import saved_bytes
from backpass.operation import Operation
from backpass.verify import cases

from .functional.support import differentiable, drawn, tensors

STEMS = pytest.mark.parametrize("stem", ops.STEMS)
# PyTorch's own test of an operator still uses what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def operations_on_the_cpu(monkeypatch):
    """Also in a process that runs kernels in the interpreter: those have `kernels/test_every_kernel.py`."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def opcheck(stem, inputs, options, wanted=None):
    """PyTorch's own test of an operator: its schema, its shapes without values, autograd, and ``torch.compile``.

    Its cache of results without values is off: with lengths that are symbols, it costs more time than it saves.
    """
    signature = inspect.signature(getattr(B, stem))
    seeded = "seed" in signature.parameters
    given = signature.bind(*inputs, **({"seed": 0} if seeded else {}) | options)
    given.apply_defaults()
    operator = getattr(torch.ops.backpass, stem).default
    takes = "wanted" in inspect.signature(ops.load(stem).forward).parameters
    others = [wanted] * takes + [None] * seeded
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        torch.library.opcheck(operator, (*given.arguments.values(), *others))


def gradients(y, inputs, dy):
    return torch.autograd.grad(y, inputs, dy, retain_graph=True)


def by_hand(stem, inputs, options, dy):
    """What the operation itself returns."""
    with torch.no_grad():
        y, saved = ops.load(stem).forward(*inputs, **options)
        found = ops.load(stem).backward(dy, saved)
    return y, [g for g in (found if type(found) is tuple else (found,)) if g is not None]


@STEMS
def test_values_and_gradients_are_the_operations_at_every_case(stem):
    for arrays, options in cases(stem, np.random.default_rng(1)):
        inputs = tensors(stem, arrays)
        wanted = differentiable(stem, inputs)
        y = getattr(B, stem)(*inputs, **options)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
        expected_y, expected = by_hand(stem, inputs, options, dy)
        assert torch.equal(y, expected_y)
        for got, other in zip(gradients(y, wanted, dy), expected, strict=True):
            torch.testing.assert_close(got, other, rtol=0, atol=0)


class Watching(TorchDispatchMode):
    """A mode in which a function has to call its operators, for others to see them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.__dict__.setdefault("seen", []).append(str(func))
        return func(*args, **(kwargs or {}))


@STEMS
def test_an_operator_that_is_seen_computes_the_same(stem):
    for arrays, options in cases(stem, np.random.default_rng(1)):
        inputs = tensors(stem, arrays)
        wanted = differentiable(stem, inputs)
        y = getattr(B, stem)(*inputs, **options)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
        with Watching() as mode:
            seen = getattr(B, stem)(*inputs, **options)
            of_seen = gradients(seen, wanted, dy)
            again = gradients(y, wanted, dy)
        assert torch.equal(seen, y)
        for one, other, exact in zip(of_seen, again, gradients(seen, wanted, dy), strict=True):
            assert torch.equal(one, exact) and torch.equal(other, exact)
        ours = [name for name in mode.seen if name.startswith("backpass.")]
        assert ours == [f"backpass.{stem}.default", *[f"backpass.{stem}_backward.default"] * 2]


@STEMS
def test_an_output_may_be_changed_in_place(stem):
    """As one may add to what PyTorch's functions return."""
    inputs, options = drawn(stem)
    wanted = differentiable(stem, inputs)
    function = getattr(B, stem)
    exact = gradients(3 * function(*inputs, **options), wanted, torch.ones_like(function(*inputs, **options)))
    try:
        y = function(*inputs, **options).mul_(3)
        found = gradients(y, wanted, torch.ones_like(y))
    except RuntimeError as error:
        # y is saved, or repeats one rank's part.
        assert "modified by an inplace operation" in str(error) or "more than one element" in str(error)
    else:
        assert all(map(torch.equal, found, exact))


@STEMS
def test_opcheck(stem):
    for arrays, options in list(cases(stem, np.random.default_rng(2)))[:2]:
        inputs = tensors(stem, arrays)
        opcheck(stem, inputs, options)


@STEMS
def test_opcheck_without_what_is_optional(stem):
    optional = [spec.name for spec in parse(ops.load(stem).SHAPES).inputs if spec.optional]
    if not optional or stem == "feed_forward":  # which needs its gate
        return
    inputs, options = drawn(stem, without=optional)
    opcheck(stem, inputs, options)


WITH_WANTED = [stem for stem in ops.STEMS if "wanted" in inspect.signature(ops.load(stem).forward).parameters]


@pytest.mark.parametrize("stem", WITH_WANTED)
def test_opcheck_with_an_input_frozen(stem):
    inputs, options = drawn(stem)
    first, *others = differentiable(stem, inputs)
    given = [value.detach() if value is first else value for value in inputs]
    opcheck(stem, given, options, [False, *(True for _ in others)])


@pytest.mark.parametrize("stem", WITH_WANTED)
def test_what_is_frozen_is_neither_saved_for_nor_computed(stem, monkeypatch):
    """The operation is asked for the gradients of the inputs that require one, forward and backward."""
    asked = []

    def recording(function):
        def recorded(*args, wanted=None, **options):
            asked.append(set(wanted))
            return function(*args, wanted=wanted, **options)

        return recorded

    for part in ("forward", "backward"):
        monkeypatch.setattr(ops.load(stem), part, recording(getattr(ops.load(stem), part)))
    inputs, options = drawn(stem)
    specs = parse(ops.load(stem).SHAPES).inputs
    names = {id(value): spec.name for spec, value in zip(specs, inputs, strict=True)}
    for frozen in (leaves := differentiable(stem, inputs)):
        given = [value.detach() if value is frozen else value for value in inputs]
        others = [leaf for leaf in leaves if leaf is not frozen]
        y = getattr(B, stem)(*given, **options)
        torch.autograd.grad(y.sum(), others)
        assert asked == [{names[id(leaf)] for leaf in others}] * 2
        asked.clear()
    with torch.no_grad():
        getattr(B, stem)(*inputs, **options)
    assert asked == [set()]


def test_a_frozen_weight_keeps_none_of_the_rows_that_met_it():
    kept = []

    def packed(tensor):
        kept.append(tensor.data_ptr())
        return tensor

    x, w = torch.randn(5, 3, requires_grad=True), torch.randn(3, 7)
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        B.linear(x, w)
    assert w.data_ptr() in kept and x.data_ptr() not in kept


@STEMS
def test_a_gradient_only_where_one_is_wanted(stem):
    inputs, options = drawn(stem)
    for wanted in differentiable(stem, inputs):
        given = [v if v is wanted or v is None else v.detach() for v in inputs]
        y = getattr(B, stem)(*given, **options)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
        # Of the inputs that were given: torch.matmul's rounding depends on which inputs require a gradient.
        _, expected = by_hand(stem, given, options, dy)
        at = next(i for i, value in enumerate(differentiable(stem, inputs)) if value is wanted)
        torch.testing.assert_close(gradients(y, [wanted], dy)[0], expected[at], rtol=0, atol=0)


@STEMS
def test_gradcheck(stem):
    inputs, options = drawn(stem, leading={"*": (2,)})
    wanted = differentiable(stem, inputs)

    def function(*values):
        values = iter(values)
        given = [next(values) if any(v is w for w in wanted) else v for v in inputs]
        return getattr(B, stem)(*given, **options)

    assert torch.autograd.gradcheck(function, wanted, fast_mode=True)


@STEMS
def test_a_gradient_of_the_gradient_is_rejected(stem):
    inputs, options = drawn(stem)
    y = getattr(B, stem)(*inputs, **options)
    dy = torch.ones_like(y, requires_grad=True)
    grads = torch.autograd.grad(y, differentiable(stem, inputs), dy, create_graph=True)
    with pytest.raises(
        RuntimeError, match=f"backpass.functional.{stem}: expected one derivative, in reverse mode"
    ):
        torch.autograd.grad(sum(g.square().sum() for g in grads), dy)


@pytest.mark.parametrize("stem", ["layer_norm", "softmax", "cross_entropy", "swiglu", "embedding", "linear"])
def test_compile_takes_it_whole(stem):
    inputs, options = drawn(stem)
    wanted = differentiable(stem, inputs)
    function = getattr(B, stem)
    y = function(*inputs, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *values: 2 * function(*values, **options), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(*inputs), 2 * y)
    for got, eager in zip(
        gradients(compiled(*inputs), wanted, dy), gradients(2 * y, wanted, dy), strict=True
    ):
        assert torch.equal(got, eager)


def test_a_model_of_them_has_pytorchs_gradients():
    torch.manual_seed(0)
    t, table, w = torch.randint(0, 11, (4, 6)), torch.randn(11, 8), torch.randn(8)
    up, down, head = torch.randn(8, 20), torch.randn(20, 8), torch.randn(8, 11)
    target = torch.randint(0, 11, (4, 6))
    parameters = [p.double().requires_grad_() for p in (table, w, up, down, head)]

    def loss(door):
        table, w, up, down, head = parameters
        if door is B:
            x = B.embedding(t, table)
            x = x + B.linear(B.gelu(B.linear(B.rms_norm(x, w, eps=1e-6), up)), down)
            return B.cross_entropy(B.linear(x, head), target)
        x = table[t]
        x = x + door.gelu(door.rms_norm(x, (8,), w, 1e-6) @ up) @ down
        return door.cross_entropy((x @ head).flatten(0, 1), target.flatten())

    ours = torch.autograd.grad(loss(B), parameters)
    theirs = torch.autograd.grad(loss(torch.nn.functional), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


AUTOCAST = {
    "linear": torch.bfloat16,
    "matmul": torch.bfloat16,
    "feed_forward": torch.bfloat16,
    "linear_cross_entropy": torch.float32,
    "attention": torch.bfloat16,
    "softmax": torch.float32,
    "layer_norm": torch.float32,
    "cross_entropy": torch.float32,
    "rms_norm": torch.float32,
    "gelu": torch.float16,
    "embedding": torch.float16,
    "rope": torch.float16,
    "residual": torch.float16,
}


MIXED = [stem for stem in ops.STEMS if Operation(stem).wide]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("stem", MIXED)
def test_float32_beside_half_precision(stem, compiled):
    """y in x's dtype, and each gradient in that of its input, also where torch.compile only learns them."""
    *_, (arrays, options) = cases(stem, np.random.default_rng(3))
    inputs = tensors(stem, arrays)
    assert {x.dtype for x in inputs} == {torch.float16, torch.float32}
    function, wanted = getattr(B, stem), differentiable(stem, inputs)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    y = function(*inputs, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
    expected_y, expected = by_hand(stem, inputs, options, dy)
    assert torch.equal(y, expected_y) and y.dtype == torch.float16
    for got, other, leaf in zip(gradients(y, wanted, dy), expected, wanted, strict=True):
        assert torch.equal(got, other) and got.dtype == leaf.dtype
    opcheck(stem, inputs, options)


def test_arguments_that_it_does_not_take_are_rejected_with_those_it_does():
    q = torch.zeros(2, 3, 4)
    with pytest.raises(
        TypeError,
        match=r"^flash_attention: .*'is_causal'; expected \(q, k, v, bias, mask, sink, \*, causal, ",
    ):
        B.flash_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize("stem", AUTOCAST)
def test_autocast_has_it_run_in_the_dtype_that_pytorch_would(stem):
    inputs, options = drawn(stem)
    inputs = [v.detach().half() if v is not None and v.is_floating_point() else v for v in inputs]
    leaves = [*inputs]
    for leaf in differentiable(stem, leaves):
        leaf.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = getattr(B, stem)(*leaves, **options)
    assert y.dtype == AUTOCAST[stem]
    for gradient, leaf in zip(
        gradients(y, differentiable(stem, leaves), torch.ones_like(y)),
        differentiable(stem, leaves),
        strict=True,
    ):
        assert gradient.dtype == leaf.dtype
    with torch.autocast("cpu", torch.bfloat16):
        doubles = [v.double() if v is not None and v.is_floating_point() else v for v in inputs]
        assert getattr(B, stem)(*doubles, **options).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_fused_loss_is_float32_under_autocast(dtype, reduction):
    """Of scores in autocast's dtype; nothing is rounded after them but the gradients. A scaled loss is finite."""
    torch.manual_seed(0)
    x, w, t = torch.randn(5, 7), torch.randn(7, 11), torch.tensor([3, 0, -100, 10, 5])
    leaves = [v.requires_grad_() for v in (x, w)]
    with torch.autocast("cpu", dtype):
        fused = B.linear_cross_entropy(*leaves, t, reduction=reduction)
        plain = B.cross_entropy(B.linear(*leaves), t, reduction=reduction)
    assert fused.dtype == plain.dtype == torch.float32
    torch.testing.assert_close(fused, plain, rtol=1e-6, atol=0)

    gradients = torch.autograd.grad(fused, leaves, torch.tensor(2.0**10))
    for got, expected in zip(
        gradients, torch.autograd.grad(plain, leaves, torch.tensor(2.0**10)), strict=True
    ):
        eps = torch.finfo(dtype).eps
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected, rtol=0, atol=2 * eps * expected.abs().max().item())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_first_step_under_a_scaler_is_taken(compiled):
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(6, 9) / 3)
    x, t = torch.randn(64, 6), torch.randint(0, 9, (64,))
    optimiser, scaler = torch.optim.SGD([w], lr=1.0), torch.amp.GradScaler("cpu")
    assert scaler.get_scale() == 65536

    def loss(x, t):
        with torch.autocast("cpu", torch.float16):
            return B.linear_cross_entropy(x, w, t)

    if compiled:
        torch._dynamo.reset()
        loss = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (exact,) = torch.autograd.grad(B.linear_cross_entropy(x, w, t), w)
    before = w.detach().clone()
    scaler.scale(loss(x, t)).backward()
    scaler.step(optimiser)
    scaler.update()
    assert scaler.get_scale() == 65536
    torch.testing.assert_close(before - w, exact, rtol=0, atol=4e-3 * exact.abs().max().item())


def test_outside_autocast_the_fused_loss_has_the_dtype_of_its_inputs_unless_wide():
    torch.manual_seed(0)
    x, w = (torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((5, 7), (7, 11)))
    t = torch.tensor([3, 0, -100, 10, 5])
    narrow, wide = B.linear_cross_entropy(x, w, t), B.linear_cross_entropy(x, w, t, wide=True)
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(narrow, wide.bfloat16()) and wide != narrow
    ours = torch.autograd.grad(narrow, (x, w))
    for one, other in zip(ours, torch.autograd.grad(wide, (x, w)), strict=True):
        assert one.dtype == torch.bfloat16 and torch.equal(one, other)
    torch.library.opcheck(
        torch.ops.backpass.linear_cross_entropy.default,
        (x, w, t, None, None, -100, "mean", 0.0, None, True, None),
    )


def test_under_a_checkpoint_the_gradients_are_the_same():
    from torch.utils.checkpoint import checkpoint

    (x, w, b), _ = drawn("layer_norm")
    dy = torch.randn(x.shape, dtype=x.dtype)
    plain = gradients(B.layer_norm(x, w, b), (x, w, b), dy)
    again = gradients(checkpoint(B.layer_norm, x, w, b, use_reentrant=False), (x, w, b), dy)
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_what_it_saves_for_the_backward_is_what_the_operation_saves():
    """Of softmax y alone, which is the output itself; of a linear layer x and w, which are the inputs."""
    kept = []

    def packed(tensor):
        kept.append(tensor)
        return tensor

    x, w = (torch.randn(5, 5, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        y = B.softmax(x)
        (of_softmax,) = [t for t in kept if t.dtype == torch.float32]
        kept.clear()
        B.linear(x, w)
    assert of_softmax.data_ptr() == y.data_ptr()
    assert {t.data_ptr() for t in kept if t.dtype == torch.float32} == {x.data_ptr(), w.data_ptr()}


def test_the_attention_block_copies_none_of_its_weights_for_the_backward():
    """A view of an input may not leave an operator: what is saved so is copied."""
    inputs, options = drawn("multi_head_attention", without=("memory",))
    kept = {}

    def packed(tensor):
        kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        B.multi_head_attention(*inputs, **options)
    own = [t for at, t in kept.items() if at not in {v.data_ptr() for v in inputs if v is not None}]
    x, *weights = inputs[:5]
    saved = saved_bytes("multi_head_attention", *(v.detach() for v in inputs if v is not None), **options)
    assert {w.data_ptr() for w in weights} <= set(kept)
    assert sum(t.nbytes for t in own if t.is_floating_point() and t.dim() > 1) == saved - x.nbytes


def test_functions_look_like_the_operations():
    signature = inspect.signature(B.layer_norm)
    assert list(signature.parameters) == ["x", "w", "b", "eps"]
    assert signature.parameters["eps"].kind is inspect.Parameter.KEYWORD_ONLY
    assert B.layer_norm.__name__ == "layer_norm"
    assert "backpass.ops.layer_norm" in B.layer_norm.__doc__
    assert dir(B) == B.__all__ == list(ops.STEMS)


def test_an_unknown_name_has_the_nearest_one():
    with pytest.raises(
        AttributeError, match=r"backpass\.functional has no 'layernorm'; did you mean 'layer_norm'"
    ):
        B.layernorm  # noqa: B018


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: B.softmax(np.ones(3)), TypeError, "x: expected a torch tensor; got ndarray"),
        (
            lambda: B.layer_norm(torch.ones(2, 3), torch.ones(4)),
            ValueError,
            r"w: expected w\[n\] with n = 3, as in x; got shape \[4\]",
        ),
        (
            lambda: B.cross_entropy(torch.ones(2, 3), torch.tensor([0, 7])),
            IndexError,
            "t: expected targets from 0 to 2",
        ),
        (lambda: B.gelu(torch.ones(2), approximate="erf"), ValueError, "approximate: expected"),
        (lambda: B.softmax(torch.ones(2), dim=1), TypeError, "dim"),
    ],
    ids=["array", "shape", "target", "option", "unknown option"],
)
def test_errors_are_the_operations(call, error, message):
    with pytest.raises(error, match=message):
        call()


LEARNED = torch.nn.Parameter(torch.tensor(2.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: B.scale(x, factor=LEARNED), "factor: expected float; got Parameter. .* outside scale"),
        (lambda x: B.attention(x, x, x, scale=LEARNED), r"scale: expected float \| None; got Parameter"),
        (
            lambda x: B.layer_norm(x, eps=LEARNED),
            r"eps: expected float; got Parameter. .* pass eps\.item\(\)",
        ),
        (
            lambda x: B.dropout(x, seed=torch.tensor(1.0)),
            r"seed: expected an integer, or an int64 array of shape \[\]; got float32 of shape \[\]",
        ),
        (lambda x: B.gelu(x, approximate=torch.tensor(1)), "approximate: expected str; got Tensor"),
        (
            lambda x: B.rope(x, torch.ones(3, 2, requires_grad=True), torch.ones(3, 2)),
            r"cos: expected a tensor that does not require a gradient; got one that does. .*: pass cos\.detach\(\)",
        ),
    ],
    ids=["factor", "scale", "eps", "seed", "approximate", "table"],
)
def test_what_would_get_no_gradient_is_rejected(call, message):
    with pytest.raises(TypeError, match=message):
        call(torch.ones(3, 4))


@STEMS
def test_complex_tensors_are_rejected(stem):
    """Their gradients would lack conjugates."""
    inputs, options = drawn(stem)
    floating = [at for at, v in enumerate(inputs) if v is not None and v.is_floating_point()]
    name = [spec.name for spec in parse(ops.load(stem).SHAPES).inputs][floating[0]]
    inputs = [v.to(torch.complex128) if at in floating else v for at, v in enumerate(inputs)]
    with pytest.raises(TypeError, match=f"^{name}: expected real numbers; got dtype torch.complex128"):
        getattr(B, stem)(*inputs, **options)


def test_transforms_and_forward_mode_are_rejected():
    x = torch.ones(4, 3)
    for transform, names in (
        (torch.func.vmap(B.softmax), "vmap"),
        (torch.func.vmap(torch.func.grad(lambda x: B.softmax(x).sum())), "vmap, grad"),
        (torch.func.jacfwd(B.softmax), "vmap, jvp"),
        (torch.func.grad(lambda x: torch.func.grad(lambda x: B.softmax(x).sum())(x).sum()), "grad, grad"),
    ):
        with pytest.raises(
            RuntimeError, match=rf"got a transform of torch\.func other than one .*: {names}\."
        ):
            transform(x)
    with pytest.raises(RuntimeError, match=r"expected one derivative.*; got vmap"):
        torch.func.jacrev(B.softmax)(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(RuntimeError, match="a forward-mode tangent"):
            B.softmax(dual)


def test_no_other_heavy_library_is_imported():
    code = "import sys, backpass.functional; print([m for m in ('triton', 'sympy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
