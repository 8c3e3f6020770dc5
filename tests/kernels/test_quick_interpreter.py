"""The tests' quick interpreter computes what Triton's does."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

import triton.language as tl  # noqa: E402
from triton.language import core, semantic  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from backpass import kernels  # noqa: E402
from backpass.verify import draw  # noqa: E402
from backpass.verify.convert import to_torch  # noqa: E402
from backpass.verify.drawing import options_for  # noqa: E402

from . import quick_interpreter  # noqa: E402
from .support import DTYPES  # noqa: E402

pytestmark = pytest.mark.skipif(not kernels.interpreted(), reason="kernels are compiled here")


@pytest.fixture
def slow(monkeypatch):
    """Triton's own functions again."""
    monkeypatch.setattr(interpreter, "_patch_lang", quick_interpreter.language_by_triton)
    monkeypatch.setattr(interpreter, "_get_np_dtype", quick_interpreter.numpy_dtype_by_triton)
    monkeypatch.setattr(core.tensor, "__init__", quick_interpreter.tensor_made_by_triton)
    monkeypatch.setattr(core.block_type, "__init__", quick_interpreter.block_type_made_by_triton)
    monkeypatch.setattr(interpreter.FunctionRewriter, "rewrite_ast", quick_interpreter.rewritten_by_triton)
    monkeypatch.setattr(interpreter.InterpretedFunction, "rewritten_fn", {})
    checks = semantic.TritonSemantic
    monkeypatch.setattr(checks, "binary_op_sanitize_overflow_impl", quick_interpreter.overflow_by_triton)


def run(stem, dtype):
    inputs = [to_torch(value, dtype=dtype) for value in draw(stem, np.random.default_rng(0))]
    y, saved = kernels.load(stem).forward(*inputs, **options_for(stem))
    gradients = kernels.load(stem).backward(torch.ones_like(y), saved)
    return y, *(gradients if isinstance(gradients, tuple) else [gradients])


def test_it_is_what_the_tests_run_in():
    assert isinstance(interpreter._patch_lang, quick_interpreter.Language)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stem", kernels.STEMS)
def test_every_kernel_gives_the_same_to_the_last_bit(stem, dtype, request):
    quick = run(stem, dtype)
    request.getfixturevalue("slow")
    for a, b in zip(quick, run(stem, dtype), strict=True):
        assert torch.equal(a, b)


def test_the_language_is_left_as_it_was():
    parts = (tl, core, tl.math, tl.tensor, tl.dtype)
    before = [dict(vars(part)) for part in parts]
    run("softmax", torch.float32)
    assert [dict(vars(part)) for part in parts] == before


@triton.jit
def _multiply(x_ptr, y_ptr, many):
    at = tl.arange(0, 2)
    tl.store(y_ptr + at, tl.load(x_ptr + at) * many)


def test_an_integer_that_overflows_is_not_an_error_in_either(request):
    x = torch.tensor([2, 2**30], dtype=torch.int32)
    quick, slow = torch.empty_like(x), torch.empty_like(x)
    _multiply[(1,)](x, quick, 2)
    request.getfixturevalue("slow")
    _multiply[(1,)](x, slow, 2)
    assert torch.equal(quick, slow)


def test_types_and_tensors_are_tritons(request):
    def described(made):
        return [(str(t.dtype), str(t.type), str(t.shape), t.numel.value, repr(t.type)) for t in made]

    def make():
        scalars = (tl.int1, tl.int32, tl.uint8, tl.bfloat16, tl.float64, tl.pointer_type(tl.float16))
        types = [
            tl.block_type(scalar, shape)
            for scalar in scalars
            for shape in ([4], [2, 8], [1, tl.constexpr(16)])
        ]
        tensors = [tl.tensor(None, type) for type in (*scalars, *types)]
        return described(tensors), [interpreter._get_np_dtype(type) for type in (*scalars, *types)]

    quick = make()
    request.getfixturevalue("slow")
    assert make() == quick
