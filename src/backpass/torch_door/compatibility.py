"""What ``backpass.functional`` works with, as data. Each row has a test."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A part of PyTorch, whether the functions work with it, and how far."""

    part: str
    works: bool
    how: str


ROWS = (
    Row("autograd in reverse mode", True, "the hand-written backward"),
    Row("several backwards, accumulated gradients", True, "with retain_graph"),
    Row("in-place changes of what is saved", True, "autograd notices them"),
    Row("torch.no_grad, torch.inference_mode", True, "nothing is saved"),
    Row("torch.func.grad, torch.func.vjp", True, "one derivative"),
    Row("torch.autograd.detect_anomaly", True, "same gradients"),
    Row("torch.utils.checkpoint", True, "both kinds; the same elements are dropped"),
    Row("torch.autograd.graph.save_on_cpu", True, "and all saved_tensors_hooks"),
    Row("torch.compile", True, "one graph, same gradients; inductor fuses the lines"),
    Row("lengths that change", True, "two graphs for any number of lengths"),
    Row("numbers of rows that depend on data", True, "in one graph"),
    Row("torch.cuda.graph", True, "no value is read"),
    Row("torch.export", True, "with dynamic shapes"),
    Row("torch.jit.trace", True, "same values and gradients"),
    Row("torch.autocast", True, "PyTorch's rules for CUDA, on every device"),
    Row("torch.amp.GradScaler", True, "a fused loss is in float32"),
    Row("DistributedDataParallel", True, "the gradients of one process"),
    Row("FSDP2 (fully_shard)", True, "the gradients of one process"),
    Row("the device meta, FakeTensorMode", True, "shapes without values"),
    Row("FlopCounterMode", True, "by itself, or with flop_counter.formulas"),
    Row("torch.library.opcheck", True, "every operator passes"),
    Row("copy.deepcopy, pickle", True, "of functions and of modules with them"),
    Row("a second derivative", False, "RuntimeError"),
    Row("forward mode", False, "RuntimeError"),
    Row("torch.func (vmap, jvp), several of its transforms", False, "RuntimeError"),
    Row("is_grads_batched, vectorize=True", False, "RuntimeError"),
    Row("complex tensors", False, "TypeError"),
    Row("float8 and unsigned integers of more than 8 bits", False, "TypeError"),
    Row("nested and sparse tensors", False, "TypeError"),
    Row("DTensor", False, "TypeError; x.to_local() works"),
    Row("torch.fx.symbolic_trace", False, "TypeError; torch.export works"),
)
