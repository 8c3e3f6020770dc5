"""The embedding kernels against ``ops.embedding`` in float64 and beside PyTorch's operator."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import embedding as kernel  # noqa: E402
from backpass.kernels import on_cpu  # noqa: E402
from backpass.kernels.launch import accumulator  # noqa: E402
from backpass.ops import embedding as op  # noqa: E402

from .support import DTYPES, STRIDED, assert_as_exact_as_pytorch, draw, draw_view  # noqa: E402


@pytest.fixture
def small(monkeypatch):
    """Blocks of 4 tokens and programs of 32 columns, or 16, so that there are many of either."""
    monkeypatch.setattr(kernel, "BLOCK", 4)
    monkeypatch.setattr(kernel, "ROW_BYTES", 128)


def drawn_tokens(*shape, V, device, seed=0):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed)).to(device)


def check(t, w, dy, padding_idx=None):
    """Forward and backward of the kernel on these, of any strides, and none changed."""
    given = (t, w, dy)
    before = [value.clone() for value in given]
    y, saved = kernel.forward(t, w, padding_idx=padding_idx)
    dw = kernel.backward(dy, saved)
    assert all(torch.equal(value, was) for value, was in zip(given, before, strict=True))

    assert torch.equal(y, w[t.long()])
    V, h = w.shape
    exact = op.backward(dy.double(), op.forward(t, w.double(), padding_idx=padding_idx)[1])
    rows = dy.double().reshape(t.numel(), h)
    count = torch.bincount(t.reshape(-1).long(), minlength=V)
    sizes = torch.zeros(V, h, dtype=torch.float64, device=t.device)
    sizes.index_add_(0, t.reshape(-1).long(), rows.abs())
    if h > 0:
        theirs = torch.ops.aten.embedding_dense_backward(
            dy, t.long(), V, -1 if padding_idx is None else padding_idx, False
        )
        assert_as_exact_as_pytorch("dw", dw, theirs, exact, sizes.amax(dim=-1, keepdim=True))
    assert torch.all(dw[count == 0] == 0)
    return y, dw


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 40), (), (1,), (2, 1, 3, 1)], ids=str)
def test_odd_sizes(shape, dtype, device, poisoned):
    t = drawn_tokens(*shape, V=11, device=device)
    dy = draw(*shape, 67, dtype=dtype, device=device, seed=1)
    check(t, draw(13, 67, dtype=dtype, device=device), dy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pieces_of_rows_and_blocks_of_tokens(dtype, small, device, poisoned):
    t = drawn_tokens(2, 20, V=3, device=device)
    dy = draw(2, 20, 70, dtype=dtype, device=device, seed=1)
    check(t, draw(4, 70, dtype=dtype, device=device), dy)


@pytest.mark.parametrize("padding_idx", [0, 2, 3, 4, -1, -5])
def test_the_row_of_padding_is_zero(padding_idx, small, device, poisoned):
    """Of tokens whose blocks are all theirs, partly theirs, and none."""
    t = torch.tensor([0] * 5 + [2] * 14 + [3] * 2, device=device)
    t = t[torch.randperm(len(t), generator=torch.Generator().manual_seed(0)).to(device)]
    w = draw(5, 37, dtype=torch.float32, device=device)
    _, dw = check(t, w, draw(len(t), 37, dtype=torch.float32, device=device), padding_idx % 5)
    assert not dw[padding_idx].any()
    of_end, from_start = (
        kernel.backward(w[t], kernel.forward(t, w, padding_idx=at)[1])
        for at in (padding_idx % 5 - 5, padding_idx % 5)
    )
    assert torch.equal(of_end, from_start)


@pytest.mark.parametrize("before", range(5))
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 11, 12])
def test_a_run_of_one_token_wherever_blocks_begin(before, length, small, device, poisoned):
    """Before it come so many smaller tokens, after it three larger ones."""
    t = torch.tensor([0] * before + [2] * length + [3] * 3, device=device)
    t = t[torch.randperm(len(t), generator=torch.Generator().manual_seed(0)).to(device)]
    check(
        t,
        draw(5, 3, dtype=torch.float32, device=device),
        draw(len(t), 3, dtype=torch.float32, device=device),
    )


def test_a_long_run_is_summed_in_float32(device, poisoned):
    """600 terms of about 1: bfloat16 would stop at 256."""
    t = torch.ones(600, dtype=torch.int64, device=device)
    dy = 1 + 0.1 * draw(600, 5, dtype=torch.bfloat16, device=device)
    dw = kernel.backward(dy, kernel.Saved(t, (3, 5), kernel.kind(dy)))
    torch.testing.assert_close(dw[1].double(), dy.double().sum(dim=0), rtol=2**-7, atol=0)
    assert not dw[[0, 2]].any()


def test_only_blocks_of_one_token_are_added_up_first(small, device, monkeypatch):
    t = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2], device=device)
    sums = []
    empty = torch.empty

    def full_of_nan(shape, **options):
        sums.append(empty(shape, **options).fill_(torch.nan))
        return sums[-1]

    monkeypatch.setattr(torch, "empty", full_of_nan)
    dy = torch.ones(14, 1, device=device)
    dw = kernel.backward(dy, kernel.Saved(t, (4, 1), kernel.kind(dy)))
    assert dw.flatten().tolist() == [3, 9, 2, 0]
    (blocks,) = [each for each in sums if each is not dw]
    assert blocks.nan_to_num(-1).flatten().tolist() == [-1, 4, 4]


@pytest.mark.parametrize("view", STRIDED)
def test_any_strides(view, small, device, poisoned):
    dy = draw_view(view, device=device)
    *shape, h = dy.shape
    t = drawn_tokens(*shape, V=3, device=device)
    check(t, draw(4, h, dtype=torch.float32, device=device, seed=1), dy)


def test_tokens_and_table_need_not_be_contiguous(device, poisoned):
    t = drawn_tokens(6, 10, V=5, device=device)
    w = draw(70, 5, dtype=torch.float32, device=device).T  # a tied output head
    dy = draw(5, 6, 70, dtype=torch.float32, device=device, seed=1)
    check(t[:, ::2].T, w, dy)
    check(t[:1, :6].expand(5, 6), w, dy)


@pytest.mark.parametrize(("integer", "V"), [(torch.uint8, 257), (torch.int8, 129), (torch.int32, 5)], ids=str)
def test_tokens_of_other_integers(integer, V, device, poisoned):
    """Of two with a vocabulary that has more rows than the type has numbers."""
    t = torch.tensor([3, 0, 3], device=device).to(integer)
    check(t, draw(V, 3, dtype=torch.float32, device=device), draw(3, 3, dtype=torch.float32, device=device))


@pytest.mark.parametrize(("tokens", "V", "h"), [((0,), 3, 5), ((2, 0), 3, 5), ((4,), 3, 0), ((), 1, 1)])
def test_no_tokens_no_columns_and_one_element(tokens, V, h, device, poisoned):
    check(
        torch.zeros(tokens, dtype=torch.int64, device=device),
        draw(V, h, dtype=torch.float32, device=device),
        draw(*tokens, h, dtype=torch.float32, device=device, seed=1),
    )


@pytest.mark.skipif(not on_cpu(), reason="an assertion on a CUDA device would stop all later tests")
@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_token_outside_the_vocabulary_is_rejected(wrong, device):
    with pytest.raises(IndexError, match=f"^t: expected tokens from 0 to 4; got {wrong}$"):
        kernel.forward(torch.tensor([[0, wrong]], device=device), torch.ones(5, 3, device=device))


def test_a_token_outside_the_vocabulary_reads_nothing_and_has_no_gradient(device, poisoned):
    """On a CUDA device, an assertion reports it, which the kernel does not wait for."""
    t = torch.tensor([1, -1, 5, 2**40, -(2**40), 4], device=device)
    w = draw(5, 3, dtype=torch.float32, device=device)
    y = torch.empty((6, 3), dtype=w.dtype, device=device)
    kernel.forward_launch(t, w, y).run()
    assert torch.isnan(y).all(dim=1).tolist() == [False, True, True, True, True, False]
    assert torch.equal(y[[0, 5]], w[[1, 4]])
    dw = kernel.backward(torch.ones_like(y), kernel.Saved(t, (5, 3), kernel.kind(w)))
    assert dw[:, 0].tolist() == [0, 1, 0, 0, 1]


def test_partial_sums_are_of_the_accumulators_dtype():
    """The meta tensors that are compiled for are like those that are launched with."""
    for dtype in DTYPES:
        sums = {launch.arguments.get("sums_ptr") for _, launch in kernel.launches(dtype)} - {None}
        assert {each.dtype for each in sums} == {accumulator(dtype)}


@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(device):
    V, h = 2**20 + 3, 2**11
    w = torch.zeros(V, h, dtype=torch.float16, device=device)
    w[-2:] = draw(2, h, dtype=torch.float16, device=device)
    t = torch.tensor([V - 1, 0, V - 2, V - 1], device=device)
    y, saved = kernel.forward(t, w)
    assert torch.equal(y, w[t])
    dy = draw(4, h, dtype=torch.float16, device=device, seed=1)
    dw = kernel.backward(dy, saved)
    assert torch.equal(dw[-2], dy[2])
    assert torch.equal(dw[-1], (dy[0].float() + dy[3].float()).half())
    assert torch.equal(dw[0], dy[1])
    assert not dw[1:-2].any()
