"""Run one function on several ranks: as threads of this process, or as processes.

A scheme is written once, for one rank, as a function ``scheme(group, *arguments)``. The
``group`` knows the rank and the number of ranks, and its collectives exchange arrays
with the others. ``on_threads`` runs the ranks as threads and computes each collective
by the operation of that name in ``backpass.ops``, on the arrays of all ranks, so NumPy
arrays, complex numbers, symbols and counting arrays pass through. ``on_processes`` runs
them as processes that exchange arrays by PyTorch's collectives. These may add in
another order, and they round partial sums in half precision, which ``on_threads`` sums
in float32. Under torchrun, ``joined`` gives each process its group. ``mesh``
divides a group along several axes.

``network`` runs a GPT-2 or a Llama on a mesh of ranks, ``pipeline`` in stages, and
``sharded`` with its parameters divided among ranks; ``training`` trains it. The schemes
are ``tensor``, ``vocabulary``, ``ring_attention``, ``schedules``, and ``zero``.
"""

from backpass.parallel.group import Group, RankError, mesh
from backpass.parallel.processes import TorchGroup, joined, on_processes
from backpass.parallel.threads import LocalGroup, on_threads

__all__ = [
    "Group",
    "LocalGroup",
    "RankError",
    "TorchGroup",
    "joined",
    "mesh",
    "on_processes",
    "on_threads",
]
