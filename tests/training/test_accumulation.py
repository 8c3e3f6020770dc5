"""The gradients of micro-batches, weighted by their counted targets, are those of the whole batch."""

import sys
import tracemalloc
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.training import accumulation

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from hugging_face import gpt2_case, llama_case, loss_and_gradients, precise

from pairwise import pairs

CASES = [gpt2_case("gpt2", 8, tie_word_embeddings=False), llama_case("llama", "Llama", 8)]
LENGTHS = [8, 1, 0, 3, 6]  # of the five sequences; the rest is padding, whose targets are ignored
SPLITS = {
    "one": [slice(0, 5)],
    "each": [slice(i, i + 1) for i in range(5)],
    "unequal": [slice(0, 1), slice(1, 5)],
    "nothing first": [slice(2, 3), slice(0, 2), slice(3, 5)],
}
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def batch_of(case):
    generator = torch.Generator().manual_seed(5)
    tokens, targets = torch.randint(0, case.sizes["vocab_size"], (2, len(LENGTHS), 8), generator=generator)
    for row, length in enumerate(LENGTHS):
        targets[row, length:] = -100
    return tokens, targets


def run(case, parameters, tokens, targets):
    """The loss, the gradients, and the number of counted targets, by this package."""
    loss, saved = case.module.forward(parameters, tokens, targets, config=case.ours())
    return loss, case.module.backward(saved), accumulation.counted(targets)


def relative_error(got, expected):
    return max(
        np.abs(np.asarray(got[n]) - np.asarray(d)).max() / np.abs(np.asarray(d)).max()
        for n, d in expected.items()
    )


@pytest.mark.parametrize(
    ("case", "split", "library"),
    pairs(CASES, SPLITS, ("numpy", "torch"), of=("backpass.training.accumulation", "backpass.models")),
    ids=lambda x: getattr(x, "name", x),
)
def test_autograd_of_the_whole_batch(case, split, library, monkeypatch):
    precise(monkeypatch)
    model, batch = case.model(), batch_of(case)
    expected_loss, expected = loss_and_gradients(model, *batch)
    parameters = model.state_dict()
    if library == "numpy":
        parameters = {name: w.numpy() for name, w in parameters.items()}
        batch = [array.numpy() for array in batch]
    tokens, targets = batch
    loss, gradients = accumulation.mean(
        run(case, parameters, tokens[rows], targets[rows]) for rows in SPLITS[split]
    )
    assert loss == pytest.approx(float(expected_loss), rel=1e-13, abs=0)
    assert gradients.keys() == expected.keys()
    # A key's bias has the gradient 0 by derivation; its vector is that of queries and values too.
    assert relative_error(gradients, expected) <= 1e-13


@EVERY
@pytest.mark.parametrize("second", [1, 0], ids=["unequal", "equal"])
def test_the_mean_of_means_is_a_different_gradient(case, second, monkeypatch):
    """Averaging the means of micro-batches with 8 targets and 1 lets the one count as much as the eight together; the
    two agree only where both micro-batches have as many."""
    precise(monkeypatch)
    model, (tokens, targets) = case.model(), batch_of(case)
    rows = [0, second]
    expected_loss, expected = loss_and_gradients(model, tokens[rows], targets[rows])
    parts = [run(case, model.state_dict(), tokens[[row]], targets[[row]]) for row in rows]
    assert [count for _, _, count in parts] == [8, LENGTHS[second]]

    loss, gradients = accumulation.mean(parts)
    assert loss == pytest.approx(float(expected_loss), rel=1e-13, abs=0)
    assert relative_error(gradients, expected) <= 1e-13

    loss = np.mean([float(loss) for loss, _, _ in parts])
    gradients = {name: sum(part[name] for _, part, _ in parts) / len(parts) for name in expected}
    if second:
        assert abs(loss / float(expected_loss) - 1) > 0.01
        assert min(relative_error({n: gradients[n]}, {n: expected[n]}) for n in expected) > 0.1
    else:
        assert loss == pytest.approx(float(expected_loss), rel=1e-13, abs=0)
        assert relative_error(gradients, expected) <= 1e-13


def test_weighted_by_hand():
    w = np.array([1.0, -2.0])
    parts = [
        (np.float64(2.0), {"w": w}, 3),
        (np.float64(np.nan), {"w": w * np.nan}, 0),
        (5.0, {"w": 10 * w}, 1),
    ]
    loss, gradients = accumulation.mean(parts)
    assert loss == (3 * 2 + 5) / 4
    np.testing.assert_array_equal(gradients["w"], w * 13 / 4)
    np.testing.assert_array_equal(w, [1.0, -2.0])


def test_parts_can_be_a_generator_that_is_read_once():
    order = []

    def parts():
        for i in range(3):
            order.append(i)
            yield 1.0, {"w": np.ones((2, 0))}, np.int64(i)

    assert accumulation.mean(parts())[1]["w"].shape == (2, 0)
    assert order == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    """In bfloat16 the sum 256 + 1 + … would stay 256; in float16 one of 70 · 1000 would be infinite."""
    for part, count, number in ((1.0, 1, 1000), (1000.0, 70, 3)):
        parts = [(0.5, {"w": torch.full((3,), part, dtype=dtype)}, count)] * number
        _, gradients = accumulation.mean(parts)
        assert gradients["w"].dtype == torch.float32
        assert gradients["w"].tolist() == [part] * 3


@pytest.mark.parametrize("form", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.parametrize("counts", [(3, 5, 2), (1, 900, 7), (1, 1, 1)], ids=str)
@pytest.mark.filterwarnings("error")
def test_finite_gradients_have_a_finite_mean(form, counts):
    """Neither a gradient times its count, nor the sum, nor the difference of two gradients has to be finite."""
    largest = np.finfo(np.float32).max
    rows = largest * np.array([[1, 1, 1, 0.9, -1, 0], [1, -1, -1, 1, 1, 0], [1, 1, -0.3, -1, 1, 1e-45]])
    expected = (rows / largest * np.array(counts)[:, None]).sum(0) / sum(counts)
    for fresh in (False, True):
        parts = [(1e308, {"w": form(row.astype(np.float32))}, n) for row, n in zip(rows, counts, strict=True)]
        loss, gradients = accumulation.mean(parts, fresh=fresh)
        got = np.asarray(gradients["w"]).astype(np.float64) / largest
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
        assert loss == 1e308


def test_counted():
    targets = np.array([[1, -100, 3], [-100, -100, 0]])
    for array in (targets, torch.from_numpy(targets), array_api_strict.asarray(targets)):
        assert accumulation.counted(array) == 3 and type(accumulation.counted(array)) is int
        assert accumulation.counted(array, ignore_index=3) == 5
    assert accumulation.counted(np.zeros((0, 4), np.int32)) == 0
    assert accumulation.counted(np.asarray(7)) == 1
    with pytest.raises(TypeError, match="targets: expected an array; got list"):
        accumulation.counted([1, 2])


def test_is_plain_array_code():
    w = array_api_strict.asarray([1.0, 2.0])
    loss, gradients = accumulation.mean(
        [(array_api_strict.asarray(1.0), {"w": w}, 1), (3.0, {"w": 3 * w}, 1)]
    )
    assert loss == 2.0 and np.asarray(gradients["w"]).tolist() == [2.0, 4.0]


ONE = {"w": np.ones(2)}


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([], ValueError, "parts: expected at least one counted target; got none"),
        ([(1.0, ONE, 0)], ValueError, "parts: expected at least one counted target; got none"),
        ([(1.0, ONE, -1)], ValueError, "count: expected an integer of at least 0; got -1"),
        ([(1.0, ONE, 0.5)], TypeError, "count: expected an integer; got float"),
        ([(1.0, [1], 1)], TypeError, "gradients: expected a mapping from names to arrays; got list"),
        ([(1.0, ONE)], TypeError, r"parts: expected \(loss, gradients, count\); got a tuple of 2"),
        ([ONE], TypeError, r"parts: expected \(loss, gradients, count\); got dict"),
        (
            [(1.0, ONE, np.ones(3, int))],
            TypeError,
            r"count: .* counted\(targets\) returns; got an array of shape",
        ),
        (
            [(1.0, ONE, 1), (1.0, {"w": np.ones(2, np.float32)}, 1)],
            ValueError,
            "w: expected numpy cpu float64; got numpy cpu float32",
        ),
        (
            [(1.0, ONE, 1), (1.0, {"w": array_api_strict.ones(2)}, 1)],
            ValueError,
            "w: expected numpy cpu float64; got array_api_strict",
        ),
        ([(1.0, ONE, 1), (1.0, {"v": np.ones(2)}, 1)], ValueError, "(?s)w: is missing.*v: is not expected"),
        (
            [(1.0, ONE, 1), (1.0, {"w": np.ones((1, 2))}, 1)],
            ValueError,
            r"w: expected shape \[2\]; got shape \[1, 2\]",
        ),
    ],
)
def test_other_parts_are_rejected(parts, error, message):
    with pytest.raises(error, match=message):
        accumulation.mean(parts)


def test_only_the_sum_and_one_micro_batchs_gradients_are_in_memory():
    """In arrays of a set of gradients: the sum, those of one micro-batch, and one term that is added."""
    size = 50_000

    def parts():
        for i in range(5):
            yield 0.0, {name: np.full(size, float(i)) for name in "abcdefgh"}, i + 1

    accumulation.mean(parts())  # what is loaded once
    tracemalloc.start()
    accumulation.mean(parts())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * 8 * 8 * size


def test_the_gradients_of_one_micro_batch_are_returned_as_they_are():
    w = np.array([0.1, 0.7])
    parts = [(2.0, {"w": w * np.nan}, 0), (0.3, {"w": w}, 3), (2.0, {"w": w * np.nan}, 0)]
    loss, gradients = accumulation.mean(parts, fresh=True)
    assert loss == pytest.approx(0.3, rel=1e-15, abs=0) and gradients["w"] is w
    _, gradients = accumulation.mean([*parts, (0.3, {"w": 2 * w}, 1)])
    np.testing.assert_allclose(gradients["w"], 5 * w / 4, rtol=1e-15)
    np.testing.assert_array_equal(w, [0.1, 0.7])


def test_a_buffer_may_be_refilled_unless_the_parts_are_fresh():
    buffer = np.zeros(3)

    def parts():
        for value in (1.0, 2.0, 4.0, 9.0):
            buffer[:] = value
            yield 0.0, {"w": buffer}, 1

    _, found = accumulation.mean(parts())
    assert np.array_equal(found["w"], np.full(3, 4.0))
    _, alone = accumulation.mean([(0.0, {"w": buffer}, 2)], fresh=True)
    assert alone["w"] is buffer
    with pytest.raises(TypeError, match="fresh: expected True or False; got int"):
        accumulation.mean(parts(), fresh=1)
