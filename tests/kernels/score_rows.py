"""The tests that the kernels of softmax and log-softmax share: their inputs are rows of scores."""

import pytest
import torch

from backpass.kernels import on_cpu

from .support import DTYPES, INF, STRIDED, draw, draw_view


class ScoreRows:
    """A subclass gives ``kernel``, the module; ``operator``, PyTorch's; ``alone``, the output of a row of one score;
    ``check(x, dy)``, which judges forward and backward; and ``check_backward(dy, y, dx)``."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(7, 63), (3, 5, 100), (1000,), (2, 1, 3, 31), (33, 2)], ids=str)
    def test_odd_sizes(self, shape, dtype, path, device, poisoned):
        self.check(*(draw(*shape, dtype=dtype, device=device, seed=seed) for seed in (0, 1)))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_a_row_longer_than_a_block(self, dtype, device, poisoned):
        n = self.kernel.ROW_BYTES // 4 + 1001
        self.check(*(draw(2, n, dtype=dtype, device=device, seed=seed) for seed in (0, 1)))

    def test_the_longest_row_in_one_block(self, device, poisoned):
        n = self.kernel.ROW_BYTES // 4
        self.check(*(draw(2, n, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1)))

    @pytest.mark.parametrize("view", STRIDED)
    @pytest.mark.parametrize("strided", ["x", "dy"])
    def test_any_strides(self, view, strided, path, device, poisoned):
        x, dy = (draw_view(view, device=device, seed=seed) for seed in (0, 1))
        if strided == "x":
            dy = draw(*x.shape, dtype=torch.float32, device=device, seed=1)
        else:
            x = draw(*dy.shape, dtype=torch.float32, device=device)
        self.check(x, dy)

    def test_the_maximum_may_come_last(self, path, device, poisoned):
        """Each tile raises the maximum, so every sum so far is rescaled."""
        x = torch.arange(90.0, device=device).reshape(1, 90) * torch.tensor([[0.1], [1.0]], device=device)
        self.check(x, draw(2, 90, dtype=torch.float32, device=device, seed=1))

    @pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
    @pytest.mark.parametrize("bad", [torch.nan, INF])
    def test_nan_and_infinity_spoil_their_own_row_only(self, bad, path, device):
        x = draw(3, 50, dtype=torch.float32, device=device)
        x[1, 7] = bad
        y, _ = self.kernel.forward(x)
        assert torch.isnan(y).any(dim=1).tolist() == [False, True, False]

    def test_what_forward_saved_need_not_be_contiguous(self, path, device):
        y = self.operator(draw(40, 6, dtype=torch.float32, device=device), 0).T
        dy = draw(6, 40, dtype=torch.float32, device=device, seed=1)
        self.check_backward(dy, y, self.kernel.backward(dy, self.kernel.Saved(y)))

    @pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (1, 1)], ids=str)
    def test_no_rows_and_one_element(self, shape, device):
        x = draw(*shape, dtype=torch.float32, device=device)
        y, saved = self.kernel.forward(x)
        assert torch.equal(y, torch.full(shape, self.alone, device=device))
        assert torch.equal(self.kernel.backward(x, saved), torch.zeros(shape, device=device))

    def test_no_axis_and_an_empty_row_are_rejected(self, device):
        for shape, message in (
            ((), r"x: expected x\[\*, n\], which has at least 1 axis; got shape \[\]"),
            ((3, 0), r"x: expected x\[\*, n\] with n of at least 1; got shape \[3, 0\]"),
        ):
            with pytest.raises(ValueError, match=message):
                self.kernel.forward(torch.ones(shape, device=device))

    @pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
    def test_offsets_beyond_32_bits(self, device):
        forward, backward = self.kernel.forward, self.kernel.backward
        x, dy = (torch.zeros(2**17 + 1, 2**14, dtype=torch.float16, device=device) for _ in range(2))
        x[-1], dy[-1] = (draw(2**14, dtype=torch.float16, device=device, seed=seed) for seed in (0, 1))
        y, saved = forward(x)
        assert torch.equal(y[-1], forward(x[-1])[0])
        assert torch.equal(backward(dy, saved)[-1], backward(dy[-1], self.kernel.Saved(y[-1])))
