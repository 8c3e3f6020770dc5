"""Wrap the private names of PyTorch that the package needs, which a release may change.

No other module uses such a name. ``tests/test_torch_internals.py`` has a test for each.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd import forward_ad
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

__all__ = [
    "READ",
    "TorchDispatchMode",
    "Unread",
    "allocates",
    "body",
    "dual_level",
    "flop_registries",
    "generated",
    "graph_of",
    "is_batched",
    "is_fake",
    "is_higher_order",
    "is_traceable",
    "is_view",
    "is_viewing",
    "is_watched",
    "on_stand_ins",
    "outlined",
    "read_by",
    "share_memory",
    "storage_from",
    "storage_id",
    "transformed",
    "transforms",
    "without_torch_functions",
    "written_by",
]

# The operator that reads the number in a tensor of one element.
READ = torch.ops.aten._local_scalar_dense.default

_READS = (READ, torch.ops.aten.item.default, torch.ops.aten.is_nonzero.default)


class Unread(TorchDispatchMode):
    """A mode in which reading a tensor that has a shape but no values returns 0 or
    False. A check for bad inputs reads the same from good inputs."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in _READS or not (args[0].is_meta or is_fake(args[0])):
            return func(*args, **(kwargs or {}))
        if args[0].dtype == torch.bool or func is torch.ops.aten.is_nonzero.default:
            return False
        return 0.0 if args[0].is_floating_point() else 0


UNKNOWN = 60  # replaces a length that is not known; a multiple of many numbers


class _Outline(NamedTuple):
    """A tensor without its values. A length is an integer or a SymPy expression."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device


def on_stand_ins(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor | None],
    options: tuple[Hashable, ...],
) -> Any:
    """Return ``function(inputs, options)``, a nest of tuples and lists of tensors
    without values, and leave the lengths of ``inputs`` as general as they are.

    While torch.compile infers shapes, a length may be a symbol. If the function loops
    over it or compares it, the symbol becomes a constant, and any other length needs
    another graph. So the function runs on stand-ins, whose lengths are other symbols.
    Comparisons of these are not recorded. They are decided by the lengths with which
    torch.compile traces; ``UNKNOWN`` replaces a length that depends on data. The shapes
    of the results are then expressed in the symbols of ``inputs``.

    The results are cached, because the layers of a model call the function with the
    same shapes, and torch.compile infers the shapes of each call several times.
    """
    import sympy  # imported here, because only torch.compile needs it

    lengths = _symbolic_lengths(inputs)
    env: Any = lengths[0].node.shape_env if lengths else None
    outer = sorted({s for n in lengths for s in n.node.expr.free_symbols}, key=str)
    hints = (env.create_symintnode(symbol, hint=None).node.hint for symbol in outer)
    neutral = [
        sympy.Symbol(f"n{at}", integer=True, positive=True) for at in range(len(outer))
    ]
    to_neutral = dict(zip(outer, neutral, strict=True))
    found = _results(
        function,
        tuple(None if x is None else _outline(x, to_neutral) for x in inputs),
        tuple(next(at for at, y in enumerate(inputs) if y is x) for x in inputs),
        tuple(zip(neutral, hints, strict=True)),
        options,
    )
    to_outer = dict(zip(neutral, outer, strict=True))
    with contextlib.nullcontext() if env is None else env.suppress_guards():
        return _each(_Outline, lambda x: _empty(x, to_outer, env), found)


@lru_cache(maxsize=1024)
def _results(
    function: Callable[..., Any],
    outlines: tuple[_Outline | None, ...],
    firsts: tuple[int, ...],
    symbols: tuple[tuple[Any, int | None], ...],
    options: tuple[Hashable, ...],
) -> Any:
    """Return what the function returns, with outlines for its tensors.

    ``firsts`` gives for each input the position at which the same tensor first occurs.
    """
    from sympy import Integer
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    class Decided(ShapeEnv):
        """Symbols whose comparisons are decided by their lengths, and not recorded."""

        def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            return orig_expr.xreplace(lengths)

    env, own, lengths = Decided(duck_shape=False), {}, {}
    for symbol, length in symbols:
        length = UNKNOWN if length is None else length
        source = ConstantSource(str(symbol))
        own[symbol] = env.create_symbol(
            length, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
        )
        lengths[own[symbol]] = Integer(length)
    with unset_fake_temporarily(), FakeTensorMode(shape_env=env) as mode:
        mode.cache_enabled = False  # with symbols, it takes more time than it saves
        made = [None if x is None else _empty(x, own, env) for x in outlines]
        results = function([made[at] for at in firsts], options)
        to_neutral = {mine: symbol for symbol, mine in own.items()}
        return _each(torch.Tensor, lambda x: _outline(x, to_neutral), results)


def _symbolic_lengths(tensors: Sequence[torch.Tensor | None]) -> list[Any]:
    """Return those lengths and strides of the tensors that are symbols."""
    return [
        length
        for x in tensors
        if x is not None
        for length in (*x.shape, *x.stride())
        if isinstance(length, torch.SymInt)
    ]


def _outline(x: torch.Tensor, symbols: dict[Any, Any]) -> _Outline:
    """Return the outline of a tensor, with other symbols in place of its own."""
    shape, stride = (
        tuple(
            n.node.expr.xreplace(symbols) if isinstance(n, torch.SymInt) else n
            for n in lengths
        )
        for lengths in (x.shape, x.stride())
    )
    return _Outline(shape, stride, x.dtype, x.device)


def _empty(outline: _Outline, symbols: dict[Any, Any], env: Any) -> torch.Tensor:
    """Return a tensor with this outline, with other symbols in place of its own."""
    shape, stride = (
        [
            n
            if isinstance(n, int)
            else env.create_symintnode(n.xreplace(symbols), hint=None)
            for n in lengths
        ]
        for lengths in outline[:2]
    )
    _, _, dtype, device = outline
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _each(kind: type, function: Callable[[Any], Any], nest: Any) -> Any:
    """Return the nest of tuples and lists with the function of each ``kind`` in it."""
    if isinstance(nest, kind):
        return function(nest)
    return type(nest)(_each(kind, function, part) for part in nest)


def graph_of(
    function: Callable[..., list[torch.Tensor]], tensors: Sequence[torch.Tensor]
) -> torch.fx.GraphModule:
    """Return the operators that a function of tensors calls for such ``tensors``, none
    of which writes in place. The function must not depend on a value."""
    from torch.fx.experimental.proxy_tensor import make_fx

    function = torch.func.functionalize(function, remove="mutations")
    with _disable_current_modes(), torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*(x.detach() for x in tensors))


def outlined(
    function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return a tensor with the shape, strides, dtype, and device of the function's
    result, and any values."""
    with _disable_current_modes(), torch.no_grad():
        mode = FakeTensorMode()
        made = [mode.from_tensor(x.detach()) for x in tensors]
        with mode:
            y = function(*made)
        return torch.empty_strided(y.shape, y.stride(), dtype=y.dtype, device=y.device)


def generated(
    graph: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    """Return Inductor's code for a graph, without guards: only for tensors of the same
    shapes, strides, dtypes, and devices as ``tensors``."""
    from torch._inductor import compile as compiled  # imported here, as it takes time

    with _disable_current_modes(), torch.no_grad():
        return compiled(graph, [x.detach() for x in tensors])


class _Untraceable(Exception):
    """Raised to stop a function that torch.compile should see as one operator."""


class _Traceable(TorchDispatchMode):
    """A mode that stops at the first operator that reads a value, and after ``FEW``
    operators."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operators += 1
        if func in _READS or self.operators > FEW:
            raise _Untraceable
        return func(*args, **(kwargs or {}))


FEW = 400  # the most operators that torch.compile may see in place of one


def is_traceable(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor | None],
    options: tuple[Hashable, ...],
) -> bool:
    """Whether all lengths are known and ``function(inputs, options)`` runs few
    operators, none of which reads a value. The results are cached."""
    if _symbolic_lengths(inputs):
        return False
    outlines = tuple(None if x is None else _outline(x, {}) for x in inputs)
    return _is_traceable(function, outlines, options)


@lru_cache(maxsize=1024)
def _is_traceable(
    function: Callable[..., Any],
    outlines: tuple[_Outline | None, ...],
    options: tuple[Hashable, ...],
) -> bool:
    with _disable_current_modes(), FakeTensorMode(), torch.no_grad():
        made = [None if x is None else _empty(x, {}, None) for x in outlines]
        try:
            with _Traceable():
                function(made, options)
        except _Untraceable:
            return False
    return True


def transforms() -> list[str]:
    """Return the transforms of ``torch.func`` that are running, the outer first:
    "grad" for ``grad`` and ``vjp``, "jvp", "vmap"."""
    if not transformed():
        return []
    return [
        each.key().name.lower() for each in torch._C._functorch.get_interpreter_stack()
    ]


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is running.

    Its tensors hide those that an operator would read.
    """
    return torch._C._are_functorch_transforms_active()


def is_batched(x: torch.Tensor) -> bool:
    """Whether ``x`` is a batch of cotangents, for several backwards at once."""
    return torch._C._functorch.is_legacy_batchedtensor(x)


def is_view(x: torch.Tensor) -> bool:
    """Whether ``x`` is a view, which may not be changed in place if an
    ``autograd.Function`` returns it. Its ``detach()`` may be changed, and shares its
    version counter."""
    return x._is_view()


def is_watched() -> bool:
    """Whether something records or replaces the operators that run: a mode of
    ``__torch_dispatch__``, such as a counter of FLOPs, or ``torch.jit.trace``."""
    tracing = torch._C._get_tracing_state() is not None
    return tracing or torch._C._len_torch_dispatch_stack() > 0


def flop_registries() -> list[dict[Any, Any]]:
    """Return the formulas of each FLOP counter that is active, by operator. Does not
    import PyTorch's counter, which imports Triton."""
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is None:
        return []
    modes = _get_current_dispatch_mode_stack()
    own: Any = counter._FlopCounterMode
    return [mode.counter.flop_registry for mode in modes if isinstance(mode, own)]


def dual_level() -> bool:
    """Whether forward mode is on. If not, ``forward_ad.unpack_dual`` raises."""
    return forward_ad._current_level >= 0


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both tensors are views of one storage. An operator's results must not be.

    This also works for tensors without memory.
    """
    return torch._C._is_alias_of(a, b)  # type: ignore[attr-defined]  # not in the stubs


def storage_from(pointer: int) -> torch.UntypedStorage:
    """Return the storage that a weak reference to it names, which has not expired."""
    return torch.UntypedStorage._new_with_weak_ptr(pointer)


def storage_id(x: torch.Tensor) -> int:
    """Return a number that identifies the storage while it is alive.

    ``data_ptr()`` does not, because it is 0 for every tensor without memory.
    """
    return x.untyped_storage()._cdata


def is_fake(x: torch.Tensor) -> bool:
    """Whether ``x`` has no values, because torch.compile is inferring shapes."""
    return isinstance(x, FakeTensor)


def is_higher_order(func: Any) -> bool:
    """Whether an operator takes functions and calls them, as the launch of a kernel by
    ``torch.library.wrap_triton`` does. Such an operator has no schema."""
    return isinstance(func, HigherOrderOperator)


def without_torch_functions() -> contextlib.AbstractContextManager[None]:
    """Return a context in which no ``TorchFunctionMode`` intercepts calls."""
    return torch._C.DisableTorchFunction()


def raw_streams(number: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which this is the number of each device's current stream,
    also where PyTorch is built without CUDA."""
    name = "_cuda_getCurrentRawStream"
    return mock.patch.object(torch._C, name, lambda device: number, create=True)


def body(func: Any) -> Callable[..., Any] | None:
    """Return the function with which an operator was defined in Python, by
    ``torch.library.custom_op`` or ``triton_op``: the one for the CPU, for every device,
    or for CUDA. None for other operators."""
    definition = OPDEFS.get(func._schema.name)
    own = {} if definition is None else definition._backend_fns
    return own.get("cpu") or own.get(None) or own.get("cuda")


@cache
def is_viewing(func: Any) -> bool:
    """Whether an operator returns a view of a tensor that it is given."""
    returns = func._schema.returns if isinstance(func, OpOverload) else ()
    aliases = (r.alias_info for r in returns)
    return any(alias is not None and not alias.is_write for alias in aliases)


@cache
def allocates(func: Any) -> bool:
    """Whether an operator, by its schema, returns one new tensor, and neither views nor
    writes to another."""
    returns, arguments = func._schema.returns, func._schema.arguments
    tensors = [str(r.type) for r in returns] == ["Tensor"]
    return tensors and all(a.alias_info is None for a in (*returns, *arguments))


def read_by(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors whose values a call of an operator reads: none if it returns
    views of them, or needs only their shapes."""
    name = func.overloadpacket.__name__
    if is_viewing(func) or name.endswith("_like") or name.startswith("new_"):
        return
    written = [id(x) for x in written_by(func, args, kwargs)]
    for value in (*args, *kwargs.values()):
        several = value if isinstance(value, (list, tuple)) else [value]
        for x in several:
            if isinstance(x, torch.Tensor) and id(x) not in written:
                yield x


def written_by(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of an operator writes to in place."""
    for place, name in _written(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        several = value if isinstance(value, (list, tuple)) else [value]
        yield from (x for x in several if isinstance(x, torch.Tensor))


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the place and the name of each argument to which an operator writes."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
