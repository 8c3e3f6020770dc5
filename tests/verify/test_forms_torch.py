"""A module whose Function is applied through a name, inside a checkpoint, or under a transform of torch.func."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from backpass.verify import check  # noqa: E402

RNG = np.random.default_rng(7)
X = torch.tensor(RNG.normal(size=(4, 3)))
FACTOR = [1.0]  # of a term in Swish's backward; the gradient is right if it is 1


@pytest.fixture(params=[1.0, 0.5], ids=["right", "wrong"])
def factor(request):
    FACTOR[0] = request.param
    yield request.param
    FACTOR[0] = 1.0


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return dy * (s + FACTOR[0] * x * s * (1 - s))


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * (2 + FACTOR[0]) * x**2


class Unseen(Swish):
    """A Function whose apply is that of PyTorch's own base class."""

    @classmethod
    def apply(cls, *inputs):
        return vars(torch._C._FunctionBase)["apply"].__get__(None, cls)(*inputs)


swish = Swish.apply


class Block(torch.nn.Module):
    dtype = torch.float64

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = torch.nn.Linear(3, 5, dtype=self.dtype), torch.nn.Linear(5, 2, dtype=self.dtype)
        self.own = Swish.apply

    def inside(self, x):
        return swish(self.up(x))

    def forward(self, x):
        return self.down(self.inside(x))


class Attribute(Block):
    def inside(self, x):
        return self.own(self.up(x))


class Checkpointed(Block):
    def forward(self, x):
        return self.down(checkpoint(self.inside, x, use_reentrant=False))


class Reentrant(Block):
    def forward(self, x):
        return self.down(checkpoint(self.inside, x, use_reentrant=True))


class CheckpointedDropout(Block):
    def inside(self, x):
        return torch.nn.functional.dropout(swish(self.up(x)), 0.4)

    def forward(self, x):
        return self.down(checkpoint(self.inside, x, use_reentrant=False))


class CheckpointedFunction(Block):
    def forward(self, x):
        return self.down(checkpoint(swish, self.up(x), use_reentrant=False))


class ReentrantFunction(Block):
    def forward(self, x):
        return self.down(checkpoint(swish, self.up(x), use_reentrant=True))


class Mapped(Block):
    def inside(self, x):
        return torch.vmap(Cube.apply)(self.up(x))


BLOCKS = [
    Block,
    Attribute,
    Checkpointed,
    Reentrant,
    CheckpointedDropout,
    CheckpointedFunction,
    ReentrantFunction,
    Mapped,
]


@pytest.mark.parametrize("block", BLOCKS)
def test_autograd_is_a_reference_that_never_calls_the_backward_under_test(block, factor):
    report = check(block(), X, raises=False)
    assert report.passed is (factor == 1)
    by_autograd = {row.quantity: row.verdict for row in report.of("torch autograd")}
    upstream = {"dx", "dup_weight", "dup_bias"}
    assert {of for of, verdict in by_autograd.items() if verdict == "passed"} == (
        {*upstream, "ddown_weight", "ddown_bias"} if factor == 1 else {"ddown_weight", "ddown_bias"}
    )
    assert {of for of, verdict in by_autograd.items() if verdict == "FAILED"} == (
        set() if factor == 1 else upstream
    )


@pytest.mark.parametrize("block", [Checkpointed, Reentrant])
def test_a_checkpoint_of_a_module_in_float32(block, factor, monkeypatch, recwarn):
    monkeypatch.setattr(block, "dtype", torch.float32)
    module = block()
    report = check(module, X.float(), raises=False)
    assert report.passed is (factor == 1)
    assert not recwarn  # of inputs without a gradient
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_function_that_cannot_be_intercepted_is_not_its_own_reference(factor):
    class Hidden(Block):
        def inside(self, x):
            return Unseen.apply(self.up(x))

    report = check(Hidden(), X, raises=False)
    assert report.passed is (factor == 1)
    (row,) = report.of("torch autograd")
    says = "the backward of Unseen, which is to be checked: call Unseen.apply in the module's forward"
    assert row.verdict == "not run" and row.reason.endswith(says)


class WithMean(torch.autograd.Function):
    """tanh, and its mean, of which nobody needs a gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        mean = y.mean(-1)
        ctx.mark_non_differentiable(mean)
        ctx.save_for_backward(y)
        return y, mean

    @staticmethod
    def backward(ctx, dy, _):
        (y,) = ctx.saved_tensors
        return dy * (1 - y * y)


class WithMeanWrong(WithMean):
    """dx = dy (1 − y)."""

    @staticmethod
    def backward(ctx, dy, _):
        (y,) = ctx.saved_tensors
        return dy * (1 - y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "operator",
    [
        torch.tanh,
        lambda x: (torch.tanh(x),),
        lambda x: (torch.tanh(x), None),
        lambda x: (torch.tanh(x), torch.tanh(x).mean(-1)),
        lambda x: (torch.tanh(x), torch.tanh(x).mean(-1).detach()),
    ],
)
def test_an_operator_may_return_outputs_without_a_gradient_or_leave_them_out(operator, dtype):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    report = check(WithMean, x, operator=operator, vary=False)
    assert {row.verdict for row in report.of("PyTorch's operator")} == {"passed"}
    assert not check(WithMeanWrong, x, operator=operator, vary=False, raises=False).passed


class SquareAndSum(torch.autograd.Function):
    """A Function with two outputs that are analytic, and a mask without a gradient."""

    @staticmethod
    def forward(ctx, x, r):
        h = x + r
        mask = (h.real > 0).to(h.dtype)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(h)
        return h * h, mask, h

    @staticmethod
    def backward(ctx, dy, _, dh):
        (h,) = ctx.saved_tensors
        dx = 2 * FACTOR[0] * h * dy + dh
        return dx, dx


def test_complex_steps_judge_a_function_of_several_outputs(factor):
    report = check(SquareAndSum, X, X + 1, methods=["complex_step"], raises=False)
    wanted = "passed" if factor == 1.0 else "FAILED"
    assert [row.verdict for row in report.rows] == [wanted] * 2, report


def test_a_module_whose_forward_raises_says_so():
    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.tanh(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            return dy * (1 - ctx.saved_tensors[0] ** 2)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(5, 4)

        def forward(self, x):
            return Tanh.apply(self.linear(x))

    message = r"inputs: expected those of Model's forward; it raises an error.*the inputs are float64, and the parameters float32"
    with pytest.raises(TypeError, match=message):
        check(Model(), torch.ones(3, 5, dtype=torch.float64))


def joined(name, factor):
    """An operator of a list of tensors."""

    @torch.library.custom_op(f"backpass_tests::{name}", mutates_args=())
    def join(w: torch.Tensor, xs: list[torch.Tensor], scale: float = 2.0) -> torch.Tensor:
        return torch.cat(xs, -1) * scale * w

    def setup(ctx, inputs, output):
        w, xs, ctx.scale = inputs
        ctx.lengths = [x.shape[-1] for x in xs]
        ctx.save_for_backward(w, *xs)

    def backward(ctx, g):
        w, *xs = ctx.saved_tensors
        dw = (g * torch.cat(xs, -1)).sum(0) * ctx.scale
        return dw, [*(factor * ctx.scale * g * w).split(ctx.lengths, -1)], None

    join.register_autograd(backward, setup_context=setup)
    return join


def test_an_operator_of_a_list_of_tensors():
    w, *xs = (torch.randn(shape, dtype=torch.float64) for shape in [(7,), (2, 3), (2, 4)])
    check(joined("joined", 1.0), w, xs)
    check(joined("joined_3", 1.0), w, xs, scale=3.0)
    report = check(joined("joined_wrong", 1.01), w, xs, raises=False)
    assert {row.quantity for row in report.failed} == {"dxs_0", "dxs_1"}
