"""Present the object under test uniformly, and reject a call that it cannot be given.

It may be an operation's module, the user's own object, or an autograd.Function.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, TypeGuard

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.contract.shapes import Shapes
from backpass.operation import Operation
from backpass.verify import domain
from backpass.verify.arguments import check_names, reject_unknown, required_options
from backpass.verify.convert import (
    EPSILON,
    as_number,
    dtype_name,
    is_floating,
    is_torch,
    requires_grad,
)
from backpass.verify.outputs import Malformed, Several, is_differentiable, join
from backpass.verify.seeded import seeded
from backpass.verify.signatures import (
    defaults_of,
    input_names,
    option_names,
    parameters_of,
)

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Subject:
    """A forward and a backward with their names.

    ``forward(*inputs)`` returns ``(y, saved)``: options are bound, and several outputs
    are joined into one vector. ``backward(dy, saved)`` returns what the object under
    test returns. ``plain_forward(*tensors)`` returns y alone, computed by operations
    that autograd can follow. ``frozen(name)`` is the same subject with one input that
    does not require a gradient, if its backward can know that. ``told(forward=names)``
    is the same subject of which only these gradients are wanted, and with ``backward=``
    only in the backward, if both parts take ``wanted``. ``stateless`` says that
    no call can leave state behind for the next. ``stem`` is the name of the package's
    operation that this is, which has a PyTorch reference and perhaps a kernel;
    otherwise None. ``conventions`` maps each input whose gradient the object
    declares to be a convention with these options to the reason. ``defaults`` has the
    default of each input and option of forward that has one, ``source`` is forward as
    written, and ``called_with(others)`` is the same subject with other options.
    """

    name: str
    forward: Callable[..., tuple[Array, Any]]
    backward: Callable[[Array, Any], Any]
    plain_forward: Callable[..., Array]
    input_names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    shapes: Shapes | None = None
    constants: frozenset[str] = frozenset()
    conventions: Mapping[str, str] = field(default_factory=dict)
    positive: frozenset[str] = frozenset()
    zero_gradients: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    multiples: Mapping[str, int] = field(default_factory=dict)
    torch_only: bool = False
    stateless: bool = False
    frozen: Callable[[str], Subject] | None = None
    told: Callable[..., Subject] | None = None
    backward_flops: Callable[..., Any] | None = None
    stem: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    called_with: Callable[[dict[str, Any]], Subject] | None = None
    source: Callable | None = None

    @property
    def all_options(self) -> dict[str, Any]:
        """The value of each option of forward, given or its default."""
        own = [name for name in self.defaults if name not in self.input_names]
        return {name: self.defaults[name] for name in own} | self.options

    @property
    def optional(self) -> tuple[int, ...]:
        """The positions of the inputs whose default is None."""
        return tuple(
            at
            for at, name in enumerate(self.input_names)
            if self.defaults.get(name, _EMPTY) is None
        )

    def differentiable(self, inputs: Sequence[object]) -> list[int]:
        """Return the positions of the inputs that get a gradient.

        These are the floating-point arrays that are not constants.
        """
        return [
            at
            for at, value in enumerate(inputs)
            if is_floating(value) and self.input_names[at] not in self.constants
        ]

    def shapes_for(self, inputs: Sequence[object]) -> Shapes | None:
        """Return the declaration, with the values of the options that it names; for a
        Function these are further inputs."""
        given = zip(self.input_names, inputs, strict=False)
        values = {name: value for name, value in given if not is_array(value)}
        options = {**self.defaults, **self.options, **values}
        return self.shapes and domain.with_options(self.shapes, options)

    def outputs(self, y: Array, saved: Any) -> tuple[Any, ...]:
        """Return forward's outputs, given its results, y and saved."""
        return several.outputs if (several := self.several(saved)) else (y,)

    def several(self, saved: Any) -> Several | None:
        """Return how forward's outputs are joined; None if there is one."""
        several = saved[-1] if self.torch_only else saved
        return several if isinstance(several, Several) else None

    def quantity(self, at: int) -> str:
        """Return ``dx`` for the gradient with respect to the input x."""
        return f"d{self.input_names[at]}"

    def complete(self, inputs: Sequence[object]) -> tuple[object, ...]:
        """Return the inputs, with None for optional ones that were not given.

        Raises TypeError or ValueError if they cannot be checked.
        """
        if shapes := self.shapes_for(inputs):
            _check_declared(shapes, inputs)
            given = dict(zip(self.input_names, inputs, strict=False))
            domain.check_options(shapes, self.all_options | given)
        inputs = (*inputs, *[None] * (len(self.input_names) - len(inputs)))
        for name, value in zip(self.input_names, inputs, strict=False):
            if name not in self.constants:
                _reject_container(name, value)
        positions = self.differentiable(inputs)
        _reject_unsuitable(inputs, positions)
        if self.torch_only:
            _reject_other_arrays(self.name, inputs)
        if self.shapes and self.shapes.dtypes:
            judged = {self.input_names[at]: inputs[at] for at in positions}
            wide = judged.keys() & self.wide
            domain.check_dtypes(
                self.shapes, {name: judged[name] for name in judged.keys() - wide}
            )
        return inputs


def _check_declared(shapes: Shapes, inputs: Sequence[object]) -> None:
    """Raise TypeError or ValueError for inputs that do not fit the declaration."""
    given = dict(zip((spec.name for spec in shapes.inputs), inputs, strict=False))
    for spec in shapes.inputs:
        if not spec.optional and not hasattr(given.get(spec.name), "shape"):
            came = type(given[spec.name]).__name__ if spec.name in given else "nothing"
            raise TypeError(f"{spec.name}: expected an array {spec}; got {came}")
    shapes.bind(given)
    domain.check_values(shapes, given)


def _reject_container(name: str, value: object) -> None:
    """Raise TypeError for a dictionary or a list of arrays, of which no gradient could
    be compared."""
    if not isinstance(value, Mapping | list | tuple):
        return
    of = value.values() if isinstance(value, Mapping) else value
    if any(map(is_floating, of)):
        raise TypeError(
            f"inputs: expected each array as an input of its own; got {name}, a "
            f"{type(value).__name__} of arrays: give a forward and a backward of the "
            "arrays, such as lambda x, w, b: forward(x, {'w': w, 'b': b}), or name "
            f"{name} in constants"
        )


def _reject_unsuitable(inputs: Sequence[object], differentiable: Sequence[int]) -> None:
    if not differentiable:
        given = ", ".join(
            dtype_name(v) if is_array(v) else type(v).__name__ for v in inputs
        )
        instead = "; give torch.view_as_real(z)" if "complex" in given else ""
        if any(type(v) in (float, list) for v in inputs):
            instead = "; give numpy.array(x) for each"
        raise TypeError(
            "inputs: expected at least one array of real floating-point numbers; "
            f"got {given}{instead}"
        )
    for name in (dtype_name(inputs[at]) for at in differentiable):
        if name not in EPSILON:
            raise TypeError(f"inputs: expected {', '.join(EPSILON)}; got {name}")


def _reject_other_arrays(name: str, inputs: Sequence[object]) -> None:
    for value in inputs:
        if is_array(value) and not is_torch(value):
            kind = type(value)
            raise TypeError(
                f"inputs: {name} is a torch.autograd.Function, which takes torch tensors; "
                f"got {kind.__module__}.{kind.__name__}"
            )


def load(op: Any) -> Any:
    """Return an operation's module, given its name, or an object with both functions,
    given a pair ``(forward, backward)``; return anything else as it is.

    Raises LookupError if no operation has that name.
    """
    if type(op) is tuple and len(op) == 2 and all(map(callable, op)):
        return SimpleNamespace(forward=op[0], backward=op[1])
    if not isinstance(op, str):
        return op
    from backpass import ops

    return ops.load(op)


def subject(
    op: Any,
    count: int,
    options: dict[str, Any],
    zero_gradients: Sequence[str] = (),
    constants: Sequence[str] = (),
) -> Subject:
    """Return ``op`` as a Subject that is called with ``count`` inputs and ``options``.

    Raises TypeError if ``op`` cannot be checked or called like that, and ValueError for
    a name in ``zero_gradients`` or ``constants`` that no input has.
    """
    op = load(op)
    if is_function(op):
        return _from_autograd_function(op, count, zero_gradients, constants)
    for part in ("forward", "backward"):
        if not callable(getattr(op, part, None)):
            raise TypeError(
                "op: expected the name of an operation, a pair (forward, backward), an "
                "object with forward and backward, or a torch.autograd.Function; got "
                f"{called(op)}, which has no {part}{_instead(op)}"
            )
    name = called(op)
    if getattr(op, "__name__", "").startswith("backpass.kernels."):
        raise TypeError(
            "op: expected an operation, with which its kernel is compared; got the "
            f"kernel: give {name!r} and methods=['kernel']"
        )
    operation = Operation(op)
    shapes = operation.shapes_with(options)
    if shapes and count > len(shapes.inputs):
        raise TypeError(
            f"inputs: {name} takes {', '.join(map(str, shapes.inputs))}; "
            f"got {count} arrays"
        )
    if operation.takes_wanted and "wanted" in options:
        raise TypeError(
            "wanted: expected no value, because check itself calls the operation with "
            f"different sets of wanted gradients; got {options['wanted']!r}"
        )
    _check_call(name, op.forward, len(shapes.inputs) if shapes else count, options)
    names = input_names(op.forward, count)
    if shapes:
        names = tuple(spec.name for spec in shapes.inputs)
    declared = _declared(operation, names, zero_gradients, constants)
    if shapes:
        taken = option_names(op.forward, len(names), {"wanted"})
        domain.check_names(name, shapes, names, taken)

    stateless = isinstance(op, ModuleType) and op.__name__.startswith("backpass.ops.")
    run = op.forward if stateless else seeded(op.forward)

    def forward(*inputs, **wanted):
        returned = run(*inputs, **options, **wanted)
        if not isinstance(returned, tuple) or len(returned) != 2:
            got = type(returned).__name__
            if isinstance(returned, tuple):
                got = f"a tuple of {len(returned)}; give several outputs as ((y1, y2), saved)"
            raise Malformed(f"forward: expected it to return (y, saved); got {got}")
        y, several = join(returned[0])
        if type(y) is float:  # a loss as a Python number
            return np.asarray(y, np.float64), returned[1]
        return (y, several._replace(saved=returned[1])) if several else returned

    named = {
        p.name
        for p in parameters_of(op.backward) or []
        if p.default is not p.empty or p.kind is p.KEYWORD_ONLY
    }
    shared = {name: options[name] for name in options.keys() & named - {"wanted"}}

    def backward(dy, saved, **wanted):
        wanted = {**shared, **wanted}  # an option that backward names too
        if isinstance(saved, Several):
            return op.backward(saved.split(dy), saved.saved, **wanted)
        return op.backward(dy if stateless else as_number(dy), saved, **wanted)

    def told(**wanted):
        parts = {"forward": forward, "backward": backward}
        return replace(
            found,
            **{part: partial(parts[part], wanted=wanted[part]) for part in wanted},
        )

    found = Subject(
        name=name,
        forward=forward,
        backward=backward,
        plain_forward=getattr(op, "plain_forward", lambda *inputs: forward(*inputs)[0]),
        input_names=names,
        options=options,
        shapes=shapes,
        conventions=operation.conventions_with(options),
        positive=frozenset(operation.positive),
        wide=frozenset(operation.wide),
        multiples={**shapes.multiples, **operation.multiples}
        if shapes
        else operation.multiples,
        stateless=stateless,
        told=told if operation.takes_wanted else None,
        backward_flops=getattr(op, "backward_flops", None),
        stem=_stem(name, getattr(op, "SHAPES", None)),
        defaults=defaults_of(op.forward, names),
        called_with=lambda others: subject(
            op, count, {**options, **others}, zero_gradients, constants
        ),
        source=op.forward,
        **declared,
    )
    return found


def _declared(
    operation: Operation,
    names: tuple[str, ...],
    zero_gradients: Sequence[str],
    constants: Sequence[str],
) -> dict[str, Any]:
    """Return the inputs that have no gradient or a zero one, as declared by the object
    and by the user, who can name only inputs."""
    check_names("zero_gradients", zero_gradients, names)
    check_names("constants", constants, names)
    return {
        "zero_gradients": frozenset((*operation.zero_gradients, *zero_gradients)),
        "constants": frozenset((*operation.constants, *constants)),
    }


def _check_call(
    name: str, forward: Callable, count: int, options: Mapping[str, object]
) -> None:
    """Raise TypeError unless ``forward`` takes ``count`` inputs and these options."""
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):  # a builtin has no signature
        return
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name == "self":
        raise TypeError(
            f"op: expected an instance of {name}, whose forward takes self; "
            f"got the class: give {name}()"
        )
    what, others = f"options of {name}", parameters[count:]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        named = ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
        known = [p.name for p in others if p.kind.name in named]
        reject_unknown(what, options, known, TypeError)
    needed = required_options(others)
    if missing := [option for option in needed if option not in options]:
        given = ", ".join(options) or "none"
        raise TypeError(f"{what}: expected {', '.join(missing)}; got {given}")
    try:
        signature.bind(*[None] * count, **options)
    except TypeError as error:
        raise TypeError(
            f"inputs: {name}'s forward takes {signature}; got {count} ({error})"
        ) from None


def _stem(name: str, declaration: str | None) -> str | None:
    """Return the name if it is that of an operation of this package with the same
    declaration. A user's object may share only the name."""
    from backpass import ops

    return name if name in ops.STEMS and ops.load(name).SHAPES == declaration else None


def is_function(op: object) -> TypeGuard[type]:
    """Whether ``op`` is a subclass of ``torch.autograd.Function``; PyTorch is not
    imported for it."""
    return isinstance(op, type) and any(
        base.__module__ == "torch.autograd.function" for base in op.__mro__
    )


def _from_autograd_function(
    op,
    count: int,
    zero_gradients: Sequence[str],
    constants: Sequence[str],
    more: Sequence[object] = (),
) -> Subject:
    """Return a Function as a Subject. ``more`` are values that follow the inputs and
    replace defaults of its forward."""
    shapes = Operation(op).shapes
    with_context = takes_context(op)
    own = partial(op.forward, None) if with_context else op.forward
    _check_call(op.__name__, own, count, {})
    names = input_names(op.forward, count + with_context)[with_context:]
    if shapes:
        declared_names = [spec.name for spec in shapes.inputs][:count]
        names = (*declared_names, *names[len(declared_names) :])
    declared = _declared(Operation(op), names, zero_gradients, constants)
    if shapes:
        taken = option_names(own, len(shapes.inputs), set())
        domain.check_names(op.__name__, shapes, names, taken)
    marks_dirty: list[bool] = []  # one element, as soon as it is known
    applied, alone = seeded(_applied), seeded(on_its_own)

    def forward(*inputs):
        leaves: list[Any] = []
        for at, (name, value) in enumerate(zip(names, inputs, strict=True)):
            # A complex step has a gradient too, so that the same outputs are joined.
            if is_torch(value) and is_differentiable(value):
                wanted = name not in declared["constants"]
                value = value.detach().requires_grad_(wanted)
            # A tensor that is given twice is one leaf.
            twice = [of for of, other in enumerate(inputs[:at]) if other is inputs[at]]
            leaves.append(leaves[twice[0]] if twice and is_torch(value) else value)
        returned = applied(op, [*leaves, *more], marks_dirty)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        y, several = join(
            returned, but=[id(part) for part in outputs if not requires_grad(part)]
        )
        return y.detach(), (y, leaves, several)

    def backward(dy, saved):
        import torch

        y, leaves, several = saved
        wanted, unused = [leaf for leaf in leaves if requires_grad(leaf)], False
        # Not through the vector: its backward would copy the cotangent of each output.
        if several:
            pairs = zip(several.outputs, several.split(dy), strict=True)
            given = [(output, one) for output, one in pairs if one is not None]
            # An output with a cotangent of 0 counts as unused.
            kept = [pair for pair in given if (pair[1] != 0).any()] or given[:1]
            unused = len(kept) < len(given)
            y, dy = (list(column) for column in zip(*kept, strict=True))
        found = torch.autograd.grad(y, wanted, dy, retain_graph=True, allow_unused=True)
        # A Function may then return None for an input that only that output needs.
        gradients = (
            torch.zeros_like(leaf) if gradient is None and unused else gradient
            for leaf, gradient in zip(wanted, found, strict=True)
        )
        return tuple(
            next(gradients) if requires_grad(leaf) else None for leaf in leaves
        )

    def plain_forward(*inputs):
        returned, without_gradient = alone(op, *inputs, *more)
        return join(returned, but=without_gradient)[0]

    defaults = defaults_of(own, names)

    def called_with(others: dict[str, Any]) -> Subject:
        # By position, up to the last one, because apply does not accept keywords.
        values = {**found.all_options, **others}
        more = [*values.values()][: 1 + max(map(list(values).index, others))]
        changed = _from_autograd_function(op, count, zero_gradients, constants, more)
        return replace(changed, options={**found.options, **others})

    found = Subject(
        name=op.__name__,
        forward=forward,
        backward=backward,
        plain_forward=plain_forward,
        input_names=names,
        shapes=shapes,
        multiples=shapes.multiples if shapes else {},
        torch_only=True,
        frozen=lambda name: _from_autograd_function(
            op, count, zero_gradients, (*constants, name), more
        ),
        defaults=defaults,
        called_with=called_with,
        source=op.forward,
        **declared,
    )
    return found


def takes_context(op: Any) -> bool:
    """Return whether a Function's forward takes the context and saves arrays there."""
    function = importlib.import_module("torch.autograd").Function
    return op.setup_context is function.setup_context


def on_its_own(op: Any, *inputs: Any, **options: Any) -> tuple[Any, set[int]]:
    """Run a Function's forward without its backward, so that autograd follows its
    operations. Return its outputs, and the ids of those without a gradient."""
    context = _Context()
    if takes_context(op):
        returned = op.forward(context, *inputs, **options)
    else:
        returned = op.forward(*inputs, **options)
        op.setup_context(context, inputs, returned)
    return returned, context.without_gradient


def _applied(op: Any, leaves: list, marks_dirty: list[bool]) -> Any:
    """Call ``op.apply`` with the leaves.

    A Function that overwrites an input and marks it dirty gets copies, because autograd
    does not allow that for a leaf.
    """
    import torch

    if not marks_dirty:
        before = [
            (leaf, leaf.detach().clone()) for leaf in leaves if requires_grad(leaf)
        ]
        try:
            returned = op.apply(*leaves)
        except RuntimeError as error:
            if "leaf Variable" not in str(error):
                raise
            with torch.no_grad():
                for leaf, values in before:
                    leaf.copy_(values)
            marks_dirty.append(True)
        else:
            marks_dirty.append(False)
            return returned
    if marks_dirty[0]:
        leaves = [leaf.clone() if requires_grad(leaf) else leaf for leaf in leaves]
    return op.apply(*leaves)


class _Context:
    """Replaces autograd's context where a Function's forward runs by itself, so that
    autograd follows its operations."""

    needs_input_grad = (True,) * 64

    def __init__(self) -> None:
        self.without_gradient: set[int] = set()

    def save_for_backward(self, *tensors) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors) -> None: ...

    def mark_non_differentiable(self, *tensors) -> None:
        self.without_gradient.update(map(id, tensors))

    def set_materialize_grads(self, value: bool) -> None: ...


def _instead(op: object) -> str:
    """Return a hint on what to give instead of an object that cannot be checked."""
    owner = getattr(op, "__self__", None)
    if is_function(owner):
        return f"; give the class itself, {owner.__name__}, not its apply"
    if any(base.__module__.startswith("torch.nn.modules") for base in type(op).__mro__):
        return (
            ": a module's backward is derived by PyTorch, so there is none to check, "
            "unless its forward applies an autograd.Function"
        )
    return ""


def called(op: object, unnamed: str = "forward and backward") -> str:
    """Return the object's name, or that of its class; ``unnamed`` for a namespace."""
    if isinstance(op, SimpleNamespace) and not hasattr(op, "__name__"):
        return unnamed
    name = getattr(op, "__name__", None) or type(op).__name__
    return name.rpartition(".")[2]
