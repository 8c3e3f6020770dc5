"""Which elements dropout keeps: the published generator, written out in Python, and the counters of elements."""

import array_api_compat.numpy
import array_api_compat.torch
import numpy as np
import pytest
import torch

from backpass.contract import philox

ALL = 2**64 - 1
SHAPES = [(1,), (7,), (8,), (3, 5), (4, 8), (2, 3, 13), (3, 40), (5, 1), (0, 4), (3, 0), ()]
SEEDS = [0, 1, 2**32, 2**63 + 11, ALL]


def plain_philox(counter, key):
    """Philox 4×64 with 10 rounds, from the paper, on Python's integers."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (right >> 64) ^ b ^ k, right & ALL, (left >> 64) ^ d ^ m, left & ALL
        k, m = (k + 0x9E3779B97F4A7C15) & ALL, (m + 0xBB67AE8584CAA73B) & ALL
    return [a, b, c, d]


def plain_mask(shape, p, seed):
    """The definition, element by element."""
    n = shape[-1] if shape else 1
    kept = np.zeros(shape, bool)
    for at in np.ndindex(shape):
        row, j = np.ravel_multi_index(at[:-1], shape[:-1]) if at[:-1] else 0, at[-1] if at else 0
        words = plain_philox([int(row) * -(-n // 8) + j // 8, 0, 0, 0], [seed, 0])
        halves = [half for word in words for half in (word % 2**32, word // 2**32)]
        kept[at] = halves[j % 8] >= round(p * 2**32)
    return kept


# The vectors that the generator's authors publish with it, Random123's kat_vectors.
PUBLISHED = [
    ([0] * 4, [0] * 2, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ([ALL] * 4, [ALL] * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED, ids=["zeros", "ones", "pi"])
def test_the_plain_generator_is_the_published_one(counter, key, words):
    assert " ".join(f"{word:016x}" for word in plain_philox(counter, key)) == words


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpys_draw_is_the_definition(shape):
    rows, n = [range(int(np.prod(shape[:-1])))], shape[-1] if shape else 1
    for seed in SEEDS:
        found = philox.drawn(n, 0.4, seed, rows).reshape(shape)
        assert found.dtype == np.bool_ and np.array_equal(found, plain_mask(shape, 0.4, seed))


@pytest.mark.parametrize("xp", [array_api_compat.numpy, array_api_compat.torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("n", [1, 8, 13, 40])
def test_int64_arithmetic_draws_the_same(xp, n):
    rows = [range(3, 6), range(2**40, 2**40 + 2)]
    for seed in SEEDS:
        found = philox.drawn_by(xp, n, 0.4, seed, rows, None, "cpu")
        assert np.array_equal(np.asarray(found), philox.drawn(n, 0.4, seed, rows))


def test_the_seed_may_be_a_tensor():
    rows = [range(4)]
    for seed in (5, -3):  # of which the bits count
        expected = philox.drawn(20, 0.4, seed % 2**64, rows)
        assert np.array_equal(philox.drawn(20, 0.4, torch.tensor(seed), rows), expected)
        found = philox.drawn_by(array_api_compat.torch, 20, 0.4, torch.tensor(seed), rows, None, "cpu")
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("n", [1, 7, 8, 21, 64])
def test_parts_are_parts_of_the_whole(n):
    whole = philox.drawn(n, 0.4, 9, [range(30)])
    rows = [range(4, 9), range(0, 2), range(7, 7), range(29, 30)]
    at = [row for some in rows for row in some]
    assert np.array_equal(philox.drawn(n, 0.4, 9, rows), whole[at])
    for columns in (range(0, n - 1), range(8, n), range(16, 40), range(3, n), range(13, 15)):
        if columns.stop <= n and columns.start < columns.stop:
            part = whole[at][:, columns.start : columns.stop]
            assert np.array_equal(philox.drawn(n, 0.4, 9, rows, columns), part)
            by = philox.drawn_by(array_api_compat.numpy, n, 0.4, 9, rows, columns, "cpu")
            assert np.array_equal(by, part)


def test_a_draw_in_pieces_is_one_draw():
    """More elements than are drawn at once, in one row and in several."""
    n = 5 * philox._CHUNK + 16
    flat = philox.drawn(n, 0.4, 9, [range(1)])
    assert np.array_equal(flat.reshape(-1, 8), philox.drawn(8, 0.4, 9, [range(n // 8)]))
    end = range(n - 24, n)
    assert np.array_equal(philox.drawn(n, 0.4, 9, [range(1)], end), flat[:, end.start :])


def test_the_lower_half_of_a_word_comes_first():
    words = plain_philox([0] * 4, [3, 0])
    for j in range(8):
        half = words[j // 2] >> 32 * (j % 2) & (2**32 - 1)
        for p, kept in ((half / 2**32, True), ((half + 1) / 2**32, False)):
            assert philox.drawn(8, p, 3, [range(1)])[0, j] == kept


@pytest.mark.parametrize(
    ("p", "least"), [(0.0, 0), (2**-34, 0), (0.25, 2**30), (1 - 2**-34, 2**32), (1, 2**32)]
)
def test_thresholds(p, least):
    assert philox.threshold(p) == least
    kept = philox.drawn(40, p, 0, [range(50)])
    by = philox.drawn_by(array_api_compat.torch, 40, p, 0, [range(50)], None, "cpu")
    assert np.array_equal(kept, by)
    assert kept.all() if least == 0 else kept.any() == (least < 2**32)


def test_runs_are_ranges_of_neighbours():
    assert [*philox.runs([3, 4, 5, 9, 0, 1])] == [range(3, 6), range(9, 10), range(0, 2)]
    assert [*philox.runs([])] == []


# The distribution


def chi_square(counts, expected):
    """The statistic in standard deviations from its mean, by Wilson and Hilferty."""
    freedom = counts.size - 1
    statistic = ((counts - expected) ** 2 / expected).sum() / freedom
    spread = 2 / (9 * freedom)
    return (statistic ** (1 / 3) - (1 - spread)) / np.sqrt(spread)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    ("name", "eight"),
    [
        ("neighbours", lambda p: philox.drawn(2**20, p, 11, [range(1)]).reshape(-1, 8)),
        ("across counters", lambda p: philox.drawn(2**20, p, 11, [range(1)]).reshape(8, -1).T),
        ("rows", lambda p: philox.drawn(2**17, p, 11, [range(8)]).T),
        ("seeds", lambda p: np.stack([philox.drawn(2**17, p, s, [range(1)])[0] for s in range(8)], 1)),
        (
            "far seeds",
            lambda p: np.stack([philox.drawn(2**17, p, 1 << s, [range(1)])[0] for s in range(0, 64, 8)], 1),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_eight_elements_are_independent(name, eight, p):
    """Each of the 256 patterns occurs as often as it should, by a chi-square of a fixed draw."""
    kept = eight(p)
    share = 1 - philox.threshold(p) / 2**32
    ones = np.arange(256)[:, None] >> np.arange(8) & 1
    probability = np.where(ones, share, 1 - share).prod(axis=1)
    counts = np.bincount(kept @ (1 << np.arange(8)), minlength=256)
    expected = len(kept) * probability
    often = expected >= 5
    pooled = (
        np.append(counts[often], counts[~often].sum()),
        np.append(expected[often], expected[~often].sum()),
    )
    counts, expected = (x[pooled[1] > 0] for x in pooled)
    assert abs(chi_square(counts, expected)) < 4, name
