"""What holds only at small sizes, only at ties, or only for matrices that commute or have one element is not accepted."""

import pytest

from .judging import kinds, one

GIVEN = (
    r"given x, y \in \mathbb{R}^n, A, B \in \mathbb{R}^{n \times n}, M \in \mathbb{R}^{n \times m}; "
    r"given a, b \in \mathbb{R}, p \in \mathbb{R}_{>0}"
)


@pytest.mark.parametrize(
    "line",
    [
        "n^3 + 26 n = 9 n^2 + 24",
        r"\sum_i x_i (n - 2) (n - 3) (n - 4) = 0",
        r"(m - n) (m - n - 1) (m - n + 1) (m - n - 2) (m - n + 2) = 0",
        r"[a > 0] (n - 2) (n - 3) (n - 4) = 0",
        r"x_i + (n - 2) (n - 3) (n - 4) \delta_{ij} = x_i",
        # an index as a number, and lengths that are not written as n
        r"\sum_i (i - 1) (i - 2) (i - 3) (i - 4) x_i = 0",
        r"\mathrm{tr}(I_n)^3 + 26 \mathrm{tr}(I_n) = 9 \mathrm{tr}(I_n)^2 + 24",
        r"(\mathbf{1}_n^\top \mathbf{1}_n - 2) (\mathbf{1}_n^\top \mathbf{1}_n - 3) (\operatorname{tr}(I_n) - 4) = 0",
        r"(\sum_{i=1}^n 1)^3 + 26 n = 9 (\sum_{i=1}^n 1)^2 + 24",
    ],
)
def test_a_larger_size_is_tried_where_a_length_is_a_number(line):
    verdict = one(line, GIVEN)
    assert verdict.kind == "refused"
    sizes = [int(where[4:]) for where in verdict.counterexample.where if where.startswith(("n = ", "m = "))]
    assert 5 <= max(sizes) <= 9


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (r"\sum_i \sum_{j>i} \sum_{k>j} \sum_{l>k} \sum_{m>l} x_i x_j x_k x_l x_m = 0", 6),
        (r"\sum_{i=1}^n \sum_{j=i+1}^n \sum_{k=j+1}^n \sum_{l=k+1}^n \sum_{p=l+1}^n x_p = 0", 6),
        (r"\sum_{i=1}^n \sum_{j=1}^{i-1} \sum_{k=1}^{j-1} \sum_{l=1}^{k-1} \sum_{s=1}^{l-1} x_s = 0", 6),
        (r"\sum_i [x_i > 0] \sum_{j>i} \sum_{k>j} \sum_{l>k} \sum_{m>l} x_m = 0", 6),
        (r"\sum_{i=1}^{n-4} x_i = 0", 6),
        (r"\prod_{i=1}^{n-5} x_i = 1", 7),
    ],
)
def test_a_sum_without_terms_at_the_usual_sizes_is_tried_where_it_has_some(line, size):
    verdict = one(line, r"given x \in \mathbb{R}^n")
    assert verdict.kind == "refused" and f"n = {size}" in verdict.counterexample.where


def test_a_sum_that_has_terms_at_the_usual_sizes_needs_no_larger_one():
    causal = one(
        r"\sum_i \sum_{j \le i} \sum_{k \le j} y_i x_j x_k = \sum_k x_k \sum_{j \ge k} x_j \sum_{i \ge j} y_i",
        r"given x, y \in \mathbb{R}^n",
    )
    assert causal.kind == "equal" and max(causal.basis.sizes[-1].values()) <= 4
    cut = one(r"\sum_{i=1}^{n-1} (x_{i+1} - x_i) = x_n - x_1", r"given x \in \mathbb{R}^n")
    assert cut.kind == "equal" and max(cut.basis.sizes[-1].values()) <= 4


def test_an_unknown_size_has_no_name_of_its_own_in_a_message():
    verdict = one(r"\det(\mathbf{1} \mathbf{1}^\top) = 0", GIVEN)
    assert verdict.kind == "not readable" and "shape ? × ?" in verdict.message


def test_the_larger_size_is_among_those_that_a_verdict_rests_on():
    with_number, without = (
        one(r"\sum_i (x_i + 1) = \sum_i x_i + n", GIVEN),
        one(r"\sum_i x_i = \sum_j x_j", GIVEN),
    )
    assert (with_number.kind, without.kind) == ("equal", "equal")
    assert len(with_number.basis.sizes) == 4 and len(without.basis.sizes) == 3
    assert max(with_number.basis.sizes[-1].values()) >= 5


@pytest.mark.parametrize(
    "line",
    [
        r"[a > 10^{-6}] = [a > 0]",
        r"\max(0, a) = a [a > 10^{-9}]",
        r"[a > 5] = [a > 5.000000001]",
        r"[a > b + 10^{-6}] = [a > b]",
        r"[x_i > 0] = [x_i > 10^{-7}]",
        r"[a > 1] [a^2 > 1 + 10^{-8}] = [a > 1]",
        r"\max(a, 10^{-8}) = \max(a, 0)",
    ],
)
def test_between_two_boundaries_that_are_close(line):
    assert one(line, GIVEN).kind == "refused"


@pytest.mark.parametrize(
    "line",
    [
        r"[2 a > 2] = [a > 1]",
        r"[a^2 > 4] = [a > 2] + [a < -2]",
        r"[a^2 > 2] = [a > \sqrt{2}] + [a < -\sqrt{2}]",
        r"[a > 1] [a > 1 + 10^{-7}] = [a > 1 + 10^{-7}]",
        r"[a > b] [b > a] = 0",
    ],
)
def test_comparisons_that_agree_are_equal(line):
    assert one(line, GIVEN).kind == "equal"


@pytest.mark.parametrize(
    "line",
    [
        "A B = B A",  # if they commute
        r"\operatorname{tr}(A B A) = \operatorname{tr}(A^2 B)".replace("A^2", "A A^\\top"),
        r"\operatorname{tr}(A B M M^\top) = \operatorname{tr}(B A M M^\top)",
        "x y^\\top = y x^\\top",  # of one element
        r"x^\top A y = y^\top A x",
        r"M M^\top = \operatorname{tr}(M^\top M)",
        r"\operatorname{tr}(A) A = A A",
        r"\sum_i x_i = x_1 + x_2",  # at n = 2
        r"A A A = A A \operatorname{tr}(A)",
        r"[a > 0] + [a < 0] + [a > b] = [a > 0] + [a < 0]",
        r"\sqrt{a^2} = a",  # of positive numbers
        r"\sqrt{p^2 a^2} = p a",
        r"[a \ge b] [b \ge a] = [a > b]",  # only at ties
        r"\max(a, b) = \frac{a + b}{2}",
    ],
)
def test_what_holds_only_in_special_cases_is_not_accepted(line):
    assert one(line, GIVEN).kind in ("refused", "ill-formed", "not readable")


def test_a_line_in_which_a_side_holds_only_for_squares():
    assert (
        kinds(r"$$ \operatorname{tr}(M M^\top) = \operatorname{tr}(M^\top M) = \lVert M \rVert_F^2 $$", GIVEN)
        == ["equal"] * 2
    )
