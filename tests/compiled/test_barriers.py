"""Kernels without each of their barriers, one at a time."""

import re

import pytest
import torch

from backpass import kernels, ptx
from backpass.kernels import compiled
from tests.kernels.support import sources

SEEDS = torch.Generator().manual_seed(0)


def draw(*shape):
    return torch.randn(*shape, generator=SEEDS).bfloat16()


CASES = {
    "softmax": [draw(5, 300)],
    "layer_norm": [draw(5, 300), draw(300), draw(300)],
    "cross_entropy": [draw(5, 300), torch.tensor([3, 0, 299, 7, 150])],
}
# Barriers that are not needed. No thread uses shared memory before the first barrier of cross-entropy, which is executed
# once. In layer norm, no byte is accessed by two threads on both sides of them: Triton places barriers by whole buffers,
# as beside copies that only the copying thread reads.
NOT_NEEDED = {"softmax": 0, "layer_norm": 5, "cross_entropy": 1}


def passes(stem):
    """The output and the gradients, in float64."""
    kernel = kernels.load(stem)
    y, saved = kernel.forward(*CASES[stem])
    d = kernel.backward(torch.ones_like(y) * 0.7, saved)
    return [x.double() for x in (y, *(d if isinstance(d, tuple) else (d,))) if x is not None]


def without_barriers(text):
    """Yield the text without each of its barriers."""
    for place in re.finditer(r"bar\.sync\s+0;", text):
        yield text[: place.start()] + text[place.end() :]


class Replaced:
    """Parses PTX, with one text replaced by another, and records the texts."""

    def __init__(self, old=None, new=None):
        self.old, self.new, self.texts = old, new, []

    def __call__(self, text):
        self.texts.append(text)
        return ptx.parse(self.new if text == self.old else text)


@pytest.mark.rotates(of=sources)
@pytest.mark.parametrize("stem", CASES)
def test_a_removed_barrier_is_a_race(stem, monkeypatch):
    monkeypatch.setattr(compiled, "_parsed", seen := Replaced())
    expected = passes(stem)
    races = nothing = 0
    for text in dict.fromkeys(seen.texts):
        for changed in without_barriers(text):
            monkeypatch.setattr(compiled, "_parsed", Replaced(text, changed))
            try:
                got = passes(stem)
            except ptx.Race:
                races += 1
            else:
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
                nothing += 1
    assert races and nothing == NOT_NEEDED[stem]
