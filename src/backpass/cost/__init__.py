"""Count an operation's arithmetic, evaluate its formulas, and measure its memory; and
the memory of whole networks.

    cost.count("softmax", (3, 5))     # what ran, by kind, forward and backward
    cost.formula("softmax", (3, 5))   # forward_flops and backward_flops at those shapes
    cost.symbolic_formula("softmax")  # the same in SymPy symbols
    cost.saved_bytes("softmax", x)    # of the arrays of `saved`, without parameters
    cost.memory("softmax", x)         # these arrays, one by one
    cost.table("softmax", (3, 5))     # formula against count, for a page

    cost.tally("gpt2-124m", 1, 1024)  # a whole network's FLOPs, a row for each term
    cost.symbolic_tally("llama")      # the same in SymPy symbols
    cost.activations(config, 8, 1024)  # the arrays that a whole network saves
    cost.timeline(config, 8, 1024)     # memory over the moments of its training step
    cost.memory_budget(config, 8, 1024)  # the bytes of a step by their use
    cost.traffic(config, 8, 1024)      # the least bytes that its step reads and writes
    cost.duration(config, 8, 1024, "h100", dtype="bfloat16")  # the step's least time
    cost.mesh_step(config, mesh, "h100", 2048, 8192)  # its time on a mesh of ranks
    cost.mesh_memory(config, mesh, 2048, 8192)  # the bytes that a rank holds

An operation is a stem, a module of ``backpass.ops``, or any object with ``forward`` and
``backward``. Inputs are NumPy arrays, shapes (standard normal numbers are drawn), or
None for an optional input that is not given. Options of ``forward`` are keywords, also
``wanted=("x",)``, the inputs whose gradients are computed.

These modules of ``backpass.cost`` hold the rest:

- ``formulas`` prints the formulas of operations in LaTeX, and reads the lengths of
  their letters;
- ``tally`` has the conventions by which FLOPs are counted, ``duration`` the peaks of
  machines, and ``cluster`` those of their links;
- ``measured`` runs a network, or PyTorch's autograd, and lists what it saved;
  ``networks`` lists what a forward saved; ``timeline`` also follows a real step;
- ``crossover`` finds the length beyond which attention costs most;
- ``published`` and ``mistakes`` have the formulas that papers and tools print, and
  ``steps`` applies those of a step to a network.
"""

from backpass.cost.activations import activations, symbolic_activations
from backpass.cost.budget import memory_budget
from backpass.cost.cluster import Cluster, Mesh, mesh_step
from backpass.cost.counted import count
from backpass.cost.duration import Machine, duration
from backpass.cost.formulas import formula, symbolic_formula
from backpass.cost.kept import memory, saved_bytes
from backpass.cost.mesh_memory import mesh_memory
from backpass.cost.sizes import configuration, from_hugging_face, presets
from backpass.cost.tables import table
from backpass.cost.tally import symbolic_tally, tally
from backpass.cost.timeline import timeline
from backpass.cost.traffic import symbolic_traffic, traffic

__all__ = [
    "Cluster",
    "Machine",
    "Mesh",
    "activations",
    "configuration",
    "count",
    "duration",
    "formula",
    "from_hugging_face",
    "memory",
    "memory_budget",
    "mesh_memory",
    "mesh_step",
    "presets",
    "saved_bytes",
    "symbolic_activations",
    "symbolic_formula",
    "symbolic_tally",
    "symbolic_traffic",
    "table",
    "tally",
    "timeline",
    "traffic",
]
