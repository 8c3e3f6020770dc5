"""The three listings of gradient checkpointing (§4.2)."""

from __future__ import annotations

from functools import cache
from typing import Any

from backpass_ledger.claims.evidence import Evidence
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
    """Layers of a linear map and tanh, which note each time one of them runs."""

    def __init__(self, dropout: float = 0.0, depth: int = DEPTH) -> None:
        torch.manual_seed(3)
        self.runs: list[int] = []
        self.outputs: list[Any] = []
        self.layers = []
        for i in range(depth):
            each = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
            layer = torch.nn.Sequential(*each, torch.nn.Dropout(dropout)).double()
            layer.register_forward_pre_hook(self._noted(i))
            layer.register_forward_hook(lambda _m, _x, y: self.outputs.append(y))
            self.layers.append(layer)

    def _noted(self, i: int) -> Any:
        return lambda _module, _inputs: self.runs.append(i)

    def gradients(self) -> list[Any]:
        """Return the parameters' gradients."""
        found = [p.grad for layer in self.layers for p in layer.parameters()]
        return [g.numpy() for g in found if g is not None]


def noted(kept: list[Any]) -> Any:
    """Return a function that notes an array and returns it."""

    def note(array: Any) -> Any:
        kept.append(array)
        return array

    return note


def tensors() -> tuple[Any, Any]:
    """Return an input and a gradient of the output."""
    return torch.tensor(numbers(3, WIDTH)), torch.tensor(numbers(3, WIDTH, seed=1))


@cache
def expected() -> tuple[Any, tuple[Any, ...]]:
    """Return the gradients of the input and of the parameters, by autograd."""
    stack = Stack()
    x, dy = tensors()
    leaf = x.requires_grad_()
    h = leaf
    for layer in stack.layers:
        h = layer(h)
    h.backward(dy)
    assert leaf.grad is not None
    return leaf.grad.numpy(), tuple(stack.gradients())


def keep_inputs(stack: Stack, x: Any, k: int) -> tuple[Any, dict[int, Any]]:
    """Run the layers, and copy every k-th one's input, as the first listing does."""
    kept = {}
    for start in range(0, len(stack.layers), k):
        kept[start] = x.detach().clone()
        for layer in stack.layers[start : start + k]:
            x = layer(x)
    return x, kept


def again(stack: Stack, kept: dict[int, Any], start: int, i: int) -> Any:
    """Run layers ``start`` to i again, as the second listing's inner loop does."""
    y = kept[start].requires_grad_()
    for layer in stack.layers[start : i + 1]:
        y = layer(y)
    return y


def backward(
    stack: Stack, dy: Any, kept: dict[int, Any], k: int, *, mended: bool = False
) -> Any:
    """Return the input's gradient as the second listing does, from the checkpoint for
    every layer; ``mended``, from each segment's last layer only."""
    layers = range(len(stack.layers))
    for i in reversed(layers[k - 1 :: k] if mended else layers):
        start = i - i % k
        again(stack, kept, start, i).backward(dy)
        dy = kept[start].grad
    return dy


def by_listing(k: int, *, mended: bool = False, **options: Any) -> tuple[Any, Stack]:
    """Run the two listings with a checkpoint every k layers; return the gradient of the
    input, and the layers, whose ``runs`` are those of the backward."""
    stack = Stack(**options)
    x, dy = tensors()
    _, kept = keep_inputs(stack, x, k)
    stack.runs.clear()
    return backward(stack, dy, kept, k, mended=mended).numpy(), stack


def right_gradients(k: int, mended: bool = False) -> bool:
    """Whether the listing's gradients are those of autograd."""
    dx, stack = by_listing(k, mended=mended)
    of_input, of_parameters = expected()
    found = [dx, *stack.gradients()]
    return all(map(same, found, [of_input, *of_parameters]))


def by_pytorch(dropout: float = 0.0) -> tuple[Any, Stack, int]:
    """Run the third listing; return the gradient of the input, the layers, and the
    number of arrays that its forward saved."""
    from torch.utils.checkpoint import checkpoint

    stack = Stack(dropout)
    x, dy = tensors()
    leaf, saved = x.requires_grad_(), []
    y = leaf
    with torch.autograd.graph.saved_tensors_hooks(noted(saved), lambda a: a):
        for layer in stack.layers:
            y = checkpoint(layer, y, use_reentrant=False)
    y.backward(dy)
    assert leaf.grad is not None
    return leaf.grad.numpy(), stack, len(saved)


def by_inputs() -> set[int]:
    """Return the layers from which a rerun starts in PyTorch's listing: those whose
    input is kept."""
    _, stack, _ = by_pytorch()
    again = stack.runs[DEPTH:]
    return {
        i for i, before in zip(again, [DEPTH, *again], strict=False) if i != before + 1
    }


@cache
def order_of_work(k: int) -> tuple[list[int], list[tuple[str, int]]]:
    """Run segments of k layers of a small network with PyTorch's checkpoints. Return
    how often each layer ran, and the backward's events in order."""
    from torch.utils.checkpoint import checkpoint_sequential

    stack, events = Stack(), []
    for i, layer in enumerate(stack.layers):
        layer.register_forward_pre_hook(lambda *_, i=i: events.append(("again", i)))
        layer.register_full_backward_hook(
            lambda *_, i=i: events.append(("backward", i))
        )
    x, dy = tensors()
    net: Any = torch.nn.Sequential(*stack.layers)
    y = checkpoint_sequential(net, DEPTH // k, x.requires_grad_(), use_reentrant=True)
    events.clear()
    y.backward(dy)
    return [stack.runs.count(i) for i in range(DEPTH)], events


def F262(it: Evidence) -> None:
    """Save activations only every k layers, and recompute the others from there when
    the backward needs them: the gradients are the same."""
    from torch.utils.checkpoint import checkpoint_sequential

    stack = Stack()
    x, dy = tensors()
    leaf = x.requires_grad_()
    checkpoint_sequential(stack.layers, 2, leaf, use_reentrant=False).backward(dy)
    assert isinstance(leaf.grad, torch.Tensor)
    found = [leaf.grad.numpy(), *stack.gradients()]
    it.as_printed(all(map(same, found, [expected()[0], *expected()[1]])))
    it.as_printed(stack.runs.count(0) == 2)


def F263(it: Evidence) -> None:
    """A layer is recomputed from the nearest checkpoint.

    From the nearest one at or before it. A later one is of no use, since the forward
    only runs upwards.
    """
    inputs = {0, 10, 20}
    nearest = {i: min(inputs, key=lambda c: abs(c - i)) for i in range(20)}
    it.as_printed(all(nearest[i] <= i for i in range(5)))
    it.elsewhere(all(nearest[i] <= i for i in range(20)))
    it.right(max(c for c in inputs if c <= 8) == 0 and nearest[8] == 10)


def F264(it: Evidence) -> None:
    """The forward with checkpoints keeps nothing but these.

    It runs the layers under autograd, so its output holds a graph with every array that
    a plain forward saves; the checkpoints come on top. It needs `torch.no_grad()`.
    """

    def saved(function: Any) -> int:
        kept: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(noted(kept), lambda a: a):
            function()
        return len(kept)

    stack, (x, _) = Stack(), tensors()
    plain = saved(lambda: torch.nn.Sequential(*stack.layers)(x))
    it.as_printed(saved(lambda: keep_inputs(stack, x, 3)) < plain)
    it.right(saved(lambda: keep_inputs(stack, x, 3)) == plain > 0)
    with torch.no_grad():
        it.right(saved(lambda: keep_inputs(stack, x, 3)) == 0)


def F265(it: Evidence) -> None:
    """The checkpoint of layer i is a copy of its input, for every i that k divides:
    8 of them for 80 layers and k = 10."""
    x, _ = tensors()
    stack = Stack(depth=80)
    _, checkpoints = keep_inputs(stack, x, 10)
    it.as_printed(
        sorted(checkpoints) == list(range(0, 80, 10)) and len(checkpoints) == 8
    )
    it.as_printed(bool((checkpoints[30] == stack.outputs[29]).all()))
    it.as_printed(checkpoints[0].data_ptr() != x.data_ptr())


def F266(it: Evidence) -> None:
    """The checkpoint of layer i, k times the whole part of i/k, is the last one at or
    before it."""
    for k in (1, 3, 7):
        last = 0
        for i in range(20):
            last = i if i in range(0, 20, k) else last
            it.as_printed((i // k) * k == last)


def F267(it: Evidence) -> None:
    """The inner loop recomputes the output of layer i, with a graph for the layers from
    the checkpoint to i."""
    stack = Stack()
    x, _ = tensors()
    _, kept = keep_inputs(stack, x, 3)
    outputs = list(stack.outputs)
    h = again(stack, kept, 3, 5)
    it.as_printed(same(h.detach().numpy(), outputs[5].detach().numpy(), 1e-15))
    h.backward(tensors()[1])
    graded = [layer[0].weight.grad is not None for layer in stack.layers]
    it.as_printed(graded == [False] * 3 + [True] * 3)


def F268(it: Evidence) -> None:
    """The backward with checkpoints returns the gradient of the input, and leaves the
    parameters' gradients in them, for any k.

    For k = 1 only. For other k, the first pass gives the gradient of a segment's input,
    and the loop passes it to layer i − 1 of the same segment as that of its
    output. The shapes agree, so nothing fails. The loop has to step from segment to
    segment.
    """
    it.as_printed(all(right_gradients(k) for k in (2, 3, 6)))
    it.right(right_gradients(1) and not any(right_gradients(k) for k in (2, 3, 6)))
    it.right(all(right_gradients(k, mended=True) for k in (1, 2, 3, 6)))


def F269(it: Evidence) -> None:
    """The checkpoint's `.grad` is the gradient from the call of `backward` just
    before it.

    It is the sum over all calls since the checkpoint was made: k of them in a segment.
    Parameters of a segment's first layer get k contributions too.
    """
    printed, stack = by_listing(2, depth=2)  # one segment of two layers

    def through(layers: list[Any], dy: Any) -> Any:
        x = tensors()[0].requires_grad_()
        return torch.autograd.grad(torch.nn.Sequential(*layers)(x), x, dy)[0]

    first = through(stack.layers, tensors()[1])
    last = through(stack.layers[:1], first)
    it.as_printed(same(printed, last.numpy()))
    it.right(same(printed, (first + last).numpy()))
    it.right(by_listing(3)[1].runs.count(0) == 3)


def F270(it: Evidence) -> None:
    """The backward runs each layer once more.

    It starts from the checkpoint for every layer: k(k + 1)/2 runs in a segment of k.
    With k = 10 that is 440 runs for 80 layers, where 80 are enough.
    """
    runs = {k: len(by_listing(k)[1].runs) for k in (1, 2, 3, 6)}
    it.as_printed(set(runs.values()) == {DEPTH})
    it.right(all(2 * count == DEPTH * (k + 1) for k, count in runs.items()))
    it.right(len(by_listing(10, depth=80)[1].runs) == 440)
    it.right(len(by_listing(3, mended=True)[1].runs) == DEPTH)


def F271(it: Evidence) -> None:
    """The recomputed activations are those of the forward.

    Unless a layer draws random numbers: the listing does not keep the generator's
    state, so dropout has another mask. PyTorch's function keeps it.
    """
    for p in (0.0, 0.5):
        stack = Stack(p)
        x, dy = tensors()
        _, kept = keep_inputs(stack, x, 1)
        before = dict(zip(stack.runs, stack.outputs, strict=True))
        stack.outputs.clear()
        stack.runs.clear()
        backward(stack, dy, kept, 1)
        after = dict(zip(stack.runs, stack.outputs, strict=True))
        equal = all(same(before[i].detach(), after[i].detach(), 1e-15) for i in before)
        (it.elsewhere if p else it.as_printed)(equal)
    stack, (x, dy) = Stack(0.5), tensors()
    leaf = h = x.requires_grad_()
    for layer in stack.layers:
        h = layer(h)
    h.backward(dy)
    it.right(same(by_pytorch(0.5)[0], leaf.grad.numpy()))


def F272(it: Evidence) -> None:
    """PyTorch's `checkpoint` does this automatically.

    It recomputes whatever function it is given. The listing gives it one layer at a
    time, so it keeps every layer's input; a segment of k layers has to be given as one
    function, as `checkpoint_sequential` does.
    """
    dx, stack, _ = by_pytorch()
    it.as_printed(same(dx, expected()[0]) and len(stack.runs) == 2 * DEPTH)
    kept = len(by_inputs())
    it.elsewhere(kept == len(range(0, DEPTH, 3)))
    it.right(kept == DEPTH)


def F273(it: Evidence) -> None:
    """PyTorch's checkpoint of a layer, not reentrant, saves no array inside it, runs it
    again in the backward, and gives the same gradients."""
    dx, stack, saved = by_pytorch()
    it.as_printed(saved <= DEPTH)  # at most the inputs
    it.as_printed(sorted(stack.runs[DEPTH:]) == list(range(DEPTH)))
    found = [dx, *stack.gradients()]
    it.as_printed(all(map(same, found, [expected()[0], *expected()[1]])))
