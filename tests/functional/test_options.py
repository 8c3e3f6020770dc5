"""Wrong options: TypeError or ValueError that names the option, what was expected, and what came."""

import inspect
from fractions import Fraction

import numpy as np
import pytest
import torch

from backpass import functional as B
from backpass import ops

from .support import drawn

X = torch.ones(2, 4)
Q = torch.ones(1, 2, 3, 4)
T = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: B.layer_norm(X, eps="x"), "eps: expected float; got str"),
        (lambda: B.layer_norm(X, eps=None), "eps: expected float; got NoneType"),
        (lambda: B.layer_norm(X, eps=True), "eps: expected float; got bool"),
        (lambda: B.layer_norm(X, eps=1j), "eps: expected float; got complex"),
        (lambda: B.layer_norm(X, eps=[1e-5]), "eps: expected float; got list"),
        (lambda: B.cross_entropy(X, T, reduction=None), "reduction: expected str; got NoneType"),
        (lambda: B.cross_entropy(X, T, ignore_index=1.5), "ignore_index: expected int; got float"),
        (lambda: B.cross_entropy(X, T, ignore_index=False), "ignore_index: expected int; got bool"),
        (lambda: B.attention(Q, Q, Q, causal="yes"), "causal: expected bool; got str"),
        (lambda: B.attention(Q, Q, Q, causal=1), "causal: expected bool; got int"),
        (lambda: B.attention(Q, Q, Q, causal=np.True_), "causal: expected bool; got bool"),
        (lambda: B.attention(Q, Q, Q, scale="1"), r"scale: expected float \| None; got str"),
        (lambda: B.attention(Q, Q, Q, seed=1.5), r"seed: expected int \| torch.Tensor \| None; got float"),
        (lambda: B.flash_attention(Q, Q, Q, tile=1.5), r"tile: expected int \| None; got float"),
        (lambda: B.gelu(X, approximate=None), "approximate: expected str; got NoneType"),
        (lambda: B.scale(X, factor="2"), "factor: expected float; got str"),
        (lambda: B.dropout(X, training="no"), "training: expected bool; got str"),
    ],
)
def test_an_option_of_a_wrong_type(call, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        call()


@pytest.mark.parametrize("number", [2**70, -(2**63) - 1])
def test_an_integer_that_no_operator_can_receive(number):
    with pytest.raises(
        ValueError, match=f"^ignore_index: expected an integer of at most 64 bits; got {number}$"
    ):
        B.cross_entropy(X, T, ignore_index=number)
    assert torch.equal(B.cross_entropy(X, T, ignore_index=2**63 - 1), B.cross_entropy(X, T))


@pytest.mark.parametrize("stem", ops.STEMS)
@pytest.mark.parametrize("value", [object(), b"x", [1], {}])
def test_no_option_takes_any_other_object(stem, value):
    inputs, options = drawn(stem)
    for parameter in inspect.signature(getattr(B, stem)).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            with pytest.raises(
                TypeError, match=f"^{parameter.name}: expected .*; got {type(value).__name__}$"
            ):
                getattr(B, stem)(*inputs, **options | {parameter.name: value})


def test_numbers_of_libraries_are_numbers():
    exact = B.layer_norm(X.cumsum(1), eps=0.25)
    for eps in (np.float64(0.25), np.float32(0.25), Fraction(1, 4)):
        assert torch.equal(B.layer_norm(X.cumsum(1), eps=eps), exact)
    assert torch.equal(B.scale(X, factor=2), B.scale(X, factor=2.0))
    assert torch.equal(B.cross_entropy(X, T, ignore_index=np.int64(1)), B.cross_entropy(X, T, ignore_index=1))


def test_errors_of_a_call_that_does_not_fit():
    for call, message in (
        (lambda: B.linear(), "missing a required argument: 'x'"),
        (lambda: B.linear(X), "missing a required argument: 'w'"),
        (lambda: B.linear(X, X, X, X), "too many positional arguments"),
        (lambda: B.linear(X, x=X, w=X), "multiple values for argument 'x'"),
        (lambda: B.layer_norm(X, None, None, 1e-5), "too many positional arguments"),
        (lambda: B.linear(X, X.T, bias=X), "got an unexpected keyword argument 'bias'"),
    ):
        with pytest.raises(TypeError, match=f"{message}; expected \\("):
            call()


def test_such_an_error_says_what_the_call_should_have():
    for call, message in (
        (lambda: B.linear(X, X, X, X), r"too many positional arguments; expected \(x, w, b\)$"),
        (lambda: B.softcap(X, 30.0), r"too many positional arguments; expected \(x, \*, cap\)$"),
        (
            lambda: B.softmax(X, dim=-1),
            r"unexpected keyword argument 'dim'; .*\. The operation acts on the last",
        ),
        (lambda: B.attention(X, X, X, is_causal=True), r"expected \(q, k, .*\)\. Write causal=True$"),
        (
            lambda: B.linear(X, weight=X),
            r"argument: 'w'; expected \(x, w, b\)\. Give it by position; a linear",
        ),
        (lambda: B.linear(X, X, bias=X), r"argument 'bias'; expected \(x, w, b\)\. Give it by position$"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("scaled_dot_product_attention", "it has flash_attention and attention"),
        ("nll_loss", "it has nll"),
        ("soft_max", r"did you mean 'softmax'\?"),
        ("mse_loss", "there are: .*softmax"),
    ],
)
def test_a_function_that_is_not_there(name, hint):
    with pytest.raises(AttributeError, match=f"^backpass.functional has no '{name}'; {hint}"):
        getattr(B, name)


def test_tables_of_each_sequence_need_an_axis_for_the_heads():
    x, table = torch.randn(2, 4, 3, 6), torch.randn(2, 3, 3)
    with pytest.raises(
        ValueError,
        match=r"^cos: .* broadcast to \[2, 4\], .* got shape \[2, 3, 3\]\. .* pass cos\[:, None\]$",
    ):
        B.rope(x, table, table)
    assert B.rope(x, table[:, None], table[:, None]).shape == x.shape
    assert B.rope(x, table[:1], table[:1]).shape == x.shape


def test_arrays_may_be_given_by_name():
    w = torch.randn(4, 3)
    assert torch.equal(B.linear(w=w, x=X), B.linear(X, w)) and torch.equal(
        B.linear(X, w=w), B.linear(X, w, None)
    )
