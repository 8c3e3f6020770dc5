"""The arrays that a training step holds in memory, by use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.arrays import size
from backpass.cost.activations import activations
from backpass.cost.letters import lengths_of
from backpass.cost.networks import WIDTHS, model_of
from backpass.cost.sizes import configuration
from backpass.table import aligned, page

_HEADINGS = ("", "dtype", "elements", "bytes", "MiB")


class Share(NamedTuple):
    """The arrays that share one use."""

    what: str
    dtype: str
    elements: int | None  # None where dtypes are mixed
    bytes: int
    summed: bool = True  # whether the sum includes it


@dataclass(frozen=True)
class Budget:
    """The bytes of a training step by use. The peak of memory, which ``timeline``
    gives, may be lower than their sum, because saved arrays are freed while gradients
    appear. It may be higher, because working memory is not listed."""

    title: str
    shares: tuple[Share, ...]

    @property
    def bytes(self) -> int:
        """The sum."""
        return sum(share.bytes for share in self.shares if share.summed)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [
            (
                share.what if share.summed else f"({share.what})",
                share.dtype,
                "" if share.elements is None else f"{share.elements:,}",
                f"{share.bytes:,}",
                f"{share.bytes / 2**20:,.1f}",
            )
            for share in self.shares
        ]
        total = ("sum", "", "", f"{self.bytes:,}", f"{self.bytes / 2**20:,.1f}")
        return [*rows, total]

    def __repr__(self) -> str:
        lines = aligned([_HEADINGS, *self._rows()], right=(2, 3, 4))
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        return page(_HEADINGS, self._rows(), caption=self.title)


def memory_budget(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
) -> Budget:
    """Return what a training step with AdamW holds in memory, by use.

    The arguments and the errors are those of ``activations``. Half-precision parameters
    are a copy of float32 master weights, which AdamW updates. The logits of all tokens
    are listed, but the sum leaves them out: with ``chunked`` they never exist at once,
    and without it the saved log-probabilities are among the activations.
    """
    config = configuration(config)
    kept = activations(
        config, batch, sequence, dtype=dtype, flash=flash, chunked=chunked
    )
    shares = [*shares_of_parameters(config, dtype)]
    for what, constant in (("activations", False), ("tables", True)):
        rows = [row for row in kept.rows if row.constant is constant]
        dtypes = ", ".join(dict.fromkeys(row.dtype for row in rows))
        if rows:
            shares.append(Share(what, dtypes, None, sum(row.bytes for row in rows)))
    lengths = lengths_of(config, batch, sequence)
    if "V" in lengths:
        scores = lengths["b"] * lengths["s"] * lengths["V"]
        wide = _wide(dtype)
        shares.append(Share("logits", wide, scores, scores * WIDTHS[wide], False))
    return Budget(kept.title, tuple(shares))


def shares_of_parameters(config: Any, dtype: str) -> Iterator[Share]:
    """Yield the weights, their float32 master weights if they are in half precision,
    the gradients, and AdamW's states."""
    count = sum(map(size, model_of(config).parameter_shapes(config).values()))
    wide = _wide(dtype)
    yield Share("weights", dtype, count, count * WIDTHS[dtype])
    if wide != dtype:
        yield Share("master weights", wide, count, count * WIDTHS[wide])
    yield Share("gradients", dtype, count, count * WIDTHS[dtype])
    yield Share("AdamW's means", wide, count, count * WIDTHS[wide])
    yield Share("AdamW's squares", wide, count, count * WIDTHS[wide])


def _wide(dtype: str) -> str:
    return "float32" if WIDTHS[dtype] < WIDTHS["float32"] else dtype
