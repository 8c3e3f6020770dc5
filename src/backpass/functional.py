"""The operations as functions of torch tensors that autograd differentiates, for a
model of your own.

    from backpass import functional as B

    y = B.layer_norm(x, w, b, eps=1e-5)

Each operation has one function, with the operation's name and its arguments except
``wanted``. On a CUDA device, it runs the operation's Triton kernel if there is one. On
the CPU, it does the same if Triton's interpreter was chosen. Otherwise it runs the
operation of ``backpass.ops``. The backward is the hand-written one in every case.

Each operation is also an operator of ``torch.library``, ``backpass::layer_norm``, which
passes ``torch.library.opcheck``. The function calls it if something has to see the
call: ``torch.compile``, which traces it without a graph break and keeps lengths
symbolic, ``torch.export``, a counter of FLOPs, or any other mode. Otherwise the
function computes directly, which takes less time than calling an operator. If an
operation has few lines, none of which reads a value, and the lengths are known,
``torch.compile`` sees these lines in place of the operator and can fuse them.
``torch_door.compiled.compiled_operations`` compiles each operation by itself.

- Only inputs that require a gradient get one; constants (RoPE's tables) and integers
  never do. An operation that accepts ``wanted`` neither computes the other gradients
  nor saves what only they need. A kernel computes all of its gradients.
- ``torch.func.grad`` and ``vjp`` compute one derivative. A second derivative, a
  forward-mode derivative and ``vmap`` raise RuntimeError.
- An argument whose gradient would be missing or wrong raises TypeError: a tensor passed
  as an option, a constant that requires a gradient, a complex tensor. So does a tensor
  that is nested, sparse, a DTensor, or of a dtype such as float8, and an option whose
  type is not that of its hint.
- Dropout without a ``seed`` draws one from PyTorch's default generator of the device of
  its inputs. So ``torch.manual_seed`` makes it repeatable, a checkpoint drops the same
  elements again, and two calls drop different elements, also in a compiled graph and in
  a captured one. The ``seed`` may also be an int64 tensor of shape ``[]``.
- On a CUDA device, nothing waits for a value, so forward, backward, and a whole step
  can be captured in a CUDA graph. A token or a target outside the vocabulary is
  reported by an assertion on the device, as by PyTorch's embedding.
- Softmax, its logarithm and the norms return an empty result for rows without
  elements, as PyTorch's functions do. The operations reject such rows.
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
import re
import typing
from collections.abc import Callable
from numbers import Integral, Real
from types import ModuleType
from typing import Any

import torch

from backpass import ops
from backpass import torch_internals as internals
from backpass.contract.shapes import Shapes, check_inputs, parse
from backpass.contract.stems import nearest
from backpass.contract.values import check_seed
from backpass.torch_door import compiled, operators

Tensor = torch.Tensor


def _function(stem: str) -> Callable[..., Tensor]:
    """Return the function of one operation, built only from what its module
    declares."""
    op = ops.load(stem)
    shapes = parse(op.SHAPES)
    of_torch = operators.register(stem, op, shapes)
    signature = _signature(op)
    parameters = signature.parameters
    defaults = {name: p.default for name, p in parameters.items()}
    names, required = [*parameters], inspect.Parameter.empty
    arrays = [(spec.name, spec.optional) for spec in shapes.inputs]
    constants, rule = getattr(op, "CONSTANTS", ()), op.AUTOCAST
    differentiable = operators.differentiable_inputs(op, shapes)
    takes_wanted = operators.takes_wanted(op)
    options = [_Option(stem, p) for p in [*parameters.values()][len(arrays) :]]
    seeded, count = "seed" in names, len(arrays)
    of_rows = _is_of_rows(shapes)

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
            shown = [*names[:count], *(["*"] if options else []), *names[count:]]
            unknown = [name for name in kwargs if name not in names]
            hints = [_INSTEAD[name] for name in unknown if name in _INSTEAD]
            message = f"{stem}: {error}; expected ({', '.join(shown)})"
            raise TypeError(". ".join([message, *hints])) from None
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
        if not torch.compiler.is_compiling():
            operators.reject_transforms(stem, values.values())
        random = None
        if seeded and isinstance(values["seed"], Tensor | None):
            random, values["seed"] = _seed_tensor(values, values[names[0]].device), 0
        device = values[names[0]].device.type
        if device in operators.AUTOCASTING and torch.is_autocast_enabled(device):
            values = _autocast(rule, device, values)
        if of_rows and _is_empty(values[names[0]]):
            return _without_elements(op, shapes, values)
        wanted = [_requires_grad(values[name]) for name in differentiable]
        if internals.transformed() and not torch.compiler.is_compiling():
            return of_torch.transformed(values, wanted, random)
        if operators.is_plain(values[name] for name, _ in arrays):
            fused = None
            if random is None and compiled.is_chosen():
                fused = compiled.fused(of_torch, values, wanted)
            return of_torch.immediately(values, wanted, random, fused)
        if not torch.compiler.is_compiling():
            operators.give_formulas()
        if torch.jit.is_tracing():  # which cannot record a list of bools
            wanted = None
        extra = ([wanted] if takes_wanted else []) + ([random] if seeded else [])
        if (
            random is None
            and torch.compiler.is_dynamo_compiling()
            and not torch.compiler.is_exporting()
        ):
            return of_torch.lines(wanted, *values.values(), *extra)
        return of_torch.operator(*values.values(), *extra)[0]

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


def _is_of_rows(shapes: Shapes) -> bool:
    """Whether an operation rejects rows without elements, of which its result would
    have as many as ``x``, and its other inputs are one row: softmax, a norm."""
    x, *others = shapes.inputs
    (y,) = shapes.outputs
    return (
        x.axes == y.axes
        and dict(x.least).keys() == {x.axes[-1]}
        and all(spec.floating and spec.axes == x.axes[-1:] for spec in others)
    )


def _is_empty(x: Tensor) -> bool:
    """Whether the rows of ``x`` are known to have no elements."""
    return bool(x.ndim) and type(n := x.shape[-1]) is int and n == 0


def _without_elements(op: ModuleType, shapes: Shapes, values: dict[str, Any]) -> Tensor:
    """Return the empty result for rows without elements, as PyTorch's functions do. The
    operation rejects such rows. Raises what it raises for other arguments."""
    named = {spec.name: values[spec.name] for spec in shapes.inputs}
    of_each = {name: x for name, x in values.items() if name not in named}
    check_inputs(re.sub(r">\d+", "", shapes.text), getattr(op, "WIDE", ()), **named)
    x, *others = named.values()
    op.forward(x.detach().new_zeros(1), **of_each)  # which checks the options
    y = x.clone()
    for other in others:
        y = y if other is None else y * other.to(x.dtype)
    return y


# What to write instead of an argument of PyTorch's functions.
_INSTEAD = {
    "attn_mask": "Give booleans as mask=, and numbers to add as bias=",
    "bias": "Give it by position",
    "dim": "The operation acts on the last axis; move another axis there first",
    "enable_gqa": "Grouped heads need no option",
    "input": "Give it by position",
    "is_causal": "Write causal=True",
    "normalized_shape": "A norm acts on the last axis, whose length w has",
    "target": "Give targets by position, or as t=",
    "weight": "Give it by position; a linear layer's weight has the shape [in, out]",
}
# PyTorch's functions that have another name in this module.
_COUNTERPARTS = {
    "scaled_dot_product_attention": "flash_attention and attention",
    "multi_head_attention_forward": "multi_head_attention",
    "nll_loss": "nll",
}
_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
_OF_SEEDS = (
    "Without a ``seed``, each call that can drop an element draws a seed from\n"
    "PyTorch's default generator of the inputs' device, which ``torch.manual_seed``\n"
    "sets. A ``seed`` may be an int64 tensor of shape ``[]``."
)


def _requires_grad(value: Tensor | None) -> bool:
    return value is not None and value.requires_grad and torch.is_grad_enabled()


def _seed_tensor(values: dict[str, Any], device: torch.device) -> Tensor | None:
    """Return the seed that was given as a tensor, or one drawn by PyTorch, or None if
    nothing can be dropped. It is a tensor, because torch.compile would make a number a
    constant."""
    if (given := values["seed"]) is not None:
        check_seed(seed=given)
        return given
    p = values["dropout_p"] if "dropout_p" in values else values["p"]
    if not p or not values.get("training", True):
        return None
    return torch.randint(2**63 - 1, (), device=device)


def _check_array(
    stem: str, name: str, value: Any, optional: bool, constant: bool
) -> None:
    """Raise TypeError for a value that is not a tensor of a supported kind, or for a
    tensor whose gradient would be wrong or missing."""
    if type(value) in operators.PLAIN_TYPES and not constant:
        if value.dtype in _DTYPES and value.layout is torch.strided:
            if not value.is_nested:
                return
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
            f"{name}: expected floating-point numbers of 16, 32, or 64 bits, booleans, "
            f"uint8, or integers of up to 64 bits with a sign; got dtype {value.dtype}"
        )
    elif value.layout is not torch.strided or value.is_nested:
        came = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        raise TypeError(f"{name}: expected a dense tensor; got {came}")
    elif type(value) not in operators.PLAIN_TYPES and hasattr(value, "to_local"):
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
        hint = parameter.annotation
        self.hint = inspect.formatannotation(hint)
        self.kinds = {*(typing.get_args(hint) or (hint,))}

    def checked(self, value: Any) -> Any:
        """Return the value. A library's number, such as NumPy's, becomes Python's.

        Raises TypeError for a type that the hint does not allow, and ValueError for an
        integer that no operator can receive.
        """
        if isinstance(value, Tensor):
            if Tensor in self.kinds:
                return value
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
    ``wanted``, and with an optional ``seed``."""
    hints = typing.get_type_hints(op.forward)
    arrays = {spec.name: spec.optional for spec in parse(op.SHAPES).inputs}
    parameters = []
    for p in inspect.signature(op.forward).parameters.values():
        hint = hints[p.name]
        if p.name in arrays:
            hint = Tensor | None if arrays[p.name] else Tensor
        if p.name == "seed":
            p, hint = p.replace(default=None), int | Tensor | None
        if p.name != "wanted":
            parameters.append(p.replace(annotation=hint))
    return inspect.Signature(parameters, return_annotation=Tensor)


# Autocast


def _autocast(rule: str, device: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with floating-point tensors in the dtype in which autocast runs
    the operation. If it has an option ``wide``, set that, so that its loss is float32.
    If one tensor is float64, which autocast does not cast, return the values unchanged.
    """
    tensors = {name: x for name, x in values.items() if isinstance(x, Tensor)}
    floating = {name: x for name, x in tensors.items() if x.is_floating_point()}
    dtypes = (x.dtype for x in floating.values())
    dtype = functools.reduce(torch.promote_types, dtypes)
    if dtype == torch.float64:
        return values
    if rule == "matmul":
        dtype = torch.get_autocast_dtype(device)
    elif rule == "float32":
        dtype = torch.float32
    wide = {"wide": True} if "wide" in values else {}
    return values | wide | {name: value.to(dtype) for name, value in floating.items()}


globals().update({stem: _function(stem) for stem in ops.STEMS})
__all__ = [*ops.STEMS]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _COUNTERPARTS:
        hint = f"it has {_COUNTERPARTS[name]}"
    else:
        hint = nearest(name, ops.STEMS)
    raise AttributeError(f"backpass.functional has no {name!r}; {hint}")
