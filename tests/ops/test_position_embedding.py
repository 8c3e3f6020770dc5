"""What position embedding promises beside the contract: an offset, rows without a gradient, and the fixed table."""

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.ops import position_embedding
from backpass.ops.position_embedding import sinusoidal

MAKERS = pytest.mark.parametrize(
    "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
)


def plain(x):
    return x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)


@MAKERS
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_rows_from_the_offset_on_are_added_and_the_others_get_no_gradient(make, leading, offset):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((*leading, 2, 3)), rng.standard_normal((6, 3))
    dy = rng.standard_normal(x.shape)
    y, saved = position_embedding.forward(make(x), make(w), offset=offset)
    dx, dw = map(plain, position_embedding.backward(make(dy), saved))
    used = slice(offset, offset + 2)
    assert np.array_equal(plain(y), x + w[used])
    assert np.array_equal(dx, dy)
    np.testing.assert_allclose(dw[used], dy.reshape(-1, 2, 3).sum(axis=0), rtol=1e-14)
    assert not np.delete(dw, used, axis=0).any()


def test_a_sequence_may_be_generated_position_by_position():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, 3)), rng.standard_normal((7, 3))
    whole, _ = position_embedding.forward(x, w, offset=1)
    parts = [position_embedding.forward(x[:, [p]], w, offset=1 + p)[0] for p in range(5)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize(
    ("rows", "offset", "error", "message"),
    [
        (7, 3, ValueError, "offset: expected at most 2, for 5 positions in 7 rows; got 3"),
        (7, -1, ValueError, "offset: expected an integer of at least 0; got -1"),
        (7, 1.0, TypeError, "offset: expected an integer; got float"),
        (
            4,
            0,
            ValueError,
            r"w: expected w\[s\+r, h\] with s\+r of at least s = 5, as in x; got shape \[4, 3\]",
        ),
    ],
)
def test_positions_that_are_not_in_the_table_are_rejected(rows, offset, error, message):
    x, w = counting.array(np.ones((2, 5, 3))), counting.array(np.ones((rows, 3)))
    with counting.tally() as tally, pytest.raises(error, match=message):
        position_embedding.forward(x, w, offset=offset)
    assert tally.total == 0


def test_a_sum_over_a_thousand_sequences_does_not_stall_in_bfloat16():
    dy = torch.ones(1000, 2, 3, dtype=torch.bfloat16)
    _, saved = position_embedding.forward(dy, torch.ones(4, 3, dtype=torch.bfloat16))
    _, dw = position_embedding.backward(dy, saved)
    assert dw.tolist() == [[1000] * 3] * 2 + [[0] * 3] * 2


# The fixed table


def test_the_table_is_that_of_attention_is_all_you_need():
    table = sinusoidal(50, 8, like=np.ones(1))
    for position, pair in np.ndindex(50, 4):
        angle = position / 10000 ** (2 * pair / 8)
        np.testing.assert_allclose(table[position, 2 * pair], np.sin(angle), atol=1e-14)
        np.testing.assert_allclose(table[position, 2 * pair + 1], np.cos(angle), atol=1e-14)


@pytest.mark.parametrize("shift", [1, 7, 100])
@pytest.mark.parametrize("base", [10000.0, 100])
def test_a_shift_turns_each_pair_by_one_angle_wherever_it_starts(shift, base):
    table, shifted = (sinusoidal(20, 10, base=base, offset=o, like=np.ones(1)) for o in (0, shift))
    for pair in range(5):
        angle = shift * base ** (-2 * pair / 10)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        columns = slice(2 * pair, 2 * pair + 2)
        np.testing.assert_allclose(shifted[:, columns], table[:, columns] @ turn.T, atol=1e-12)


@pytest.mark.parametrize(("s", "h"), [(0, 4), (3, 0), (1, 1), (4, 5)])
def test_an_odd_width_ends_in_a_sine(s, h):
    table = sinusoidal(s, h, like=np.ones(1))
    assert table.shape == (s, h)
    if h % 2 and s:
        np.testing.assert_allclose(table[:, -1], np.sin(np.arange(s) * 10000.0 ** (-(h - 1) / h)), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_table_is_rounded_once_from_float64(dtype):
    """At position 10⁵ an angle has no digit of a turn left in float16, and the position itself does not fit."""
    exact = sinusoidal(4, 6, offset=10**5, like=torch.ones(1, dtype=torch.float64))
    assert torch.equal(sinusoidal(4, 6, offset=10**5, like=torch.ones(1, dtype=dtype)), exact.to(dtype))
    assert sinusoidal(2, 3, like=np.ones(1, np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((2, -1), {}, ValueError, "h: expected an integer of at least 0; got -1"),
        ((2.0, 4), {}, TypeError, "s: expected an integer; got float"),
        ((2, 4), {"offset": -1}, ValueError, "offset: expected an integer of at least 0; got -1"),
        ((2, 4), {"base": 0}, ValueError, "base: expected a number above 0; got 0"),
    ],
)
def test_tables_that_cannot_be_are_rejected(arguments, options, error, message):
    with pytest.raises(error, match=message):
        sinusoidal(*arguments, **options, like=np.ones(1))
