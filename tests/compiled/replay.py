"""Record launches of compiled kernels, and execute them again with other PTX."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from backpass import ptx
from backpass.kernels import compiled

PATIENCE = 4  # a changed block may execute this many times as many instructions as the unchanged one


class Launch(NamedTuple):
    """One launch: its PTX, its arguments, and the bytes and masks of its tensors afterwards."""

    text: str
    arguments: Mapping[str, ptx.Tensor | int]
    settings: Mapping[str, Any]
    after: Mapping[str, ptx.Tensor | int]
    instructions: int  # of a block, on average


class Recorder:
    """Parses PTX in place of ``ptx.parse``, and executes it in place of ``ptx.run``."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.changed: dict[str, ptx.Program] = {}  # the programs that replace texts
        self._texts: dict[int, str] = {}
        self._programs: dict[str, ptx.Program] = {}

    def parse(self, text: str) -> ptx.Program:
        if text in self.changed:
            return self.changed[text]
        if text not in self._programs:
            self._programs[text] = ptx.parse(text)
            self._texts[id(self._programs[text])] = text
        return self._programs[text]

    def run(self, program: ptx.Program, arguments: Mapping[str, Any], **settings: Any) -> ptx.Report:
        before = _copied(arguments)
        report = _run(program, arguments, **settings)
        if id(program) in self._texts:
            each = report.instructions // max(1, int(np.prod(settings["blocks"])))
            text = self._texts[id(program)]
            self.launches.append(Launch(text, before, settings, _copied(arguments), each))
        return report


_run = ptx.run


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record all launches inside the context."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_parsed", recorder.parse)
        patch.setattr(ptx, "run", recorder.run)
        yield recorder


def replayed(program: ptx.Program, launch: Launch) -> str:
    """What the program does with the arguments of the launch: a "fault" or an "unsettled" result, bytes that
    "differ", or the "same" bytes."""
    arguments = _copied(launch.arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backpass.ptx.block.LIMIT", PATIENCE * launch.instructions + 1000)
        try:
            report = _run(program, arguments, **launch.settings)
        except ptx.Fault:
            return "fault"
    if report.unsettled:
        return "unsettled"
    own, right = (
        [getattr(x, "tensor", x) for x in of.values() if not isinstance(x, int)]
        for of in (arguments, launch.after)
    )
    same = all(
        np.array_equal(x.bytes, y.bytes) and np.array_equal(x.defined, y.defined)
        for x, y in zip(own, right, strict=True)
    )
    return "same" if same else "differ"


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the arguments; tensors that share memory also share it in the copy."""
    copies: dict[int, tuple[np.ndarray, Any]] = {}
    found = {}
    for name, value in arguments.items():
        tensor = value.tensor if isinstance(value, ptx.Mapped) else value
        if isinstance(tensor, ptx.Tensor):
            at = tensor.bytes.__array_interface__["data"][0]
            if at not in copies or not len(tensor.bytes):
                copies[at] = tensor.bytes.copy(), np.copy(tensor.defined)
            own, defined = copies[at]
            tensor = tensor._replace(bytes=own, defined=defined if defined.ndim else bool(defined))
            value = value._replace(tensor=tensor) if isinstance(value, ptx.Mapped) else tensor
        found[name] = value
    return found
