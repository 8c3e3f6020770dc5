"""An answer to an exercise is judged in one line."""

import numpy as np

from backpass.ops import softmax
from backpass.verify import attempt


class Zero:
    forward = softmax.forward

    def backward(dy, saved):
        return 0 * dy


X = np.random.default_rng(3).normal(size=(3, 5))


def test_a_right_answer_is_called_right():
    answer = attempt(softmax, X)
    assert answer.right and repr(answer).startswith("✓ Right: ")


def test_a_wrong_answer_raises_nothing_and_says_which_gradient_is_wrong():
    answer = attempt(Zero, X)
    assert not answer.right
    assert repr(answer).startswith("✗ Not yet. dx (") and "\n" not in repr(answer)
    shown = answer._repr_html_()
    assert "✗ Not yet. dx" in shown and "<details" in shown and " open" not in shown.split("<summary>")[0]


class Constant:
    def forward(x):
        return 0 * x, None

    def backward(dy, saved):
        return 0 * dy


def test_an_answer_of_which_nothing_is_shown_is_not_called_right_and_says_so():
    """A forward yet to be written returns zeros, and so has a gradient of zero: vacuous."""
    answer = attempt(Constant, X)
    assert not answer.right and "vacuous" in repr(answer)
