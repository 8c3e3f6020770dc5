"""What the dropout kernel promises beside every kernel: the operation's masks, to the last bit."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import kernels, ops  # noqa: E402

SHAPES = [(), (1,), (7,), (8,), (5, 33), (3, 4, 40), (2, 1048), (3, 0), (0, 3), (300, 1)]


def both():
    return kernels.load("dropout"), ops.load("dropout")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mask_is_the_operations(shape, dtype, device):
    kernel, op = both()
    ones = torch.ones(shape, dtype=dtype, device=device)
    for seed in (3, 2**63 + 5):
        y, saved = kernel.forward(ones, p=0.3, seed=seed)
        expected = op.drawn(shape, 0.3, seed)
        assert np.array_equal(y.cpu() != 0, expected)
        assert np.array_equal(kernel.backward(ones, saved).cpu() != 0, expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x[:, ::2],
        lambda x: x.mT,
        lambda x: x[:1].expand(4, -1, -1),
        lambda x: x[..., 3:20],
    ],
    ids=["transposed", "every second row", "columns as rows", "expanded", "some columns"],
)
def test_the_mask_does_not_depend_on_strides(view, device):
    kernel, op = both()
    x = view(torch.randn(6, 10, 33, generator=torch.Generator().manual_seed(0)).to(device))
    y, saved = kernel.forward(x, p=0.3, seed=5)
    expected = op.forward(x.cpu(), p=0.3, seed=5)[0]
    assert y.is_contiguous()
    torch.testing.assert_close(y.cpu(), expected, rtol=3e-7, atol=0)
    torch.testing.assert_close(kernel.backward(x, saved).cpu(), expected, rtol=3e-7, atol=0)


def test_the_seed_is_read_on_the_device(device):
    kernel, op = both()
    x, seed = torch.ones(40, 50, device=device), torch.tensor(11, device=device)
    _, saved = kernel.forward(x, seed=seed)
    assert saved.seed is seed
    seed.fill_(12)
    assert np.array_equal(kernel.backward(x, saved).cpu() != 0, op.drawn((40, 50), 0.5, 12))


@pytest.mark.parametrize("p", [1.0, 1 - 2**-34, 2**-34, 1 - 2**-31])
def test_probabilities_near_the_ends(p, device):
    kernel, op = both()
    x = torch.ones(8, 40, dtype=torch.float64, device=device)
    y, saved = kernel.forward(x, p=p, seed=1)
    assert torch.equal(y.cpu(), op.forward(x.cpu(), p=p, seed=1)[0])
    assert torch.equal(kernel.backward(x, saved), y)


@pytest.mark.parametrize("options", [{"p": 0.0}, {"training": False}], ids=str)
def test_x_itself_if_nothing_can_be_dropped(options, device):
    kernel, _ = both()
    x = torch.ones(8, 40, device=device)
    y, saved = kernel.forward(x, **options)
    assert y is x and saved.seed is None and kernel.backward(x, saved) is x


def test_a_dropped_element_is_0_also_where_x_is_infinite(device):
    kernel, _ = both()
    y, _ = kernel.forward(torch.full((8, 40), torch.inf, device=device))
    assert {*y.flatten().tolist()} == {0.0, torch.inf}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p": 1.5}, ValueError, "p: expected a probability from 0 to 1; got 1.5"),
        ({"seed": 2**64}, ValueError, r"seed: expected an integer below 2\^64; got 18446744073709551616"),
        ({"seed": torch.ones(2)}, TypeError, r"seed: expected .* of shape \[\]; got float32 of shape \[2\]"),
        ({"training": 1}, TypeError, "training: expected True or False; got int"),
    ],
)
def test_bad_options_are_rejected(options, error, message, device):
    kernel, _ = both()
    with pytest.raises(error, match=message):
        kernel.forward(torch.ones(3, device=device), **options)
