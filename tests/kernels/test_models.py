"""Whole networks on the kernels: the loss and every gradient are those of the operations."""

from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

import numpy as np  # noqa: E402

from backpass import kernels  # noqa: E402
from backpass.models import gpt2, llama, seq2seq  # noqa: E402
from backpass.models.layers import kernel as layer_kernel  # noqa: E402

NETWORKS = {
    "gpt2": (gpt2, gpt2.Config(7, 6, 6, 2, 3, 5)),
    "llama, untied": (llama, llama.Config(8, 6, 1, 4, 2, 4, 5)),
    "qwen2, tied": (llama, llama.Config(8, 6, 1, 4, 1, 2, 5, biases=True, tied=True)),
    "qwen3": (llama, llama.Config(8, 6, 2, 4, 2, 4, 5, query_key_norm=True)),
}


def parameters_of(module, config, device):
    rng = np.random.default_rng(0)
    return {
        name: torch.asarray(
            rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 4) + (len(shape) == 1),
            device=device,
        )
        for name, shape in module.parameter_shapes(config).items()
    }


def drawn(name, device):
    module, config = NETWORKS[name]
    batch = np.random.default_rng(1).integers(0, config.vocabulary, (2, 2, 5))
    batch[1, 1, 2] = -100
    return module, config, parameters_of(module, config, device), torch.asarray(batch, device=device)


def assert_equal(found, expected, tolerance=1e-11):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert found[name].dtype == gradient.dtype
        assert (found[name] - gradient).abs().max() <= tolerance * gradient.abs().max(), name


@pytest.mark.parametrize("name", NETWORKS)
def test_a_language_model(name, device):
    module, config, parameters, batch = drawn(name, device)
    one = [n for n in parameters if n.endswith(("1.ln_2.weight", "0.self_attn.k_proj.weight"))]
    for options in ({}, {"chunked": False}, {"wanted": one}):
        loss, saved = module.forward(parameters, *batch, config=config, **options)
        ours, through_kernels = module.forward(parameters, *batch, config=config, kernels=kernels, **options)
        assert float(ours) == pytest.approx(float(loss), rel=1e-13, abs=0)
        assert_equal(module.backward(through_kernels), module.backward(saved))


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_and_a_decoder(norm_first, device):
    rng = np.random.default_rng(0)
    config = seq2seq.Config(6, 1, 1, 3, 5, norm_first=norm_first)
    parameters = parameters_of(seq2seq, config, device)
    inputs = [torch.asarray(rng.standard_normal((2, n, 6)), device=device) for n in (4, 3)]
    dy = torch.asarray(rng.standard_normal((2, 3, 6)), device=device)
    y, saved = seq2seq.forward(parameters, *inputs, config=config)
    ours, through_kernels = seq2seq.forward(parameters, *inputs, config=config, kernels=kernels)
    torch.testing.assert_close(ours, y, rtol=1e-12, atol=1e-12)
    *found, found_gradients = seq2seq.backward(dy, through_kernels)
    *expected, gradients = seq2seq.backward(dy, saved)
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-11, atol=1e-12)
    assert_equal(found_gradients, gradients)


def test_dropout_in_the_kernel_drops_what_the_operation_drops(device):
    module, config, parameters, batch = drawn("gpt2", device)
    config = replace(config, embedding_dropout=0.2, residual_dropout=0.4)
    options = {"config": config, "masks": (5, 17)}
    loss, saved = module.forward(parameters, *batch, **options)
    ours, through_kernels = module.forward(parameters, *batch, kernels=kernels, **options)
    assert float(ours) == pytest.approx(float(loss), rel=1e-12)
    assert_equal(module.backward(through_kernels), module.backward(saved))


def test_the_kernels_ran(device, monkeypatch):
    """Each operation that has a kernel, except those that the model keeps to operations."""
    ran, fused = set(), Counter()
    forward = layer_kernel.Kernel.forward

    def noted(self, *inputs, **options):
        ran.add(self.kernel.__name__.rpartition(".")[2])
        return forward(self, *inputs, **options)

    def counting(name):
        function = getattr(layer_kernel.Kernel, name)

        def counted(*inputs, **options):
            fused[name] += 1
            return function(*inputs, **options)

        return counted

    monkeypatch.setattr(layer_kernel.Kernel, "forward", noted)
    for name in ("forward_of_sum", "backward_of_sum", "forward_rotated"):
        monkeypatch.setattr(layer_kernel.Kernel, name, counting(name))
    for name in ("gpt2", "qwen3", "llama, untied"):
        module, config, parameters, batch = drawn(name, device)
        _, saved = module.forward(parameters, *batch, config=config, kernels=kernels)
        module.backward(saved)
    # In each of five layers the second norm's sum; in the backward the gradients' at both norms. In each of Qwen3's two
    # the queries and the keys.
    assert fused == {"forward_of_sum": 5, "backward_of_sum": 2 * 5, "forward_rotated": 2 * 2}
    assert ran == {
        "layer_norm",
        "rms_norm",
        "rope",
        "dropout",
        "flash_attention",
        "feed_forward",
        "linear_cross_entropy",
    }


def test_what_does_not_fit_is_rejected(device):
    module, config, parameters, batch = drawn("gpt2", device)
    with pytest.raises(
        TypeError, match=r"kernels: expected the package backpass.kernels, or None .* got True"
    ):
        module.forward(parameters, *batch, config=config, kernels=True)
    as_numpy = {name: w.numpy(force=True) for name, w in parameters.items()}
    with pytest.raises(
        TypeError, match=r"^kernels: expected tensors on a CUDA device .*; got numpy arrays on cpu$"
    ):
        module.forward(as_numpy, *batch.numpy(force=True), config=config, kernels=kernels)


@pytest.mark.parametrize("name", NETWORKS)
def test_tensors_on_the_cpu_are_rejected_without_the_interpreter(name, monkeypatch):
    monkeypatch.setattr(kernels, "interpreted", lambda: False)
    monkeypatch.setattr(kernels, "executed", lambda: False)
    module, config, parameters, batch = drawn(name, "cpu")
    with pytest.raises(
        TypeError, match=r"^kernels: expected tensors on a CUDA device .*; got torch arrays on cpu$"
    ):
        module.forward(parameters, *batch, config=config, kernels=kernels)
