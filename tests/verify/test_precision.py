"""Low precision alone: what no other method sees fails, and what is right passes, element by element."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from backpass import ops  # noqa: E402
from backpass.ops import attention, gelu, layer_norm, relu, rms_norm, softmax, swiglu  # noqa: E402
from backpass.verify import cases, check  # noqa: E402
from backpass.verify.convert import to_torch  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def normal(*shape, seed=0, dtype=torch.bfloat16):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape)).to(dtype)


def ours(op, **changed):
    """The operation with other lines, held to the bound of the right ones."""
    return SimpleNamespace(**{**vars(op), **changed})


def own(op, **changed):
    """The same as an object that declares nothing, held to twice PyTorch's error."""
    return SimpleNamespace(
        forward=changed.get("forward", op.forward), backward=changed.get("backward", op.backward)
    )


# A diagnosis of 16,384 elements takes longer than all that is tested here.
QUICK = {"explain": False} if "explain" in inspect.signature(check).parameters else {}


def judged(op, *inputs, **options):
    return check(op, *inputs, methods=["precision"], raises=False, **QUICK, **options)


def rows_failed(report):
    return {row.quantity for row in report.failed}


KINDS = pytest.mark.parametrize("kind", [ours, own])
SOFTMAX = {ours: {}, own: {"operator": lambda x: torch.softmax(x, -1)}}
RMS_NORM = {ours: {}, own: {"operator": lambda x: F.rms_norm(x, x.shape[-1:])}}
ATTENTION = {ours: {}, own: {"operator": F.scaled_dot_product_attention}}


class TestWrong:
    @KINDS
    def test_the_dropped_sum_of_softmax(self, kind):
        x = normal(4, 4096)
        assert judged(kind(softmax), x, **SOFTMAX[kind]).passed
        wrong = kind(softmax, backward=lambda dy, saved: saved.y * dy)
        assert [row.quantity[:2] for row in judged(wrong, x, **SOFTMAX[kind]).failed] == ["dx"]

    @KINDS
    def test_rms_norm_without_its_projection(self, kind):
        x = normal(4, 4096)
        assert judged(kind(rms_norm), x, **RMS_NORM[kind]).passed
        wrong = kind(rms_norm, backward=lambda dy, saved: (dy.float() * saved.rstd).to(dy.dtype))
        assert [row.quantity[:2] for row in judged(wrong, x, **RMS_NORM[kind]).failed] == ["dx"]

    @KINDS
    def test_attention_times_1_03(self, kind):
        inputs = [normal(2, 4, 64, 32, seed=seed) for seed in range(3)]
        assert judged(kind(attention), *inputs, **ATTENTION[kind]).passed

        def backward(dy, saved):
            return tuple(dx if dx is None else 1.03 * dx for dx in attention.backward(dy, saved))

        assert len(judged(kind(attention, backward=backward), *inputs, **ATTENTION[kind]).failed) == 3

    def test_attention_wholly_in_bfloat16(self):
        inputs = [normal(2, 4, 64, 32, seed=seed) for seed in range(3)]

        def forward(q, k, v, *_, **__):
            q, k, v = map(torch.as_tensor, (q, k, v))
            exps = torch.exp(q @ k.mT / 32**0.5)
            weights = exps / exps.sum(-1, keepdim=True)
            return weights @ v, (q, k, v, weights)

        def backward(dy, saved):
            q, k, v, weights = saved
            dy = torch.as_tensor(dy)
            da = dy @ v.mT
            ds = weights * (da - (weights * da).sum(-1, keepdim=True)) / 32**0.5
            return ds @ k, ds.mT @ q, weights.mT @ dy, None

        assert judged(ours(attention, forward=forward, backward=backward), *inputs).failed

    @KINDS
    @pytest.mark.parametrize("op", [gelu, swiglu])
    def test_digits_lost_near_0(self, kind, op):
        """A result computed as a difference of 1 more and 1, as a kernel may: not a unit at the largest element."""
        sizes = torch.from_numpy(10.0 ** np.random.default_rng(0).uniform(-3, 0, (32, 32)))
        inputs = [(normal(32, 32) * sizes).bfloat16(), normal(32, 32, seed=1)][: 2 if op is swiglu else 1]
        operator = F.gelu if op is gelu else lambda g, u: F.silu(g) * u
        operator = {"operator": operator} if kind is own else {}
        assert judged(kind(op), *inputs, **operator).passed

        def backward(dy, saved):
            found = op.backward(dy, saved)
            found = found if isinstance(found, tuple) else (found,)
            return tuple(map(lost, found))

        def lost(dx):
            return ((dx.float() + 1).bfloat16() - 1) if isinstance(dx, torch.Tensor) else dx

        assert len(judged(kind(op, backward=backward), *inputs, **operator).failed) == len(inputs)

    def test_a_gradient_is_not_compared_with_itself(self):
        x = normal(4, 6, dtype=torch.float32).numpy()
        tanh = SimpleNamespace(
            forward=lambda x: (np.tanh(x), np.tanh(x)), backward=lambda dy, y: dy * (1 - y * y)
        )
        assert judged(tanh, x, operator=torch.tanh).passed
        report = judged(tanh, x)
        assert not report.passed
        assert "an operator= would give the reference" in report.rows[0].reason
        tanh.backward = lambda dy, y: dy * (1 - y * y) * np.float32(1.1)
        assert rows_failed(judged(tanh, x, operator=torch.tanh)) == {"dx"}


class TestSubjectsWithoutFloat64:
    """A kernel of the reader's that takes half precision and float32: float32 shows what half precision hides."""

    @staticmethod
    def given(forward, backward, *, half_only=False):
        def refusing(*inputs):
            refused = (torch.float64, torch.float32)[: 2 if half_only else 1]
            assert not any(x.dtype in refused for x in inputs), "unsupported dtype"
            return forward(*inputs)

        return SimpleNamespace(forward=refusing, backward=backward)

    @staticmethod
    def cross_entropy(dtype, share=1):
        def forward(x, t):
            p = torch.softmax(x.float(), -1)
            return F.cross_entropy(x.float(), t).to(x.dtype), (p.to(x.dtype), t)

        def backward(dy, saved):
            p, t = saved
            return (dy.float() * (share * p.float() - F.one_hot(t, p.shape[-1])) / len(p)).to(p.dtype)

        return forward, backward

    @pytest.mark.parametrize("dtype", DTYPES[1:])
    def test_cross_entropy_without_its_softmax(self, dtype):
        x, t = 0.3 * normal(16, 4096, dtype=dtype), torch.arange(16)
        for share in (1, 0):
            op = self.given(*self.cross_entropy(dtype, share))
            report = judged(op, x, t, operator=F.cross_entropy)
            assert {row.method for row in report.rows} == {"low precision", "and in float32"}
            assert rows_failed(report) == (set() if share else {"dx1"})

    def test_small_rows_beside_large_ones(self):
        x = normal(32, 300, dtype=torch.float32) * torch.where(torch.arange(32) % 2 == 0, 200, 1)[:, None]
        wrong = torch.where(torch.arange(32) % 2 == 0, 0.9, 1)[:, None]  # the small gradients

        def forward(x):
            r = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
            return (x.float() * r).to(x.dtype), (x, r)

        def backward(dy, saved, times=1.0):
            x, r = saved
            unit, dy = x.float() * r, dy.float()
            return (times * r * (dy - unit * (dy * unit).mean(-1, keepdim=True))).to(x.dtype)

        operator = {"operator": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6)}
        assert judged(self.given(forward, backward), x.bfloat16(), **operator).passed
        of_small = self.given(forward, lambda dy, saved: backward(dy, saved, wrong))
        report = judged(of_small, x.bfloat16(), **operator)
        assert [(row.method, row.quantity) for row in report.failed] == [("and in float32", "dx1")]

    def test_one_that_takes_half_precision_alone(self):
        op = self.given(*self.cross_entropy(torch.bfloat16), half_only=True)
        report = judged(op, normal(4, 9), torch.arange(4), operator=F.cross_entropy)
        assert {row.method for row in report.rows} == {"low precision"}


class TestMeans:
    """A mean's gradient is small without anything having cancelled."""

    @pytest.mark.parametrize(
        ("rows", "dtype", "off"), [(64, torch.bfloat16, 64 / 63), (4096, torch.float32, 1 + 1 / 4096)]
    )
    def test_a_count_off_by_one(self, rows, dtype, off):
        def loss(factor):
            def forward(x, t):
                p = torch.log_softmax(x if x.dtype == torch.float64 else x.float(), -1)
                return F.nll_loss(p, t).to(x.dtype), (p, t, x.dtype)

            def backward(dy, saved):
                p, t, of = saved
                dx = torch.exp(p) - F.one_hot(t, p.shape[-1])
                return (dx * (factor * dy.to(p.dtype) / len(t))).to(of)

            return SimpleNamespace(forward=forward, backward=backward)

        x, t = normal(rows, 16, dtype=dtype), torch.from_numpy(np.random.default_rng(1).integers(0, 16, rows))
        assert judged(loss(1), x, t, operator=F.cross_entropy).passed
        assert rows_failed(judged(loss(off), x, t, operator=F.cross_entropy)) == {"dx"}

    def test_ours(self):
        x, t = normal(64, 16), torch.from_numpy(np.random.default_rng(1).integers(0, 16, 64))
        op = ops.cross_entropy
        assert judged(op, x, t).passed
        wrong = ours(op, backward=lambda dy, saved: op.backward(dy, saved._replace(divisor=63)))
        assert rows_failed(judged(wrong, x, t)) == {"dx"}


# PyTorch's own functions, and the shapes of their inputs.
T = torch.arange(12) % 9
OPERATORS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), (5, 33), (33,), (33,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), (5, 33), (33,)),
    "softmax": (lambda x: F.softmax(x, -1), (5, 40)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (5, 40)),
    "cross_entropy": (lambda x: F.cross_entropy(x, T), (12, 9)),
    "cross_entropy, summed": (lambda x: F.cross_entropy(x, T, reduction="sum"), (12, 9)),
    "attention": (F.scaled_dot_product_attention, *[(2, 8, 4)] * 3),
    "linear": (F.linear, (6, 17), (5, 17), (5,)),
    "conv1d": (F.conv1d, (2, 3, 9), (4, 3, 3), (4,)),
    "embedding": (lambda w: F.embedding(T, w), (9, 5)),
    "cumsum": (lambda x: torch.cumsum(x, -1), (4, 20)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (4, 20)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), (5, 9)),
    "three factors": (lambda a, b, c: a * b * c, *[(5, 9)] * 3),
    **{f.__name__: (f, (5, 9)) for f in (torch.tanh, torch.exp, F.silu, F.softplus, F.gelu)},
    **{f.__name__: (f, (5, 9), (5, 9)) for f in (F.mse_loss, torch.mul)},
}


class TestFloat32BesideHalfPrecision:
    """Weights of float32 are judged as float32, and so are their gradients."""

    GIVEN = normal(40, 64), normal(64, seed=1, dtype=torch.float32), normal(64, seed=2, dtype=torch.float32)

    def test_what_is_right_passes(self):
        report = judged(layer_norm, *self.GIVEN)
        assert report.passed and {row.quantity for row in report.rows} == {"y", "dx", "dw", "db"}

    def test_a_weight_that_forward_rounds(self):
        def forward(x, w, b, **wanted):
            w = w.bfloat16().float() if w.dtype == torch.float32 else w
            return layer_norm.forward(x, w, b, **wanted)

        assert "y" in rows_failed(judged(ours(layer_norm, forward=forward), *self.GIVEN))

    def test_a_gradient_that_backward_rounds(self):
        def backward(dy, saved):
            dx, dw, db = layer_norm.backward(dy, saved)
            return dx, dw, torch.as_tensor(db).bfloat16().to(db.dtype)

        assert rows_failed(judged(ours(layer_norm, backward=backward), *self.GIVEN)) == {"db"}


class TestRight:
    @pytest.mark.parametrize("stem", ops.STEMS)
    def test_operations_pass(self, stem):
        """Nothing is said to be wrong; a single number that ReLU sets to 0 is vacuous."""
        for at, (inputs, options) in enumerate(cases(stem, np.random.default_rng(7))):
            given = [to_torch(value, dtype=DTYPES[at % 3]) for value in inputs]
            report = judged(stem, *given, options=options)
            assert report.passed or (stem == "relu" and not report.failed), report

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", OPERATORS)
    def test_pytorchs_operators_pass(self, name, dtype):
        """With autograd's gradient as their backward."""
        function, *shapes = OPERATORS[name]

        def forward(*inputs):
            leaves = [a.detach().requires_grad_() for a in inputs]
            y = function(*leaves)
            return y.detach(), (y, leaves)

        def backward(dy, saved):
            return torch.autograd.grad(*saved, dy, retain_graph=True)

        wrapped = SimpleNamespace(forward=forward, backward=backward)
        for seed in range(2):
            inputs = [normal(*shape, seed=seed + 10 * at, dtype=dtype) for at, shape in enumerate(shapes)]
            assert judged(wrapped, *inputs, operator=function, seed=seed).passed

    def test_a_forward_that_computes_in_float32_is_judged_there(self, monkeypatch):
        """Autograd through it is no better than float32: where it moves, a gradient may."""
        from backpass.verify.case import Case

        monkeypatch.setattr(Case, "computes_in", "float32", raising=False)

        def forward(x):
            wide = x.float()
            return torch.tanh(wide).to(x.dtype), torch.tanh(wide)

        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            x = normal(6, 8, dtype=dtype)
            for factor in (1, 1.001 if dtype != torch.bfloat16 else 1.1):

                def backward(dy, y, factor=factor):
                    return (dy.float() * (1 - y * y) * factor).to(dy.dtype)

                report = judged(SimpleNamespace(forward=forward, backward=backward), x)
                assert report.passed == (factor == 1), report
                assert rows_failed(report) == (set() if factor == 1 else {"dx"})


@pytest.mark.filterwarnings("error:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("factor", [1, 2])
def test_an_exact_operation_has_no_bound_and_no_warning(factor):
    """Of ReLU nothing is rounded, so the bound of each element is 0."""
    wrong = ours(relu, backward=lambda dy, saved: factor * relu.backward(dy, saved))
    report = judged(wrong, normal(3, 5))
    assert report.passed is (factor == 1)


class Distances(torch.autograd.Function):
    """Weights by distances that a trained number scales. Backward adds in another order than autograd."""

    @staticmethod
    def forward(ctx, q, k, v, g, factor):
        distance = ((q[:, None] - k) ** 2).flip(-1).sum(-1)
        p = torch.softmax(-g.exp() * distance, -1)
        y = p @ v
        ctx.save_for_backward(q, k, v, g, distance, p, y)
        ctx.factor = factor
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, g, distance, p, y = ctx.saved_tensors
        dz = p * (dy @ v.T - (dy * y).sum(-1, keepdim=True))
        dq = 2 * g.exp() * (dz @ k - dz.sum(1, keepdim=True) * q)
        dk = 2 * g.exp() * (dz.T @ q - dz.sum(0)[:, None] * k)
        return dq, dk, p.T @ dy, -ctx.factor * (g.exp() * (dz * distance).sum()), None


@pytest.mark.parametrize("factor", [1.0, 1 + 3e-5])
@pytest.mark.parametrize("seed", [207, 250, 251])
def test_the_gradient_of_one_number_is_not_judged_by_a_lucky_error(seed, factor):
    """At the first two seeds, PyTorch's errors at one neighbour are much smaller than those at most others."""
    rng = torch.Generator().manual_seed(seed)
    given = [torch.randn(shape, generator=rng) for shape in ((9, 37), (19, 37), (19, 7))]

    def operator(q, k, v, g, factor):
        return torch.softmax(-g.exp() * ((q[:, None] - k) ** 2).sum(-1), -1) @ v

    inputs = [*given, torch.tensor(-1.0), factor]
    report = check(Distances, *inputs, operator=operator, vary=False, raises=False, **QUICK)
    assert {row.quantity for row in report.failed} == (set() if factor == 1 else {"dg"})


def test_the_row_says_where_the_bound_comes_from():
    row = judged(softmax, normal(3, 7)).rows[1]
    assert (
        "bfloat16 against float64; the bound computed from the operation's own lines; at worst 0." in row.how
    )
    assert 0 < row.error < row.tolerance < 0.02
    row = judged(own(softmax), normal(3, 7), **SOFTMAX[own]).rows[1]
    assert "twice PyTorch's operator's error, the largest of 9 inputs nearby" in row.how


@pytest.mark.parametrize("at_the_limit", ["kept", "clamped", "wrong"])
def test_a_limit_that_half_precision_rounds(at_the_limit):
    """0.7 lies between two numbers of bfloat16, so which of them is clamped is a matter of rounding."""
    torch = pytest.importorskip("torch")

    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.clamp(x, max=0.7) * x

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            if x.dtype != torch.bfloat16 or at_the_limit == "kept":
                kept = x.double() < 0.7
            else:
                kept = x < 0.7 if at_the_limit == "clamped" else x < 0.65
            return dy * torch.where(kept, 2 * x, 0.7)

    x = torch.tensor(np.random.default_rng(4).normal(size=(40, 50))).bfloat16()
    assert (x == 0.69921875).any() and (x == 0.65234375).any()
    assert check(Clamp, x, raises=False, explain=False).passed is (at_the_limit != "wrong")


class Capped:
    """``min(x / s, 2)`` with one s for each row; ``below`` says where the ratio counts as smaller."""

    def __init__(self, below, times=1.0):
        self.below, self.times = below, times

    def forward(self, x, s):
        return (x.float() / s.float()[:, None]).clamp(max=2.0).to(x.dtype), (x.float(), s.float()[:, None])

    def backward(self, dy, saved):
        x, s = saved
        dx = dy.float() / s * self.below(x / s)
        ds = -self.times * (dy.float() * x / s**2 * self.below(x / s)).sum(1)
        return dx.to(dy.dtype), ds.to(dy.dtype)


CAPPED = {
    "as PyTorch": (Capped(lambda u: u <= 2), True),
    "the other side": (Capped(lambda u: u < 2), True),
    "the other side of one kink": (
        Capped(lambda u: (u < 2) | ((u == 2) & (u.sum(1, keepdim=True) > 0))),
        True,
    ),
    "a margin": (Capped(lambda u: u < 1.8), False),
    "nowhere": (Capped(lambda u: u < 3), False),
    "beyond both sides": (Capped(lambda u: (u <= 2) + 0.3 * (u == 2)), False),
    "an element elsewhere": (Capped(lambda u: (u < 2) & (u != u[0, 1])), False),
    "a factor of ds": (Capped(lambda u: u < 2, times=1.05), False),
}


def at_kinks(report):
    return {row.quantity for row in report.rows if "at a kink" in row.note or "at kinks" in row.note}


@pytest.mark.parametrize(("op", "right"), CAPPED.values(), ids=CAPPED)
def test_sixteen_bits_put_a_quotient_on_a_kink(op, right):
    """A rounded x may be exactly 2 s, where the gradients of x and of s on either side are right."""
    x, s = normal(4, 30), normal(4).abs() + 0.5
    x[0, 0], x[1, 7], x[3, 2] = 1.85 * s[0], 2 * s[1], 2 * s[3]
    report = judged(op, x, s, operator=lambda x, s: (x / s[:, None]).clamp(max=2.0))
    assert (not report.failed) is right, str(report)
    other = right and op is not CAPPED["as PyTorch"][0]
    assert at_kinks(report) == ({"dx", "ds"} if other else set())


@pytest.mark.parametrize("both", [False, True])
def test_at_a_kink_all_gradients_are_of_one_side(both):
    """Of two equal elements x and z, one may have the whole gradient, where PyTorch halves it."""

    def forward(x, z):
        assert x.dtype == torch.bfloat16
        return torch.maximum(x, z), (x, z)

    def backward(dy, saved):
        x, z = saved
        return dy * (x >= z), dy * (z >= x if both else z > x)

    x, z = normal(4, 30), normal(4, 30, seed=1)
    x[1, 7], x[3, 2] = z[1, 7], z[3, 2]
    op = SimpleNamespace(forward=forward, backward=backward)
    report = judged(op, x, z, operator=torch.maximum)
    assert bool(report.failed) is both, str(report)
    assert both or at_kinks(report) == {"dx", "dz"}


@pytest.mark.parametrize(
    ("function", "alone"),
    [(F.silu, True), (lambda x: x - x.mean(0), False), (lambda x: x * x.roll(2, 1), False)],
    ids=["silu", "columns", "two apart"],
)
def test_functions_of_a_single_element_are_told_from_others(function, alone):
    """With an even number of columns too, where neighbouring rows begin alike."""

    def backward(dy, x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(function(leaf), leaf, dy)[0]

    op = SimpleNamespace(forward=lambda x: (function(x), x), backward=backward)
    report = judged(op, normal(3, 6, dtype=torch.float32), operator=function)
    assert report.passed and {"at elements of that size" in row.how for row in report.rows} == {alone}
