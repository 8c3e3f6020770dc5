"""Kernels forked from one process that has already imported what the chapters import, so that each starts at once.

Importing PyTorch, SymPy and Matplotlib takes four seconds; thirty chapters would do it thirty times. Each kernel is still
a process of its own. Only Linux forks; elsewhere kernels start as usual.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

# What is imported beforehand if a notebook imports the library. Any optimiser or array on "meta" imports torch._dynamo, a
# third of which is torch.distributed.fsdp. The rest would import Triton before a cell can choose its interpreter. What
# belongs to the book itself is not imported beforehand, so that each kernel's own use of it is noted.
HEAVY = {
    "backpass": ("array_api_compat.numpy", "lark"),
    "matplotlib": ("matplotlib.pyplot", "matplotlib.backends.backend_svg"),
    "sympy": ("sympy.tensor.tensor", "sympy.physics.units"),
    "torch": ("torch.distributed.fsdp", "array_api_compat.torch"),
}
# What a kernel imports, and what build.py does, because each kernel imports build.py again.
NEEDED = ("ipykernel.kernelapp", "jupyter_cache.cache.db", "myst_nb.core.read", "nbclient")

BACKEND = "module://matplotlib_inline.backend_inline"  # Matplotlib reads it when it is imported
CAN_FORK = sys.platform == "linux"
# A variable of a kernel's environment: the file in which the kernel notes the files that it opens and the processes that
# it starts. The cells do not see the variable.
NOTES = "BACKPASS_NOTES"
_forked = multiprocessing.get_context("forkserver") if CAN_FORK else None


def preload(imported: Iterable[str]) -> None:
    """Name what the kernels' notebooks import. Call it before the first of them starts."""
    os.environ.setdefault("MPLBACKEND", BACKEND)
    if _forked is not None:
        heavy = [module for name in sorted(HEAVY.keys() & set(imported)) for module in HEAVY[name]]
        _forked.set_forkserver_preload([*NEEDED, *heavy])


def collect_seldom() -> None:
    """Have the garbage collector look seldom, and never at what is there already: a tenth of the time of a build."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def stop() -> None:
    """End the process that forks, so that its time counts as this one's."""
    if _forked is not None:
        forkserver._forkserver._stop()  # the only way there is; CPython's own tests take it


def _note_what_is_used(path: str) -> None:
    """Append each file that this process or a fork of it opens, and each command of Python that it starts, as JSON."""
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seen: set[str] = set()

    def note(event: str, arguments: tuple) -> None:
        if event == "open":
            what = arguments[0]
            what = os.path.abspath(what) if isinstance(what, str) else ""
            what = "" if what == __file__ else what  # PyTorch reads this file for the lines of a stack
        elif event == "subprocess.Popen":
            command = arguments[1]
            what = [*map(os.fsdecode, command)] if isinstance(command, (list, tuple)) else []
        else:
            return
        if what and (line := json.dumps(what)) not in seen:
            seen.add(line)
            os.write(notes, f"{line}\n".encode())

    sys.addaudithook(note)


def _run(connection_file: str, folder: str, output: str, environment: dict[str, str]) -> None:
    """What a forked process does: it becomes a kernel."""
    log = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    os.environ.clear()
    notes = environment.pop(NOTES, None)
    os.environ.update(environment)
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    collect_seldom()
    sys.argv[:] = ["ipykernel_launcher", "-f", connection_file]
    if "torch" in sys.modules:
        sys.modules["torch"].seed()  # as an import does: no two kernels draw the same numbers
    multiprocessing.current_process()._config["daemon"] = False  # a cell may have processes of its own
    from ipykernel.kernelapp import IPKernelApp

    if notes:
        _note_what_is_used(notes)
    IPKernelApp.launch_instance(argv=["-f", connection_file])


class _Process:
    """A forked process, with the methods of `subprocess.Popen` that the provisioner calls."""

    stdin = stdout = stderr = None

    def __init__(self, *arguments: object) -> None:
        self._process = _forked.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self.kill, self.terminate = self._process.kill, self._process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class _Provisioner(LocalProvisioner):
    """Starts a kernel by forking."""

    async def launch_kernel(self, cmd: list[str], **settings: Any):
        self.process = _Process(
            self.parent.connection_file, str(settings["cwd"]), settings["stderr"].name, dict(settings["env"])
        )
        self.pid = self.process.pid
        return self.connection_info


class ForkedKernelManager(AsyncKernelManager):
    """Manages one forked kernel.

    It is reached by files beside its notes: a port that is free when it is chosen may be taken when the kernel opens it.
    """

    async def _async_pre_start_kernel(self, **settings: Any):
        if CAN_FORK and (notes := settings.get("env", {}).get(NOTES)):
            self.transport, self.ip = "ipc", notes
        if CAN_FORK and self.provisioner is None:
            self.provisioner = _Provisioner(parent=self, kernel_id="", kernel_spec=self.kernel_spec)
        return await super()._async_pre_start_kernel(**settings)
