"""Settings of all tests: Triton's interpreter without a CUDA device, less garbage collection, the part that each
run proves (``tools/proofs.py``) or repeats (``tools/unchanged.py``), and the tests' limits of CPU time
(``tools/weight.py``).

The garbage collector took an eighth of the tests' time. It now runs seldom, and it skips all objects that exist after
the tests are collected. Reference counts still free an object at once unless it is in a cycle.
"""

import gc

import on_pages
import proofs
import unchanged
import weight
from backpass import kernels
from proofs import proof as proof

# Before any test module imports triton, as PyTorch's compiler does.
if kernels.missing() is None:
    kernels.interpret_without_cuda()
    kernels.interpreted()


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "rotates(share, of, checks): those of its cases that changed run, and a part of the others"
    )
    config.addinivalue_line(
        "markers", "on_pages: the book's pages run the same check; left out unless the test is chosen"
    )
    config.pluginmanager.register(on_pages.Plugin(), "on_pages")
    config.pluginmanager.register(proofs.Plugin(config), "proofs")
    config.pluginmanager.register(unchanged.Plugin(), "unchanged")
    config.pluginmanager.register(weight.Plugin(config), "weight")
