"""Count an operation's arithmetic, evaluate its formulas, and measure its memory.

    cost.count("softmax", (3, 5))     # what ran, by kind, forward and backward
    cost.formula("softmax", (3, 5))   # forward_flops and backward_flops at those shapes
    cost.symbolic_formula("softmax")  # the same in SymPy symbols; cost.latex prints it
    cost.saved_bytes("softmax", x)    # of the arrays of `saved`, without parameters
    cost.table("softmax", (3, 5))     # formula against count, for a page
    cost.tally("gpt2", 1, 1024)       # the FLOPs of a network, term by term
    cost.traffic("gpt2", 1, 1024)     # the least bytes that it moves, array by array
    cost.duration("gpt2", 1, 1024, "h100", dtype="bfloat16")  # the least time of a step
    cost.attention_crossover("gpt2")  # the length beyond which attention costs most

An operation is a stem, a module of ``backpass.ops``, or any object with ``forward`` and
``backward``. Inputs are NumPy arrays, shapes (standard normal numbers are drawn), or
None for an optional input that is not given. Options of ``forward`` are keywords, also
``wanted=("x",)``, the inputs whose gradients are computed.
"""

from backpass.cost.counted import Cost, count
from backpass.cost.crossover import (
    attention_crossover,
    attention_traffic_crossover,
    crossover,
)
from backpass.cost.duration import MACHINES, Duration, Machine, duration
from backpass.cost.formulas import Flops, dimensions, formula, latex, symbolic_formula
from backpass.cost.kept import Kept, Memory, memory, saved_bytes
from backpass.cost.tables import Table, table
from backpass.cost.tally import (
    CONVENTIONS,
    Tally,
    configuration,
    from_hugging_face,
    presets,
    symbolic_tally,
    tally,
)
from backpass.cost.traffic import Traffic, symbolic_traffic, traffic

__all__ = [
    "CONVENTIONS",
    "MACHINES",
    "Cost",
    "Duration",
    "Flops",
    "Kept",
    "Machine",
    "Memory",
    "Table",
    "Tally",
    "Traffic",
    "attention_crossover",
    "attention_traffic_crossover",
    "configuration",
    "count",
    "crossover",
    "dimensions",
    "duration",
    "formula",
    "from_hugging_face",
    "latex",
    "memory",
    "presets",
    "saved_bytes",
    "symbolic_formula",
    "symbolic_tally",
    "symbolic_traffic",
    "table",
    "tally",
    "traffic",
]
