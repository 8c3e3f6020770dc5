"""A count by kind, and the same whatever the numbers are."""

import math

import numpy as np
import pytest
import torch

from backpass import cost


def test_softmax_by_kind():
    found = cost.count("softmax", (3, 5))
    assert found.forward.by_kind == {"add": 12, "subtract": 15, "divide": 15, "exp": 15}
    assert found.backward.by_kind == {"add": 12, "subtract": 15, "multiply": 30}
    assert found.saved_bytes == 3 * 5 * 8


def test_a_row_of_minus_infinity_costs_what_any_row_costs():
    x = np.array([[-np.inf] * 4, [0.0, -np.inf, 1e4, -1e4]])
    found, usual = cost.count("softmax", x), cost.count("softmax", (2, 4))
    assert found.forward.by_kind == usual.forward.by_kind
    assert found.backward.by_kind == usual.backward.by_kind


def test_inputs_are_not_modified():
    x = np.random.default_rng(0).standard_normal((3, 4))
    before = x.copy()
    cost.count("softmax", x)
    assert np.array_equal(x, before)


def test_an_optional_input_may_be_none_or_left_out():
    without = cost.count("linear", (2, 3), (3, 4))
    assert cost.count("linear", (2, 3), (3, 4), None).forward.total == without.forward.total == 2 * 4 * 5


def test_ratios():
    assert cost.count("linear", (4, 4), (4, 4)).ratio == 2
    assert cost.count("fork", (3,), copies=2).ratio == math.inf
    assert cost.count("residual", (3,), (3,)).ratio == 0


def test_what_cannot_be_counted_on_is_rejected():
    with pytest.raises(TypeError, match="x: expected a NumPy array to count on; got Tensor"):
        cost.count("softmax", torch.zeros(3))


def test_shown_in_a_terminal_and_in_a_notebook():
    found = cost.count("softmax", (300, 5))
    assert "subtract    1,500     1,500" in repr(found)
    assert '<th scope="row">subtract</th><td>1,500</td><td>1,500</td>' in found._repr_html_()
