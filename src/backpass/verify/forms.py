"""Convert the forms in which people write a backward into one: an object whose
``forward(*inputs)`` returns ``(y, saved)`` and whose ``backward(dy, saved)`` returns
the gradients.

The other forms are:

- a layer that keeps its state, with ``backward(dy)`` and the gradients of its
  parameters in attributes;
- several outputs or several saved objects side by side, ``(y1, y2, saved)`` or
  ``(y, x, w)``;
- a backward that takes the saved object first, as in JAX;
- a loss and its gradient, which takes the same inputs;
- an operator of ``torch.library.custom_op``, and a module that applies a Function.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import is_array, namespace
from backpass.verify.convert import is_floating, to_kind_of
from backpass.verify.gradient_names import names_gradient
from backpass.verify.layers import functions_of
from backpass.verify.outputs import Malformed, flat
from backpass.verify.signatures import returned_names
from backpass.verify.subject import called, is_function

OTHERS = ("data", "dict", "dim", "dims", "dtype", "device", "depth")  # no cotangent
OUTPUTS = ("y", "out", "output")  # by which a backward may take y
SAVED = ("res", "residual", "residuals", "saved", "cache", "ctx", "context")


class Form(NamedTuple):
    """An object to check, its inputs, the names of arrays whose gradient was not found,
    its options if they differ from those that were given, the numbers of integers that
    a layer holds, such as the labels of a batch, and what calls a layer twice."""

    op: Any
    inputs: tuple[Any, ...]
    without: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    held: frozenset[int] = frozenset()
    again: Callable[..., tuple[Any, Any, int]] | None = None


def usual(op: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Form:
    """Return the object in the usual form, or the object itself if it already has that
    form or has an unknown one.

    A copy of a layer runs once, on copies of the inputs, to find its gradients. An
    error that it raises is left to the check itself.
    """
    if "torch" in sys.modules:
        from backpass.verify import torch_forms

        if torch_forms.is_custom_op(op):
            more = torch_forms.with_options(op, len(inputs), options)
            function = torch_forms.function_of(op, inputs)
            lists = map(torch_forms.is_list, inputs)
            each = [[*x] if of else [x] for x, of in zip(inputs, lists, strict=True)]
            return Form(function, (*itertools.chain(*each), *more), options={})
        if is_function(op) and options:
            more = torch_forms.with_options(op, len(inputs), options)
            return Form(op, (*inputs, *more), options={})
        if torch_forms.is_module(op) and (found := torch_forms.of_module(op, inputs)):
            return Form(found, (*inputs, *torch_forms.trained(op)))
    forward: Any = getattr(op, "forward", None)
    backward: Any = getattr(op, "backward", None)
    if isinstance(op, ModuleType | type) or not (
        callable(forward) and callable(backward)
    ):
        return Form(op, tuple(inputs))
    taken, others = _positional(backward)
    if len(taken) == len(inputs) and _takes_the_same(backward, forward):
        return Form(_of_loss(op), tuple(inputs))
    if len(taken) == 1 and _is_saved(taken[0]) and not _keeps_state(backward):
        return Form(_of_saved_loss(op), tuple(inputs))
    if len(taken) == 1 and not any(map(_is_saved, others or [])):
        return _of_layer(op, inputs, options, 1)
    if not taken and others is not None and len(others) < 2:
        return _of_layer(op, inputs, options, len(others))  # a loss
    if len(taken) > 1 and _keeps_state(backward) and _are_cotangents(taken, forward):
        return _of_layer(op, inputs, options, len(taken))
    if len(taken) == 2 and _is_saved(taken[0]):
        exchanged = _like(op, forward, lambda dy, saved: backward(saved, dy))
        return Form(exchanged, tuple(inputs))
    if len(taken) == 2 and len(inputs) == 1 and _names_y_or_x(taken[1], forward):
        return _with_numbers(Form(_alone(op, taken[1]), tuple(inputs)), options)
    if len(taken) > 2:
        apart = _apart(forward, backward, max(1, _cotangents(taken)), len(taken))
        return Form(_like(op, *apart), tuple(inputs))
    return _with_numbers(Form(op, tuple(inputs)), options)


def _takes_the_same(backward: Any, forward: Any) -> bool:
    """Whether the functions take parameters of the same names, as a loss and its
    gradient do: ``mse(p, t)`` and ``mse_grad(p, t)``."""
    own, others = _positional(backward), _positional(forward)
    return others[1] is not None and own[0] == others[0] and not _keeps_state(backward)


def _of_loss(op: Any) -> Any:
    """Return a loss and its gradient, which takes the same inputs and no cotangent, as
    an object in the usual form."""

    def forward(*inputs: Any, **options: Any) -> tuple[Any, Any]:
        y = op.forward(*inputs, **options)
        if not (isinstance(y, float | np.floating) or (is_array(y) and not y.ndim)):
            got = f"shape {list(y.shape)}" if is_array(y) else type(y).__name__
            raise Malformed(
                "forward: expected a loss of one element, because backward takes the "
                f"same inputs and no cotangent; got {got}"
            )
        return y, inputs

    def backward(dy: Any, inputs: Any, **options: Any) -> Any:
        gradients = flat(op.backward(*inputs, **options))
        return tuple(g if g is None else dy * g for g in gradients)

    forward.__signature__ = inspect.signature(op.forward)  # type: ignore[attr-defined]
    backward.__wrapped__ = op.backward  # type: ignore[attr-defined]
    return _like(op, forward, backward)


def _with_numbers(form: Form, options: Mapping[str, Any]) -> Form:
    """Return the form with an array of no axes in place of each Python float for which
    backward returns a gradient."""
    floats = [at for at, value in enumerate(form.inputs) if type(value) is float]
    like = next(filter(is_floating, form.inputs), None)
    if not floats or like is None:
        return form
    op = form.op
    try:
        y, saved = op.forward(*copy.deepcopy(form.inputs), **options)
        returned = op.backward(namespace(y).ones_like(y), saved)
    except Exception:  # the check reports it
        return form
    if not isinstance(returned, tuple | list) or len(returned) != len(form.inputs):
        return form
    floats = [at for at in floats if returned[at] is not None]
    if not floats:
        return form

    def backward(dy: Any, saved: Any) -> Any:
        gradients = [*op.backward(dy, saved)]
        for at in floats:
            if type(gradients[at]) is float:
                gradients[at] = to_kind_of(like, np.array(gradients[at]))
        return tuple(gradients)

    inputs = (
        to_kind_of(like, np.array(value)) if at in floats else value
        for at, value in enumerate(form.inputs)
    )
    return Form(_like(op, op.forward, backward), tuple(inputs))


def _of_layer(
    op: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> Form:
    if not inputs and not _keeps_state(op.backward):
        return Form(op, ())
    if not inputs:
        raise TypeError(
            f"inputs: expected the inputs of {called(op)}'s forward, because the shapes "
            "of its parameters are known only to the layer; got none"
        )
    layer = functions_of(op, inputs, options, cotangents)
    found = _like(op, layer.forward, layer.backward, SHAPES=layer.shapes)
    every = (*inputs, *layer.parameters)
    return Form(found, every, layer.without, held=_held(op), again=layer.again)


def _held(layer: Any) -> frozenset[int]:
    """Return how many integers each array of them has that a layer holds."""
    arrays = filter(is_array, getattr(layer, "__dict__", {}).values())
    return frozenset(
        len(value)
        for value in arrays
        if value.ndim and namespace(value).isdtype(value.dtype, "integral")
    )


def counts_of(op: Any) -> dict[str, int]:
    """Return the integers that a layer holds, or that a backward takes from where it is
    defined, such as the number of rows for which it is made."""
    held = dict(vars(op)) if hasattr(op, "__dict__") else {}
    held = {} if isinstance(op, ModuleType | type | SimpleNamespace) else held
    function = getattr(op, "backward", None)
    with contextlib.suppress(TypeError, ValueError):  # a builtin
        known = inspect.getclosurevars(function)  # type: ignore[arg-type]
        held |= {**known.globals, **known.nonlocals}
    return {name: value for name, value in held.items() if type(value) is int}


def _positional(function: Any) -> tuple[list[str], list[str] | None]:
    """Return the names of the positional parameters without a default, and of those
    with one. The second is None for ``*args`` or without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [], None
    positional = [p for p in parameters if p.kind in kinds]
    needed = [p.name for p in positional if p.default is p.empty]
    return needed, [p.name for p in positional if p.default is not p.empty]


def _keeps_state(backward: Any) -> bool:
    """Whether a backward is the method of an object with attributes of its own, or
    whose forward writes some."""
    owner = getattr(backward, "__self__", None)
    if owner is None or isinstance(owner, ModuleType | type):
        return False
    code = getattr(getattr(owner, "forward", None), "__code__", None)
    writes = code and any(
        of.opname == "STORE_ATTR" for of in dis.get_instructions(code)
    )
    return bool(writes or getattr(owner, "__dict__", {}))


def _like(op: Any, forward: Callable, backward: Callable, **others: Any) -> Any:
    """Return an object with the name and the declarations of ``op``, and with these
    functions."""
    names = (name for name in dir(op) if name.isupper() and len(name) > 1)
    facts = {name: getattr(op, name) for name in names}
    name = getattr(op, "__name__", type(op).__name__)
    if isinstance(op, SimpleNamespace):
        name = "forward and backward"
    facts |= {fact: value for fact, value in others.items() if value}
    return SimpleNamespace(forward=forward, backward=backward, __name__=name, **facts)


def _is_saved(name: str) -> bool:
    return name.strip("_").lower() in SAVED


def _are_cotangents(names: Sequence[str], forward: Any) -> bool:
    """Whether the parameters of a backward are the cotangents of several outputs: each
    is named dh, dc_next, or grad_h, or after what forward returns."""
    usual = r"d_?[a-z]\w*|grad\w*|g_?\w\d?"
    named = (re.fullmatch(usual, name.strip("_"), re.IGNORECASE) for name in names)
    if all(named) and not any(name in OTHERS for name in names):
        return True
    outputs = returned_names(forward, len(names))
    return len(outputs) == len(names) and all(map(names_gradient, names, outputs))


def _cotangents(names: Sequence[str]) -> int:
    """Return how many of the first parameters of a backward are cotangents, by their
    names. The last parameter does not count as one."""
    like = [
        re.match(r"d.|g(?![a-fh-z])|grad|ct|bar", name.strip("_")) for name in names
    ]
    return next(
        (at for at, found in enumerate(like[:-1]) if not (found or at == 0)),
        len(names) - 1,
    )


def _of_saved_loss(op: Any) -> Any:
    """Return a loss whose backward takes what forward saved and no cotangent, as an
    object in the usual form."""

    def backward(dy: Any, saved: Any, **options: Any) -> Any:
        returned = op.backward(saved, **options)
        if isinstance(returned, Mapping):
            return {name: dy * g for name, g in returned.items()}
        return tuple(g if g is None else dy * g for g in flat(returned))

    backward.__wrapped__ = op.backward  # type: ignore[attr-defined]
    return _like(op, op.forward, backward)


def _names_y_or_x(name: str, forward: Callable) -> bool:
    """Whether a backward takes forward's output, or its only input, by this name."""
    return name in OUTPUTS or [name] == _positional(forward)[0]


def _alone(op: Any, name: str) -> Any:
    """Return an object in the usual form if forward returns y alone and its backward
    takes dy and ``name``, which is y or x."""

    def forward(x: Any, **options: Any) -> Any:
        returned = op.forward(x, **options)
        if not is_array(returned):
            return returned  # with what it saves
        return returned, returned if name in OUTPUTS else x

    forward.__signature__ = inspect.signature(op.forward)  # type: ignore[attr-defined]
    forward.__wrapped__ = op.forward  # type: ignore[attr-defined]
    return _like(op, forward, op.backward)


def _apart(
    forward: Callable, backward: Callable, outputs: int, count: int
) -> tuple[Callable, Callable]:
    """Return a forward that returns all outputs together and all saved objects in a
    tuple, and the backward that takes the two.

    The given backward takes ``count`` arguments: first the cotangents of the outputs,
    then the saved objects.
    """
    saves = count - outputs

    def together(*inputs: Any, **options: Any) -> tuple[Any, Any]:
        returned = forward(*inputs, **options)
        if is_array(returned) and outputs == 1 and saves == len(inputs):
            returned = (returned, *inputs)  # backward takes the inputs again
        parts = len(returned) if isinstance(returned, tuple) else 0
        if parts == 2 and outputs == 1 and isinstance(returned[1], tuple):
            returned = (returned[0], *returned[1])
        if not isinstance(returned, tuple) or len(returned) != count:
            objects = "the saved object" if saves == 1 else f"{saves} saved objects"
            of = "1 output" if outputs == 1 else f"{outputs} outputs"
            kind = type(returned).__name__
            raise Malformed(
                f"forward: expected {of} and {objects}, because backward takes {count} "
                f"arguments; got {f'{kind} of {parts}' if parts else kind}"
            )
        y = returned[0] if outputs == 1 else returned[:outputs]
        return y, returned[outputs:]

    def apart(dy: Any, saved: Any, **options: Any) -> Any:
        return backward(*(dy if outputs > 1 else [dy]), *saved, **options)

    together.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    together.__wrapped__ = forward  # type: ignore[attr-defined]
    apart.__wrapped__ = backward  # type: ignore[attr-defined]
    return together, apart
