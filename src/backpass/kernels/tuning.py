"""Choose the configurations with which an autotuned kernel is executed.

Triton's autotuner times each configuration and keeps the fastest. When kernels are
executed on the CPU, times are meaningless, and each trial takes as long as the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from triton.runtime.autotuner import Autotuner

from backpass.kernels.trials import Memory, MemoryOf, sentence

# The number of configurations to execute, None for all, or a function that selects.
Wanted = int | None | Callable[[Sequence[Any]], Sequence[Any]]

_run = Autotuner.run


class Tuning:
    """A choice of configurations. ``left_out`` has a line for each kernel that was not
    executed with every configuration that its own pruning leaves.

    If more than one configuration is left, a kernel that overwrites what it was given
    is executed again, with its trials: ``repeated`` has a line for each kernel to which
    that makes a difference. The result is then that of a GPU's first call.

    If ``number`` is set, a kernel is executed with one of the chosen configurations:
    that of this number, counted from 0 and again from 0 after the last. ``most`` is the
    number of those chosen for a kernel that has most.
    """

    def __init__(self, wanted: Wanted) -> None:
        if isinstance(wanted, int) and wanted < 1:
            raise ValueError(
                "configurations: expected a positive number, None for all, or a "
                f"function that chooses from a list of them; got {wanted}"
            )
        self.wanted = wanted
        self.number: int | None = None
        self.most = 1
        self.memory_of: MemoryOf | None = None
        self.repeated: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.is_trial = False  # compile a kernel, which must fit, without running it
        self._runs_trial = False
        self._chosen: dict[Autotuner, dict[Any, Any]] = {}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let autotuners try only the chosen configurations, untimed."""
        before = Autotuner.run
        Autotuner.run = lambda tuner, *args, **options: self._tuned(  # type: ignore[method-assign]
            tuner, args, options
        )
        try:
            yield
        finally:
            Autotuner.run = before  # type: ignore[method-assign]

    def _tuned(self, tuner: Autotuner, args: Any, options: Any) -> Any:
        """Launch a kernel, independently of choices made outside the context."""
        name = tuner.base_fn.__name__
        prune = tuner.prune_configs
        replaced = {
            "cache": self._chosen.setdefault(tuner, {}),
            "cache_results": False,
            "prune_configs": lambda given: self._first(name, prune(given)),
            "do_bench": self._tried,
        }
        before = {**vars(tuner)}
        vars(tuner).update(replaced)
        try:
            return self._launched(tuner, args, options)
        finally:
            for key in replaced:
                del vars(tuner)[key]
                vars(tuner).update({key: before[key]} if key in before else {})

    def _launched(self, tuner: Autotuner, args: Any, options: Any) -> Any:
        """Launch a kernel, and again with trials if these may matter."""
        if self.memory_of is None or len(tuner.configs) < 2:
            return _run(tuner, *args, **options)
        known = {**dict(zip(tuner.arg_names, args, strict=False)), **options}
        memory, size = Memory(known, self.memory_of), len(tuner.cache)
        self._only = self._several = False
        found = _run(tuner, *args, **options)
        tried = len(tuner.cache) > size  # and not a choice of an earlier launch
        if not tried or not self._several or not memory.overwritten:
            return found
        launched = memory.copied()
        memory.restore()
        if self._only:
            tuner.cache.clear()
            self._runs_trial = True
        try:
            found = _run(tuner, *args, **options)
        finally:
            self._runs_trial = False
        if names := memory.differing(launched):
            name = tuner.base_fn.__name__
            self.repeated[name] = sentence(name, names)
        if not self._only:  # the trials were part of the first run
            memory.restore(launched)
        return found

    def _first(self, name: str, configurations: Sequence[Any]) -> Sequence[Any]:
        """Return the configurations to try, and note how many are left out."""
        count = len(configurations)
        if callable(self.wanted):
            configurations = [*self.wanted(configurations)]
            if not configurations:
                raise ValueError(
                    f"configurations: expected one or more of the {count} of {name}; "
                    "got none"
                )
            self._left = len(configurations)
        else:
            self._left = min(count, count if self.wanted is None else self.wanted)
        if self._left < count:
            self.left_out[name] = (
                f"{name}: {count - self._left} of {count} configurations"
            )
        self.most = max(self.most, self._left)
        if self.number is not None:
            at = self.number % self._left
            configurations = [*configurations[at:], *configurations[:at]]
            self._left = 1
        self._only, self._several = self._left == 1, count > 1
        return configurations

    def _tried(self, call: Callable[[], object], **_: object) -> list[float]:
        """Try a configuration, unless enough have been tried. If it does not fit, the
        autotuner goes on to the next. If only one is wanted, the trial does not run the
        kernel, because the launch that follows does."""
        if not self._left:
            return [math.inf] * 3
        self.is_trial = self._only and not self._runs_trial
        try:
            call()
        finally:
            self.is_trial = False
        self._left -= 1
        return [0.0] * 3
