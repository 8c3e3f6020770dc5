"""What every kernel owes, whatever it computes: the operation's declaration and options, its contract on tensors of
any strides, errors within those of PyTorch's operator at every dtype, and rejections in plain words."""

import inspect
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from backpass import functional, kernels, ops  # noqa: E402
from backpass.contract.shapes import parse  # noqa: E402
from backpass.operation import Operation  # noqa: E402
from backpass.verify import cases, check, draw  # noqa: E402
from backpass.verify.convert import to_torch  # noqa: E402
from backpass.verify.drawing import options_for  # noqa: E402

from .support import DTYPES, sources, verifying  # noqa: E402

every_kernel = pytest.mark.parametrize("stem", kernels.STEMS)


def drawn(stem, device, dtype=torch.float32):
    """Inputs for the stem, as tensors, and the options to go with them."""
    inputs = draw(stem, np.random.default_rng(0))
    return [to_torch(value, device, dtype) for value in inputs], options_for(stem)


@every_kernel
def test_the_declaration_is_the_operations(stem, device):
    kernel, op = kernels.load(stem), ops.load(stem)
    assert kernel.SHAPES == op.SHAPES
    for fact in ("CONSTANTS", "WIDE"):
        assert getattr(kernel, fact, ()) == getattr(op, fact, ())
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(module.forward).parameters.values()]
        for module in (kernel, op)
    )
    # A kernel computes all its gradients, so it does not take which are wanted.
    assert ours == [parameter for parameter in theirs if parameter[0] != "wanted"]


def assert_verified(stem, dtype, device):
    """At the inputs of `backpass verify`, whose kernel row has rows longer than one program holds, too."""
    for inputs, options in cases(stem, np.random.default_rng(0)):
        given = [to_torch(value, device, getattr(torch, dtype)) for value in inputs]
        report = check(stem, *given, methods=["kernel"], raises=False, options=options)
        assert not report.failed, report
        assert report.of("Triton kernel")


@every_kernel
def test_backpass_verify_passes(stem, device):
    """In bfloat16; ``tests/verify/test_all_operations.py`` has the usual inputs of every kernel, in float32."""
    assert_verified(stem, "bfloat16", device)


@pytest.mark.rotates(of=sources, checks=verifying)
@every_kernel
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_backpass_verify_passes_in_other_dtypes(stem, dtype, device):
    assert_verified(stem, dtype, device)


@pytest.mark.rotates(of=sources, checks=verifying)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stem", [stem for stem in kernels.STEMS if Operation(stem).wide])
def test_backpass_verify_passes_beside_float32(stem, dtype, device):
    for inputs, options in cases(stem, np.random.default_rng(1)):
        given = [
            to_torch(value, device, torch.float32 if spec.name in Operation(stem).wide else dtype)
            for spec, value in zip(Operation(stem).inputs, inputs, strict=True)
        ]
        report = check(stem, *given, methods=["kernel"], raises=False, options=options)
        assert not report.failed, report
        assert report.of("Triton kernel")


@every_kernel
def test_the_contract_holds(stem, device):
    assert_contract(stem, torch.float32, device)


@pytest.mark.rotates(of=sources, checks=verifying)
@every_kernel
def test_the_contract_holds_in_float64(stem, device):
    assert_contract(stem, torch.float64, device)


def assert_contract(stem, dtype, device):
    """Nothing modified, a gradient for each input, the same from any strides, again, and for no rows at all."""
    inputs, options = drawn(stem, device, dtype)
    kernel = kernels.load(stem)
    subject = SimpleNamespace(
        __name__=stem,
        SHAPES=kernel.SHAPES,
        CONSTANTS=getattr(kernel, "CONSTANTS", ()),
        forward=kernel.forward,
        backward=kernel.backward,
    )
    report = check(subject, *inputs, methods=["contract"], raises=False, options=options)
    assert not report.failed, report


@every_kernel
def test_two_runs_agree_to_the_last_bit(stem, device):
    assert_repeatable(stem, torch.float32, device)


@pytest.mark.rotates(of=sources)
@every_kernel
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_two_runs_agree_in_other_dtypes(stem, dtype, device):
    assert_repeatable(stem, dtype, device)


def assert_repeatable(stem, dtype, device):
    kernel = kernels.load(stem)
    inputs, options = drawn(stem, device, dtype)
    runs = []
    for _ in range(2):
        y, saved = kernel.forward(*inputs, **options)
        dy = torch.linspace(-1, 1, y.numel(), device=device).reshape(y.shape).to(y.dtype)
        gradients = kernel.backward(dy, saved)
        runs.append([y, *(gradients if isinstance(gradients, tuple) else [gradients])])
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@every_kernel
def test_torch_compile_learns_the_shapes_without_a_launch(stem, device):
    """It runs a function's forward on tensors that have no memory."""
    inputs, options = drawn(stem, device)
    parameters = inspect.signature(ops.load(stem).forward).parameters.values()
    chosen = [options.get(p.name, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY]
    chosen += [None] * any(p.name == "seed" for p in parameters)  # a seed in a tensor
    operator = getattr(functional, stem) and getattr(torch.ops.backpass, stem).default
    torch.library.opcheck(operator, (*inputs, *chosen), test_utils="test_faketensor")


@every_kernel
def test_torch_compile_learns_the_shapes_without_preparing_a_launch(stem, device, monkeypatch):
    """With lengths that are symbols, as with dynamic=True, the sizes of a launch's blocks would take it minutes."""
    inputs, options = drawn(stem, device)
    function = getattr(functional, stem)

    def prepared(*_):
        raise AssertionError("a launch is prepared")

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
        monkeypatch.setattr(triton, "cdiv", prepared)
        monkeypatch.setattr(triton, "next_power_of_2", prepared)
        y = function(*fakes, **options)
    monkeypatch.undo()
    assert y.shape == function(*inputs, **options).shape


@every_kernel
def test_inputs_may_require_a_gradient(stem, device):
    """A model's parameters do."""
    inputs, options = drawn(stem, device)
    inputs = [value.requires_grad_() if value.is_floating_point() else value for value in inputs]
    y, saved = kernels.load(stem).forward(*inputs, **options)
    assert not y.requires_grad
    kernels.load(stem).backward(torch.ones_like(y), saved)


@every_kernel
def test_what_is_not_a_tensor_is_rejected(stem, device):
    kernel = kernels.load(stem)
    inputs, options = drawn(stem, device)
    y, saved = kernel.forward(*inputs, **options)
    for at, spec in enumerate(parse(kernel.SHAPES).inputs):
        kinds = "bool" if spec.boolean else "float16, bfloat16, float32, float64"
        kinds = "uint8, int8, int16, int32, int64" if spec.integer else kinds
        other = inputs[at].to(torch.complex64)
        for wrong, message in (
            ([[1.0]], "expected a torch tensor; got list"),
            (other, f"expected one of {kinds}; got dtype torch.complex64"),
            (inputs[at].to("meta"), "expected a tensor on a CUDA device .*; got device meta"),
        ):
            with pytest.raises(TypeError, match=f"^{spec.name}: {message}"):
                kernel.forward(*inputs[:at], wrong, *inputs[at + 1 :], **options)
    with pytest.raises(TypeError, match=r"^dy: expected a torch tensor; got float"):
        kernel.backward(1.0, saved)
    with pytest.raises(TypeError, match=r"^dy: expected forward's dtype, torch\.float32"):
        kernel.backward(y.double(), saved)
    with pytest.raises(ValueError, match=r"^dy: expected the output's shape"):
        kernel.backward(torch.stack([y] * 2), saved)
    with pytest.raises(TypeError, match=r"^saved: expected what forward returned second"):
        kernel.backward(y, None)


def test_cpu_tensors_are_rejected_outside_the_interpreter(compiling):
    """In a process of its own: this one may be the interpreter's."""
    code = "import torch; from backpass.kernels import load; load('softmax').forward(torch.ones(3))"
    done = subprocess.run([sys.executable, "-c", code], env=compiling, capture_output=True, text=True)
    assert "TypeError: x: expected a tensor on a CUDA device" in done.stderr
    assert "set TRITON_INTERPRET=1" in done.stderr
