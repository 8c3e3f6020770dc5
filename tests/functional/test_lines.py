"""The lines of an operation as a compiler sees them."""

import pytest
import torch

from backpass.torch_door import lines

aten = torch.ops.aten


class Called(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that records the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func)
        return func(*args, **(kwargs or {}))


def run(function, *inputs):
    """Return what the function returns, computed with and without the changes, and the operators with them."""
    with Called() as called, lines.seen_by_a_compiler():
        found = function(*(x.clone() for x in inputs))
    return found, function(*inputs), called.names


@pytest.mark.parametrize("divisor", [2, -4.0, 0.125, 2.0**-14])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_division_by_a_power_of_two_is_a_product_with_the_same_result(divisor, dtype):
    # Subnormal numbers, the largest ones, infinities and NaN among them.
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    x = bits.view(dtype) if dtype.itemsize == 2 else torch.randn(4096, dtype=dtype) * 1e-38
    found, right, names = run(lambda x: x / divisor, x)
    assert torch.equal(found.nan_to_num(7), right.nan_to_num(7)) and torch.equal(found.isnan(), right.isnan())
    assert aten.mul.Tensor in names and aten.div.Tensor not in names
    found, right, names = run(lambda x: x.div_(divisor), x.clone())
    assert torch.equal(found.nan_to_num(7), right.nan_to_num(7)) and aten.div_.Tensor not in names


@pytest.mark.parametrize("divisor", [3, 0.0, float("inf"), float("nan"), 2.0**20, True, torch.tensor(2.0)])
def test_any_other_division_stays(divisor):
    x = torch.randn(9)
    found, right, names = run(lambda x: x / divisor, x)
    torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)
    assert aten.div.Tensor in names


def test_a_division_that_rounds_stays():
    found, right, names = run(lambda x: torch.div(x, 2, rounding_mode="floor"), torch.randn(9))
    assert torch.equal(found, right) and aten.div.Tensor_mode in names


def test_a_sum_over_rows_adds_blocks():
    x = torch.arange(2.0 * 3 * lines.BLOCK).reshape(-1, 2)
    found, right, names = run(lambda x: x.sum(0), x)
    assert torch.equal(found, right) and names.count(aten.sum.dim_IntList) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0, keepdim=True),
        lambda x: x.sum(1),
        lambda x: x[:, : lines.BLOCK].sum(),
        lambda x: x[: lines.BLOCK].sum(0),
        lambda x: x[1:].sum(0),
        lambda x: x.sum(0, dtype=torch.float64),
    ],
)
def test_other_sums_stay(function):
    found, right, names = run(function, torch.arange(6.0 * lines.BLOCK).reshape(-1, 3))
    assert torch.equal(found, right) and found.dtype == right.dtype
    assert sum("sum" in str(name) for name in names) == 1
