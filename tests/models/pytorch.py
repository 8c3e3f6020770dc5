"""PyTorch's stacks of layers as references: random weights, and gradients by torch autograd."""

import re

import numpy as np
import torch

TOLERANCE = 1e-10  # of the largest element


def parameters_of(module, config, seed=0):
    """Parameters of which none is 0 or 1, as a bias or a norm's weight would be."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 9)
        + bool(re.search(r"norm\d?\.weight", name))
        for name, shape in module.parameter_shapes(config).items()
    }


def with_parameters(stack, parameters):
    """The stack of PyTorch with these parameters. It is in training mode, so that it takes no shortcut."""
    stack.load_state_dict({name: torch.tensor(array) for name, array in parameters.items()})
    return stack.train()


def by_autograd(stack, inputs, dy, **options):
    """The output, the gradients of the inputs, and those of the parameters."""
    stack.zero_grad()
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = stack(*leaves, **options)
    y.backward(dy)
    gradients = {name: p.grad.clone() for name, p in stack.named_parameters()}
    return y.detach(), *(x.grad for x in leaves), gradients


def parts_of(gradients):
    """The gradients by name; those of the queries, keys, and values apart."""
    parts = {}
    for name, gradient in gradients.items():
        gradient = np.asarray(gradient)
        if "in_proj" in name:
            parts |= {
                f"{name} of {of}": third for of, third in zip("qkv", np.split(gradient, 3), strict=True)
            }
        else:
            parts[name] = gradient
    return parts


def layer_of(name):
    return re.sub(r"(layers\.\d+\.).*", r"\1", name)


def assert_equal(found, expected):
    """Within the tolerance of the largest element; for a gradient that is 0 by derivation, such as that of the bias
    on the keys, of the largest in its layer."""
    *found, found_gradients = found
    *expected, gradients = expected
    for ours, theirs in zip(found, expected, strict=True):
        atol = TOLERANCE * float(np.abs(np.asarray(theirs)).max())
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=atol)
    assert found_gradients.keys() == gradients.keys()
    right = parts_of(gradients)
    largest = {name: np.abs(d).max() for name, d in right.items()}
    for name, gradient in parts_of(found_gradients).items():
        of_layer = max(size for other, size in largest.items() if layer_of(other) == layer_of(name))
        scale = largest[name] if largest[name] > 1e-13 * of_layer else of_layer
        assert gradient.shape == right[name].shape
        assert np.abs(gradient - right[name]).max() <= TOLERANCE * scale, name


def assert_as_exact(draws):
    """The error of each array is at most twice that of autograd: relative, as a vector, and over several draws together.
    In one draw a few elements near ReLU's kink decide which of the two is closer.

    A draw is our results, autograd's, and the exact ones.
    """
    errors = [
        [
            [
                (torch.linalg.norm(d.double() - exact) / torch.linalg.norm(exact)).item()
                for d in (ours, theirs)
            ]
            for ours, theirs, exact in zip(*map(arrays_of, draw), strict=True)
        ]
        for draw in draws
    ]
    ours, theirs = np.linalg.norm(errors, axis=0).T
    assert (ours <= 2 * theirs).all(), (ours / theirs).max()


def arrays_of(results):
    *arrays, gradients = results
    return [*arrays, *(gradients[name] for name in sorted(gradients))]


def slopes(forward, backward, point, parameters, dy, seed=2):
    """For the name of each array of a point: the derivative of ⟨dy, y⟩ along a random direction by a complex step, the
    same derivative by the gradients, and the size that it could have.

    The point is the parameters and the inputs. `forward` takes the parameters and the inputs; `backward` returns the
    inputs' gradients and then the parameters'.
    """
    rng = np.random.default_rng(seed)
    inputs = [name for name in point if name not in parameters]

    def run(at, **options):
        return forward({name: at[name] for name in parameters}, *(at[name] for name in inputs), **options)

    *of_inputs, gradients = backward(run(point)[1])
    gradients = dict(gradients) | dict(zip(inputs, of_inputs, strict=True))
    for name, gradient in gradients.items():
        along = rng.standard_normal(gradient.shape)
        moved = {other: array.astype(complex) for other, array in point.items()}
        moved[name] = moved[name] + 1e-30j * along
        step = np.sum(dy * run(moved, wanted=())[0].imag) / 1e-30
        yield name, step, np.sum(gradient * along), np.linalg.norm(gradient) * np.linalg.norm(along)
