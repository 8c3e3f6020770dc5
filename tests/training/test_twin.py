"""The twin run: 50 steps of training by this package alone, beside the same steps by torch autograd and
torch.optim.AdamW through Hugging Face's model, on the same batches, in float64."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from backpass.training import adamw, batches, clipping, schedule

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from hugging_face import gpt2_case, llama_case, loss_and_gradients, precise

STEPS, BATCH, LENGTH = 50, 2, 12
TEXT = bytes(range(32, 127)) + b"the gradient of a sum is the sum of the gradients; " * 20
OPTIONS = {"betas": (0.9, 0.95), "eps": 1e-8}
DECAY = 0.1

# A case, and a norm that some steps exceed and some do not.
CASES = [
    (gpt2_case("gpt2", LENGTH, vocab_size=256, n_positions=LENGTH), 1.0),
    (llama_case("llama", "Llama", LENGTH, vocab_size=256), 2.0),
]


class Ours:
    """A run by this package, on NumPy arrays or tensors."""

    def __init__(self, case, parameters):
        self.module, self.config = case.module, case.ours()
        self.parameters = parameters
        self.state = adamw.start(parameters)
        self.decayed = adamw.with_axes(parameters)

    def step(self, tokens, targets, rate, max_norm):
        loss, saved = self.module.forward(self.parameters, tokens, targets, config=self.config)
        gradients, norm = clipping.clip(self.module.backward(saved), max_norm)
        adamw.update(
            self.parameters,
            gradients,
            self.state,
            lr=rate,
            weight_decay=DECAY,
            decayed=self.decayed,
            **OPTIONS,
        )
        return float(loss), norm


class Torchs:
    """The same by Hugging Face's model under autograd, and PyTorch's clipping and optimiser."""

    def __init__(self, model):
        self.model = model
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, **OPTIONS)

    def step(self, tokens, targets, rate, max_norm):
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        loss, _ = loss_and_gradients(self.model, tokens, targets)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimiser.step()
        return float(loss), float(norm)


def without_key_bias(name, array):
    """GPT-2's bias of queries, keys and values without the third of the keys."""
    return np.delete(np.split(array, 3), 1, axis=0) if name.endswith("c_attn.bias") else array


def assert_parameters(run, expected):
    """All equal to 1e-11 of the largest element, and all but a key's bias to 1e-13.

    A key's bias adds the same number to all scores of a query, so its gradient is 0 by derivation. Here it is 0, and
    the bias stays; under autograd it is rounding, about 1e-18, which AdamW divides by ε = 1e-8, so the bias moves.
    """
    assert run.parameters.keys() == expected.keys()
    for name, array in expected.items():
        got, array = np.asarray(run.parameters[name]), np.asarray(array)
        largest = np.abs(array).max()
        assert np.abs(got - array).max() <= 1e-11 * largest, name
        assert np.abs(without_key_bias(name, got - array)).max() <= 1e-13 * largest, name


def key_biases(parameters):
    return [np.split(np.asarray(b), 3)[1] for name, b in parameters.items() if name.endswith("c_attn.bias")]


def batch_of(step):
    return batches.windows(TEXT, batch=BATCH, length=LENGTH, seed=0, step=step)


def rate_of(step):
    return schedule.rate(step, peak=3e-3, warmup=5, steps=STEPS)


def parameters_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


EVERY = pytest.mark.parametrize(("case", "max_norm"), CASES, ids=lambda value: getattr(value, "name", ""))


@EVERY
def test_every_step_is_autograds(case, max_norm, monkeypatch):
    precise(monkeypatch)
    model = case.model()
    start = parameters_of(model)
    ours = Ours(case, {name: p.numpy().copy() for name, p in start.items()})
    reference = Torchs(model)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batch_of(step)
        loss, norm = ours.step(tokens, targets, rate_of(step), max_norm)
        expected, expected_norm = reference.step(
            torch.from_numpy(tokens), torch.from_numpy(targets), rate_of(step), max_norm
        )
        assert loss == pytest.approx(expected, rel=1e-13, abs=0)
        assert norm == pytest.approx(expected_norm, rel=1e-12, abs=0)
        losses.append(loss)
        norms.append(norm)
    end = parameters_of(model)
    assert_parameters(ours, end)
    np.testing.assert_array_equal(key_biases(ours.parameters), key_biases(start))

    # The run is one worth comparing: it learned, moved every parameter, and clipped some steps but not all.
    assert losses[-1] < losses[0] - 1 / 2
    assert min(norms) < max_norm < max(norms)
    assert all((start[name] - end[name]).abs().max() > 0.01 * end[name].abs().max() for name in end)


@EVERY
def test_tensors_take_the_same_steps(case, max_norm):
    start = parameters_of(case.model())
    arrays = Ours(case, {name: p.numpy().copy() for name, p in start.items()})
    tensors = Ours(case, {name: p.clone() for name, p in start.items()})
    for step in range(12):
        batch = batch_of(step)
        expected = arrays.step(*batch, rate_of(step), max_norm)
        got = tensors.step(*map(torch.from_numpy, batch), rate_of(step), max_norm)
        assert got == pytest.approx(expected, rel=1e-12, abs=0)
    assert_parameters(tensors, arrays.parameters)
    assert all(type(w) is torch.Tensor for w in tensors.parameters.values())


def test_a_model_in_bfloat16_beside_float32_parameters():
    """Each step rounds the parameters for the model, and adds its gradients, in bfloat16, to those of float32."""
    case, max_norm = CASES[0]
    exact = Ours(case, {name: w.float() for name, w in parameters_of(case.model()).items()})
    parameters = dict(exact.parameters)
    state = adamw.start(parameters)
    losses = []
    for step in range(12):
        batch = tuple(map(torch.from_numpy, batch_of(step)))
        short = adamw.rounded(parameters, torch.bfloat16)
        loss, saved = case.module.forward(short, *batch, config=exact.config)
        gradients, _ = clipping.clip(case.module.backward(saved), max_norm)
        assert {d.dtype for d in gradients.values()} == {torch.bfloat16}
        adamw.update(
            parameters,
            gradients,
            state,
            lr=rate_of(step),
            weight_decay=DECAY,
            decayed=exact.decayed,
            **OPTIONS,
        )
        expected, _ = exact.step(*batch, rate_of(step), max_norm)
        losses.append((float(loss), expected))
    assert {w.dtype for w in parameters.values()} == {torch.float32}
    # The loss itself is rounded to bfloat16.
    unit = torch.finfo(torch.bfloat16).eps
    assert all(abs(loss / expected - 1) <= unit for loss, expected in losses)
