"""Ranks as processes that exchange arrays by PyTorch's collectives."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from backpass.contract.arrays import Array
from backpass.ops._ranks import check_places, check_root
from backpass.parallel.group import (
    RankError,
    Scheme,
    check_array,
    check_calls,
    check_ranks,
    check_scheme,
    described,
    members,
)
from backpass.training._numbers import check_positive

# How a line of a stack ends in an exchange, or at its end.
_WAITING = re.compile(
    r"(processes\.py\", line \d+ in (all_\w+|reduce\w*|broadcast|shift|agree)"
    r"|in barrier)$",
    re.MULTILINE,
)
_GRACE = 0.3  # seconds to wait, after a failure, for one that came before it
_START = 300  # seconds within which all ranks start, even on a slow machine
_SHOWN = 10  # seconds within which a rank writes its stack, even on a slow machine
_CALL = 256  # bytes of a call in words; longer ones are compared so far


class TorchGroup:
    """A ``Group`` of the processes of a process group of PyTorch, by default of all.

    ``torch.distributed`` has to be initialised, by ``on_processes`` or by the caller,
    for example under torchrun. Arrays are tensors, or NumPy arrays that become tensors
    on the way. If ``checked``, the ranks compare their calls before each collective,
    which takes about as long as a small one.
    """

    def __init__(self, process_group: Any = None, *, checked: bool = False) -> None:
        from torch import distributed

        self._dist, self._group = distributed, process_group
        self._checked = checked
        self.rank = distributed.get_rank(process_group)
        self.size = distributed.get_world_size(process_group)

    def all_reduce(self, x: Array) -> Array:
        y = self._agreed("all_reduce", x).clone()
        self._dist.all_reduce(y, group=self._group)
        return _as(y, x)

    def all_gather(self, x: Array) -> Array:
        sent = self._agreed("all_gather", x)
        y = sent.new_empty((self.size, *sent.shape))
        self._dist.all_gather(list(y.unbind()), sent, group=self._group)
        return _as(y, x)

    def reduce_scatter(self, x: Array) -> Array:
        sent = self._agreed("reduce_scatter", x)
        self._check_parts(x)
        y = sent.new_empty(sent.shape[1:])
        self._dist.reduce_scatter(y, list(sent.unbind()), group=self._group)
        return _as(y, x)

    def all_to_all(self, x: Array) -> Array:
        sent = self._agreed("all_to_all", x)
        self._check_parts(x)
        y = sent.new_empty(sent.shape)
        self._dist.all_to_all_single(y, sent, group=self._group)
        return _as(y, x)

    def broadcast(self, x: Array, *, root: int = 0) -> Array:
        root = check_root(root, self.size)
        y = self._agreed("broadcast", x, root=root).clone()
        self._dist.broadcast(y, group=self._group, group_src=root)
        return _as(y, x)

    def reduce(self, x: Array, *, root: int = 0) -> Array:
        root = check_root(root, self.size)
        y = self._agreed("reduce", x, root=root).clone()
        self._dist.reduce(y, group=self._group, group_dst=root)
        return _as(y if self.rank == root else y.zero_(), x)

    def shift(self, x: Array, *, places: int = 1) -> Array:
        places = check_places(places)
        sent = self._agreed("shift", x, places=places)
        places %= self.size
        if not places:
            return _as(sent.clone(), x)
        y = sent.new_empty(sent.shape)
        dist, to = self._dist, (self.rank + places) % self.size
        come = (self.rank - places) % self.size
        pair = [
            dist.P2POp(dist.isend, sent, group=self._group, group_peer=to),
            dist.P2POp(dist.irecv, y, group=self._group, group_peer=come),
        ]
        for request in dist.batch_isend_irecv(pair):
            request.wait()
        return _as(y, x)

    def split(self, colour: int) -> TorchGroup:
        ranks = self._dist.get_process_group_ranks(self._group)
        same = [ranks[member] for member in members(self, colour)]
        group = self._dist.new_group(same, use_local_synchronization=True)
        self._dist.barrier(group)  # or a rank that fails now breaks others' connecting
        return TorchGroup(group, checked=self._checked)

    def agree(self, call: str) -> list[str]:
        """Return every rank's ``call``, a text."""
        import torch

        text = bytearray(call.encode()[:_CALL].ljust(_CALL))
        own = torch.frombuffer(text, dtype=torch.uint8)
        every = own.new_empty((self.size, _CALL))
        self._dist.all_gather(list(every.unbind()), own, group=self._group)
        return [bytes(row.tolist()).decode(errors="replace").strip() for row in every]

    def _agreed(self, name: str, x: Array, **options: int) -> Any:
        """Return ``x`` as a contiguous tensor, to send, once all ranks make this call.
        Raises ValueError if they do not, and what ``check_array`` raises."""
        check_array(x)
        if self._checked:
            calls = self.agree(described(name, x, **options))
            if "" in calls:
                raise ValueError(f"called {name}, which not every rank did")
            check_calls(calls)
        return _sent(x)

    def _check_parts(self, x: Array) -> None:
        if not x.ndim or x.shape[0] != self.size:
            raise ValueError(
                f"x: expected one part for each of the {self.size} ranks along its "
                f"first axis; got shape {list(x.shape)}"
            )


def _sent(x: Array) -> Any:
    """Return ``x`` as a contiguous tensor, to send."""
    import torch

    if not array_api_compat.is_torch_array(x):
        x = np.array(x, order="C")  # PyTorch rejects strides below 0, and read-only x
    return torch.as_tensor(x).contiguous()


def _as(y: Any, like: Array) -> Array:
    """Return a tensor as an array of the library of ``like``."""
    return y if array_api_compat.is_torch_array(like) else y.numpy()


def on_processes(
    scheme: Scheme, ranks: int, *arguments: Any, timeout: float = 60
) -> list[Any]:
    """Run ``scheme(group, *arguments)`` on every rank, a process of its own, and return
    the results by rank.

    The processes are forked, so the scheme may be defined in a notebook, and they
    exchange arrays by gloo. ``timeout`` is the number of seconds that the scheme may
    run once all ranks have started. Raises RankError, with the rank's traceback, for
    the first rank that failed or ended without an answer. After the timeout, the error
    names the lowest rank without an answer that does not wait for others, and its place
    in the code. All ranks are then killed.

    Ranks that call different collectives, or pass arrays of different shapes, dtypes,
    or libraries, or other options, fail at once. Processes that the scheme starts are
    killed with their rank, unless they leave its process group. Raises RuntimeError
    where processes cannot be forked, and TypeError or ValueError for an argument of the
    wrong type or value.
    """
    check_scheme(scheme)
    check_ranks(ranks)
    check_positive(timeout=timeout)
    if "fork" not in multiprocessing.get_all_start_methods():
        raise RuntimeError("ranks are forked, which this platform cannot do")

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        answers: list[Connection] = []
        processes: list[Any] = []
        try:
            for rank in range(ranks):
                here, there = context.Pipe(duplex=False)
                answers.append(here)
                given = scheme, rank, ranks, arguments, folder, there, timeout
                process = context.Process(target=_rank, args=given, daemon=True)
                with warnings.catch_warnings():
                    # Python warns of a fork beside other threads: a lock that one of
                    # them holds stays locked in the child. The deadline ends a rank
                    # that waits for it.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                processes.append(process)
                there.close()
            results = _collected(answers, timeout)
            if missing := {*range(ranks)} - {*results}:
                rank, where = _stuck({r: processes[r] for r in missing}, folder)
                silent = ", ".join(map(str, sorted(missing)))
                raise RankError(
                    rank,
                    f"no answer within {timeout} s; ranks without an answer: {silent}; "
                    f"this one is at\n{where}",
                )
            return [results[rank] for rank in range(ranks)]
        finally:
            for process in processes:
                # Every answer is in, or the run has failed. A rank leads a group of
                # processes: those that the scheme started end with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
            for answer in answers:
                answer.close()


@contextlib.contextmanager
def joined(*, timeout: float = 60) -> Iterator[TorchGroup]:
    """Join the ranks that torchrun started, and leave them at the end.

    Tensors on a GPU are exchanged by NCCL, and others by gloo. ``timeout`` is how many
    seconds a collective may take. Raises ValueError where torchrun did not start this
    process.
    """
    from torch import cuda, distributed

    if cuda.is_available():
        cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % cuda.device_count())
    distributed.init_process_group(timeout=timedelta(seconds=timeout))
    try:
        yield TorchGroup()
        distributed.barrier()  # or a rank that ends early breaks another's exchange
    finally:
        distributed.destroy_process_group()


class _Failure(NamedTuple):
    """How a rank failed. The smallest is taken as the cause of the others."""

    answered: bool  # a process that died did not; others may then miss it
    when: float
    rank: int
    message: str


def _collected(answers: list[Connection], timeout: float) -> dict[int, Any]:
    """Return, by rank, the answers that arrive within ``timeout`` seconds of the ranks'
    start. Raises RankError for the first rank that failed."""
    deadline = time.monotonic() + _START + timeout
    results: dict[int, Any] = {}
    failures: list[_Failure] = []
    while len(results) + len(failures) < len(answers):
        silent = {*range(len(answers))} - {*results} - {f.rank for f in failures}
        patience = _GRACE if failures else max(0.0, deadline - time.monotonic())
        ready = wait([answers[rank] for rank in silent], patience)
        for rank in [rank for rank in silent if answers[rank] in ready]:
            try:
                said = answers[rank].recv_bytes()
                if not said:  # this rank has started, and so have all others
                    deadline = time.monotonic() + timeout
                    continue
                failed, when, result = pickle.loads(said)
            except (EOFError, OSError):  # OSError: it died while it answered
                message = "the process ended without an answer"
                failures.append(_Failure(False, 0.0, rank, message))
                continue
            except Exception as error:
                message = f"its result cannot be unpickled: {error!r}"
                failures.append(_Failure(True, time.monotonic(), rank, message))
                continue
            if failed:
                failures.append(_Failure(True, when, rank, f"failed with\n{result}"))
            else:
                results[rank] = result
        if not ready:
            break
    if failures:
        first = min(failures)
        raise RankError(first.rank, first.message)
    return results


def _stuck(processes: Mapping[int, Any], folder: str) -> tuple[int, str]:
    """Return the lowest of these ranks that does not wait for others, or if all do, the
    lowest, and where it is, the innermost call first."""
    for process in processes.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGUSR1)
    files = {rank: Path(f"{folder}/{rank}") for rank in sorted(processes)}
    end = time.monotonic() + _SHOWN
    while time.monotonic() < end and not all(map(_has_text, files.values())):
        time.sleep(0.05)
    time.sleep(_GRACE)  # for the last lines
    where = {
        rank: file.read_text() if file.exists() else "its start"
        for rank, file in files.items()
    }
    busy = [rank for rank, calls in where.items() if not _WAITING.search(calls)]
    rank = (busy or [*where])[0]
    return rank, where[rank]


def _has_text(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _without_logs(file: Path) -> None:
    """Write what PyTorch's own threads log to a file: when one rank fails, the others
    report it too. Python's standard error stays."""
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 2)


def _rank(
    scheme: Scheme,
    rank: int,
    ranks: int,
    arguments: tuple,
    folder: str,
    answer: Connection,
    timeout: float,
) -> None:
    """What the process of one rank does."""
    import torch
    from torch import distributed

    try:
        os.setpgid(0, 0)
        _without_logs(Path(f"{folder}/{rank}.log"))
        at = Path(f"{folder}/{rank}").open("w")
        faulthandler.register(signal.SIGUSR1, file=at, all_threads=False)
        torch.set_num_threads(1)
        # All ranks are on this machine, whose name may lead to no address.
        loopback = "lo" if sys.platform == "linux" else "lo0"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(f"{folder}/store", ranks),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=_START + timeout + 60),  # the parent's is first
        )
        distributed.barrier()  # or a rank that fails now breaks others' connecting
        answer.send_bytes(b"")
        group = TorchGroup(checked=True)
        result = scheme(group, *arguments)
        group.agree("")  # or a rank that ends early breaks another's exchange
        answer.send_bytes(pickle.dumps((False, 0.0, result)))
    except BaseException:
        failure = True, time.monotonic(), traceback.format_exc()
        answer.send_bytes(pickle.dumps(failure))
    finally:
        answer.close()
        os._exit(0)  # without the exit handlers of the process that was copied
