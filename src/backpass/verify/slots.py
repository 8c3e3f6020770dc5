"""Match the gradients that a backward returns with the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace
from backpass.verify.convert import dtype_name, is_floating, to_numpy
from backpass.verify.outputs import Malformed, flat
from backpass.verify.subject import Subject


@dataclass(frozen=True)
class Slots:
    """The inputs, seen as places for gradients."""

    subject: Subject
    inputs: tuple[Any, ...]

    @cached_property
    def differentiable(self) -> list[int]:
        """The positions of the inputs that get a gradient."""
        return self.subject.differentiable(self.inputs)

    def by_input(self, returned: Any) -> dict[int, np.ndarray | None]:
        """Return backward's results in float64, by position of the input.

        Raises Malformed if the number of gradients is wrong, or if one is not an array
        of real numbers.
        """
        gradients = self.by_position(returned)
        for at, gradient in gradients.items():
            if gradient is not None and not is_floating(gradient):
                wanted, got = "an array", type(gradient).__name__
                if is_array(gradient):
                    wanted, got = "real floating-point numbers", dtype_name(gradient)
                name = self.subject.quantity(at)
                raise Malformed(f"{name}: expected {wanted}; got {got}")
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
        if isinstance(returned, Mapping):
            returned = self._by_name(returned)
        gradients = flat(returned)
        # Drop those of optional inputs that were not given.
        while len(gradients) > len(self.inputs) and gradients[-1] is None:
            gradients.pop()
        every_input = range(len(self.inputs))
        with_optional = [at for at in every_input if self._may_have_gradient(at)]
        for positions in (self.differentiable, with_optional, every_input):
            if len(gradients) == len(positions):
                found = dict(zip(positions, gradients, strict=True))
                found |= {
                    at: namespace(self.inputs[at]).zeros_like(self.inputs[at])
                    for at in self.differentiable
                    if found.get(at) is None and self._is_zero(at)
                }
                return found if every else {at: found[at] for at in self.differentiable}
        names = ", ".join(self.subject.quantity(at) for at in self.differentiable)
        raise Malformed(
            f"backward: expected {len(self.differentiable)} gradients ({names}); "
            f"got {len(gradients)}{self._constants(len(gradients))}"
        )

    def _constants(self, returned: int) -> str:
        """Return the hint to name the last inputs in ``constants``, such as the targets
        of a loss, if there are fewer gradients than inputs."""
        if not 0 < returned < len(self.differentiable):
            return ""
        names = [self.subject.input_names[at] for at in self.differentiable[returned:]]
        have = "has" if len(names) == 1 else "have"
        return f". If {' and '.join(names)} {have} no gradient, give constants={names}"

    def _is_zero(self, at: int) -> bool:
        """Whether the gradient is declared identically zero and None may stand for it,
        as in PyTorch. For a backward with ``wanted``, None means not wanted."""
        name = self.subject.input_names[at]
        return name in self.subject.zero_gradients and self.subject.told is None

    def _by_name(self, returned: Mapping[str, Any]) -> list[Any]:
        """Return the gradients of a dictionary by position. Its keys are the names of
        inputs, or of their gradients: ``w`` or ``dw``."""
        names = self.subject.input_names[: len(self.inputs)]
        keys = {key: name for name in names for key in (f"d{name}", name)}
        if unknown := [key for key in returned if key not in keys]:
            listed = ", ".join(map(self.subject.quantity, self.differentiable))
            raise Malformed(
                f"backward: expected gradients named {listed}; got {unknown[0]!r}"
            )
        if len({keys[key] for key in returned}) < len(returned):
            raise Malformed(
                "backward: expected one gradient of each input; got the keys "
                f"{', '.join(map(repr, returned))}"
            )
        found = {keys[key]: gradient for key, gradient in returned.items()}
        return [found.get(name) for name in names]

    def _may_have_gradient(self, at: int) -> bool:
        if self.inputs[at] is not None:
            return at in self.differentiable
        specs = self.subject.shapes.inputs if self.subject.shapes else ()
        floating = at >= len(specs) or specs[at].floating
        return floating and self.subject.input_names[at] not in self.subject.constants
