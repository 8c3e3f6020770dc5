"""Measure what a network saves for its backward: ours, and PyTorch's autograd.

Both need PyTorch. On its device "meta", tensors have no memory, so large networks can
be measured too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from backpass.contract.values import check_one_of
from backpass.cost.kept import Kept, Memory
from backpass.cost.letters import lengths_of
from backpass.cost.networks import (
    WIDTHS,
    forward,
    inputs_of,
    network_memory,
)
from backpass.cost.sizes import Network, network_of


def measured_activations(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    device: str = "meta",
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
) -> Memory:
    """Run a network's forward, and list the storages that it keeps alive.

    On the device "meta", its tensors take no memory at any lengths. The arguments are
    those of ``activations``. Raises what ``activations`` raises, and ImportError
    without PyTorch.
    """
    check_torch("measured_activations")
    from backpass.cost.live import Live

    network = network_of(config)
    parameters, inputs, _ = random_arrays(network, batch, sequence, device, dtype)
    options = {"flash": flash, "chunked": chunked}
    with Live():
        saved = forward(network, parameters, inputs, wanted=None, **options)
    return network_memory(network.config, saved, parameters)


def autograd_memory(
    function: Callable[[dict[str, Any]], Any], parameters: Mapping[str, Any]
) -> Memory:
    """List the storages that PyTorch's autograd saves for its backward, each once.

    ``function(parameters)`` computes a loss. It is called with copies that share the
    parameters' memory and require gradients. Storages of parameters are marked, and do
    not count as activations. Raises ImportError without PyTorch.
    """
    check_torch("autograd_memory")
    import torch

    from backpass.torch_internals import storage_id

    leaves = {n: w.detach().requires_grad_() for n, w in parameters.items()}
    in_memory = {storage_id(w) for w in leaves.values()}
    storages: dict[int, Kept] = {}
    held: list[Any] = []  # so that no storage is freed and its id reused

    def pack(x: Any) -> Any:
        held.append(x)
        key, size = storage_id(x), x.untyped_storage().nbytes()
        dtype = str(x.dtype).removeprefix("torch.")
        kept = Kept(f"{len(storages)}", tuple(x.shape), dtype, size, key in in_memory)
        storages.setdefault(key, kept)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function(leaves)
    return Memory(tuple(storages.values()))


def check_torch(name: str) -> None:
    """Raise ImportError if PyTorch, which the function of that name needs, is not
    installed."""
    if find_spec("torch") is None:
        raise ImportError(f"{name} needs PyTorch, which comes with backpass[torch]")


def random_arrays(
    network: Network,
    batch: int,
    sequence: int | tuple[int, int],
    device: str,
    dtype: str,
) -> tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...]]:
    """Return random parameters and inputs, and the gradient of the output unless the
    output is a loss."""
    import torch

    check_one_of("dtype", dtype, tuple(WIDTHS))
    lengths = lengths_of(network, batch, sequence)
    kind = {"dtype": getattr(torch, dtype), "device": device}

    def array(shape: tuple[int, ...], integer: bool) -> Any:
        if not integer:
            return torch.empty(shape, **kind).normal_(std=0.02)
        return torch.randint(lengths["V"], shape, device=device)

    parameters = {name: array(x, False) for name, x in network.shapes.items()}
    inputs, dy = inputs_of(network, lengths, array)
    return parameters, inputs, () if dy is None else (dy,)
