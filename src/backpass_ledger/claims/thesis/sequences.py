"""§2.2.1 and §2.2.2: sequences, and the encoder's block as a whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from backpass import cost
from backpass.models import gpt2, seq2seq
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers, same, torch

CLAIMS = """
T34  true         0  embeddings  operations/embeddings         §2.2.1, embeddings
T35  true         0  attention   attention/scaled_dot_product  §2.2.1, lengths
T36  uncheckable  1  training    networks/training             §2.2.1, data sets
T37  uncheckable  1  training    networks/whole_network        §2.2.1, why recurrent networks
T38  caveat       1  training    networks/whole_network        §2.2.1, recurrent networks, speed
T39  caveat       1  training    numerics/gradient_flow        §2.2.1, recurrent networks, memory
T40  true         0  attention   attention/scaled_dot_product  §2.2.1, attention in recurrent networks
T41  true         0  attention   attention/scaled_dot_product  §2.2.1, without recurrence
T42  false        5  attention   attention/scaled_dot_product  §2.2.1, §2.2.2, and §2.2.3, who sees whom
T43  caveat       1  attention   networks/encoder_decoder      §2.2.1, parallel positions
T44  caveat       1  attention   attention/scaled_dot_product  §2.2.1, long range
T45  true         0  attention   attention/scaled_dot_product  §2.2.1, scaling
T46  uncheckable  0  training    networks/whole_network        §2.2.1, what replaced what
T47  caveat       1  notation    networks/encoder_decoder      §2.2.2, first sentence
T48  left-out     1  FLOPs       cost/tally                    §2.2.2, N blocks
T49  left-out     5  FLOPs       networks/encoder_decoder      §2.2.2, decoder
T50  left-out     1  embeddings  operations/embeddings         §2.2.2, embeddings and positions
T51  true         0  residual    networks/encoder_decoder      §2.2.2, contents of a layer
T52  left-out     2  residual    networks/encoder_decoder      §2.2.2, dropout
T53  true         0  training    networks/encoder_decoder      §2.2.2, parameters
T54  true         0  FLOPs       cost/tally                    §2.2.2, cost of each layer
"""


def recurrent(x: Any, w: Any) -> Any:
    """Return the states of a plain recurrence, one after another, for a torch tensor of
    inputs with the positions first."""
    states = [torch.zeros_like(x[0])]
    for each in x:
        states.append((states[-1] @ x.new_tensor(w) + each).tanh())
    return torch.stack(states[1:])


def attended(x: Any, *, causal: bool = False, scale: float = 1.0) -> Any:
    """Return attention's output with x for queries, keys, and values."""
    return torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None], is_causal=causal, scale=scale
    )[0]


def reaches(function: Any, x: Any) -> Any:
    """Return whether output row i depends on input row j, for all pairs."""
    return np.abs(jacobian(function, x)).sum((1, 3)) > 0


def T34(it: Evidence) -> None:
    """A token is mapped to a vector, its embedding.

    The vector is a row of a trained table: the product of a one-hot vector with it.
    Whether it captures the meaning cannot be tested here."""
    table, tokens = numbers(11, 3), [4, 0, 4]
    found = torch.nn.functional.embedding(torch.tensor(tokens), torch.tensor(table))
    it.as_printed(same(np.eye(11)[tokens] @ table, found))


def T35(it: Evidence) -> None:
    """Sequences vary in length, and one architecture with the same parameters has to
    accept all of them, near and far dependencies included."""
    for n in (1, 3, 8):
        y = its.block(torch.tensor(numbers(n, 4)), its.block_weights(), pre=True)
        it.as_printed(tuple(y.shape) == (n, 4))
    it.as_printed(bool(reaches(attended, numbers(8, 2)).all()))


def T36(it: Evidence) -> None:
    """Data sets have from millions to billions of tokens.

    GPT-3, which the text names, had 300 billion."""


def T37(it: Evidence) -> None:
    """Far dependencies, varying lengths, and large data sets motivated first recurrent
    networks and then Transformers.

    This is a statement about history, without a source. By the text itself, recurrent
    networks were hard to parallelise for large data sets."""


def T38(it: Evidence) -> None:
    """Recurrent networks process a sequence step by step, which made training hard to
    parallelise for large data sets.

    The chain of dependent steps is as long as a sequence. It does not grow with the
    data set: the sequences of a batch do not depend on each other."""
    w = numbers(2, 2)
    along = reaches(lambda x: recurrent(x, w), numbers(5, 2))
    it.as_printed(bool((along == np.tri(5, dtype=bool)).all()))
    of_batch = jacobian(lambda x: recurrent(x, w), numbers(3, 4, 2))
    it.elsewhere(bool(of_batch[:, 0, :, :, 1].any()))


def T39(it: Evidence) -> None:
    """Recurrent networks hardly kept the beginning of a sequence until its end.

    With a recurrent matrix that shrinks vectors, the gradient vanishes with the
    distance. An orthogonal matrix preserves the gradient's length."""
    turn, gradient = np.linalg.qr(numbers(6, 6))[0], numbers(6)
    length = np.linalg.norm(gradient)
    shrunk, kept = (
        np.linalg.norm(np.linalg.matrix_power(rho * turn.T, 100) @ gradient)
        for rho in (0.9, 1.0)
    )
    it.as_printed(bool(shrunk < 1e-4 * length))
    it.elsewhere(bool(kept < 1e-4 * length))
    it.right(same(kept, length))


def T40(it: Evidence) -> None:
    """Attention helped recurrent networks to focus; their core stayed sequential.

    Where the recurrence forgets, attention's output still depends on the first input.
    Each state still depends on all earlier inputs."""
    w, x = 0.1 * np.linalg.qr(numbers(3, 3))[0], numbers(9, 3)

    def read(x: Any) -> Any:
        states = recurrent(x, w)
        return (states[-1:] @ states.T).softmax(1) @ states

    plain = np.abs(jacobian(lambda x: recurrent(x, w)[-1:], x)[0, :, 0, :]).max()
    it.as_printed(bool(np.abs(jacobian(read, x)[0, :, 0, :]).max() > 1_000 * plain))
    along = reaches(lambda t: recurrent(t, w), x)
    it.as_printed(bool((along == np.tri(9, dtype=bool)).all()))


def T41(it: Evidence) -> None:
    """The Transformer has self-attention in place of recurrence.

    Without positional encodings, it is blind to order: permuted rows stay permuted."""
    x, order = torch.tensor(numbers(6, 3)), [3, 0, 5, 1, 2, 4]
    it.as_printed(same(attended(x[order]), attended(x)[order]))


def T42(it: Evidence) -> None:
    """Self-attention lets every token directly consider and affect every other one; it
    connects any pair of positions.

    This is right for an encoder. The text says it of the Transformer; in a decoder's
    masked self-attention a token sees only itself and earlier tokens. Training on the
    next token needs that mask."""
    of_encoder, of_decoder = (
        reaches(partial(attended, causal=causal), numbers(5, 3))
        for causal in (False, True)
    )
    it.as_printed(bool(of_encoder.all() and of_decoder.all()))
    it.right(bool(of_encoder.all() and (of_decoder == np.tri(5, dtype=bool)).all()))


def T43(it: Evidence) -> None:
    """The positions of a sequence can all be processed at once.

    This holds in training. In generation each input is an earlier output."""
    x = torch.tensor(numbers(6, 3))
    whole = attended(x, causal=True)
    each = torch.stack([attended(x[: i + 1], causal=True)[i] for i in range(6)])
    it.as_printed(same(whole, each))
    fed = x[:1]
    for i in range(5):
        fed = torch.cat([fed, attended(fed, causal=True)[i : i + 1].tanh() + 1])
    once = torch.cat([x[:1], whole[:5].tanh() + 1])
    it.elsewhere(same(fed, once, 1e-3))


def T44(it: Evidence) -> None:
    """A direct connection of distant tokens helps with long-range dependencies.

    The path has one step at any distance. But it multiplies by an attention weight,
    which for scores near 0 is about $1/n$, so a direct path can be weak."""

    def far(n: int, scale: float) -> Any:
        found = jacobian(partial(attended, scale=scale), numbers(n, 3))
        return np.abs(found[0, :, n - 1]).max()

    it.as_printed(all(far(n, 1.0) > 0 for n in (3, 9, 27)))
    it.elsewhere(bool(far(27, 1e-3) > far(3, 1e-3) / 2))
    it.right(same(far(27, 1e-6), 1 / 27, 1e-3))


def T45(it: Evidence) -> None:
    """The architecture copes well with more data.

    Twice as many sequences cost twice as much. Twice the length costs more than twice
    as much, by the text's own total."""
    six, three = (cost.tally("gpt2", batch, 64).total() for batch in (6, 3))
    it.as_printed(six < 2.01 * three)
    it.right(its.row("block")(4_096, 512) > 2.01 * its.row("block")(2_048, 512))


def T46(it: Evidence) -> None:
    """Parallel training and direct connections are why Transformers replaced recurrent
    networks and lead today.

    This is a statement about history; no experiment here can show the reason."""


def T47(it: Evidence) -> None:
    """The transformer is built of an encoder and a decoder.

    The original does have both: attention is once in an encoder's block, and twice in a
    decoder's. GPT-3, which the text names, is a decoder's stack with one, like
    GPT-2."""

    def attentions(shapes: Any, block: str) -> int:
        parts = {n.removeprefix(block).split(".")[0] for n in shapes if block in n[:17]}
        return sum("attn" in part for part in parts)

    original = seq2seq.parameter_shapes(seq2seq.Config(8, 1, 1, 2, 16))
    of_each = [attentions(original, f"{part}coder.layers.0.") for part in ("en", "de")]
    it.as_printed(of_each == [1, 2])
    of_gpt2 = attentions(gpt2.parameter_shapes(cost.presets()["gpt2"]), "h.0.")
    it.elsewhere(of_gpt2 == 2)
    it.right(of_gpt2 == 1)


def T48(it: Evidence) -> None:
    """N such blocks follow one another, each on the output of the one before.

    N is in no count; the text says that it analyses a single block. The backward of the
    original's six encoder blocks costs six times as much."""

    def of_blocks(layers: int) -> int:
        rows = cost.tally(replace(cost.presets()["gpt2"], layers=layers), 1, 9).rows
        inside = [r for r in rows if r.part == "layer" and r.term.way == "backward"]
        return sum(row.flops for row in inside)

    it.left_out(of_blocks(6) - of_blocks(1))
    it.right(of_blocks(6) == 6 * of_blocks(1) > 0)


def T49(it: Evidence) -> None:
    r"""Only the encoder is analysed, because a decoder's analysis would be similar.

    A decoder's block also has attention over the encoder's output. Its queries come
    from the decoder and its keys and values from the encoder, so only two of the three
    gradients of its inputs are added. By the text's rule, at equal lengths, it adds
    $16nd^2 + 8n^2d + 4n^2 + 3nd$, and a norm and a residual connection come on top."""

    crossed = partial(its.attention_backward, crossed=True)
    ran = its.counted(its.attention_run, crossed)
    terms = lambda n, d: 16 * n * d**2 + 8 * n**2 * d + 4 * n**2 + 3 * n * d  # noqa: E731
    it.left_out(ran(5, 3))
    it.right(its.takes(ran, terms))


def T50(it: Evidence) -> None:
    r"""Inputs become embeddings of dimension $d$, plus positional encodings.

    The backward adds each token's gradient to its row of the table, $nd$ additions for
    $n$ tokens, which the text does not count."""
    rows = cost.tally("gpt2", 1, 1_024).rows
    scattered = sum(r.flops for r in rows if r.term.call == "token embedding")
    it.left_out(scattered)
    it.right(scattered == 1_024 * 768)


def framework_layer(heads: int = 1, d: int = 4, f: int = 8) -> Any:
    """Return PyTorch's layer of an encoder, with random weights and no dropout."""
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(
        d, heads, f, dropout=0.0, batch_first=True, dtype=torch.float64
    )


def T51(it: Evidence) -> None:
    """Each layer has self-attention, a feed-forward network for each position, norms,
    and residual connections.

    PyTorch's layer, which follows the original, has these in this order, and
    dropout."""
    layer, x = framework_layer(), torch.tensor(numbers(1, 5, 4))
    y = layer.norm1(x + layer.self_attn(x, x, x)[0])
    y = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
    it.as_printed(same(y.detach(), layer(x).detach()))


def T52(it: Evidence) -> None:
    r"""A layer contains the parts that the text lists, as in the original.

    The original drops elements of each sub-layer's output. The backward of both
    dropouts is $2nd$ multiplications."""
    n, d = 5, 3
    dropped = its.steps(lambda dy, mask: dy * mask, numbers(n, d), np.ones((n, d)))
    it.left_out(2 * dropped)
    it.right(dropped == n * d)


def T53(it: Evidence) -> None:
    """Blocks have the same structure and do not share parameters."""
    layer = framework_layer()
    stack = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    places = {p.data_ptr() for p in stack.parameters()}
    it.as_printed(len(places) == 3 * len(list(layer.parameters())))
    shapes = [[p.shape for p in each.parameters()] for each in stack.layers]
    it.as_printed(shapes[0] == shapes[1] == shapes[2])


def T54(it: Evidence) -> None:
    """Computations and costs are the same for each layer."""
    x, found = numbers(5, 3), []
    for layer in range(3):
        weights = {w: numbers(3, 3, seed=layer) for w in its.WEIGHTS}
        values, gradients = its.traced(its.attention, X=x, **weights)
        ran = its.lines(its.attention_backward, values, gradients.Z)[1]
        shapes = zip(its.FED, ((3, 7), (7,), (7, 3), (3,)), strict=True)
        weights = {w: numbers(*shape, seed=layer) for w, shape in shapes}
        values, gradients = its.traced(its.feed_forward, X=values.Z, **weights)
        fed = its.lines(its.feed_forward_backward, values, gradients.Z)[1]
        found.append((ran, fed))
        x = values.Z
    it.as_printed(found[0] == found[1] == found[2])
