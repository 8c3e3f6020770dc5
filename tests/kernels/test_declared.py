"""A kernel that is declared by its formulas: what their parameters mean, numbers as
options, and the errors of a declaration that does not fit."""

import inspect

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")
import triton.language as tl  # noqa: E402

from backpass.kernels import elementwise  # noqa: E402

from .support import DTYPES, assert_as_exact_as_pytorch, draw, gradients_by_autograd  # noqa: E402

SHAPES = "x[*] -> y[*]"


@triton.jit
def _forward(x, steepness, shift):
    return x / (1.0 + tl.exp(-steepness * (x - shift)))


@triton.jit
def _backward(dy, x, steepness, shift):
    sigmoid = 1.0 / (1.0 + tl.exp(-steepness * (x - shift)))
    return dy * sigmoid * (1.0 + x * steepness * (1.0 - sigmoid))


@triton.jit
def _forward_logistic(x, steepness):
    return 1.0 / (1.0 + tl.exp(-steepness * x))


@triton.jit
def _backward_logistic(dy, y, steepness):
    return dy * steepness * y * (1.0 - y)


@triton.jit
def _backward_of_both(dy, x, y):
    return dy * x * y


@triton.jit
def _forward_squared(x):
    return x * x


@triton.jit
def _backward_squared(dy, x):
    return 2.0 * x * dy


def formulas(*, shift: float = 0.5, steepness: float, squared: bool = False):
    """A shifted SiLU."""
    if not steepness > 0:
        raise ValueError(f"steepness: expected a positive number; got {steepness}")
    return (_forward_squared, _backward_squared) if squared else (_forward, _backward)


EXAMPLES = ({"steepness": 2.0}, {"steepness": 2.0, "squared": True})
kernel = elementwise.declare(SHAPES, formulas, EXAMPLES)
# Rounded to float32, 0.1 is off by 1e-9.
NUMBERS = {"steepness": 0.1, "shift": -0.3}


def by_pytorch(x, steepness, shift):
    return x * torch.sigmoid(steepness * (x - shift))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("numbers", [NUMBERS, {"steepness": 3, "shift": 1}], ids=["floats", "integers"])
def test_numbers_reach_both_formulas_unrounded(numbers, dtype, device, poisoned):
    x, dy = (draw(5, 211, dtype=dtype, device=device, seed=seed, scale=3) for seed in (0, 1))
    y, saved = kernel.forward(x, **numbers)
    dx = kernel.backward(dy, saved)

    right_y = by_pytorch(x.double(), **numbers)
    (right,) = gradients_by_autograd(lambda x: by_pytorch(x, **numbers), dy.double(), x.double())
    (theirs,) = gradients_by_autograd(lambda x: by_pytorch(x, **numbers), dy, x)
    # Each element is a row, to a floor of its largest term: no slope of this function is above 4.
    for name, got, their, exact, term in (
        ("y", y, by_pytorch(x, **numbers), right_y, x.double().abs()),
        ("dx", dx, theirs, right, 4 * dy.double().abs()),
    ):
        each = (value[..., None] for value in (got, their, exact, term))
        assert_as_exact_as_pytorch(name, *each, roundings=10)


def test_an_option_chooses_the_formulas(device):
    x = torch.tensor([3.0, -2.0], device=device)
    y, saved = kernel.forward(x, steepness=1.0, squared=True)
    assert y.tolist() == [9.0, 4.0]
    assert kernel.backward(torch.ones_like(x), saved).tolist() == [6.0, -4.0]


def test_what_backward_takes_is_what_forward_saves(device):
    pair = (_forward_logistic, _backward_logistic)
    logistic = elementwise.declare(SHAPES, lambda *, steepness: pair, [{"steepness": 0.1}])
    x, dy = (draw(37, dtype=torch.float64, device=device, seed=seed) for seed in (0, 1))
    y, saved = logistic.forward(x, steepness=0.1)
    assert saved._asdict() == {"y": y, "steepness": 0.1}
    (right,) = gradients_by_autograd(lambda x: torch.sigmoid(0.1 * x), dy, x)
    assert torch.allclose(logistic.backward(dy, saved), right, rtol=1e-13, atol=0)


def test_the_signature_is_that_of_the_inputs_and_options(device):
    assert str(inspect.signature(kernel.forward)).replace("'", "") == (
        "(x, *, shift: float = 0.5, steepness: float, squared: bool = False)"
    )
    assert kernel.Saved._fields == ("x", "shift", "steepness", "squared")
    assert kernel.forward.__module__ == kernel.Saved.__module__ == __name__
    assert "A shifted SiLU." in kernel.forward.__doc__
    x = torch.ones(2, device=device)
    with pytest.raises(TypeError, match="missing a required argument: 'steepness'"):
        kernel.forward(x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'slope'"):
        kernel.forward(x, steepness=1.0, slope=1.0)
    with pytest.raises(ValueError, match="steepness: expected a positive number; got -1"):
        kernel.forward(x, steepness=-1.0)
    with pytest.raises(TypeError, match="x: expected a torch tensor; got float"):
        kernel.forward(1.0, steepness=-1.0)


def test_every_example_is_compiled_both_ways():
    found = [
        (case, launch.constants["FORMULA"], launch.constants["NUMBERS"])
        for case, launch in kernel.launches(torch.float32)
    ]
    shapes = ("contiguous", "parts of short rows")
    numbers = (2.0, 0.5)
    assert found == [
        *((s, f, numbers) for s in shapes for f in (_forward, _backward)),
        *((s, f, ()) for s in shapes for f in (_forward_squared, _backward_squared)),
    ]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            (_forward, _backward_squared),
            r"_forward: expected the parameters x, then options \(there are none\); got x, steepness, shift",
        ),
        (
            (_forward_squared, _backward),
            r"_backward: after dy, expected arrays of 'x\[\*\] -> y\[\*\]', then options; "
            "got dy, x, steepness, shift",
        ),
        (
            (_backward_squared, _forward_squared),
            r"_backward_squared: expected the parameters x, then options \(there are none\); got dy, x",
        ),
        (
            (_forward_squared, _forward_squared),
            r"_forward_squared: expected the parameters dy, then options \(there are none\); got x",
        ),
        ((_forward_squared, _backward_of_both), "_backward_of_both: no kernel reads 3 arrays and writes 1"),
    ],
    ids=["forward without the option", "nor does backward", "interchanged", "no dy", "no such kernel"],
)
def test_formulas_that_do_not_fit_are_rejected(pair, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        elementwise.declare(SHAPES, pair)
