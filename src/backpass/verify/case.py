"""Hold the data of one check.

These are the subject, its inputs in float64, a random cotangent, and the gradients that
the backward returns for it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.verify.convert import (
    EPSILON,
    device_of,
    dtype_name,
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
    to_torch,
)
from backpass.verify.drawing import (
    COTANGENT,
    DIRECTIONS,
    MEASURING,
    Directions,
    generator,
)
from backpass.verify.findings import Findings
from backpass.verify.kernels import Kernels
from backpass.verify.magnitude import largest
from backpass.verify.measured import computed_precision, jumps, noise, spread
from backpass.verify.outputs import Malformed
from backpass.verify.slots import Slots
from backpass.verify.subject import Subject

FUNCTIONS_OF_XP = (
    ": call functions of xp, from array_api_compat.array_namespace(x), not NumPy's"
)

ROUNDINGS = 8  # times the change of an element when inputs move by two units
JUMPS = 8  # times an element's largest jump along a short step
COARSER = 64  # times a unit of the largest element: a jump of a coarser precision
# Forward's inputs: arrays, None for those left out, and other values.
Inputs = tuple[Any, ...]


class NotRun(Exception):
    """Raised if a method does not apply. The message says why."""


@dataclass(frozen=True)
class Case:
    """The data that every method gets.

    Arrays are NumPy float64 unless their name says otherwise. ``declared`` is the
    precision in which forward computes, if the user declared it. ``conventions`` maps
    each input whose gradient is not a derivative to the reason. Numbers that replace
    the inputs in a call of forward are rounded to ``precision`` and passed in the dtype
    ``fed``. ``drawn`` says whether the inputs were drawn at random. ``held`` has the
    lengths of arrays of integers that a layer holds, such as the labels of a batch,
    ``counts`` the integers that the object holds, such as a number of rows, and
    ``again`` calls forward and backward twice on one layer; see `layers.Layer`.
    ``kernels`` says how compiled kernels are executed, and ``slow`` that a forward
    takes so long that differences follow few directions.

    The class is long because methods share nothing else: what two of them need is
    computed here, once.
    """

    subject: Subject
    inputs: Inputs
    seed: int
    given_dy: Array | None = None
    operator: Callable[..., Array] | None = None
    tolerances: dict[str, tuple[float, str]] = field(default_factory=dict)
    explain: bool = True
    declared: str | None = None
    conventions: Mapping[str, str] = field(default_factory=dict)
    precision: str = "float64"
    fed: str = "float64"
    drawn: bool = False
    held: frozenset[int] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)
    again: Callable[..., tuple[Any, Any, int]] | None = None
    kernels: Kernels = field(default_factory=Kernels)
    slow: bool = False
    found: Findings = field(default_factory=Findings, compare=False)

    @cached_property
    def shared(self) -> dict[Hashable, Any]:
        """What methods have computed for this case and share, each under its own key,
        such as autograd's results."""
        return {}

    @property
    def rng(self) -> np.random.Generator:
        """A new generator, so that a method draws the same numbers whichever methods
        ran before it."""
        return generator(self.seed, DIRECTIONS)

    @cached_property
    def directions(self) -> Directions:
        """The random directions of the inputs, along which slopes are compared."""
        return Directions(self.float64, self.seed)

    @property
    def arrays(self) -> list[Array]:
        """The inputs that are arrays."""
        return [value for value in self.inputs if is_array(value)]

    @property
    def device(self) -> str:
        """The inputs' device."""
        return device_of(self.arrays[0])

    @property
    def dtype(self) -> str:
        """The name of the inputs' floating-point dtype."""
        return dtype_name(self.inputs[self.differentiable[0]])

    @cached_property
    def wide(self) -> list[int]:
        """The positions of the inputs in float32 beside others in half precision, if
        the operation accepts that."""
        names = self.subject.input_names
        return [
            at
            for at, value in enumerate(self.inputs)
            if names[at] in self.subject.wide
            and is_array(value)
            and dtype_name(value) == "float32"
            and self.dtype in ("float16", "bfloat16")
        ]

    @cached_property
    def slots(self) -> Slots:
        """The inputs, seen as places for gradients."""
        return Slots(self.subject, self.inputs)

    @property
    def differentiable(self) -> list[int]:
        """The positions of the inputs that get a gradient."""
        return self.slots.differentiable

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of the gradients: ``("dx",)``."""
        return tuple(map(self.subject.quantity, self.differentiable))

    @property
    def by_convention(self) -> dict[str, str]:
        """The inputs whose gradient is a convention, declared by the object or by the
        user, each with the reason."""
        return {**self.subject.conventions, **self.conventions}

    @property
    def derived(self) -> list[int]:
        """The positions of the inputs whose gradient is not a convention."""
        names = self.subject.input_names
        return [at for at in self.differentiable if names[at] not in self.by_convention]

    @property
    def judge(self) -> Callable[..., Array]:
        """The function whose gradient by autograd is the reference.

        It is forward, or the user's operator if a gradient is declared a convention.
        """
        return (
            self.operator
            if self.by_convention and self.operator
            else self.subject.plain_forward
        )

    @cached_property
    def computes_in(self) -> str:
        """The precision in which forward computes when it is given float64, as declared
        or measured."""
        if self.declared:
            return self.declared
        if not self.takes_float64:
            return max(self.dtype, self.y_dtype, key=EPSILON.__getitem__)
        known = self.found.precisions
        if "y" not in known:
            rng = generator(self.seed, MEASURING)
            known["y"] = computed_precision(self.forward, self.float64, self.y, rng)
        return known["y"]

    def backward_computes_in(self, at: int) -> str:
        """Return the precision in which backward computes the gradient of one input
        when it is given float64, as declared or measured.

        Forward and backward run several times, so a method calls this only for a
        gradient that differs from its reference.
        """
        if self.declared or not self.takes_float64:
            return self.computes_in
        known = self.found.precisions
        if at not in known:
            rng = generator(self.seed, MEASURING)
            values = *self.float64, self.dy
            gradient = partial(self.gradient_at, at)
            known[at] = computed_precision(gradient, values, gradient(values), rng)
        return known[at]

    def gradient_at(self, at: int, values: Inputs) -> np.ndarray:
        """Return the gradient of one input, for NumPy inputs and the cotangent."""
        y, saved = self.subject.forward(*self.native(values[:-1]))
        returned = self.subject.backward(to_kind_of(y, values[-1]), saved)
        gradient = self.slots.by_input(returned)[at]
        return np.zeros(()) if gradient is None else gradient

    def noise_of_backward(self, at: int) -> float:
        """Return the largest change of one gradient that rounding causes in the
        precision of backward, relative to the gradient's largest element."""
        values, rng = (*self.float64, self.dy), generator(self.seed, MEASURING)
        precision = self.backward_computes_in(at)
        return noise(partial(self.gradient_at, at), values, precision, rng)

    def explained_by_rounding(self, at: int, reference: np.ndarray) -> bool:
        """Whether rounding in backward's precision explains each element's error.

        It explains four units in the last place of the largest element, as where 1 − y²
        cancels, plus ROUNDINGS times the change of that element when the inputs and the
        cotangent move by two units.
        """
        got = self.gradients[at]
        if got is None or got.shape != reference.shape:
            return False
        allowed = self._rounding(at, largest(reference))
        return bool((np.abs(got - reference) <= allowed).all())

    def explained_along(self, at: int, slopes: Sequence[tuple[float, Array]]) -> bool:
        """Whether rounding in backward's precision explains the errors of slopes, given
        with their directions.

        A random direction does not depend on the elements' errors, so the error of a
        slope has the root of the sum of their squares as its standard deviation. Where
        the gradient jumps by much more than its precision, as if a factor were in half
        precision, rounding explains any error.
        """
        got = self.gradients[at]
        if got is None:
            return False
        values, rng = (*self.float64, self.dy), generator(self.seed, MEASURING)
        seen, size = jumps(partial(self.gradient_at, at), values, rng), largest(got)
        if largest(seen) > COARSER * EPSILON[self.backward_computes_in(at)] * size:
            return True
        allowed = self._rounding(at, size) / 2 + JUMPS * seen
        return all(
            abs(error) <= np.linalg.norm(allowed * direction)
            for error, direction in slopes
        )

    def _rounding(self, at: int, size: float) -> np.ndarray:
        """Return the error of each element of a gradient that rounding in backward's
        precision explains, if its largest element is ``size``."""
        unit = EPSILON[self.backward_computes_in(at)]
        values, rng = (*self.float64, self.dy), generator(self.seed, MEASURING)
        changes = spread(partial(self.gradient_at, at), values, 2 * unit, rng)
        return ROUNDINGS * changes + 4 * unit * size

    def coarse_backward(self, at: int) -> str:
        """Return the reason why a float64 reference cannot judge the gradient of one
        input: backward computes it in low precision. Return "" if it does not."""
        precision = self.backward_computes_in(at)
        if precision == "float64":
            return ""
        name = self.subject.quantity(at)
        return (
            f"backward returns {name} in float64 but computes it in {precision}, "
            "as measured"
        )

    @cached_property
    def takes_float64(self) -> bool:
        """Whether forward accepts float64 and returns it."""
        try:
            _ = self.run
        except NotRun:
            return False
        return True

    @property
    def uses_torch(self) -> bool:
        """Whether forward gets PyTorch tensors.

        It does if it requires them, or if tensors were given and it is not one of this
        package's operations, which accept either.
        """
        return self.subject.torch_only or (
            self.subject.stem is None and any(is_torch(a) for a in self.arrays)
        )

    @cached_property
    def float64(self) -> Inputs:
        """The inputs as NumPy arrays, with floating-point ones in float64.

        Inputs that are not arrays are unchanged.
        """
        return tuple(
            to_numpy(value) if is_array(value) else value for value in self.inputs
        )

    @property
    def finite(self) -> bool:
        """Whether all elements of the floating-point inputs are finite."""
        return all(np.isfinite(x).all() for x in self.float64 if is_floating(x))

    def tolerance(self, method: str, usual: float, why: str) -> tuple[float, str]:
        """Return the method's tolerance and the reason for it.

        These are the ``usual`` tolerance and ``why``, unless the user gave others.
        """
        return self.tolerances.get(method, (usual, why))

    def native(self, values: Inputs) -> Inputs:
        """Copy NumPy arrays into forward's library and the dtype ``fed``."""
        copied = (
            value.astype(self.fed) if is_floating(value) else _copy(value)
            for value in values
        )
        if not self.uses_torch:
            return tuple(copied)
        import torch

        return tuple(
            torch.as_tensor(value).to(self.device) if is_array(value) else value
            for value in copied
        )

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Round float64 values to the case's precision."""
        return (
            values
            if self.precision == "float64"
            else values.astype(self.precision).astype(np.float64)
        )

    def forward(self, values: Inputs) -> np.ndarray:
        """Return y for NumPy inputs, real or complex, computed in forward's library."""
        y = _back(self.subject.forward(*self.native(values))[0])
        return y if np.iscomplexobj(y) else y.astype(np.float64)

    def given(self) -> Inputs:
        """Copy the inputs as they were given."""
        return tuple(map(_copy, self.inputs))

    def elsewhere(self, inputs: Inputs, **changes: Any) -> Case:
        """Return the case at other inputs, with a new cotangent and without findings,
        except the low precision of its backward, and the precision of its forward: a
        maximum over many elements jumps as if it were rounded."""
        known = self.found.precisions.items()
        coarse = {of: found for of, found in known if of == "y" or found != "float64"}
        return replace(
            self,
            inputs=inputs,
            given_dy=None,
            drawn=False,
            found=Findings(precisions=coarse),
            **changes,
        )

    def with_own_suspects(self) -> Case:
        """Return the case for a comparison whose suspects are not those of the check,
        with all that is computed already."""
        own = copy(self)
        object.__setattr__(own, "found", replace(self.found, suspects={}))
        return own

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Inputs:
        """Return the inputs with ``change`` applied to the differentiable ones, which
        keep their library and dtype."""
        return tuple(
            to_kind_of(x, change(to_numpy(x))) if at in self.differentiable else x
            for at, x in enumerate(self.inputs)
        )

    @cached_property
    def y_as_given(self) -> np.ndarray:
        """Forward's output for the inputs as they were given."""
        return to_numpy(self._y_as_given)

    @property
    def y_dtype(self) -> str:
        """The name of the dtype of that output."""
        return dtype_name(self._y_as_given)

    @cached_property
    def _y_as_given(self) -> Array:
        y = _one_array(self.subject.forward(*self.given())[0])
        if not is_floating(y):
            raise Malformed(
                "forward: expected y of real floating-point numbers; "
                f"got {dtype_name(y)}"
            )
        return y

    @cached_property
    def y(self) -> np.ndarray:
        """Forward's output in float64.

        Raises NotRun, as ``gradients`` does, if forward cannot compute it.
        """
        return to_numpy(self.run[0])

    @cached_property
    def dy(self) -> np.ndarray:
        """The given cotangent, or a standard normal one.

        It is rounded to the inputs' dtype, and 0 where y is not finite. Raises
        ValueError unless the given one has the shape of y.
        """
        return self.dy_for(self.y_as_given)

    def dy_for(self, y: np.ndarray) -> np.ndarray:
        """Return the cotangent, given forward's output."""
        if self.given_dy is None:
            dy = generator(self.seed, COTANGENT).standard_normal(y.shape)
        else:
            dy = to_numpy(self.given_dy)
            if dy.shape != y.shape:
                raise ValueError(
                    f"dy: expected the output's shape {list(y.shape)}; "
                    f"got {list(dy.shape)}"
                )
        like = self.inputs[self.differentiable[0]]
        return to_numpy(to_kind_of(like, np.where(np.isfinite(y), dy, 0.0)))

    @cached_property
    def gradients(self) -> dict[int, np.ndarray | None]:
        """The gradients that backward returns for dy, in float64, by input."""
        return self.gradients_for(self.dy)

    def gradients_for(self, dy: np.ndarray) -> dict[int, np.ndarray | None]:
        """Return the gradients for a different cotangent."""
        y, saved = self.run
        return self.slots.by_input(self.subject.backward(to_kind_of(y, dy), saved))

    @cached_property
    def on_tensors(self) -> tuple[np.ndarray, dict[int, np.ndarray | None]]:
        """The subject's own y and gradients in float64, computed on tensors.

        An object without SHAPES is called with the library of its inputs, because it
        need not support a different one.
        """
        if self.subject.shapes is None or self.uses_torch:
            return self.y, self.gradients
        try:
            y, saved = self.subject.forward(
                *(to_torch(value, self.device) for value in self.inputs)
            )
            dy = to_torch(self.dy, self.device, y.dtype)
            found = self.slots.by_input(self.subject.backward(dy, saved))
        except Exception:
            if self.subject.stem is not None:
                raise
            return self.y, self.gradients  # a user's object that is written for NumPy
        return to_numpy(y), found

    def require_float64(self) -> None:
        """Raise NotRun if forward computes only in low precision, as kernels do."""
        _ = self.run
        if self.precision == "float64" != self.computes_in:
            how = "as declared" if self.declared else "as measured"
            raise NotRun(
                f"forward returns float64 but computes in {self.computes_in}, {how}"
            )

    @cached_property
    def run(self) -> tuple[Array, Any]:
        """Forward's y and saved object for the inputs in float64, in its library.

        Raises NotRun if forward does not accept or return float64.
        """
        try:
            y, saved = self.subject.forward(*self.native(self.float64))
        except Exception as error:
            if self.subject.shapes is not None or self.dtype == "float64":
                raise
            raise NotRun(
                f"forward does not accept float64 ({first_line(error)})"
            ) from None
        if dtype_name(_one_array(y)) != "float64" == self.precision:
            raise NotRun(f"forward computes in {dtype_name(y)}, given float64")
        return y, saved

    @cached_property
    def scales(self) -> dict[int, float]:
        """The natural scale of the gradient with respect to each input x.

        It is max abs(dy) · min(1, max abs(y) / max abs(x)).
        """
        dy, y = largest(self.dy), largest(self.y_as_given)
        sizes = {at: largest(self.float64[at]) for at in self.differentiable}
        return {
            at: dy * (min(1.0, y / x) if x > 0 and y > 0 else 1.0)
            for at, x in sizes.items()
        }


def describe(subject: Subject, inputs: Inputs) -> str:
    """Return ``x[3, 5], w[5, 7], float64, NumPy``, with the options."""
    parts = [
        f"{name}[{', '.join(map(str, value.shape))}]"
        if is_array(value)
        else f"{name}={value!r}"
        for name, value in zip(subject.input_names, inputs, strict=False)
        if value is not None
    ]
    parts += [f"{name}={value!r}" for name, value in subject.options.items()]
    arrays = [value for value in inputs if is_array(value)]
    types = dict.fromkeys(dtype_name(a) for a in arrays)
    library = f"PyTorch on {device_of(arrays[0])}" if is_torch(arrays[0]) else "NumPy"
    return ", ".join([*parts, *types, library])


def first_line(error: Exception) -> str:
    """Describe an exception in one line."""
    lines = str(error).splitlines()
    said = textwrap.shorten(lines[0], 160, placeholder=" …") if lines else ""
    if "active drivers" in said:  # Triton's words for a machine without a GPU
        said = (
            "Triton finds no GPU; with compiled=True (--compiled), check executes the "
            "kernels on the CPU"
        )
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def advised(error: Exception) -> str:
    """Describe what other arrays raise, with the remedy if NumPy's functions ran on
    them."""
    said = first_line(error)
    if "numpy" not in said.lower() and "ufunc" not in said:
        return f" ({said})"
    return f"{FUNCTIONS_OF_XP} ({said})"


def _copy(value: Any) -> Any:
    if not is_array(value):
        return value
    return value.detach().clone() if is_torch(value) else np.array(value, subok=True)


def _back(value: Array) -> np.ndarray:
    value = _one_array(value)
    return value.detach().cpu().numpy() if is_torch(value) else np.asarray(value)


def _one_array(y: object) -> Array:
    if not is_array(y) and not isinstance(y, np.generic):
        several = "; return several as a tuple" if isinstance(y, Mapping) else ""
        raise Malformed(
            f"forward: expected y to be one array; got {type(y).__name__}{several}"
        )
    return y
