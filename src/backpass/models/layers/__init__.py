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

``forward(…, kernels=backpass.kernels)`` runs kernels in the place of the operations
that have one; ``kernel`` says how.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from backpass.arrays import Array, transpose
from backpass.models.layers.kernel import implementation
from backpass.ops import attention, flash_attention
from backpass.values import check_natural


def attention_operation(flash: bool, kernels: Any = None) -> Any:
    """Return the operation that computes attention, or its kernel. Both operations
    compute the same result; flash attention saves no array of weights."""
    return implementation(flash_attention, kernels) if flash else attention


def check_no_dropout(flash: bool, **rates: float) -> None:
    """Raise ValueError for a rate of dropout of attention's weights with ``flash``."""
    for name, p in rates.items():
        if flash and p > 0:
            raise ValueError(
                f"{name}: expected 0 with flash attention, which does not store the "
                f"weights to drop; got {p}; pass flash=False"
            )


def check_widths(expected: str, w_qkv: Array, h: int, heads: int) -> None:
    """Raise TypeError or ValueError unless ``heads`` divides ``h`` and the weight has
    the ``expected`` shape, ``"w_qkv[h, 3h]"`` or the reverse."""
    check_natural(heads=heads)
    if heads < 1 or h % heads:
        raise ValueError(f"heads: expected a divisor of h = {h}, as in x; got {heads}")
    if sorted(w_qkv.shape) != [h, 3 * h]:
        raise ValueError(
            f"w_qkv: expected {expected} with 3h = {3 * h}; "
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


def heads_forward_flops(
    flash: bool, causal: bool, dropout_p: Any = 0.0, **lengths: Any
):
    """Return the FLOPs of the operation that attends. ``lengths`` are m, g, n_kv, s_q,
    s_k, and d."""
    lengths = {**lengths, "d_v": lengths["d"]}
    if flash:
        _check_numbers(lengths)
        return flash_attention.forward_flops(**lengths, causal=causal)
    return attention.forward_flops(**lengths, has_bias=False, dropout_p=dropout_p)


def heads_backward_flops(
    flash: bool,
    causal: bool,
    wanted: tuple[str, ...],
    dropout_p: Any = 0.0,
    **lengths: Any,
):
    """Return the FLOPs of its backward."""
    lengths = {**lengths, "d_v": lengths["d"], "wanted": wanted}
    if flash:
        _check_numbers(lengths)
        return flash_attention.backward_flops(**lengths, causal=causal)
    return attention.backward_flops(**lengths, has_bias=False, dropout_p=dropout_p)


def _check_numbers(lengths: Mapping[str, Any]) -> None:
    """Raise ValueError for a length that is a symbol."""
    for name, length in lengths.items():
        if hasattr(length, "free_symbols"):
            raise ValueError(
                f"flash: expected False where lengths are symbols, as {name} is; "
                "FlashAttention's tiles depend on the numbers"
            )
