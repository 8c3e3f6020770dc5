"""What fork promises beside the contract: so many copies as asked for, and none of the memory."""

import numpy as np
import pytest

from backpass import ops


@pytest.mark.parametrize("copies", [0, -1, 1.5, "2", None], ids=str)
def test_a_number_of_copies_that_makes_no_sense_is_rejected(copies):
    with pytest.raises(ValueError, match="copies: expected an integer of at least 1; got"):
        ops.fork.forward(np.ones(3), copies=copies)


def test_the_copies_share_the_memory_of_the_input():
    x = np.arange(6.0).reshape(2, 3)
    y, _ = ops.fork.forward(x, copies=4)
    assert y.shape == (4, 2, 3)
    assert np.shares_memory(y, x)
