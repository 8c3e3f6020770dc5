"""A small network of each family, drawn by NumPy alone."""

import numpy as np

from backpass.models import gpt2, llama

NETWORKS = {
    "gpt2": (gpt2, gpt2.Config(7, 6, 6, 2, 3, 5)),
    "gpt2, untied": (gpt2, gpt2.Config(7, 6, 6, 1, 1, 9, tied=False)),
    "llama": (llama, llama.Config(8, 6, 2, 4, 2, 4, 5)),
    "qwen2, tied": (llama, llama.Config(8, 6, 2, 4, 1, 2, 5, biases=True, tied=True)),
    "qwen3": (llama, llama.Config(8, 6, 2, 4, 2, 4, 5, query_key_norm=True)),
}


def parameters_of(module, config, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 4) + (len(shape) == 1)
        for name, shape in module.parameter_shapes(config).items()
    }


def batch_of(config, seed=1):
    """Tokens and targets ``[2, 5]``; one target is ignored, and some tokens occur twice."""
    tokens, targets = np.random.default_rng(seed).integers(0, config.vocabulary, (2, 2, 5))
    targets[1, 2] = -100
    return tokens, targets


def drawn(name):
    module, config = NETWORKS[name]
    return module, config, parameters_of(module, config), batch_of(config)
