"""The table of what the functions work with: a test for each row, here or beside this file."""

import copy
import io
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from backpass import functional as B
from backpass import ops
from backpass.torch_door.compatibility import ROWS

from .. import test_flop_counter, test_functional
from . import (
    test_captured,
    test_changing_lengths,
    test_compiled,
    test_func_grad,
    test_rejected,
    test_seeds,
    test_training_loop,
)
from .support import differentiable, drawn

STEMS = pytest.mark.parametrize("stem", ops.STEMS)


@pytest.fixture(autouse=True)
def operations_on_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def case(stem):
    """A call, the leaves that it reads, a cotangent, and the gradients."""
    inputs, options = drawn(stem)
    leaves = differentiable(stem, inputs)
    y = getattr(B, stem)(*inputs, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    return inputs, options, leaves, dy, torch.autograd.grad(y, leaves, dy)


def check_equal(found, exact):
    assert all(map(torch.equal, found, exact)) and len(found) == len(exact)


@STEMS
def test_backwards_are_repeated_and_accumulated(stem):
    inputs, options, leaves, dy, exact = case(stem)
    y = getattr(B, stem)(*inputs, **options)
    y.backward(dy, retain_graph=True)
    y.backward(dy)
    check_equal([leaf.grad for leaf in leaves], [2 * g for g in exact])


@pytest.mark.parametrize("stem", ["gelu", "linear", "softmax", "relu", "flash_attention"])
def test_autograd_notices_a_change_of_what_is_saved(stem):
    inputs, options, _, dy, _ = case(stem)
    changed = [x.clone() for x in inputs if x is not None]
    y = getattr(B, stem)(*changed, **options)
    with torch.no_grad():
        for x in (*changed, y):
            x.copy_(x.clone())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


@STEMS
def test_nothing_is_saved_where_no_gradient_is_recorded(stem):
    inputs, options, *_ = case(stem)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert getattr(B, stem)(*inputs, **options).grad_fn is None


@STEMS
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_are_detected(stem):
    inputs, options, leaves, dy, exact = case(stem)
    with torch.autograd.detect_anomaly():
        found = torch.autograd.grad(getattr(B, stem)(*inputs, **options), leaves, dy)
    check_equal(found, exact)


@STEMS
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_has_the_same_gradients(stem, reentrant):
    inputs, options, leaves, dy, exact = case(stem)
    y = checkpoint(lambda *inputs: getattr(B, stem)(*inputs, **options), *inputs, use_reentrant=reentrant)
    y.backward(dy)  # PyTorch rejects autograd.grad through the reentrant kind
    check_equal([leaf.grad for leaf in leaves], exact)


@STEMS
def test_saved_tensors_may_be_kept_elsewhere(stem):
    inputs, options, leaves, dy, exact = case(stem)
    with torch.autograd.graph.save_on_cpu():
        y = getattr(B, stem)(*inputs, **options)
    check_equal(torch.autograd.grad(y, leaves, dy), exact)


@STEMS
@pytest.mark.filterwarnings("ignore")
def test_a_trace_has_the_same_values_and_gradients(stem):
    inputs, options, leaves, dy, exact = case(stem)
    given = [x for x in inputs if x is not None]
    if len(given) < len(inputs):
        return

    def function(*inputs):
        return getattr(B, stem)(*inputs, **options)

    traced = torch.jit.trace(function, tuple(x.detach() for x in given))
    assert torch.equal(traced(*given), function(*given))
    check_equal(torch.autograd.grad(traced(*given), leaves, dy), exact)


@STEMS
def test_shapes_without_values(stem):
    inputs, options, _, dy, exact = case(stem)
    metas = [x if x is None else x.detach().to("meta").requires_grad_(x.requires_grad) for x in inputs]
    y = getattr(B, stem)(*metas, **options)
    found = torch.autograd.grad(y, differentiable(stem, metas), dy.to("meta"))
    assert y.shape == dy.shape and y.is_meta
    assert [(g.shape, g.dtype) for g in found] == [(g.shape, g.dtype) for g in exact]


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.activation, self.w = B.gelu, torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return self.activation(B.linear(x, self.w))


def test_copies_and_pickles():
    module, x = Module(), torch.randn(2, 3)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(stored, weights_only=False),
    ):
        assert torch.equal(other(x), module(x))
    assert pickle.loads(pickle.dumps(B.rope)) is B.rope


HELD_BY = {
    "autograd in reverse mode": test_functional.test_values_and_gradients_are_the_operations_at_every_case,
    "several backwards, accumulated gradients": test_backwards_are_repeated_and_accumulated,
    "in-place changes of what is saved": test_autograd_notices_a_change_of_what_is_saved,
    "torch.no_grad, torch.inference_mode": test_nothing_is_saved_where_no_gradient_is_recorded,
    "torch.func.grad, torch.func.vjp": (
        test_func_grad.test_grad_and_vjp_have_the_gradients_of_autograd,
        test_func_grad.test_a_second_derivative_through_a_captured_tensor_is_rejected,
    ),
    "torch.autograd.detect_anomaly": test_anomalies_are_detected,
    "torch.utils.checkpoint": (
        test_a_checkpoint_has_the_same_gradients,
        test_seeds.test_a_checkpoint_drops_the_same_again,
    ),
    "torch.autograd.graph.save_on_cpu": test_saved_tensors_may_be_kept_elsewhere,
    "torch.compile": (
        test_changing_lengths.test_lengths_that_change_need_two_graphs,
        test_compiled.test_inductor_has_the_same_gradients,
    ),
    "lengths that change": test_changing_lengths.test_lengths_that_change_need_two_graphs,
    "numbers of rows that depend on data": test_changing_lengths.test_the_number_of_rows_may_depend_on_data,
    "torch.cuda.graph": (
        test_captured.test_an_operation_reads_no_value,
        test_captured.test_a_step_of_a_user_reads_no_value,
    ),
    "torch.export": test_changing_lengths.test_an_exported_function_takes_other_lengths,
    "torch.jit.trace": test_a_trace_has_the_same_values_and_gradients,
    "torch.autocast": test_functional.test_autocast_has_it_run_in_the_dtype_that_pytorch_would,
    "torch.amp.GradScaler": test_functional.test_the_first_step_under_a_scaler_is_taken,
    "DistributedDataParallel": test_training_loop.test_two_processes_have_the_gradients_of_one,
    "FSDP2 (fully_shard)": test_training_loop.test_two_processes_have_the_gradients_of_one,
    "the device meta, FakeTensorMode": (
        test_shapes_without_values,
        test_changing_lengths.test_the_shapes_inferred_without_values_are_those_of_the_results,
    ),
    "FlopCounterMode": (
        test_flop_counter.test_it_counts_what_the_operations_formulas_say,
        test_flop_counter.test_a_counter_counts_the_operations_as_it_counts_pytorchs_own,
    ),
    "torch.library.opcheck": test_functional.test_opcheck,
    "copy.deepcopy, pickle": test_copies_and_pickles,
    "a second derivative": test_functional.test_a_gradient_of_the_gradient_is_rejected,
    "forward mode": test_functional.test_transforms_and_forward_mode_are_rejected,
    "torch.func (vmap, jvp), several of its transforms": test_functional.test_transforms_and_forward_mode_are_rejected,
    "is_grads_batched, vectorize=True": (
        test_rejected.test_many_backwards_at_once,
        test_rejected.test_a_vectorised_jacobian,
    ),
    "complex tensors": test_functional.test_complex_tensors_are_rejected,
    "float8 and unsigned integers of more than 8 bits": test_rejected.test_other_kinds_of_tensors,
    "nested and sparse tensors": test_rejected.test_other_kinds_of_tensors,
    "DTensor": test_rejected.test_a_distributed_tensor,
    "torch.fx.symbolic_trace": test_rejected.test_a_tensor_of_symbolic_trace,
}


def test_each_row_of_the_table_is_held_by_a_test():
    assert [row.part for row in ROWS] == [*HELD_BY]
