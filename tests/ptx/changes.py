"""Remove each barrier from the PTX of some kernels, one at a time, and print each outcome: a fault, another result, or
nothing. Run this module in a process with BACKPASS_PTX=1."""

import json
import re

import torch

from backpass import kernels, ptx
from backpass.kernels import compiled

SEEDS = torch.Generator().manual_seed(0)


def draw(*shape):
    return torch.randn(*shape, generator=SEEDS).bfloat16()


CASES = {
    "softmax": [draw(5, 300)],
    "layer_norm": [draw(5, 300), draw(300), draw(300)],
    "cross_entropy": [draw(5, 300), torch.tensor([3, 0, 299, 7, 150])],
}


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


def main():
    found = []
    for stem in CASES:
        compiled._parsed = seen = Replaced()
        expected = passes(stem)
        for text in dict.fromkeys(seen.texts):
            for changed in without_barriers(text):
                compiled._parsed = Replaced(text, changed)
                try:
                    got = passes(stem)
                except ptx.Fault as fault:
                    found.append((stem, f"{type(fault).__name__}: {fault}"))
                    continue
                same = all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
                found.append((stem, "nothing" if same else "another result"))
    print(json.dumps(found))


if __name__ == "__main__":
    assert kernels.executed()
    main()
