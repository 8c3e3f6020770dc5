"""Cut the graph of a forward and its backward in two.

What the forward saves decides how much memory both read and write. A loop writes an
array once and reads it once; an element that is computed again in the registers of the
loop that needs it takes neither. So the forward saves

- its inputs and its output, which exist anyway;
- the factors and the results of its matrix products, which are in memory, too;
- small arrays that depend on a large one, such as the largest score of each row: a loop
  over all elements is needed to compute them.

The backward computes everything else again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from backpass import torch_internals as internals

aten = torch.ops.aten
Node = Any  # of torch.fx, whose types do not say what a node of a traced graph has
Graph = Any
GraphModule = Any

SMALL = 8  # a small array has at most an eighth of the largest input's elements
PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default})
SCATTERS = frozenset(
    {aten.index_add.default, aten.index_put.default, aten.scatter_add.default}
)
# A view of a tensor that is not contiguous may need a copy, which a reshape makes.
_RESHAPES = dict.fromkeys(
    (aten.view.default, aten._unsafe_view.default), aten.reshape.default
)


class Parts(NamedTuple):
    """The two halves, and what connects them.

    ``forward`` returns y and the saved arrays that are neither an input nor y, ``own``.
    ``sources`` are the positions of all saved arrays in ``[*inputs, y, *own]``.
    ``backward`` computes the gradients from ``[dy, *saved]``. ``rest`` computes from
    ``saved`` what the operation itself saves.
    """

    forward: GraphModule
    sources: list[int]
    backward: GraphModule
    rest: GraphModule


def split(joint: GraphModule, gradients: int) -> Parts:
    """Return the parts of a graph of the inputs and dy. It returns y, as many
    gradients, and the arrays that the operation saves."""
    *inputs, dy = joint.graph.find_nodes(op="placeholder")
    y, *results = joint.graph.output_node().args[0]
    found, own = results[:gradients], results[gradients:]
    saved = _saved(joint.graph, inputs, dy, y, results)
    pool = [*inputs, y]
    pool += [node for node in saved if node not in pool]
    forward = _part(joint, inputs, [y, *pool[len(inputs) + 1 :]], _checks(joint.graph))
    sources = [pool.index(node) for node in saved]
    backward = _part(joint, [dy, *saved], found)
    _compute_once(backward, max(map(_elements, inputs)))
    return Parts(forward, sources, backward, _part(joint, saved, own))


def scatters(graph: GraphModule) -> bool:
    """Whether a graph adds rows at places that an array gives."""
    return any(node.target in SCATTERS for node in graph.graph.nodes)


def _saved(
    graph: Graph, inputs: list[Node], dy: Node, y: Node, results: list[Node]
) -> list[Node]:
    """Return the nodes that the forward saves, in order."""
    largest = max(map(_elements, inputs))
    small = {node for node in graph.nodes if _elements(node) * SMALL <= largest}
    kept, late, of_large = {y, *inputs}, {dy}, {*inputs} - small
    for node in graph.nodes:
        given = [] if node.op == "output" else node.all_input_nodes
        if not late.isdisjoint(given):
            late.add(node)
        elif not of_large.isdisjoint(given):
            of_large.add(node)
            if node in small and not _is_view(node) and not small.issuperset(given):
                kept.add(node)
        if node not in late and node.target in PRODUCTS:
            kept |= {node, *map(_viewed, given)}

    found, seen = set(), {*late}
    left = [node for each in late for node in each.all_input_nodes] + results
    while left:
        if (node := left.pop()) in seen:
            continue
        seen.add(node)
        if node in kept:
            found.add(node)
        else:
            left += node.all_input_nodes
    return [node for node in graph.nodes if node in found]


def _checks(graph: Graph) -> list[Node]:
    """Return the assertions of a graph."""
    calls = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in calls if node.is_impure()]


def _compute_once(graph: GraphModule, largest: float) -> None:
    """Let a graph also return its small arrays that large ones need, if they do not
    depend on dy. Inductor then computes them before its loops, not in each step."""
    first, *_ = graph.graph.find_nodes(op="placeholder")
    late = {first}
    once: list[Node] = []
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        if not late.isdisjoint(node.all_input_nodes):
            late.add(node)
        elif node.all_input_nodes and _elements(node) * SMALL <= largest:
            if any(_elements(user) * SMALL > largest for user in node.users):
                once.append(node)
    output = graph.graph.output_node()
    output.args = ([*output.args[0], *(node for node in once if not _is_view(node))],)
    graph.recompile()


def _elements(node: Node) -> float:
    return getattr(node.meta.get("val"), "numel", lambda: math.inf)()


def _is_view(node: Node) -> bool:
    return node.target in _RESHAPES or internals.is_viewing(node.target)


def _viewed(node: Node) -> Node:
    """Return the node whose memory this one shows."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _part(
    whole: GraphModule,
    inputs: Sequence[Node],
    results: Sequence[Node],
    checks: Sequence[Node] = (),
) -> GraphModule:
    """Return the part of a graph that computes the results from such inputs, and runs
    the checks."""
    needed, left = {*inputs}, [*results, *checks]
    while left:
        if (node := left.pop()) not in needed:
            needed.add(node)
            left += node.all_input_nodes
    graph, made = torch.fx.Graph(), {}
    for node in inputs:
        made[node] = graph.placeholder(node.name)
        made[node].meta = {**node.meta}
    for node in whole.graph.nodes:
        if node in needed and node not in made:
            made[node] = graph.node_copy(node, made.__getitem__)
            made[node].target = _RESHAPES.get(node.target, node.target)
    graph.output([made[node] for node in results])
    return torch.fx.GraphModule(whole, graph)
