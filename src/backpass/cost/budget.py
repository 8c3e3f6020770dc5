"""The arrays that a training step holds in memory, by use."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.contract.arrays import size
from backpass.cost.activations import activations
from backpass.cost.letters import lengths_of
from backpass.cost.networks import WIDTHS
from backpass.cost.shown import Sheet, Shown
from backpass.cost.sizes import Network, network_of
from backpass.models.layers.recomputed import Recompute


class Share(NamedTuple):
    """The arrays that share one use."""

    what: str
    dtype: str
    elements: int | None  # None where dtypes are mixed
    bytes: int
    summed: bool = True  # whether the sum includes it


@dataclass(frozen=True, repr=False)
class Budget(Shown):
    """The bytes of a training step by use. The peak of memory, which ``timeline``
    gives, may be lower than their sum, because saved arrays are freed while gradients
    appear. It may be higher, because working memory is not listed."""

    title: str
    shares: tuple[Share, ...]

    @property
    def bytes(self) -> int:
        """The sum."""
        return sum(share.bytes for share in self.shares if share.summed)

    def _in_text(self) -> Sheet:
        large = self.bytes >= 2**30
        unit, width, places = ("GiB", 2**30, 3) if large else ("MiB", 2**20, 1)
        rows = [
            (
                share.what if share.summed else f"({share.what})",
                share.dtype,
                "" if share.elements is None else f"{share.elements:,}",
                f"{share.bytes:,}",
                f"{share.bytes / width:,.{places}f}",
            )
            for share in self.shares
        ]
        whole = f"{self.bytes / width:,.{places}f}"
        total = ("sum", "", "", f"{self.bytes:,}", whole)
        headings = ("", "dtype", "elements", "bytes", unit)
        return Sheet(self.title, headings, [*rows, total], right=(2, 3, 4))


def memory_budget(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
    wanted: Collection[str] | None = None,
    dropout: bool = False,
    recompute: Recompute = None,
) -> Budget:
    """Return what a training step with AdamW holds in memory, by use.

    The arguments and the errors are those of ``activations``; parameters that are not
    ``wanted`` are frozen, and have neither gradients nor states. Half-precision
    parameters are a copy of float32 master weights, which AdamW updates. If segments of
    layers run again, the activations are those that are held when the forward ends, and
    the arrays that one segment saves in the backward have a share of their own. The
    logits of all tokens are listed, but the sum leaves them out: with ``chunked`` they
    never exist at once, and without it the saved log-probabilities are among the
    activations.
    """
    network = network_of(config)
    options: dict[str, Any] = {"dtype": dtype, "flash": flash, "chunked": chunked}
    options |= {"wanted": wanted, "dropout": dropout, "recompute": recompute}
    kept = activations(network.config, batch, sequence, **options)
    shares = [*shares_of_parameters(network, dtype, wanted)]
    for what, constant in (("activations", False), ("tables", True)):
        rows = [row for row in kept.rows if row.constant is constant]
        dtypes = ", ".join(dict.fromkeys(row.dtype for row in rows))
        if rows:
            shares.append(Share(what, dtypes, None, sum(row.bytes for row in rows)))
    if kept.again:
        shares.append(Share("one segment, recomputed", "", None, kept.again))
    lengths = lengths_of(network, batch, sequence)
    if "V" in lengths:
        scores = lengths["b"] * lengths["s"] * lengths["V"]
        wide = wide_of(dtype)
        shares.append(Share("logits", wide, scores, scores * WIDTHS[wide], False))
    return Budget(kept.title, tuple(shares))


def shares_of_parameters(
    network: Network, dtype: str, wanted: Collection[str] | None = None
) -> Iterator[Share]:
    """Yield the weights, their float32 master weights if they are in half precision,
    the gradients, and AdamW's states. ``wanted`` names the parameters to train, which
    alone have more than weights; None is all."""
    count = network.parameters
    trained = sum(
        size(shape)
        for name, shape in network.shapes.items()
        if wanted is None or name in wanted
    )
    wide = wide_of(dtype)
    yield Share("weights", dtype, count, count * WIDTHS[dtype])
    if wide != dtype:
        yield Share("master weights", wide, trained, trained * WIDTHS[wide])
    yield Share("gradients", dtype, trained, trained * WIDTHS[dtype])
    yield Share("AdamW's means", wide, trained, trained * WIDTHS[wide])
    yield Share("AdamW's squares", wide, trained, trained * WIDTHS[wide])


def wide_of(dtype: str) -> str:
    """Return float32 for half precision, and any other dtype unchanged."""
    return "float32" if WIDTHS[dtype] < WIDTHS["float32"] else dtype
