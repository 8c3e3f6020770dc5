"""A network of ``backpass.models`` on a mesh of ranks: data × context × tensor.

::

    network = Network(group, llama, config, data=2, tensor=2, sequence=True)
    share = network.share(parameters)
    loss, saved = network.forward(share, tokens, targets)
    gradients = network.backward(saved)

Every rank is given the whole batch, and takes its part: its rows along the axis data,
and its positions along the axis context. Along tensor it has a share of the heads, of
the hidden columns, and of the vocabulary. The model itself runs on every rank, with the
schemes of this package in place of some of its operations. The loss is that of the
whole batch, and a rank's gradients are its shares of that loss's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace, widened
from backpass.contract.philox import Part, runs
from backpass.contract.shapes import check_inputs, check_saved, kind
from backpass.contract.values import check_bool, check_loss_scale
from backpass.contract.wanted import Wanted
from backpass.models import gpt2, llama
from backpass.models._parameters import check_arrays, check_config
from backpass.models.language_model import check_length
from backpass.models.layers import gpt2_attention, llama_attention, output_head
from backpass.models.layers.kernel import Instead, gradients_of, implementation
from backpass.ops import (
    attention,
    dropout,
    embedding,
    feed_forward,
    flash_attention,
    layer_norm,
    position_embedding,
    rms_norm,
    rope,
)
from backpass.parallel import ring_attention, zero
from backpass.parallel.group import Group, mesh
from backpass.parallel.shares import Heads, Share, Span, heads_in, shares, span
from backpass.parallel.tensor import Block, Norm, Parts, Whole
from backpass.parallel.vocabulary import Head, Rows, Table
from backpass.training import accumulation

BATCH = "tokens[b, s>0]:int, targets[b, s]:int -> loss[]"


class Saved(NamedTuple):
    """What the model saved, and the rank's share of the counted targets."""

    own: Any
    share: float


class Ring:
    """Attention over the ranks' parts of the sequence, in a layer."""

    def __init__(self, context: Group) -> None:
        self.context = context

    def forward(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        causal: bool,
        wanted: Wanted = None,
        **of_dropout: Any,
    ) -> tuple[Array, Instead]:
        """Return the rank's rows of what ``attention`` returns. ``Network`` accepts no
        dropout, so its rate is 0 and no seed is used."""
        y, saved = ring_attention.forward(
            self.context, q, k, v, causal=causal, zigzag=True
        )
        names = ("q", "k", "v") if wanted is None else tuple(wanted)
        return y, Instead(self, saved, names)

    def backward(
        self, dy: Array, saved: ring_attention.Saved, *, wanted: tuple[str, ...]
    ) -> tuple[Array, ...]:
        """Return the rank's rows of the gradients, wanted or not."""
        return ring_attention.backward(self.context, dy, saved)


class Positions:
    """The rows that a rank has between the blocks: their positions in the sequence.

    It takes the place of ``rope``, for its tables, and of ``position_embedding``.
    """

    def __init__(self, context: Group, stream: Whole | Parts) -> None:
        self.context, self.stream = context, stream

    def of(self, s: int) -> list[int]:
        """Return the positions of ``s`` rows."""
        held = _held(self.context, s * self.parts)
        first = s * self.stream.group.rank if self.parts > 1 else 0
        return held[first : first + s]

    def length(self, s: int) -> int:
        """Return the length of the sequence of which a rank has ``s`` rows."""
        return s * self.parts * self.context.size

    @property
    def parts(self) -> int:
        """The number of ranks of a tensor group that share the rows."""
        return self.stream.group.size if isinstance(self.stream, Parts) else 1

    def tables(self, s: int, d: int, *, base: float, like: Array) -> tuple[Array, ...]:
        """Return the tables of ``rope`` for these positions."""
        at = self.of(s)
        cos, sin = rope.tables(max(at) + 1, d, base=base, like=like)
        index = _index(at, like)
        xp = namespace(like)
        return xp.take(cos, index, axis=0), xp.take(sin, index, axis=0)

    def forward(
        self, x: Array, w: Array, *, wanted: Wanted = None
    ) -> tuple[Array, Instead]:
        """Return ``y[*, s, h]``, the sum of ``x[*, s, h]`` and the rows of the table
        ``w`` at the positions."""
        index = _index(self.of(x.shape[-2]), x)
        rows = namespace(x).take(w, index, axis=0)
        y, added = position_embedding.forward(x, rows, wanted=wanted)
        return y, Instead(self, (added, index, w.shape[0]), added.wanted)

    def backward(
        self, dy: Array, saved: Any, *, wanted: tuple[str, ...]
    ) -> tuple[Array | None, ...]:
        """Return ``dx``, and the gradient of the table from the rank's rows, with all
        rows of the tensor group."""
        added, index, length = saved
        dx, drows = gradients_of(position_embedding, dy, added, wanted)
        if drows is None:
            return dx, None
        table = namespace(dy).zeros(
            (length, dy.shape[-1]), dtype=dy.dtype, device=dy.device
        )
        _, looked = embedding.forward(index, table)
        return dx, self.stream.of_rows(embedding.backward(drows, looked))


class Dropped:
    """``dropout`` between the blocks, which drops the elements that one process would.

    Every rank draws its part of the mask of the whole batch, from the same seed: its
    positions of its sequences, which are ``rows`` of the batch.
    """

    def __init__(self, positions: Positions, rows: Span) -> None:
        self.positions, self.rows = positions, rows

    def forward(
        self, x: Array, *, p: float, seed: int, training: bool = True
    ) -> tuple[Array, dropout.Saved]:
        """Return the rank's rows of what ``dropout`` returns for the whole batch."""
        if not training or p == 0:
            return dropout.forward(x, p=p, seed=seed, training=training)
        length = self.positions.length(x.shape[-2])
        held = [*runs(self.positions.of(x.shape[-2]))]
        rows = tuple(
            range(i * length + some.start, i * length + some.stop)
            for i in range(*self.rows)
            for some in held
        )
        part = Part(x.shape[-1], rows)
        saved = dropout.Saved(seed, p, tuple(x.shape), kind(x), part)
        return dropout.backward(x, saved), saved  # with one mask both are the same map


class Schemes:
    """What models take as ``kernels``: the schemes by the operation that they replace,
    kernels for the others, and the shares of the parameters."""

    def __init__(
        self,
        found: Mapping[ModuleType, Any],
        kernels: Any,
        shares: Mapping[str, Share],
    ) -> None:
        self.found, self.kernels, self.shares = found, kernels, shares

    def shapes(
        self, whole: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the rank's shares of parameters of these shapes."""
        return {name: self.shares[name].shape(shape) for name, shape in whole.items()}

    def with_dropout(self, dropped: Dropped) -> Schemes:
        """Return the schemes for a batch."""
        return Schemes({**self.found, dropout: dropped}, self.kernels, self.shares)

    def scheme_of(self, operation: ModuleType) -> Any:
        """Return the scheme, or the operation or kernel."""
        if operation in self.found:
            return self.found[operation]
        return implementation(operation, self.kernels)


class Network:
    """A GPT-2 or a Llama on the ranks of a group, as one of them sees it.

    The ranks are a block of data × context × tensor, of which the last varies fastest.
    With ``sequence``, the ranks of a tensor group have parts of the sequence between
    the blocks. Dropout drops the elements that one process would; weights of attention
    are not dropped. All ranks make the same calls.

    Raises ValueError if the sizes do not fit the number of ranks, if there are more
    ranks along tensor than heads, hidden columns, or tokens, or if the configuration
    drops weights of attention; TypeError for another model, or for a configuration of
    another one.
    """

    def __init__(
        self,
        group: Group,
        model: ModuleType,
        config: Any,
        *,
        data: int = 1,
        context: int = 1,
        tensor: int = 1,
        sequence: bool = False,
        kernels: Any = None,
    ) -> None:
        if model not in (gpt2, llama):
            raise TypeError("model: expected gpt2 or llama of backpass.models")
        check_config(config, model.Config)
        check_bool(sequence=sequence)
        if rate := getattr(config, "attention_dropout", 0):
            raise ValueError(
                f"config: expected attention_dropout 0 on a mesh; got {rate}"
            )
        groups = mesh(group, data=data, context=context, tensor=tensor)
        self.group, self.model, self.config = group, model, config
        self.data, self.context, self.tensor = groups.values()
        # The ranks that have the same shares, and other rows or positions.
        self.alike = group.split(self.tensor.rank)
        rank, ranks = self.tensor.rank, self.tensor.size
        self.shares = shares(model, config, rank, ranks)
        heads = heads_in(config, rank, ranks)
        same_keys = self.tensor.split(heads.sharers[0])
        self.schemes = self._schemes(heads, same_keys, sequence, kernels)
        self.whole_shapes = model.parameter_shapes(config)
        self.shapes = self.schemes.shapes(self.whole_shapes)  # of the rank's shares

    def _schemes(
        self, heads: Heads, same_keys: Group, sequence: bool, kernels: Any
    ) -> Schemes:
        stream = (Parts if sequence else Whole)(self.tensor)
        inside = kernels
        if self.context.size > 1:
            ring = Ring(self.context)
            inside = Schemes({flash_attention: ring, attention: ring}, kernels, {})
        of_heads = dict.fromkeys(("norm_q_w", "norm_k_w"), self.tensor)
        of_keys = dict.fromkeys(("w_k", "w_v", "b_k", "b_v"), same_keys)
        start, stop = heads.queries
        rows = Rows(
            *span(self.config.vocabulary, self.tensor.rank, self.tensor.size),
            self.config.vocabulary,
        )
        self.positions = positions = Positions(self.context, stream)
        found = {
            llama_attention: Block(
                llama_attention, stream, partial=of_heads | of_keys, kernels=inside
            ),
            gpt2_attention: Block(
                gpt2_attention,
                stream,
                once=("b_o",),
                kernels=inside,
                options={"heads": stop - start},
            ),
            feed_forward: Block(
                feed_forward, stream, once=("b_down",), kernels=kernels
            ),
            layer_norm: Norm(layer_norm, stream, kernels),
            rms_norm: Norm(rms_norm, stream, kernels),
            embedding: Table(stream, rows),
            output_head: Head(stream, rows),
            rope: positions,
            position_embedding: positions,
        }
        return Schemes(found, kernels, self.shares)

    def share(self, whole: Mapping[str, Array]) -> dict[str, Array]:
        """Return the rank's shares of a mapping of whole parameters, or of arrays of
        their shapes, as copies. Raises TypeError unless it is a mapping, and ValueError
        for a name of no parameter, or another shape."""
        check_arrays(whole, self.whole_shapes)
        return {
            name: namespace(x).asarray(self.shares[name].of(x), copy=True)
            for name, x in whole.items()
        }

    def whole(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return the whole arrays from the ranks' shares, on every rank. Raises what
        ``share`` raises."""
        check_arrays(own, self.shapes)
        found = {}
        for name, x in own.items():
            share = self.shares[name]
            put = share.put(x, self.whole_shapes[name][share.axis])
            put = put if share.first else namespace(put).zeros_like(put)
            found[name] = self.tensor.all_reduce(put)
        return found

    def forward(
        self, parameters: Mapping[str, Array], tokens: Array, targets: Array, **options
    ) -> tuple[Array, Saved]:
        """Return the loss ``[]`` of the whole batch, from the rank's shares of the
        parameters and from all tokens and targets ``[b, s]``. The options are those of
        the model, except ``config`` and ``kernels``.

        Raises what the model raises; ValueError if the sequence cannot be divided.
        """
        own_tokens, own_targets = self.parts(tokens, targets)
        dropped = Dropped(self.positions, self._rows(tokens.shape[0]))
        loss, own = self.model.forward(
            parameters,
            own_tokens,
            own_targets,
            config=self.config,
            kernels=self.schemes.with_dropout(dropped),
            **options,
        )
        loss, share = self.mean(loss, own_targets)
        return loss, Saved(own, share)

    def mean(self, loss: Array, targets: Array) -> tuple[Array, float]:
        """Return the loss ``[]`` of the whole batch from the mean over this rank's
        targets, and their share of all counted targets."""
        xp, count = namespace(loss), accumulation.counted(targets)
        total = float(self.alike.all_reduce(xp.full_like(loss, float(count))))
        # A rank without a counted target has no mean, and adds nothing. If no rank has
        # one, there is no mean.
        share = count / total if total else math.nan
        mine = loss * share if count or not total else xp.zeros_like(loss)
        return self.alike.all_reduce(mine), share if count else 0.0

    def loss(
        self, parameters: Mapping[str, Array], tokens: Array, targets: Array
    ) -> Array:
        """Return what ``forward`` returns first. Nothing is saved."""
        return self.forward(parameters, tokens, targets, wanted=())[0]

    def gradients(
        self,
        parameters: Mapping[str, Array],
        tokens: Array,
        targets: Array,
        *,
        scale: float = 1,
        **options: Any,
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss ``[]`` of the whole batch, and what ``backward`` returns. The
        other options are those of ``forward``."""
        loss, saved = self.forward(parameters, tokens, targets, **options)
        return loss, self.backward(saved, scale=scale)

    def backward(self, saved: Saved, *, scale: float = 1) -> dict[str, Array]:
        """Return the rank's shares of the gradients of the loss times ``scale``, in
        half precision as float32."""
        return {n: self.summed(g) for n, g in self.partial(saved, scale=scale).items()}

    def partial(self, saved: Saved, *, scale: float = 1) -> dict[str, Array]:
        """Return what this rank's rows and positions add to the gradients that
        ``backward`` returns: ``zero.reduced`` adds them up too."""
        check_saved(saved, Saved)
        check_loss_scale(scale)
        # Without counted targets the model's gradients are 0, whatever their scale.
        return self.model.backward(saved.own, scale=scale * (saved.share or 1))

    def summed(self, gradient: Array) -> Array:
        """Return the sum over the ranks with the same share, as an array of its own."""
        total = self.alike.all_reduce(widened(gradient))
        return namespace(total).asarray(total, copy=True)

    def norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        """Return the norm of each whole gradient from the ranks' shares, the same on
        every rank.

        Raises FloatingPointError on every rank if one is not finite; ValueError for a
        name of no parameter, or another shape.
        """
        check_arrays(gradients, self.shapes, "gradients")
        counted = {name: self.shares[name].first for name in gradients}
        return zero.norms(self.tensor, gradients, counted)

    def parts(self, tokens: Array, targets: Array) -> tuple[Array, Array]:
        """Return the rank's rows and positions of ``tokens[b, s]`` and of
        ``targets[b, s]``.

        Raises TypeError unless both are arrays of integers; ValueError if their shapes
        do not fit, if s is above the number of positions, or if the sequence cannot be
        divided.
        """
        check_inputs(BATCH, tokens=tokens, targets=targets)
        b, s = tokens.shape
        check_length(self.config, s)
        if s % (2 * self.context.size) and self.context.size > 1:
            raise ValueError(
                f"tokens: expected sequences of a multiple of {2 * self.context.size} "
                f"tokens, two parts for each rank along context; got {s}"
            )
        xp, rows = namespace(tokens), slice(*self._rows(b))
        at = _index(_held(self.context, s // self.context.size), tokens)
        own, of_targets = (xp.take(x[rows, :], at, axis=1) for x in (tokens, targets))
        return own, of_targets

    def _rows(self, b: int) -> Span:
        """Return the rank's rows of ``b``, the first and the one after the last."""
        # If there are fewer rows than ranks, every rank has all: the mean is the same.
        return (
            span(b, self.data.rank, self.data.size) if b >= self.data.size else (0, b)
        )


def _held(context: Group, s: int) -> list[int]:
    """Return the positions of a rank's ``s`` tokens along context."""
    if context.size == 1:
        return [*range(s)]
    return ring_attention.positions(context.rank, context.size, s, zigzag=True)


def _index(at: list[int], like: Array) -> Array:
    xp = namespace(like)
    return xp.asarray(at, dtype=xp.int64, device=like.device)
