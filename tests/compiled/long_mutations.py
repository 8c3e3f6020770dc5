"""Every kernel, with its PTX changed in one place at a time: the row "compiled kernel" notices the change, or the
change is shown to have no effect. ``make test-kernels`` runs this module; it takes hours.

A change that leaves every byte of every launch unchanged is one of the following. It has no effect at these sizes,
whatever the values are.

- A barrier that separates no conflicting accesses: removing it causes no race.
- The mask of a load whose address is in the tensor, and whose value is not used: if the register is not set to its
  default first, it is undefined where the mask is false, and all results are still defined.
- The mask of a store that writes, beyond the mask, the value that another thread writes there.
- A cast of numbers that need no rounding: in the source, they already have this dtype.

Each kernel runs at two sizes, with many and with few elements in its last block, on tensors whose leading axes do
not merge, so that every stride and every mask of the compiled kernel has an effect.
"""

import linecache
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from backpass import kernels, ops, ptx
from backpass.kernels import passes
from backpass.ptx import block
from backpass.verify import check
from backpass.verify.drawing import draw, options_for

from .changes import changes, with_huge_stride, without_default
from .replay import recording, replayed

# For each kernel, shapes of leading axes, lengths, and options. ROWS is the default, for kernels that work on rows.
MANY, FEW = (2, 3, 5), (3, 3, 9)
ROWS = [({"*": MANY}, {"n": 131}), ({"*": FEW}, {"n": 129})]
ELEMENTS = [({"*": (*MANY, 131)}, {}), ({"*": (*FEW, 129)}, {})]
SIZES = {
    "cross_entropy": [
        ({"*": leading}, {"V": length}, {"reduction": reduction})
        for leading, length in ((MANY, 131), (FEW, 129))
        for reduction in ("mean", "none")
    ],
    "embedding": [({"*": (3, 10, 15)}, {"V": 3, "h": 75}), ({"*": (3, 10, 15)}, {"V": 3, "h": 65})],
    "feed_forward": [({"*": MANY}, {"h": 11, "f": 131}), ({"*": FEW}, {"h": 11, "f": 129})],
    "flash_attention": [
        ({"*": (2,)}, {"g": 3, "n_kv": 2, "s_q": 37, "s_k": 39, "d": 19, "d_v": 21}),
        (
            {"*": (2,)},
            {"g": 2, "n_kv": 2, "s_q": 33, "s_k": 33, "d": 17, "d_v": 17},
            {"window": 11, "softcap": 3.0},
        ),
    ],
    "linear_cross_entropy": [
        ({"*": (2, 3, 7)}, {"h": 11, "V": 131}),
        ({"*": (3, 4, 7)}, {"h": 11, "V": 129}),
    ],
    "rope": [({"*": (2, 3)}, {"s": 7, "k": 39}), ({"*": (2, 3)}, {"s": 5, "k": 33})],
} | dict.fromkeys(("gelu", "relu", "silu", "softcap", "swiglu"), ELEMENTS)
# Calls of operations in which each row of the first input's gradient depends only on the same row of the input. NaN in
# some rows must not reach other rows.
ALONE = {
    stem: SIZES.get(stem, ROWS)[-1]
    for stem in ("cross_entropy", "layer_norm", "log_softmax", "rms_norm", "softmax")
} | {
    "flash_attention": (
        {"*": (2,)},
        {"g": 2, "n_kv": 2, "s_q": 17, "s_k": 17, "d": 17, "d_v": 17},
        {"window": 11, "softcap": 3.0},
    )
}
# Rows longer than a program holds are read in tiles, by separate kernels. The kernels of the embedding and of RoPE read
# rows of any length in pieces.
TILES = {"ROW_BYTES": 4, "TILE_BYTES": 128}
PATHS = {"embedding": [{"ROW_BYTES": 128}], "rope": [{"PAIRS": 32}]}
PATHS |= {stem: [{}, TILES] for stem in ("cross_entropy", "log_softmax", "softmax")}
# So few programs that each one adds up the sums of several blocks of rows.
PATHS |= {stem: [{"PROGRAMS": 2}, TILES] for stem in ("layer_norm", "rms_norm")}
# A chunk has 25 rows of scores, and the last one 17 or 9: 7 of the 8 rows of each last block are beyond the buffer, or
# beyond the targets. No chunk has a single row, for which Triton compiles a kernel without the strides of rows.
OPTIONS = {"linear_cross_entropy": {"chunk": 25}, "flash_attention": {"causal": True, "tile": 16}}
# The number of elements between the rows of a tensor; 0 for operations that are not listed.
GAPS = {"flash_attention": 3}

# Changes whose effect on a result is smaller than that of rounding, by operation, kind of change, and a part of the
# source line, with the reason.
WITHIN_ROUNDING = {
    ("feed_forward", "casts", ""): "its products round as well; the activations' own kernels notice it",
    ("flash_attention", "casts", "exps.to(FACTOR)"): "cut, a weight is wrong by less than its last place",
    ("flash_attention", "casts", "dp.to(FACTOR)"): "cut, a gradient is wrong by less than its last place",
    ("flash_attention", "casts", "x,"): "dq, dk, dv sum products with rounded numbers; y's cast is noticed",
}
# Strides that are 0 in every launch of their PTX, by operation and a part of the source line, with the reason. A launch
# with a huge stride in place of each one shows that it is 0.
ZERO = {
    ("feed_forward", ""): "the arrays between its products are contiguous, so their axes merge",
    ("cross_entropy", "row * each_stride"): "dy of a reduced loss; unreduced, other PTX has the stride 1",
    ("linear_cross_entropy", "row * each_stride"): "the gradient of a sum is one number, 1",
}


def is_listed(table, change, *key):
    """Whether a table lists a change, under the key and a part of the change's source line."""
    name, _, number = change.line.partition(":")
    line = linecache.getline(str(Path(kernels.__file__).parent / name), int(number))
    return any(key == tuple(others) and part in line for *others, part in table)


class Called(NamedTuple):
    """A call of a kernel."""

    op: Any
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    dy: np.ndarray


def called(stem, leading, lengths, chosen=MappingProxyType({})):
    """Draw a call in bfloat16, at these lengths."""
    op = ops.load(stem)
    options = options_for(op) | OPTIONS.get(stem, {}) | chosen
    rng = np.random.default_rng(0)
    drawn = draw(op, rng, leading=leading, lengths=lengths)
    if stem == "rope":  # separate tables for each sequence and head
        x, *tables = drawn
        drawn = (x, *(rng.normal(size=(*x.shape[:-2], *table.shape[-2:])) for table in tables))
    if stem == "flash_attention":  # a separate bias and mask for each sequence, head, and query
        q, k, v, *_, sink = drawn
        shape = (*q.shape[:-1], k.shape[-2])
        drawn = q, k, v, rng.normal(size=shape), rng.random(shape) < 0.8, sink
    y, _ = op.forward(*drawn, **options)
    inputs = (x if x is None else torch.from_numpy(np.array(x)) for x in drawn)
    inputs = tuple(x.bfloat16() if x is not None and x.is_floating_point() else x for x in inputs)
    return Called(op, inputs, options, np.random.default_rng(1).normal(size=y.shape))


def apart(x, gap=0):
    """The same tensor, stored so that its leading axes do not merge, with ``gap`` elements between its rows. The memory
    between its elements holds NaN, or 1 if the dtype has no NaN, and ends with the last element."""
    if not isinstance(x, torch.Tensor) or x.dim() < 3:
        return x
    strides = [x.shape[-1] + gap, 1]
    for length in x.shape[-2:0:-1]:
        strides.insert(0, (strides[0] * length // 16 + 2) * 16)
    used = 1 + sum(stride * (length - 1) for stride, length in zip(strides, x.shape, strict=True))
    between = float("nan") if x.is_floating_point() else 1
    found = torch.full((used,), between, dtype=x.dtype).as_strided(x.shape, strides)
    return found.copy_(x)


def passed(stem, calls):
    """Do what ``passes.passes`` does, with all tensors ``apart``."""
    found = []
    for call in calls:
        dtype = next(x.dtype for x in call.inputs if x is not None and x.is_floating_point())
        gap = GAPS.get(stem, 0)
        dy = apart(torch.as_tensor(call.dy).to(dtype), gap)
        inputs = tuple(apart(x, gap) for x in call.inputs)
        found.append(passes._passed(stem, call._replace(inputs=inputs, dy=dy)))
    return found


def judged(call):
    """The report with the row "compiled kernel"."""
    return check(call.op, *call.inputs, methods=["compiled"], raises=False, **call.options)


def given(stem, call):
    """The output and the gradients, or the fault."""
    (found,) = passed(stem, [passes.Call(call.inputs, call.options, call.dy, approximate=0)])
    if isinstance(found, ptx.Fault):
        return found
    gradients = found.gradients if isinstance(found.gradients, tuple) else (found.gradients,)
    return [x.double() for x in (found.y, *gradients) if x is not None]


def grossly_wrong(got, right, tolerance):
    """Whether an error is so far beyond the tolerance of every row that no row needs to be computed, or NaN is where
    it should not be, or is missing where it should be."""
    if isinstance(got, ptx.Fault):
        return True
    for x, y in zip(got, right, strict=True):
        error = torch.where(x.isnan() & y.isnan(), 0.0, x - y).abs().max()
        if not error <= 4 * tolerance * y.nan_to_num(0.0).abs().max():
            return True
    return False


def spoilt(call):
    """The same call with NaN in every third row of the first input and of dy, which must not reach other rows."""
    first = next(i for i, x in enumerate(call.inputs) if x is not None and x.is_floating_point())
    rows = call.inputs[first].clone().reshape(-1, call.inputs[first].shape[-1])
    rows[1::3] = float("nan")
    inputs = list(call.inputs)
    inputs[first] = rows.reshape(call.inputs[first].shape)
    dy = call.dy.copy()
    if dy.ndim:
        dy.reshape(-1, dy.shape[-1])[1::3] = np.nan
    return call._replace(inputs=tuple(inputs), dy=dy)


def replays(program, launches):
    """Return "fault" or "unsettled" if a launch has this result, else "differ" if one has it, else "same"."""
    results = set()
    for launch in launches:
        results.add(result := replayed(program, launch))
        if result in ("fault", "unsettled"):
            return result
    return "differ" if "differ" in results else "same"


@pytest.mark.parametrize(
    ("stem", "path"),
    [
        pytest.param(stem, path, id=f"{stem}-{'tiles' if 'TILE_BYTES' in path else 'rows'}")
        for stem in kernels.STEMS
        for path in PATHS.get(stem, [{}])
    ],
)
def test_a_change_is_noticed_or_does_nothing(stem, path, monkeypatch):
    monkeypatch.setattr(passes, "passes", passed)
    monkeypatch.setattr(
        block, "LIMIT", 500_000
    )  # a changed loop may not end; no unchanged block takes a tenth of this
    kernels.load(stem)
    modules = [module for name, module in sys.modules.items() if name.startswith("backpass.kernels.")]
    for name, size in path.items():
        for module in modules:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)
    calls = [called(stem, *sizes) for sizes in SIZES.get(stem, ROWS)]
    reports = [judged(call) for call in calls]
    assert all(report.passed for report in reports), reports
    tolerance = max(row.tolerance for report in reports for row in report.rows)
    ruined = [spoilt(called(stem, *ALONE[stem]))] if stem in ALONE else []
    right, launches, users = [], defaultdict(list), defaultdict(set)
    for call in (*calls, *ruined):
        with recording() as recorder:
            right.append(given(stem, call))
        for launch in recorder.launches:
            launches[launch.text].append(launch)
            users[launch.text].add(len(right) - 1)

    counts, unnoticed = Counter(), []
    for text, own in launches.items():
        for change in changes(text):
            program = ptx.parse(change.text)
            result = replays(program, own)
            if result == "differ":
                with recording() as recorder:
                    recorder.changed[text] = program
                    using = [(i, (*calls, *ruined)[i]) for i in sorted(users[text])]
                    gross = (grossly_wrong(given(stem, call), right[i], tolerance) for i, call in using)
                    if any(gross) or not all(judged(call).passed for i, call in using if i < len(calls)):
                        result = "noticed"
                if result == "differ" and is_listed(WITHIN_ROUNDING, change, stem, change.kind):
                    result = "within rounding"
            elif result == "same" and change.kind == "mask of a load":
                used = replays(ptx.parse(without_default(change, text)), own)
                result = "nothing" if used == "same" else "luck"
            elif result == "same" and change.kind == "stride" and is_listed(ZERO, change, stem):
                result = replays(ptx.parse(with_huge_stride(change, text)), own)
                result = "nothing" if result == "same" else "not 0"
            elif result == "same" and change.kind != "stride":
                result = "nothing"
            counts[change.kind, result] += 1
            if result in ("differ", "luck", "same", "not 0"):
                unnoticed.append((*change[:3], result))
    print(stem, dict(counts))
    assert unnoticed == []
    assert any(what in ("fault", "noticed", "unsettled") for _, what in counts)
