"""What the tests of ``backpass.functional`` share: inputs as tensors, at the usual lengths and at others."""

import numpy as np
import torch

from backpass.operation import Operation
from backpass.verify import drawing


def tensors(stem, inputs):
    """Tensors of drawn arrays, those that are differentiable requiring a gradient."""
    found = [None if value is None else torch.from_numpy(np.array(value)) for value in inputs]
    for value in differentiable(stem, found):
        value.requires_grad_()
    return found


def drawn(stem, seed=0, **lengths):
    inputs = drawing.draw(stem, np.random.default_rng(seed), **lengths)
    return tensors(stem, inputs), drawing.options_for(stem)


def differentiable(stem, inputs):
    """The inputs that have a gradient."""
    operation = Operation(stem)
    return [
        value
        for spec, value in zip(operation.inputs, inputs, strict=True)
        if value is not None and spec in operation.differentiable
    ]


def drawn_longer(stem, by, heads=False):
    """Inputs with lengths that all differ from those at any other ``by``; the numbers of heads only if asked for."""
    operation = Operation(stem)
    shapes, inputs = operation.shapes, drawn(stem)[0]
    usual = shapes.bind({spec.name: x for spec, x in zip(operation.inputs, inputs, strict=True)})
    steps = {
        letter: (int(heads) if letter in shapes.factors else 2) * operation.multiples.get(letter, 1)
        for letter in usual
    }
    lengths = {letter: usual[letter] + by * steps[letter] for letter in shapes.letters if letter in usual}
    groups = {axis for spec in operation.inputs for axis in spec.axes if axis.startswith("*")}
    leading = {
        group: tuple(length + by if length > 1 else 1 for length in drawing.LEADING[group])
        for group in groups
    }
    return drawn(stem, seed=by, lengths=lengths, leading=leading)
