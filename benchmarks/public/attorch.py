"""attorch: layers of PyTorch in Triton."""

from __future__ import annotations

import torch.nn.functional as F

from public import Case, Draw, Project

ATTORCH = Project("attorch", "attorch", bare=("attorch",))


def _function(name: str):
    return ATTORCH.get(name).apply


@ATTORCH.program("layer_norm_layer:LayerNormAutoGrad")
def layer_norm(it: Draw) -> Case:
    apply = _function("layer_norm_layer:LayerNormAutoGrad")
    return it.case(
        lambda x, w, b: apply(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-5),
        it.normal(7, 70, mean=1.0),
        it.normal(70),
        it.normal(70),
    )


@ATTORCH.program("rms_norm_layer:RMSNormAutoGrad")
def rms_norm(it: Draw) -> Case:
    apply = _function("rms_norm_layer:RMSNormAutoGrad")
    return it.case(
        lambda x, w: apply(x, w, 1e-5),
        lambda x, w: F.rms_norm(x, (70,), w, 1e-5),
        it.normal(7, 70),
        it.normal(70),
    )


def _batch_norm(it: Draw, *more: object) -> Case:
    apply = _function("batch_norm_layer:BatchNormAutoGrad")
    return it.case(
        lambda x, w, b: apply(x, True, w, b, *more),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        it.normal(5, 3, 22),
        it.normal(3),
        it.normal(3),
    )


@ATTORCH.program("batch_norm_layer:BatchNormAutoGrad", "float32")
def batch_norm(it: Draw) -> Case:
    return _batch_norm(it, None, None, 0.1, 1e-5, False)  # which tracks no statistics


@ATTORCH.program("batch_norm_layer:BatchNormAutoGrad", "float32")
def batch_norm_by_default(it: Draw) -> Case:
    return _batch_norm(it)


@ATTORCH.program("softmax_layers:SoftmaxAutoGrad")
def softmax(it: Draw) -> Case:
    apply = _function("softmax_layers:SoftmaxAutoGrad")
    return it.case(lambda x: apply(x, False, False), lambda x: x.softmax(-1), it.normal(7, 70))


@ATTORCH.program("softmax_layers:SoftmaxAutoGrad")
def log_softmax(it: Draw) -> Case:
    apply = _function("softmax_layers:SoftmaxAutoGrad")
    return it.case(lambda x: apply(x, False, True), lambda x: x.log_softmax(-1), it.normal(7, 70))


@ATTORCH.program("act_layers:ActFuncAutoGrad")
def mish(it: Draw) -> Case:
    apply = _function("act_layers:ActFuncAutoGrad")
    return it.case(lambda x: apply(x, "mish", 0.0, True), lambda x: F.mish(x), it.normal(7, 70))


@ATTORCH.program("act_layers:ActFuncAutoGrad")
def gelu(it: Draw) -> Case:
    apply = _function("act_layers:ActFuncAutoGrad")
    return it.case(lambda x: apply(x, "gelu", 0.0, True), lambda x: F.gelu(x), it.normal(7, 70))


@ATTORCH.program("glu_layer:GLUAutoGrad")
def glu(it: Draw) -> Case:
    apply = _function("glu_layer:GLUAutoGrad")
    return it.case(lambda x: apply(x, -1, "sigmoid"), lambda x: F.glu(x), it.normal(7, 140))


@ATTORCH.program("cross_entropy_loss_layer:CrossEntropyLossAutoGrad")
def cross_entropy(it: Draw) -> Case:
    apply = _function("cross_entropy_loss_layer:CrossEntropyLossAutoGrad")
    return it.case(
        lambda x, target: apply(x, target),
        lambda x, target: F.cross_entropy(x, target),
        it.normal(7, 101),
        it.below(101, 7),
    )


@ATTORCH.program("p_loss_layers:PLossAutoGrad")
def huber_loss(it: Draw) -> Case:
    apply = _function("p_loss_layers:PLossAutoGrad")
    return it.case(
        lambda x, target: apply(x, target, 3, "mean", 0.7),
        lambda x, target: F.huber_loss(x, target, delta=0.7),
        it.normal(7, 70),
        it.fixed(7, 70),
    )


@ATTORCH.program("linear_layer:LinearAutoGrad")
def linear(it: Draw) -> Case:
    apply = _function("linear_layer:LinearAutoGrad")
    return it.case(
        lambda x, w, b: apply(x, w, b, "gelu"),
        lambda x, w, b: F.gelu(x @ w + b),
        it.normal(40, 32),
        it.normal(32, 48, scale=0.2),
        it.normal(48),
    )


@ATTORCH.program("conv_layer:Conv2dAutoGrad")
def conv2d(it: Draw) -> Case:
    apply = _function("conv_layer:Conv2dAutoGrad")
    return it.case(
        lambda x, w, b: apply(x, w, b, 1, 1, 1, 1, 1),
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        it.normal(1, 16, 7, 5),
        it.normal(16, 16, 3, 3, scale=0.2),
        it.normal(16),
    )
