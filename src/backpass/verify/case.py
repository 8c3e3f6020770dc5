"""Hold the data of one check.

These are the subject, its inputs in float64, a random cotangent, and the gradients that
the backward returns for it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
from backpass.verify.drawing import COTANGENT, DIRECTIONS, MEASURING, generator
from backpass.verify.magnitude import largest
from backpass.verify.measured import computed_precision
from backpass.verify.outputs import Malformed, Several
from backpass.verify.subject import Subject

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
    ``fed``. ``drawn`` says whether the inputs were drawn at random.
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
    suspects: dict[tuple[str, str], Suspect] = field(
        default_factory=dict, compare=False
    )
    references: dict[tuple[str, str], np.ndarray] = field(
        default_factory=dict, compare=False
    )

    @cached_property
    def differentiated(self) -> dict[Any, tuple[np.ndarray, dict[int, np.ndarray]]]:
        """Autograd's results for this case so far, by function and dtype."""
        return {}

    @cached_property
    def moved(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The first difference taken for each input; see
        ``finite_difference.first_difference``."""
        return {}

    @property
    def rng(self) -> np.random.Generator:
        """A new generator, so that a method draws the same numbers whichever methods
        ran before it."""
        return generator(self.seed, DIRECTIONS)

    def directions(self, at: int, count: int) -> list[np.ndarray]:
        """Return the first ``count`` random directions of an input.

        They are 0 where the input is infinite, because −∞ plus a step stays −∞.
        """
        x = self.float64[at]
        rng, drawn = self._drawn.setdefault(at, (self.rng, []))
        while len(drawn) < count:
            drawn.append(np.where(np.isfinite(x), rng.standard_normal(x.shape), 0.0))
        return drawn[:count]

    def direction(self, at: int) -> np.ndarray:
        """Return the first random direction of an input."""
        return self.directions(at, 1)[0]

    @cached_property
    def _drawn(self) -> dict[int, tuple[np.random.Generator, list[np.ndarray]]]:
        return {}

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
        return [
            at
            for at, (name, value) in enumerate(
                zip(self.subject.input_names, self.inputs, strict=False)
            )
            if name in self.subject.wide
            and is_array(value)
            and dtype_name(value) == "float32"
            and self.dtype in ("float16", "bfloat16")
        ]

    @cached_property
    def differentiable(self) -> list[int]:
        """The positions of the inputs that get a gradient."""
        return self.subject.differentiable(self.inputs)

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
        floating = [at for at, value in enumerate(self.inputs) if is_floating(value)]

        def forward(values: list[np.ndarray]) -> np.ndarray:
            moved = dict(zip(floating, values, strict=True))
            return self.forward(
                tuple(moved.get(at, value) for at, value in enumerate(self.float64))
            )

        values = [self.float64[at] for at in floating]
        return computed_precision(
            forward, values, self.y, generator(self.seed, MEASURING)
        )

    @cached_property
    def takes_float64(self) -> bool:
        """Whether forward accepts float64 and returns it."""
        try:
            _ = self._run
        except NotRun:
            return False
        return True

    @property
    def uses_torch(self) -> bool:
        """Whether forward gets PyTorch tensors.

        It does if it requires them, or if it declares no SHAPES and tensors were given.
        """
        return self.subject.torch_only or (
            self.subject.shapes is None and any(is_torch(a) for a in self.arrays)
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
        return all(
            np.isfinite(self.float64[at]).all()
            for at in range(len(self.inputs))
            if is_floating(self.inputs[at])
        )

    def tolerance(self, method: str, usual: float, why: str) -> tuple[float, str]:
        """Return the method's tolerance and the reason for it.

        These are the ``usual`` tolerance and ``why``, unless the user gave others.
        """
        return self.tolerances.get(method, (usual, why))

    def quantity(self, at: int) -> str:
        """Return ``dx`` for the gradient with respect to the input x."""
        return f"d{self.subject.input_names[at]}"

    def native(self, values: Inputs) -> Inputs:
        """Copy NumPy arrays into forward's library and the dtype ``fed``."""
        copied = [
            value.astype(self.fed)
            if is_floating(value)
            else _copy(value)
            if is_array(value)
            else value
            for value in values
        ]
        return (
            tuple(_torch_like(value, self.device) for value in copied)
            if self.uses_torch
            else tuple(copied)
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
        return tuple(
            _copy(value) if is_array(value) else value for value in self.inputs
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
        return to_numpy(self._run[0])

    @cached_property
    def dy(self) -> np.ndarray:
        """The given cotangent, or a standard normal one.

        It is rounded to the inputs' dtype, and 0 where y is not finite. Raises
        ValueError unless the given one has the shape of y.
        """
        y = self.y_as_given
        if self.given_dy is None:
            dy = generator(self.seed, COTANGENT).standard_normal(y.shape)
        else:
            dy = to_numpy(self.given_dy)
            if dy.shape != y.shape:
                raise ValueError(
                    f"dy: expected the output's shape {list(y.shape)}; "
                    f"got {list(dy.shape)}"
                )
        return _rounded(
            np.where(np.isfinite(y), dy, 0.0), like=self.inputs[self.differentiable[0]]
        )

    @cached_property
    def gradients(self) -> dict[int, np.ndarray | None]:
        """The gradients that backward returns for dy, in float64, by input."""
        return self.gradients_for(self.dy)

    def gradients_for(self, dy: np.ndarray) -> dict[int, np.ndarray | None]:
        """Return the gradients for a different cotangent."""
        y, saved = self._run
        return self.by_input(self.subject.backward(to_kind_of(y, dy), saved))

    @cached_property
    def on_tensors(self) -> tuple[np.ndarray, dict[int, np.ndarray | None]]:
        """The subject's own y and gradients in float64, computed on tensors.

        An object without SHAPES is called with the library of its inputs, because it
        need not support a different one.
        """
        if self.subject.shapes is None:
            return self.y, self.gradients
        y, saved = self.subject.forward(
            *(to_torch(value, self.device) for value in self.inputs)
        )
        returned = self.subject.backward(to_torch(self.dy, self.device, y.dtype), saved)
        return to_numpy(y), self.by_input(returned)

    @property
    def terms(self) -> dict[str, np.ndarray]:
        """The arrays from which a gradient may be computed, by name.

        These are the floating-point inputs, y, dy, and the other saved arrays.
        """
        named = zip(self.subject.input_names, self.float64, strict=False)
        terms = {name: value for name, value in named if is_floating(value)}
        terms |= {"y": self.y_as_given, "dy": self.dy}
        try:
            saved = self._run[1]
        except NotRun:
            return terms
        for name, value in named_arrays(saved):
            value = to_numpy(value)
            if not any(
                np.array_equal(value, known, equal_nan=True) for known in terms.values()
            ):
                terms[name] = value
        return terms

    def require_float64(self) -> None:
        """Raise NotRun if forward computes only in low precision, as kernels do."""
        _ = self._run
        if self.precision == "float64" != self.computes_in:
            how = "as declared" if self.declared else "as measured"
            raise NotRun(
                f"forward returns float64 but computes in {self.computes_in}, {how}"
            )

    @cached_property
    def _run(self) -> tuple[Array, Any]:
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

    def by_input(self, returned: Any) -> dict[int, np.ndarray | None]:
        """Return backward's results in float64, by position of the input.

        Raises Malformed if the number of gradients is wrong, or if one is not an array
        of real numbers.
        """
        gradients = self.by_position(returned)
        for at, gradient in gradients.items():
            if gradient is not None and not is_floating(gradient):
                wanted = (
                    "real floating-point numbers" if is_array(gradient) else "an array"
                )
                got = (
                    dtype_name(gradient)
                    if is_array(gradient)
                    else type(gradient).__name__
                )
                raise Malformed(f"{self.quantity(at)}: expected {wanted}; got {got}")
        return {
            at: None if gradient is None else to_numpy(gradient)
            for at, gradient in gradients.items()
        }

    def by_position(
        self, returned: Any, *, every: bool = False
    ) -> dict[int, Array | None]:
        """Return backward's results by position of the input.

        They are those of the differentiable inputs, or with ``every`` all of them.
        Raises Malformed if the number of gradients is wrong.
        """
        gradients = (
            list(returned) if isinstance(returned, (tuple, list)) else [returned]
        )
        # Drop those of optional inputs that were not given.
        while len(gradients) > len(self.inputs) and gradients[-1] is None:
            gradients.pop()
        with_optional = [
            at for at in range(len(self.inputs)) if self._may_have_gradient(at)
        ]
        for positions in (self.differentiable, with_optional, range(len(self.inputs))):
            if len(gradients) == len(positions):
                found = dict(zip(positions, gradients, strict=True))
                return found if every else {at: found[at] for at in self.differentiable}
        names = ", ".join(self.quantity(at) for at in self.differentiable)
        raise Malformed(
            f"backward: expected {len(self.differentiable)} gradients ({names}); "
            f"got {len(gradients)}"
        )

    def _may_have_gradient(self, at: int) -> bool:
        if self.inputs[at] is not None:
            return at in self.differentiable
        shapes = self.subject.shapes
        floating = shapes is None or shapes.inputs[at].floating
        return floating and self.subject.input_names[at] not in self.subject.constants

    def scale(self, at: int) -> float:
        """Return the natural scale of the gradient with respect to the input x.

        It is max abs(dy) · min(1, max abs(y) / max abs(x)).
        """
        y, dy, inputs = self._largest
        x = inputs[at]
        return dy * (min(1.0, y / x) if x > 0 and y > 0 else 1.0)

    @cached_property
    def _largest(self) -> tuple[float, float, dict[int, float]]:
        """The largest elements of y, dy and the inputs that have a gradient."""
        inputs = {at: largest(self.float64[at]) for at in self.differentiable}
        return largest(self.y_as_given), largest(self.dy), inputs


@dataclass(frozen=True)
class Suspect:
    """A wrong quantity, with everything that its diagnosis needs.

    It is diagnosed once, against the best reference. ``accuracy`` is that of the
    reference; ``diagnose(seconds)`` returns the sentence.
    """

    accuracy: float
    diagnose: Callable[[float], str]


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


def named_arrays(saved: object) -> Iterator[tuple[str, Array]]:
    """Yield the floating-point arrays in ``saved``, each with a name."""
    if isinstance(saved, Several):
        saved = saved.saved
    if isinstance(saved, dict):
        pairs = [(str(key), value) for key, value in saved.items()]
    elif isinstance(saved, (tuple, list)):
        names = getattr(saved, "_fields", None) or [
            f"saved[{at}]" for at in range(len(saved))
        ]
        pairs = list(zip(names, saved, strict=True))
    elif hasattr(saved, "__dict__") and not is_array(saved):
        pairs = list(vars(saved).items())
    else:
        pairs = [("saved", saved)]
    return ((name, value) for name, value in pairs if is_floating(value))


def first_line(error: Exception) -> str:
    """Describe an exception in one line."""
    lines = str(error).splitlines()
    said = textwrap.shorten(lines[0], 160, placeholder=" …") if lines else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _rounded(values: np.ndarray, like: Array) -> np.ndarray:
    """Round float64 values to the dtype of ``like``."""
    return to_numpy(
        to_torch(values, dtype=like.dtype)
        if is_torch(like)
        else values.astype(like.dtype)
    )


def _copy(value: Array) -> Array:
    return value.detach().clone() if is_torch(value) else np.array(value)


def _torch_like(value: object, device: str):
    import torch

    if not is_array(value):
        return value
    return torch.as_tensor(value).to(device)


def _back(value: Array) -> np.ndarray:
    value = _one_array(value)
    return value.detach().cpu().numpy() if is_torch(value) else np.asarray(value)


def _one_array(y: object) -> Array:
    if not is_array(y) and not isinstance(y, np.generic):
        raise Malformed(f"forward: expected y to be one array; got {type(y).__name__}")
    return y
