"""Settings of all tests: Triton's interpreter without a CUDA device, and less garbage collection.

The garbage collector took an eighth of the tests' time. It now runs seldom, and it skips all objects that exist after
the tests are collected. Reference counts still free an object at once unless it is in a cycle.
"""

import gc

from backpass import kernels

# Before any test module imports triton, as PyTorch's compiler does.
if kernels.missing() is None:
    kernels.interpret_without_cuda()
    kernels.interpreted()


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
