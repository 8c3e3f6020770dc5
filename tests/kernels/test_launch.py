"""A launch is planned once for each combination of shapes and strides."""

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")
import triton

from backpass.kernels import elementwise, launch


def plans():
    return launch._plan_of_rows.cache_info(), elementwise._plan.cache_info()


@pytest.mark.parametrize("of", ["rows", "elements"])
def test_a_plan_is_computed_once_for_each_shape_and_strides(of):
    def places(x):
        return launch.rows_of(x, other=x)[1] if of == "rows" else elementwise.strides_of(a=x, b=x)

    first, second = (torch.zeros(3, 41, 7) for _ in range(2))
    before = [each.misses for each in plans()]
    found = places(first)
    again = places(second)
    assert sum(each.misses for each in plans()) == sum(before) + 1
    numbers = [{k: v for k, v in each.items() if not k.endswith("_ptr")} for each in (found, again)]
    assert numbers[0] == numbers[1]
    pointer = "other_ptr" if of == "rows" else "a_ptr"
    assert found[pointer] is first and again[pointer] is second

    strided = places(torch.zeros(3, 41, 14)[..., ::2])
    assert {k: v for k, v in strided.items() if not k.endswith("_ptr")} != numbers[0]


def test_a_caller_may_change_what_it_is_given():
    """Cross-entropy adds a stride of its own."""
    x = torch.zeros(5, 11)
    for _ in range(2):
        _, strides = launch.rows_of(x)
        assert "dx_stride" not in strides
        strides["dx_stride"] = 11


def test_sizes_are_those_of_triton():
    for n in (*range(1, 70), 1023, 1024, 1025, 2**40 + 1):
        assert launch.power_of_2(n) == triton.next_power_of_2(n)
        assert [launch.cdiv(n, k) for k in (1, 2, 7, 64)] == [triton.cdiv(n, k) for k in (1, 2, 7, 64)]
