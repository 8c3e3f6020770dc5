"""A mode in which the host may not read a tensor, as in a CUDA graph that is being captured, on the CPU.

Within ``captured()``, tensors on the CPU report a CUDA device, as ``backpass.kernels.as_cuda`` arranges. Reading a
value of one raises ``Read``, and so does an operator whose result has a shape that depends on values. Copies between
host and device raise as well: PyTorch waits for them. A tensor that is created without a device, or with
``device="cpu"``, is on the host and may be read. Kernels are prepared and not launched, so their results are undefined.
"""

import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from backpass import torch_internals as internals
from backpass.kernels import as_cuda

aten = torch.ops.aten
_CHECK = "_accelerator_graph_capture_health_check"  # reads whether an accelerator is there that captures
PACKAGE = Path(internals.__file__).parent
MESSAGE = "{what} of a tensor on a device, in {where}"
# What gives the host all values of a tensor.
_TO_HOST = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.__array__)
_MOVES = (torch.Tensor.to, torch.Tensor.type_as, torch.Tensor.cuda)
_OF_HOST_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy)
_INDEXING = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)


class Read(Exception):
    """The host read a value, or copied values to or from a device."""


@contextmanager
def captured(watched=False):
    """Activate the mode. Nothing watches the operators that a CUDA graph captures; with ``watched``, the functions of
    ``backpass.functional`` see a mode and call their operators."""
    properties = as_cuda.properties_of((9, 0))
    with (
        mock.patch.object(as_cuda, "OnCuda", _Host),
        as_cuda.standing_in(properties) as host,
        _Reads(host),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
        mock.patch.object(internals, "is_watched", lambda: watched),
        mock.patch("backpass.kernels.launch.Launch.run", _not_launched),
        mock.patch.object(torch.optim.Optimizer, _CHECK, lambda self: None, create=True),
    ):
        yield


def _not_launched(launch):
    """Stand for a launch: a kernel runs on a device, where nothing waits for it."""
    assert any(isinstance(value, torch.Tensor) for value in launch.arguments.values())


def _where():
    """The line of the package, or else of a test, that is being executed."""
    frame, outer = sys._getframe(1), None
    while frame is not None:
        name = Path(frame.f_code.co_filename)
        if PACKAGE in name.parents and name.name not in ("as_cuda.py", "torch_internals.py"):
            return f"{name.relative_to(PACKAGE)}, line {frame.f_lineno}"
        if outer is None and name.name.startswith("test_"):
            outer = f"{name.name}, line {frame.f_lineno}"
        frame = frame.f_back
    return outer or "code outside the package"


def _reject(what):
    raise Read(MESSAGE.format(what=what, where=_where()))


def _is_cuda(value):
    return str(value).partition(":")[0] == "cuda" if isinstance(value, str | torch.device) else False


class _Host(as_cuda.OnCuda):
    """The mode for functions of PyTorch: it knows which tensors are on the host."""

    def __init__(self):
        super().__init__()
        self.on_host = []  # the tensors themselves, so that no id is used twice

    def has(self, x):
        return any(x is own for own in self.on_host)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if func in self._says and self.has(args[0]):
            return func(*args, **kwargs)
        here = [x for x in tensors if self.has(x)]
        to_device = any(map(_is_cuda, leaves)) or func is torch.Tensor.cuda
        if func in _TO_HOST and tensors and not here:
            _reject("a copy to the host")
        if func in _MOVES and to_device != (not here):
            if to_device or any(isinstance(x, str | torch.device) for x in leaves):
                _reject("a copy between host and device")
        if func in _OF_HOST_DATA and to_device and (here or not tensors):
            _reject("a copy from the host")
        if func is torch.Tensor.__getitem__ and isinstance(args[1], list | np.ndarray) and not here:
            _reject("a copy from the host, an index")
        if here and len(here) < len(tensors) and torch.is_tensor(args[0] if args else None):
            _reject("a copy from the host, an operand")
        result = super().__torch_function__(func, types, args, kwargs)
        if not to_device and len(here) == len(tensors):
            self.on_host += [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        return result


class _Reads(internals.TorchDispatchMode):
    """The mode for operators: it rejects those that read values."""

    def __init__(self, host):
        super().__init__()
        self.host = host

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not all(map(self.host.has, tensors)) and tensors:
            name = func.overloadpacket.__name__
            if func in _INDEXING:
                if any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
                    _reject("an index of booleans")
            elif torch.Tag.data_dependent_output in func.tags:
                _reject(f"the value ({name})")
            elif torch.Tag.dynamic_output_shape in func.tags:
                _reject(f"a shape that depends on values ({name})")
        return func(*args, **kwargs)
