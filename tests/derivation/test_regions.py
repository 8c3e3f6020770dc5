"""Comparisons whose boundaries are far from 0 or enclose little, where no random point lies."""

import pytest

from .judging import one

GIVEN = r"given a, b, c, d, e \in \mathbb{R}, x, y \in \mathbb{R}^n, p, q \in \mathbb{R}_{>0}"


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


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (r"[a > 100 b] [b > 100 c] [c > 1] = 0", r"[a > 100 b] [b > 100 c] [c > 1] [a < 9999] = 0"),
        (r"[a > 1000 b] [b > 1000 c] [c > 1] = 0", r"[a > 1000 b] [b > 1000 c] [c > 1] [a < 999999] = 0"),
        (
            r"[a > 10 b] [b > 10 c] [c > 10 d] [d > 1] = 0",
            r"[a > 10 b] [b > 10 c] [c > 10 d] [d > 1] [a < 999] = 0",
        ),
        (
            r"[a > 1] [b > 1] [c > 1] [d > 1] [a + b + c + d < 4.01] = 0",
            r"[a > 1] [b > 1] [c > 1] [d > 1] [a + b + c + d < 3.99] = 0",
        ),
        (
            r"[a > 1] [b > 1] [c > 1] [d > 1] [e > 1] [a + b + c + d + e < 5.01] = 0",
            r"[a > 1] [b > 1] [c > 1] [d > 1] [e > 1] [a + b + c + d + e < 4.99] = 0",
        ),
        (r"[p > 1] [q > 10 p] [a > 10 q] [b > 10 a] = 0", r"[p > 1] [q > 10 p] [a > 10 q] [a < 99] = 0"),
    ],
)
def test_each_region_between_linear_boundaries_is_tried(wrong, right):
    assert one(wrong, GIVEN).kind == "refused"
    assert one(right, GIVEN).kind == "equal"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (r"[a > b^2] [b > 30] = 0", r"[a > b^2] [b > 30] [a < 899] = 0"),
        (r"[a > b^2] [a < 2] [b > 1.4] = 0", r"[a > b^2] [a < 2] [b > 1.42] = 0"),
        (r"[a^2 < b] [b < 0.0001] = 0", r"[a^2 < b] [b < -0.0001] = 0"),
        (r"[a^2 < b] [b < 1] [a > 0.99] = 0", r"[a^2 < b] [b < 1] [a > 1.01] = 0"),
        (r"[a^2 + b^2 < 1] [a + b > 1.41] = 0", r"[a^2 + b^2 < 1] [a + b > 1.42] = 0"),
        (r"[a^2 + b^2 < 1] [a b > 0.499] = 0", r"[a^2 + b^2 < 1] [a b > 0.501] = 0"),
        (r"[p q > 1] [p + q < 2.001] = 0", r"[p q > 1] [p + q < 1.999] = 0"),
        (
            r"[x_i y_i > 1] [x_i + y_i < 2.001] [x_i > 0] = 0",
            r"[x_i y_i > 1] [x_i + y_i < 1.999] [x_i > 0] = 0",
        ),
        (
            r"\max(a^2, b) [b > 100] [a > 0] = b [b > 100] [a > 0]",
            r"\max(a^2, b) [b > 100] [a < 9] [a > 0] = b [b > 100] [a < 9] [a > 0]",
        ),
        (r"\max(a^2, b) [b < 10^{-6}] = a^2 [b < 10^{-6}]", r"\max(a^2, b) = a^2 [a^2 > b] + b [b > a^2]"),
    ],
)
def test_regions_between_curved_boundaries_are_tried(wrong, right):
    assert one(wrong, GIVEN).kind == "refused"
    assert one(right, GIVEN).kind == "equal"
