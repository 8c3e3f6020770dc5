"""The training loop of ``backpass.training`` on a mesh of ranks.

::

    run = Run.resumed(state, text, like=np.zeros(1), group=group, data=2, tensor=2)
    for record in run:
        ...

A state is that of the whole network, whatever the mesh: a run that was stored on one
mesh goes on on another one, or on one process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backpass.contract.arrays import Array
from backpass.contract.values import check_bool
from backpass.parallel.group import Group
from backpass.parallel.network import Network
from backpass.parallel.pipeline import Pipeline
from backpass.parallel.schedules import Schedule
from backpass.parallel.sharded import Sharded
from backpass.training import accumulation, run
from backpass.training.run import MicroBatch, State


class Run(run.Run):
    """The steps of a run, as one of the ranks makes them. All ranks make the same
    calls, and get the same records, except for how fast they were.

    ``parameters`` are the rank's shares. The sizes of the mesh are those of
    ``Network``. With ``pipeline``, a schedule, the network is a ``Pipeline``, and the
    micro-batches of the options are divided further, into those of the schedule. With
    ``sharded`` it is a ``Sharded``: parameters and AdamW's state are shards. A step
    whose loss or gradients are not finite raises FloatingPointError on every rank,
    before anything is updated. Raises ValueError for ``recompute`` together with one of
    these, and for both.
    """

    def __init__(
        self,
        state: State,
        text: bytes,
        *,
        group: Group,
        pipeline: Schedule | None = None,
        sharded: bool = False,
        kernels: Any = None,
        **sizes: Any,
    ) -> None:
        super().__init__(state, text, kernels=kernels)
        inputs = (group, self.model, self.config)
        check_bool(sharded=sharded)
        if pipeline is not None and not isinstance(pipeline, Schedule):
            raise TypeError(
                "pipeline: expected a Schedule, such as one_f_one_b returns, or None; "
                f"got {type(pipeline).__name__}"
            )
        if self.options.recompute and (sharded or pipeline):
            what = "in a pipeline" if pipeline else "with shards"
            raise ValueError(f"options: recompute cannot be chosen {what}")
        if sharded and pipeline:
            raise ValueError("sharded: not available in a pipeline")
        self.network: Network | Pipeline | Sharded
        if pipeline is None:
            made = Sharded if sharded else Network
            self.network = made(*inputs, kernels=kernels, **sizes)
        else:
            self.network = Pipeline(*inputs, pipeline, kernels=kernels, **sizes)
        self.parameters = self.network.share(self.parameters)
        self.optimiser = run.moments(self.optimiser, self.network.share)
        self._decayed = [n for n in self._decayed if n in self.parameters]

    def state(self) -> State:
        """Return the state of the whole network after the last step, on every rank.
        All ranks call it; one of them stores it."""
        return self._state(self.network.whole)

    def _forward(
        self, tokens: Array, targets: Array, **options: Any
    ) -> tuple[Array, Any]:
        return self.network.loss(self.parameters, tokens, targets), None

    def _gradients(
        self, step: int, tokens: Array, targets: Array, options: dict[str, Any]
    ) -> tuple[float, dict[str, Array], int]:
        if isinstance(self.network, Network):
            options = options | {"recompute": self.options.recompute or None}
        loss, gradients = self.network.gradients(
            self.parameters, tokens, targets, **options
        )
        if not math.isfinite(loss):
            raise FloatingPointError(f"step {step + 1}: the loss is {float(loss):.3g}")
        return float(loss), gradients, accumulation.counted(targets)

    def _norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        return self.network.norms(gradients)

    def _not_finite(
        self, parts: list[MicroBatch], what: str, otherwise: str = ""
    ) -> FloatingPointError:
        # All ranks have to make the same calls, so none looks further by itself.
        return FloatingPointError(what)
