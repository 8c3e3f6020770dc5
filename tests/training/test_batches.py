"""Windows of a text, from a seed and a step."""

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.training import batches

TEXT = "Gradienten: ∂L/∂w, für jedes w. ".encode() * 5


def draw(text=TEXT, batch=4, length=9, seed=3, step=7, **options):
    return batches.windows(text, batch=batch, length=length, seed=seed, step=step, **options)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (4, 9), (3, len(TEXT) - 1), (500, 2)])
def test_windows_of_the_text(batch, length):
    tokens, targets = draw(batch=batch, length=length)
    assert tokens.shape == targets.shape == (batch, length)
    assert tokens.dtype == targets.dtype == np.int64
    for row, next_row in zip(tokens, targets, strict=True):
        window = bytes(row.tolist()) + bytes(next_row[-1:].tolist())
        assert window in TEXT
        assert bytes(next_row.tolist()) == window[1:]


def test_every_window_is_drawn_about_equally_often():
    text = bytes(range(10))  # has 7 windows of 3 bytes and their targets
    starts = draw(text, batch=7000, length=3)[0][:, 0]
    counts = np.bincount(starts, minlength=10)
    assert counts[7:].sum() == 0
    assert ((counts[:7] > 850) & (counts[:7] < 1150)).all()  # 5 standard deviations


def test_the_seed_and_the_step_determine_them():
    first = draw()
    for again in (draw(), draw(bytearray(TEXT)), draw(memoryview(TEXT))):
        np.testing.assert_array_equal(again, first)
    others = [draw(seed=seed, step=step) for seed in (0, 3, 7) for step in (0, 3, 7, 10**12)]
    different = {tokens.tobytes() for tokens, _ in others}
    assert len(different) == len(others)


def test_the_windows_stay_what_they_are():
    """A run that goes on with another version of NumPy draws the same."""
    tokens, _ = batches.windows(bytes(range(256)), batch=6, length=1, seed=1, step=2)
    assert tokens[:, 0].tolist() == [164, 114, 239, 109, 22, 107]


def test_arrays_of_the_library_of_like():
    expected = draw()
    for like in (torch.zeros(1), array_api_strict.zeros(1), np.zeros(1, np.float32)):
        got = draw(like=like)
        for array, numpys in zip(got, expected, strict=True):
            assert type(array) is type(like) and str(array.dtype).endswith("int64")
            np.testing.assert_array_equal(np.asarray(array), numpys)
    got[0][0, 0] = 99  # the targets are a copy
    np.testing.assert_array_equal(draw(like=torch.zeros(1))[1], expected[1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"text": "abc"}, TypeError, "text: expected bytes, such as 'text'.encode\\(\\); got str"),
        ({"text": b"123456789"}, ValueError, r"text: expected at least length \+ 1 = 10 bytes; got 9"),
        ({"text": b""}, ValueError, "got 0"),
        ({"batch": 0}, ValueError, "batch: expected an integer of at least 1; got 0"),
        ({"length": 0}, ValueError, "length: expected an integer of at least 1; got 0"),
        ({"length": 2.0}, TypeError, "length: expected an integer; got float"),
        ({"seed": -1}, ValueError, "seed: expected an integer of at least 0; got -1"),
        ({"step": -1}, ValueError, "step: expected an integer of at least 0; got -1"),
    ],
)
def test_other_arguments_are_rejected(options, error, message):
    with pytest.raises(error, match=message):
        draw(**options)


def test_the_vocabulary_is_that_of_bytes():
    tokens, _ = draw(bytes(range(256)) * 2, batch=200, length=20)
    assert tokens.min() == 0 and tokens.max() == batches.VOCABULARY - 1
