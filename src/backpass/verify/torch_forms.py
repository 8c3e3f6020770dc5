"""Check an operator of ``torch.library.custom_op`` with its registered backward, and a
module that applies an ``autograd.Function``."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from backpass.verify.arguments import reject_unknown
from backpass.verify.layers import declaration, the_same_numbers
from backpass.verify.outputs import join
from backpass.verify.subject import (
    called,
    input_names,
    is_function,
    on_its_own,
    requires_grad,
    takes_context,
)


def is_custom_op(op: object) -> bool:
    """Whether ``op`` is what ``torch.library.custom_op`` returns."""
    return isinstance(op, torch.library.CustomOpDef)


def is_module(op: object) -> bool:
    """Whether ``op`` is an instance of ``torch.nn.Module``."""
    return isinstance(op, torch.nn.Module)


def function_of(op: Any) -> type[torch.autograd.Function]:
    """Return an operator as a Function, with its own forward and the registered
    backward. Its options are further inputs, those that are keywords last.

    Raises TypeError if no backward is registered.
    """
    if op._backward_fn is None:
        raise TypeError(
            f"op: expected an operator with a backward; {op._name} has none: call its "
            "register_autograd first"
        )
    taken = list(inspect.signature(op._init_fn).parameters.values())
    keywords = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    places = len(taken) - len(keywords)

    def parts_of(values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        every = [*values, *(p.default for p in taken[len(values) :])]
        return every[:places], dict(zip(keywords, every[places:], strict=True))

    def forward(*values: Any) -> Any:
        inputs, options = parts_of(values)
        return op._init_fn(*inputs, **options)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.inputs_of_apply = len(inputs)
        if op._setup_context_fn is None:
            return
        given, options = parts_of(inputs)
        more = {"keyword_only_inputs": options} if options else {}
        op._setup_context_fn(ctx=ctx, inputs=tuple(given), output=output, **more)

    def backward(ctx: Any, *dys: Any) -> Any:
        returned = op._backward_fn(ctx, *dys)
        returned = returned if isinstance(returned, tuple) else (returned,)
        # An option that was left out, or is a keyword, has no place for a gradient.
        return (*returned, *[None] * len(taken))[: ctx.inputs_of_apply]

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in taken]
    )
    parts = {"forward": forward, "setup_context": setup_context, "backward": backward}
    static = {name: staticmethod(part) for name, part in parts.items()}
    facts = {name: value for name, value in vars(op).items() if name.isupper()}
    return type(op._name, (torch.autograd.Function,), {**facts, **static})


def with_options(op: Any, count: int, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of the options that follow ``count`` inputs of an operator or a
    Function, up to the last that is given, because both take them by position.

    Raises TypeError for an unknown option, or if an earlier one has no value.
    """
    own = op._init_fn if is_custom_op(op) else op.forward
    taken = list(inspect.signature(own).parameters.values())
    if not is_custom_op(op) and takes_context(op):
        taken = taken[1:]
    name = called(op, "op") if is_function(op) else op._name
    further = {p.name: p.default for p in taken[count:]}
    reject_unknown(f"options of {name}", options, list(further), TypeError)
    last = max(map(list(further).index, options), default=-1)
    values = {**further, **options}
    needed = [*values][: last + 1]
    if missing := [p for p in needed if values[p] is inspect.Parameter.empty]:
        raise TypeError(
            f"options of {name}: expected {', '.join(missing)} too, because apply takes "
            f"values by position; got {', '.join(options)}"
        )
    return tuple(values[p] for p in needed)


def of_module(module: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """Return a module as an object whose inputs are its own and then its parameters.
    Return None if it applies no Function at these inputs: its backward is then
    PyTorch's."""
    names = [*dict(module.named_parameters())]
    applied: list[type] = []
    ys: list[Any] = []  # of the first call

    def called(values: Sequence[Any]) -> Any:
        given, own = values[: len(inputs)], values[len(inputs) :]
        # Contiguous, as a module's parameters are; PyTorch's own operators rely on it.
        weights = {
            name: value.contiguous() for name, value in zip(names, own, strict=True)
        }
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        with the_same_numbers():
            y = torch.func.functional_call(module, {**buffers, **weights}, tuple(given))
        ys[:] = ys or [y]
        return y

    def forward(*values: Any) -> tuple[Any, Any]:
        leaves = [_leaf(value) for value in values]
        y, _ = join(called(leaves))  # one vector of several outputs
        return y.detach(), (y, leaves)

    def backward(dy: Any, saved: Any) -> tuple[Any, ...]:
        y, leaves = saved
        wanted = [leaf for leaf in leaves if requires_grad(leaf)]
        found = iter(
            torch.autograd.grad(y, wanted, dy, retain_graph=True, allow_unused=True)
        )
        every = (next(found) if requires_grad(leaf) else None for leaf in leaves)
        return tuple(  # None for a parameter that this call does not use
            torch.zeros_like(leaf) if g is None and requires_grad(leaf) else g
            for g, leaf in zip(every, leaves, strict=True)
        )

    def plain_forward(*values: Any) -> Any:
        with _without_backwards(applied):
            return join(called(values))[0]

    with torch.no_grad(), contextlib.suppress(Exception):  # the check reports errors
        plain_forward(*inputs, *module.parameters())
    if not applied:
        return None
    listed = [*input_names(module.forward, len(inputs))]
    listed += [name.replace(".", "_") for name in names]
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in listed]
    )
    name, text = type(module).__name__, getattr(module, "SHAPES", "")
    if text and ys:
        values = zip(listed, (*inputs, *module.parameters()), strict=True)
        given = dict(itertools.islice(values, len(inputs)))
        text = declaration(name, text, given, dict(values), ys[0])
    return SimpleNamespace(
        forward=forward,
        backward=backward,
        plain_forward=plain_forward,
        __name__=name,
        **({"SHAPES": text} if text else {}),
    )


def _leaf(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if floating else value  # its strides too


@contextlib.contextmanager
def _without_backwards(applied: list[type]) -> Iterator[None]:
    """Make ``apply`` of each Function run only its forward, so that autograd follows
    the operations in it. Append the Functions that ran to ``applied``."""
    own = vars(torch.autograd.Function)["apply"]

    def apply(cls: type, *inputs: Any, **options: Any) -> Any:
        applied.append(cls)
        return on_its_own(cls, *inputs, **options)[0]

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = own  # type: ignore[method-assign]
