"""A Triton driver that executes compiled kernels on the CPU with ``backpass.ptx``.

At a launch, Triton compiles the kernel as it would for a GPU, by default an A100, and
passes it to the active driver. This driver executes the PTX on CPU tensors, in the
number formats of the GPU:

    with compiled.executing() as verdict:
        y = softmax(x)  # which launches a kernel
    print(verdict)

A kernel that does something that PTX does not allow raises a ``ptx.Fault``, which names
the line. With ``BACKPASS_PTX=1`` in the environment, this package's kernels run in this
way on CPU tensors.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import TensorWrapper

from backpass import kernels, ptx
from backpass.kernels import descriptors
from backpass.kernels.addresses import Addresses
from backpass.kernels.allocated import Allocated, Part
from backpass.kernels.as_cuda import CAPABILITY as USUAL
from backpass.kernels.as_cuda import DEVICE, GPUS, properties_of, standing_in
from backpass.kernels.tuning import Tuning, Wanted
from backpass.kernels.unassembled import unassembled
from backpass.kernels.untimed import untimed
from backpass.ptx.parse import width_of
from backpass.ptx.shadow import Shadow
from backpass.text import table
from backpass.text.progress import Progress
from backpass.torch_internals import without_torch_functions

CAPABILITY = 10 * USUAL[0] + USUAL[1]  # the default
# What a compiled kernel reports as the registers of a thread, from which host code may
# compute how many blocks fit on a multiprocessor. PTX does not say it.
REGISTERS = 32
UNSEEN = "timing, the order of accesses within a warp, and features of later GPUs"


class Run(NamedTuple):
    """One launch of a kernel."""

    kernel: str
    grid: tuple[int, ...]
    threads: int  # of a block
    report: ptx.Report
    text: str  # the PTX
    seconds: float = 0.0  # of this process
    # The type and the value of each integer that was passed, by the PTX's name.
    numbers: Mapping[str, tuple[str, int]] = MappingProxyType({})


@dataclass
class Verdict:
    """What was executed, and what is wrong although no fault was raised.

    ``unwritten`` has a line for each tensor from ``torch.empty`` that was passed to a
    kernel and has elements that were never written. A tensor that was freed before the
    end of the context was scratch memory, and has a line only if PyTorch has read such
    elements. Tensors of more than 1 GiB are not tracked and have no line. ``left_out``
    has a line for each autotuned kernel that was not run with all configurations,
    ``repeated`` for each whose trials change its result, and ``stood_in`` names the
    queries that were answered in place of a GPU. With ``atomic_sums``, the order of
    sums by atomic instructions may be any. ``speed`` says which kernels took how long.
    """

    runs: list[Run] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    stood_in: set[str] = field(default_factory=set)
    atomic_sums: bool = False

    @property
    def unsettled(self) -> list[ptx.Fault]:
        """The faults that make a result non-deterministic, the first on each line. PTX
        allows several results, and the kernel returned one of them."""
        tolerated = (ptx.LastBits, *[ptx.AtomicSum] * self.atomic_sums)
        return [fault for fault in self._open() if not isinstance(fault, tolerated)]

    @property
    def rounded(self) -> list[ptx.Fault]:
        """The lines on which threads wrote one result with different last bits, the
        first fault on each. They do not fail a check."""
        return [fault for fault in self._open() if isinstance(fault, ptx.LastBits)]

    def _open(self) -> list[ptx.Fault]:
        """Return the first fault of each kind on each line."""
        found = [fault for run in self.runs for fault in run.report.unsettled]
        first = {(fault.place, type(fault)): fault for fault in reversed(found)}
        return [*first.values()][::-1]

    @property
    def passed(self) -> bool:
        """Whether a kernel was launched, its outputs are written completely, PTX allows
        no other result, and neither do the trials of an autotuner."""
        wrong = self.unsettled or self.unwritten or self.repeated
        return bool(self.runs) and not wrong

    @property
    def notes(self) -> list[str]:
        """Notes on what was not checked, and on queries answered in place of a GPU."""
        found = [f"not checked: {UNSEEN}"]
        found += [f"last bits: {fault}" for fault in self.rounded]
        if self.atomic_sums:
            sums = [of for of in self._open() if isinstance(of, ptx.AtomicSum)]
            found += [f"accepted, as declared: {fault}" for fault in sums]
        found += [f"not executed: {line}" for line in self.left_out]
        if self.stood_in:
            found += [f"in place of a GPU: {', '.join(sorted(self.stood_in))}"]
        return found

    @property
    def moved(self) -> str:
        """A table of the tensors of each launch: the bytes that are loaded, stored, and
        asked for; see ``ptx.traffic``. It has no rows unless bytes are counted."""
        head = ("kernel", "tensor", "loaded", "stored", "asked for")
        rows = [
            (run.kernel, x.tensor, *(f"{n:,}" for n in x[1:]))
            for run in self.runs
            for x in run.report.moved
        ]
        return "\n".join(table.aligned([head, *rows], right=(2, 3, 4)))

    @property
    def speed(self) -> str:
        """A table of the kernels, the slowest first: how often each was launched, the
        CPU time of all its launches, its speed, and why its programs were not executed
        together, which takes longer."""
        head = ("kernel", "launches", "seconds", "instructions a second", "")
        by_kernel: dict[str, list[Run]] = {}
        for run in self.runs:
            by_kernel.setdefault(run.kernel, []).append(run)
        rows = []
        for name, runs in by_kernel.items():
            seconds = sum(run.seconds for run in runs)
            count = sum(run.report.instructions for run in runs)
            why = next((run.report.alone for run in runs if run.report.alone), "")
            said = f"one program after another: {why}" if why else ""
            speed = f"{count / max(seconds, 1e-6):,.0f}"
            rows.append((name, str(len(runs)), f"{seconds:.2f}", speed, said))
        rows.sort(key=lambda row: -float(row[2]))
        return "\n".join(table.aligned([head, *rows], right=(1, 2, 3)))

    def __str__(self) -> str:
        if not self.runs:
            return "no kernel was launched"
        rows = [("kernel", "grid", "threads", "instructions")]
        rows += [
            (
                run.kernel,
                " × ".join(map(str, run.grid)),
                str(run.threads),
                f"{run.report.instructions:,}",
            )
            for run in self.runs
        ]
        lines = table.aligned(rows, right=(2, 3))
        lines += [f"✗ {sentence}" for sentence in (*self.unwritten, *self.repeated)]
        lines += [f"✗ not deterministic: {fault}" for fault in self.unsettled]
        said = "✓ no access out of bounds, no race, no use of an uninitialised value"
        lines += [said] if self.passed else []
        return "\n".join([*lines, *(f"– {note}" for note in self.notes)])

    __repr__ = __str__


@contextmanager
def executing(
    *,
    only: Sequence[int] | None = None,
    approximate: int | None = None,
    configurations: Wanted = 1,
    capability: tuple[int, int] = USUAL,
    as_cuda: bool = False,
    multiprocessors: int | None = None,
    atomic_sums: bool = False,
    tf32: bool = True,
    count_bytes: bool = False,
) -> Iterator[Verdict]:
    """Let Triton kernels take CPU tensors, and execute the kernels as compiled.

    Inside the context, ``torch.empty`` fills tensors of up to 64 MiB with garbage, and
    a kernel must not use an element that was never written. An element that is written
    through ``x.numpy()`` counts as unwritten, and all elements of a tensor of more than
    1 GiB count as written.

    Programs run to completion one after another, so a program that waits for a later
    one raises a fault. ``only`` lists the numbers of the programs to run, in this
    order, and negative numbers count from the last program; the default is all.
    ``approximate`` is the seed of errors that are added to the results of approximate
    units, within the limits of the PTX manual; by default the units have no error.

    ``configurations`` is the number of an autotuned kernel's configurations to execute,
    None for all, or a function that selects some from a list of them. The default is
    the first configuration that fits. Several are each executed once, and the first of
    them once more.

    ``capability`` is the compute capability for which kernels are compiled: (8, 0), as
    for an A100; (8, 9), as for an L40S, on which Triton has more numbers of eight bits;
    or (9, 0), as for an H100, on which Triton has products of four warps (wgmma), and
    copies tiles of tensor descriptors as the tensor maps of TMA say.

    With ``as_cuda``, CPU tensors report the device ``cuda:0``, tensors requested on
    CUDA are allocated on the CPU, and ``torch.cuda`` reports such a GPU, so host code
    that expects one runs unchanged. ``triton.testing.do_bench`` calls its function once
    and returns NaN, and so is the time between two events. ``multiprocessors`` is the
    reported number, from which host code may derive the number of programs. With
    ``atomic_sums``, the verdict accepts sums by floating-point ``tl.atomic_add``, which
    depend on the order of their terms; it notes them. With ``tf32=False``, products of
    float32 that a GPU would compute from operands rounded to TF32 use all their digits,
    so what TF32 changes can be measured. With ``count_bytes``, ``verdict.moved`` has
    the bytes of each tensor that the kernels move, as ``ptx.traffic`` defines them.

    Raises a ``ptx.Fault`` for what PTX does not allow, ``ptx.Unsupported`` for an
    instruction that ``backpass.ptx`` does not execute, ValueError if a kernel has no
    program of a number in ``only``, no configuration is chosen, or the capability is
    not one of these, and RuntimeError if the kernels of this process are interpreted.
    """
    if capability not in GPUS:
        *others, last = map(str, GPUS)
        known = f"{', '.join(others)}, or {last}"
        raise ValueError(f"capability: expected {known}; got {capability!r}")
    if kernels.interpreted():
        raise RuntimeError(
            "compiled kernels: expected a process without TRITON_INTERPRET=1; it was set "
            "when triton was imported, so this process cannot compile a kernel"
        )
    verdict, tuning = Verdict(atomic_sums=atomic_sums), Tuning(configurations)
    properties = properties_of(capability, multiprocessors)
    device = standing_in(properties) if as_cuda else nullcontext()
    with (
        device as mode,
        Allocated(mode) as allocated,
        tuning.applied(),
        untimed(verdict.stood_in),
        unassembled(),
    ):
        addresses = mode.addresses if mode else None
        own = Driver(
            verdict, allocated, only, approximate, tuning, properties, addresses
        )
        own.tf32, own.count_bytes = tf32, count_bytes
        tuning.memory_of = lambda x: tensor(x, allocated.defined(x))
        before = getattr(driver, "_active", None)
        driver.set_active(own)
        kernels.executions.append(own)
        try:
            yield verdict
        finally:
            kernels.executions.remove(own)
            driver.set_active(before)
    verdict.unwritten += own.unwritten()
    verdict.left_out += tuning.left_out.values()
    verdict.repeated += tuning.repeated.values()
    verdict.stood_in |= mode.asked if mode else set()


class Driver(DriverBase):
    """Triton's view of a device that executes PTX."""

    def __init__(
        self,
        verdict: Verdict,
        allocated: Allocated,
        only: Sequence[int] | None,
        approximate: int | None,
        tuning: Tuning,
        properties: dict[str, Any],
        addresses: Addresses | None,
    ) -> None:
        """``addresses`` are those of tensors that stand for tensors on a GPU."""
        self.verdict, self.allocated, self.tuning = verdict, allocated, tuning
        self.only, self.approximate = only, approximate
        self.capability = 10 * properties["major"] + properties["minor"]
        self.addresses = addresses
        self._device = DEVICE if addresses else torch.device("cpu")
        self._given: list[tuple[str, Part]] = []
        self.shadow: Shadow | None = None  # computes in float64 beside
        # What the caller can read afterwards, if that is known.
        self.returned: list[torch.Tensor] | None = None
        self.tf32, self.count_bytes = True, False
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (None, None, REGISTERS, 0, 1024),
            get_device_properties=lambda _: _for_triton(properties),
        )

    @classmethod
    def is_active(cls) -> bool:
        """Return whether Triton may choose this driver by itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        """Return the target of compilation."""
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> str:
        """Return the key under which Triton caches kernels."""
        return f"executed as compiled for {self.capability}"

    def get_current_stream(self, device: object) -> int:
        """Return the number of the only stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Return the device that tensors report."""
        return self._device

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return the type unchanged; this driver generates no C++."""
        return ty

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Raise an error, because kernels are not timed here. Autotuners do not call
        this function: see ``kernels.tuning``."""
        raise NotImplementedError("kernels executed on the CPU are not timed")

    @staticmethod
    def launcher_cls(source: Any, metadata: Any) -> Callable[..., None]:
        """Return a function that launches a kernel, given its source and metadata."""
        files = get_cache_manager(metadata.hash).get_group(f"{source.name[:150]}.json")
        (path,) = (Path(path) for path in files.values() if path.endswith(".ptx"))
        text = _renamed(path.read_text(), source.fn.fn.__code__.co_filename)

        def launch(x: int, y: int, z: int, *rest: object) -> None:
            # After the grid come the stream, the function, two kinds of metadata, and
            # two hooks. Triton may reuse the launcher under a later driver.
            own = kernels.executions[-1]
            if not own.tuning.is_trial:
                with without_torch_functions():  # tensors report their real device
                    own.run(text, source.signature, metadata, (x, y, z), rest[6:])

        return launch

    def run(
        self,
        text: str,
        signature: dict[str, str],
        metadata: Any,
        grid: tuple[int, int, int],
        values: Sequence[object],
    ) -> None:
        """Execute one launch of the kernel with the given PTX."""
        program = _parsed(text if self.tf32 else ptx.with_all_digits(text))
        if metadata.num_ctas > 1:
            raise ptx.Unsupported(
                f"{program.name}: clusters of blocks are not supported; launch the "
                "kernel with num_ctas=1"
            )
        maps = iter(getattr(metadata, "tensordesc_meta", None) or ())
        arguments: dict[str, Any] = {
            name: self._argument(f"{program.name}: {name}", type, value)
            for name, type, value in _flat(signature.items(), values, maps)
        }
        if metadata.global_scratch_size:
            arguments["scratch memory"] = descriptors.scratch(metadata, grid)
        only, count = self.only, grid[0] * grid[1] * grid[2]
        if only is not None:
            if count and not (only and -count <= min(only) <= max(only) < count):
                raise ValueError(
                    f"{program.name}: only: expected numbers of its {count} programs, "
                    f"from {-count} to {count - 1}; got {list(only)}"
                )
            only = [number % count for number in only if count]
        start = time.process_time()
        with Progress(f"executing {program.name}") as progress:
            report = ptx.run(
                program,
                arguments,
                blocks=grid,
                shared=metadata.shared,
                only=only,
                approximate=self.approximate,
                find=partial(self._found, program.name),
                watch=progress.now,
                shadow=self.shadow,
                count=self.count_bytes,
            )
        seconds = time.process_time() - start
        axes = max([axis for axis in (1, 2) if grid[axis] > 1], default=0) + 1
        numbers = {
            parameter.name: (f"u{width}", value % 2**width)
            for parameter, value in zip(
                program.parameters, arguments.values(), strict=False
            )
            if isinstance(value, int) and parameter.type[0] in "usb"
            for width in (width_of(parameter.type),)
        }
        own = program.name, grid[:axes], program.threads
        run = Run(*own, report, text, seconds, numbers)
        self.verdict.runs.append(run)

    def unwritten(self) -> list[str]:
        """Return a line for each tensor that has elements never written."""
        found, returned = {}, None
        if self.returned is not None:
            parts = map(self.allocated.part, self.returned)
            returned = [part for part in parts if part is not None]
        for name, part in self._given:
            if missing := self.allocated.unwritten(part, returned):
                elements = f"{missing:,} of {part.written[..., 0].numel():,} elements"
                found[name] = f"{name}: {elements} never written"
        return [*found.values()]

    def _argument(self, where: str, type: str, value: object) -> Any:
        if type == descriptors.MAP:
            base = self._argument(where, "*", value[0].base)  # type: ignore[index]
            return ptx.Mapped(base, descriptors.map_of(*value))  # type: ignore[misc]
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                raise TypeError(
                    f"{where}: expected a tensor on the CPU; got device {value.device}"
                )
            return self._passed(where, value)
        if (wrapped := self._wrapped(value)) is not None:
            return self._argument(where, type, wrapped)
        if type in _FLOATS and isinstance(value, (int, float)):
            own, bits = _FLOATS[type]
            return struct.unpack(bits, struct.pack(own, value))[0]
        if type == "bf16" and isinstance(value, (int, float)):
            return struct.unpack("<I", struct.pack("<f", value))[0] >> 16
        if isinstance(value, int):
            return int(value)
        raise TypeError(
            f"{where}: expected a PyTorch tensor or a number; "
            f"got {value.__class__.__name__} for {type}"
        )

    def _wrapped(self, value: Any) -> torch.Tensor | None:
        """Return the tensor of an object that has the address of one: what
        ``triton.reinterpret`` returns, or a class of a project."""
        if isinstance(value, TensorWrapper):
            return value.base
        if not hasattr(value, "data_ptr") or self.addresses is None:
            return None
        return self.addresses.at(value.data_ptr())

    def _passed(self, where: str, value: torch.Tensor) -> ptx.Tensor:
        if (part := self.allocated.part(value)) is not None:
            self._given.append((where, part))
        found = tensor(value, self.allocated.defined(value))
        start = self.addresses.start(value) if self.addresses else None
        return found._replace(start=start)

    def _found(self, kernel: str, address: int) -> tuple[str, ptx.Tensor] | None:
        """Return the tensor at an address that a kernel has loaded."""
        found = self.addresses.find(address) if self.addresses else None
        return found and (found[0], self._passed(f"{kernel}: {found[0]}", found[1]))


def _for_triton(properties: dict[str, Any]) -> dict[str, int]:
    """Return the properties of a GPU under the names of Triton's driver."""
    return {
        "max_shared_mem": properties["shared_memory_per_block_optin"],
        "multiprocessor_count": properties["multi_processor_count"],
        "max_num_regs": properties["regs_per_multiprocessor"],
        "warpSize": properties["warp_size"],
    }


def tensor(x: torch.Tensor, defined: Any = True) -> ptx.Tensor:
    """Return a tensor's whole storage, with the offset at which the tensor begins."""
    elements = x.untyped_storage().nbytes() // x.element_size()
    whole = torch.as_strided(x, (elements,), (1,), 0).detach()
    offset = int(x.storage_offset()) * x.element_size()
    return ptx.Tensor(whole.view(torch.uint8).numpy(), offset, defined)


def _renamed(text: str, path: str) -> str:
    """Return the PTX with the path of the kernel's current file. Triton's cache may
    hold PTX that was compiled from the same source in another file, such as a notebook
    cell."""
    number = re.search(r"\.loc\s+(\d+)", text)
    own = number and re.search(rf'\.file\s+{number[1]}\s+"([^"]*)"', text)
    if not own or own[1] == path:
        return text
    before, now = PurePath(own[1]).name, PurePath(path).name
    text = text.replace(f'"{own[1]}"', f'"{path}"')
    return text.replace(f" {before}:", f" {now}:")


def _flat(
    signature: Iterable[tuple[str, Any]],
    values: Iterable[object],
    maps: Iterator[Any],
) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, the type, and the value of each argument of the PTX. A tuple is
    passed as its elements, and a constant is not passed. ``maps`` says how tiles of
    tensor descriptors are copied."""
    for (name, type), value in zip(signature, values, strict=True):
        if isinstance(type, tuple):
            own = [(f"{name}[{i}]", part) for i, part in enumerate(type)]
            yield from _flat(own, value, maps)  # type: ignore[arg-type]
        elif type.startswith("tensordesc"):
            yield from descriptors.arguments(name, value, next(maps, None))
        elif type != "constexpr":
            yield name, type, value


_FLOATS = {"fp16": ("<e", "<H"), "fp32": ("<f", "<I"), "fp64": ("<d", "<Q")}
_parsed = cache(ptx.parse)
