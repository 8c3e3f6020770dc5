"""Comparisons whose boundaries are far from 0, where no random point lies."""

import pytest

from .judging import one

GIVEN = r"given a, b, c \in \mathbb{R}, x, y \in \mathbb{R}^n, p, q \in \mathbb{R}_{>0}"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"[a > 101] [a < 100] = 0", r"[a > 100] [a < 101] = 0"),
        (r"[a + b > 50] [a - b < 10] [a < 20] [b < 30] = 0", r"[a + b > 50] [a - b < 10] [a < 20] = 0"),
        (r"[a > 100] [b > 200] [a + b < 299] = 0", r"[a > 100] [b > 200] [a + b < 301] = 0"),
        (r"[x_i > 50] [y_i < 0] [x_i < y_i] = 0", r"[x_i + y_i > 50] [x_i - y_i < 10] [x_i < 20] = 0"),
        (r"[p > 100] [q < 50] [p < q] = 0", r"[p > 100] [q > 50] [p - q < 50] = 0"),
        (r"[a > 200] [a^2 < 40000] = 0", r"[a^2 > 40000] [a^2 < 40001] = 0"),
        (r"[a > 100] [a^2 + b^2 < 10000] = 0", r"[a > 100] [a^2 + b^2 < 10002] = 0"),
        (r"\max(a, 1000) [a > 1000] = a [a > 1000]", r"\max(a, 1000) \max(b, 2000) = 2000 \max(a, 1000)"),
        (
            r"[a > 100] [b > 500] [a > b] = [b > 500] [a > b]",
            r"[a > 100] [a < 101] + [b > 500] [b < 502] [a > b] = [a > 100] [a < 101]",
        ),
        (r"[a > 100] [b < -300] [a - b < 400] = 0", r"[a > 100] [b < -300] [a + b + c > 5] = 0"),
    ],
)
def test_each_region_of_up_to_three_comparisons_is_tried(right, wrong):
    assert one(right, GIVEN).kind == "equal"
    assert one(wrong, GIVEN).kind == "refused"
