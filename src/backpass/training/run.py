"""A run of training: a model, a text, and options, and one record for each step.

::

    run = Run.start(gpt2, config, text, Options(steps=1000), like=np.zeros(1))
    for record in run:
        print(record.step, record.loss)

``run.state()`` is all that a later ``Run.resumed(state, text, like=…)`` needs to go on
with the same numbers, bit for bit on the same machine, library, and number of threads.
``backpass.training.states`` stores it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace
from backpass.contract.values import check_natural
from backpass.training import (
    accumulation,
    adamw,
    batches,
    clipping,
    initial,
    schedule,
    texts,
)
from backpass.training._finite import fault_in_arrays, fault_in_parts
from backpass.training._mappings import copied
from backpass.training._numbers import (
    check_count,
    check_positive,
    check_rate,
    check_share,
)

MicroBatch = tuple[Array, Array, dict[str, Any]]
Copied = Callable[[Mapping[str, Array]], dict[str, Array]]
HELD_OUT_WINDOWS = 32  # of the held-out text, at which its loss is measured


@dataclass(frozen=True)
class Options:
    """What a run does with its model and its text.

    Raises TypeError or ValueError, which names the option, for one out of range.
    """

    steps: int = 1000
    batch: int = 16  # windows in a step
    length: int = 128  # tokens in a window
    micro_batches: int = 1  # into which a step's windows are divided
    recompute: int = 0  # layers that run again together in the backward; 0 for none
    lr: float = 1e-3  # the largest learning rate, after the warm-up
    warmup: int = 100  # steps
    clip: float = 1.0  # the largest global norm of the gradients
    weight_decay: float = 0.1  # of matrices and tables only
    beta_1: float = 0.9
    beta_2: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = ("steps", "batch", "length", "micro_batches")
        check_count(**{name: getattr(self, name) for name in sizes})
        naturals = ("recompute", "warmup", "seed")
        check_natural(**{name: getattr(self, name) for name in naturals})
        if self.batch % self.micro_batches:
            raise ValueError(
                f"micro_batches: expected a divisor of batch = {self.batch}; "
                f"got {self.micro_batches}"
            )
        if self.steps <= self.warmup:
            default = self.warmup == type(self).warmup
            raise ValueError(
                f"warmup: expected fewer than steps = {self.steps}; got {self.warmup}"
                f"{', the default: pass a smaller warmup too' if default else ''}"
            )
        check_rate(lr=self.lr, weight_decay=self.weight_decay)
        check_positive(clip=self.clip)
        check_share(beta_1=self.beta_1, beta_2=self.beta_2)


class Record(NamedTuple):
    """What one step was like."""

    step: int  # counted from 0
    loss: float  # of the step's batch, before its update
    rate: float  # the learning rate
    norm: float  # of all gradients, before clipping
    norms: dict[str, float]  # the same of each part of the model
    tokens_per_second: float


class State(NamedTuple):
    """All that a run needs to go on."""

    model: ModuleType
    config: Any
    parameters: Mapping[str, Array]  # by their names without a prefix
    optimiser: adamw.State
    options: Options
    text: str  # the digest of the whole text
    arrays: str  # the library, and the device of tensors

    @property
    def step(self) -> int:
        """How many steps were made."""
        return self.optimiser["step"]


class Run:
    """The steps of a run that are left; iterating makes them.

    Between two steps ``parameters`` are those of the last, which the next writes over,
    and ``state()`` can be stored. ``kernels`` is that of the models' ``forward``. A
    step whose loss or gradients are not finite raises FloatingPointError before
    anything is updated.
    """

    def __init__(self, state: State, text: bytes, *, kernels: Any = None):
        self.model, self.config = state.model, state.config
        self.options, self.text, self.arrays = state.options, state.text, state.arrays
        self.kernels = kernels
        self.parameters = copied(state.parameters)
        self.optimiser = moments(state.optimiser, copied)
        self.train, self.held_out = texts.divided(text)
        needed = self.options.length + 1
        if len(self.held_out) < needed:
            raise ValueError(
                f"text: expected at least {texts.HELD_OUT * needed} bytes, so that the "
                f"held-out tenth has length + 1 = {needed}; got {len(text)}"
            )
        positions = getattr(self.config, "positions", self.options.length)
        if positions < self.options.length:
            raise ValueError(
                f"length: expected at most {positions}, the number of positions; "
                f"got {self.options.length}"
            )
        self._decayed = adamw.with_axes(self.parameters)
        self._parts = self.model.part_names(self.config)

    @classmethod
    def start(
        cls,
        model: ModuleType,
        config: Any,
        text: bytes,
        options: Options,
        *,
        like: Array,
        **own: Any,
    ) -> Self:
        """Return a run of all steps, from parameters that ``options.seed`` determines.
        They have the dtype, the library, and the device of ``like``. ``own`` are the
        options of the class, such as ``kernels``.

        Raises ValueError if the text is too short, the model has too few positions, or
        its vocabulary cannot name every byte.
        """
        if config.vocabulary < batches.VOCABULARY:
            raise ValueError(
                f"vocabulary: expected at least {batches.VOCABULARY}, one token for "
                f"each byte; got {config.vocabulary}"
            )
        arrays = place(like)
        shapes = model.parameter_shapes(config)
        parameters = initial.parameters(
            shapes, layers=config.layers, seed=options.seed, like=like
        )
        optimiser, digest = adamw.start(parameters), texts.digest(text)
        state = State(model, config, parameters, optimiser, options, digest, arrays)
        return cls(state, text, **own)

    @classmethod
    def resumed(cls, state: State, text: bytes, *, like: Array, **own: Any) -> Self:
        """Return a run of the steps that are left after ``state``, with arrays of the
        library and on the device of ``like``. ``own`` are the options of the class.

        Raises ValueError if the text is not the one that the run began with.
        """
        if texts.digest(text) != state.text:
            raise ValueError(
                "text: expected the text that the run began with, whose SHA-256 is "
                f"{state.text[:12]}…; got one with {texts.digest(text)[:12]}…"
            )
        xp = namespace(like)

        def placed(arrays: Mapping[str, Array]) -> dict[str, Array]:
            return {
                name: array
                if place(array) == place(like)
                else xp.asarray(array, device=like.device)
                for name, array in arrays.items()
            }

        moved = state._replace(
            parameters=placed(state.parameters),
            optimiser=moments(state.optimiser, placed),
            arrays=place(like),
        )
        return cls(moved, text, **own)

    @property
    def made(self) -> int:
        """How many steps were made."""
        return self.optimiser["step"]

    def state(self) -> State:
        """Return the state after the last step."""
        return self._state(copied)

    def _state(self, collected: Copied) -> State:
        return State(
            self.model,
            self.config,
            collected(self.parameters),
            moments(self.optimiser, collected),
            self.options,
            self.text,
            self.arrays,
        )

    def __iter__(self) -> Iterator[Record]:
        while self.made < self.options.steps:
            yield self.step()

    def step(self) -> Record:
        """Make one step and return its record.

        Raises FloatingPointError if the loss or a gradient is not finite; the message
        names the step, the first being step 1, and the parameter, or the first part of
        the model, in the order of the forward, with an array that is not finite.
        Raises RuntimeError if all steps were made.
        """
        o, step, begin = self.options, self.made, time.perf_counter()
        if step >= o.steps:
            raise RuntimeError(
                f"the run is complete: {step:,} of {o.steps:,} steps were made"
            )
        rate = schedule.rate(step, peak=o.lr, warmup=o.warmup, steps=o.steps)
        parts = self._micro_batches(step)
        loss, gradients = accumulation.mean(
            (self._gradients(step, *part) for part in parts), fresh=True
        )
        try:
            norms = self._norms(gradients)
            gradients, norm = clipping.clip(
                gradients, o.clip, in_place=True, of_each=norms
            )
        except FloatingPointError as error:
            # The gradients are freed, which the frames of the traceback hold too.
            gradients, error.__traceback__ = {}, None
            raise self._not_finite(
                parts,
                f"step {step + 1}: {error}",
                "\n    All arrays of the forward are finite, so the backward overflowed.",
            ) from None
        adamw.update(
            self.parameters,
            gradients,
            self.optimiser,
            lr=rate,
            betas=(o.beta_1, o.beta_2),
            weight_decay=o.weight_decay,
            decayed=self._decayed,
            in_place=True,
        )
        seconds = time.perf_counter() - begin
        speed = o.batch * o.length / seconds
        return Record(step, loss, rate, norm, self._by_part(norms), speed)

    def held_out_loss(self) -> float:
        """Return the mean loss at windows that are spread evenly over the held-out
        text.

        Raises FloatingPointError if it is not finite; the message names the parameter
        or the part of the model, as that of a step does.
        """
        length = self.options.length
        last = len(self.held_out) - length - 1
        count = min(HELD_OUT_WINDOWS, 1 + last // length)
        starts = np.linspace(0, last, count).astype(int)
        losses = []
        for start in starts:
            window = self.held_out[start : start + length + 1]
            tokens, targets = batches.windows(
                window, batch=1, length=length, seed=0, step=0, like=self._like
            )
            loss = float(self._forward(tokens, targets, wanted=())[0])
            if not math.isfinite(loss):
                what = f"after step {self.made}, the held-out loss is {loss:.3g}"
                raise self._not_finite([(tokens, targets, {})], what)
            losses.append(loss)
        return math.fsum(losses) / count

    @property
    def _like(self) -> Array:
        return next(iter(self.parameters.values()))

    def _micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the tokens, the targets, and the options of the forward of each
        micro-batch."""
        o = self.options
        tokens, targets = batches.windows(
            self.train,
            batch=o.batch,
            length=o.length,
            seed=o.seed,
            step=step,
            like=self._like,
        )
        each = o.batch // o.micro_batches
        rows = [slice(i * each, (i + 1) * each) for i in range(o.micro_batches)]
        return [
            (tokens[some, :], targets[some, :], self._dropout(step, i))
            for i, some in enumerate(rows)
        ]

    def _dropout(self, step: int, micro_batch: int) -> dict[str, Any]:
        """Return the options of a forward that draw its masks of dropout, if the model
        has dropout."""
        rates = {name: p for name, p in vars(self.config).items() if "dropout" in name}
        if not any(rates.values()):
            return {}
        return {"masks": (self.options.seed, step, micro_batch)}

    def _forward(
        self, tokens: Array, targets: Array, **options: Any
    ) -> tuple[Array, Any]:
        return self.model.forward(
            self.parameters,
            tokens,
            targets,
            config=self.config,
            kernels=self.kernels,
            recompute=self.options.recompute or None,
            **options,
        )

    def _norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        return clipping.norms(gradients)

    def _gradients(
        self, step: int, tokens: Array, targets: Array, options: dict[str, Any]
    ) -> tuple[float, dict[str, Array], int]:
        """Return one micro-batch's loss, gradients, and number of counted targets."""
        loss, saved = self._forward(tokens, targets, **options)
        if not math.isfinite(loss):
            what = f"step {step + 1}: the loss is {loss:.3g}"
            del saved  # before the forward runs again
            raise self._not_finite([(tokens, targets, options)], what)
        return float(loss), self.model.backward(saved), accumulation.counted(targets)

    def _not_finite(
        self, parts: list[MicroBatch], what: str, otherwise: str = ""
    ) -> FloatingPointError:
        """Return the error, which says where the first number that is not finite arose:
        in the parameters, or in the forward of the micro-batches, which is run again.
        ``otherwise`` is added if all these are finite."""
        where = fault_in_arrays(self.parameters)
        for part in parts:
            where = where or self._fault_in_forward(*part)
        return FloatingPointError(f"{what}; {where}" if where else what + otherwise)

    def _fault_in_forward(
        self, tokens: Array, targets: Array, options: dict[str, Any]
    ) -> str | None:
        _, saved = self._forward(tokens, targets, **options)
        return fault_in_parts(self._parts, saved.parts)

    def _by_part(self, norms: Mapping[str, float]) -> dict[str, float]:
        """Return the norm of the gradients of each part that has parameters."""
        return {
            part: math.hypot(*own)
            for part in self._parts
            if (own := [n for name, n in norms.items() if name.startswith(f"{part}.")])
        }


def moments(state: adamw.State, collected: Copied) -> adamw.State:
    """Return the optimiser's state with both its mappings ``collected``."""
    return {
        "step": state["step"],
        "mean": collected(state["mean"]),
        "square": collected(state["square"]),
    }


def place(like: Array) -> str:
    """Return in a word where arrays like this one are: ``numpy``, or the device of a
    tensor. Raises TypeError unless it is an array."""
    if not is_array(like):
        raise TypeError(f"like: expected an array; got {type(like).__name__}")
    return "numpy" if isinstance(like, np.ndarray) else str(like.device)
