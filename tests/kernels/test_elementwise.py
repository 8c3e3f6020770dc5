"""The elementwise kernels against their operations in float64 and beside PyTorch's operators, element by element:
each element is a row to the bound on errors, whose floor is of the largest term in it."""

import math
from dataclasses import dataclass
from inspect import signature

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import kernels, ops  # noqa: E402
from backpass.contract.shapes import parse  # noqa: E402
from backpass.kernels import elementwise, on_cpu  # noqa: E402
from backpass.kernels.elementwise import strides_of  # noqa: E402
from backpass.verify import references  # noqa: E402
from backpass.verify.drawing import options_for  # noqa: E402

from .support import DTYPES, INF, STRIDED, assert_as_exact_as_pytorch, draw, draw_view  # noqa: E402
from .support import gradients_by_autograd as by_autograd  # noqa: E402

# Of the longest path to a gradient: an argument, its exponential, the sigmoid's sum and division, and up to six
# products and sums after it.
ROUNDINGS = 10


@dataclass(frozen=True)
class Kernel:
    stem: str
    options: dict

    def __str__(self) -> str:
        return " ".join([self.stem, *map(str, self.options.values())])

    @property
    def inputs(self) -> int:
        return len(parse(ops.load(self.stem).SHAPES).inputs)

    def operator(self, *inputs):
        """PyTorch's."""
        return references.load(self.stem)(*inputs, **self.options)

    def draw(self, *shape, dtype, device):
        """As many inputs as it takes, of a few units, and dy."""
        drawn = [draw(*shape, dtype=dtype, device=device, seed=seed, scale=3) for seed in range(self.inputs)]
        return *drawn, draw(*shape, dtype=dtype, device=device, seed=9)

    def run(self, *inputs_and_dy):
        *inputs, dy = inputs_and_dy
        kernel = kernels.load(self.stem)
        y, saved = kernel.forward(*inputs, **self.options)
        gradients = kernel.backward(dy, saved)
        return y, gradients if isinstance(gradients, tuple) else (gradients,)


def found():
    """Each kernel all of whose arrays have one shape, with each of its operation's examples whose options it takes."""
    for stem in kernels.STEMS:
        shapes = parse(ops.load(stem).SHAPES)
        if any(spec.axes != ("*",) for spec in (*shapes.inputs, *shapes.outputs)):
            continue
        takes = signature(kernels.load(stem).forward).parameters.keys()
        if "seed" in takes:  # no formula of an element; test_dropout has it
            continue
        for example in getattr(ops.load(stem), "EXAMPLES", ({},)):
            if example.keys() <= takes:
                yield Kernel(stem, options_for(stem) | example)


KERNELS = [*found()]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)
# Large inputs pass, and very negative ones are stopped.
ACTIVATIONS = [kernel for kernel in KERNELS if kernel.stem in ("gelu", "relu", "silu", "swiglu")]
every_activation = pytest.mark.parametrize("kernel", ACTIVATIONS, ids=str)


def test_every_form_is_found():
    assert {*map(str, KERNELS)} >= {
        "gelu",
        "gelu tanh",
        "relu",
        "silu",
        "softcap 1.5",
        "softcap 0.25",
        "swiglu",
    }


def check(kernel, *inputs_and_dy):
    """Forward and backward of the kernel on these, of any strides, and none changed."""
    before = [value.clone() for value in inputs_and_dy]
    y, gradients = kernel.run(*inputs_and_dy)
    assert all(torch.equal(value, was) for value, was in zip(inputs_and_dy, before, strict=True))

    *inputs, dy = inputs_and_dy
    op = ops.load(kernel.stem)
    exact_y, saved = op.forward(*(value.double() for value in inputs), **kernel.options)
    exact = op.backward(dy.double(), saved)
    exact = exact if isinstance(exact, tuple) else (exact,)
    terms = math.prod(value.double().abs() for value in inputs)
    judge("y", y, kernel.operator(*inputs), exact_y, terms)
    theirs = by_autograd(kernel.operator, dy, *inputs)
    # No slope is above 1.2; where its terms cancel they are no larger. The other input multiplies it.
    others = [1.0] if len(inputs) == 1 else [value.double().abs() for value in reversed(inputs)]
    for at, (got, their, right) in enumerate(zip(gradients, theirs, exact, strict=True)):
        judge(f"gradient {at}", got, their, right, 1.2 * dy.double().abs() * others[at])
    assert all(right.abs().max() > 0 for right in exact), "a gradient of zeros would prove nothing"
    return y, gradients


def judge(name, got, theirs, exact, largest_term):
    each = (value[..., None] for value in (got, theirs, exact, largest_term))
    assert_as_exact_as_pytorch(name, *each, roundings=ROUNDINGS)


@every_kernel
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2051,), (2, 1, 3, 1, 5)], ids=str)
def test_odd_sizes(shape, dtype, kernel, device, poisoned):
    """Less than one program, more, and five axes."""
    check(kernel, *kernel.draw(*shape, dtype=dtype, device=device))


@every_kernel
@pytest.mark.parametrize("view", STRIDED)
def test_any_strides(view, kernel, device, poisoned):
    """Each operand in turn, with the others as they come, then all of them."""
    shape = draw_view(view, device=device).shape
    plain = kernel.draw(*shape, dtype=torch.float32, device=device)
    strided = [draw_view(view, device=device, seed=seed) for seed in range(len(plain))]
    for at in range(len(plain)):
        check(kernel, *plain[:at], strided[at], *plain[at + 1 :])
    check(kernel, *strided)


# exp overflows to infinity as intended; NumPy, on which Triton interprets, warns of it.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@every_kernel
def test_rows_longer_than_a_program_that_do_not_merge(kernel, device, poisoned):
    """Halves of one projection, as a feed-forward block makes of its gate and its values."""
    n = elementwise.ELEMENTS + 37
    wide = kernel.draw(3, 2 * n, dtype=torch.float32, device=device)
    check(kernel, *(value[:, n * (at % 2) :][:, :n] for at, value in enumerate(wide)))


@every_activation
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e4, INF])
def test_far_from_zero_each_is_its_limit(size, dtype, kernel, device):
    """The first input far out on either side: y is the input, or 0; the slope 1, or 0."""
    far = torch.tensor([size, -size], device=device).to(dtype)
    twos = torch.full_like(far, 2.0)
    y, gradients = kernel.run(far, *[twos] * (kernel.inputs - 1), -twos)
    other = 2 ** (kernel.inputs - 1)
    assert y.tolist() == [far[0] * other, 0]
    assert gradients[0].tolist() == [-2 * other, 0]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@every_activation
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_square_or_cube_overflows_into_nan(dtype, kernel, device):
    far = torch.tensor([1e15, -1e15, 1e25, -1e25, 3e38, -3e38], device=device).to(dtype)
    one = torch.ones_like(far)
    y, gradients = kernel.run(far, *[one] * kernel.inputs)
    assert torch.equal(y, torch.relu(far))
    assert torch.equal(gradients[0], (far > 0).to(dtype))


@every_kernel
def test_nan_spoils_its_own_element_only(kernel, device):
    *inputs, dy = kernel.draw(3, 50, dtype=torch.float32, device=device)
    inputs[0][1, 7] = torch.nan
    y, gradients = kernel.run(*inputs, dy)
    # ReLU's slope is 0 or 1 everywhere: there the gradient is dy.
    for result in (y,) if kernel.stem == "relu" else (y, *gradients):
        assert torch.nonzero(torch.isnan(result)).tolist() == [[1, 7]]


@every_kernel
@pytest.mark.parametrize("shape", [(0,), (3, 0, 5), (), (1,), (1, 1, 1, 1, 1)], ids=str)
def test_no_element_and_one(shape, kernel, device, poisoned):
    drawn = kernel.draw(*shape, dtype=torch.float32, device=device)
    if 0 not in shape:
        check(kernel, *drawn)
        return
    y, gradients = kernel.run(*drawn)
    assert all(result.shape == shape for result in (y, *gradients))


def described(**operands):
    found = strides_of(**operands)
    return {name: value for name, value in found.items() if not name.endswith("_ptr") and value not in (0, 1)}


def test_operands_are_walked_without_a_copy():
    plain = torch.empty(2, 5, 3, 35, device="meta")
    assert described(a=plain, b=plain) == {"n": 1050}

    gate, value = torch.empty(2, 5, 70, device="meta").chunk(2, dim=-1)
    found = strides_of(a=gate, b=value)
    assert found["a_ptr"] is gate
    assert described(a=gate, b=value, c=plain[0, :2].reshape(2, 3, 35)[:, :1].expand(2, 5, 35)) == {
        "m": 10, "n": 35, "length_1": 5, "a_stride_0": 350, "a_stride_1": 70, "b_stride_0": 350, "b_stride_1": 70,
        "c_stride_0": 105,
    }  # fmt: skip
    assert described(a=gate, b=value) == {"m": 10, "n": 35, "a_stride_0": 70, "b_stride_0": 70}

    heads = plain.transpose(1, 2)
    assert strides_of(a=heads)["a_ptr"] is heads
    assert described(a=heads) == {
        "m": 30, "n": 35, "length_1": 3, "length_2": 5, "a_stride_0": 525, "a_stride_1": 35, "a_stride_2": 105,
    }  # fmt: skip


def test_five_axes_that_do_not_merge_are_copied():
    tangled = torch.empty(2, 3, 4, 5, 6, device="meta").permute(4, 3, 2, 1, 0)
    found = strides_of(a=tangled)
    assert found["a_ptr"] is not tangled
    assert (found["m"], found["n"]) == (1, 720)


def test_another_form_of_gelu_is_rejected(device):
    with pytest.raises(ValueError, match="approximate: expected 'none' or 'tanh'; got 'erf'"):
        kernels.load("gelu").forward(torch.ones(3, device=device), approximate="erf")


@every_kernel
@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(kernel, device):
    size = 2**31 + 1001
    drawn = [torch.zeros(size, dtype=torch.float16, device=device) for _ in range(kernel.inputs + 1)]
    ends = kernel.draw(1001, dtype=torch.float16, device=device)
    for zeros, end in zip(drawn, ends, strict=True):
        zeros[-1001:] = end
    y, gradients = kernel.run(*drawn)
    expected_y, expected = kernel.run(*ends)
    assert torch.equal(y[-1001:], expected_y)
    for gradient, each in zip(gradients, expected, strict=True):
        assert torch.equal(gradient[-1001:], each)
