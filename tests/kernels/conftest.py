"""Kernel tests run on a CUDA device where there is one, in Triton's interpreter otherwise.

A kernel's test module imports it as ``kernel``; the fixtures here look for it there.
"""

import os
import sys

import pytest

from backpass import kernels

torch = pytest.importorskip("torch", reason="kernels need PyTorch")
from .support import in_tiles  # noqa: E402

if kernels.available() is None and kernels.interpreted():
    from . import quick_interpreter

    quick_interpreter.install()


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels of this process run. Skips where triton is not installed, fails for another
    reason."""
    pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")
    return kernels.device()


CHOICES = ("TRITON_INTERPRET", "BACKPASS_PTX")  # of how kernels run on the CPU


@pytest.fixture(scope="session")
def compiling() -> dict[str, str]:
    """Environment variables of a process whose kernels are compiled, whatever those of this one are."""
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    return {**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.fixture(autouse=True)
def memory_is_given_back():
    """Tests of offsets beyond 32 bits take most of a GPU's, which other processes run tests on as well."""
    yield
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > 2**30:
        torch.cuda.empty_cache()


@pytest.fixture(params=["rows", "tiles"])
def path(request, monkeypatch):
    """Both ways through the kernel: rows kept whole, and tiles so small that a short row needs several."""
    if request.param == "tiles":
        in_tiles(request.module.kernel, monkeypatch)
    return request.param


@pytest.fixture
def poisoned(monkeypatch):
    """What the kernel allocates is full of NaN, and so is the memory around it: an element that it forgets to
    write shows in the result, one that it writes outside shows in that margin. Integers have no NaN; theirs
    is the least."""
    margin = 4096
    margins = []

    def poison(dtype):
        return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min

    def full_of_it(*shape, dtype, **options):
        shape = shape[0] if len(shape) == 1 else shape
        size = torch.Size([shape] if isinstance(shape, int) else shape).numel()
        memory = torch.full((margin + size + margin,), poison(dtype), dtype=dtype, **options)
        margins.extend((memory[:margin], memory[-margin:]))
        return memory[margin : margin + size].view(shape)

    monkeypatch.setattr(torch, "empty", full_of_it)
    yield
    assert margins
    for each in margins:
        untouched = torch.isnan(each) if each.is_floating_point() else each == poison(each.dtype)
        assert untouched.all(), "written outside of the result"
