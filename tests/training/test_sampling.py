"""Text from a model: probabilities equal to Hugging Face's, and the draws from them."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from backpass.training import sampling

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from hugging_face import CASES, precise
from small_runs import LENGTH, curve, started


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_probabilities_are_those_of_hugging_face(case, monkeypatch):
    precise(monkeypatch)
    model = case.model()
    tokens, _ = case.batch()
    expected = model(tokens, use_cache=False).logits.log_softmax(dim=-1).detach()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    got = sampling.log_probabilities(case.module, parameters, tokens, config=case.ours())
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def run(request):
    run = started(request.param)
    curve(run)
    return run


def drawn(run, prompt=b"the ", tokens=12, window=LENGTH, **options):
    return b"".join(
        sampling.sample(
            run.model,
            run.parameters,
            prompt,
            config=run.config,
            tokens=tokens,
            window=window,
            **options,
        )
    )


def next_log_probabilities(run, text):
    tokens = np.frombuffer(text, np.uint8).astype(int)
    return sampling.log_probabilities(run.model, run.parameters, tokens, config=run.config)[-1]


def test_the_seed_determines_the_text(run):
    assert drawn(run, seed=1) == drawn(run, seed=1) != drawn(run, seed=2)
    assert len(drawn(run, tokens=12)) == 12 and drawn(run, tokens=0) == b""


def test_tensors_draw_the_same(run):
    expected = drawn(run)
    tensors = {name: torch.from_numpy(np.asarray(w)) for name, w in run.parameters.items()}
    got = sampling.sample(run.model, tensors, b"the ", config=run.config, tokens=12, window=LENGTH)
    assert b"".join(got) == expected


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 1}])
def test_the_likeliest_byte(run, options):
    text = b"the "
    for _ in range(LENGTH + 3):  # longer than the window: its last bytes are read
        text += bytes([int(next_log_probabilities(run, text[-LENGTH:]).argmax())])
    assert drawn(run, tokens=LENGTH + 3, **options) == text[4:]


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (2.0, 5)])
def test_bytes_are_drawn_with_their_probabilities(run, temperature, top_k):
    scores = next_log_probabilities(run, b"the ") / temperature
    shares = np.exp(scores - scores.max())
    if top_k:
        shares[np.argsort(shares)[:-top_k]] = 0
    shares /= shares.sum()
    number, rng = 2000, np.random.default_rng(0)
    scores = next_log_probabilities(run, b"the ")
    counts = Counter(sampling._choice(scores, temperature, top_k, rng) for _ in range(number))
    for byte, share in enumerate(shares):
        spread = np.sqrt(share * (1 - share) / number)
        assert abs(counts[byte] / number - share) <= 5 * spread + 1 / number, byte
    assert not top_k or len(counts) <= top_k


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": b"x" * 11}, "prompt: expected from 1 to 10 bytes, .* got 11"),
        ({"prompt": b""}, "prompt: expected from 1 to 10 bytes, .* got 0"),
        ({"temperature": -1}, "temperature: expected a finite number ≥ 0; got -1"),
        ({"top_k": 0}, "top_k: expected an integer of at least 1; got 0"),
        ({"tokens": -1}, "tokens: expected an integer of at least 0"),
        ({"window": 0}, "window: expected from 1"),
        ({"seed": -1}, "seed: expected"),
    ],
)
def test_what_is_rejected(run, options, words):
    with pytest.raises(ValueError, match=words):
        drawn(run, **options)


def test_what_is_rejected_of_a_model():
    run = started("gpt2")
    with pytest.raises(TypeError, match=r"prompt: expected bytes, .* got str"):
        drawn(run, prompt="the ")
    with pytest.raises(ValueError, match="window: expected from 1 to 10, the number of positions; got 11"):
        drawn(run, window=11)
