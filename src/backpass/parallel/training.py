"""The training loop of ``backpass.training`` on a mesh of ranks.

::

    run = Run.resumed(state, text, like=np.zeros(1), group=group, data=2, tensor=2)
    for record in run:
        ...

A state is that of the whole network, whatever the mesh: a run that was stored on one
mesh goes on on another one, or on one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backpass.arrays import Array
from backpass.parallel.group import Group
from backpass.parallel.network import Network
from backpass.parallel.pipeline import Pipeline
from backpass.parallel.schedules import Schedule
from backpass.training import run
from backpass.training.run import MicroBatch, State


class Run(run.Run):
    """The steps of a run, as one of the ranks makes them. All ranks make the same
    calls, and get the same records.

    ``parameters`` are the rank's shares. The sizes of the mesh are those of
    ``Network``. With ``pipeline``, a schedule, the network is a ``Pipeline``, and the
    micro-batches of the options are divided further, into those of the schedule. A step
    whose loss or gradients are not finite raises FloatingPointError on every rank,
    before anything is updated. Raises ValueError for a pipeline with ``recompute``.
    """

    def __init__(
        self,
        state: State,
        text: bytes,
        *,
        group: Group,
        pipeline: Schedule | None = None,
        kernels: Any = None,
        **sizes: Any,
    ) -> None:
        super().__init__(state, text, kernels=kernels)
        inputs = (group, self.model, self.config)
        self.network: Network | Pipeline
        if pipeline is None:
            self.network = Network(*inputs, kernels=kernels, **sizes)
        elif self.options.recompute:
            raise ValueError("options: recompute is not available in a pipeline")
        else:
            self.network = Pipeline(*inputs, pipeline, kernels=kernels, **sizes)
        self.parameters = self.network.share(self.parameters)
        self.optimiser = run.moments(self.optimiser, self.network.share)
        self._decayed = [n for n in self._decayed if n in self.parameters]

    def state(self) -> State:
        """Return the state of the whole network after the last step, on every rank.
        All ranks call it; one of them stores it."""
        whole = self.network.whole
        return State(
            self.model,
            self.config,
            whole(self.parameters),
            run.moments(self.optimiser, whole),
            self.options,
            self.text,
            self.arrays,
        )

    def _forward(
        self, tokens: Array, targets: Array, **options: Any
    ) -> tuple[Array, Any]:
        batch = (self.parameters, tokens, targets)
        if isinstance(self.network, Network):
            recompute = self.options.recompute or None
            return self.network.forward(*batch, recompute=recompute, **options)
        if options.get("wanted") == ():
            return self.network.forward(*batch), None
        # A pipeline's backwards run between its forwards.
        return self.network.gradients(*batch)

    def _backward(self, saved: Any) -> dict[str, Array]:
        return (
            self.network.backward(saved) if isinstance(self.network, Network) else saved
        )

    def _norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        return self.network.norms(gradients)

    def _not_finite(
        self, parts: list[MicroBatch], what: str, otherwise: str = ""
    ) -> FloatingPointError:
        # All ranks have to make the same calls, so none looks further by itself.
        return FloatingPointError(what)
