"""A gradient at a tie may be shared in any way, but the shares of equal elements sum to 1."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

X = np.random.default_rng(0).normal(size=(4, 6))
TIED = np.round(2 * X) / 2
TIED[:, 0] = TIED[:, 3] = TIED.max(1)  # each row has two largest elements


def own(forward, backward):
    return SimpleNamespace(forward=forward, backward=backward)


def largest(x):
    return x.max(-1), x


def shared(share):
    """A backward of ``largest``; ``share`` makes rows of shares from a mask of the largest elements."""
    return lambda dy, x: dy[:, None] * share(x == x.max(-1, keepdims=True))


RIGHT = {
    "evenly": lambda at: at / at.sum(-1, keepdims=True),
    "the first": lambda at: at & (np.cumsum(at, -1) == 1),
    "the last": lambda at: at & (np.cumsum(at[:, ::-1], -1)[:, ::-1] == 1),
    "unevenly": lambda at: (
        np.where(at, 2.0 ** -np.cumsum(at, -1), 0) / (1 - 2.0 ** -at.sum(-1, keepdims=True))
    ),
}
WRONG = {
    "each": lambda at: at * 1.0,
    "none": lambda at: at * (at.sum(-1, keepdims=True) == 1),
    "half of each": lambda at: np.where(at.sum(-1, keepdims=True) > 1, at / 3, at),
}


@pytest.mark.parametrize("share", RIGHT.values(), ids=RIGHT)
def test_any_convention_passes(share):
    op = own(lambda x: (np.max(x, -1), x), shared(share))
    assert check(op, X).passed
    report = check(op, TIED, methods=["finite_difference"], raises=False)
    assert report.rows[0].verdict == "passed" and "at kinks" in report.rows[0].note


@pytest.mark.parametrize("share", WRONG.values(), ids=WRONG)
def test_shares_that_do_not_sum_to_one_fail(share):
    report = check(own(largest, shared(share)), TIED, methods=["finite_difference"], raises=False)
    (row,) = report.failed
    assert "Equal elements may share a gradient" in row.reason


def test_a_variation_shows_it():
    pool = own(lambda x: (x.reshape(4, 3, 2).max(-1), x), None)

    def backward(share):
        def of(dy, x):
            at = x.reshape(-1, 2) == x.reshape(-1, 2).max(-1, keepdims=True)
            return (dy.reshape(-1, 1) * share(at)).reshape(x.shape)

        return of

    pool.forward = lambda x: (x.reshape(*x.shape[:-1], -1, 2).max(-1), x)
    pool.backward = backward(RIGHT["the first"])
    assert check(pool, X).passed
    pool.backward = backward(WRONG["each"])
    report = check(pool, X, raises=False)
    assert {row.variation for row in report.failed} == {"a row of zeros in x", "ties in x"}


KINKS = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: x > 0),
    "relu, 1 at 0": (lambda x: np.maximum(x, 0), lambda x: x >= 0),
    "abs": (np.abs, np.sign),
    "clamp": (lambda x: np.clip(x, -1, 1), lambda x: np.abs(x) < 1),
    "clamp, 1 at the limits": (lambda x: np.clip(x, -1, 1), lambda x: np.abs(x) <= 1),
    "leaky": (lambda x: np.where(x > 0, x, 0.1 * x), lambda x: np.where(x > 0, 1, 0.1)),
    "round": (np.round, lambda x: 0 * x),
    "a step": (lambda x: np.where(x >= 0.5, x + 1, x), lambda x: 1 + 0 * x),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_at_single_elements_are_not_ties(name):
    forward, slope = KINKS[name]
    for square in (False, True):

        def run(x, square=square):
            y = forward(x)
            return (y * y if square else y), (x, 2 * y if square else 1)

        op = own(run, lambda dy, saved: dy * saved[1] * slope(saved[0]))
        assert not check(op, TIED, methods=["finite_difference"], raises=False).failed


def test_pytorch_shares_otherwise_which_is_a_convention():
    """A row of zeros and the inputs given have ties; amax's gradient is shared evenly."""
    torch = pytest.importorskip("torch")

    def forward(x):
        return x.amax(-1), x

    def first(dy, x):
        return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), dy[:, None])

    def each(dy, x):
        return dy[:, None] * (x == x.amax(-1, keepdim=True))

    operator = {"operator": lambda x: x.amax(-1)}
    for given in ({}, operator):
        assert check(own(forward, first), torch.tensor(X), **given).passed
        assert not check(own(forward, each), torch.tensor(X), raises=False, **given).passed
        report = check(own(forward, first), torch.tensor(TIED), raises=False, **given)
        assert not report.failed
        report = check(own(forward, each), torch.tensor(TIED), raises=False, **given)
        assert {row.method for row in report.failed} >= {"finite differences", "torch autograd"}


def test_pytorch_still_judges_what_a_kink_at_a_single_element_returns():
    torch = pytest.importorskip("torch")
    x = torch.tensor(TIED)
    for share in (0.0, 0.5):
        relu = own(lambda x: (torch.relu(x), x), lambda dy, x, share=share: dy * ((x > 0) + share * (x == 0)))
        failed = check(relu, x, operator=torch.relu, vary=False, raises=False).failed
        assert {row.method for row in failed} == ({"PyTorch's operator"} if share else set())
