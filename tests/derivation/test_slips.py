"""A sample of the single slips of `slips.py`: none is accepted unless it writes the same value, and nearly all are refused."""

from collections import Counter
from functools import cache

import pytest

from .slips import Row, accepted, drawn, holds_at_other_sizes, slips

PAGES = ("softmax", "rms_norm", "linear", "activations")
REFUSED = ("refused", "ill-formed")


@cache
def rows_of_pages():
    return accepted(pages=PAGES)


# 1,080 slips in all; a run tries a part.
@pytest.mark.rotates(share=0.1)
@pytest.mark.parametrize("seed", range(39, 48))
def test_a_sample_of_slips(seed):
    rows = rows_of_pages()
    assert len(rows) > 40
    verdicts = Counter()
    for row, what, new in drawn(rows, 120, seed):
        verdict = row.verdict(new)
        verdicts[verdict] += 1
        assert verdict in (*REFUSED, "not readable", "equal", "follows"), (verdict, what, row, new)
        if verdict == "equal":
            assert holds_at_other_sizes(row, new), (what, row, new)
    assert verdicts["equal"] <= 10
    assert sum(verdicts[kind] for kind in REFUSED) >= 0.85 * (verdicts.total() - verdicts["equal"])


GIVEN = r"""given a, b, c \in \mathbb{R}, x, y \in \mathbb{R}^n, A, B \in \mathbb{R}^{n \times n}, W \in \mathbb{R}^{m \times n}
given z \in \mathbb{R}^m; d differential; let f(t) = e^{t^\top t}"""
PRINTED = (
    (r"\left.\frac{d}{dc} \lVert x - c y \rVert^2\right|_{c=0}", r"-2 x^\top y"),
    (r"2 b^2", r"\left. a^2 c \right|_{a=b, c=2}"),
    (r"\nabla_x \frac{1}{2} x^\top A x + b y", r"\frac12 (A + A^\top) x + b y"),
    (r"\frac{1}{f(x)} \nabla_x f(x)", r"\nabla_x \log f(x)"),
    (r"\frac12 (\sum_i x_i)^2 - \frac12 \sum_i x_i^2", r"\sum_{i<j} x_i x_j"),
    (r"\sum_{i \ne j} x_i x_j", r"(\sum_i x_i)^2 - \sum_i x_i^2"),
    (r"x_j (\delta_{ij} - \frac1n)", r"x_j \left( 1(i == j) - \frac1n \right)"),
    (r"(x \otimes y) A", r"x y^\top A"),
    (r"W x \cdot z + a", r"z^\top W x + a"),
    (r"d(AB)", r"dA \, B + A \, dB"),
    (r"d(x^\top A x)", r"x^\top (A + A^\top) dx + x^\top dA \, x"),
)
SAME = {r"\left. b^2 c \right|_{a=b, c=2}"}  # b^2 c is 2 b^2 where c = 2


def test_slips_in_other_notations():
    rows = tuple(Row(f"$$ {left} = ", right, " $$", GIVEN, "printed") for left, right in PRINTED)
    assert {row.verdict(row.right) for row in rows} == {"equal"}
    verdicts = Counter()
    for row, what, new in drawn(rows, 110):
        verdict = row.verdict(new)
        verdicts[verdict] += 1
        assert verdict in (*REFUSED, "not readable") or new in SAME, (verdict, what, row, new)
    assert sum(verdicts[kind] for kind in REFUSED) >= 0.5 * verdicts.total()


def test_a_slip_changes_one_place():
    found = dict(slips(r"\frac{1}{n} W^\top x_{ij} - 2 y_i"))
    assert {
        "sign",
        "transpose dropped",
        "number",
        "indices exchanged",
        "factor dropped",
        "fraction turned",
    } <= {*found}
    assert found["sign"] == r"\frac{1}{n} W^\top x_{ij} + 2 y_i"


def test_what_holds_at_small_sizes_alone_is_noticed():
    row = next(
        row for row in accepted(pages=("softmax",)) if "given x" in row.definitions and "_i" in row.right
    )
    assert holds_at_other_sizes(row, row.right)
    assert not holds_at_other_sizes(row, row.right + " + (n - 2) (n - 3) (n - 4)")
