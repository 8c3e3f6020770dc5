"""Kernel tests run on a CUDA device where there is one, in Triton's interpreter otherwise."""

import os
import sys

import pytest

from backpass import kernels

pytest.importorskip("torch", reason="kernels need PyTorch")
kernels.interpret_without_cuda()


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels of this process run. Skips where triton is not installed, fails for another
    reason."""
    pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")
    return kernels.device()


@pytest.fixture(scope="session")
def compiling() -> dict[str, str]:
    """Environment variables of a process whose kernels are compiled, whatever those of this one are."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
