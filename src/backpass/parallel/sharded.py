"""A network of ``backpass.models`` whose parameters are divided among the ranks of data
parallelism, and gathered piece by piece: the third stage of ZeRO (Rajbhandari et al.,
2020, arXiv:1910.02054), as in FSDP.

::

    network = Sharded(group, llama, config, data=4)
    own = network.share(parameters)
    loss, gradients = network.gradients(own, tokens, targets)

A piece is a layer, or what stands before and after the layers. In the forward a rank
gathers a piece's parameters, runs it, and keeps its input only. In the backward it
gathers them again, runs the piece again and back, and sums and cuts the gradients. So
a rank gathers the whole parameters of one piece at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from backpass.contract.arrays import Array, namespace
from backpass.contract.values import check_loss_scale
from backpass.models._parameters import check_arrays
from backpass.parallel import zero
from backpass.parallel.group import Group
from backpass.parallel.network import Network
from backpass.parallel.pieces import Piece, Runner, add, pieces


class Sharded:
    """A GPT-2 or a Llama on the ranks of a group, as one of them sees it.

    The sizes are those of ``Network``. A rank's parameters and gradients are flat: its
    shards of its shares. ``largest`` is the largest number of bytes of parameters that
    were gathered at a time. All ranks make the same calls. Raises what ``Network``
    raises.
    """

    def __init__(
        self, group: Group, model: ModuleType, config: Any, **sizes: Any
    ) -> None:
        self.group, self.model, self.config = group, model, config
        self.network = Network(group, model, config, **sizes)
        self.shapes = self.network.shapes
        self.pieces = pieces(model, config)
        self.largest = 0

    def share(self, whole: Mapping[str, Array]) -> dict[str, Array]:
        """Return the rank's shards ``[n]`` of its shares of whole parameters, or of
        arrays of their shapes, as copies."""
        return zero.shard(self.network.alike, self.network.share(whole))

    def whole(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return the whole arrays from the ranks' shards, on every rank. Raises
        ValueError for a shard that does not fit."""
        self._check(own, "shards")
        gathered = zero.gathered(self.network.alike, own, self.shapes)
        return self.network.whole(gathered)

    def loss(self, own: Mapping[str, Array], tokens: Array, targets: Array) -> Array:
        """Return the loss ``[]`` of the whole batch, from the rank's shards of the
        parameters and from all tokens and targets ``[b, s]``."""
        self._check(own, "parameters", complete=True)
        x, targets = self.network.parts(tokens, targets)
        runner = Runner(self.model, self.config, self.network.schemes)
        for piece in self.pieces:
            x = runner.forward(piece, x, self._gathered(piece, own), targets)[0]
        return self.network.mean(x, targets)[0]

    def gradients(
        self,
        own: Mapping[str, Array],
        tokens: Array,
        targets: Array,
        *,
        scale: float = 1,
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss ``[]`` of the whole batch, and the rank's shards ``[n]`` of
        the gradients of the loss times ``scale``, in half precision as float32.

        Raises what ``Network`` raises; ValueError for shards that are missing or do not
        fit, or for a ``scale`` that is not above 0 and finite.
        """
        check_loss_scale(scale)
        self._check(own, "parameters", complete=True)
        x, targets = self.network.parts(tokens, targets)
        runner = Runner(self.model, self.config, self.network.schemes)
        gradients: dict[str, Array] = {}

        def forward(piece: Piece, x: Array) -> tuple[Array, Any]:
            return runner.forward(piece, x, self._gathered(piece, own), targets)

        def backward(piece: Piece, dy: Array, saved: Any) -> Array:
            dx, found = piece.backward(dy, saved, "B")
            add(gradients, zero.reduced(self.network.alike, found))
            return dx

        # The embedding saves no parameters, and the head's backward follows at once. So
        # these two do not run again.
        first, *middle, head = self.pieces
        x, looked = forward(first, x)
        inputs = []
        for piece in middle:
            inputs.append(x)
            x = forward(piece, x)[0]  # nothing else of the piece stays
        y, saved = forward(head, x)
        loss, share = self.network.mean(y, targets)
        dy = backward(head, namespace(y).full_like(y, scale * (share or 1)), saved)
        del saved
        for piece in reversed(middle):
            dy = backward(piece, dy, forward(piece, inputs.pop())[1])
        backward(first, dy, looked)
        return loss, gradients

    def _check(
        self, own: Mapping[str, Array], what: str, *, complete: bool = False
    ) -> None:
        ranks = self.network.alike.size
        lengths = {n: (zero.shard_length(x, ranks),) for n, x in self.shapes.items()}
        check_arrays(own, lengths, what, complete=complete)

    def _gathered(self, piece: Piece, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return the rank's shares of the piece's parameters."""
        names = piece.names.values()
        shards = {name: own[name] for name in names}
        found = zero.gathered(self.network.alike, shards, self.shapes)
        self.largest = max(self.largest, sum(x.nbytes for x in found.values()))
        return found

    def bytes_moved(self, itemsize: int) -> int:
        """Return the bytes of parameters and gradients that a rank sends in a step: of
        a piece that runs again, two all-gathers and one reduce-scatter, and of the
        first and the last, one each. A parameter has ``itemsize`` bytes; half precision
        is summed in float32."""
        ranks = self.network.alike.size
        each = [
            sum(zero.shard_length(self.shapes[n], ranks) for n in piece.names.values())
            for piece in self.pieces
        ]
        gathered = (2 * sum(each) - each[0] - each[-1]) * itemsize
        return (ranks - 1) * (gathered + sum(each) * max(itemsize, 4))

    def norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        """Return the norm of each whole gradient from the ranks' shards, the same on
        every rank. Raises FloatingPointError on every rank if one is not finite, and
        ValueError for a shard that does not fit."""
        self._check(gradients, "gradients")
        counted = {name: self.network.shares[name].first for name in gradients}
        return zero.norms(self.group, gradients, counted)
