"""Change a backward of the models, and see whether a gradient changes by more than the comparisons with references allow.

A run is a module, the gradient of its output (None for a loss), what its forward saved, the options of its backward,
and the gradients that its unchanged backward returns.
"""

import ast
import inspect
from copy import deepcopy
from pathlib import Path

import numpy as np

import proofs
from backpass.models import language_model
from backpass.models.layers.recomputed import Segment
from backpass.verify.mutation import mutants

TOLERANCE = 1e-10  # of a gradient's largest element


def with_gradients(runs):
    return [(*run, backward_of(*run)) for run in runs]


def backward_of(module, dy, saved, options):
    if dy is None:  # through language_model's own name, which a change replaces
        return language_model.backward(module.FAMILY, fresh(saved))
    return module.backward(dy, fresh(saved), **options)


def fresh(saved):
    """Copy what ``backward`` writes to: it empties the lists of parts, and those of segments, and may write over what the
    last part saved; a changed backward may write to the names."""
    if not hasattr(saved, "parts"):
        return saved
    if hasattr(saved, "encoded"):
        saved = saved._replace(encoded=fresh(saved.encoded))
    segments = {id(part): part._replace(parts=[]) for part in saved.parts if isinstance(part, Segment)}
    *parts, last = (segments.get(id(part), part) for part in saved.parts)
    return saved._replace(parts=[*parts, deepcopy(last)], given=dict(saved.given))


def flat(results):
    """The gradients of a model or of a layer by their places: names, or positions."""
    *arrays, last = [results] if isinstance(results, dict) else results
    named = last if isinstance(last, dict) else {len(arrays): last}
    return dict(enumerate(arrays)) | named


def is_noticed(runs, changed) -> bool:
    """Whether gradients differ, those of the changed module first, or a backward stops."""
    for *run, right in sorted(runs, key=lambda run: run[0] is not changed):
        try:
            got, right = flat(backward_of(*run)), flat(right)
        except Exception:
            return True
        if [*got] != [*right] or any(differs(got[place], right[place]) for place in right):
            return True
    return False


def differs(got, right) -> bool:
    if right is None or got is None:
        return got is not right
    if not isinstance(got, np.ndarray) or got.shape != right.shape:
        return True
    return not np.abs(got - right).max() <= TOLERANCE * max(np.abs(right).max(), 1e-300)


def unproved(module, runs, monkeypatch, proof, equivalent, functions=("backward",)) -> set[str]:
    """Return the changes of the module's ``functions`` that no run notices and that are not proved equivalent, and the proofs
    of changes that are noticed. For a module that has not changed, a part of the changes is tried."""
    changed = [vars(module)[name] for name in functions]
    made = [(f"{each.line}: {each.change}", each) for function in changed for each in mutants(function)]
    assert equivalent <= {*dict(made)}
    of = [*changed, module.forward, *sorted(equivalent)]
    tried = proof.part(module.__name__, made, of=of, checks=[proofs.own(Path(__file__))])
    if not proof.whole:
        tried = [each for each in tried if each[0] not in equivalent]
    survivors = survivors_of(module, runs, monkeypatch, tried)
    return survivors ^ equivalent if proof.whole else survivors


def survivors_of(module, runs, monkeypatch, tried) -> set[str]:
    """Return the changes that no run notices."""
    survivors = set()
    for change, mutant in tried:
        with monkeypatch.context() as patched:
            try:
                put(patched, module, mutant.tree)
            except SyntaxError:  # a starred expression by itself
                continue
            if not is_noticed(runs, module):
                survivors.add(change)
    assert not is_noticed(runs, module), "a change has spoilt what the forward saved"
    return survivors


def put_mistake(monkeypatch, module, right, wrong):
    """Run the backward with a part of its source replaced."""
    source = inspect.getsource(module.backward)
    assert source.count(right) == 1, "the backward reads otherwise now"
    put(monkeypatch, module, ast.parse(source.replace(right, wrong)))


def put(monkeypatch, module, tree):
    """Run the changed functions among the module's own names."""
    scope = dict(vars(module))
    exec(compile(tree, f"<{module.__name__}>", "exec"), scope)
    (name,) = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    monkeypatch.setattr(module, name, scope[name])
