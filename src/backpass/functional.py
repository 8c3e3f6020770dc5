"""The operations as functions of torch tensors that autograd differentiates, for a
model of your own.

    from backpass import functional as B

    y = B.layer_norm(x, w, b, eps=1e-5)

Each operation has one function, with the operation's name and its arguments except
``wanted``. On a CUDA device it runs the operation's Triton kernel if there is one; so
it does on the CPU if Triton's interpreter was chosen. Otherwise it runs the operation
of ``backpass.ops``. The backward is the hand-written one in every case. Each function
is an operator of ``torch.library``: ``torch.compile`` traces it without a graph break,
and it passes ``torch.library.opcheck``.

- Only inputs that require a gradient get one; constants (RoPE's tables) and integers
  never do. An operation that accepts ``wanted`` neither computes the other gradients
  nor saves what only they need. A kernel computes all of its gradients.
- A second derivative, a forward-mode derivative and ``vmap`` raise RuntimeError.
- An argument whose gradient would be missing or wrong raises TypeError: a tensor passed
  as an option, a constant that requires a gradient, a complex tensor.
- All other errors are those of the operation.
- Under ``torch.autocast``, matrix products run in autocast's dtype, softmax, the norms
  and the losses in float32, and all other operations in the widest dtype of their
  inputs. These are PyTorch's rules on CUDA; here they hold on every device. Nothing is
  cast if an input is float64. ``linear_cross_entropy`` multiplies in autocast's dtype
  and returns its loss in float32.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from backpass import kernels, ops
from backpass import torch_internals as internals
from backpass.shapes import Shapes, parse
from backpass.stems import nearest

Tensor = torch.Tensor
_SCHEMA_TYPES = {float: "float", int: "int", bool: "bool", str: "str"}


def _function(stem: str) -> Callable[..., Tensor]:
    """Return the function of one operation, built only from what its module
    declares."""
    op = ops.load(stem)
    shapes = parse(op.SHAPES)
    operator = _operator(stem, op, shapes)
    signature = _signature(op)
    arrays = {spec.name: spec.optional for spec in shapes.inputs}
    constants, rule = getattr(op, "CONSTANTS", ()), op.AUTOCAST
    differentiable, takes_wanted = _differentiable(op, shapes), _takes_wanted(op)
    hints = {
        name: inspect.formatannotation(p.annotation)
        for name, p in signature.parameters.items()
    }

    def function(*args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{stem}: {error}; expected ({', '.join(signature.parameters)})"
            ) from None
        given.apply_defaults()
        values = given.arguments
        for name, value in values.items():
            if name in arrays:
                _check_array(stem, name, value, arrays[name], name in constants)
            elif isinstance(value, Tensor):
                raise TypeError(
                    _OPTION.format(
                        stem=stem,
                        name=name,
                        hint=hints[name],
                        came=type(value).__name__,
                    )
                )
        _reject_transforms(stem, values)
        device = values[shapes.inputs[0].name].device.type
        if device in _AUTOCASTING and torch.is_autocast_enabled(device):
            values = _autocast(rule, device, values)
        if takes_wanted:
            values["wanted"] = [_requires_grad(values[name]) for name in differentiable]
        return operator(*values.values())[0]

    function.__name__ = function.__qualname__ = stem
    function.__module__ = __name__
    function.__doc__ = (
        f"{inspect.getdoc(op.forward)}\n\nThe operation is ``backpass.ops.{stem}``."
    )
    function.__signature__ = signature  # type: ignore[attr-defined] # inspect reads it
    return function


# Types of devices. Asked here, since PyTorch 2.11 cannot trace the question.
_AUTOCASTING = frozenset(
    filter(
        torch.amp.is_autocast_available, ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")
    )
)

_OPTION = (
    "{name}: expected {hint}; got {came}. An option gets no gradient: pass "
    "{name}.item(), or multiply by a learned number outside {stem}"
)


def _check_array(
    stem: str, name: str, value: object, optional: bool, constant: bool
) -> None:
    """Raise TypeError for a value that is not a tensor, or for a tensor whose gradient
    would be wrong or missing."""
    if not isinstance(value, Tensor):
        if not (optional and value is None):
            raise TypeError(
                f"{name}: expected a torch tensor; got {type(value).__name__}"
            )
    elif value.is_complex():
        raise TypeError(
            f"{name}: expected real numbers; got dtype {value.dtype}. The gradient of "
            f"a complex number needs conjugates, which {stem}'s backward does not compute"
        )
    elif constant and value.requires_grad:
        raise TypeError(
            f"{name}: expected a tensor that does not require a gradient; got one that "
            f"does. {stem} computes no gradient for {name}: pass {name}.detach()"
        )


def _signature(op: ModuleType) -> inspect.Signature:
    """Return the signature of the operation's forward, with tensors for arrays and
    without ``wanted``."""
    hints = typing.get_type_hints(op.forward)
    arrays = {spec.name: spec.optional for spec in parse(op.SHAPES).inputs}
    parameters = [
        p.replace(
            annotation=(Tensor | None if arrays[p.name] else Tensor)
            if p.name in arrays
            else hints[p.name]
        )
        for p in inspect.signature(op.forward).parameters.values()
        if p.name != "wanted"
    ]
    return inspect.Signature(parameters, return_annotation=Tensor)


_REJECTED = (
    "backpass.functional.{stem}: expected one derivative, in reverse mode; got "
    "{what}. No other derivative is implemented"
)


def _reject_transforms(stem: str, values: dict[str, Any]) -> None:
    """Reject calls that would otherwise fail obscurely or return wrong results
    silently: under torch.func's transforms, or with forward-mode tangents."""
    if torch.compiler.is_compiling():
        return
    if internals.transformed():
        raise RuntimeError(
            _REJECTED.format(
                stem=stem, what="a transform of torch.func, such as vmap, grad or jvp"
            )
        )
    if internals.dual_level() and any(
        isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None
        for value in values.values()
    ):
        raise RuntimeError(_REJECTED.format(stem=stem, what="a forward-mode tangent"))


# Operators of torch.library. An operator returns tensors, and none of them may be, or
# share memory with, an input or another output. What forward saves breaks these rules:
# softmax saves its y, a linear layer its x and w, and others also a size or the name of
# a dtype. So forward's operator returns
# - y, the output;
# - own, the saved arrays that are neither an input nor y;
# - sources, which gives the position of each saved array in [*inputs, y, *own]. The
#   positions are the lengths of an empty tensor's axes, which can be read without its
#   values, even while torch.compile traces;
# - facts, on the CPU: the number of the structure that was saved, then the numbers in
#   it. Some depend on data, such as the number of counted targets.
# Backward's operator also gets what it does not compute with: the shapes of all inputs,
# one after the other in ``sizes``, and the options. They say what gradients look like
# where there are no values, and what the backward costs.

NOT_GIVEN = -1  # in ``ranks``, an optional input that was not given


class _Place(NamedTuple):
    """The place of a leaf of Saved: an array, or a number of type ``kind``."""

    kind: type


class _Structure(NamedTuple):
    """A Saved without its arrays and numbers, and the module that wrote it, whose
    backward will read it."""

    module: ModuleType
    saved: Any


_numbers = itertools.count()
_number_of: dict[_Structure, int] = {}
_structures: dict[int, _Structure] = {}


def _operator(stem: str, op: ModuleType, shapes: Shapes) -> Callable[..., tuple]:
    """Register the operators backpass::<stem> and backpass::<stem>_backward, and return
    the first."""
    count = len(shapes.inputs)
    hints = typing.get_type_hints(op.forward)
    options = list(inspect.signature(op.forward).parameters)[count:]
    arguments = [
        f"Tensor{'?' if spec.optional else ''} {spec.name}" for spec in shapes.inputs
    ]
    passed = [at for at, name in enumerate(options) if name != "wanted"]
    declared = [f"{_schema_type(name, hints[name])} {name}" for name in options]
    arguments, of_options = arguments + declared, [declared[at] for at in passed]
    names = _differentiable(op, shapes)
    differentiable = [at for at, spec in enumerate(shapes.inputs) if spec.name in names]

    def run(module, inputs, values):
        chosen = dict(zip(options, values, strict=True))
        chosen |= _wanted(module, names, chosen.pop("wanted", None))
        with _without_autocast(inputs[0].device.type):
            y, saved = module.forward(*inputs, **chosen)
        return saved, *_without_aliases(inputs, y, saved)

    def forward(*values):
        module = _module(stem, values[0].device.type)
        saved, *tensors = run(module, values[:count], values[count:])
        return *tensors, _facts(module, saved)

    def without_values(inputs, options):
        module, *chosen = options
        with internals.Unread():
            saved, *tensors = run(module, inputs, chosen)
        length = 1 + len(_numbers_in(saved))
        return *tensors, torch.empty(length, dtype=torch.float64, device="cpu")

    def fake_forward(*values):
        module = _module(stem, values[0].device.type)
        chosen = (tuple(v) if isinstance(v, list) else v for v in values[count:])
        return internals.on_stand_ins(without_values, values[:count], (module, *chosen))

    def setup_context(ctx, inputs, output):
        y, own, sources, facts = output
        pool = (*inputs[:count], y, *own)
        ctx.save_for_backward(facts, *(pool[at] for at in sources.shape[1:]))
        ctx.shapes = [None if x is None else x.shape for x in inputs[:count]]
        ctx.options = [inputs[count + at] for at in passed]
        ctx.dtypes = [
            (inputs[0] if inputs[at] is None else inputs[at]).dtype
            for at in differentiable
        ]
        ctx.set_materialize_grads(False)
        # facts stay differentiable, so that a second derivative always gets here and is
        # rejected, even if backward reads nothing that depends on the inputs.
        ctx.mark_non_differentiable(*own, sources)

    def autograd_backward(ctx, dy, *_):
        gradients = [None] * (count + len(options))
        wanted = [
            ctx.shapes[at] is not None and ctx.needs_input_grad[at]
            for at in differentiable
        ]
        if dy is not None and any(wanted):
            facts, *arrays = ctx.saved_tensors
            sizes = [length for shape in ctx.shapes for length in shape or ()]
            ranks = [NOT_GIVEN if shape is None else len(shape) for shape in ctx.shapes]
            of = (wanted, sizes, ranks, ctx.dtypes, *ctx.options)
            found = iter(operator_backward(dy, arrays, facts, *of))
            for at, want in zip(differentiable, wanted, strict=True):
                gradients[at] = next(found) if want else None
        return tuple(gradients)

    def backward(dy, arrays, facts, wanted, *_):
        module, saved = _filled(facts, arrays)
        with _without_autocast(dy.device.type):
            gradients = module.backward(dy, saved, **_wanted(module, names, wanted))
        gradients = gradients if type(gradients) is tuple else (gradients,)
        found = []
        for gradient, want in zip(gradients, wanted, strict=True):
            if want:
                found.append(_unaliased(gradient.contiguous(), (dy, *arrays, *found)))
        return found

    def fake_backward(dy, arrays, facts, wanted, sizes, ranks, dtypes, *_):
        shapes = unpacked(sizes, ranks)
        return [
            dy.new_empty(shapes[at], dtype=dtype)
            for at, dtype, want in zip(differentiable, dtypes, wanted, strict=True)
            if want
        ]

    def reject(ctx, *_):
        raise RuntimeError(
            _REJECTED.format(stem=stem, what="a derivative of its gradient")
        )

    def reject_vmap(*_):
        raise RuntimeError(_REJECTED.format(stem=stem, what="vmap"))

    operator = torch.library.custom_op(
        f"backpass::{stem}",
        forward,
        mutates_args=(),
        schema=f"({', '.join(arguments)}) -> (Tensor, Tensor[], Tensor, Tensor)",
    )
    operator.register_fake(fake_forward)
    operator.register_autograd(autograd_backward, setup_context=setup_context)
    operator_backward = torch.library.custom_op(
        f"backpass::{stem}_backward",
        backward,
        mutates_args=(),
        schema="(Tensor dy, Tensor[] saved, Tensor facts, bool[] wanted, "
        f"{', '.join(('SymInt[] sizes, int[] ranks, ScalarType[] dtypes', *of_options))}) "
        "-> Tensor[]",
    )
    operator_backward.register_fake(fake_backward)
    operator_backward.register_autograd(reject)
    operator_backward.register_vmap(reject_vmap)
    return operator


def unpacked(sizes: list[int], ranks: list[int]) -> list[tuple[int, ...] | None]:
    """Return the shapes of all inputs, which a backward's operator gets. The shape is
    None for an input that was not given."""
    lengths = iter(sizes)
    return [
        None if rank == NOT_GIVEN else (*itertools.islice(lengths, rank),)
        for rank in ranks
    ]


def _differentiable(op: ModuleType, shapes: Shapes) -> list[str]:
    """Return the names of the inputs that have a gradient."""
    constants = getattr(op, "CONSTANTS", ())
    return [s.name for s in shapes.inputs if s.floating and s.name not in constants]


def _requires_grad(value: Tensor | None) -> bool:
    return value is not None and value.requires_grad and torch.is_grad_enabled()


@functools.cache
def _takes_wanted(module: ModuleType) -> bool:
    return "wanted" in inspect.signature(module.forward).parameters


def _wanted(
    module: ModuleType, names: list[str], chosen: list[bool] | None
) -> dict[str, Any]:
    """Return the argument ``wanted`` if the module accepts it: the names that are
    chosen. Without a choice, nothing: the default is all."""
    if chosen is None or not _takes_wanted(module):
        return {}
    return {
        "wanted": [
            name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen
        ]
    }


def _schema_type(name: str, hint: object) -> str:
    """Return the schema's type for an option's type: ``float?`` for ``float | None``.
    ``wanted`` becomes ``bool[]?``, one bool for each gradient."""
    if name == "wanted":
        return "bool[]?"
    of = [part for part in typing.get_args(hint) or (hint,) if part is not type(None)]
    if len(of) != 1 or of[0] not in _SCHEMA_TYPES:
        known = ", ".join(kind.__name__ for kind in _SCHEMA_TYPES)
        raise TypeError(
            f"{name}: expected an option of type {known}, or one of these or None; "
            f"got {hint}"
        )
    return _SCHEMA_TYPES[of[0]] + ("?" if type(None) in typing.get_args(hint) else "")


def _module(stem: str, device: str) -> ModuleType:
    """Return the kernel's module if kernels of that stem run here, otherwise the
    operation's."""
    return _module_under(stem, device, os.environ.get("TRITON_INTERPRET"))


@functools.cache
def _module_under(stem: str, device: str, interpret: str | None) -> ModuleType:
    there = stem in kernels.STEMS and (
        device == "cuda" or (device == "cpu" and interpret)
    )
    if there and kernels.available() is None and kernels.device() == device:
        return kernels.load(stem)
    return ops.load(stem)


def _without_aliases(
    inputs: tuple[Tensor | None, ...], y: Tensor, saved: tuple
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return y, own and sources, as the note above describes them."""
    pool: list[Tensor | None] = [*inputs, y]
    own: list[Tensor] = []
    sources: list[int] = []
    for array in (leaf for leaf in _leaves(saved) if isinstance(leaf, Tensor)):
        at = next(
            (
                i
                for i, other in enumerate(pool)
                if other is not None and _same(array, other)
            ),
            len(pool),
        )
        if at == len(pool):
            own.append(_unaliased(array, pool))
            pool.append(own[-1])
        sources.append(at)
    return _unaliased(y, inputs), own, y.new_empty((0, *sources))


def _facts(module: ModuleType, saved: tuple) -> Tensor:
    """Return the number of the structure of ``saved``, followed by the numbers in
    ``saved``."""
    structure = _Structure(module, _emptied(saved))
    number = _number_of.setdefault(structure, next(_numbers))
    _structures[number] = structure
    return torch.tensor(
        [number, *map(float, _numbers_in(saved))], dtype=torch.float64, device="cpu"
    )


def _filled(facts: Tensor, arrays: list[Tensor]) -> tuple[ModuleType, tuple]:
    """Return the module that saved, and what it saved."""
    number, *others = facts.tolist()
    numbers = iter(others)
    module, emptied = _structures[int(number)]
    left = {
        Tensor: iter(arrays),
        int: map(_integer, numbers),
        float: numbers,
    }

    def fill(part):
        if isinstance(part, _Place):
            return next(left[part.kind])
        if isinstance(part, tuple):
            return _tuple_like(part, map(fill, part))
        return part

    return module, fill(emptied)


def _emptied(part: Any) -> Any:
    """Return ``part`` of a Saved with a place for each array and number."""
    if isinstance(part, tuple):
        return _tuple_like(part, map(_emptied, part))
    kind = _kind(part)
    return part if kind is None else _Place(kind)


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _leaves(inner)
    else:
        yield part


def _numbers_in(saved: tuple) -> list[float]:
    return [leaf for leaf in _leaves(saved) if _kind(leaf) in (int, float)]


def _tuple_like(like: tuple, parts: typing.Iterable[Any]) -> tuple:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _kind(leaf: Any) -> type | None:
    """Return the type of a leaf that is passed separately: an array, an integer or a
    float. Return None for a leaf that belongs to the structure."""
    if isinstance(leaf, Tensor):
        return Tensor
    if isinstance(leaf, int | torch.SymInt) and not isinstance(leaf, bool):
        return int
    return float if isinstance(leaf, float | torch.SymFloat) else None


def _integer(number: float) -> int | float:
    """Return the number as an integer, unless it is NaN: the count of no counted
    targets."""
    return int(number) if number == number else number


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both are the same elements in the same memory."""
    return a is b or (
        internals.share_memory(a, b)
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
    )


def _unaliased(x: Tensor, others: typing.Iterable[Tensor | None]) -> Tensor:
    """Return ``x``, or a copy if it shares memory with one of the others."""
    if any(other is not None and internals.share_memory(x, other) for other in others):
        return x.clone(memory_format=torch.contiguous_format)
    return x


# Autocast


def _autocast(rule: str, device: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with floating-point tensors in the dtype in which autocast runs
    the operation, and with its loss in float32 for an operation that has ``wide``. If
    one tensor is float64, which autocast leaves alone, return them unchanged."""
    floating = {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    dtype = functools.reduce(
        torch.promote_types, (value.dtype for value in floating.values())
    )
    if dtype == torch.float64:
        return values
    if rule == "matmul":
        dtype = torch.get_autocast_dtype(device)
    elif rule == "float32":
        dtype = torch.float32
    wide = {"wide": True} if "wide" in values else {}
    return values | wide | {name: value.to(dtype) for name, value in floating.items()}


def _without_autocast(device: str) -> contextlib.AbstractContextManager:
    """Return a context in which an operation computes in the dtypes of its inputs."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


globals().update({stem: _function(stem) for stem in ops.STEMS})


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"backpass.functional has no {name!r}; {nearest(name, ops.STEMS)}"
    )
