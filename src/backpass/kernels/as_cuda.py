"""Let host code that expects a CUDA device run on CPU tensors.

Host code often queries the GPU before it launches a kernel: whether a tensor is on a
GPU, how many multiprocessors the GPU has, or which stream is current. In the context
``standing_in``, CPU tensors report the device ``cuda:0``, and tensors requested on CUDA
are allocated on the CPU. Functions that ``torch.compile`` returned run uncompiled. A
program that needs nothing else of a GPU runs unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from backpass.kernels.addresses import Addresses
from backpass.torch_internals import raw_streams

# By compute capability, the properties of a GPU under the names that CUDA and Triton
# use: the A100 with 80 GB; the L40S, which converts to numbers of eight bits; and the
# H100, whose matrix products in groups of warps and bulk copies are not executed.
_COMMON = {"warp_size": 32, "regs_per_multiprocessor": 65536}
_COMMON["shared_memory_per_block"] = 48 * 1024
GPUS: dict[tuple[int, int], dict[str, Any]] = {
    (8, 0): _COMMON
    | {
        "name": "NVIDIA A100, executed on the CPU by Backpass",
        "major": 8,
        "minor": 0,
        "multi_processor_count": 108,
        "total_memory": 80 * 1000**3,
        "max_threads_per_multi_processor": 2048,
        "shared_memory_per_block_optin": 163 * 1024,
        "shared_memory_per_multiprocessor": 164 * 1024,
        "L2_cache_size": 40 * 1024**2,
    },
    (8, 9): _COMMON
    | {
        "name": "NVIDIA L40S, executed on the CPU by Backpass",
        "major": 8,
        "minor": 9,
        "multi_processor_count": 142,
        "total_memory": 48 * 1000**3,
        "max_threads_per_multi_processor": 1536,
        "shared_memory_per_block_optin": 99 * 1024,
        "shared_memory_per_multiprocessor": 100 * 1024,
        "L2_cache_size": 96 * 1024**2,
    },
    (9, 0): _COMMON
    | {
        "name": "NVIDIA H100, executed on the CPU by Backpass",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 80 * 1000**3,
        "max_threads_per_multi_processor": 2048,
        "shared_memory_per_block_optin": 227 * 1024,
        "shared_memory_per_multiprocessor": 228 * 1024,
        "L2_cache_size": 50 * 1024**2,
    },
}
CAPABILITY = (8, 0)  # the default
DEVICE = torch.device("cuda", 0)


def properties_of(
    capability: tuple[int, int], multiprocessors: int | None = None
) -> dict[str, Any]:
    """Return the properties of a GPU, by default with its number of multiprocessors."""
    number = multiprocessors or GPUS[capability]["multi_processor_count"]
    return {**GPUS[capability], "multi_processor_count": number}


class _Stream(nullcontext):
    """A stream, or the context in which it is current. Its work is always complete."""

    cuda_stream = stream_id = device_index = 0
    device = DEVICE

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(self)

    def query(self) -> bool:
        return True

    def record_event(self, event: _Event | None = None) -> _Event:
        return event or _Event()

    def synchronize(self, *_: Any) -> None:
        """Return at once, as nothing is left to wait for."""

    wait_stream = wait_event = synchronize


class _Event:
    """An event. It has completed, and the time between two events is not known."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _Event) -> float:
        return math.nan

    def synchronize(self, *_: Any) -> None:
        """Return at once, as nothing is left to wait for."""

    record = wait = synchronize


class _Context(nullcontext):
    """The context in which a device is current: there is only one device."""

    idx = 0

    def __init__(self, *_: Any) -> None:
        super().__init__(None)


# For each function of ``torch.cuda``, the value that a call returns.
_ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "init": None,
    "device_count": 1,
    "current_device": 0,
    "set_device": None,
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "synchronize": None,
    "empty_cache": None,
    "reset_peak_memory_stats": None,
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "is_current_stream_capturing": False,
}
_OF_ACCELERATORS: dict[str, Any] = {  # the same for ``torch.accelerator``
    "is_available": True,
    "device_count": 1,
    "current_accelerator": torch.device("cuda"),
    "current_device_index": 0,
    "set_device_index": None,
    "synchronize": None,
}
_CLASSES: dict[str, type] = {
    "device": _Context,
    "device_of": _Context,
    "Stream": _Stream,
    "Event": _Event,
}
_STREAMS = ("stream", "current_stream", "default_stream")  # what returns a stream


@contextmanager
def standing_in(properties: Mapping[str, Any]) -> Iterator[OnCuda]:
    """Activate the mode for a GPU of such properties, and yield it."""
    mode = OnCuda()
    of_gpu = {
        "get_device_capability": (properties["major"], properties["minor"]),
        "get_device_name": properties["name"],
        "get_device_properties": SimpleNamespace(**properties),
    }
    answers = _answers(_ANSWERS | of_gpu, mode.asked)
    of_accelerators: dict[str, Any] = {
        name: _answering(f"torch.accelerator.{name}", of, mode.asked)
        for name, of in _OF_ACCELERATORS.items()
    }
    apply = BackwardCFunction.apply

    def with_mode(ctx: Any, *args: Any) -> Any:
        with mode:  # PyTorch calls a backward outside all modes
            return apply(ctx, *args)

    with (
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.multiple(torch.accelerator, **of_accelerators),
        mock.patch.object(BackwardCFunction, "apply", with_mode),
        raw_streams(_Stream.cuda_stream),
        torch.compiler.set_stance("force_eager"),  # a GPU to compile for is missing
        mode,
    ):
        yield mode


def _answers(values: dict[str, Any], asked: set[str]) -> dict[str, Any]:
    """Return replacements for names of ``torch.cuda``, which record each call. Classes
    are classes, because annotations may contain them."""
    found = {name: _recorded(name, own, asked) for name, own in _CLASSES.items()}
    streams = dict.fromkeys(_STREAMS, found["Stream"])
    functions = (values | streams).items()
    return found | {
        name: _answering(f"torch.cuda.{name}", of, asked) for name, of in functions
    }


def _recorded(name: str, base: type, asked: set[str]) -> Any:
    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        asked.add(f"torch.cuda.{name}")
        base.__init__(self, *args, **kwargs)  # type: ignore[misc]

    return type(name, (base,), {"__init__": created})


def _answering(name: str, answer: Any, asked: set[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        asked.add(name)
        return answer(*args, **kwargs) if isinstance(answer, type) else answer

    return call


class OnCuda(TorchFunctionMode):
    """A mode in which CPU tensors report a CUDA device, and an argument that names a
    CUDA device stands for the CPU. ``asked`` records the queries, such as
    ``torch.cuda.device``. ``data_ptr`` returns an address for executed kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()
        self.addresses = Addresses()
        of: Any = torch.Tensor
        self._says = {
            of.is_cuda.__get__: ("x.is_cuda", True),
            of.is_cpu.__get__: ("x.is_cpu", False),
            of.device.__get__: ("x.device", DEVICE),
            of.get_device: ("x.get_device()", 0),
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._says:
            x = args[0]
            if x.device.type != "cpu":
                return func(*args, **kwargs)
            name, answer = self._says[func]
            self.asked.add(name)
            return answer
        if func is torch.Tensor.data_ptr and args[0].device.type == "cpu":
            return self.addresses.of(args[0])
        if func is torch.Tensor.cuda:
            self.asked.add("x.cuda()")
            return args[0]
        return func(
            *(self._on_cpu(value) for value in args),
            **{name: self._on_cpu(value) for name, value in kwargs.items()},
        )

    def _on_cpu(self, value: Any) -> Any:
        """Return an argument, or the CPU in place of a CUDA device."""
        named = isinstance(value, str) and value.partition(":")[0] == "cuda"
        if named or (isinstance(value, torch.device) and value.type == "cuda"):
            self.asked.add('device="cuda"')
            return torch.device("cpu")
        return value
