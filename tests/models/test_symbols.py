"""The gradients of a block of attention equal the symbolic derivatives of its forward, exactly.

The method chooses lengths of its own. A joint projection needs 3h columns, and a head's width divides h, which a
declaration of shapes cannot state; so the blocks are written here with the three projections apart and one head. A whole
layer has two norms one after another, whose symbols take minutes: test_layers.py has complex steps for it.
"""

import numpy as np
import pytest

from backpass.contract.arrays import namespace, transpose
from backpass.contract.shapes import parse
from backpass.models.layers import gpt2_attention, transformer_attention
from backpass.verify import check

PROJECTIONS = "w_q[h, h], w_k[h, h], w_v[h, h], b_q[h], b_k[h], b_v[h]"


class Apart:
    """A block whose joint projection is three arguments."""

    def __init__(self, layer, joint, out_first, **options):
        assert joint in layer.SHAPES
        self.SHAPES = layer.SHAPES.replace(joint, PROJECTIONS).replace("[q, h]", "[h, h]")
        self.layer, self.options = layer, options
        self.turned = transpose if out_first else lambda w: w
        self.names = [spec.name for spec in parse(layer.SHAPES).inputs]
        self.own_names = [spec.name for spec in parse(self.SHAPES).inputs]

    def forward(self, *inputs):
        given = dict(zip(self.own_names, inputs, strict=True))
        xp = namespace(inputs[0])
        w, b = (xp.concat([given.pop(f"{kind}_{of}") for of in "qkv"], axis=-1) for kind in "wb")
        return self.layer.forward(
            **given, w_qkv=self.turned(w), b_qkv=b, heads=1, flash=False, **self.options
        )

    def backward(self, dy, saved):
        found = dict(zip(self.names, self.layer.backward(dy, saved), strict=True))
        w, b = self.turned(found["w_qkv"]), found["b_qkv"]
        h = b.shape[0] // 3
        for i, of in enumerate("qkv"):
            part = slice(i * h, (i + 1) * h)
            found[f"w_{of}"], found[f"b_{of}"] = w[:, part], b[part]
        return tuple(found[name] for name in self.own_names)


GPT2 = "w_qkv[h, p], b_qkv[p]"
PYTORCH = "w_qkv[p, h], b_qkv[p]"
CASES = {
    "gpt2_attention": Apart(gpt2_attention, GPT2, False),
    "gpt2_attention with dropout": Apart(gpt2_attention, GPT2, False, dropout_p=0.5, seed=3),
    "transformer_attention": Apart(transformer_attention, PYTORCH, True, causal=True),
}


@pytest.mark.parametrize("name", CASES)
def test_every_gradient_is_the_derivative(name):
    layer, lengths = CASES[name], {"s": 2, "t": 3, "h": 2, "f": 2, "*": 1}
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal([lengths[axis] for axis in spec.axes]) for spec in parse(layer.SHAPES).inputs
    ]
    report = check(layer, *inputs, methods=["symbolic"], raises=False)
    assert not report.failed, report
    verdicts = {row.quantity: row.verdict for row in report.rows}
    assert verdicts.pop("db_k") == "vacuous"  # the gradient of the keys' bias is 0, for all inputs
    assert {*verdicts.values()} == {"passed"} and len(verdicts) == len(inputs) - 1, report
