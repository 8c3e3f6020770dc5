"""Models of transformers, patched in one line: the loss, and the gradient of every parameter, are stock's in float64.

Where stock rounds to float32 in a model of float64, in RMS norms, rotary tables, the softmax and the loss, it has
float64 here: PyTorch's own functions do not round there.
"""

import copy
import pickle
import sys

import pytest
import torch
import transformers
from torch.nn import functional

import proofs
from backpass import hugging_face

FEW = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 20}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
MODELS = {
    "GPT2LMHeadModel": {"vocab_size": 23, "n_positions": 9, "n_embd": 16, "n_layer": 2, "n_head": 4},
    "LlamaForCausalLM": FEW | HEADS,
    "Qwen2ForCausalLM": FEW | HEADS,
    "Qwen3ForCausalLM": FEW | HEADS,
    "MistralForCausalLM": FEW | HEADS | {"sliding_window": 3},
    "Gemma2ForCausalLM": FEW
    | HEADS
    | {"sliding_window": 3, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 5, "pad_token_id": 0},
    "GptOssForCausalLM": FEW
    | HEADS
    | {
        "sliding_window": 3,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "BertForMaskedLM": FEW | {"num_attention_heads": 4, "max_position_embeddings": 9},
}
TWO_KINDS = {"Gemma2ForCausalLM", "GptOssForCausalLM"}  # of layers, with and without a window
# In Triton's interpreter a layer takes half a second. With weights saved, every model has two.
ONE_LAYER = {"num_hidden_layers": 1}, {"n_layer": 1}
LEFT = {"GptOssForCausalLM": {"GptOssExperts", "GptOssTopKRouter"}}
NO_DROPOUT = dict.fromkeys(("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
NO_DROPOUT |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def rotations(monkeypatch):
    """Patching changes the rotation of all models of a family; here until the test ends."""
    for name in MODELS:
        module = sys.modules[getattr(transformers, name).__module__]
        if hasattr(module, "apply_rotary_pos_emb"):
            monkeypatch.setattr(module, "apply_rotary_pos_emb", module.apply_rotary_pos_emb)


def stock(name, **changed):
    """A model with random parameters, none of them 0 or 1."""
    kind = getattr(transformers, name)
    settings = MODELS[name] | NO_DROPOUT | changed
    torch.manual_seed(0)
    model = kind(
        kind.config_class(**settings, attn_implementation="eager", experts_implementation="eager")
    ).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.normal_(0.2, spread, generator=generator)
    return model


def precise(monkeypatch, model):
    """Let stock compute in float64 what it rounds to float32."""
    for module in model.modules():
        kind = type(module)
        if kind.__name__.endswith("RMSNorm"):
            gemma = kind.__name__.startswith("Gemma")
            monkeypatch.setattr(
                kind,
                "forward",
                lambda self, x, gemma=gemma: functional.rms_norm(
                    x,
                    x.shape[-1:],
                    self.weight + (1 if gemma else 0),
                    self.eps if gemma else self.variance_epsilon,
                ),
            )
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x)  # of angles and scores
    softmax = functional.softmax

    def in_its_dtype(x, dim=None, dtype=None):
        return softmax(x, dim=dim)

    monkeypatch.setattr(functional, "softmax", in_its_dtype)


def batch(padded):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(1, 23, (2, 7), generator=generator)
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, :3] = 0
        tokens = tokens * mask
    # The first token is not predicted: what comes before it is padding, whose output has no meaning.
    labels = torch.where(mask.roll(1, 1) * mask == 1, tokens, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def loss_and_gradients(model, given):
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


WAYS = {"whole": (False, 0), "padded": (True, 0), "padded, weights saved": (True, 7 * 7)}


# The code that connects a model to the operations, and the operations.
PATCHED = [proofs.imports(f"backpass.{each}") for each in ("hugging_face", "functional", "ops", "kernels")]


@pytest.mark.rotates(share=0.4, of=lambda name, way: PATCHED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_is_stocks(name, way, monkeypatch):
    padded, few_scores = WAYS[way]
    monkeypatch.setattr(hugging_face, "FEW_SCORES", few_scores)
    given = batch(padded)
    layers = {} if few_scores or name in TWO_KINDS else ONE_LAYER[name.startswith("GPT2")]
    with pytest.MonkeyPatch.context() as patch:
        model = stock(name, **layers)
        precise(patch, model)
        expected_loss, expected = loss_and_gradients(model, given)
    model = hugging_face.patch(stock(name, **layers))
    loss, found = loss_and_gradients(model, given)
    assert abs(loss - expected_loss) <= TOLERANCE * expected_loss
    assert found.keys() == expected.keys()
    for parameter, right in expected.items():
        error = (found[parameter] - right).abs().max()
        assert error <= TOLERANCE * scale_of(parameter, expected), parameter


def scale_of(name, gradients):
    """The largest element of a gradient. The gradient of a bias of keys is 0, because softmax does not see it: there,
    the largest element of its layer's gradients."""
    own = gradients[name].abs().max()
    layer = name.rsplit(".", 2)[0]
    of_layer = max(d.abs().max() for other, d in gradients.items() if other.startswith(layer))
    return own if own > 1e-12 * of_layer else of_layer


@pytest.mark.parametrize("name", MODELS)
def test_what_computes_in_it_is_replaced(name):
    """All but the experts of gpt-oss, with their router, and the tables of rotary positions."""
    left = hugging_face.left(hugging_face.patch(stock(name)))
    assert {kind for kind in left if not kind.endswith("RotaryEmbedding")} == LEFT.get(name, set())


@pytest.mark.parametrize("few", [0, hugging_face.FEW_SCORES], ids=["flash", "plain"])
def test_dropout_is_replaced_and_drawn_from_pytorchs_generator(few, monkeypatch):
    monkeypatch.setattr(hugging_face, "FEW_SCORES", few)
    rates = {"attn_pdrop": 0.3, "resid_pdrop": 0.2, "embd_pdrop": 0.1}
    model = hugging_face.patch(stock("GPT2LMHeadModel", n_layer=1, **rates))
    given, losses = batch(padded=False), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model(**given).loss.item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    assert model(**given).loss == model(**given).loss


def test_accumulated_gradients_are_divided_by_all_tokens():
    model = hugging_face.patch(stock("LlamaForCausalLM"))
    given = batch(padded=True)
    counted = int((given["labels"][:, 1:] != -100).sum())
    mean, sum_over_10 = model(**given).loss, model(**given, num_items_in_batch=10).loss
    torch.testing.assert_close(sum_over_10, mean * counted / 10, rtol=1e-12, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_computes_with_its_own_weights(copied):
    model = hugging_face.patch(stock("LlamaForCausalLM"))
    other, given = copied(model), batch(padded=True)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    assert other(**given).loss != model(**given).loss
    other(**given).loss.backward()
    assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_other_than_the_next_tokens_stays():
    given = batch(padded=False)
    kind = transformers.LlamaForTokenClassification
    torch.manual_seed(0)
    model = kind(kind.config_class(**MODELS["LlamaForCausalLM"], num_labels=23)).eval()
    expected = model(**given).loss
    torch.testing.assert_close(hugging_face.patch(model)(**given).loss, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_half_precision_is_float32(dtype):
    model = hugging_face.patch(stock("LlamaForCausalLM").to(dtype))
    assert model(**batch(padded=False)).loss.dtype == torch.float32


def test_it_generates_as_stock_does_after_padding():
    given = {name: x for name, x in batch(padded=True).items() if name != "labels"}
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    for name in ("LlamaForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel"):
        model = stock(name).float().eval()
        given = {key: x[:, :4] if name.startswith("GPT2") else x for key, x in given.items()}
        expected = model.generate(**given, **settings)
        assert torch.equal(hugging_face.patch(model).generate(**given, **settings), expected), name


def test_only_models_of_transformers_are_accepted():
    with pytest.raises(TypeError, match="model: expected a model of transformers; got Linear"):
        hugging_face.patch(torch.nn.Linear(2, 3))


def test_a_family_that_was_not_compared_is_rejected():
    """Such as one whose function of the same name rotates a part of each head."""
    config = transformers.GlmConfig(**FEW, **HEADS, pad_token_id=0)
    with pytest.raises(ValueError, match=r"expected one of the families bert, .*; got GlmForCausalLM of glm"):
        hugging_face.patch(transformers.GlmForCausalLM(config))


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel"])
def test_a_cache_of_fixed_length_may_be_longer_than_what_is_in_it(name):
    model = hugging_face.patch(stock(name).eval())
    tokens = batch(padded=False)["input_ids"]
    expected = model(tokens).logits
    longest = 9  # positions of GPT-2
    cache = transformers.StaticCache(config=model.config, max_cache_len=longest)
    torch.testing.assert_close(model(tokens, past_key_values=cache).logits, expected, rtol=1e-9, atol=1e-9)
    settings = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0}
    static = model.generate(tokens, cache_implementation="static", **settings)
    assert torch.equal(static, model.generate(tokens, **settings))


def test_another_model_of_the_same_configuration_stays_as_it_is():
    config = stock("LlamaForCausalLM").config
    one, other = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    hugging_face.patch(one)
    assert other.config._attn_implementation == config._attn_implementation == "eager"
    assert {module.config._attn_implementation for module in one.modules() if hasattr(module, "config")} == {
        "backpass"
    }
