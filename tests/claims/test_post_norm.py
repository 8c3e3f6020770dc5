"""The gradient at the bottom of random post-norm stacks of 80 layers, with and without attention."""

import numpy as np
import pytest
import torch

from backpass_ledger.claims.gradient_flow_post.paths import at_bottom, descend

LAYERS, ROWS, WIDTH, HEADS, WORDS = 80, 128, 128, 4, 1000


def shrinks(seed):
    """Return the stream's gradient after the last layer, relative to that before the first, for
    a cross-entropy and layers of attention without a mask and of a feed-forward block."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw).double()

    def weights(rows, columns):
        return normal(rows, columns) * rows**-0.5

    def norm(h):
        return torch.nn.functional.layer_norm(h, (WIDTH,))

    def heads(h):
        return h.view(ROWS, HEADS, -1).transpose(0, 1)

    first = last = normal(ROWS, WIDTH).requires_grad_()
    for _ in range(LAYERS):
        query, key, value, out = (weights(WIDTH, WIDTH) for _ in range(4))
        attended = torch.nn.functional.scaled_dot_product_attention(
            heads(last @ query), heads(last @ key), heads(last @ value)
        )
        last = norm(last + attended.transpose(0, 1).reshape(ROWS, WIDTH) @ out)
        up, down = weights(WIDTH, 4 * WIDTH), weights(4 * WIDTH, WIDTH)
        last = norm(last + torch.relu(last @ up) * 2**0.5 @ down)
    scores = last @ weights(WIDTH, WORDS)
    loss = torch.nn.functional.cross_entropy(scores, torch.randint(WORDS, (ROWS,), generator=draw))
    bottom, top = torch.autograd.grad(loss, (first, last))
    return float(top.norm() / bottom.norm())


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_without_attention_the_gradient_shrinks_less_than_twenty_times(scale):
    assert all(1 / at_bottom("post", 160, scale, kinds=(False,)) < 20)


def test_with_attention_some_draws_shrink_it_more_than_a_hundred_times():
    found = sorted(shrinks(seed) for seed in range(5))
    assert found[-1] > 100 > 20 > found[-2]


def test_which_order_varies_more_from_block_to_block_depends_on_depth():
    def spread(order, blocks):
        seeds = range(3)
        each = [descend(order, blocks, seed, attention=True)[0] for seed in seeds]
        return [np.log(lengths).std() for lengths in each]

    assert max(spread("post", 32)) < min(spread("pre", 32))
    assert max(spread("post", 256)) > max(spread("pre", 256))
