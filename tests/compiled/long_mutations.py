"""Every kernel with one instruction of its PTX changed: the row "compiled kernel" notices, or no bit of any result
changes. Minutes; ``make test-kernels`` runs it."""

from collections import Counter

import numpy as np
import pytest
import torch

from backpass import kernels, ops, ptx
from backpass.kernels import compiled
from backpass.kernels.passes import Call, Passed, passes
from backpass.shapes import parse
from backpass.verify import check
from backpass.verify.drawing import draw, draw_like, options_for

from .changes import changes

# Changes that alter bits of a result by less than rounding may, by operation and kind, with the reason.
WITHIN_ROUNDING = {
    (
        "feed_forward",
        "casts",
    ): "sums of products follow, which are rounded as well; its activations' own rows notice it",
}


def bfloat16(x):
    if not hasattr(x, "dtype"):
        return x
    tensor = torch.as_tensor(np.asarray(x))
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


def drawn(op):
    """Inputs with rows enough that most threads of a block have an element of their own."""
    rng = np.random.default_rng(0)
    inputs, shapes = draw(op, rng), parse(op.SHAPES)
    first = next(spec for spec in shapes.inputs if not spec.integer)
    if not any(axis.startswith("*") for axis in first.axes):
        return inputs
    return draw_like(
        shapes, rng, inputs, leading={"*": (37,), "*a": (6,), "*b": (7,)}, lengths={first.axes[-1]: 131}
    )


class Reader:
    """Reads PTX and keeps each program; a changed text is read as what it was changed to."""

    def __init__(self):
        self.programs, self.changed = {}, {}

    def __call__(self, text):
        if text in self.changed:
            return self.changed[text]
        return self.programs.setdefault(text, None) or self._read(text)

    def _read(self, text):
        self.programs[text] = ptx.parse(text)
        return self.programs[text]


def bits(found):
    """All bits that a kernel returned."""
    gradients = found.gradients if isinstance(found.gradients, tuple) else (found.gradients,)
    given = [x for x in (found.y, *gradients) if x is not None]
    return b"".join(x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for x in given)


@pytest.mark.parametrize("stem", kernels.STEMS)
def test_a_change_is_noticed_or_changes_no_bit(stem, monkeypatch):
    op, options = ops.load(stem), options_for(ops.load(stem))
    inputs = tuple(map(bfloat16, drawn(op)))
    reader = Reader()
    monkeypatch.setattr(compiled, "_parsed", reader)
    monkeypatch.setattr("backpass.ptx.block.LIMIT", 100_000)  # a changed loop may not end
    settings = {"methods": ["compiled"], "raises": False, **options}
    assert check(op, *inputs, **settings).passed
    y, _ = op.forward(
        *(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs),
        **options,
    )
    dy = np.random.default_rng(1).normal(size=tuple(y.shape))
    call = [Call(inputs, options, dy, approximate=0)]
    reader.programs.clear()
    (right,) = passes(stem, call)
    counts, unnoticed = Counter(), []
    for text in list(reader.programs):
        for change in changes(text):
            reader.changed = {text: ptx.parse(change.text)}
            (found,) = passes(stem, call)
            wrong = not isinstance(found, Passed) or found.unsettled or found.unwritten
            if not wrong and bits(found) == bits(right):
                counts[change.kind, "changes nothing"] += 1
            elif wrong or not check(op, *inputs, **settings).passed:
                counts[change.kind, "noticed"] += 1
            elif (stem, change.kind) in WITHIN_ROUNDING:
                counts[change.kind, "within rounding"] += 1
            else:
                unnoticed.append(change[:3])
    print(stem, dict(counts))
    assert unnoticed == []
    assert any(what == "noticed" for _, what in counts)
