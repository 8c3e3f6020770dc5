"""The three listings of gradient checkpointing (§4.2)."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.saved_activations import kept
from backpass_ledger.claims.tools import numbers, same, torch

CLAIMS = """
F262  true    0  recomputation  numerics/recomputation  §4.2, idea
F263  caveat  1  recomputation  numerics/recomputation  §4.2, nearest checkpoint
F264  false   7  recomputation  numerics/recomputation  §4.2, first listing, memory
F265  true    0  recomputation  numerics/recomputation  §4.2, first listing, checkpoints
F266  true    0  recomputation  numerics/recomputation  §4.2, second listing, checkpoint's index
F267  true    0  recomputation  numerics/recomputation  §4.2, second listing, inner loop
F268  false   9  recomputation  numerics/recomputation  §4.2, second listing, gradients
F269  false   7  recomputation  numerics/recomputation  §4.2, second listing, `.grad`
F270  false   7  recomputation  numerics/recomputation  §4.2, second listing, work
F271  caveat  3  recomputation  numerics/recomputation  §4.2, second listing, dropout
F272  caveat  1  recomputation  numerics/recomputation  §4.2, PyTorch, automatically
F273  true    0  recomputation  numerics/recomputation  §4.2, PyTorch, what is saved
"""

DEPTH, WIDTH = 6, 5


class Stack:
    """Layers of a linear map, tanh, and dropout, which note each time one of them
    runs."""

    def __init__(self, dropout: float = 0.0, depth: int = DEPTH) -> None:
        torch.manual_seed(3)
        self.runs: list[int] = []
        self.outputs: list[Any] = []
        self.layers = []
        for i in range(depth):
            each = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
            layer = torch.nn.Sequential(*each, torch.nn.Dropout(dropout)).double()
            layer.register_forward_pre_hook(lambda *_, i=i: self.runs.append(i))
            layer.register_forward_hook(lambda _m, _x, y: self.outputs.append(y))
            self.layers.append(layer)

    def whole(self, x: Any) -> Any:
        """Run all layers."""
        return torch.nn.Sequential(*self.layers)(x)

    def gradients(self) -> list[Any]:
        """Return the parameters' gradients."""
        return [p.grad.numpy() for layer in self.layers for p in layer.parameters()]

    def after(self, forward: Any) -> list[Any]:
        """Return the gradients of the input and of the parameters after a backward
        through ``forward``."""
        x, dy = tensors()
        forward(x.requires_grad_()).backward(dy)
        return [x.grad.numpy(), *self.gradients()]


def tensors() -> tuple[Any, Any]:
    """Return an input and a gradient of the output."""
    return torch.tensor(numbers(3, WIDTH)), torch.tensor(numbers(3, WIDTH, seed=1))


def right(found: list[Any], dropout: float = 0.0) -> bool:
    """Whether the gradients of the input and of the parameters are those without
    checkpoints."""
    plain = Stack(dropout)
    return all(map(same, found, plain.after(plain.whole)))


def keep_inputs(stack: Stack, x: Any, k: int) -> dict[int, Any]:
    """Run the layers, and copy every k-th one's input, as the first listing does."""
    copies = {}
    for start in range(0, len(stack.layers), k):
        copies[start] = x.detach().clone()
        for layer in stack.layers[start : start + k]:
            x = layer(x)
    return copies


def again(stack: Stack, copies: dict[int, Any], start: int, i: int) -> Any:
    """Run layers ``start`` to i again, as the second listing's inner loop does."""
    y = copies[start].requires_grad_()
    for layer in stack.layers[start : i + 1]:
        y = layer(y)
    return y


def by_listing(
    k: int, *, mended: bool = False, stack: Stack | None = None
) -> tuple[list[Any], Stack]:
    """Return the gradients by the two listings with a checkpoint every k layers, and
    the layers, whose ``runs`` and ``outputs`` are those of the backward. It starts from
    the checkpoint for every layer; ``mended``, for each segment's last layer only."""
    stack = stack or Stack()
    x, dy = tensors()
    copies = keep_inputs(stack, x, k)
    stack.runs.clear()
    stack.outputs.clear()
    layers = range(len(stack.layers))
    for i in reversed(layers[k - 1 :: k] if mended else layers):
        again(stack, copies, i - i % k, i).backward(dy)
        dy = copies[i - i % k].grad
    return [dy.numpy(), *stack.gradients()], stack


def by_pytorch(stack: Stack, y: Any) -> Any:
    """Run the layers as the third listing does."""
    for layer in stack.layers:
        y = torch.utils.checkpoint.checkpoint(layer, y, use_reentrant=False)
    return y


@cache
def order_of_work(k: int) -> tuple[list[int], list[tuple[str, int]]]:
    """Run segments of k layers of a small network with PyTorch's checkpoints. Return
    how often each layer ran, and the backward's events in order."""
    stack, events = Stack(), []
    for i, layer in enumerate(stack.layers):
        layer.register_forward_pre_hook(lambda *_, i=i: events.append(("again", i)))
        layer.register_full_backward_hook(
            lambda *_, i=i: events.append(("backward", i))
        )
    x, dy = tensors()
    y = torch.utils.checkpoint.checkpoint_sequential(
        stack.layers, DEPTH // k, x.requires_grad_(), use_reentrant=True
    )
    events.clear()
    y.backward(dy)
    return [stack.runs.count(i) for i in range(DEPTH)], events


def F262(it: Evidence) -> None:
    """Save activations only every k layers, and recompute the others from there when
    the backward needs them: the gradients are the same."""
    stack, segments = Stack(), torch.utils.checkpoint.checkpoint_sequential
    found = stack.after(lambda x: segments(stack.layers, 2, x, use_reentrant=False))
    it.as_printed(right(found) and stack.runs.count(0) == 2)


def F263(it: Evidence) -> None:
    """A layer is recomputed from the nearest checkpoint.

    It is the nearest checkpoint at or before the layer, because the forward only runs
    upwards."""
    inputs = {0, 10, 20}
    nearest = {i: min(inputs, key=lambda c: abs(c - i)) for i in range(20)}
    it.as_printed(all(nearest[i] <= i for i in range(5)))
    it.elsewhere(all(nearest[i] <= i for i in range(20)))
    it.right(max(c for c in inputs if c <= 8) == 0 and nearest[8] == 10)


def F264(it: Evidence) -> None:
    """The forward with checkpoints keeps nothing but these.

    It runs the layers under autograd, so its output holds a graph with every array that
    a plain forward saves; the checkpoints come on top. It needs `torch.no_grad()`."""
    stack, (x, _) = Stack(), tensors()
    plain = kept(lambda: stack.whole(x))
    listed = kept(lambda: keep_inputs(stack, x, 3))
    it.as_printed(len(listed) < len(plain))
    it.right(len(listed) == len(plain) > 0)
    with torch.no_grad():
        it.right(not kept(lambda: keep_inputs(stack, x, 3)))


def F265(it: Evidence) -> None:
    """The checkpoint of layer i is a copy of its input, for every i that k divides: 8
    of them for 80 layers and k = 10."""
    stack, (x, _) = Stack(depth=80), tensors()
    copies = keep_inputs(stack, x, 10)
    it.as_printed(list(copies) == list(range(0, 80, 10)) and len(copies) == 8)
    it.as_printed(copies[0].data_ptr() != x.data_ptr() and same(copies[0], x))
    inputs = [stack.outputs[i - 1].detach() for i in copies if i]
    it.as_printed(all(map(same, inputs, list(copies.values())[1:])))


def F266(it: Evidence) -> None:
    """The last checkpoint at or before layer i is k times the whole part of i/k."""
    for k in range(1, 21):
        last = [max(c for c in range(0, 20, k) if c <= i) for i in range(20)]
        it.as_printed([(i // k) * k for i in range(20)] == last)


def F267(it: Evidence) -> None:
    """The inner loop recomputes the output of layer i, with a graph for the layers from
    the checkpoint to i."""
    stack, (x, dy) = Stack(), tensors()
    copies = keep_inputs(stack, x, 3)
    h = again(stack, copies, 3, 5)
    it.as_printed(same(h.detach(), stack.outputs[5].detach(), 1e-15))
    h.backward(dy)
    graded = [layer[0].weight.grad is not None for layer in stack.layers]
    it.as_printed(graded == [False] * 3 + [True] * 3)


def F268(it: Evidence) -> None:
    """The backward with checkpoints returns the gradient of the input, and leaves the
    parameters' gradients in their `.grad`, for any k.

    This holds for k = 1 only. For any other k, the first pass computes the gradient of
    the segment's input. The loop then uses it, without an error, as the gradient of the
    output of layer i − 1 of the same segment. The loop has to step from segment to
    segment."""
    it.as_printed(all(right(by_listing(k)[0]) for k in (2, 3, 6)))
    it.right([k for k in (1, 2, 3, 6) if right(by_listing(k)[0])] == [1])
    it.right(all(right(by_listing(k, mended=True)[0]) for k in (1, 2, 3, 6)))


def F269(it: Evidence) -> None:
    """The checkpoint's `.grad` is the gradient from the last call of `backward`.

    It is the sum over all calls since the checkpoint was saved: k of them in a
    segment."""
    (printed, *_), stack = by_listing(2, stack=Stack(depth=2))  # one segment
    x, dy = tensors()
    x.requires_grad_()
    (first,) = torch.autograd.grad(stack.whole(x), x, dy)
    (last,) = torch.autograd.grad(stack.layers[0](x), x, first)
    it.as_printed(same(printed, last))
    it.right(same(printed, first + last))
    it.right(by_listing(3)[1].runs.count(0) == 3)  # each adds to its parameters too


def F270(it: Evidence) -> None:
    """The backward runs each layer once more.

    It starts from the checkpoint for every layer: k(k + 1)/2 runs in a segment of k.
    With k = 10 that is 440 runs for 80 layers, where 80 are enough."""
    runs = {k: len(by_listing(k)[1].runs) for k in (1, 2, 3, 6)}
    it.as_printed(set(runs.values()) == {DEPTH})
    it.right(all(2 * count == DEPTH * (k + 1) for k, count in runs.items()))
    it.right(len(by_listing(10, stack=Stack(depth=80))[1].runs) == 440)
    it.right(len(by_listing(10, mended=True, stack=Stack(depth=80))[1].runs) == 80)


def F271(it: Evidence) -> None:
    """The recomputed activations are those of the forward.

    With dropout they differ: the listing does not keep the generator's state."""

    def recomputed(p: float) -> bool:
        stack = Stack(p)
        keep_inputs(stack, tensors()[0], 1)
        first = [y.detach() for y in stack.outputs]
        again = [y.detach() for y in by_listing(1, stack=Stack(p))[1].outputs]
        return all(same(*pair, 1e-15) for pair in zip(first, again[::-1], strict=True))

    it.as_printed(recomputed(0.0))
    it.elsewhere(recomputed(0.5))
    stack = Stack(0.5)
    it.right(right(stack.after(lambda x: by_pytorch(stack, x)), 0.5))


def F272(it: Evidence) -> None:
    """PyTorch's `checkpoint` does this automatically.

    Given one layer at a time, as in the listing, it keeps every layer's input. A
    segment of k layers has to be given as one function."""
    stack = Stack()
    it.as_printed(right(stack.after(lambda x: by_pytorch(stack, x))))
    it.as_printed(len(stack.runs) == 2 * DEPTH)
    # A rerun starts from an input that was kept.
    reruns = pairwise([DEPTH, *stack.runs[DEPTH:]])
    starts = {i for before, i in reruns if i != before + 1}
    it.elsewhere(len(starts) < DEPTH)


def F273(it: Evidence) -> None:
    """PyTorch's checkpoint of a layer, not reentrant, saves no array inside it, runs it
    again in the backward, and gives the same gradients."""
    stack = Stack()
    arrays = kept(lambda: by_pytorch(stack, tensors()[0].requires_grad_()))
    it.as_printed(len(arrays) <= DEPTH)  # at most the inputs
    stack = Stack()
    it.as_printed(right(stack.after(lambda x: by_pytorch(stack, x))))
    it.as_printed(sorted(stack.runs[DEPTH:]) == list(range(DEPTH)))
