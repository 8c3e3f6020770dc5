"""Which kernels of public projects run unchanged as compiled, and how large are their errors?

    python benchmarks/public_kernels.py [name …] [--quick]

Each program of ``benchmarks/public`` whose package is installed runs in a process of its own, within
``backpass.kernels.compiled.executing(as_cuda=True)``, in float32 and in bfloat16. Its outputs and gradients are
compared with those of a function of PyTorch in float64; beside the error is that of the same function in the tested
dtype. A name is that of a project or of a program.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

import torch
from harness import Recording, say, settings
from public import Case, Draw, Project, projects

QUESTION = "Which kernels of public projects run unchanged as compiled, and how large are their errors?"
LIMIT = 120  # seconds of CPU time for a program in one dtype, compilation included
COLUMNS = [
    ("project", "project", ""),
    ("version", "version", ""),
    ("program", "program", ""),
    ("function", "function", ""),
    ("dtype", "dtype", ""),
    ("outcome", "outcome", ""),
    ("launches", "launches", ""),
    ("kernels", "kernels", ""),
    ("instructions", "instructions", ""),
    ("error", "largest error", ""),
    ("quantity", "of", ""),
    ("pytorch_error", "PyTorch's error of it", ""),
    ("tf32", "TF32", ""),
    ("findings", "findings", ""),
    ("cpu_seconds", "CPU time of the execution", "s"),
]
METHOD = (
    f"One process a program, and at most {LIMIT} s of CPU time in each dtype, compilation included. An error is the "
    "largest absolute error of a tensor's elements over the largest element."
)


def main() -> int:
    found = projects()
    names = [name for project in found.values() for name in (project.package, *project.programs)]
    chosen = settings(QUESTION, names)
    missing = [] if chosen.quick else [project.package for project in found.values() if not project.installed]
    if len(missing) == len(found):
        say(f"none of these packages is installed: {', '.join(missing)}")
        return 0
    notes = [f"Not installed: {', '.join(missing)}." if missing else ""]
    recording = Recording(chosen, "public_kernels", QUESTION, COLUMNS, notes, METHOD)
    for project in (project for project in found.values() if project.package not in missing):
        programs = {*project.programs}
        if chosen.names and project.package not in chosen.names:
            programs &= {*chosen.names}
        for program in [name for name in project.programs if name in programs][: 1 if chosen.quick else None]:
            part = f"{project.package} {program}"
            if recording.lacks(part):
                recording.add(part, rows_of(project, program))
    return recording.finish()


def rows_of(project: Project, program: str) -> list[dict[str, Any]]:
    """Return a program's rows: one a dtype."""
    fixed = {
        "project": project.package,
        "version": project.version if project.installed else "",
        "program": program,
        "function": project.functions[program],
    }
    empty = dict.fromkeys(key for key, _, _ in COLUMNS)
    dtypes = project.dtypes[program]
    found = in_a_process(project, program) if project.installed else {}
    absent = {"outcome": "not installed"}
    rows = [{**empty, **fixed, "dtype": dtype, **found.get(dtype, absent)} for dtype in dtypes]
    for row in rows:
        say(f"{project.package} {program} {row['dtype']}: {summary(row)}")
    return rows


def summary(row: dict[str, Any]) -> str:
    shown = [
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
        if key in ("error", "pytorch_error", "quantity", "cpu_seconds", "launches", "tf32")
        and value is not None
    ]
    return "; ".join([str(row["outcome"]), *shown, *(row["findings"] or [])])


def in_a_process(project: Project, program: str) -> dict[str, dict[str, Any]]:
    """Run a program, and return what its process found in each dtype."""
    command = [sys.executable, __file__, "--one", project.package, program]
    done = subprocess.run(command, capture_output=True, text=True)
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"dtype": '):
            row = json.loads(line)
            found[row["dtype"]] = row
    ended = (done.stderr.strip().splitlines() or ["?"])[-1]
    missing = f"did not end within {LIMIT} s" if done.returncode == -signal.SIGXCPU else f"error: {ended}"
    return {dtype: found.get(dtype, {"outcome": missing}) for dtype in project.dtypes[program]}


def one(package: str, program: str) -> None:
    """Run a program in this process, and print its row in each dtype. The CPU time for each is limited."""
    project = projects()[package]
    for dtype in project.dtypes[program]:
        used = math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + LIMIT, resource.RLIM_INFINITY))
        print(json.dumps({"dtype": dtype} | run(project, program, dtype)), flush=True)


def run(project: Project, program: str, dtype: str) -> dict[str, Any]:
    """Run a program in this process, and return its row."""
    from backpass import ptx
    from backpass.kernels import compiled

    seconds, execute = [], compiled.Driver.run

    def timed(*args: Any) -> None:
        begun = time.process_time()
        try:
            execute(*args)
        finally:
            seconds.append(time.process_time() - begun)

    compiled.Driver.run = timed  # type: ignore[method-assign]
    row: dict[str, Any] = {"outcome": "ran"}
    capability = project.capabilities[program]
    with compiled.executing(as_cuda=True, capability=capability) as verdict:
        try:
            case = project.programs[program](Draw(getattr(torch, dtype)))
            got = called(case, case.call)
        except (ptx.Fault, ptx.Unsupported) as error:
            row["outcome"] = f"{type(error).__name__}: {error}"
        except Exception as error:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = str(error).strip().splitlines() or [""]
            row["outcome"] = f"error: {type(error).__name__}: {text[-1]} ({where.name})"
    if row["outcome"] == "ran" and (errors := compared(case, got)):
        worst = max(errors, key=lambda name: excess(*errors[name], getattr(torch, dtype)))
        row |= {"quantity": worst, "error": errors[worst][0], "pytorch_error": errors[worst][1]}
    names = sorted({launch.kernel for launch in verdict.runs})
    return row | {
        "launches": len(verdict.runs),
        "kernels": ", ".join(names),
        "instructions": sum(launch.report.instructions for launch in verdict.runs),
        "tf32": any(".tf32." in launch.text for launch in verdict.runs),
        "findings": [*map(str, verdict.unsettled), *verdict.unwritten] if row["outcome"] == "ran" else [],
        "cpu_seconds": round(sum(seconds), 2),
    }


def excess(error: float, own: float | None, dtype: torch.dtype) -> float:
    """Return how far an error is above that of PyTorch, and above a rounding."""
    return error / ((own or 0.0) + torch.finfo(dtype).eps)


def called(case: Case, function: Any, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return the outputs of a function by name, and its gradients for random cotangents. Floating-point inputs have
    their own dtypes, or the given one."""
    leaves, given = [], []
    for x in case.inputs:
        floating = x.value.is_floating_point()
        leaf = x.value.to(dtype or x.dtype) if floating else x.value.clone()
        leaf = leaf.detach().clone().requires_grad_(x.differentiable and floating)
        leaves.append(leaf)
        # Programs may change their inputs in place, which a leaf does not allow.
        given.append(leaf * 1 if leaf.requires_grad else leaf)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    named = {f"y{i}" if len(outputs) > 1 else "y": y for i, y in enumerate(outputs) if compares(y)}
    found = {name: y.detach().clone() for name, y in named.items()}
    random = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(y.shape, generator=random, dtype=torch.float64).bfloat16().to(y.dtype)
        for y in named.values()
    ]
    roots = [(y, dy) for y, dy in zip(named.values(), cotangents, strict=True) if y.requires_grad]
    wanted = {name: x for name, x in zip(case.names, leaves, strict=True) if x.requires_grad}
    if roots and wanted:
        ys, dys = zip(*roots, strict=True)
        grads = torch.autograd.grad(ys, [*wanted.values()], dys, allow_unused=True)
        found |= {f"d{name}": g.clone() for name, g in zip(wanted, grads, strict=True) if g is not None}
    return found


def compares(y: Any) -> bool:
    return isinstance(y, torch.Tensor) and (y.is_floating_point() or y.dtype in (torch.int32, torch.int64))


def compared(case: Case, got: dict[str, torch.Tensor]) -> dict[str, tuple[float, float | None]]:
    """Return the largest error of each output and gradient, and PyTorch's in the same dtype."""
    exact = called(case, case.reference, torch.float64)
    try:
        own = called(case, case.reference)
    except RuntimeError:  # PyTorch does not compute this on a CPU in half precision
        own = {}
    missing = {*exact} ^ {*got}
    if missing:
        raise RuntimeError(f"the program and the reference differ in {', '.join(sorted(missing))}")
    return {
        name: (largest(got[name], x), largest(own[name], x) if name in own else None)
        for name, x in exact.items()
    }


def largest(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error of an element over the largest element."""
    scale = float(exact.double().abs().max()) or 1.0
    error = float((got.reshape(exact.shape).double() - exact.double()).abs().max()) / scale
    return error if error == error else float("inf")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        sys.exit(main())
