"""The shapes at which symbols run: none at which a wrong factor of one length over another is 1 every time."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from backpass import ops
from backpass.contract.shapes import parse
from backpass.ops import linear
from backpass.verify import cases, check
from backpass.verify.case import Case
from backpass.verify.methods.symbolic import drawn
from backpass.verify.subject import subject

WITHOUT_SYMBOLS = ("dropout",)  # random numbers, which symbols do not have

# Of two pairs of heads and more its expressions take a minute; attention's own symbols tell these two apart.
TOO_LONG = {("multi_head_attention", "m", "n_kv")}


def lengths_of_each_run(stem):
    """The length of each letter, and m, the number of elements in the leading axes, in each run at each of the cases."""
    shapes = parse(ops.load(stem).SHAPES)
    names = [spec.name for spec in shapes.inputs]
    for inputs, options in cases(stem, np.random.default_rng(0)):
        case = Case(subject(ops.load(stem), len(inputs), options), inputs, seed=0)
        for values in drawn(case):
            bound = shapes.bind(dict(zip(names, values, strict=True)))
            groups = {f"m{group[1:]}": math.prod(n) for group, n in bound.items() if group.startswith("*")}
            yield {letter: bound[letter] for letter in shapes.letters if letter in bound} | groups


@pytest.mark.parametrize("stem", [stem for stem in ops.STEMS if stem not in WITHOUT_SYMBOLS])
def test_no_two_letters_have_the_same_length_in_every_run(stem):
    runs = list(lengths_of_each_run(stem))
    letters = sorted(set().union(*runs) - {"m"} if "*a" in ops.load(stem).SHAPES else set().union(*runs))
    for one, other in itertools.combinations(letters, 2):
        if (stem, one, other) in TOO_LONG:
            continue
        assert any(run.get(one) != run.get(other) for run in runs), (one, other, runs[0])


@pytest.mark.parametrize("factor", ["m/p", "p/m", "n/p", "m/n"])
def test_a_factor_that_is_the_ratio_of_two_lengths_fails(factor):
    def backward(dy, saved):
        dx, dw, db = linear.backward(dy, saved)
        lengths = {"m": dy.shape[0], "n": saved.x.shape[-1], "p": dy.shape[-1]}
        above, below = factor.split("/")
        return dx, dw * lengths[above] / lengths[below], db

    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4, 5)), rng.standard_normal((5, 3)), rng.standard_normal(3)
    wrong = SimpleNamespace(**{**vars(linear), "backward": backward})
    (failed,) = check(wrong, *inputs, methods=["symbolic"], raises=False).failed
    assert failed.quantity == "dw"
