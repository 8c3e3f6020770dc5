"""§2.2.1 and §2.2.2: sequences, and the encoder's block as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import product, steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers, same, torch, vjp

CLAIMS = """
T34  true         0  embeddings  operations/embeddings         §2.2.1, embeddings
T35  true         0  attention   attention/scaled_dot_product  §2.2.1, lengths
T36  uncheckable  1  training    networks/training             §2.2.1, data sets
T37  uncheckable  1  training    networks/whole_network        §2.2.1, why recurrent networks
T38  caveat       1  training    networks/whole_network        §2.2.1, recurrent networks, speed
T39  caveat       1  training    numerics/gradient_flow        §2.2.1, recurrent networks, memory
T40  true         0  attention   attention/scaled_dot_product  §2.2.1, attention in recurrent networks
T41  true         0  attention   attention/scaled_dot_product  §2.2.1, without recurrence
T42  caveat       3  attention   attention/scaled_dot_product  §2.2.1, §2.2.2, and §2.2.3, who sees whom
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
    scores = scale * x @ x.T
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape).triu(1) > 0, -np.inf)
    return scores.softmax(1) @ x


def reaches(function: Any, x: Any) -> Any:
    """Return whether output row i depends on input row j, for all pairs."""
    return np.abs(jacobian(function, x)).sum((1, 3)) > 0


def T34(it: Evidence) -> None:
    """A token is mapped to a vector, its embedding.

    The vector is a row of a trained table: the product of a one-hot vector with the
    table. Whether it captures the token's meaning cannot be tested here.
    """
    table, tokens = numbers(11, 3), [4, 0, 4]
    found = torch.nn.functional.embedding(torch.tensor(tokens), torch.tensor(table))
    it.as_printed(same(np.eye(11)[tokens] @ table, found))


def T35(it: Evidence) -> None:
    """Sequences vary in length, and one architecture with the same parameters has to
    take all of them, near and far dependencies included."""
    for n in (1, 3, 8):
        y = its.block(torch.tensor(numbers(n, 4)), its.block_weights(), pre=True)
        it.as_printed(tuple(y.shape) == (n, 4))
    it.as_printed(bool(reaches(attended, numbers(8, 2))[0, 7]))


def T36(it: Evidence) -> None:
    """Data sets have from millions to billions of tokens.

    This is low for the models that the text names: the paper on GPT-3 that it cites
    gives 300 billion training tokens.
    """


def T37(it: Evidence) -> None:
    """Far dependencies, varying lengths, and large data sets motivated first recurrent
    networks and then Transformers.

    This is a statement about history, without a source. The text itself says below that
    recurrent networks were hard to parallelise for large data sets.
    """


def T38(it: Evidence) -> None:
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


def T39(it: Evidence) -> None:
    """Recurrent networks hardly kept what stood at the beginning of a sequence until
    its end.

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


def T40(it: Evidence) -> None:
    """Attention helped recurrent networks to focus on parts of the input, and their
    core stayed sequential.

    Where the recurrence forgets, attention's output still depends on the first input.
    Each state still depends on all earlier inputs, through the states between them.
    """
    w = 0.1 * np.linalg.qr(numbers(3, 3))[0]

    def last(x: Any) -> Any:
        return recurrent(x, w)[-1:]

    def read(x: Any) -> Any:
        states = recurrent(x, w)
        return (states[-1:] @ states.T).softmax(1) @ states

    x = numbers(9, 3)
    plain, attentive = (
        np.abs(jacobian(function, x)[0, :, 0, :]).max() for function in (last, read)
    )
    it.as_printed(bool(attentive > 1_000 * plain))
    along = reaches(lambda t: recurrent(t, w), x)
    it.as_printed(bool(along[np.tril_indices(9)].all()))


def T41(it: Evidence) -> None:
    """The Transformer has self-attention in place of recurrence.

    Without positional encodings, attention is blind to order: permuted rows give the
    same output rows, permuted.
    """
    x, order = torch.tensor(numbers(6, 3)), [3, 0, 5, 1, 2, 4]
    it.as_printed(same(attended(x[order]), attended(x)[order]))


def T42(it: Evidence) -> None:
    """Self-attention lets every token directly consider and affect every other one; it
    connects any pair of positions.

    This holds in an encoder. In a decoder's masked self-attention a token sees only
    itself and earlier tokens, and training on the next token needs that mask.
    """
    x = numbers(5, 3)
    it.as_printed(bool(reaches(attended, x).all()))
    it.elsewhere(bool(reaches(lambda t: attended(t, causal=True), x).all()))


def T43(it: Evidence) -> None:
    """The positions of a sequence can all be processed at once.

    This holds in training, where all inputs are known. In generation each input is an
    earlier output, so one pass over all positions is not enough.
    """
    x = torch.tensor(numbers(6, 3))
    whole = attended(x, causal=True)
    each = torch.stack([attended(x[: i + 1], causal=True)[i] for i in range(6)])
    it.as_printed(same(whole, each))
    fed = x[:1]
    for i in range(5):
        fed = torch.cat([fed, attended(fed, causal=True)[i : i + 1].tanh() + 1])
    once = torch.cat([x[:1], attended(x, causal=True)[:5].tanh() + 1])
    it.elsewhere(same(fed, once, 1e-3))


def T44(it: Evidence) -> None:
    """Long-range dependencies are handled better because distant tokens are connected
    directly.

    The path has one step at any distance. But it multiplies by an attention weight,
    which for scores near 0 is about $1/n$, so a direct path can be weak.
    """

    def far(n: int, scale: float) -> float:
        x, first = numbers(n, 3), np.zeros((3, n, 3))
        first[:, 0] = np.eye(3)  # an element each of the first token's output
        found = [vjp(lambda t: attended(t, scale=scale), x, dy)[n - 1] for dy in first]
        return float(np.abs(found).max())

    it.as_printed(all(far(n, 1.0) > 0 for n in (3, 9, 27)))
    it.elsewhere(far(27, 1e-3) > far(3, 1e-3) / 2)
    it.right(same(far(27, 1e-6), 1 / 27, 1e-3))


def T45(it: Evidence) -> None:
    """The architecture copes well with more data.

    Twice as many sequences cost twice as much. Longer sequences are a different matter:
    twice the length costs more than twice as much, by the text's own total.
    """

    def block(n: int, d: int) -> Any:
        return its.printed("block", s=n, h=d)

    it.as_printed(
        cost.tally("gpt2", 6, 64).total() < 2.01 * cost.tally("gpt2", 3, 64).total()
    )
    it.right(block(4_096, 512) > 2.01 * block(2_048, 512))


def T46(it: Evidence) -> None:
    """Parallel training and direct connections are the reason why Transformers replaced
    recurrent networks and are today the main architecture for language.

    This is a statement about history; no experiment here can show the reason.
    """


def T47(it: Evidence) -> None:
    """The transformer is built of an encoder and a decoder.

    The original does. GPT-3, which the text names as an example, has only a decoder's
    stack, like GPT-2: one attention in a block. The text counts only an encoder's
    block.
    """
    from backpass.models import gpt2, seq2seq

    def attentions(names: Any, block: str) -> set[str]:
        inner = {name.removeprefix(block).split(".")[0] for name in names}
        return {name for name in inner if "attn" in name}

    original = list(seq2seq.parameter_shapes(seq2seq.Config(8, 1, 1, 2, 16)))
    of_encoder, of_decoder = (
        attentions([n for n in original if n.startswith(block)], block)
        for block in ("encoder.layers.0.", "decoder.layers.0.")
    )
    it.as_printed((len(of_encoder), len(of_decoder)) == (1, 2))
    names = list(gpt2.parameter_shapes(cost.presets()["gpt2"]))
    of_gpt2 = attentions([n for n in names if n.startswith("h.0.")], "h.0.")
    it.elsewhere(len(of_gpt2) == 2)
    it.right(
        len(of_gpt2) == 1
        and {n.split(".")[1] for n in names if n[:2] == "h."}
        == {str(i) for i in range(12)}
    )


def T48(it: Evidence) -> None:
    """N such blocks follow one another, each on the output of the one before.

    N is in no count, and the text says so: it analyses a single block. The backward of
    the original's six encoder blocks costs six times as much.
    """
    from dataclasses import replace

    def of_blocks(layers: int) -> int:
        config = replace(cost.presets()["gpt2"], layers=layers)
        rows = cost.tally(config, 1, 9).rows
        inside = [row for row in rows if row.part == "layer"]
        return sum(row.flops for row in inside if row.term.way == "backward")

    it.left_out(of_blocks(6) - of_blocks(1))
    it.right(of_blocks(6) == 6 * of_blocks(1) > 0)


def crossed(
    z_: Any, x: Any, e: Any, q: Any, k: Any, v: Any, a: Any, y: Any, w: Any
) -> None:
    """Run the backward of attention from ``x`` over ``e``, the encoder's output, by the
    text's rule. ``w`` stands for all four matrices."""
    y_ = product(z_, its.flip(w))
    product(its.flip(y), z_)
    a_, v_ = product(y_, its.flip(v)), product(its.flip(a), y_)
    s_ = a * (a_ - its.times_each_row(a, a_, product))
    q_, k_ = product(s_, k) * 0.5, product(its.flip(s_), q) * 0.5
    for given, gradient in ((x, q_), (e, k_), (e, v_)):
        product(its.flip(given), gradient)
    product(q_, its.flip(w))  # the gradient of x
    product(k_, its.flip(w)) + product(v_, its.flip(w))  # of e


def T49(it: Evidence) -> None:
    r"""Only the encoder is analysed, because a decoder's analysis would be similar.

    A decoder's block has a third sub-layer, attention over the encoder's output. Its
    queries come from the decoder and its keys and values from the encoder, so only two
    of the three gradients of its inputs are added: $nd$ additions instead of $2nd$. By
    the text's rule, at equal lengths, the sub-layer adds $16nd^2 + 8n^2d + 4n^2 + 3nd$.
    A third norm and a third residual connection come on top.
    """
    for n, d in its.SIZES:
        rows, weights, w = numbers(n, d), numbers(n, n), numbers(d, d)
        ran = steps(crossed, *[rows] * 6, weights, rows, w)
        it.left_out(ran)
        it.right(ran == 16 * n * d**2 + 8 * n**2 * d + 4 * n**2 + 3 * n * d)


def T50(it: Evidence) -> None:
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
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(
        d, heads, f, dropout=0.0, batch_first=True, dtype=torch.float64
    )


def T51(it: Evidence) -> None:
    """Each layer has self-attention, a feed-forward network for each position, layer
    normalisations, and residual connections.

    PyTorch's layer, which follows the original, has these parts in this order, and
    dropout.
    """
    layer, x = framework_layer(), torch.tensor(numbers(1, 5, 4))
    y = layer.norm1(x + layer.self_attn(x, x, x)[0])
    y = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
    it.as_printed(same(y.detach(), layer(x).detach()))


def T52(it: Evidence) -> None:
    r"""A layer contains the parts that the text lists, as in the original.

    The original drops elements of each sub-layer's output. The backward of each dropout
    is one multiplication an element, $2nd$ for both; the text has no dropout.
    """
    n, d = 5, 3
    dropped = its.steps(lambda dy, mask: dy * mask, numbers(n, d), np.ones((n, d)))
    it.left_out(2 * dropped)
    it.right(dropped == n * d)


def T53(it: Evidence) -> None:
    """Blocks have the same structure and do not share parameters."""
    stack = torch.nn.TransformerEncoder(
        framework_layer(), 3, enable_nested_tensor=False
    )
    places = [{p.data_ptr() for p in layer.parameters()} for layer in stack.layers]
    shapes = [[p.shape for p in layer.parameters()] for layer in stack.layers]
    it.as_printed(not (places[0] & places[1] or places[1] & places[2]))
    it.as_printed(shapes[0] == shapes[1] == shapes[2])


def T54(it: Evidence) -> None:
    """Computations and costs are the same for each layer."""
    x, found = numbers(5, 3), []
    for layer in range(3):
        of_attention = {name: numbers(3, 3, seed=layer) for name in its.WEIGHTS}
        attention = its.traced(its.attention, X=x, **of_attention)
        shapes = {"W_1": (3, 7), "b_1": (7,), "W_2": (7, 3), "b_2": (3,)}
        of_rest = {k: numbers(*shape, seed=layer) for k, shape in shapes.items()}
        fed = its.traced(its.feed_forward, X=attention[0].Z, **of_rest)
        ran = its.counted(attention, its.attention_backward)
        found.append(ran + its.counted(fed, its.feed_forward_backward))
        x = fed[0].Z
    it.as_printed(found[0] == found[1] == found[2] > 0)
