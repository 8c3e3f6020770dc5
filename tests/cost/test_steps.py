"""Published formulas, applied to networks of ours, are the numbers that follow from the tally by hand."""

import pytest

from backpass import cost
from backpass.cost.steps import published_steps
from backpass.models import encoder


def test_the_formulas_beside_the_products_of_gpt2():
    config, b, s = cost.configuration("gpt2-124m"), 2, 1024
    products = cost.tally(config, b, s).total("products-whole")
    found = published_steps(config, b, s)
    h, L, V = 768, 12, 50257
    of_scores = 12 * L * h * s * b * s
    assert found["korthikanti-model"] == products
    assert found["nanogpt-mfu"] - products == 6 * b * s * (L * (13 * h) + 2 * h)  # norms and biases
    assert found["palm"] - found["nanogpt-mfu"] == 6 * b * s * 1024 * h  # the positions
    assert found["6n-all"] + of_scores == found["palm"]
    assert found["torchtitan"] == found["nanogpt-mfu"]  # the tied table is the head
    assert found["llm-foundry"] == found["palm"]
    assert found["6n"] == 6 * b * s * 12 * L * h**2
    assert found["hoffmann-forward"] - products == 3 * b * (2 * s * V * h + 3 * L * 12 * s * s)
    assert found["megatron-plain"] == products - of_scores // 2
    assert found["narayanan"] == products + b * s * L * (24 * h**2 + 4 * s * h)
    assert "megatron-gated" not in found


def test_the_formulas_beside_the_products_of_llama():
    config, b, s = cost.configuration("llama-3-8b"), 1, 8192
    products = cost.tally(config, b, s).flops("products-halved")
    found = published_steps(config, b, s)
    assert found["megatron-gated"] == sum(products.values())
    norms = (2 * 32 + 1) * 4096
    of_scores = 12 * 32 * 4096 * s * s
    assert found["torchtitan"] - of_scores // 2 - sum(products.values()) == 6 * norms * s
    assert found["palm"] - found["torchtitan"] == 6 * 128256 * 4096 * s
    assert found["llm-foundry"] == found["torchtitan"]  # neither has positions
    tied = published_steps(cost.configuration("qwen3-0.6b"), b, s)
    assert tied["torchtitan"] == tied["palm"]


def test_a_preset_by_name():
    config = cost.configuration("qwen3-0.6b")
    assert published_steps("qwen3-0.6b", 2, 100) == published_steps(config, 2, 100)
    with pytest.raises(LookupError, match=r"no preset is called 'qwen3-0\.5b'"):
        published_steps("qwen3-0.5b", 2, 100)


def test_a_stack_has_no_tokens():
    with pytest.raises(TypeError, match="config: expected a Config of gpt2 or llama"):
        published_steps(encoder.Config(6, 1, 1, 5), 1, 1)
