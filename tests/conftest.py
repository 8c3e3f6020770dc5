"""The garbage collector looks seldom, and never at the libraries and the tests that are there from the start.

It took an eighth of the tests' time. What no cycle holds is freed at once all the same.
"""

import gc


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
