"""Build operators of ``torch.library`` from the contract of an operation, and a
function that computes the same without them.

``backpass.functional`` has a function for each operation.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import itertools
import os
import typing
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from backpass import kernels, ops
from backpass import torch_internals as internals
from backpass.contract.arrays import namespace, traced
from backpass.contract.shapes import Shapes
from backpass.torch_door import causal, lines, transformed
from backpass.torch_door.saved import (
    facts_of,
    filled,
    numbers_in,
    read,
    tensors_in,
    unaliased,
    without_aliases,
    without_tensors,
)

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


# The module ``saved`` says what forward's operator returns. Backward's operator also
# receives arguments that it does not compute with: the shapes of all inputs, one after
# the other in ``sizes``, and the options. They determine the shapes of the gradients,
# where shapes alone are known, and the cost of the backward.
#
# Where nothing has to see an operator, an autograd.Function computes the same. It also
# does so while torch.compile traces an operation of few lines, none of which reads a
# value. The compiler then fuses the lines, which an operator would hide. The function
# saves what forward saves, unchanged. Its second output, ``link``, has no elements. It
# connects whatever is computed from the gradients to the inputs, so that a second
# derivative always reaches ``_reject_second``, even if backward reads nothing that
# depends on the inputs.

NOT_GIVEN = -1  # in ``ranks``, an optional input that was not given


def register(stem: str, op: ModuleType, shapes: Shapes) -> _Operator:
    """Register the operators backpass::<stem> and backpass::<stem>_backward, and return
    the functions of a call."""
    return _Operator(stem, op, shapes)


class _Operator:
    """One operation as PyTorch sees it: its facts, and all that is registered of it.

    A call runs one of four functions. ``immediately`` computes without an operator, and
    ``transformed`` does so under a transform of torch.func. ``operator`` is the
    operator, for modes that have to see it. ``lines`` shows torch.compile the lines of
    the operation if they can be traced.
    """

    def __init__(self, stem: str, op: ModuleType, shapes: Shapes):
        self.stem, self.op, self.count = stem, op, len(shapes.inputs)
        self.parameters = list(inspect.signature(op.forward).parameters)
        self.options = self.parameters[self.count :]
        self.seeded = "seed" in self.options
        self.names = differentiable_inputs(op, shapes)
        self.differentiable = [
            at for at, spec in enumerate(shapes.inputs) if spec.name in self.names
        ]
        self.immediate: Any = type(
            stem,
            (torch.autograd.Function,),
            {
                "forward": staticmethod(self._immediate_forward),
                "backward": staticmethod(self._immediate_backward),
            },
        )
        self._transformed = transformed.function_of(self)
        self._register(shapes)

    def _register(self, shapes: Shapes) -> None:
        hints = typing.get_type_hints(self.op.forward)
        of_options = {
            name: f"{_schema_type(name, hints[name])} {name}" for name in self.options
        }
        arguments = [
            *(f"Tensor{'?' * spec.optional} {spec.name}" for spec in shapes.inputs),
            *of_options.values(),
            *(["Tensor? random"] if self.seeded else []),
        ]
        self.operator = torch.library.custom_op(
            f"backpass::{self.stem}",
            self.results,
            mutates_args=(),
            schema=f"({', '.join(arguments)}) -> (Tensor, Tensor[], Tensor, Tensor)",
        )
        self.operator.register_fake(self._fake_forward)
        self.operator.register_autograd(
            self._operator_backward, setup_context=self.save
        )
        of_options.pop("wanted", None)
        self.backward = torch.library.custom_op(
            f"backpass::{self.stem}_backward",
            self.gradients,
            mutates_args=(),
            schema="(Tensor dy, Tensor[] saved, Tensor facts, bool[] wanted, "
            "SymInt[] sizes, int[] ranks, ScalarType[] dtypes"
            f"{''.join(f', {option}' for option in of_options.values())}) -> Tensor[]",
        )
        self.backward.register_fake(self._fake_backward)
        self.backward.register_autograd(self._reject_second)
        self.backward.register_vmap(self._reject_vmap)

        name = f"backpass::{self.stem}_lines_{_version()}"
        torch.library.define(
            name,
            f"(bool[] needed, {', '.join(arguments)}) -> Tensor",
            tags=torch.Tag.pt2_compliant_tag,
        )
        torch.library.impl(name, "CompositeImplicitAutograd", self._lines)
        torch.library.register_vmap(name, self._reject_vmap)
        self.lines = getattr(torch.ops.backpass, name.partition("::")[2]).default

    def reject(self, what: str) -> None:
        raise RuntimeError(REJECTED.format(stem=self.stem, what=what))

    def _reject_second(self, *_):
        self.reject("a derivative of its gradient")

    def _reject_vmap(self, *_):
        self.reject("vmap")

    # The operation, with an operator or without

    def _split(self, values: Sequence[Any]) -> tuple[Sequence, list[tuple[str, Any]]]:
        """Return the inputs, and the options with their names."""
        options = zip(self.options, values[self.count :], strict=False)
        return values[: self.count], list(options)

    def run(self, module, inputs, chosen, random=None):
        """Run the module's forward; ``chosen`` are the options, and ``random`` is a
        seed in a tensor, in place of theirs."""
        chosen = dict(chosen)
        chosen |= _wanted(module, self.names, chosen.pop("wanted", None))
        if self.seeded:
            # A tensor, because ``facts`` have not the digits of every integer.
            chosen["seed"] = (
                random
                if random is not None
                else _as_tensor(chosen["seed"], inputs[0].device)
            )
        device = inputs[0].device.type
        return without_autocast(device, module.forward, *inputs, **chosen)

    def differentiated(self, module, dy, saved, wanted):
        """Return the gradients that are wanted."""
        chosen, device = _wanted(module, self.names, wanted), dy.device.type
        gradients = without_autocast(device, module.backward, dy, saved, **chosen)
        gradients = gradients if type(gradients) is tuple else (gradients,)
        return [g for g, want in zip(gradients, wanted, strict=True) if want]

    def _describe(self, ctx, inputs, chosen):
        """Record the options, the shapes of the inputs, and the dtypes of their
        gradients."""
        ctx.options = [value for name, value in chosen if name != "wanted"]
        ctx.shapes = [None if x is None else x.shape for x in inputs]
        ctx.dtypes = [
            (inputs[0] if inputs[at] is None else inputs[at]).dtype
            for at in self.differentiable
        ]
        ctx.set_materialize_grads(False)

    def _all_gradients(self, gradients_of, ctx, dy, first, arguments):
        """Return what the backward of an autograd.Function returns: a gradient or None
        for each of its ``arguments``, of which ``first`` come before the inputs."""
        gradients = [None] * arguments
        wanted = [
            ctx.shapes[at] is not None and ctx.needs_input_grad[first + at]
            for at in self.differentiable
        ]
        if dy is None or not any(wanted):
            return tuple(gradients)
        if internals.is_batched(dy):
            self._reject_vmap()
        found = iter(gradients_of(ctx, dy, *ctx.saved_tensors, wanted=wanted))
        for at, want in zip(self.differentiable, wanted, strict=True):
            gradients[first + at] = next(found) if want else None
        return tuple(gradients)

    def transformed(self, values: dict[str, Any], wanted, random) -> Tensor:
        """Compute under ``torch.func.grad`` or ``vjp``, as ``immediately`` does."""
        extra = [wanted] if "wanted" in self.options else []
        extra += [random] if self.seeded else []
        return self._transformed.apply(*values.values(), *extra)[0]

    # Forward's operator

    def results(self, *values):
        inputs, chosen = self._split(values)
        module = _module(self.stem, inputs[0].device.type)
        random = values[-1] if self.seeded else None
        random = None if random is None else random.clone()  # it may be saved
        y, saved = self.run(module, inputs, chosen, random)
        return *without_aliases(inputs, y, saved), facts_of(module, saved)

    def _fake_forward(self, *values):
        inputs, chosen = self._split(values)
        module = _module(self.stem, inputs[0].device.type)
        hashable = ((k, tuple(v) if isinstance(v, list) else v) for k, v in chosen)
        return internals.on_stand_ins(self._without_values, inputs, (module, *hashable))

    def _without_values(self, inputs, options):
        module, *chosen = options
        with internals.Unread():
            y, saved = self.run(module, inputs, chosen)
            tensors = without_aliases(inputs, y, saved)
        length = 1 + len(numbers_in(saved))
        return *tensors, torch.empty(length, dtype=torch.float64, device="cpu")

    def save(self, ctx, inputs, output):
        y, own, sources, facts = output
        arrays, chosen = self._split(inputs)
        pool = (*arrays, y, *own)
        ctx.save_for_backward(facts, *(pool[at] for at in sources.shape[1:]))
        self._describe(ctx, arrays, chosen)
        # facts stay differentiable, so that a second derivative always reaches
        # _reject_second, even if backward reads nothing that depends on the inputs.
        ctx.mark_non_differentiable(*own, sources)

    def _operator_backward(self, ctx, dy, *_):
        return self.gradients_by(self._by_operator, ctx, dy)

    def gradients_by(self, gradients_of, ctx, dy):
        """Return what ``_all_gradients`` returns for the arguments of the operator."""
        arguments = len(self.parameters) + self.seeded
        return self._all_gradients(gradients_of, ctx, dy, 0, arguments)

    def _by_operator(self, ctx, dy, facts, *arrays, wanted):
        give_formulas()
        of = (wanted, *packed(ctx.shapes), ctx.dtypes, *ctx.options)
        return self.backward(dy, list(arrays), facts, *of)

    # Backward's operator

    def gradients(self, dy, arrays, facts, wanted, *_):
        module, saved = read(facts, arrays)
        found = []
        for gradient in self.differentiated(module, dy, saved, wanted):
            found.append(unaliased(gradient.contiguous(), (dy, *arrays, *found)))
        return found

    def _fake_backward(self, dy, arrays, facts, wanted, sizes, ranks, dtypes, *_):
        shapes = unpacked(sizes, ranks)
        return [
            dy.new_empty(shapes[at], dtype=dtype)
            for at, dtype, want in zip(self.differentiable, dtypes, wanted, strict=True)
            if want
        ]

    # The autograd.Function

    def immediately(self, values: dict[str, Any], wanted, random, fused=None) -> Tensor:
        """Compute without an operator; ``values`` are all arguments in order, by name.
        ``fused`` are the compiled functions of the call, if it is to run them."""
        inputs = [*values.values()][: self.count]
        chosen = [*values.items()][self.count :]
        module = _module(self.stem, inputs[0].device.type)
        if fused is not None or torch.compiler.is_compiling():
            module = causal.instead(module, inputs, dict(chosen))
        if "wanted" in self.options:
            chosen.append(("wanted", wanted))
        if any(wanted):
            return self.immediate.apply(module, chosen, random, fused, *inputs)[0]
        if fused is not None:
            return fused.forward(inputs)[0]
        return unaliased(self.run(module, inputs, chosen, random)[0], inputs)

    def _immediate_forward(self, ctx, module, chosen, random, fused, *inputs):
        if fused is None:
            y, saved = self.run(module, inputs, chosen, random)
            y, arrays = unaliased(y, inputs), tensors_in(saved)
            ctx.saved = without_tensors(module, saved)
        else:
            y, arrays = fused.forward(inputs)
        ctx.module, ctx.fused = module, fused
        self._describe(ctx, inputs, chosen)
        ctx.traced = internals.is_watched()
        link = torch.empty(0, dtype=torch.float64, device="cpu")
        ctx.save_for_backward(link, *arrays)
        return y.detach() if internals.is_view(y) else y, link

    def _immediate_backward(self, ctx, dy, *_):
        return self._all_gradients(self._at_once, ctx, dy, 4, 4 + self.count)

    def _at_once(self, ctx, dy, link, *arrays, wanted):
        if ctx.traced and torch.is_grad_enabled():
            self._reject_second()
        needs_operator = torch.is_grad_enabled() or not is_plain((dy, *arrays))
        if ctx.fused is None:
            saved = filled(ctx.saved, {Tensor: iter(arrays)})
        elif needs_operator:
            saved = ctx.fused.saved_by(arrays)
            arrays = tensors_in(saved)
        else:
            return ctx.fused.backward(dy, arrays)
        if needs_operator and not ctx.traced:
            facts = torch.cat([facts_of(ctx.module, saved), link])
            return self._by_operator(ctx, dy, facts, *arrays, wanted=wanted)
        # If torch.compile traces the call, so are the lines of the forward.
        with lines.seen_by_a_compiler() if ctx.traced else nullcontext():
            gradients = self.differentiated(ctx.module, dy, saved, wanted)
        found = []
        for g in gradients:
            found.append(g if g is dy else unaliased(g, (dy, *arrays, *found)))
        return found

    # The lines of the operation, for torch.compile

    def _lines(self, wanted, *values):
        reject_transforms(self.stem, values, compiled=True)
        inputs, chosen = self._split(values)
        chosen = [(name, value) for name, value in chosen if name != "wanted"]
        given = dict(zip(self.parameters, values, strict=False))
        if self.shows_lines(inputs, chosen):
            with lines.seen_by_a_compiler():
                return self.immediately(given, wanted, None)
        return self.operator(*values)[0]

    def shows_lines(self, inputs, chosen) -> bool:
        """Whether torch.compile sees the lines of such a call; ``chosen`` are the
        options."""
        module = _module(self.stem, inputs[0].device.type)
        with traced():
            return module is self.op and internals.is_traceable(
                self._forward_and_backward, inputs, (module, *chosen)
            )

    def _forward_and_backward(self, inputs, options):
        """Run all lines that a compiler would see."""
        module, *chosen = options
        y, saved = self.run(module, inputs, chosen)
        given = [inputs[at] is not None for at in self.differentiable]
        self.differentiated(module, torch.empty_like(y), saved, given)


def _as_tensor(seed: int, device: torch.device) -> Tensor:
    return torch.full((), seed, dtype=torch.int64, device=device)


def give_formulas() -> None:
    """Give each FLOP counter that is active the formulas of those operators for which
    it has none: without a formula it would count 0."""
    for registry in internals.flop_registries():
        # By name, since the module stands above this one, and computes costs.
        module = importlib.import_module("backpass.flop_counter")
        for operator, formula in module.usual_formulas().items():
            registry.setdefault(operator, formula)


def reject_transforms(stem: str, values: Iterable[Any], compiled: bool = False) -> None:
    """Reject calls that would otherwise fail obscurely or return wrong results
    silently: with forward-mode tangents, and under torch.func's transforms except a
    single ``grad`` or ``vjp`` that is not ``compiled``."""
    running = internals.transforms()
    if running and (compiled or running != ["grad"]):
        what = f"a transform of torch.func other than one grad or vjp: {', '.join(running)}"
        if compiled:
            what = "a transform of torch.func within torch.compile"
        raise RuntimeError(REJECTED.format(stem=stem, what=what))
    if internals.dual_level() and any(
        isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None
        for value in values
    ):
        raise RuntimeError(REJECTED.format(stem=stem, what="a forward-mode tangent"))


@functools.cache
def _version() -> str:
    """Return a hash of the operations' code, and of what they and this module import.

    PyTorch caches compiled graphs on disk under the names of their operators. The hash
    is part of the name, so a graph with older lines is not found.
    """
    package = Path(__file__).parents[1]
    names = "operators.py", "saved.py", "lines.py", "causal.py"
    files = [package / "torch_door" / name for name in names]
    files += [
        f for of in ("contract", "ops") for f in sorted(package.glob(f"{of}/*.py"))
    ]
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()[:12]


def without_autocast(
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
    pairs = zip(names, chosen, strict=True)
    return {"wanted": [name for name, is_chosen in pairs if is_chosen]}


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
