"""``torch.func.grad`` and ``torch.func.vjp`` compute one derivative of each function; all else of torch.func is rejected."""

import pytest
import torch
from torch import nn

from backpass import functional as B
from backpass import ops

from .support import differentiable, drawn


@pytest.mark.parametrize("stem", ops.STEMS)
def test_grad_and_vjp_have_the_gradients_of_autograd(stem):
    inputs, options = drawn(stem)
    options |= {"seed": 3} if "seed" in options else {}
    leaves = differentiable(stem, inputs)
    y = getattr(B, stem)(*inputs, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    expected = torch.autograd.grad(y, leaves, dy)

    places = [at for at, x in enumerate(inputs) if any(x is leaf for leaf in leaves)]
    plain = [x if x is None else x.detach() for x in inputs]

    def of_leaves(*values):
        given = list(plain)
        for at, value in zip(places, values, strict=True):
            given[at] = value
        return getattr(B, stem)(*given, **options)

    values = [plain[at] for at in places]
    found, vjp = torch.func.vjp(of_leaves, *values)
    assert torch.equal(found, y)
    for gradients in (
        vjp(dy),
        torch.func.grad(lambda *x: (of_leaves(*x) * dy).sum(), tuple(range(len(values))))(*values),
    ):
        assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


def test_a_module_called_with_other_parameters():
    """As one computes gradients without autograd's leaves; the loss comes with them, and dropout draws its seed."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.zeros(4))

        def forward(self, x, t):
            return B.cross_entropy(B.dropout(B.linear(x, self.w, self.b), p=0.25), t)

    network, x, t = Network(), torch.randn(3, 5), torch.tensor([1, 3, 0])
    parameters = {name: w.detach() for name, w in network.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(network, parameters, (x, t))

    torch.manual_seed(0)
    gradients, value = torch.func.grad_and_value(loss)(parameters)
    torch.manual_seed(0)
    expected = network(x, t)
    expected.backward()
    assert torch.equal(value, expected.detach())
    assert all(torch.equal(gradients[name], w.grad) for name, w in network.named_parameters())


@pytest.mark.parametrize("function", [B.layer_norm, B.rms_norm])
def test_a_second_derivative_through_a_captured_tensor_is_rejected(function):
    """Autograd may follow a tensor that the transformed function captures."""
    x, w = torch.randn(3, 4), torch.ones(4, requires_grad=True)
    dx = torch.func.grad(lambda x: function(x, w).square().sum())(x)
    with pytest.raises(RuntimeError, match="got a derivative of its gradient"):
        dx.sum().backward()
    outer = torch.randn(3, 4, requires_grad=True)
    dx = torch.func.grad(lambda x: function(x + outer, w.detach()).sum())(x)
    with pytest.raises(RuntimeError, match="got a derivative of its gradient"):
        dx.sum().backward()


def test_a_first_derivative_through_a_captured_tensor():
    """The value of a transformed function is differentiable by autograd as it is outside."""
    x, w = torch.randn(3, 4), torch.ones(4, requires_grad=True)
    _, y = torch.func.grad_and_value(lambda x: B.layer_norm(x, w).square().sum())(x)
    (found,) = torch.autograd.grad(y, w)
    (expected,) = torch.autograd.grad(B.layer_norm(x, w).square().sum(), w)
    torch.testing.assert_close(found, expected)
