"""Clipping is that of torch.nn.utils.clip_grad_norm_, and names what is not finite."""

import math
import tracemalloc

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.training import clipping
from backpass.training._blocks import BLOCK, blocks

SHAPES = {"scalar": (), "one": (1,), "bias": (7,), "matrix": (5, 3), "stack": (2, 1, 3, 2), "empty": (0, 4)}


def drawn(scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(scale * rng.standard_normal(shape)) for name, shape in SHAPES.items()}


def as_tensors(arrays):
    return {name: torch.tensor(array) for name, array in arrays.items()}


def by_torch(gradients, max_norm):
    weights = {}
    for name, d in as_tensors(gradients).items():
        weights[name] = torch.nn.Parameter(torch.zeros_like(d))
        weights[name].grad = d
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), max_norm)
    return {name: w.grad.numpy() for name, w in weights.items()}, float(norm)


@pytest.mark.parametrize("max_norm", [1e-7, 0.5, 4.0, 4.65, 5.0, 100.0])
@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_gradients_of_torch(max_norm, form, dtype):
    gradients = {name: d.astype(dtype) for name, d in drawn().items()}
    expected, expected_norm = by_torch(gradients, max_norm)
    got, norm = clipping.clip(form(gradients), max_norm)
    tolerance = {"float64": 1e-14, "float32": 1e-6}[dtype]
    assert norm == pytest.approx(expected_norm, rel=tolerance, abs=0) and 4.65 < norm < 4.66
    assert got.keys() == expected.keys()
    for name, d in got.items():
        assert d.shape == expected[name].shape and str(d.dtype).endswith(dtype)
        np.testing.assert_allclose(np.asarray(d), expected[name], rtol=tolerance)


def test_the_result_has_the_norm():
    for max_norm in (0.1, 1.0, 4.0):
        got, _ = clipping.clip(drawn(), max_norm)
        _, norm = clipping.clip(got, 1e9)
        assert max_norm * (1 - 1e-6) < norm <= max_norm


def test_small_gradients_are_returned_as_they_are():
    gradients = drawn()
    got, _ = clipping.clip(gradients, 5.0)
    assert got is not gradients and all(got[name] is d for name, d in gradients.items())


def test_arrays_are_not_modified():
    gradients = drawn()
    clipping.clip(gradients, 0.1)
    for name, d in drawn().items():
        np.testing.assert_array_equal(gradients[name], d)


@pytest.mark.parametrize("max_norm", [1e-7, 0.5, 4.65, 5.0])
@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_in_place_the_same_bits_are_written_over_the_gradients(max_norm, form, dtype):
    gradients = form({name: d.astype(dtype) for name, d in drawn().items()})
    expected, expected_norm = clipping.clip(gradients, max_norm)
    got, norm = clipping.clip(gradients, max_norm, in_place=True)
    assert norm == expected_norm and [*got] == [*expected]
    for name, d in got.items():
        assert d is gradients[name]
        np.testing.assert_array_equal(np.asarray(d), np.asarray(expected[name]))


@pytest.mark.parametrize("max_norm", [0.5, 5.0])
def test_in_place_as_torch_is(max_norm):
    gradients = as_tensors(drawn())
    weights = {name: torch.nn.Parameter(torch.zeros_like(d)) for name, d in gradients.items()}
    for name, w in weights.items():
        w.grad = gradients[name].clone()
    torch.nn.utils.clip_grad_norm_(weights.values(), max_norm)
    clipping.clip(gradients, max_norm, in_place=True)
    for name, w in weights.items():
        torch.testing.assert_close(gradients[name], w.grad, rtol=1e-14, atol=0)


def large(form, seed=0):
    """Arrays of more elements than a block, with strides of several kinds."""
    rng = np.random.default_rng(seed)
    n = 2 * BLOCK + 37
    found = {
        "row": rng.standard_normal((1, n)),
        "transposed": rng.standard_normal((701, 509)).T,
        "stack": rng.standard_normal((5, 300, 211))[:, :, ::2],
        "every second": rng.standard_normal(2 * n)[::2],
        "one index": rng.standard_normal((3, 3 * BLOCK // 2)).T,
    }
    return found if form is dict else {name: torch.from_numpy(d) for name, d in found.items()}


@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
def test_large_gradients_of_any_strides(form):
    gradients, whole = large(form), large(dict)
    expected_norm = math.sqrt(math.fsum(float(np.sum(d * d)) for d in whole.values()))
    got, norm = clipping.clip(gradients, 2.0, in_place=True)
    assert norm == pytest.approx(expected_norm, rel=1e-13, abs=0)
    for name, d in got.items():
        assert d is gradients[name]
        np.testing.assert_array_equal(np.asarray(d), whole[name] * (2.0 / (norm + 1e-6)))


@pytest.mark.parametrize("shape", [(), (0, 4), (7,), (BLOCK,), (BLOCK + 1,), (3, BLOCK // 2), (2, 700, 300)])
def test_blocks_are_all_of_an_array_once(shape):
    x = np.zeros(shape)
    parts = [*blocks(x)]
    for part in parts:
        part += 1
        assert part.size <= BLOCK
    assert (x == 1).all() and len(parts) >= -(-x.size // BLOCK)


def test_in_place_needs_memory_for_a_few_blocks_only():
    gradients = {name: np.full((40, BLOCK // 4), 0.5, np.float32) for name in "abc"}
    clipping.clip(drawn(), 1.0, in_place=True)  # what is loaded once
    tracemalloc.start()
    got, norm = clipping.clip(gradients, 1.0, in_place=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert norm == 0.5 * math.sqrt(30 * BLOCK) and got["a"][3, 2] < 0.5
    assert peak < 4 * 4 * BLOCK < gradients["a"].nbytes


@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
def test_in_place_memory_that_two_gradients_share_is_scaled_once(form):
    (tied,) = form({"w": drawn()["matrix"]}).values()
    (whole,) = form({"w": drawn()["stack"]}).values()
    shared = {
        "table": tied,
        "head": tied,
        "transposed": tied.T,
        "last": whole[1:],
        "all": whole,
        "first": whole[:1],
    }
    before = {name: np.asarray(d).copy() for name, d in shared.items()}
    expected, _ = clipping.clip(before, 0.5)
    got, _ = clipping.clip(shared, 0.5, in_place=True)
    for name, d in got.items():
        np.testing.assert_array_equal(np.asarray(d), expected[name])
    # Neighbours in one storage share nothing.
    (flat,) = form({"w": np.arange(1.0, 9.0)}).values()
    neighbours = {"a": flat[:3], "b": flat[3:]}
    got, norm = clipping.clip(neighbours, 1.0, in_place=True)
    assert got["a"] is neighbours["a"] and got["b"] is neighbours["b"]
    np.testing.assert_allclose(np.asarray(flat), np.arange(1.0, 9.0) / norm, rtol=1e-6)


def test_in_place_elements_that_share_memory_or_cannot_be_written_are_copied():
    spread = torch.tensor([3.0, 4.0]).expand(5, 2)
    fixed = np.array([1.0, 2.0])
    view = fixed[:1]
    fixed.flags.writeable = False
    gradients = {"spread": spread.numpy(), "fixed": fixed, "view": view, "number": np.float64(2.0)}
    before = {name: np.array(d) for name, d in gradients.items()}
    expected, _ = clipping.clip(before, 0.5)
    for some in (gradients, {"spread": spread}):
        got, _ = clipping.clip(some, 0.5 if len(some) > 1 else 1e-3, in_place=True)
        assert got["spread"] is not some["spread"] and spread[4].tolist() == [3.0, 4.0]
        for name in some if len(some) > 1 else ():
            np.testing.assert_array_equal(got[name], expected[name])
    assert fixed.tolist()[1] == 2.0


@pytest.mark.parametrize("form", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_in_place_elements_that_share_memory_between_gaps_are_copied(form):
    """There are fewer elements than their memory has room for, and yet some share it."""
    line = form(np.arange(1.0, 2 * BLOCK + 6))
    if form is np.asarray:
        gapped = np.lib.stride_tricks.as_strided(line, (BLOCK + 1, 2), (16, 16))
    else:
        gapped = line.as_strided((BLOCK + 1, 2), (2, 2))
    expected, _ = clipping.clip({"w": np.asarray(gapped).copy()}, 0.5)
    got, _ = clipping.clip({"w": gapped}, 0.5, in_place=True)
    np.testing.assert_array_equal(np.asarray(got["w"]), expected["w"])
    assert line[2] == 3.0


def test_in_place_gaps_alone_do_not_matter():
    gradients = {"w": np.ones((5, 6))[:, ::2].T[::-1]}
    assert clipping.clip(gradients, 0.5, in_place=True)[0]["w"] is gradients["w"]


def test_in_place_nothing_is_modified_before_an_error():
    gradients = {**drawn(), "last": np.array([math.nan])}
    with pytest.raises(FloatingPointError):
        clipping.clip(gradients, 0.1, in_place=True)
    for name, d in drawn().items():
        np.testing.assert_array_equal(gradients[name], d)


def test_the_norm_of_each():
    gradients = drawn()
    found = clipping.norms(gradients)
    assert found == pytest.approx(
        {name: np.linalg.norm(np.ravel(d)) for name, d in gradients.items()}, rel=1e-14, abs=0
    )
    assert found["empty"] == 0 and clipping.norms({}) == {}
    assert clipping.clip({}, 1.0) == ({}, 0.0)


@pytest.mark.parametrize("scale", [0.0, 5e-324, 1e-310, 1e-200, 1e200, 1e306])
def test_squares_neither_overflow_nor_underflow(scale):
    """torch's norm of 1e200 is ∞, so that it would scale by 0; that of 1e-200 is 0."""
    gradients = drawn(scale)
    expected = math.hypot(*(float(g) for d in gradients.values() for g in d.ravel()))
    got, norm = clipping.clip(gradients, 1.0)
    assert norm == pytest.approx(
        expected, rel=1e-14, abs=3 * 5e-324
    )  # each of the norms is rounded to 5e-324
    if scale > 1:
        assert clipping.clip(got, 1e9)[1] == pytest.approx(1.0, rel=1e-6)
        assert math.isinf(by_torch(gradients, 1.0)[1])


@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [(torch.float32, 1e30, 1e-6), (torch.float16, 1e4, 1e-3), (torch.bfloat16, 1e30, 1e-2)],
    ids=str,
)
def test_short_floats_of_large_size(dtype, scale, tolerance):
    """Their squares exceed the range of the dtype, or of float32."""
    gradients = {name: d.to(dtype) for name, d in as_tensors(drawn(scale)).items()}
    exact = {name: d.double() for name, d in gradients.items()}
    expected, expected_norm = clipping.clip(exact, 1.0)
    got, norm = clipping.clip(gradients, 1.0)
    assert norm == pytest.approx(expected_norm, rel=1e-6)
    for name, d in got.items():
        assert d.dtype == dtype
        torch.testing.assert_close(d.double(), expected[name], rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 6e37), ("float64", 4e306)])
@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
def test_the_factor_does_not_underflow(dtype, scale, form):
    """It is about 1e-44 in float32, where 1.4e-45 is the smallest number, and 1e-313 in float64."""
    gradients = {name: d.astype(dtype) for name, d in drawn(scale).items()}
    for in_place in (False, True):
        got, norm = clipping.clip(form({n: d.copy() for n, d in gradients.items()}), 1e-6, in_place=in_place)
        for name, d in got.items():
            expected = gradients[name] / np.asarray(norm).astype(dtype) * np.asarray(1e-6, dtype)
            np.testing.assert_allclose(np.asarray(d), expected, rtol=4 * np.finfo(dtype).eps)


def test_the_factor_is_not_rounded_to_half_precision():
    """In float16 the factor, about 2e-7, would be 1.8e-7 or 2.4e-7."""
    gradients = {name: d.astype(np.float16) for name, d in drawn(1e4).items()}
    expected, _ = clipping.clip({name: d.astype(np.float64) for name, d in gradients.items()}, 0.01)
    got, _ = clipping.clip(gradients, 0.01)
    for name, d in got.items():
        assert d.dtype == np.float16
        np.testing.assert_allclose(d, expected[name], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("form", [dict, as_tensors], ids=["numpy", "torch"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_gradient_that_is_not_finite_is_named(form, value):
    gradients = drawn()
    gradients["matrix"][2, 1] = gradients["matrix"][0, 0] = value
    gradients["scalar"] = np.asarray(value)
    with pytest.raises(FloatingPointError) as raised:
        clipping.clip(form(gradients), 1.0)
    assert str(raised.value).split("\n    ") == [
        "gradients: their norm is not finite:",
        "scalar: 1 of 1 elements are not finite",
        "matrix: 2 of 15 elements are not finite",
    ]


def test_a_norm_beyond_the_range_of_floats():
    with pytest.raises(
        FloatingPointError, match="w: the elements are finite, but their norm exceeds the range"
    ):
        clipping.norms({"v": np.ones(2), "w": np.full(5, 1.5e308)})
    with pytest.raises(FloatingPointError, match="the norm of all together exceeds the range of floats"):
        clipping.clip({"v": np.array([1.5e308]), "w": np.array([1.5e308])}, 1.0)


def test_is_plain_array_code():
    gradients = drawn()
    expected, norm = clipping.clip(gradients, 0.5)
    strict = {name: array_api_strict.asarray(d) for name, d in gradients.items()}
    got, strict_norm = clipping.clip(strict, 0.5)
    assert strict_norm == norm
    for name, d in got.items():
        np.testing.assert_array_equal(np.asarray(d), expected[name])


@pytest.mark.parametrize(
    ("gradients", "max_norm", "error", "message"),
    [
        ([np.ones(2)], 1.0, TypeError, "gradients: expected a mapping from names to arrays; got list"),
        ({"w": None}, 1.0, TypeError, "gradients: w: expected an array; got NoneType"),
        ({"w": np.ones(2, int)}, 1.0, TypeError, "w: expected real floating-point numbers; got dtype int64"),
        ({}, 0.0, ValueError, "max_norm: expected a number above 0; got 0.0"),
        ({}, math.nan, ValueError, "max_norm: expected a number above 0; got nan"),
        ({}, "1", TypeError, "max_norm: expected a real number; got str"),
    ],
)
def test_other_arguments_are_rejected(gradients, max_norm, error, message):
    with pytest.raises(error, match=message):
        clipping.clip(gradients, max_norm)


def test_norms_that_are_known_are_not_computed_again(monkeypatch):
    gradients = drawn()
    expected, norm = clipping.clip(gradients, 0.5)
    known = clipping.norms(gradients)
    monkeypatch.setattr(clipping, "norms", None)
    got, got_norm = clipping.clip(gradients, 0.5, of_each=known)
    assert got_norm == norm
    for name, d in got.items():
        np.testing.assert_array_equal(d, expected[name])
    _, with_others = clipping.clip(gradients, 0.5, of_each={**known, "on another rank": 3.0})
    assert with_others == pytest.approx(np.hypot(norm, 3.0))
    del known["bias"]
    with pytest.raises(ValueError, match="of_each: bias: is missing"):
        clipping.clip(gradients, 0.5, of_each=known)


def test_the_dtype_of_the_limit_does_not_matter():
    """As a float16, the norm of 5e5 would be ∞, and the factor 0."""
    gradients = {"w": np.array([3e5, 4e5], np.float32)}
    expected, _ = clipping.clip(gradients, 1.0)
    for limit in (np.float16(1), np.float32(1), 1):
        got, _ = clipping.clip(gradients, limit)
        np.testing.assert_array_equal(got["w"], expected["w"])


def test_in_place_is_a_bool():
    with pytest.raises(TypeError, match="in_place: expected True or False; got int"):
        clipping.clip({}, 1.0, in_place=1)
