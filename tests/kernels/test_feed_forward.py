"""The feed-forward block's kernel: every activation, biases or none, and weights of any strides."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import ops  # noqa: E402
from backpass.contract.values import ACTIVATIONS  # noqa: E402
from backpass.kernels import feed_forward as kernel  # noqa: E402


def drawn(device, activation, left_out=()):
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "x": (2, 3, 5),
        "w_up": (5, 7),
        "w_down": (7, 5),
        "b_up": (7,),
        "b_down": (5,),
        "w_gate": (5, 7),
        "b_gate": (7,),
    }
    if activation != "swiglu":
        left_out = {*left_out, "w_gate", "b_gate"}
    draws = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }
    return [None if name in left_out else value.to(device) for name, value in draws.items()]


@pytest.mark.parametrize("left_out", [(), ("b_up",), ("b_down", "b_gate")], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_the_operation(activation, left_out, device):
    inputs = drawn(device, activation, left_out)
    inputs[1] = inputs[1].mT.contiguous().mT  # as a model that stores [out, in] passes it
    y, saved = kernel.forward(*inputs, activation=activation)
    expected, its = ops.feed_forward.forward(*inputs, activation=activation)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-13)
    dy = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=device).reshape(y.shape)
    gradients, theirs = kernel.backward(dy, saved), ops.feed_forward.backward(dy, its)
    for value, ours, right in zip(inputs, gradients, theirs, strict=True):
        assert (value is None) == (ours is None) == (right is None)
        if value is not None:
            torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-13)
            assert ours.stride() == value.stride() or value.ndim != 2


def test_what_does_not_fit_is_rejected(device):
    x, w_up, w_down, *_, w_gate, _ = drawn(device, "swiglu")
    with pytest.raises(ValueError, match=r"w_gate: expected an array .* with activation='swiglu'; got None"):
        kernel.forward(x, w_up, w_down, activation="swiglu")
    with pytest.raises(ValueError, match=r"w_gate: expected None with activation='relu'"):
        kernel.forward(x, w_up, w_down, w_gate=w_gate, activation="relu")
    with pytest.raises(
        ValueError, match=r"activation: expected one of relu, gelu, gelu_tanh, swiglu; got 'tanh'"
    ):
        kernel.forward(x, w_up, w_down, activation="tanh")
