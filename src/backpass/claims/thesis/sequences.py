"""§2.2.1 and §2.2.2: sequences, and the encoder's block as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.claims import encoder_block as its
from backpass.claims.evidence import (
    CAVEAT,
    LEFT_OUT,
    TRUE,
    UNCHECKABLE,
    Evidence,
)
from backpass.claims.record import claim
from backpass.claims.tools import jacobian, numbers, same


def recurrent(x: Any, w: Any) -> Any:
    """Return the states of a plain recurrence, one after another, for a torch tensor of
    inputs with the positions first."""
    import torch

    states = [torch.zeros_like(x[0])]
    for each in x:
        states.append((states[-1] @ x.new_tensor(w) + each).tanh())
    return torch.stack(states[1:])


def attended(x: Any, *, causal: bool = False, scale: float = 1.0) -> Any:
    """Return attention's output with x for queries, keys, and values."""
    scores = scale * x @ x.T
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape).triu(1) > 0, -np.inf)
    return scores.softmax(1) @ x


def reaches(function: Any, x: Any) -> Any:
    """Return whether output row i depends on input row j, for all pairs."""
    return np.abs(jacobian(function, x)).sum((1, 3)) > 0


@claim("§2.2.1, embeddings", TRUE, topic="embeddings", page="operations/embeddings")
def T31(it: Evidence) -> None:
    """A token is mapped to a vector, its embedding.

    The vector is a row of a trained table: the product of a one-hot vector with the
    table. Whether it captures the token's meaning cannot be tested here.
    """
    import torch

    table, tokens = numbers(11, 3), [4, 0, 4]
    found = torch.nn.functional.embedding(torch.tensor(tokens), torch.tensor(table))
    it.as_printed(same(np.eye(11)[tokens] @ table, found))


@claim("§2.2.1, lengths", TRUE, topic="attention", page="attention/scaled_dot_product")
def T32(it: Evidence) -> None:
    """Sequences vary in length, and one architecture with the same parameters has to
    take all of them, near and far dependencies included."""
    import torch

    for n in (1, 3, 8):
        y = its.block(torch.tensor(numbers(n, 4)), its.block_weights(), pre=True)
        it.as_printed(tuple(y.shape) == (n, 4))
    it.as_printed(bool(reaches(attended, numbers(8, 2))[0, 7]))


@claim(
    "§2.2.1, data sets", UNCHECKABLE, topic="training", page="networks/training", harm=1
)
def T33(it: Evidence) -> None:
    """Data sets contain millions or billions of tokens.

    For the models that the text names this is low: its reference for GPT-3 has 300
    billion training tokens.
    """


@claim(
    "§2.2.1, recurrent networks, speed",
    CAVEAT,
    topic="training",
    page="networks/whole_network",
    harm=1,
)
def T34(it: Evidence) -> None:
    """Recurrent networks process a sequence step by step, which made training hard to
    parallelise for large data sets.

    The chain of dependent steps is as long as a sequence. It does not grow with the
    data set: the sequences of a batch do not depend on each other.
    """
    w = numbers(2, 2)
    along = reaches(lambda x: recurrent(x, w), numbers(5, 2))
    it.as_printed(bool(along[np.tril_indices(5)].all()) and not along[0, 1:].any())
    of_batch = jacobian(lambda x: recurrent(x, w), numbers(3, 4, 2))
    it.elsewhere(bool(np.abs(of_batch[:, 0, :, :, 1]).max() > 0))


@claim(
    "§2.2.1, recurrent networks, memory",
    CAVEAT,
    topic="training",
    page="numerics/gradient_flow",
    harm=1,
)
def T35(it: Evidence) -> None:
    """For recurrent networks it was hard to retain information from the beginning of a
    sequence to its end.

    With a recurrent matrix that shrinks vectors, the gradient vanishes with the
    distance. An orthogonal matrix preserves the gradient's length.
    """
    turn = np.linalg.qr(numbers(6, 6))[0]

    def arrives(rho: float) -> Any:
        gradient = numbers(6)
        before = np.linalg.norm(gradient)
        for _ in range(100):
            gradient = rho * turn.T @ gradient
        return np.linalg.norm(gradient) / before

    it.as_printed(bool(arrives(0.9) < 1e-4))
    it.elsewhere(bool(arrives(1.0) < 1e-4))


@claim(
    "§2.2.1, attention in recurrent networks",
    TRUE,
    topic="attention",
    page="attention/scaled_dot_product",
)
def T36(it: Evidence) -> None:
    """Attention helped recurrent networks to focus on parts of the input, and their
    core stayed sequential.

    A far state has a direct path to the output, of the size of its weight; each state
    still needs the one before it.
    """
    h, q = numbers(9, 4), numbers(4, seed=1)
    a = np.exp(h @ q) / np.exp(h @ q).sum()
    direct = jacobian(lambda t: t.new_tensor(a) @ t, h)[:, 0, :]
    it.as_printed(same(direct, a[0] * np.eye(4)))
    it.as_printed(bool(reaches(lambda x: recurrent(x, np.eye(2)), numbers(4, 2))[3, 0]))


@claim(
    "§2.2.1, without recurrence",
    TRUE,
    topic="attention",
    page="attention/scaled_dot_product",
)
def T37(it: Evidence) -> None:
    """The Transformer has self-attention in place of recurrence.

    Without positions, attention does not know an order at all: permuted rows give the
    same rows, permuted.
    """
    import torch

    x, order = torch.tensor(numbers(6, 3)), [3, 0, 5, 1, 2, 4]
    it.as_printed(same(attended(x[order]), attended(x)[order]))


@claim(
    "§2.2.1, §2.2.2, and §2.2.3, who sees whom",
    CAVEAT,
    topic="attention",
    page="attention/scaled_dot_product",
    harm=3,
)
def T38(it: Evidence) -> None:
    """Self-attention lets every token directly consider and affect every other one; it
    connects any pair of positions.

    This holds in an encoder. In a decoder's masked self-attention a token sees itself
    and earlier tokens only, and training on the next token needs that mask.
    """
    x = numbers(5, 3)
    it.as_printed(bool(reaches(attended, x).all()))
    it.elsewhere(bool(reaches(lambda t: attended(t, causal=True), x).all()))


@claim(
    "§2.2.1, parallel positions",
    CAVEAT,
    topic="attention",
    page="networks/encoder_decoder",
    harm=1,
)
def T39(it: Evidence) -> None:
    """All positions can be processed at the same time.

    This holds in training, where all inputs are known. In generation each input is an
    earlier output, so one pass over all positions is not enough.
    """
    import torch

    x = torch.tensor(numbers(6, 3))
    whole = attended(x, causal=True)
    each = torch.stack([attended(x[: i + 1], causal=True)[i] for i in range(6)])
    it.as_printed(same(whole, each))
    fed = x[:1]
    for i in range(5):
        fed = torch.cat([fed, attended(fed, causal=True)[i : i + 1].tanh() + 1])
    once = torch.cat([x[:1], attended(x, causal=True)[:5].tanh() + 1])
    it.elsewhere(same(fed, once, 1e-3))


@claim(
    "§2.2.1, long range",
    CAVEAT,
    topic="attention",
    page="attention/scaled_dot_product",
    harm=1,
)
def T40(it: Evidence) -> None:
    """Long-range dependencies are handled better because distant tokens are connected
    directly.

    The path has one step at any distance. Its factor is a weight, which for scores near
    0 is about 1/n, so a direct path can be a weak one.
    """

    def far(n: int, scale: float) -> float:
        x = numbers(n, 3)
        found = jacobian(lambda t: attended(t, scale=scale), x)
        return float(np.abs(found[0, :, n - 1, :]).max())

    it.as_printed(all(far(n, 1.0) > 0 for n in (3, 9, 27)))
    it.elsewhere(far(27, 1e-3) > far(3, 1e-3) / 2)
    it.right(same(far(27, 1e-6), 1 / 27, 1e-3))


@claim(
    "§2.2.1, scaling",
    CAVEAT,
    topic="attention",
    page="attention/scaled_dot_product",
    harm=1,
)
def T41(it: Evidence) -> None:
    """The architecture scales well with data.

    Twice as many sequences cost twice as much. Twice the length costs more than that:
    the text's own total has a term in the square of the length.
    """

    def block(n: int, d: int) -> Any:
        return its.printed("block", s=n, h=d)

    it.as_printed(
        cost.tally("gpt2", 6, 64).total() < 2.01 * cost.tally("gpt2", 3, 64).total()
    )
    it.elsewhere(block(4_096, 512) <= 2.01 * block(2_048, 512))


@claim(
    "§2.2.1, what replaced what",
    UNCHECKABLE,
    topic="training",
    page="networks/whole_network",
)
def T42(it: Evidence) -> None:
    """Parallel training and direct connections are the reason why Transformers replaced
    recurrent networks and are today the main architecture for language.

    A statement about history; no experiment here can show the reason.
    """


@claim(
    "§2.2.2, first sentence",
    CAVEAT,
    topic="notation",
    page="networks/encoder_decoder",
    harm=1,
)
def T43(it: Evidence) -> None:
    """The transformer follows an encoder-decoder architecture.

    The original does. GPT-3, which the text names as an example, has a decoder's stack
    alone, as GPT-2 has, and the text counts an encoder's block alone.
    """
    from backpass.models import gpt2, seq2seq

    def stacks(model: Any) -> set[str]:
        names = " ".join(vars(model.Config)["__dataclass_fields__"])
        return {part for part in ("encoder", "decoder") if part in names}

    it.as_printed(stacks(seq2seq) == {"encoder", "decoder"})
    it.elsewhere(stacks(gpt2) == {"encoder", "decoder"})


@claim("§2.2.2, N blocks", LEFT_OUT, topic="FLOPs", page="cost/tally", harm=3)
def T44(it: Evidence) -> None:
    """The block is repeated N times, each on the output of the one before.

    N never enters a count. The backward of the original's six encoder blocks costs six
    times the text's total.
    """
    n, d, layers = 5, 3, 6
    it.left_out((layers - 1) * its.printed("block", s=n, h=d))


@claim(
    "§2.2.2, decoder", LEFT_OUT, topic="FLOPs", page="networks/encoder_decoder", harm=5
)
def T45(it: Evidence) -> None:
    r"""Only the encoder is analysed, because the analysis of the decoder is similar.

    A decoder's block has a third sub-layer, attention over the encoder's output. By the
    text's rule, at equal lengths, it adds $16nd^2 + 8n^2d + 4n^2 + 4nd$, a third more
    in $nd^2$ and as much again in $n^2d$, and a third norm and residual sum.
    """
    n, d = 5, 3
    cross = its.counted(its.attention_run(n, d), its.attention_backward, **its.BY_RULE)
    it.left_out(cross)
    it.right(cross == 16 * n * d**2 + 8 * n**2 * d + 4 * n**2 + 4 * n * d)


@claim(
    "§2.2.2, embeddings and positions",
    LEFT_OUT,
    topic="embeddings",
    page="operations/embeddings",
    harm=1,
)
def T46(it: Evidence) -> None:
    r"""Inputs become embeddings of dimension $d$, to which positional encodings are
    added.

    The original multiplies the embeddings by $\sqrt d$ first. The backward adds each
    token's gradient to its row of the table, $nd$ additions for $n$ tokens, which the
    text does not count.
    """
    rows = cost.tally("gpt2", 1, 1_024).rows
    scattered = sum(r.flops for r in rows if r.term.call == "token embedding")
    it.left_out(scattered)
    it.right(scattered == 1_024 * 768)


def framework_layer(heads: int = 1, d: int = 4, f: int = 8) -> Any:
    """Return PyTorch's layer of an encoder, with random weights and no dropout."""
    import torch

    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(
        d, heads, f, dropout=0.0, batch_first=True, dtype=torch.float64
    )


@claim(
    "§2.2.2, contents of a layer",
    TRUE,
    topic="residual",
    page="networks/encoder_decoder",
)
def T47(it: Evidence) -> None:
    """Each layer contains self-attention, a position-wise feed-forward network,
    residual connections, and layer normalisations.

    PyTorch's layer, which follows the original, has these parts in this order, and
    dropout.
    """
    import torch

    layer, x = framework_layer(), torch.tensor(numbers(1, 5, 4))
    y = layer.norm1(x + layer.self_attn(x, x, x)[0])
    y = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
    it.as_printed(same(y.detach(), layer(x).detach()))


@claim(
    "§2.2.2, dropout",
    LEFT_OUT,
    topic="residual",
    page="networks/encoder_decoder",
    harm=2,
)
def T48(it: Evidence) -> None:
    r"""The list of what a layer contains is that of the original.

    The original drops elements of each sub-layer's output. The backward of the two
    dropouts is one product an element, $2nd$ in all, and the text has no dropout.
    """
    n, d = 5, 3
    dropped = its.steps(lambda dy, mask: dy * mask, numbers(n, d), np.ones((n, d)))
    it.left_out(2 * dropped)
    it.right(dropped == n * d)


@claim("§2.2.2, parameters", TRUE, topic="training", page="networks/encoder_decoder")
def T49(it: Evidence) -> None:
    """Blocks have the same structure and do not share parameters."""
    import torch

    stack = torch.nn.TransformerEncoder(
        framework_layer(), 3, enable_nested_tensor=False
    )
    places = [{p.data_ptr() for p in layer.parameters()} for layer in stack.layers]
    shapes = [[p.shape for p in layer.parameters()] for layer in stack.layers]
    it.as_printed(not (places[0] & places[1] or places[1] & places[2]))
    it.as_printed(shapes[0] == shapes[1] == shapes[2])


@claim("§2.2.2, cost of each layer", TRUE, topic="FLOPs", page="cost/tally")
def T50(it: Evidence) -> None:
    """Computations and costs are the same for each layer."""
    from dataclasses import replace

    config = cost.presets()["gpt2"]
    totals = [cost.tally(replace(config, layers=k), 2, 9).total() for k in (1, 2, 3)]
    it.as_printed(totals[2] - totals[1] == totals[1] - totals[0] > 0)
