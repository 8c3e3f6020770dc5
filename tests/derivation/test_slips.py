"""A sample of the single slips of `slips.py`: none is accepted unless it writes the same value, and nearly all are refused."""

from collections import Counter

from .slips import accepted, drawn, holds_at_other_sizes, slips

PAGES = ("softmax", "rms_norm", "linear", "activations")
REFUSED = ("refused", "ill-formed")


def test_a_sample_of_slips():
    rows = accepted(pages=PAGES)
    assert len(rows) > 40
    verdicts = Counter()
    for row, what, new in drawn(rows, 120):
        verdict = row.verdict(new)
        verdicts[verdict] += 1
        assert verdict in (*REFUSED, "not readable", "equal", "follows"), (verdict, what, row, new)
        if verdict == "equal":
            assert holds_at_other_sizes(row, new), (what, row, new)
    assert verdicts["equal"] <= 10
    assert sum(verdicts[kind] for kind in REFUSED) >= 0.85 * (verdicts.total() - verdicts["equal"])


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
