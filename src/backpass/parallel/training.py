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
from backpass.training import run
from backpass.training.run import MicroBatch, State


class Run(run.Run):
    """The steps of a run, as one of the ranks makes them. All ranks make the same
    calls, and get the same records.

    ``parameters`` are the rank's shares. The sizes of the mesh are those of
    ``Network``. A step whose loss or gradients are not finite raises FloatingPointError
    on every rank, before anything is updated.
    """

    def __init__(
        self,
        state: State,
        text: bytes,
        *,
        group: Group,
        kernels: Any = None,
        **sizes: Any,
    ) -> None:
        super().__init__(state, text, kernels=kernels)
        self.network = Network(group, self.model, self.config, kernels=kernels, **sizes)
        self.parameters = self.network.share(self.parameters)
        self.optimiser = run.moments(self.optimiser, self.network.share)

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
        recompute = self.options.recompute or None
        return self.network.forward(
            self.parameters, tokens, targets, recompute=recompute, **options
        )

    def _backward(self, saved: Any) -> dict[str, Array]:
        return self.network.backward(saved)

    def _norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        return self.network.norms(gradients)

    def _not_finite(
        self, parts: list[MicroBatch], what: str, otherwise: str = ""
    ) -> FloatingPointError:
        # All ranks have to make the same calls, so none looks further by itself.
        return FloatingPointError(what)
