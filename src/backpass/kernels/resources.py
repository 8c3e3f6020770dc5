"""The registers, shared memory and spills of a kernel, found by compiling it; no GPU is
needed.

``python -m backpass.kernels.resources softmax`` prints the table;
``resources("softmax")`` returns its rows. Triton compiles nothing in a process whose
kernels are interpreted, so another process compiles. ``recorded("softmax")`` compiles
nothing: it returns the rows that the tests recorded, in bfloat16 for Hopper.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from backpass.recorded import findings
from backpass.text.table import aligned

CAPABILITIES = (80, 90)  # Ampere (A100), Hopper (H100, H200)
DTYPES = ("float32", "float16", "bfloat16")
RECORDED = ("bfloat16", 90)  # the dtype and the capability of ``recorded``


class Resources(NamedTuple):
    """One kernel compiled for one GPU. Spilled bytes did not fit into a thread's
    registers. Undefined registers are read though nothing writes them, as is left of
    code whose behaviour is undefined. There should be none of either."""

    kernel: str
    case: str
    dtype: str
    capability: int
    threads: int
    registers: int  # per thread
    shared_bytes: int  # per program
    spilled_bytes: int  # per thread
    undefined: int  # virtual registers of the PTX


def resources(stem: str, dtypes=DTYPES, capabilities=CAPABILITIES) -> list[Resources]:
    """Compile every launch the kernel's module lists, for each dtype and compute
    capability.

    Raises LookupError for an unknown stem, ImportError without triton, RuntimeError if
    a launch does not compile.
    """
    from backpass.kernels import load

    load(stem)
    for dtype in dtypes:
        if dtype not in (*DTYPES, "float64"):
            known = ", ".join((*DTYPES, "float64"))
            raise ValueError(f"dtypes: expected some of {known}; got {dtype!r}")
    for capability in capabilities:
        if not isinstance(capability, int):
            raise ValueError(
                f"capabilities: expected integers such as 80 and 90; got {capability!r}"
            )
    command = [sys.executable, "-m", __name__, stem, "--json", "--dtypes", *dtypes]
    command += ["--capabilities", *map(str, capabilities)]
    environment = {**os.environ}
    environment.pop("TRITON_INTERPRET", None)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"compiling the kernel {stem!r} failed:\n{done.stderr}")
    return [Resources(*row) for row in json.loads(done.stdout)]


def recorded(stem: str) -> list[Resources]:
    """Return the rows of a kernel that are in ``assets/records/resources.json``.

    Raises LookupError for an unknown stem.
    """
    return [Resources(*row) for row in findings.load("resources").entries[stem]]


def table(rows: list[Resources]) -> str:
    """The rows as text, one per line."""
    head = "kernel case dtype sm threads registers shared spilled undefined".split()
    return "\n".join(aligned([head, *([str(value) for value in row] for row in rows)]))


def compile_launch(launch, capability: int):
    """Compile the launch's kernel as Triton would at the call, for a CUDA device of
    that capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants: dict[Any, Any] = dict(launch.constants)
    attributes: dict[tuple[int, ...], list] = {}

    def described(value, name, *path: int):
        """Return the type of an argument, or of a part of a tuple, at this path."""
        # At a call Triton compiles in an integer that is 1, and notes which integers
        # are multiples of 16.
        if isinstance(value, tuple):
            parts = [described(x, None, *path, i) for i, x in enumerate(value)]
            return value._make(parts) if hasattr(value, "_make") else tuple(parts)
        if value is None or (isinstance(value, int) and value == 1):
            constants.setdefault(name or path, value)
            return "constexpr"
        number = isinstance(value, int)
        if not number or value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        if number:
            return "i32" if value < 2**31 else "i64"
        return f"*{_TRITON_NAMES[str(value.dtype)]}"

    signature = {
        name: described(launch.arguments.get(name), name, position)
        for position, name in enumerate(launch.kernel.arg_names)
    }
    source = ASTSource(launch.kernel, signature, constants, attributes)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(
        source,
        target=target,
        options={
            "num_warps": launch.warps,
            "num_stages": launch.stages,
            "enable_fp_fusion": launch.fused,
        },
    )


_TRITON_NAMES = {
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float64": "fp64",
    "torch.uint8": "u8",
    "torch.int32": "i32",
    "torch.int64": "i64",
}


def _measure(kernel, capability: int, case: str, dtype: str, launch) -> Resources:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    # The stack of a kernel that calls nothing holds what was spilled.
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", said)}
    # A kernel of elementwise.py is named after the formula compiled into it.
    name = launch.constants.get("FORMULA", launch.kernel).__name__.lstrip("_")
    threads, shared = launch.warps * 32, kernel.metadata.shared
    used = found["REG"], shared, found["STACK"], len(undefined(kernel.asm["ptx"]))
    return Resources(name, case, dtype, capability, threads, *used)


def undefined(ptx: str) -> set[str]:
    """Return the registers that instructions of ``ptx`` read and none writes."""
    read: set[str] = set()
    written: set[str] = set()
    for instruction in re.split("[;\n]", re.sub("//.*", "", ptx)):
        found = re.match(
            r"\s*(?:@!?%\w+\s+)?([a-z]\w*)[\w.:]*\s+(\{[^}]*\}|[^,]*)", instruction
        )
        if found:
            # What an instruction writes is its first operand, if it writes a register.
            first = "" if found[1] in _WRITE_NO_REGISTER else found[2]
            results = set(re.findall(r"%[a-z]+\d+", first))
            written |= results
            read |= set(re.findall(r"%[a-z]+\d+", instruction)) - results
    return read - written


_WRITE_NO_REGISTER = {"bar", "bra", "cp", "red", "ret", "st"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m backpass.kernels.resources", description=__doc__
    )
    parser.add_argument("stem")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--capabilities", nargs="+", type=int, default=CAPABILITIES)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    chosen = parser.parse_args(arguments)

    import torch

    from backpass.kernels import launch, load

    rows = []
    for dtype, capability in itertools.product(chosen.dtypes, chosen.capabilities):
        launch.COMPILED_FOR = capability
        for case, prepared in load(chosen.stem).launches(getattr(torch, dtype)):
            compiled = compile_launch(prepared, capability)
            rows.append(_measure(compiled, capability, case, dtype, prepared))
    print(json.dumps(rows) if chosen.json else table(rows))


if __name__ == "__main__":
    main()
