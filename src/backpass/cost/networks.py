"""Run a network of ``backpass.models``, and list the arrays that its forward saved."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array
from backpass.cost.kept import Kept, Memory, leaves, storage_of
from backpass.cost.sizes import Network, network_of
from backpass.models import encoder, gpt2, seq2seq
from backpass.models.layers.recomputed import Recompute

TABLES = "tables"  # the part of the constants, which all layers share
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes of a number


class Found(NamedTuple):
    """One storage that a network's Saved keeps alive, described by its first array."""

    part: str  # the name of the model's part, such as "h.0"
    operation: str  # the stem of the module in whose Saved the array is
    array: str  # the path to the array in what the part saved
    shape: tuple[int, ...]
    dtype: str
    bytes: int  # of the whole storage
    kind: str  # "saved", "constant", or "parameter"
    others: tuple[str, ...]  # further arrays of the part in the same storage


def inputs_of(
    network: Network, lengths: Mapping[str, int], array: Any
) -> tuple[tuple[Array, ...], Array | None]:
    """Return the inputs of a network's forward, and the gradient of its output if the
    network has no loss. ``array(shape, integer)`` creates each."""
    b, s, h = (lengths[letter] for letter in "bsh")
    if network.model is seq2seq:
        source, target = array((b, lengths["t"], h), False), array((b, s, h), False)
        return (source, target), array((b, s, h), False)
    if network.model is encoder:
        return (array((b, s, h), False),), array((b, s, h), False)
    return (array((b, s), True), array((b, s), True)), None


def forward(
    network: Network,
    parameters: Mapping[str, Array],
    inputs: tuple[Array, ...],
    *,
    flash: bool = True,
    chunked: bool = True,
    wanted: Collection[str] | None = None,
    dropout: bool = False,
    recompute: Recompute = None,
) -> Any:
    """Run a model's forward, and return what it saved."""
    model, config = network
    options: dict[str, Any] = {"flash": flash, "wanted": wanted}
    options["recompute"] = recompute
    if network.has_head:
        options["chunked"] = chunked
    if dropout:
        if model is not gpt2:
            raise ValueError("dropout: expected False; only gpt2 has dropout")
        options["masks"] = (0,)
    return model.forward(parameters, *inputs, config=config, **options)[1]


def named_parts(network: Network, saved: Any) -> Iterator[tuple[str, Any]]:
    """Yield what each part saved, by the part's name, in the order of the forward."""
    model, config = network
    if model is seq2seq:
        inner = named_parts(Network(encoder, saved.encoded.config), saved.encoded)
        yield from ((f"encoder.{name}", part) for name, part in inner)
        yield from _stack(config.decoder_layers, saved.parts, "decoder.")
    elif model is encoder:
        yield from _stack(config.layers, saved.parts)
    else:
        yield from zip(model.part_names(config), saved.parts, strict=True)
        yield "loss", saved.loss


def _stack(
    layers: int, parts: list[Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    names = [*(f"{prefix}layers.{i}" for i in range(layers)), f"{prefix}norm"]
    yield from zip(names, parts, strict=False)


def found(
    network: Network, saved: Any, parameters: Mapping[str, Array]
) -> tuple[Found, ...]:
    """List the storages that a network's Saved keeps alive, each once; the constants
    first, then the others in the order of the forward.

    A view counts as the whole storage that it keeps alive. Constants are the tables
    that an operation's module names as CONSTANTS. Raises TypeError for arrays of a
    library other than NumPy or PyTorch.
    """
    each = by_storage(network, saved, parameters).values()
    return tuple(sorted(each, key=lambda x: x.kind != "constant"))


def by_storage(
    network: Network, saved: Any, parameters: Mapping[str, Array]
) -> dict[int, Found]:
    """Return what ``found`` lists, by the key of a storage that is alive."""
    in_memory = {_identity(array)[0] for array in parameters.values()}
    storages: dict[int, Found] = {}
    for name, own in named_parts(network, saved):
        for path, owner, array in leaves(own, owner=network.model.__name__):
            key, size = _identity(array)
            last = path.rpartition(".")[2]
            constant = last in _constants(owner)
            part, path = (TABLES, last) if constant else (name, path)
            if key in storages:
                first = storages[key]
                if part == first.part and not constant:
                    storages[key] = first._replace(others=(*first.others, path))
                continue
            dtype = str(array.dtype).removeprefix("torch.")
            kind = "constant" if constant else "saved"
            kind = "parameter" if key in in_memory else kind
            shape = tuple(array.shape)
            operation = owner.rpartition(".")[2]
            facts = shape, dtype, size, kind, ()
            storages[key] = Found(part, operation, path or part, *facts)
    return storages


def arrays_in(saved: Any) -> Iterator[Array]:
    """Yield each array in what a part of a network saved."""
    return (array for *_, array in leaves(saved))


def storages_in(saved: Any) -> dict[int, tuple[int, str]]:
    """Return the bytes and the dtype of each storage in what a part of a network saved,
    by its key while it is alive."""
    found = {}
    for x in arrays_in(saved):
        key, size = _identity(x)
        found[key] = size, str(x.dtype).removeprefix("torch.")
    return found


def network_memory(config: Any, saved: Any, parameters: Mapping[str, Array]) -> Memory:
    """List the storages that ``saved``, which a model's forward returned, keeps alive.

    This is ``cost.memory`` for a whole network: each storage occurs once. Constants and
    ``parameters``, which were passed to forward, are marked.
    """
    return Memory(
        tuple(
            Kept(f"{x.part}.{x.array}", x.shape, x.dtype, x.bytes, x.kind != "saved")
            for x in found(network_of(config), saved, parameters)
        )
    )


def layer_of(part: str) -> tuple[str, int | None]:
    """Return a layer's name without its number, and the number; for any other part, its
    name and None."""
    match = re.fullmatch(r"(.*\.)(\d+)", part)
    return (match[1], int(match[2])) if match else (part, None)


@cache
def _constants(module: str) -> tuple[str, ...]:
    return getattr(sys.modules[module], "CONSTANTS", ())


def _identity(array: Array) -> tuple[int, int]:
    """Return a key that identifies an array's storage while it is alive, and the
    storage's bytes. A NumPy scalar, such as a loss, has its own key."""
    if isinstance(array, np.generic):
        return id(array), array.nbytes
    return storage_of(array)
