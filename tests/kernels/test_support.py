"""The bound that every kernel's errors are held to."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from .support import assert_as_exact_as_pytorch  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_stored_in_16_bits_is_judged_by_its_own_size(dtype):
    """GELU at −3 is −0.004: one unit in the last place of its largest term, 3, would let anything pass."""
    x = torch.tensor([[-3.0]], dtype=torch.float64)
    exact = torch.nn.functional.gelu(x)
    rounded = exact.to(dtype)
    assert_as_exact_as_pytorch("y", rounded, rounded, exact, x.abs(), roundings=10)
    for wrong in (0 * rounded, 1.1 * rounded):
        with pytest.raises(pytest.fail.Exception, match="1 elements are off"):
            assert_as_exact_as_pytorch("y", wrong, rounded, exact, x.abs(), roundings=10)
