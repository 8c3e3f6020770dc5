"""Check an operator of ``torch.library.custom_op`` with its registered backward, and a
module that applies an ``autograd.Function``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import checkpoint

from backpass.verify.arguments import reject_unknown
from backpass.verify.case import NotRun, first_line
from backpass.verify.convert import dtype_name, is_floating, requires_grad
from backpass.verify.layers import declaration
from backpass.verify.outputs import join
from backpass.verify.seeded import the_same_numbers
from backpass.verify.signatures import input_names
from backpass.verify.subject import (
    called,
    is_function,
    on_its_own,
    takes_context,
)


def is_custom_op(op: object) -> bool:
    """Whether ``op`` is what ``torch.library.custom_op`` returns."""
    return isinstance(op, torch.library.CustomOpDef)


def is_module(op: object) -> bool:
    """Whether ``op`` is an instance of ``torch.nn.Module``."""
    return isinstance(op, torch.nn.Module)


def function_of(op: Any, given: Sequence[Any] = ()) -> type[torch.autograd.Function]:
    """Return an operator as a Function, with its own forward and the registered
    backward. Its options are further inputs, those that are keywords last. Each tensor
    of a list among the inputs ``given`` is an input of its own.

    Raises TypeError if no backward is registered.
    """
    if op._backward_fn is None:
        raise TypeError(
            f"op: expected an operator with a backward; {op._name} has none: call its "
            "register_autograd first"
        )
    taken = _parameters(op)
    keywords = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    places = len(taken) - len(keywords)

    lists = {at: len(value) for at, value in enumerate(given) if is_list(value)}

    def parts_of(values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        left = [*values]
        for at, count in lists.items():
            left[at : at + count] = [left[at : at + count]]
        values = left
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
        several = isinstance(returned, tuple) or (lists and len(taken) > 1)
        returned = [*returned] if several else [returned]
        for at, count in sorted(lists.items(), reverse=True):
            none = returned[at] is None
            returned[at : at + 1] = [None] * count if none else returned[at]
        # An option that was left out, or is a keyword, has no place for a gradient.
        return (*returned, *[None] * len(taken))[: ctx.inputs_of_apply]

    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            p.replace(name=name, kind=usual)
            for at, p in enumerate(taken)
            for name in (
                [f"{p.name}_{of}" for of in range(lists[at])]
                if at in lists
                else [p.name]
            )
        ]
    )
    parts = {"forward": forward, "setup_context": setup_context, "backward": backward}
    static = {name: staticmethod(part) for name, part in parts.items()}
    facts = {name: value for name, value in vars(op).items() if name.isupper()}
    return type(op._name, (torch.autograd.Function,), {**facts, **static})


def _parameters(op: Any) -> list[inspect.Parameter]:
    """Return the parameters of an operator. One of ``triton_op`` hides its function, so
    they are those of its schema."""
    taken = list(inspect.signature(op._init_fn).parameters.values())
    if not any(p.kind is p.VAR_POSITIONAL for p in taken):
        return taken
    usual, keyword = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    return [
        inspect.Parameter(
            of.name,
            keyword if of.kwarg_only else usual,
            default=of.default_value
            if of.has_default_value()
            else inspect.Parameter.empty,
        )
        for of in op._opoverload._schema.arguments
    ]


def is_list(value: Any) -> bool:
    """Whether an input of an operator is a list of tensors."""
    return isinstance(value, list | tuple) and any(map(torch.is_tensor, value))


def with_options(op: Any, count: int, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of the options that follow ``count`` inputs of an operator or a
    Function, up to the last that is given, because both take them by position.

    Raises TypeError for an unknown option, or if an earlier one has no value.
    """
    if is_custom_op(op):
        taken = _parameters(op)
    else:
        taken = list(inspect.signature(op.forward).parameters.values())
        taken = taken[1:] if takes_context(op) else taken
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


def trained(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters that are not frozen."""
    return [of for of in module.parameters() if of.requires_grad]


def of_module(module: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """Return a module as an object whose inputs are its own and then its parameters.
    Return None if it applies no Function at these inputs: its backward is then
    PyTorch's."""
    names = [name for name, of in module.named_parameters() if of.requires_grad]
    frozen = {n: of for n, of in module.named_parameters() if not of.requires_grad}
    within, restore = _Within(module), _restoring(module)
    padding: dict[str, tuple[Any, int]] = {
        f"{name}.weight": (of.weight.detach()[of.padding_idx], of.padding_idx)
        for name, of in module.named_modules()
        if isinstance(of, torch.nn.Embedding) and of.padding_idx is not None
        if f"{name}.weight" in names
    }
    applied: list[type] = []
    ys: list[Any] = []  # of the first call

    def called(values: Sequence[Any], call: Callable[..., Any] = module) -> Any:
        """Call the module, or a function of its inputs, with these parameters."""
        given, own = values[: len(inputs)], values[len(inputs) :]
        # Contiguous, as a module's parameters are; PyTorch's own operators rely on it.
        weights: dict[str, torch.Tensor] = {
            name: value.contiguous() for name, value in zip(names, own, strict=True)
        }
        for name, (row, index) in padding.items():  # without a gradient, it stays
            of = weights[name]
            fixed = torch.arange(len(of), device=of.device)[:, None] == index
            weights[name] = torch.where(fixed, row.to(of.dtype), of)
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        dtype = next((of.dtype for of in (*own, *given) if is_floating(of)), None)
        still = {name: of.detach().to(dtype) for name, of in frozen.items()}
        every = {**buffers, **weights, **still}
        held = {f"module.{name}": of for name, of in every.items()}
        if call is module:
            restore()
        y = torch.func.functional_call(within, held, (call, *given))
        ys[:] = ys or [y]
        return y

    def forward(*values: Any) -> tuple[Any, Any]:
        leaves = [_leaf(value) for value in values]
        with the_same_numbers():
            y, _ = join(called(leaves))  # one vector of several outputs
        return y.detach(), (y, leaves)

    def backward(dy: Any, saved: Any) -> tuple[Any, ...]:
        y, leaves = saved
        wanted = [leaf for leaf in leaves if requires_grad(leaf)]
        # Within the module, because a checkpoint runs a part of it again.
        found = iter(called(leaves, lambda *_: _gradients(y, wanted, dy)))
        every = (next(found) if requires_grad(leaf) else None for leaf in leaves)
        return tuple(  # None for a parameter that this call does not use
            torch.zeros_like(leaf) if g is None and requires_grad(leaf) else g
            for g, leaf in zip(every, leaves, strict=True)
        )

    def plain_forward(*values: Any) -> Any:
        with _without_backwards(applied), the_same_numbers():
            y, _ = join(called(values))
        if kept := _functions_in_the_graph(y):
            applied.extend(kept)
            names = ", ".join(dict.fromkeys(of.__name__ for of in kept))
            raise NotRun(
                f"autograd through the module would call the backward of {names}, which "
                f"is to be checked: call {kept[0].__name__}.apply in the module's forward"
            )
        return y

    raised: Exception | None = None
    try:
        with torch.enable_grad():
            plain_forward(*map(_leaf, inputs), *map(_leaf, trained(module)))
    except Exception as error:  # after a Function was applied, the check reports it
        raised = error
    if not applied:
        if raised is None:
            return None
        raise TypeError(
            f"inputs: expected those of {type(module).__name__}'s forward; it raises "
            f"an error, before it applies an autograd.Function ({first_line(raised)})"
            f"{_dtypes(inputs, module)}; a module's backward is derived by PyTorch, so "
            "there is none to check, unless its forward applies an autograd.Function"
        ) from raised
    listed = [*input_names(module.forward, len(inputs))]
    listed += [name.replace(".", "_") for name in names]
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in listed]
    )
    name, text = type(module).__name__, getattr(module, "SHAPES", "")
    if text and ys:
        own = dict(zip(listed, inputs, strict=False))
        parameters = dict(zip(listed[len(inputs) :], module.parameters(), strict=True))
        text = declaration(name, text, own, parameters, ys[0])
    return SimpleNamespace(
        forward=forward,
        backward=backward,
        plain_forward=plain_forward,
        __name__=name,
        **({"SHAPES": text} if text else {}),
    )


def _restoring(module: torch.nn.Module) -> Callable[[], None]:
    """Return a function that gives a module's attributes that are tensors or numbers
    their present values. Buffers are not among them."""
    kept = [
        (of, name, value.detach().clone() if torch.is_tensor(value) else value)
        for of in module.modules()
        for name, value in vars(of).items()
        if torch.is_tensor(value) or type(value) in (int, float)
    ]

    def restore() -> None:
        for of, name, value in kept:
            new = value.clone() if torch.is_tensor(value) else value
            setattr(of, name, new)

    return restore


def _dtypes(inputs: Sequence[Any], module: torch.nn.Module) -> str:
    """Return a hint if floating-point inputs have another dtype than the parameters."""
    given, own = (
        {dtype_name(of) for of in tensors if of.is_floating_point()}
        for tensors in (filter(torch.is_tensor, inputs), module.parameters())
    )
    if not given or not own or given & own:
        return ""
    listed = [" and ".join(sorted(names)) for names in (given, own)]
    return f"; the inputs are {listed[0]}, and the parameters {listed[1]}"


def _leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    leaf = value.is_floating_point() or value.is_complex()
    return value.detach().requires_grad_() if leaf else value  # its strides too


class _Within(torch.nn.Module):
    """Calls a function while a module has other parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, call: Callable[..., Any], *inputs: Any) -> Any:
        return call(*inputs)


def _gradients(y: Any, leaves: Sequence[Any], dy: Any) -> Sequence[Any]:
    """Return the gradient of each leaf, None for one that is not used."""
    try:
        return torch.autograd.grad(y, leaves, dy, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
    for leaf in leaves:  # a reentrant checkpoint adds to the leaves
        leaf.grad = None
    torch.autograd.backward(y, dy, retain_graph=True)
    return [leaf.grad for leaf in leaves]


@contextlib.contextmanager
def _without_backwards(applied: list[type]) -> Iterator[None]:
    """Make ``apply`` of each Function run only its forward, so that autograd follows
    the operations in it, and a checkpoint run what it is given. Append the Functions
    that ran to ``applied``."""
    # Function.apply calls the apply of its base; a name may hold Function.apply itself.
    base = torch.autograd.Function.__mro__[1]
    name = "_checkpoint_without_reentrant_generator"
    own = getattr(checkpoint, name)

    def apply(cls: type, *inputs: Any, **options: Any) -> Any:
        if cls is checkpoint.CheckpointFunction:
            function, _, *given = inputs
            return function(*given)
        applied.append(cls)
        return on_its_own(cls, *inputs, **options)[0]

    def nothing_around(*_: Any, **__: Any) -> Iterator[None]:
        yield

    base.apply = classmethod(apply)  # type: ignore[attr-defined]
    setattr(checkpoint, name, nothing_around)
    try:
        yield
    finally:
        del base.apply  # type: ignore[attr-defined]
        setattr(checkpoint, name, own)


def _functions_in_the_graph(y: Any) -> list[type]:
    """Return the Functions whose own backward autograd would call."""
    found, seen, left = [], set(), [getattr(y, "grad_fn", None)]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.append(node._forward_cls)  # type: ignore[attr-defined]
        left += [before for before, _ in node.next_functions]
    return found
