"""The operations as functions of torch tensors that autograd differentiates, for a
model of your own.

    from backpass import functional as B

    y = B.layer_norm(x, w, b, eps=1e-5)

Each operation has one function, with the operation's name and its arguments except
``wanted``. On a CUDA device it runs the operation's Triton kernel if there is one; so
it does on the CPU if Triton's interpreter was chosen. Otherwise it runs the operation
of ``backpass.ops``. The backward is the hand-written one in every case.

Each operation is also an operator of ``torch.library``, ``backpass::layer_norm``, which
passes ``torch.library.opcheck``. The function calls it wherever something has to see
it: ``torch.compile``, which traces it without a graph break and leaves lengths open,
``torch.export``, a counter of FLOPs, or any other mode. Otherwise the function computes
at once, which takes less time than a call of an operator.

- Only inputs that require a gradient get one; constants (RoPE's tables) and integers
  never do. An operation that accepts ``wanted`` neither computes the other gradients
  nor saves what only they need. A kernel computes all of its gradients.
- A second derivative, a forward-mode derivative and ``vmap`` raise RuntimeError.
- An argument whose gradient would be missing or wrong raises TypeError: a tensor passed
  as an option, a constant that requires a gradient, a complex tensor. So does a tensor
  that is nested, sparse, a DTensor, or of a dtype such as float8, and an option whose
  type is not that of its hint.
- Dropout without a ``seed`` draws one from PyTorch's default generator of the CPU. So
  ``torch.manual_seed`` repeats it, two calls differ, also in a compiled graph, and a
  checkpoint drops the same elements again.
- All other errors are those of the operation.
- Under ``torch.autocast``, matrix products run in autocast's dtype, softmax, the norms
  and the losses in float32, and all other operations in the widest dtype of their
  inputs. These are PyTorch's rules on CUDA; here they hold on every device. Nothing is
  cast if an input is float64. ``linear_cross_entropy`` multiplies in autocast's dtype
  and returns its loss in float32.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import typing
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
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
    operator, immediately = _operator(stem, op, shapes)
    signature = _signature(op)
    parameters = signature.parameters
    defaults = {name: p.default for name, p in parameters.items()}
    names, required = [*parameters], inspect.Parameter.empty
    arrays = [(spec.name, spec.optional) for spec in shapes.inputs]
    constants, rule = getattr(op, "CONSTANTS", ()), op.AUTOCAST
    differentiable, takes_wanted = _differentiable(op, shapes), _takes_wanted(op)
    options = [_Option(stem, p) for p in [*parameters.values()][len(arrays) :]]
    seeded, count = "seed" in names, len(arrays)

    def arguments(args, kwargs):
        """Return the values of all parameters in order, by name."""
        values = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        if (
            len(args) <= count
            and len(values) == len(names)
            and not any(name in kwargs for name in names[: len(args)])
            and not any(value is required for value in values.values())
        ):
            return values
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{stem}: {error}; expected ({', '.join(names)})") from None
        given.apply_defaults()
        return given.arguments

    def function(*args, **kwargs):
        values = arguments(args, kwargs)
        for name, optional in arrays:
            _check_array(stem, name, values[name], optional, name in constants)
        for option in options:
            value = values[option.name]
            if type(value) not in option.kinds or type(value) is int:
                values[option.name] = option.checked(value)
        _reject_transforms(stem, values)
        random = None
        if seeded and values["seed"] is None:
            random, values["seed"] = _random_seed(values), 0
        device = values[names[0]].device.type
        if device in _AUTOCASTING and torch.is_autocast_enabled(device):
            values = _autocast(rule, device, values)
        wanted = [_requires_grad(values[name]) for name in differentiable]
        if _is_plain(values[name] for name, _ in arrays):
            return immediately(values, wanted, random)
        if torch.jit.is_tracing():  # it cannot record a list of bools
            wanted = None
        extra = ([wanted] if takes_wanted else []) + ([random] if seeded else [])
        return operator(*values.values(), *extra)[0]

    function.__name__ = function.__qualname__ = stem
    function.__module__ = __name__
    function.__doc__ = "\n\n".join(
        [
            inspect.getdoc(op.forward) or "",
            *([_OF_SEEDS] if seeded else []),
            f"The operation is ``backpass.ops.{stem}``.",
        ]
    )
    function.__signature__ = signature  # type: ignore[attr-defined] # inspect reads it
    return function


# Types of devices. Asked here, since PyTorch 2.11 cannot trace the question.
_AUTOCASTING = frozenset(
    filter(
        torch.amp.is_autocast_available, ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")
    )
)
_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})
_OF_SEEDS = (
    "Without a ``seed``, each call draws one from PyTorch's default generator of the "
    "CPU,\nwhich ``torch.manual_seed`` sets, if anything can be dropped."
)


def _is_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether nothing has to see an operator: neither a compiler nor a mode, nor a
    class of tensors with rules of its own, nor a tensor without values."""
    return not (torch.compiler.is_compiling() or internals.is_watched()) and all(
        x is None or (type(x) in _PLAIN_TYPES and not x.is_meta) for x in tensors
    )


def _random_seed(values: dict[str, Any]) -> Tensor | None:
    """Return a seed of PyTorch's choice, as a tensor, since torch.compile could not
    leave a number open. None if nothing can be dropped."""
    p = values["dropout_p"] if "dropout_p" in values else values["p"]
    if not p or not values.get("training", True):
        return None
    return torch.randint(2**63 - 1, (), device="cpu")


def _check_array(
    stem: str, name: str, value: object, optional: bool, constant: bool
) -> None:
    """Raise TypeError for a value that is not a tensor with numbers that the operation
    computes with, or for a tensor whose gradient would be wrong or missing."""
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
    elif value.dtype not in _DTYPES:
        raise TypeError(
            f"{name}: expected floating-point numbers of 16, 32, or 64 bits, or "
            f"integers of up to 64 bits with a sign; got dtype {value.dtype}"
        )
    elif value.layout is not torch.strided or value.is_nested:
        came = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        raise TypeError(f"{name}: expected a dense tensor; got {came}")
    elif type(value) not in _PLAIN_TYPES and hasattr(value, "to_local"):
        raise TypeError(
            f"{name}: expected a local tensor; got {type(value).__name__}. No operation "
            f"has a rule for how its results are placed: pass {name}.to_local()"
        )
    elif constant and value.requires_grad:
        raise TypeError(
            f"{name}: expected a tensor that does not require a gradient; got one that "
            f"does. {stem} computes no gradient for {name}: pass {name}.detach()"
        )


class _Option:
    """An option of an operation, with the types that its hint allows."""

    def __init__(self, stem: str, parameter: inspect.Parameter) -> None:
        self.stem, self.name = stem, parameter.name
        self.hint = inspect.formatannotation(parameter.annotation)
        self.kinds = {*(typing.get_args(parameter.annotation) or ())} or {
            parameter.annotation
        }

    def checked(self, value: Any) -> Any:
        """Return the value as a number of Python if it is one of a library.

        Raises TypeError for a type that the hint does not allow, and ValueError for an
        integer that no operator can receive.
        """
        if isinstance(value, Tensor):
            raise TypeError(
                f"{self.name}: expected {self.hint}; got {type(value).__name__}. An "
                f"option gets no gradient: pass {self.name}.item(), or multiply by a "
                f"learned number outside {self.stem}"
            )
        symbolic = isinstance(value, torch.SymInt | torch.SymFloat)
        if type(value) not in self.kinds and not symbolic:
            numbers = {int: Integral, float: Real}
            fits = [k for k in self.kinds if isinstance(value, numbers.get(k, ()))]
            if isinstance(value, bool) or not fits:
                raise TypeError(
                    f"{self.name}: expected {self.hint}; got {type(value).__name__}"
                )
            value = fits[0](value)
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ValueError(
                f"{self.name}: expected an integer of at most 64 bits; got {value}"
            )
        return value


def _signature(op: ModuleType) -> inspect.Signature:
    """Return the signature of the operation's forward, with tensors for arrays, without
    ``wanted``, and with a ``seed`` that need not be given."""
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
    parameters = [
        p.replace(default=None, annotation=p.annotation | None)
        if p.name == "seed"
        else p
        for p in parameters
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
#
# Where nothing has to see an operator, an autograd.Function computes the same. It saves
# what forward saves as it is. Its second output, ``link``, has no elements. It connects
# whatever is computed from the gradients to the inputs, so that a second derivative
# always gets to ``reject``, even if backward reads nothing that depends on the inputs.

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


def _operator(
    stem: str, op: ModuleType, shapes: Shapes
) -> tuple[Callable[..., tuple], Callable[..., Tensor]]:
    """Register the operators backpass::<stem> and backpass::<stem>_backward. Return the
    first, and a function that computes the same without them."""
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

    seeded = ["Tensor? random"] if "seed" in options else []
    total = count + len(options) + len(seeded)

    def run(module, inputs, chosen, random=None):
        chosen = dict(chosen)
        chosen |= _wanted(module, names, chosen.pop("wanted", None))
        if random is not None:
            chosen["seed"] = int(random)
        device = inputs[0].device.type
        if device in _AUTOCASTING and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return module.forward(*inputs, **chosen)
        return module.forward(*inputs, **chosen)

    def forward(*values):
        inputs, chosen = values[:count], zip(options, values[count:], strict=False)
        module = _module(stem, inputs[0].device.type)
        y, saved = run(module, inputs, chosen, values[-1] if seeded else None)
        return *_without_aliases(inputs, y, saved), _facts(module, saved)

    def without_values(inputs, options):
        module, *chosen = options
        with internals.Unread():
            y, saved = run(module, inputs, chosen)
            tensors = _without_aliases(inputs, y, saved)
        length = 1 + len(_numbers_in(saved))
        return *tensors, torch.empty(length, dtype=torch.float64, device="cpu")

    def fake_forward(*values):
        inputs, chosen = values[:count], zip(options, values[count:], strict=False)
        module = _module(stem, inputs[0].device.type)
        hashable = ((k, tuple(v) if isinstance(v, list) else v) for k, v in chosen)
        return internals.on_stand_ins(without_values, inputs, (module, *hashable))

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
        gradients = [None] * total
        wanted = [
            ctx.shapes[at] is not None and ctx.needs_input_grad[at]
            for at in differentiable
        ]
        if dy is not None and any(wanted):
            facts, *arrays = ctx.saved_tensors
            of = (wanted, *packed(ctx.shapes), ctx.dtypes, *ctx.options)
            found = iter(operator_backward(dy, arrays, facts, *of))
            for at, want in zip(differentiable, wanted, strict=True):
                gradients[at] = next(found) if want else None
        return tuple(gradients)

    def differentiated(module, dy, saved, wanted):
        """Return the gradients that are wanted."""
        chosen, device = _wanted(module, names, wanted), dy.device.type
        if device in _AUTOCASTING and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                gradients = module.backward(dy, saved, **chosen)
        else:
            gradients = module.backward(dy, saved, **chosen)
        gradients = gradients if type(gradients) is tuple else (gradients,)
        return [g for g, want in zip(gradients, wanted, strict=True) if want]

    def backward(dy, arrays, facts, wanted, *_):
        module, saved = _read(facts, arrays)
        found = []
        for gradient in differentiated(module, dy, saved, wanted):
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
        schema=f"({', '.join(arguments + seeded)}) "
        "-> (Tensor, Tensor[], Tensor, Tensor)",
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

    def immediate_forward(ctx, module, chosen, random, *inputs):
        y, saved = run(module, inputs, chosen, random)
        ctx.module, ctx.saved = module, _emptied(saved, (Tensor,))
        ctx.inputs = [None if x is None else (x.shape, x.dtype) for x in inputs]
        ctx.options = [value for name, value in chosen if name != "wanted"]
        ctx.set_materialize_grads(False)
        y = _unaliased(y, inputs)
        link = torch.empty(0, dtype=torch.float64, device="cpu")
        ctx.save_for_backward(link, *_tensors_in(saved))
        return y.detach() if internals.is_view(y) else y, link

    def immediate_backward(ctx, dy, _):
        gradients = [None] * (3 + count)
        wanted = [
            ctx.inputs[at] is not None and ctx.needs_input_grad[3 + at]
            for at in differentiable
        ]
        if dy is None or not any(wanted):
            return tuple(gradients)
        if internals.is_batched(dy):
            reject_vmap()
        link, *arrays = ctx.saved_tensors
        saved = _filled(ctx.saved, {Tensor: iter(arrays)})
        if torch.is_grad_enabled() or not _is_plain((dy, *arrays)):
            facts = torch.cat([_facts(ctx.module, saved), link])
            shapes = [None if x is None else x[0] for x in ctx.inputs]
            dtypes = [(ctx.inputs[at] or ctx.inputs[0])[1] for at in differentiable]
            of = (wanted, *packed(shapes), dtypes, *ctx.options)
            found = operator_backward(dy, arrays, facts, *of)
        else:
            found = []
            for g in differentiated(ctx.module, dy, saved, wanted):
                found.append(g if g is dy else _unaliased(g, (dy, *arrays, *found)))
        left = iter(found)
        for at, want in zip(differentiable, wanted, strict=True):
            gradients[3 + at] = next(left) if want else None
        return tuple(gradients)

    immediate = type(
        stem,
        (torch.autograd.Function,),
        {
            "forward": staticmethod(immediate_forward),
            "backward": staticmethod(immediate_backward),
        },
    )

    def immediately(values, wanted, random):
        chosen = [*values.items()]
        inputs, chosen = [value for _, value in chosen[:count]], chosen[count:]
        module = _module(stem, inputs[0].device.type)
        if "wanted" in options:
            chosen.append(("wanted", wanted))
        if any(wanted):
            return immediate.apply(module, chosen, random, *inputs)[0]
        return _unaliased(run(module, inputs, chosen, random)[0], inputs)

    return operator, immediately


def packed(shapes: list[tuple[int, ...] | None]) -> tuple[list[int], list[int]]:
    """Return all lengths, one shape after the other, and the ranks of the shapes."""
    sizes = [length for shape in shapes for length in shape or ()]
    return sizes, [NOT_GIVEN if shape is None else len(shape) for shape in shapes]


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
    for array in _tensors_in(saved):
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


def _read(facts: Tensor, arrays: list[Tensor]) -> tuple[ModuleType, tuple]:
    """Return the module that saved, and what it saved."""
    number, *others = facts.tolist()
    numbers = iter(others)
    module, emptied = _structures[int(number)]
    left = {Tensor: iter(arrays), int: map(_integer, numbers), float: numbers}
    return module, _filled(emptied, left)


def _filled(part: Any, left: dict[type, Iterator]) -> Any:
    """Return ``part`` of an emptied Saved with the next of ``left`` at each place."""
    if isinstance(part, _Place):
        return next(left[part.kind])
    if isinstance(part, tuple):
        return _tuple_like(part, [_filled(inner, left) for inner in part])
    return part


def _emptied(part: Any, kinds: tuple[type, ...] = (Tensor, int, float)) -> Any:
    """Return ``part`` of a Saved with a place for each array and number, or for those
    of certain kinds."""
    if isinstance(part, tuple):
        return _tuple_like(part, [_emptied(inner, kinds) for inner in part])
    kind = _kind(part)
    return _Place(kind) if kind in kinds else part


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _leaves(inner)
    else:
        yield part


def _tensors_in(saved: tuple) -> list[Tensor]:
    return [leaf for leaf in _leaves(saved) if isinstance(leaf, Tensor)]


def _numbers_in(saved: tuple) -> list[float]:
    return [leaf for leaf in _leaves(saved) if _kind(leaf) in (int, float)]


def _tuple_like(like: tuple, parts: Iterable[Any]) -> tuple:
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


def _unaliased(x: Tensor, others: Iterable[Tensor | None]) -> Tensor:
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


globals().update({stem: _function(stem) for stem in ops.STEMS})


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"backpass.functional has no {name!r}; {nearest(name, ops.STEMS)}"
    )
