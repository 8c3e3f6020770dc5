"""What relu promises beside the contract: PyTorch's answers at 0, NaN and infinity, and what it keeps."""

import numpy as np
import pytest
import torch

from backpass.contract.arrays import namespace
from backpass.cost import memory
from backpass.interpreters import counting
from backpass.ops import relu
from backpass.verify import check

SPECIAL = [-np.inf, -2.0, -1e-45, -0.0, 0.0, 1e-45, 3.0, np.inf, np.nan]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_special_values_are_pytorchs_in_both_directions(dtype):
    x = torch.tensor(SPECIAL, dtype=dtype, requires_grad=True)
    dy = torch.arange(1.0, len(SPECIAL) + 1).to(dtype)
    expected = torch.relu(x)
    (expected_dx,) = torch.autograd.grad(expected, x, dy)
    y, saved = relu.forward(x.detach())
    dx = relu.backward(dy, saved)
    for ours, theirs in ((y, expected.detach()), (dx, expected_dx)):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert not dx[3:5].any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "make", [np.float32, np.float64, counting.array], ids=["float32", "float64", "counting"]
)
def test_special_values_in_other_libraries(make):
    x = make(np.array(SPECIAL))
    y, saved = relu.forward(x)
    dx = relu.backward(make(np.arange(1.0, 10.0)), saved)
    assert y.dtype == dx.dtype == x.dtype
    y, dx = (a.to_numpy() if hasattr(a, "to_numpy") else a for a in (y, dx))
    assert not np.isfinite(y[-2:]).any() and not y[:5].any()
    assert dx.tolist() == [0, 0, 0, 0, 0, 6, 7, 8, 9]


def test_it_keeps_its_output_alone():
    x = np.random.default_rng(0).standard_normal((3, 5))
    y, saved = relu.forward(x)
    assert saved.y is y
    assert memory(relu, x).activations == y.nbytes


def test_at_zero_no_method_contradicts_it():
    x = np.random.default_rng(0).standard_normal((3, 4))
    x[0], x[1, 2] = 0, -0.0
    report = check(relu, x)
    assert {row.method for row in report.having("not run")} == {"complex step"}
    assert {row.method for row in report.having("passed")} >= {
        "finite differences",
        "symbolic",
        "torch autograd",
        "PyTorch's operator",
    }


def test_it_is_proved_in_every_region_and_its_mistakes_are_seen():
    (row,) = check(relu, methods=["symbolic"]).rows
    assert "regions, all branches both ways" in row.how
    for wrong in (
        lambda dy, saved: namespace(dy).where(saved.y > 0, 0, dy),  # the mask the wrong way round
        lambda dy, saved: dy,
        lambda dy, saved: dy * saved.y,
    ):
        own = type(
            "Wrong",
            (),
            {**vars(relu), "backward": staticmethod(wrong), "forward": staticmethod(relu.forward)},
        )
        failed = {row.method for row in check(own, raises=False).failed}
        assert {"symbolic", "finite differences", "complex step", "PyTorch's operator"} - failed <= {
            "PyTorch's operator"
        }
