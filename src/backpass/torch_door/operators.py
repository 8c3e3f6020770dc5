"""Build operators of ``torch.library`` from the contract of an operation, and a
function that computes the same without them.

``backpass.functional`` has a function for each operation.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import os
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from backpass import kernels, ops
from backpass import torch_internals as internals
from backpass.contract.arrays import namespace, traced
from backpass.contract.shapes import Shapes

Tensor = torch.Tensor
_SCHEMA_TYPES = {float: "float", int: "int", bool: "bool", str: "str"}

REJECTED = (
    "backpass.functional.{stem}: expected one derivative, in reverse mode; got "
    "{what}. No other derivative is implemented"
)
# Types of devices. PyTorch 2.11 cannot trace this call, so it is made on import.
AUTOCASTING = frozenset(
    filter(
        torch.amp.is_autocast_available, ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")
    )
)
PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})
# These calls let ``namespace`` cache the two types. Otherwise torch.compile would trace
# its search through all libraries, which takes half of the compilation's time.
namespace(torch.empty(0))
namespace(torch.nn.Parameter(torch.empty(0)))


def is_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether nothing has to see an operator: no compiler, no mode, no class of tensors
    with its own rules, and no tensor without values."""
    return not (torch.compiler.is_compiling() or internals.is_watched()) and all(
        x is None or (type(x) in PLAIN_TYPES and not x.is_meta) for x in tensors
    )


# Operators of torch.library. An operator returns tensors, and none of them may be, or
# share memory with, an input or another output. What forward saves breaks these rules:
# softmax saves its y, a linear layer saves its x and w, and other operations also save
# a size or the name of a dtype. So forward's operator returns
# - y, the output;
# - own, the saved arrays that are neither an input nor y;
# - sources, which gives the position of each saved array in [*inputs, y, *own]. The
#   positions are the lengths of an empty tensor's axes, which can be read without its
#   values, even while torch.compile traces;
# - facts, on the CPU: the number of the structure that was saved, then the numbers in
#   it. Some depend on data, such as the number of counted targets.
# Backward's operator also receives arguments that it does not compute with: the shapes
# of all inputs, one after the other in ``sizes``, and the options. They determine the
# shapes of the gradients, if there are no values, and the cost of the backward.
#
# Where nothing has to see an operator, an autograd.Function computes the same. It also
# does so while torch.compile traces an operation of few lines, none of which reads a
# value. The compiler then fuses the lines, which an operator would hide. The function
# saves what forward saves, unchanged. Its second output, ``link``, has no elements. It
# connects whatever is computed from the gradients to the inputs, so that a second
# derivative always reaches ``reject``, even if backward reads nothing that depends on
# the inputs.

NOT_GIVEN = -1  # in ``ranks``, an optional input that was not given


class _Place(NamedTuple):
    """The place of a leaf of Saved: of an array, or of a number, of type ``kind``."""

    kind: type


class _Structure(NamedTuple):
    """A Saved without its arrays and numbers, and the module that wrote it, whose
    backward will read it."""

    module: ModuleType
    saved: Any


_numbers = itertools.count()
_number_of: dict[_Structure, int] = {}
_structures: dict[int, _Structure] = {}


def register(
    stem: str, op: ModuleType, shapes: Shapes
) -> tuple[Callable[..., tuple], Callable[..., Tensor], Callable[..., Tensor]]:
    """Register the operators backpass::<stem> and backpass::<stem>_backward. Return the
    first, a function that computes the same without them, and one that shows
    torch.compile the lines of the operation if they can be traced."""
    count = len(shapes.inputs)
    hints = typing.get_type_hints(op.forward)
    parameters = list(inspect.signature(op.forward).parameters)
    options = parameters[count:]
    arguments = [
        f"Tensor{'?' if spec.optional else ''} {spec.name}" for spec in shapes.inputs
    ]
    passed = [at for at, name in enumerate(options) if name != "wanted"]
    declared = [f"{_schema_type(name, hints[name])} {name}" for name in options]
    arguments, of_options = arguments + declared, [declared[at] for at in passed]
    names = differentiable_inputs(op, shapes)
    differentiable = [at for at, spec in enumerate(shapes.inputs) if spec.name in names]

    seeded = ["Tensor? random"] if "seed" in options else []

    def run(module, inputs, chosen, random=None):
        chosen = dict(chosen)
        chosen |= _wanted(module, names, chosen.pop("wanted", None))
        if random is not None:
            chosen["seed"] = int(random)
        device = inputs[0].device.type
        return _without_autocast(device, module.forward, *inputs, **chosen)

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

    def describe(ctx, inputs):
        """Record the shapes of the inputs and the dtypes of their gradients."""
        ctx.shapes = [None if x is None else x.shape for x in inputs[:count]]
        ctx.dtypes = [
            (inputs[0] if inputs[at] is None else inputs[at]).dtype
            for at in differentiable
        ]
        ctx.set_materialize_grads(False)

    def setup_context(ctx, inputs, output):
        y, own, sources, facts = output
        pool = (*inputs[:count], y, *own)
        ctx.save_for_backward(facts, *(pool[at] for at in sources.shape[1:]))
        ctx.options = [inputs[count + at] for at in passed]
        describe(ctx, inputs)
        # facts stay differentiable, so that a second derivative always reaches reject,
        # even if backward reads nothing that depends on the inputs.
        ctx.mark_non_differentiable(*own, sources)

    def backward_with(gradients_of, first, arguments):
        """Return the backward of an autograd.Function whose number of arguments is
        ``arguments``. ``first`` of these come before the inputs."""

        def autograd_backward(ctx, dy, *_):
            gradients = [None] * arguments
            wanted = [
                ctx.shapes[at] is not None and ctx.needs_input_grad[first + at]
                for at in differentiable
            ]
            if dy is None or not any(wanted):
                return tuple(gradients)
            if internals.is_batched(dy):
                reject_vmap()
            found = iter(gradients_of(ctx, dy, *ctx.saved_tensors, wanted=wanted))
            for at, want in zip(differentiable, wanted, strict=True):
                gradients[first + at] = next(found) if want else None
            return tuple(gradients)

        return autograd_backward

    def operator_gradients(ctx, dy, facts, *arrays, wanted):
        of = (wanted, *packed(ctx.shapes), ctx.dtypes, *ctx.options)
        return operator_backward(dy, list(arrays), facts, *of)

    def differentiated(module, dy, saved, wanted):
        """Return the gradients that are wanted."""
        chosen, device = _wanted(module, names, wanted), dy.device.type
        gradients = _without_autocast(device, module.backward, dy, saved, **chosen)
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
            REJECTED.format(stem=stem, what="a derivative of its gradient")
        )

    def reject_vmap(*_):
        raise RuntimeError(REJECTED.format(stem=stem, what="vmap"))

    operator = torch.library.custom_op(
        f"backpass::{stem}",
        forward,
        mutates_args=(),
        schema=f"({', '.join(arguments + seeded)}) "
        "-> (Tensor, Tensor[], Tensor, Tensor)",
    )
    operator.register_fake(fake_forward)
    operator.register_autograd(
        backward_with(operator_gradients, 0, count + len(options) + len(seeded)),
        setup_context=setup_context,
    )
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
        _number(module, saved)  # for the operator, if torch.compile traces the backward
        ctx.module, ctx.saved = module, _emptied(saved, (Tensor,))
        ctx.options = [value for name, value in chosen if name != "wanted"]
        describe(ctx, inputs)
        ctx.traced = internals.is_watched()
        y = _unaliased(y, inputs)
        link = torch.empty(0, dtype=torch.float64, device="cpu")
        ctx.save_for_backward(link, *_tensors_in(saved))
        return y.detach() if internals.is_view(y) else y, link

    def immediate_gradients(ctx, dy, link, *arrays, wanted):
        saved = _filled(ctx.saved, {Tensor: iter(arrays)})
        if ctx.traced and torch.is_grad_enabled():
            reject(ctx)
        needs_operator = torch.is_grad_enabled() or not is_plain((dy, *arrays))
        if needs_operator and not ctx.traced:
            facts = torch.cat([_facts(ctx.module, saved), link])
            return operator_gradients(ctx, dy, facts, *arrays, wanted=wanted)
        # The forward of a call that torch.compile traces runs under ``traced``, too.
        with traced() if ctx.traced else nullcontext():
            gradients = differentiated(ctx.module, dy, saved, wanted)
        found = []
        for g in gradients:
            found.append(g if g is dy else _unaliased(g, (dy, *arrays, *found)))
        return found

    immediate = type(
        stem,
        (torch.autograd.Function,),
        {
            "forward": staticmethod(immediate_forward),
            "backward": staticmethod(backward_with(immediate_gradients, 3, 3 + count)),
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

    def forward_and_backward(inputs, options):
        """Run all lines that a compiler would see."""
        module, *chosen = options
        y, saved = run(module, inputs, chosen)
        given = [inputs[at] is not None for at in differentiable]
        differentiated(module, torch.empty_like(y), saved, given)

    def lines(wanted, *values):
        reject_transforms(stem, values)
        inputs, chosen = values[:count], zip(options, values[count:], strict=False)
        module = _module(stem, inputs[0].device.type)
        chosen = [(name, value) for name, value in chosen if name != "wanted"]
        given = dict(zip(parameters, values, strict=False))
        with traced():
            if module is op and internals.is_traceable(
                forward_and_backward, inputs, (module, *chosen)
            ):
                return immediately(given, wanted, None)
        return operator(*values)[0]

    name_of_lines = f"backpass::{stem}_lines_{_version()}"
    torch.library.define(
        name_of_lines,
        f"(bool[] needed, {', '.join(arguments + seeded)}) -> Tensor",
        tags=torch.Tag.pt2_compliant_tag,
    )
    torch.library.impl(name_of_lines, "CompositeImplicitAutograd", lines)
    torch.library.register_vmap(name_of_lines, reject_vmap)
    named = getattr(torch.ops.backpass, name_of_lines.partition("::")[2])
    return operator, immediately, named.default


def reject_transforms(stem: str, values: Iterable[Any]) -> None:
    """Reject calls that would otherwise fail obscurely or return wrong results
    silently: under torch.func's transforms, or with forward-mode tangents."""
    if internals.transformed():
        what = "a transform of torch.func, such as vmap, grad or jvp"
        raise RuntimeError(REJECTED.format(stem=stem, what=what))
    if internals.dual_level() and any(
        isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None
        for value in values
    ):
        raise RuntimeError(REJECTED.format(stem=stem, what="a forward-mode tangent"))


@functools.cache
def _version() -> str:
    """Return a hash of the operations' code, of the contract's, and of this module's.

    PyTorch caches compiled graphs on disk under the names of their operators. The hash
    is part of the name, so a graph with older lines is not found.
    """
    package = Path(__file__).parents[1]
    files = [Path(__file__), *sorted(package.glob("contract/*.py"))]
    files += sorted(package.glob("ops/*.py"))
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()[:12]


def _without_autocast(
    device: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the function so that it computes in the dtypes of its inputs."""
    if device in AUTOCASTING and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)
    return function(*args, **kwargs)


def packed(shapes: list[tuple[int, ...] | None]) -> tuple[list[int], list[int]]:
    """Return all lengths, one shape after the other, and the ranks of the shapes."""
    sizes = [length for shape in shapes for length in shape or ()]
    return sizes, [NOT_GIVEN if shape is None else len(shape) for shape in shapes]


def unpacked(sizes: list[int], ranks: list[int]) -> list[tuple[int, ...] | None]:
    """Return the shapes that were packed; None for an input that was not given."""
    lengths = iter(sizes)
    return [
        None if rank == NOT_GIVEN else (*itertools.islice(lengths, rank),)
        for rank in ranks
    ]


def differentiable_inputs(op: ModuleType, shapes: Shapes) -> list[str]:
    """Return the names of the inputs that have a gradient."""
    constants = getattr(op, "CONSTANTS", ())
    return [s.name for s in shapes.inputs if s.floating and s.name not in constants]


@functools.cache
def takes_wanted(module: ModuleType) -> bool:
    return "wanted" in inspect.signature(module.forward).parameters


def _wanted(
    module: ModuleType, names: list[str], chosen: list[bool] | None
) -> dict[str, Any]:
    """Return the keyword argument ``wanted``, the names that are chosen, if the module
    accepts it. Without a choice, return none: the default is all names."""
    if chosen is None or not takes_wanted(module):
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
    """Return the kernel's module if there is a kernel of that stem that runs here,
    otherwise the operation's."""
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
    numbers = [_number(module, saved), *map(float, _numbers_in(saved))]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _number(module: ModuleType, saved: tuple) -> int:
    """Return the number of the structure of ``saved``. A new structure gets one."""
    structure = _Structure(module, _emptied(saved))
    if (number := _number_of.get(structure)) is None:
        number = _number_of.setdefault(structure, next(_numbers))
        _structures[number] = structure
    return number


def _read(facts: Tensor, arrays: list[Tensor]) -> tuple[ModuleType, tuple]:
    """Return the module that saved, and what it saved."""
    number, *others = facts.tolist()
    numbers = iter(others)
    module, emptied = _structures[int(number)]
    left = {Tensor: iter(arrays), int: map(_integer, numbers), float: numbers}
    return module, _filled(emptied, left)


def _filled(part: Any, left: dict[type, Iterator]) -> Any:
    """Return ``part`` of an emptied Saved. Each place gets the next leaf of its type
    from ``left``."""
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
    """Return the number as an integer, unless it is NaN, as the count is if no target
    is counted."""
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
