"""Any single change of a model's backward, or of a layer's, changes a gradient by more than the comparison with Hugging
Face allows.

Here a changed backward is compared with the one as it stands, which `test_hugging_face.py` and `test_derivatives.py`
hold to others. The mistakes that compositions invite are made by name as well.
"""

import ast
import inspect
import re

import numpy as np
import pytest

from backpass.models import gpt2, llama
from backpass.models.layers import gpt2_attention, gpt2_layer, llama_attention, llama_layer, output_head
from backpass.verify.mutation import mutants

from .small import NETWORKS, drawn

LAYERS = (gpt2_attention, gpt2_layer, llama_attention, llama_layer, output_head)
MODULES = {module.__name__.rsplit(".", 1)[1]: module for module in (gpt2, llama, *LAYERS)}
TOLERANCE = 1e-10  # of a gradient's largest element


@pytest.fixture(scope="module")
def runs():
    """For each small network: its module, what its forward saved, all of it and for some parameters, and the gradients."""
    found = []
    for name in NETWORKS:
        module, config, parameters, (tokens, targets) = drawn(name)
        for wanted in wanted_sets(parameters):
            for flash in (True, False):
                saved = module.forward(
                    parameters, tokens, targets, config=config, flash=flash, chunked=flash, wanted=wanted
                )[1]
                found.append((module, saved, module.backward(fresh(saved))))
    return found


def wanted_sets(parameters):
    """All; one norm of the last layer; the positions or the first query weight; nothing before the last norm."""
    names = [*parameters]
    norms = [name for name in names if re.search(r"1\.(ln_2|post_attention_layernorm)\.weight$", name)]
    early = [name for name in names if re.search(r"wpe|0\.(attn\.c_attn|self_attn\.q_proj)\.weight$", name)]
    last = [name for name in names if re.fullmatch(r"(ln_f|norm)\.weight", name)]
    return [None, *(each for each in (norms, early, last) if each)]


def fresh(saved):
    """`backward` empties the list of parts."""
    return saved._replace(parts=list(saved.parts))


def is_noticed(runs) -> bool:
    """Whether a network's gradients differ or its backward stops."""
    for module, saved, right in runs:
        try:
            got = module.backward(fresh(saved))
        except Exception:
            return True
        if got.keys() != right.keys() or any(differs(got[name], right[name]) for name in right):
            return True
    return False


def differs(got, right) -> bool:
    if getattr(got, "shape", None) != right.shape:
        return True
    return not np.abs(got - right).max() <= TOLERANCE * max(np.abs(right).max(), 1e-300)


def put(monkeypatch, module, tree):
    """Run the changed functions among the module's own names."""
    scope = dict(vars(module))
    exec(compile(tree, f"<{module.__name__}>", "exec"), scope)
    (name,) = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    monkeypatch.setattr(module, name, scope[name])


# Changes that compute the same, each with the proof.
EQUIVALENT: dict[str, dict[str, str]] = {
    "gpt2": {
        "check_unused(parts, len(layers) + 4): check_unused(parts, len(layers) + 4) → parts": "It only refuses a second "
        "run; test_parameters.py has that.",
        "d |= zip(layer.values(), dw, strict=True): zip(layer.values(), dw, strict=True) → zip(layer.values(), dw)": "A "
        "layer has as many gradients as parameters.",
    }
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MODULES)
def test_every_change_of_a_backward_is_noticed(name, runs, monkeypatch):
    module = MODULES[name]
    survivors = set()
    for mutant in mutants(module.backward):
        with monkeypatch.context() as patched:
            try:
                put(patched, module, mutant.tree)
            except SyntaxError:  # a starred expression by itself
                continue
            if not is_noticed(runs):
                survivors.add(f"{mutant.line}: {mutant.change}")
    assert survivors == EQUIVALENT.get(name, {}).keys()


# A part of a backward's source, and what a mistake puts there.
MISTAKES = {
    "the tied weight's second share is forgotten": (gpt2, "d[TABLE] = d[TABLE] + dhead", "pass"),
    "the tied weight's first share is forgotten": (gpt2, "d[TABLE] = d[TABLE] + dhead", "d[TABLE] = dhead"),
    "a layer's gradients are its neighbour's": (gpt2, "reversed(layers)", "layers"),
    "the final norm is skipped": (gpt2, "dx, d[NORM[\"w\"]], d[NORM[\"b\"]] = through(layer_norm, dx, parts.pop())",
                                  "_, d[NORM[\"w\"]], d[NORM[\"b\"]] = through(layer_norm, dx, parts.pop())"),
    "positions are off by one": (gpt2, "dx, d[POSITIONS] = through(position_embedding, dx, parts.pop())",
                                 "dx, d[POSITIONS] = through(position_embedding, dx[..., [*range(1, dx.shape[-2]), 0], :], parts.pop())"),
    "the residual's gradient is overwritten": (gpt2_layer, "dx = dx + da", "dx = da"),
    "the first block's gradient is dropped": (llama_layer, "dx = dx + da", "dx = dx"),
    "a layer of Llama takes its neighbour's gradients": (llama, "reversed(layers)", "layers"),
    "Llama's tied weight has one share": (llama, "d[TABLE] = d[TABLE] + dhead", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_composition_is_noticed(mistake, runs, monkeypatch):
    module, right, wrong = MISTAKES[mistake]
    source = inspect.getsource(module.backward)
    assert source.count(right) == 1, "the backward reads otherwise now"
    put(monkeypatch, module, ast.parse(source.replace(right, wrong)))
    assert is_noticed(runs)
