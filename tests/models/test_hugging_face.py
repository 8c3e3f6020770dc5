"""The models agree with Hugging Face's: the loss, and the gradient of every parameter."""

import json

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from backpass.models import gpt2, llama

from .hugging_face import CASES, as_numpy, loss_and_gradients, precise

EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
TOLERANCE = 1e-10  # of the largest element


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    precise(monkeypatch)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def drawn(request):
    """A case, its parameters and batch, and the loss and gradients of Hugging Face."""
    patch = pytest.MonkeyPatch()
    precise(patch)
    model, batch = request.param.model(), request.param.batch()
    loss, gradients = loss_and_gradients(model, *batch)
    patch.undo()
    return request.param, model.state_dict(), batch, loss, as_numpy(gradients)


@pytest.fixture
def drawn_once(monkeypatch):
    """The loss and gradients of Hugging Face for a case, with or without the replacements."""

    def draw(case, replaced):
        monkeypatch.undo()
        if replaced:
            precise(monkeypatch)
        loss, gradients = loss_and_gradients(case.model(), *case.batch())
        return loss, as_numpy(gradients)

    return draw


def scale_of(name, gradients):
    """The largest element of a parameter's gradient. For a gradient that is 0 by derivation, such as that of queries
    which see one key, the largest element of the layer's gradients."""
    own = np.abs(gradients[name]).max()
    layer = ".".join(name.split(".")[:3])
    of_layer = max(np.abs(d).max() for other, d in gradients.items() if other.startswith(layer))
    return own if own > 1e-13 * of_layer else of_layer


def assert_equal(loss, gradients, expected_loss, expected):
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-13, abs=0)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert gradient.shape == expected[name].shape
        error = np.abs(np.asarray(gradient) - expected[name]).max()
        assert error <= TOLERANCE * scale_of(name, expected), name


@pytest.mark.parametrize("options", [{}, {"flash": False}, {"chunked": False}], ids=str)
def test_numpy(drawn, options):
    case, state, (tokens, targets), *expected = drawn
    parameters = as_numpy(state)
    before = {name: array.copy() for name, array in parameters.items()}
    loss, saved = case.module.forward(
        parameters, tokens.numpy(), targets.numpy(), config=case.ours(), **options
    )
    gradients = case.module.backward(saved)
    assert all(type(d) is np.ndarray and d.dtype == np.float64 for d in gradients.values())
    assert_equal(loss, gradients, *expected)
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, before[name])


def test_torch(drawn):
    case, state, batch, *expected = drawn
    loss, saved = case.module.forward(state, *batch, config=case.ours(), flash=False, chunked=False)
    assert not loss.requires_grad
    assert_equal(loss, case.module.backward(saved), *expected)


@pytest.mark.parametrize("case", CASES[::5], ids=lambda case: case.name)
def test_a_file_of_safetensors(case, tmp_path):
    """What transformers writes loads as it is, in NumPy and in torch, with the configuration beside it."""
    model, (tokens, targets) = case.model(), case.batch()
    expected_loss, expected = loss_and_gradients(model, tokens, targets)
    model.save_pretrained(tmp_path)
    config = case.module.Config.from_hugging_face(json.loads((tmp_path / "config.json").read_text()))
    path = tmp_path / "model.safetensors"
    for parameters, batch in (
        (safetensors.numpy.load_file(path), (tokens.numpy(), targets.numpy())),
        (safetensors.torch.load_file(path), (tokens, targets)),
    ):
        loss, saved = case.module.forward(parameters, *batch, config=config)
        gradients = case.module.backward(saved)
        assert gradients.keys() == parameters.keys()
        assert_equal(loss, gradients, expected_loss, as_numpy(expected))


def test_transformers_own_loss_is_ours_with_the_targets_shifted():
    """Given labels, transformers shifts them itself and ignores −100; it rounds the scores to float32."""
    case = CASES[0]
    model, (tokens, _) = case.model(), case.batch()
    labels = tokens.clone()
    labels[0, 3] = -100
    expected = model(tokens, labels=labels, use_cache=False).loss.detach()
    loss, _ = gpt2.forward(model.state_dict(), tokens[:, :-1], labels[:, 1:], config=case.ours())
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("llama", "qwen2", "qwen3")], ids=lambda case: case.name
)
def test_without_the_replacements_a_float64_model_is_as_exact_as_float32(case, drawn_once):
    """This is why the reference has PyTorch's own norms and angles in place of Hugging Face's."""
    (loss, gradients), (_, exact) = drawn_once(case, replaced=False), drawn_once(case, replaced=True)
    assert loss.dtype == torch.float64
    errors = [np.abs(d - exact[name]).max() / scale_of(name, exact) for name, d in gradients.items()]
    assert 1e-9 < max(errors) < 1e-5


PUBLISHED = {
    gpt2: {
        "gpt2": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
    },
    llama: {
        "llama-2-7b": 6_738_415_616,
        "llama-3-8b": 8_030_261_248,
        "llama-3-70b": 70_553_706_496,
        "tinyllama-1.1b": 1_100_048_384,
        "qwen2-0.5b": 494_032_768,
        "qwen3-0.6b": 596_049_920,
        "qwen3-8b": 8_190_735_360,
    },
}


@pytest.mark.parametrize("module", PUBLISHED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_presets_have_the_published_number_of_parameters(module):
    for name, count in PUBLISHED[module].items():
        shapes = module.parameter_shapes(module.Config.preset(name))
        assert sum(np.prod(shape, dtype=np.int64) for shape in shapes.values()) == count, name
    assert PUBLISHED[module].keys() == module.PRESETS.keys()


@EVERY
def test_shapes_are_transformers(case):
    with torch.device("meta"):
        model = case.model()
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    prefix = case.module.PREFIX
    ours = case.module.parameter_shapes(case.ours())
    assert {name.removeprefix(prefix): shape for name, shape in expected.items()} == ours
