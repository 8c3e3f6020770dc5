"""The parts of the models. Each has SHAPES, Saved, forward, and backward as the
contract of ``backpass.ops`` requires, so that ``backpass.verify.check`` accepts it, and
``backpass.cost`` counts it and evaluates its FLOP formulas.

``gpt2_layer`` and ``llama_layer`` are one layer each: a block of attention and a
feed-forward block, each behind a norm and added to the residual stream.
``encoder_layer`` and ``decoder_layer`` have their norms after the sums, or before the
blocks; the decoder's has a second block of attention, to the memory.
``gpt2_attention``, ``llama_attention``, and ``transformer_attention`` are the blocks of
attention. ``output_head`` turns the last rows into the loss.

The last arguments of a layer are its parameters, in the layouts of Hugging Face or, for
the encoder and the decoder, of PyTorch. In ``transformer_attention`` an optional memory
follows them. ``NAMES`` gives each parameter its name there. GPT-2's ``Conv1D`` stores
``[in, out]``, as the operations do. ``torch.nn.Linear`` stores ``[out, in]``: the other
layers transpose such a weight where they call an operation, and its gradient where they
receive it, with ``turned``.

``calls`` lists the operations that a layer calls, with the lengths in them; its FLOP
formulas are the sums over that list. ``blocks`` runs a layer's blocks, with their norms
and the sums, and goes back through them; ``transformer_blocks`` has those of the
encoder and of the decoder.

``forward(…, kernels=backpass.kernels)`` runs kernels in place of the operations
that have one; ``kernel`` says how. ``recomputed`` lets layers, or operations in them,
save their inputs and run again in the backward.
"""

from __future__ import annotations

import hashlib
from typing import Any

from backpass.contract.arrays import Array, is_array, transpose
from backpass.contract.values import check_natural
from backpass.models.layers.calls import Call, call
from backpass.models.layers.kernel import Instead, Kernel, implementation
from backpass.ops import attention, feed_forward, flash_attention, fork, residual
from backpass.ops.multi_head_attention import split_heads


def attention_operation(flash: bool, kernels: Any = None) -> Any:
    """Return the operation that computes attention, or its kernel. Both operations
    compute the same result; flash attention saves no array of weights."""
    return implementation(flash_attention if flash else attention, kernels)


def without_second_output(attended: Any, rows: Any, d: int) -> Any:
    """Return what attention saved, without an output of its own. If flash attention and
    the last projection both saved the output, in heads and as ``rows[*, s, n·d]``, the
    heads become a view of the rows, so that one array stays in memory."""
    if isinstance(attended, Instead):
        if not isinstance(attended.ran, Kernel):
            return attended  # what a scheme of several ranks saved is its own
        own = without_second_output(attended.own, rows, d)
        return attended._replace(own=own)
    if not is_array(getattr(attended, "y", None)) or not is_array(rows):
        return attended
    return attended._replace(y=split_heads(rows, rows.shape[-1] // d, d))


def check_widths(expected: str, p: int, width: int, heads: int, w_qkv: Array) -> None:
    """Raise TypeError or ValueError unless ``heads`` divides ``width`` and ``p`` is
    three times as much. ``expected`` is the weight's shape, as ``"w_qkv[h, 3q]"``."""
    letter = expected.partition("3")[2][0]
    check_natural(heads=heads)
    if heads < 1 or width % heads:
        raise ValueError(
            f"heads: expected a divisor of {letter} = {width}; got {heads}"
        )
    if p != 3 * width:
        raise ValueError(
            f"w_qkv: expected {expected} with 3{letter} = {3 * width}; "
            f"got shape {list(w_qkv.shape)}"
        )


def thirds(x: Array) -> list[Array]:
    """Return ``x[*, 3h]`` as three arrays ``[*, h]``: of queries, keys, and values."""
    h = x.shape[-1] // 3
    return [x[..., i * h : (i + 1) * h] for i in range(3)]


def turned(w: Array | None) -> Any:
    """Return ``w[out, in]`` as ``[in, out]``, or the reverse; None for None."""
    return None if w is None else transpose(w)


def seed_of(*numbers: int) -> int:
    """Return a seed that depends on all the numbers, such as a seed, a step, a layer,
    and a place in it. Two different lists of integers give the same seed with a
    probability of 2⁻⁶⁴."""
    text = " ".join(str(int(number)) for number in numbers)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def attending(
    flash: bool, causal: bool, wanted: tuple[str, ...], **lengths: Any
) -> Call:
    """Return the call of the operation that attends. ``lengths`` are m, n_kv, s_q, s_k,
    d, g unless it is 1, and ``dropout_p`` unless it is 0. Raises ValueError for symbols
    with ``flash``."""
    lengths = {"g": 1, "dropout_p": 0.0, **lengths, "d_v": lengths["d"]}
    lengths |= {"causal": causal, "has_bias": False, "has_mask": False}
    lengths |= {"has_sink": False}
    symbols = (name for name, n in lengths.items() if hasattr(n, "free_symbols"))
    if flash and (name := next(symbols, None)):
        raise ValueError(
            f"flash: expected False where lengths are symbols, as {name} is; "
            "FlashAttention's tiles depend on the numbers"
        )
    return call("attention", attention_operation(flash), wanted, **lengths)


def feeding(
    activation: str, biases: bool, wanted: tuple[str, ...], **lengths: Any
) -> Call:
    """Return the call of the feed-forward block. ``lengths`` are m, h, and f."""
    has = dict.fromkeys(("has_b_up", "has_b_down", "has_b_gate"), biases)
    if activation != "swiglu":
        has["has_b_gate"] = False
    options = {"activation": activation, **has}
    return call("feed-forward", feed_forward, wanted, **lengths, **options)


def adding(place: str, m: Any, wanted: tuple[str, ...]) -> tuple[Call, Call]:
    """Return the sum of ``m`` elements that ends a block, and in the backward that of
    the stream's two gradients. ``wanted`` are the gradients of the part that reads the
    stream first."""
    of_stream = ("x",) if "x" in wanted else ()
    return (
        call(f"{place} residual sum", residual, ("x", "f") if wanted else (), m=m),
        call(f"{place} residual: two gradients", fork, of_stream, m=m, k=2),
    )
