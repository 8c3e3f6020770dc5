"""What holds for all tests: kernels are interpreted where there is no CUDA device, and the garbage collector
looks seldom, and never at the libraries and the tests that are there from the start.

That collector took an eighth of the tests' time. What no cycle holds is freed at once all the same.
"""

import gc

from backpass import kernels

# Before any test module imports triton: PyTorch's compiler does.
if kernels.missing() is None:
    kernels.interpret_without_cuda()
    kernels.interpreted()


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
