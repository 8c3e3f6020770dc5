"""What the functions do not compute: one sentence that says so, rather than PyTorch's about a missing rule."""

import pytest
import torch
from torch.nested import nested_tensor
from torch.utils.flop_counter import FlopCounterMode

from backpass import functional as B
from backpass import ops

from .support import differentiable, drawn


@pytest.mark.parametrize("stem", ops.STEMS)
def test_many_backwards_at_once(stem):
    inputs, options = drawn(stem)
    y = getattr(B, stem)(*inputs, **options)
    with pytest.raises(
        RuntimeError, match=f"^backpass.functional.{stem}: expected one derivative.*; got vmap"
    ):
        torch.autograd.grad(
            y, differentiable(stem, inputs), torch.stack([torch.ones_like(y)] * 2), is_grads_batched=True
        )


def test_a_vectorised_jacobian():
    with pytest.raises(
        RuntimeError, match=r"^backpass\.functional\.softmax: expected one derivative.*; got vmap"
    ):
        torch.autograd.functional.jacobian(B.softmax, torch.ones(3), vectorize=True)
    assert torch.autograd.functional.jacobian(B.softmax, torch.ones(3)).shape == (3, 3)


def test_many_backwards_of_an_operator():
    x = torch.ones(3, requires_grad=True)
    with FlopCounterMode(display=False):
        y = B.softmax(x)
    with pytest.raises(
        RuntimeError, match=r"^backpass\.functional\.softmax: expected one derivative.*; got vmap"
    ):
        torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


def test_a_second_derivative_through_a_backward_that_reads_no_input():
    """The gradient of rms_norm's output reads saved arrays alone, which have no history."""
    x = torch.randn(3, 4, requires_grad=True)
    (dx,) = torch.autograd.grad(B.rms_norm(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="got a derivative of its gradient"):
        (dx.square().sum() + x.sum()).backward()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.ones(2, 4).to(torch.float8_e4m3fn),
            r"expected floating-point numbers of .*; got dtype torch\.float8",
        ),
        (torch.ones(2, 4).to(torch.uint64), r".* with a sign; got dtype torch\.uint64"),
        (nested_tensor([torch.ones(2), torch.ones(3)]), "expected a dense tensor; got a nested tensor"),
        (
            nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "expected a dense tensor; got a nested",
        ),
        (torch.ones(2, 4).to_sparse(), r"expected a dense tensor; got layout torch\.sparse_coo"),
        (torch.ones(2, 4).to_sparse_csr(), r"expected a dense tensor; got layout torch\.sparse_csr"),
    ],
    ids=["float8", "uint64", "nested", "jagged", "sparse", "csr"],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_other_kinds_of_tensors(x, message):
    with pytest.raises(TypeError, match=f"^x: {message}"):
        B.softmax(x)


def test_a_tensor_of_symbolic_trace():
    with pytest.raises(TypeError, match=r"^x: expected a torch tensor; got Proxy"):
        torch.fx.symbolic_trace(lambda x: B.softmax(x))


def test_a_distributed_tensor(tmp_path):
    from torch import distributed
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = DTensor.from_local(torch.ones(2, 4), init_device_mesh("cpu", (1,)), [Replicate()])
        with pytest.raises(
            TypeError, match=r"^x: expected a local tensor; got DTensor\. .*: pass x\.to_local\(\)$"
        ):
            B.softmax(x)
        assert torch.equal(B.softmax(x.to_local()), B.softmax(torch.ones(2, 4)))
    finally:
        distributed.destroy_process_group()
