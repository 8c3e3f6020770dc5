"""Calls that leave something behind, inputs without a gradient, recurrences: mistakes
about what came before."""

import numpy as np
import torch

from . import bug, normal, require, twins
from .norms_and_losses import tensors


@bug(
    "karpathy/micrograd#102",
    "Only the leaves' gradients were cleared: a second backward added to what the first had left in between.",
    "every gradient starts from 0 in each backward",
    kind="state between calls",
    inputs=normal((3, 4), (4, 2)),
)
def second_backward():
    def forward(x, w):
        require(x.ndim == w.ndim == 2, "matrices")
        y = np.tanh(x @ w)
        return y, {"x": x, "w": w, "y": y, "dh": np.zeros(y.shape)}

    def backward(dy, saved):
        dh = dy * (1 - saved["y"] ** 2)
        return dh @ saved["w"].T, saved["x"].T @ dh

    def wrong(dy, saved):
        saved["dh"] += dy * (1 - saved["y"] ** 2)
        return saved["dh"] @ saved["w"].T, saved["x"].T @ saved["dh"]

    return twins(forward, backward, wrong)


@bug(
    "TrenTorch/TrenTorch#182",
    "A value used twice passed on the gradient of its first use only.",
    "the gradient of a value is the sum over its uses",
    kind="accumulation and optimisers",
    inputs=normal((4, 6)),
    says="exp (the 3rd operation)",
)
def value_used_twice():
    def forward(x):
        h = np.tanh(x)
        return 2 * h + np.exp(h), h

    def backward(dy, h):
        return dy * (2 + np.exp(h)) * (1 - h * h)

    return twins(forward, backward, lambda dy, h: dy * 2 * (1 - h * h))


@bug(
    "itskonrad/miniMNIST-c#7",
    "The input's gradient was added up twice, the second time from weights that the step had just changed.",
    "dx = dy·wᵀ, once, before any step",
    kind="in-place writes",
    inputs=normal((3, 4), (4, 2)),
    says="w was modified in place",
)
def step_within_backward():
    def forward(x, w):
        require(x.ndim == w.ndim == 2, "matrices")
        return x @ w, (x, w)

    def backward(dy, saved):
        x, w = saved
        return dy @ w.T, x.T @ dy

    def wrong(dy, saved):
        dx, dw = backward(dy, saved)
        w = saved[1]
        w -= 0.01 * dw
        return dx + dy @ w.T, dw

    return twins(forward, backward, wrong)


@bug(
    "hpcaitech/Elixir#12",
    "What the backward needs was saved in a block of memory that the next forward used again.",
    "each forward saves memory of its own",
    kind="state between calls",
    inputs=normal((4, 6)),
    gradcheck="never",
)
def reused_workspace():
    class Square:
        def __init__(self, reuse):
            self.block = {} if reuse else None

        def forward(self, x):
            if self.block is None or np.iscomplexobj(x):
                return x * x, x
            block = self.block.setdefault(x.shape, np.empty(x.shape))
            block[...] = x
            return x * x, block

        def backward(self, dy, x):
            return 2 * dy * x

    return Square(False), Square(True)


@bug(
    "axonn-ai/axonn#68",
    "A gradient was assigned only where its input requires one, and returned in any case.",
    "None where no gradient is required",
    kind="frozen inputs",
    inputs=lambda rng: tuple(map(torch.tensor, normal((3, 4), (2, 4))(rng))),
    gradcheck="never",
)
def frozen_weight():
    class Right(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            require(x.ndim == w.ndim == 2, "matrices")
            ctx.save_for_backward(x, w)
            return x @ w.T

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            dx = dw = None
            if ctx.needs_input_grad[0]:
                dx = dy @ w
            if ctx.needs_input_grad[1]:
                dw = dy.T @ x
            return dx, dw

    class Wrong(torch.autograd.Function):
        forward = Right.forward

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            if ctx.needs_input_grad[0]:
                dx = dy @ w
            if ctx.needs_input_grad[1]:
                dw = dy.T @ x
            return dx, dw

    return Right, Wrong


@bug(
    "deeplearning4j/deeplearning4j#9946",
    "Dropout's backward drew a mask of its own.",
    "dx = dy·mask/(1 − p) with the forward's mask",
    kind="recomputation",
    inputs=normal((4, 6)),
)
def dropout():
    class Dropout:
        def __init__(self, redraw):
            self.redraw = redraw

        def forward(self, x, p=0.5):
            generator = np.random.default_rng(3)
            mask = (generator.random(x.shape) >= p) / (1 - p)
            return x * mask, (mask, generator, p)

        def backward(self, dy, saved):
            mask, generator, p = saved
            return dy * (
                (generator.random(dy.shape) >= p) / (1 - p) if self.redraw else mask
            )

    return Dropout(False), Dropout(True)


@bug(
    "open-lm-engine/accelerated-model-architectures#445",
    "A recurrence returned its last state and ignored that output's gradient.",
    "the reverse recurrence starts from the last state's gradient",
    kind="recurrences",
    inputs=normal((5, 3), (3, 3), (3,)),
)
def last_state():
    def forward(x, w, h0):
        states = [h0]
        for row in x:
            states.append(np.tanh(states[-1] @ w + row))
        return (np.stack(states[1:]), states[-1]), (np.stack(states), w)

    def starting(from_last):
        def backward(dys, saved):
            states, w = saved
            dy, dh = dys[0], dys[1] * from_last
            dx, dw = np.zeros_like(dy), np.zeros_like(w)
            for t in reversed(range(len(dy))):
                dx[t] = (dh + dy[t]) * (1 - states[t + 1] ** 2)
                dw += np.outer(states[t], dx[t])
                dh = dx[t] @ w.T
            return dx, dw, dh

        return backward

    return twins(forward, starting(1), starting(0))


@bug(
    "fla-org/flash-linear-attention#1140",
    "A causal convolution's last state was traced back to the wrong tokens where the sequence is shorter than the kernel.",
    "token t receives slot t + W − T of the last state's gradient; a slot that survives goes back to the first state",
    kind="recurrences",
    inputs=normal((6,), (4,), (4,)),
    telling=normal((2,), (4,), (4,)),
    telling_inputs="fewer tokens than the kernel is wide",
    seen="varied",
    gradcheck="telling",
)
def convolution_state():
    def forward(x, w, state):
        require(x.ndim == 1 and w.shape == state.shape, "a state as long as the kernel")
        line = np.concatenate([state, x])
        width = len(w)
        y = np.stack([(line[t + 1 : t + 1 + width] * w).sum() for t in range(len(x))])
        return (y, line[len(line) - width :]), (line, w, len(x))

    def backward(dys, saved, clamped=False):
        line, w, length = saved
        dy, dlast = dys
        width = len(w)
        dline, dw = np.zeros(len(line)), np.zeros(width)
        for t in range(length):
            dline[t + 1 : t + 1 + width] += dy[t] * w
            dw += dy[t] * line[t + 1 : t + 1 + width]
        if not clamped or length >= width - 1:
            dline[length:] += dlast
        else:
            dline[width:] += dlast[1 : 1 + length]
        return dline[width:], dw, dline[:width]

    return twins(
        forward, backward, lambda dys, saved: backward(dys, saved, clamped=True)
    )


@bug(
    "fangwei123456/spikingjelly#715",
    "The first membrane potential's gradient was made from the input's, which is already divided by τ.",
    "dv₀ = dh₀·∂h₀/∂v₀",
    kind="recurrences",
    inputs=normal((4, 3), (3,)),
)
def first_potential():
    tau, a = 2.0, 0.3

    def forward(x, v0):
        v = [v0]
        for row in x:
            v.append(v[-1] + (row + a * v[-1] * v[-1]) / tau)
        return np.stack(v[1:]), np.stack(v)

    def scaled(by):
        def backward(dy, v):
            dx, dv = np.zeros_like(dy), np.zeros_like(dy[0])
            for t in reversed(range(len(dy))):
                dh = dy[t] + dv
                dx[t] = dh / tau
                dv = dh * (1 + 2 * a * v[t] / tau)
            return dx, dv * by

        return backward

    return twins(forward, scaled(1), scaled(1 / tau))


@bug(
    "pytorch/pytorch#3241",
    "The backward computed with the gradient of every output; that of an output that the loss does not use is undefined.",
    "an undefined gradient counts as 0",
    kind="interface of autograd",
    inputs=tensors((4, 3), (3,)),
    seen="varied",
    says="output 2 is not used",
)
def unused_output():
    class Right(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            require(x.ndim == 2 and w.ndim == 1, "a matrix and a vector")
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x, w)
            return x * w, x.sum(dim=0)

        @staticmethod
        def backward(ctx, dy, dtotal):
            x, w = ctx.saved_tensors
            dx, dw = torch.zeros_like(x), torch.zeros_like(w)
            if dy is not None:
                dx, dw = dx + dy * w, (dy * x).sum(dim=0)
            return dx if dtotal is None else dx + dtotal, dw

    class Wrong(torch.autograd.Function):
        forward = Right.forward

        @staticmethod
        def backward(ctx, dy, dtotal):
            x, w = ctx.saved_tensors
            return dy * w + dtotal, (dy * x).sum(dim=0)

    return Right, Wrong


@bug(
    "pytorch/pytorch#58509",
    "The backward read an intermediate result that the forward had stored as a constant: the second derivative leaves its part out.",
    "what depends on x is computed from the saved x",
    kind="interface of autograd",
    inputs=tensors((4, 6)),
    missed="by default it compares first derivatives only, which are right",
    gradcheck="never",
)
def second_derivative():
    class Right(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.tanh(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return dy * (1 - torch.tanh(x) ** 2)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            t = torch.tanh(x)
            ctx.slope = 1 - t**2
            return t

        @staticmethod
        def backward(ctx, dy):
            return dy * ctx.slope

    return Right, Wrong


@bug(
    "tinygrad/tinygrad#9597",
    "Two leaves that were made from the same number became one node of the graph: each received the gradients of both.",
    "a leaf is itself, whatever its value",
    kind="accumulation and optimisers",
    inputs=normal((4,), (4,)),
    telling=lambda rng: (np.array([3.0, 1.0, -2.0]), np.array([3.0, 0.5, -2.0])),
    telling_inputs="two inputs with equal elements",
    seen="telling",
    gradcheck="telling",
)
def equal_leaves():
    def forward(a, b):
        require(a.shape == b.shape, "two inputs of one shape")
        return 2 * a + a * b, (a, b)

    def backward(dy, saved):
        a, b = saved
        return dy * (2 + b), dy * a

    def wrong(dy, saved):
        a, b = saved
        da, db = backward(dy, saved)
        both = np.where(a == b, da + db, 0)
        return np.where(a == b, both, da), np.where(a == b, both, db)

    return twins(forward, backward, wrong)


@bug(
    "NX-AI/mlstm_kernels#10",
    "The forward stored the state of every second chunk; the backward read the stored states as if they were those of every chunk.",
    "a chunk starts from the last state stored before it, carried on to its first step",
    kind="recurrences",
    inputs=normal((4, 2), (2,)),
    telling=normal((12, 2), (2,)),
    telling_inputs="more steps than a chunk has",
    seen="varied",
    gradcheck="telling",
)
def states_of_other_chunks():
    chunk, apart = 8, 16

    def steps(h, rows, w):
        states = [h]
        for row in rows:
            states.append(np.tanh(w * states[-1] + row))
        return states

    def forward(x, w):
        require(x.ndim == 2 and w.ndim == 1, "steps of a state")
        states = steps(np.zeros_like(w), x, w)
        return np.stack(states[1:]), (x, w, states[:-1:apart])

    def from_state(before):
        def backward(dy, saved):
            x, w, stored = saved
            dx, dw, dh = np.zeros_like(x), np.zeros_like(w), np.zeros_like(w)
            for first in reversed(range(0, len(x), chunk)):
                h = steps(before(stored, first, x, w), x[first : first + chunk], w)
                for t in reversed(range(len(h) - 1)):
                    dx[first + t] = (dh + dy[first + t]) * (1 - h[t + 1] ** 2)
                    dw += dx[first + t] * h[t]
                    dh = dx[first + t] * w
            return dx, dw

        return backward

    def carried_on(stored, first, x, w):
        at = first // apart
        return steps(stored[at], x[at * apart : first], w)[-1]

    def of_the_chunk(stored, first, x, w):
        return stored[min(first // chunk, len(stored) - 1)]

    return twins(forward, from_state(carried_on), from_state(of_the_chunk))
