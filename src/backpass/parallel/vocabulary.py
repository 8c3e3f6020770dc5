"""Token embedding and output head whose table is divided among the ranks: each has the
rows of some tokens of the vocabulary (Shoeybi et al., 2019, arXiv:1909.08053).

To a rank, the tokens of all other ranks are one token o, whose score is the log-sum-exp
of theirs. So with one more column, ``cross_entropy`` on a rank's own scores computes
the probabilities over the whole vocabulary, and its backward their gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import (
    Array,
    as_type_of,
    bounded_below,
    namespace,
    widened,
)
from backpass.contract.shapes import check_cotangent
from backpass.contract.values import check_targets, check_tokens
from backpass.contract.wanted import Wanted, check_wanted
from backpass.models.layers import turned
from backpass.models.layers.kernel import Instead
from backpass.models.layers.output_head import SHAPES as HEAD_SHAPES
from backpass.ops import cross_entropy, embedding, linear, nll
from backpass.parallel.tensor import Parts, Whole

IGNORED = -100


class Rows(NamedTuple):
    """The tokens whose rows a rank has: ``start`` to ``stop`` − 1, of ``total``."""

    start: int
    stop: int
    total: int


class _Looked(NamedTuple):
    rows: embedding.Saved
    own: Array  # [*], whether a token's row is on this rank


class Table:
    """``embedding`` on a rank's rows of the table."""

    def __init__(self, stream: Whole | Parts, rows: Rows) -> None:
        self.stream, self.rows = stream, rows

    def forward(self, t: Array, w: Array) -> tuple[Array, Instead]:
        """Return what a rank has of ``y[*, s, h]`` for all tokens ``t[*, s]`` and its
        rows ``w[stop − start, h]``. Raises IndexError for a token outside the total."""
        xp = namespace(t, w)
        t = check_tokens(t, self.rows.total)
        own = (t >= self.rows.start) & (t < self.rows.stop)
        y, saved = embedding.forward(xp.where(own, t - self.rows.start, 0), w)
        y = xp.where(own[..., None], y, xp.zeros_like(y))
        return self.stream.leave(y), Instead(self, _Looked(saved, own), ("w",))

    def backward(self, dy: Array, saved: _Looked) -> Array:
        """Return ``dw[stop − start, h]`` from what a rank has of ``dy``."""
        return embedding.backward(self._own(dy, saved), saved.rows)

    def backward_onto(self, dw: Array, dy: Array, saved: _Looked) -> Array:
        """Return the sum of ``dw`` and what ``backward`` returns, as ``embedding``."""
        return embedding.backward_onto(dw, self._own(dy, saved), saved.rows)

    def _own(self, dy: Array, saved: _Looked) -> Array:
        # In the forward pass other ranks' tokens gave 0; so now they take nothing.
        dy = self.stream.enter(dy)
        xp = namespace(dy)
        return xp.where(saved.own[..., None], dy, xp.zeros_like(dy))


class _Scored(NamedTuple):
    scores: linear.Saved
    loss: cross_entropy.Saved
    wanted: tuple[str, ...]


class Head:
    """``output_head`` on a rank's rows of the weight."""

    def __init__(self, stream: Whole | Parts, rows: Rows) -> None:
        self.stream, self.rows = stream, rows

    def forward(
        self,
        x: Array,
        w: Array,
        t: Array,
        *,
        chunked: bool = False,
        wide: bool = False,
        kernels: Any = None,
        wanted: Wanted = None,
    ) -> tuple[Array, Instead]:
        """Return the loss ``y[]`` of what a rank has of ``x[*, s, h]``, its rows
        ``w[stop − start, h]``, and all targets ``t[*, s]``.

        A rank's scores are stored whole, also with ``chunked``. Raises IndexError for a
        target outside the total.
        """
        check_targets(t, self.rows.total, IGNORED, "mean")
        wanted = check_wanted(HEAD_SHAPES, wanted)
        start, stop, _ = self.rows
        z, scores = linear.forward(self.stream.enter(x), turned(w), wanted=wanted)
        z = widened(z) if wide else z
        xp, counted = namespace(z, t), t != IGNORED
        own = counted & (t >= start) & (t < stop)
        others = self._log_sum_exp_of_others(z)
        z = xp.concat([z, as_type_of(others, z)[..., None]], axis=-1)
        at = xp.where(own, t - start, xp.where(counted, stop - start, IGNORED))
        _, loss = cross_entropy.forward(z, at)
        mine = xp.where(own, loss.t, -1)
        of_rows = nll.losses(loss.p, mine)
        y = self.stream.group.all_reduce(nll.reduced(of_rows, loss.divisor))
        y = y if wide else as_type_of(y, x)
        return y, Instead(self, _Scored(scores, loss, wanted), wanted)

    def backward(
        self, dy: Array, saved: _Scored, *, wanted: tuple[str, ...] | None = None
    ) -> tuple[Array | None, Array | None]:
        """Return what a rank has of ``dx``, and ``dw[stop − start, h]``."""
        wanted = saved.wanted if wanted is None else wanted
        if not wanted:
            return None, None
        check_cotangent(dy, (), like=widened(saved.loss.p))
        # Others' tokens get their gradients from the ranks that have them.
        dz = cross_entropy.backward(as_type_of(dy, saved.loss.p), saved.loss)[..., :-1]
        dz = as_type_of(dz, saved.scores.x)
        dx, dw, _ = linear.backward(dz, saved.scores, wanted=wanted)
        return (dx if dx is None else self.stream.leave(dx)), turned(dw)

    backward_once = backward

    def _log_sum_exp_of_others(self, z: Array) -> Array:
        """Return the log-sum-exp ``[*]`` of the other ranks' scores, from this rank's
        ``z[*, n]``; −∞ if there are no others."""
        group, xp = self.stream.group, namespace(z)
        every = group.all_gather(_log_sum_exp(widened(z), axis=-1))  # [r, *]
        others = [every[rank, ...] for rank in range(group.size) if rank != group.rank]
        if not others:
            return xp.full_like(every[0, ...], -xp.inf)
        return _log_sum_exp(xp.stack(others), axis=0)


def _log_sum_exp(z: Array, axis: int) -> Array:
    xp = namespace(z)
    top = bounded_below(xp.max(z, axis=axis, keepdims=True))
    total = xp.sum(xp.exp(z - top), axis=axis)
    return xp.squeeze(top, axis=axis) + xp.log(total)
