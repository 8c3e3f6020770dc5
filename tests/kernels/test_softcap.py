"""The kernel of softcap against its operation in float64: digits near 0 and far out, and the errors of its option."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import kernels, ops  # noqa: E402

from .support import DTYPES, assert_as_exact_as_pytorch, draw  # noqa: E402
from .support import gradients_by_autograd as by_autograd  # noqa: E402

# Of x/c, then of the approximant about eight products and sums and a quotient, and c.
ROUNDINGS = 12


def both(x, dy, cap):
    kernel = kernels.load("softcap")
    y, saved = kernel.forward(x, cap=cap)
    return y, kernel.backward(dy, saved)


def check(x, dy, cap):
    def theirs(x):
        return cap * torch.tanh(x / cap)

    exact_y, saved = ops.softcap.forward(x.double(), cap=cap)
    exact = ops.softcap.backward(dy.double(), saved)
    y, dx = both(x, dy, cap)
    (their_dx,) = by_autograd(theirs, dy, x)
    for name, got, their, right, term in (
        ("y", y, theirs(x), exact_y, exact_y.abs()),
        ("dx", dx, their_dx, exact, dy.double().abs()),
    ):
        each = (value[..., None] for value in (got, their, right, term))
        assert_as_exact_as_pytorch(name, *each, roundings=ROUNDINGS)


@pytest.mark.parametrize("cap", [0.3, 1.5, 30])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caps_below_and_above_what_is_drawn(dtype, cap, device, poisoned):
    x, dy = (draw(7, 163, dtype=dtype, device=device, seed=seed, scale=3) for seed in (0, 1))
    check(x, dy, cap)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e-2, 0.3, 0.4999, 0.5, 0.5001, 1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_digit_near_0_and_where_the_two_formulas_meet(dtype, size, device):
    x = torch.tensor([size, -size], dtype=dtype, device=device)
    y, _ = both(x, torch.ones_like(x), 1.0)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.cpu().double(), torch.tanh(x.cpu().double()), rtol=4 * eps, atol=0)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_far_from_zero_it_is_the_cap_and_nan_spoils_its_own_element_only(device):
    x = torch.tensor([-torch.inf, -1e30, 0.0, 1e30, torch.inf, torch.nan], device=device)
    y, dx = both(x, torch.ones_like(x), 1.5)
    assert y[:5].tolist() == [-1.5, -1.5, 0.0, 1.5, 1.5]
    assert dx[:5].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert y[5].isnan() and dx[5].isnan()


@pytest.mark.parametrize(("cap", "error"), [("2", TypeError), (0, ValueError), (torch.inf, ValueError)])
def test_a_cap_that_is_not_positive_is_rejected_in_the_operations_words(cap, error, device):
    x = torch.ones(3, device=device)
    with pytest.raises(error) as of_operation:
        ops.softcap.forward(x, cap=cap)
    with pytest.raises(error) as of_kernel:
        kernels.load("softcap").forward(x, cap=cap)
    assert str(of_kernel.value) == str(of_operation.value)
