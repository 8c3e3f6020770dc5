"""What flash_attention promises beside the contract: attention's results from every tiling, without attention's arrays."""

import math
import subprocess
import sys
import warnings
from itertools import product
from types import FunctionType

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import attention, flash_attention
from backpass.ops.flash_attention import Tiling, tiling_of
from backpass.verify.mutation import mutants

LIBRARIES = pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
LOWER_RIGHT = {"causal": True, "causal_variant": "lower_right"}
MASKS = pytest.mark.parametrize(
    "mask",
    [{}, {"causal": True}, LOWER_RIGHT, {"causal": True, "window": 2}, LOWER_RIGHT | {"window": 3}],
    ids=["all", "upper", "lower", "upper-window", "lower-window"],
)
SHAPES = pytest.mark.parametrize(("s_q", "s_k"), [(1, 1), (5, 5), (3, 7), (7, 3), (4, 1), (0, 3)])
N_KV, D, D_V = 2, 5, 3


def drawn(s_q, s_k, g=1, leading=(), d=D, d_v=D_V, seed=0):
    """q, k, v and dy."""
    rng = np.random.default_rng(seed)
    heads = ((g * N_KV, s_q, d), (N_KV, s_k, d), (N_KV, s_k, d_v), (g * N_KV, s_q, d_v))
    return [rng.standard_normal((*leading, *shape)) for shape in heads]


def run(op, q, k, v, dy, **options):
    """y, dq, dk and dv."""
    y, saved = op.forward(q, k, v, **options)
    return y, *op.backward(dy, saved)[:3]


def agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


@LIBRARIES
@MASKS
@SHAPES
@pytest.mark.parametrize("tile", [1, 3, None])
@pytest.mark.parametrize("heads", [{"g": 1}, {"g": 3, "head_order": "interleaved", "scale": 0.3}], ids=str)
def test_it_is_attention_in_every_tiling(make, mask, s_q, s_k, tile, heads):
    arrays = [make(x) for x in drawn(s_q, s_k, g=heads["g"], leading=(2,))]
    options = {key: value for key, value in heads.items() if key != "g"} | mask
    found = run(flash_attention, *arrays, tile=tile, **options)
    agree(found, run(attention, *arrays, **options))
    assert all(np.isfinite(np.asarray(x)).all() for x in found)


@pytest.mark.parametrize("tile", [1, 2, 10])
@MASKS
def test_what_is_saved_is_the_log_sum_exp(tile, mask):
    q, k, v, _ = drawn(7, 3, g=2)
    _, saved = flash_attention.forward(q, k, v, tile=tile, head_order="interleaved", **mask)
    scores = torch.tensor(q @ np.tile(k, (2, 1, 1)).swapaxes(-1, -2) / math.sqrt(D))
    if mask:
        ahead = 3 - 7 if "causal_variant" in mask else 0
        seen = torch.ones(7, 3, dtype=torch.bool).tril(ahead).triu(ahead - mask.get("window", 7) + 1)
        scores = scores.masked_fill(~seen, -math.inf)
    np.testing.assert_allclose(saved.lse, torch.logsumexp(scores, dim=-1), rtol=1e-13)


@LIBRARIES
@pytest.mark.parametrize("tile", [2, 3, None])
def test_a_query_that_sees_no_key_has_output_and_gradient_0(make, tile):
    q, k, v, dy = (make(x) for x in drawn(7, 3, g=2))
    y, saved = flash_attention.forward(q, k, v, tile=tile, **LOWER_RIGHT)
    dq, dk, dv, *_ = flash_attention.backward(dy, saved)
    assert not y[:, :4].any() and not dq[:, :4].any()
    assert (saved.lse[:, :4] == -math.inf).all()
    seen = run(attention, q[:, 4:], k, v, dy[:, 4:], causal=True)
    agree((y[:, 4:], dq[:, 4:], dk, dv), seen)


@LIBRARIES
@pytest.mark.parametrize("order", ["rising", "falling"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_of_hundreds_do_not_overflow(make, order, dtype):
    """Each tile's largest score is far from that of the one before, above or below. The scores' gradients, right to some
    roundings of 1, are multiplied by keys as large as 700."""
    q, k, v, dy = drawn(6, 6)
    k[..., 0] += np.linspace(-700, 700, 6) * (1 if order == "rising" else -1)
    q[..., 0] = 1
    arrays = [make(x.astype(dtype)) for x in (q, k, v, dy)]
    found = run(flash_attention, *arrays, tile=2, scale=1.0)
    expected = run(attention, *arrays, scale=1.0)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=8 * 700 * np.finfo(dtype).eps)


# The bias, the mask, the softcap, and the sinks


def options_drawn(s_q, s_k, g, shape, seed=1):
    """A bias and a mask of the shape, of which some rows hide every key, and a sink."""
    rng = np.random.default_rng(seed)
    n_h = g * N_KV
    full = np.broadcast_to(np.empty(()), (2, n_h, s_q, s_k)).shape
    shape = tuple(n if keep else 1 for n, keep in zip(full[4 - len(shape) :], shape, strict=True))
    return {
        "bias": rng.standard_normal(shape),
        "mask": rng.random(shape) < 0.6,
        "sink": rng.standard_normal(n_h),
    }


@LIBRARIES
@MASKS
@pytest.mark.parametrize("tile", [2, 3, None])
@pytest.mark.parametrize(
    "shape", [(), (1,), (1, 1), (1, 0, 1), (1, 1, 1, 1), (1, 0, 0, 1), (1, 1, 0)], ids=str
)
@pytest.mark.parametrize("given", ["bias", "mask", "sink", "bias mask sink"])
def test_all_its_inputs_are_attentions_in_every_tiling(make, mask, tile, shape, given):
    arrays = [make(x) for x in drawn(7, 5, g=3, leading=(2,))]
    more = {name: make(x) for name, x in options_drawn(7, 5, 3, shape).items() if name in given}
    options = {"head_order": "interleaved", "softcap": 0.7} | mask | more
    *inputs, dy = arrays
    y, saved = flash_attention.forward(*inputs, tile=tile, **options)
    expected, as_saved = attention.forward(*inputs, **options)
    agree([y], [expected])
    found, others = flash_attention.backward(dy, saved), attention.backward(dy, as_saved)
    assert [x is None for x in found] == [x is None for x in others]
    agree([x for x in found if x is not None], [x for x in others if x is not None])


@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
@pytest.mark.parametrize("tile", [None, 3, 16])
@pytest.mark.parametrize(
    "mask", [{}, {"causal": True, "window": 5}, {"causal": True, "causal_variant": "lower_right"}], ids=str
)
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_drops_attentions_weights_in_every_tiling(p, mask, tile, head_order):
    q, k, v, dy = drawn(21, 29, g=2, leading=(2,))
    rng = np.random.default_rng(4)
    more = rng.standard_normal((q.shape[1], 21, 29)), None, rng.standard_normal(q.shape[1])
    options = {"head_order": head_order, "dropout_p": p, "seed": 9, **mask}
    results = []
    for op, own in ((attention, {}), (flash_attention, {"tile": tile})):
        y, saved = op.forward(q, k, v, *more, **options, **own)
        results.append((y, *op.backward(dy, saved)))
    agree(*results)


def test_with_dropout_nothing_more_is_saved():
    q, k, v, _ = drawn(21, 29)
    plain, dropped = (cost.saved_bytes("flash_attention", q, k, v, dropout_p=p) for p in (0.0, 0.3))
    assert plain == dropped
    with pytest.raises(ValueError, match=r"dropout_p: expected a probability from 0 to 1; got 1\.5"):
        flash_attention.forward(q, k, v, dropout_p=1.5)
    with pytest.raises(TypeError, match="seed: expected an integer; got float"):
        flash_attention.forward(q, k, v, seed=0.5)


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_the_formulas_count_dropout(causal, dropout_p):
    q, k, v, _ = drawn(5, 7)
    options = {"causal": causal, "dropout_p": dropout_p, "tile": 3}
    counted = cost.count("flash_attention", q, k, v, **options)
    assert cost.formula("flash_attention", q, k, v, **options) == (
        counted.forward.total,
        counted.backward.total,
    )


@pytest.mark.parametrize("tile", [2, None])
def test_the_log_sum_exp_of_a_query_that_sees_no_key_is_its_sink(tile):
    q, k, v, dy = drawn(7, 3, g=2)
    sink = np.arange(4.0)
    _, saved = flash_attention.forward(q, k, v, sink=sink, tile=tile, **LOWER_RIGHT)
    assert np.array_equal(saved.lse[:, :4], np.repeat(sink[:, None], 4, axis=1))
    blind = flash_attention.forward(q[:, :4], k, v, sink=sink, mask=np.zeros((), bool), tile=tile)[1]
    assert np.array_equal(blind.lse, saved.lse[:, :4])
    alone = flash_attention.forward(q[:, 4:], k, v, sink=sink, causal=True, tile=tile)
    agree([flash_attention.backward(dy, saved)[4]], [flash_attention.backward(dy[:, 4:], alone[1])[4]])


@LIBRARIES
def test_a_sink_of_minus_infinity_is_none(make):
    q, k, v, dy = (make(x) for x in drawn(7, 3, g=2))
    sink = make(np.full(4, -np.inf))
    y, saved = flash_attention.forward(q, k, v, sink=sink, tile=2, **LOWER_RIGHT)
    *gradients, _, dsink = flash_attention.backward(dy, saved)
    agree((y, *gradients), run(flash_attention, q, k, v, dy, tile=2, **LOWER_RIGHT))
    assert not np.asarray(dsink).any()


def test_a_window_leaves_a_band_of_tiles():
    """Of 4096 tokens and a window of 1024, each row of tiles computes at most the window and a tile."""
    tiling = tiling_of(4096, 4096, 1, True, "upper_left", 64, 1024)
    assert max(stop - first for first, stop in map(tiling.keys, tiling.rows())) == 1024 + 63
    assert tiling.counts()[1] < 0.46 * tiling_of(4096, 4096, 1, True, "upper_left", 64).counts()[1]


# The tiles


def tilings():
    for s_q, s_k, tile in product((1, 2, 5, 7), (1, 3, 5, 7), (1, 2, 3, 8)):
        yield s_q, s_k, tile, None
        for ahead, window in product((0, s_k - s_q), (math.inf, 1, 2, 3, 6)):
            yield s_q, s_k, tile, ahead, window


def check_tiling(tiling):
    """Each score that a query sees is in one tile and not hidden there, each other one in none or hidden; no tile
    is larger than it may be, hidden throughout, or masked for nothing; the counts are those of the tiles."""
    s_q, s_k, tile, ahead, window = tiling
    seen = np.ones((s_q, s_k), bool) if ahead is None else np.tri(s_q, s_k, ahead, dtype=bool)
    seen = seen if window == math.inf else seen & ~np.tri(s_q, s_k, ahead - window, dtype=bool)
    times, computed, tiles, queries = np.zeros((s_q, s_k), int), 0, 0, 0
    for rows in tiling.rows():
        queries += rows.stop - rows.start
        for columns in tiling.columns(rows):
            visible = tiling.visible(rows, columns, like=times)
            assert visible is None or not visible.all()
            part = np.ones_like(seen[rows, columns]) if visible is None else visible
            assert part.any() and 1 <= min(part.shape) and max(part.shape) <= tile
            assert np.array_equal(part, seen[rows, columns])
            p = np.arange(12.0 * part.size).reshape(
                2, 6 * part.shape[0], part.shape[1]
            )  # two heads of six queries
            hidden = tiling.hide(p, rows, columns)
            assert np.array_equal(hidden, np.where(np.tile(part, (6, 1)), p, -np.inf))
            times[rows, columns] += part
            computed, tiles = computed + part.size, tiles + part.shape[0]
    assert np.array_equal(times, seen)
    assert tiling.counts() == (queries, computed, tiles)
    assert np.array_equal(np.flatnonzero(seen.any(axis=1)), np.arange(s_q)[tiling.queries()])
    assert queries == seen.any(axis=1).sum()


def test_each_score_that_is_seen_is_in_one_tile():
    for arguments in tilings():
        check_tiling(Tiling(*arguments))


EQUIVALENT_TILINGS = {
    "max(0, -self.ahead) → max(-self.ahead, 0)": "The larger of two numbers is the same in either order.",
    "min(self.s_k, rows.stop + self.ahead) → min(rows.stop + self.ahead, self.s_k)": "As for the larger one.",
    "max(0, rows.start + self.ahead - self.window + 1) → max(rows.start + self.ahead - self.window + 1, 0)": "The same.",
    "min(self.s_q, self.s_k + self.window - 1 - self.ahead) → "
    "min(self.s_k + self.window - 1 - self.ahead, self.s_q)": "As for the larger one.",
    "return (0, self.s_k) → return (-0, self.s_k)": "Zero.",
    "return (0, self.s_k) → return (2 * 0, self.s_k)": "Zero.",
    "return slice(0, self.s_q) → return slice(-0, self.s_q)": "Zero.",
    **{
        f"{line} → {name} = {factor}({condition})": "It is read only as a condition, in which −1 and 2 are true."
        for name, condition in {
            "before": "columns.stop <= rows.start + self.ahead + 1",
            "within": "columns.start > rows.stop - 1 + self.ahead - self.window",
        }.items()
        for line in [f"{name} = {condition}"]
        for factor in ("-", "2 * ")
    },
    "visible if within else visible & (ahead > self.ahead - self.window) → "
    "visible & (ahead > self.ahead - self.window)": "Where every query is within the window, the second is true.",
    "visible & (ahead > self.ahead - self.window) → (ahead > self.ahead - self.window) & visible": "The same.",
    "xp.arange(part.start, part.stop, device=like.device) → xp.arange(part.start, part.stop)": "It matters on a GPU only.",
}


@pytest.mark.parametrize("method", ["queries", "rows", "keys", "columns", "visible", "hide", "counts"])
def test_every_change_of_the_tiles_is_caught(method, proof):
    """The backward walks these tiles, so that a change of them is one of the backward."""

    def survives(mutant):
        scope = dict(vars(flash_attention))
        exec(compile(mutant.tree, mutant.change, "exec"), scope)
        changed = type("Changed", (Tiling,), {method: scope[method]})
        try:
            for arguments in tilings():
                check_tiling(changed(*arguments))
        except Exception:
            return False
        return True

    function = vars(Tiling)[method]
    assert isinstance(function, FunctionType)
    found = list(mutants(function))
    assert found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried = proof.part(f"flash_attention.Tiling.{method}", found, of=[function], share=0.1)
        survivors = {mutant.change for mutant in tried if survives(mutant)}
    assert survivors <= set(EQUIVALENT_TILINGS), survivors - set(EQUIVALENT_TILINGS)


# Cost and memory


@MASKS
@SHAPES
@pytest.mark.parametrize("tile", [1, 2, 10, None])
def test_the_formulas_count_the_tiles_that_are_computed(mask, s_q, s_k, tile):
    if s_q == 0:
        return  # formulas are for shapes that are not empty
    arrays = drawn(s_q, s_k, g=2, leading=(2,))[:3]
    counted = cost.count(flash_attention, *arrays, tile=tile, **mask)
    assert cost.formula(flash_attention, *arrays, tile=tile, **mask) == (
        counted.forward.total,
        counted.backward.total,
    )


def test_without_a_mask_the_backward_costs_the_same_in_every_tiling():
    arrays = drawn(7, 5)[:3]
    costs = {cost.formula(flash_attention, *arrays, tile=tile).backward for tile in range(1, 9)}
    assert len(costs) == 1


def test_it_keeps_nothing_of_two_lengths():
    q, k, v, _ = drawn(7, 11)
    kept = cost.memory(flash_attention, q, k, v, tile=2)
    assert {part.name: part.bytes for part in kept.arrays} == {
        "q": q.nbytes,
        "k": k.nbytes,
        "v": v.nbytes,
        "y": 8 * N_KV * 7 * D_V,
        "lse": 8 * N_KV * 7,
    }


def test_what_the_bias_needs_is_all_that_has_two_lengths():
    q, k, v, _ = drawn(7, 11)
    bias, mask, sink = np.zeros((2, 7, 11)), np.ones((7, 11), bool), np.zeros(2)
    kept = cost.memory(flash_attention, q, k, v, bias, mask, sink, tile=2)
    assert {part.name: part.bytes for part in kept.arrays if not part.is_parameter} == {
        "q": q.nbytes,
        "k": k.nbytes,
        "v": v.nbytes,
        "y": 8 * N_KV * 7 * D_V,
        "lse": 8 * N_KV * 7,
        "bias": bias.nbytes,
        "mask": mask.nbytes,
    }
    of_sink = cost.memory(flash_attention, q, k, v, bias, mask, sink, tile=2, wanted=["sink"])
    assert {part.name for part in of_sink.arrays} == {"y", "lse", "sink"}


class Made(TorchDispatchMode):
    """Counts the elements of each tensor that PyTorch makes, views and what is changed in place apart."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in known:
            self.sizes.append(found.numel())
        return found


@MASKS
@pytest.mark.parametrize("head_order", ["consecutive", "interleaved"])
def test_no_array_is_larger_than_the_queries_or_a_tile(mask, head_order):
    s, g, tile = 96, 3, 8
    q, k, v, dy = (torch.tensor(x) for x in drawn(s, s, g=g))
    with Made() as made:
        padding, sink = torch.ones(1, 1, s, dtype=torch.bool), torch.zeros(g * N_KV).double()
        added = {"bias": padding.double(), "mask": padding, "sink": sink, "softcap": 2.0}
        run(flash_attention, q, k, v, dy, tile=tile, head_order=head_order, **mask, **added)
    assert max(made.sizes) <= max(q.numel(), g * N_KV * tile * tile)
    assert sum(size > k.numel() for size in made.sizes) <= 12  # nothing as large as q is made for each tile


FULL_SIZE = """
import sys, torch
from backpass.ops import flash_attention

def high_water():  # of this process's memory, in bytes
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])

def step(s):
    q, k, v, dy = (torch.randn(1, s, 64, generator=torch.Generator().manual_seed(i)) for i in range(4))
    before = high_water()
    y, saved = flash_attention.forward(q, k, v, causal=True)
    found = flash_attention.backward(dy, saved)
    assert all(x.isfinite().all() for x in (y, *found[:3]))
    return high_water() - before

step(8)  # loads what is loaded once
print(step(int(sys.argv[1])))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_16384_tokens_take_less_than_a_gibibyte():
    """One head, forward and backward, causal. The matrix of its weights would take a gibibyte, and their gradient one
    more; what is taken are some arrays of 4 MiB, as large as the queries."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL_SIZE, "16384"], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 2**30 / 10


def test_half_precision_is_summed_in_float32():
    """4096 equal keys and queries: in bfloat16 a sum of as many ones ends at 256."""
    s, dtype = 4096, torch.bfloat16
    q, k = torch.zeros(1, 2, 1, dtype=dtype), torch.zeros(1, s, 1, dtype=dtype)
    v, dy = torch.ones(1, s, 1, dtype=dtype), torch.ones(1, 2, 1, dtype=dtype)
    y, _, _, dv = run(flash_attention, q, k, v, dy)
    assert y.dtype == dv.dtype == dtype
    assert torch.equal(y, torch.ones_like(y))
    assert torch.equal(dv, torch.full_like(dv, 2 / s))

    y, _, _, dv = run(flash_attention, k, q, dy, v)
    assert torch.equal(y, torch.ones_like(y))
    assert torch.equal(dv, torch.full_like(dv, s / 2))


# Options


@pytest.mark.parametrize(("heads", "tile"), [(1, 256), (8, 256), (9, 128), (32, 128), (33, 64), (10**6, 64)])
def test_many_heads_have_smaller_tiles(heads, tile):
    assert tiling_of(5, 7, heads, False, "upper_left", None) == (5, 7, tile, None, math.inf)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tile": 0}, ValueError, "tile: expected at least 1 query and key at a time; got 0"),
        ({"tile": -3}, ValueError, "tile: expected at least 1 query and key at a time; got -3"),
        ({"window": 2}, ValueError, "window: expected None without causal=True; got 2"),
        ({"window": 0, "causal": True}, ValueError, "window: expected at least 1 key; got 0"),
        ({"softcap": -1.0}, ValueError, "softcap: expected a positive number; got -1.0"),
        ({"tile": 2.0}, TypeError, "tile: expected an integer; got float"),
        ({"scale": "1"}, TypeError, "scale: expected a real number, or None for 1/√d; got str"),
        ({"causal_variant": "left"}, ValueError, "causal_variant: expected 'upper_left' or 'lower_right'"),
        (
            {"head_order": "none"},
            ValueError,
            "head_order: expected 'consecutive' or 'interleaved'; got 'none'",
        ),
    ],
)
def test_bad_options_are_rejected_before_any_arithmetic(options, error, message):
    inputs = [counting.array(x) for x in drawn(2, 3)[:3]]
    with counting.tally() as tally, pytest.raises(error, match=message):
        flash_attention.forward(*inputs, **options)
    assert tally.total == 0


@pytest.mark.parametrize("tile", [1, 2, 3, None])
def test_scores_of_minus_infinity_in_any_tile_are_attentions(tile):
    """In the first tile, before there is a maximum; and in every tile of a row."""
    rng = np.random.default_rng(0)
    q, k, v, dy = (rng.standard_normal((2, 2, s, 3)) for s in (4, 6, 6, 4))
    q[..., 0] = np.abs(q[..., 0])
    k[0, 0, :4, 0] = k[1, 1, :, 0] = -np.inf
    y, saved = flash_attention.forward(q, k, v, tile=tile)
    expected, as_saved = attention.forward(q, k, v)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-15)
    assert not y[1, 1].any()
    with np.errstate(invalid="ignore"):  # 0 times an infinite key, in dq
        found, others = flash_attention.backward(dy, saved), attention.backward(dy, as_saved)
    for gradient, other in zip(found[1:3], others[1:3], strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-12, atol=1e-14)


def test_a_scale_of_numpys_keeps_the_dtype():
    q, k, v = (np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32) for _ in range(3))
    y, saved = flash_attention.forward(q, k, v, scale=1 / np.sqrt(3))
    assert type(saved.scale) is float and saved.lse.dtype == np.float32
    np.testing.assert_array_equal(y, flash_attention.forward(q, k, v)[0])
