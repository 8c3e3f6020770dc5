"""The operations are plain array-API code: they run on a library that has the standard's functions and nothing else."""

import math

import array_api_strict
import numpy as np
import pytest

from backpass import ops
from backpass.verify import cases

_erf = np.vectorize(math.erf, otypes=[float])


def erf(x):
    return array_api_strict.asarray(_erf(np.asarray(x)))


def scatter_add(rows, index, length):
    out = np.zeros((length, rows.shape[1]))
    np.add.at(out, np.asarray(index), np.asarray(rows))
    return array_api_strict.asarray(out)


@pytest.fixture
def library(monkeypatch):
    """The strict library, with the two functions that the standard lacks and ``backpass.contract.arrays`` asks a library for."""
    for function in (erf, scatter_add):
        monkeypatch.setattr(array_api_strict, function.__name__, function, raising=False)
    return array_api_strict


def in_the_standard(inputs):
    return all(value is None or value.dtype != np.float16 for value in inputs)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_it_computes_the_same_on_arrays_of_the_standard(stem, library):
    op = ops.load(stem)
    drawn = [case for case in cases(stem, np.random.default_rng(0)) if in_the_standard(case[0])]
    assert len(drawn) >= 4
    for inputs, options in drawn:
        y, saved = op.forward(*inputs, **options)
        dy = np.asarray(np.random.default_rng(1).standard_normal(y.shape))
        expected = (y, *as_tuple(op.backward(dy, saved)))

        y, saved = op.forward(*(None if x is None else library.asarray(x) for x in inputs), **options)
        found = (y, *as_tuple(op.backward(library.asarray(dy), saved)))
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.__array_namespace__() is library
                np.testing.assert_allclose(np.asarray(one), other, rtol=1e-12, atol=1e-14)


def as_tuple(gradients):
    return gradients if isinstance(gradients, tuple) else (gradients,)
