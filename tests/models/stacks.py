"""The encoder and the encoder with a decoder: configurations, drawn inputs, and PyTorch's modules as references."""

import numpy as np
import torch

from backpass.models import encoder, seq2seq

from .pytorch import by_autograd, parameters_of, with_parameters

Encoder, Both = encoder.Config, seq2seq.Config
# Configuration, leading axes, and the lengths: of the rows; or of the source and the target.
CASES = {
    "encoder, one head": (Encoder(6, 1, 1, 9), (2,), 5),
    "encoder, heads": (Encoder(12, 2, 3, 7), (2,), 7),
    "encoder, three layers": (Encoder(8, 3, 4, 5, eps=1e-3), (2,), 9),
    "encoder, final norm": (Encoder(6, 2, 2, 5, final_norm=True), (), 3),
    "encoder, one row": (Encoder(6, 2, 2, 5), (3,), 1),
    "encoder, one head, norm first": (Encoder(6, 1, 1, 9, norm_first=True), (2,), 5),
    "encoder, heads, norm first": (Encoder(12, 2, 3, 7, norm_first=True), (2,), 7),
    "encoder, three layers, norm first": (Encoder(8, 3, 8, 5, norm_first=True, eps=1e-3), (), 9),
    "encoder, final norm, norm first": (Encoder(6, 2, 2, 5, norm_first=True, final_norm=True), (2,), 3),
    "encoder, one row, norm first": (Encoder(6, 2, 3, 5, norm_first=True), (3,), 1),
    "both, one head": (Both(6, 1, 1, 1, 9), (2,), 5, 3),
    "both, heads": (Both(12, 1, 2, 3, 7), (2,), 4, 7),
    "both, three layers": (Both(8, 2, 3, 4, 5, eps=1e-3), (2,), 7, 5),
    "both, one row": (Both(6, 2, 2, 2, 5), (3,), 1, 1),
    "both, one head, norm first": (Both(6, 1, 1, 1, 9, norm_first=True), (2,), 3, 5),
    "both, heads, norm first": (Both(12, 2, 1, 3, 7, norm_first=True), (2,), 7, 4),
    "both, three layers, norm first": (Both(8, 1, 3, 8, 5, norm_first=True, eps=1e-3), (), 5, 9),
    "both, one target, norm first": (Both(6, 1, 2, 3, 5, norm_first=True), (3,), 5, 1),
}


def module_of(config):
    return encoder if isinstance(config, Encoder) else seq2seq


def drawn_stack(name, seed=1):
    """The configuration, the parameters, the rows of each input, and the gradient of the output."""
    config, leading, *lengths = CASES[name]
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((*leading, n, config.width)) for n in (*lengths, lengths[-1])]
    return config, parameters_of(module_of(config), config), *rows


def step(parameters, *rows, config, **options):
    """The output, the gradients of the inputs, and the parameters' gradients; the last of the rows are the gradient of the
    output."""
    module, (*inputs, dy) = module_of(config), rows
    y, saved = module.forward(parameters, *inputs, config=config, **options)
    return y, *module.backward(dy, saved)


def pytorchs(config, parameters):
    c = config
    common = {"dropout": 0.0, "layer_norm_eps": c.eps, "norm_first": c.norm_first, "batch_first": True}
    common["dtype"] = torch.float64
    if isinstance(config, Both):
        sizes = c.width, c.heads, c.encoder_layers, c.decoder_layers, c.feed_forward
        return with_parameters(torch.nn.Transformer(*sizes, **common), parameters)
    layer = torch.nn.TransformerEncoderLayer(c.width, c.heads, c.feed_forward, **common)
    norm = torch.nn.LayerNorm(c.width, eps=c.eps, dtype=torch.float64) if c.final_norm else None
    stack = torch.nn.TransformerEncoder(layer, c.layers, norm=norm, enable_nested_tensor=False)
    return with_parameters(stack, parameters)


def autograds(stack, *rows):
    """What ``step`` returns, of PyTorch's module."""
    *inputs, dy = rows
    masks = {}
    if isinstance(stack, torch.nn.Transformer):
        s = inputs[-1].shape[-2]
        masks["tgt_mask"] = torch.nn.Transformer.generate_square_subsequent_mask(s, dtype=dy.dtype)
    return by_autograd(stack, inputs, dy, **masks)
