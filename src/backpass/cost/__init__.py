"""Count an operation's arithmetic, evaluate its formulas, and measure its memory; and
the memory of whole networks.

    cost.count("softmax", (3, 5))     # what ran, by kind, forward and backward
    cost.formula("softmax", (3, 5))   # forward_flops and backward_flops at those shapes
    cost.symbolic_formula("softmax")  # the same in SymPy symbols; cost.latex prints it
    cost.saved_bytes("softmax", x)    # of the arrays of `saved`, without parameters
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
    cost.attention_crossover("gpt2")   # the length beyond which attention costs most

``cost.published``, ``cost.mistakes``, and ``cost.sources`` have the formulas that
papers, tools, and this project's sources print; ``cost.published_steps`` applies those
of a step to a network.

An operation is a stem, a module of ``backpass.ops``, or any object with ``forward`` and
``backward``. Inputs are NumPy arrays, shapes (standard normal numbers are drawn), or
None for an optional input that is not given. Options of ``forward`` are keywords, also
``wanted=("x",)``, the inputs whose gradients are computed.
"""

from backpass.cost.activations import (
    Activations,
    activations,
    symbolic_activations,
)
from backpass.cost.budget import Budget, memory_budget
from backpass.cost.cluster import CLUSTERS, Cluster, Mesh, MeshStep, mesh_step
from backpass.cost.counted import Cost, count
from backpass.cost.crossover import (
    attention_crossover,
    attention_traffic_crossover,
    crossover,
)
from backpass.cost.duration import MACHINES, Duration, Machine, duration
from backpass.cost.formulas import Flops, dimensions, formula, latex, symbolic_formula
from backpass.cost.kept import Kept, Memory, memory, saved_bytes
from backpass.cost.measured import autograd_memory, measured_activations
from backpass.cost.mesh_memory import mesh_memory
from backpass.cost.mistakes import MISTAKES
from backpass.cost.networks import network_memory
from backpass.cost.sizes import configuration, from_hugging_face, presets
from backpass.cost.steps import published_steps
from backpass.cost.tables import Table, table
from backpass.cost.tally import CONVENTIONS, Tally, symbolic_tally, tally
from backpass.cost.timeline import (
    Moment,
    Timeline,
    measured_timeline,
    timeline,
)
from backpass.cost.traffic import Traffic, symbolic_traffic, traffic

__all__ = [
    "CLUSTERS",
    "CONVENTIONS",
    "MACHINES",
    "MISTAKES",
    "Activations",
    "Budget",
    "Cluster",
    "Cost",
    "Duration",
    "Flops",
    "Kept",
    "Machine",
    "Memory",
    "Mesh",
    "MeshStep",
    "Moment",
    "Table",
    "Tally",
    "Timeline",
    "Traffic",
    "activations",
    "attention_crossover",
    "attention_traffic_crossover",
    "autograd_memory",
    "configuration",
    "count",
    "crossover",
    "dimensions",
    "duration",
    "formula",
    "from_hugging_face",
    "latex",
    "measured_activations",
    "measured_timeline",
    "memory",
    "memory_budget",
    "mesh_memory",
    "mesh_step",
    "network_memory",
    "presets",
    "published_steps",
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
