"""`backpass verify` turns red after any single change of a sign, factor, axis or sum in any backward.

Each backward, and each helper that it calls (of `arrays`, `ops._heads`, `ops._tiling`), is changed in one place at a time;
each changed version must fail the checks at the inputs that `backpass verify` draws. One that survives is
listed in `tests/equivalent_mutants/<stem>.toml` with the proof that it computes the same; nothing else may survive, and
nothing may be listed that is caught or that no longer exists. Of a function that is as it was when all its changes were
tried, a part is tried (`tools/proofs.py`).
"""

import json
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import proofs
from backpass import ops
from backpass.contract import arrays
from backpass.ops import _heads, _tiling
from backpass.verify import METHODS, cases
from backpass.verify.case import Case, NotRun
from backpass.verify.findings import Findings
from backpass.verify.methods.pytorch import bound_operator
from backpass.verify.methods.symbolic import structure
from backpass.verify.mutation import CASTS, Mutant, compiled, mutants, reached, rebuilt, remembered
from backpass.verify.report import FAILED
from backpass.verify.subject import Subject, subject
from backpass.verify.survivors import METHODS_BY_SPEED

FOLDER = Path(__file__).parent / "equivalent_mutants"
LISTED = [
    (file.stem, entry)
    for file in sorted(FOLDER.glob("*.toml"))
    for entry in tomllib.loads(file.read_text())["mutant"]
]


SHARED = {"arrays": arrays, "_heads": _heads, "_tiling": _tiling}


@cache
def helpers_of(stem, where):
    """The functions of a shared module that the stem's backward calls, less those that only set a dtype: they change
    how a gradient is rounded, which `ops/test_sixteen_bits.py` looks at."""
    op = ops.load(stem)
    called = {name for function in reached(op, "backward").values() for name in function.__code__.co_names}
    return {name for called_name in called for name in reached(SHARED[where], called_name)} - {*CASTS}


# What notices a change.
CHECKS = [proofs.imports("backpass.verify")]
ON_A_GPU = {"_add_sorted"}  # no check here runs them: test_arrays.py holds them to what runs on the CPU
# ops/test_tiling.py changes them, in each library.
IN_PLACE = {"add_product", "set_rows", "add_tile", "exp_in_place", "product", "is_turned", "less_at"}
TARGETS = [(stem, name) for stem in ops.STEMS for name in reached(ops.load(stem), "backward")]
TARGETS += [
    (where, name)
    for where in SHARED
    for name in sorted(set().union(*(helpers_of(stem, where) for stem in ops.STEMS)) - ON_A_GPU - IN_PLACE)
]


def changed_backwards(where: str, mutant: Mutant):
    """Each operation that the change reaches, with the backward it then has."""
    if where not in SHARED:
        yield where, compiled(mutant, ops.load(where))["backward"]
        return
    helper = compiled(mutant, SHARED[where])
    for stem in ops.STEMS:
        op, called = ops.load(stem), helpers_of(stem, where)
        if mutant.tree.body[0].name in called:
            changed = {name: helper[name] for name in called if name in vars(op)}
            yield stem, rebuilt(op, changed)["backward"]


@cache
def inputs_of(stem: str):
    return list(cases(stem, np.random.default_rng(0)))


def is_killed(where: str, mutant: Mutant) -> bool:
    """Whether a check fails, for some operation at some of its inputs. A crash is a failure.

    All methods are asked before a change has survived, unless its gradients are the original's bit for bit in whatever a
    method may give it.
    """
    backwards = dict(changed_backwards(where, mutant))
    case_at = cache(lambda stem, at: case_of(stem, backwards[stem], at))
    for method in METHODS_BY_SPEED:
        same, places = SAME.get(method), places_of(tuple(backwards), method)
        for stem, at in places:
            case = case_at(stem, at)
            if not (same and same(case, stem, at)) and fails(case, method):
                places.remove((stem, at))
                places.insert(0, (stem, at))
                return True
    return False


@cache
def places_of(stems: tuple[str, ...], method: str) -> list[tuple[str, int]]:
    """The inputs of the operations, by stem and number. Those that caught a change last come first: the next is often
    caught there too."""
    return [(stem, at) for stem in stems for at in range(len(inputs_of(stem)))]


@cache
def forward_of(stem: str) -> Callable:
    return remembered(ops.load(stem).forward)


@cache
def original(stem: str, at: int) -> Case:
    """The case with the backward as it is, and what the quick methods have found of its forward."""
    inputs, options = inputs_of(stem)[at]
    case = Case(subject(ops.load(stem), len(inputs), options), inputs, seed=0, explain=False)
    case = replace(case, operator=bound_operator(case))
    for method in ("pytorch", "autograd"):
        with suppress(NotRun):
            METHODS[method].run(case)
    return case


def with_backward(case: Case, backward: Callable) -> Subject:
    """The case's subject with another backward; its forward computes once, but what autograd follows is as it was."""
    stem = case.subject.stem
    op = SimpleNamespace(**{**vars(ops.load(stem)), "forward": forward_of(stem), "backward": backward})
    changed = subject(op, len(case.inputs), case.subject.options)
    return replace(changed, plain_forward=case.subject.plain_forward)


# What of a case does not depend on its backward, nor can be written over by it.
OF_FORWARD = ("computes_in", "y_as_given", "_y_as_given", "differentiated")


def case_of(stem: str, backward: Callable, at: int) -> Case:
    """The case with another backward; what is known of its forward is not found anew."""
    case = original(stem, at)
    changed = replace(case, subject=with_backward(case, backward), found=Findings())
    known = {name: value for name, value in vars(case).items() if name in OF_FORWARD}
    vars(changed).update(known, dy=dy_of(stem, at).copy())
    return changed


@cache
def dy_of(stem: str, at: int) -> np.ndarray:
    return original(stem, at).dy.copy()


@cache
def gradients_of(stem: str, at: int):
    """The gradients that the backward gives as it is, or None."""
    try:
        return original(stem, at).gradients
    except Exception:
        return None


def same_numbers(case: Case, stem: str, at: int) -> bool:
    """Whether the gradients are the original's bit for bit. A method that compares these with what the forward alone gives
    then finds what it finds of the original, which passes (verify/test_all_operations.py, at the same inputs)."""
    expected = gradients_of(stem, at)
    try:
        got = case.gradients
    except Exception:
        return False
    if expected is None:
        return False
    alike = (
        a is b is None
        or (a is not None and b is not None and a.shape == b.shape and a.tobytes() == b.tobytes())
        for a, b in ((got[i], expected[i]) for i in expected)
    )
    return got.keys() == expected.keys() and all(alike) and np.array_equal(case.dy, dy_of(stem, at))


@cache
def symbols(stem: str, at: int):
    return structure(case_of(stem, ops.load(stem).backward, at))


def same_symbols(case: Case, stem: str, at: int) -> bool:
    """Whether an earlier case gave the same symbols to the same functions."""
    return symbols(stem, at) in (symbols(stem, earlier) for earlier in range(at))


SAME = {
    "complex_step": same_numbers,
    "finite_difference": same_numbers,
    "symbolic": same_symbols,
}


def fails(case: Case, method: str) -> bool:
    try:
        return any(row.verdict == FAILED for row in METHODS[method].run(case))
    except NotRun:
        return False
    except Exception:
        return True


@pytest.mark.parametrize(("where", "name"), TARGETS, ids=lambda part: part)
def test_every_change_is_caught_or_proved_equivalent(where, name, proof):
    module = SHARED.get(where) or ops.load(where)
    made = list(mutants(vars(module)[name]))
    assert made, f"nothing to change in {where}.{name}: is it a backward at all?"
    listed = {(e["line"], e["change"]) for _, e in LISTED if e["function"] == f"{where}.{name}"}
    gone = listed - {(mutant.line, mutant.change) for mutant in made}
    of = [vars(module)[name], vars(module).get("forward"), vars(module).get("EXAMPLES"), *sorted(listed)]
    tried = proof.part(f"{where}.{name}", made, of=of, checks=CHECKS)
    if not proof.whole:
        tried = [mutant for mutant in tried if (mutant.line, mutant.change) not in listed]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        survivors = {(mutant.line, mutant.change) for mutant in tried if not is_killed(where, mutant)}
    if unnoticed := survivors - listed:
        pytest.fail(
            f"changed, and no check noticed: add a check, or prove in tests/{FOLDER.name}/{where}.toml that these "
            f"compute the same\n\n{as_toml(f'{where}.{name}', unnoticed)}",
            pytrace=False,
        )
    if proof.whole:
        gone = listed - survivors
    if gone:
        pytest.fail(
            f"listed in tests/{FOLDER.name}/{where}.toml, but caught, or no longer there\n\n"
            f"{as_toml(f'{where}.{name}', gone)}",
            pytrace=False,
        )


def as_toml(function: str, entries: set[tuple[str, str]]) -> str:
    """The lines and changes as entries of the list, to be pasted; the proof is left to write."""
    return "\n".join(
        f"[[mutant]]\nfunction = {json.dumps(function)}\nline = {json.dumps(line, ensure_ascii=False)}\n"
        f'change = {json.dumps(change, ensure_ascii=False)}\nproof = ""\n'
        for line, change in sorted(entries)
    )


def test_what_survives_is_printed_as_it_is_to_be_listed():
    entries = {('x = "a" * b', "b → -b"), ("y = c", "c → 2 * c")}
    listed = tomllib.loads(as_toml("relu.backward", entries))["mutant"]
    assert {(entry["line"], entry["change"]) for entry in listed} == entries
    assert {entry["function"] for entry in listed} == {"relu.backward"}


def test_every_listed_mutant_is_proved():
    names = {f"{where}.{name}" for where, name in TARGETS}
    for where, entry in LISTED:
        assert entry["function"] in names
        assert entry["function"].partition(".")[0] == where
        assert len(entry["proof"].split()) >= 5


def test_an_array_of_zeros_is_not_scaled():
    def backward(dy, saved):
        shape, at = saved
        dw = np.zeros(shape)
        np.add.at(dw, at, dy)
        return dw

    lines = {mutant.change for mutant in mutants(backward)}
    assert any("-dw" in change for change in lines)
    assert not any("-np.zeros" in change or "2 * np.zeros" in change for change in lines)
