"""Code whose operations round one by one in half precision, beside an operator that rounds once."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from backpass.verify import check  # noqa: E402

HALF = [torch.bfloat16, torch.float16]
DTYPES = pytest.mark.parametrize("dtype", HALF, ids=str)


def normal(*shape, seed=0, scale=1.0):
    return scale * torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape))


class SiLU:
    operator = staticmethod(F.silu)
    shapes = ((7, 33),)

    def forward(x):
        s = torch.sigmoid(x)
        return x * s, (x, s)

    def backward(dy, saved):
        x, s = saved
        return dy * s * (1 + x * (1 - s))


class GELU:
    operator = staticmethod(F.gelu)
    shapes = ((7, 33),)

    def forward(x):
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), x

    def backward(dy, x):
        below = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        return dy * (below + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


class SwiGLU:
    operator = staticmethod(lambda a, g: F.silu(g) * a)
    shapes = ((5, 33), (5, 33))

    def forward(a, g):
        s = torch.sigmoid(g)
        return a * g * s, (a, g, s)

    def backward(dy, saved):
        a, g, s = saved
        return dy * g * s, dy * a * s * (1 + g * (1 - s))


class Softmax:
    operator = staticmethod(lambda x: F.softmax(x, -1))
    shapes = ((5, 40),)

    def forward(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return (e / e.sum(-1, keepdim=True),) * 2

    def backward(dy, y):
        return y * (dy - (y * dy).sum(-1, keepdim=True))


class RMSNorm:
    operator = staticmethod(lambda x, w: F.rms_norm(x, w.shape, w, 1e-5))
    shapes = ((5, 67), (67,))

    def forward(x, w):
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        return x * r * w, (x * r, w, r)

    def backward(dy, saved):
        unit, w, r = saved
        d = dy * w
        return r * (d - unit * (d * unit).mean(-1, keepdim=True)), (dy * unit).sum(0)


class Attention:
    operator = staticmethod(F.scaled_dot_product_attention)
    shapes = ((2, 3, 9, 7),) * 3

    def forward(q, k, v):
        weights, _ = Softmax.forward(q @ k.mT / math.sqrt(q.shape[-1]))
        return weights @ v, (q, k, v, weights)

    def backward(dy, saved):
        q, k, v, weights = saved
        ds = Softmax.backward(dy @ v.mT, weights) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, weights.mT @ dy


PIECES = SiLU, GELU, SwiGLU, Softmax, RMSNorm, Attention


def inputs_of(piece, dtype, seed=0):
    return [normal(*shape, seed=seed + 9 * at).to(dtype) for at, shape in enumerate(piece.shapes)]


def in_half(backward, change):
    """A backward that is wrong in half precision alone."""

    def changed(dy, saved):
        found = backward(dy, saved)
        if dy.dtype not in HALF:
            return found
        return tuple(map(change, found)) if isinstance(found, tuple) else change(found)

    return changed


def judged(forward, backward, *inputs, **given):
    op = SimpleNamespace(forward=forward, backward=backward)
    return check(op, *inputs, methods=["precision"], raises=False, explain=False, **given)


class TestRight:
    @DTYPES
    @pytest.mark.parametrize("piece", PIECES)
    def test_beside_an_operator_that_rounds_once(self, piece, dtype):
        for seed in range(4):
            given = inputs_of(piece, dtype, seed)
            report = judged(piece.forward, piece.backward, *given, seed=seed, operator=piece.operator)
            assert report.passed, report

    @DTYPES
    @pytest.mark.parametrize("piece", PIECES)
    def test_with_a_forward_that_rounds_once(self, piece, dtype):
        def forward(*inputs):
            return piece.operator(*inputs), piece.forward(*inputs)[1]

        given = inputs_of(piece, dtype)
        for operator in (None, piece.operator):
            assert judged(forward, piece.backward, *given, operator=operator).passed

    @DTYPES
    def test_as_a_function(self, dtype):
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y, saved = SiLU.forward(x)
                ctx.save_for_backward(*saved)
                return y

            @staticmethod
            def backward(ctx, dy):
                return SiLU.backward(dy, ctx.saved_tensors)

        for seed in range(4):
            assert check(Own, *inputs_of(SiLU, dtype, seed), seed=seed, operator=F.silu, vary=False).passed

    def test_one_minus_y_without_an_operator(self):
        def forward(x):
            return (1 / (1 + torch.exp(-x)),) * 2

        for seed in range(8):
            x = normal(5, 33, seed=seed).half()
            assert judged(forward, lambda dy, y: dy * y * (1 - y), x, seed=seed).passed


class TestWrong:
    @DTYPES
    @pytest.mark.parametrize("piece", PIECES)
    def test_a_factor_in_half_precision_alone(self, piece, dtype):
        backward = in_half(piece.backward, lambda dx: 1.05 * dx)
        report = judged(piece.forward, backward, *inputs_of(piece, dtype), operator=piece.operator)
        assert len(report.failed) == len(piece.shapes)
        assert all("right in float64, but not in" in row.reason for row in report.failed)

    @DTYPES
    def test_a_factor_that_few_roundings_would_hide(self, dtype):
        backward = in_half(SiLU.backward, lambda dx: 1.02 * dx)
        report = judged(SiLU.forward, backward, *inputs_of(SiLU, dtype), operator=F.silu)
        assert [row.quantity for row in report.failed] == ["dx"]

    @DTYPES
    @pytest.mark.parametrize("piece", PIECES)
    def test_one_element(self, piece, dtype):
        def change(dx):
            dx = dx.clone()
            dx.view(-1)[dx.abs().argmax()] *= 1.25
            return dx

        given = inputs_of(piece, dtype)
        report = judged(piece.forward, in_half(piece.backward, change), *given, operator=piece.operator)
        assert len(report.failed) == len(piece.shapes)

    def test_a_wrong_formula_gets_no_more_than_the_operators_error(self):
        def backward(dy, saved):
            return 1.02 * SiLU.backward(dy, saved)

        for dtype in HALF:
            report = judged(SiLU.forward, backward, *inputs_of(SiLU, dtype), operator=F.silu)
            (row,) = report.failed
            assert row.quantity == "dx" and "roundings" not in row.how
            assert "precision" not in row.note  # its tolerance is not the remedy

    def test_squares_that_overflow(self):
        x, w = normal(5, 67, scale=400).half(), normal(67).half()
        report = judged(RMSNorm.forward, RMSNorm.backward, x, w, operator=RMSNorm.operator)
        assert {row.quantity for row in report.failed} == {"y", "dx", "dw"}
        assert all("look for an overflow" in row.reason for row in report.failed)

    def test_a_long_sum_of_terms_added_one_by_one(self):
        def forward(x):
            total = torch.zeros_like(x[:, 0])
            for column in x.unbind(1):
                total = total + column
            return total / x.shape[1], x.shape

        def backward(dy, shape):
            return dy[:, None].expand(shape) / shape[1]

        x = torch.from_numpy(np.random.default_rng(0).uniform(size=(3, 4096))).bfloat16()
        few = judged(forward, backward, x[:, :16], operator=lambda x: x.mean(-1))
        assert few.passed
        many = judged(forward, backward, x, operator=lambda x: x.mean(-1))
        assert [row.quantity for row in many.failed] == ["y"]

    def test_a_kernel_that_rounds_once_is_still_held_to_the_operator(self):
        def backward(dy, saved):
            x, s = (value.double() for value in saved)
            dx = SiLU.backward(dy.double(), (x, s))
            lost = (dx.float() + 1).bfloat16().double() - 1 if dy.dtype == torch.bfloat16 else dx
            return lost.to(dy.dtype)

        def forward(x):
            wide = x.double()
            return F.silu(wide).to(x.dtype), (wide, torch.sigmoid(wide))

        x = (normal(32, 32) * 10 ** (normal(32, 32, seed=1).abs() - 3)).bfloat16()
        assert judged(
            forward, lambda dy, s: SiLU.backward(dy.double(), s).to(dy.dtype), x, operator=F.silu
        ).passed
        assert [row.quantity for row in judged(forward, backward, x, operator=F.silu).failed] == ["dx"]


class TestTolerance:
    def test_the_failed_row_names_its_key(self):
        backward = in_half(SiLU.backward, lambda dx: 1.1 * dx)
        given = inputs_of(SiLU, torch.bfloat16)
        (row,) = judged(SiLU.forward, backward, *given, operator=F.silu).failed
        assert "tolerances={'precision': (number, reason)}" in row.note

        tolerances = {"precision": (0.2, "a coarse table in bfloat16")}
        report = judged(SiLU.forward, backward, *given, operator=F.silu, tolerances=tolerances)
        assert report.passed
        assert all(row.tolerance == pytest.approx(0.2) for row in report.rows)
        assert all("a coarse table in bfloat16" in row.note for row in report.rows)
        tolerances = {"precision": (0.05, "a table in bfloat16")}
        assert judged(SiLU.forward, backward, *given, operator=F.silu, tolerances=tolerances).failed

    def test_it_leaves_float32_alone(self):
        """Float32 shows what half precision hides, of a subject without float64."""

        def forward(x):
            assert x.dtype != torch.float64
            return SiLU.forward(x)

        given = inputs_of(SiLU, torch.bfloat16)
        tolerances = {"precision": (0.2, "a coarse table in bfloat16")}
        for factor in (1, 1.05):
            report = judged(
                forward,
                lambda dy, saved, factor=factor: factor * SiLU.backward(dy, saved),
                *given,
                operator=F.silu,
                tolerances=tolerances,
            )
            assert [row.method for row in report.failed] == ([] if factor == 1 else ["and in float32"])
