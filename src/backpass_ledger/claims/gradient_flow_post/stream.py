"""The section on the clean residual path, and its table of gradients' norms."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..evidence import Evidence
from ..tools import jacobian, numbers, same, vjp
from .paths import at_bottom, of_layer_norm
from .ratios import POST, TABLE, quoted
from .setting import tensors

CLAIMS = """
F163  uncheckable   0  residual  operations/residual_stream  §2.3, name
F164  caveat        2  residual  operations/residual_stream  §2.3, sum
F165  true          0  residual  operations/residual_stream  §2.3, gradient
F166  true          0  residual  operations/residual_stream  §2.3, gradient
F167  uncheckable   0  residual  operations/residual_stream  §2.3, gradient
F168  false         6  residual  numerics/gradient_flow      §2.3, early layers
F169  uncheckable   0  training  numerics/gradient_flow      §2.3, in practice
F170  uncheckable   0  training  numerics/gradient_flow      §2.3, in practice
F171  uncheckable   2  norms     numerics/gradient_flow      §2.3, in practice
F172  inconsistent  2  notation  numerics/gradient_flow      §2.3, table, ratio
F173  true          0  norms     numerics/gradient_flow      §2.3, table, pre-norm, 80 layers
F174  caveat        2  norms     numerics/gradient_flow      §2.3, table, post-norm, 80 layers
F175  uncheckable   0  norms     numerics/gradient_flow      §2.3, table, post-norm, 80 layers
F176  true          0  norms     numerics/gradient_flow      §2.3, table, post-norm, 32 layers
F177  true          0  norms     numerics/gradient_flow      §2.3, table, pre-norm, 128 layers
F178  inconsistent  5  norms     numerics/gradient_flow      §2.3, table, and §2.2
F179  uncheckable   0  training  numerics/gradient_flow      §2.3, table, outcomes
F180  uncheckable   5  norms     numerics/gradient_flow      §2.3, table, note
F181  false         3  norms     numerics/gradient_flow      §2.3, table, note
"""
SHOWN_BY = """
claims/test_post_norm.py::test_without_attention_the_gradient_shrinks_less_than_twenty_times  F175
claims/test_post_norm.py::test_with_attention_some_draws_shrink_it_more_than_a_hundred_times  F175
claims/test_post_norm.py::test_which_order_varies_more_from_block_to_block_depends_on_depth  F171
"""

BLOCKS = [numbers(7, 7, seed=i) for i in range(4)]
H_0, G = numbers(7, seed=8), numbers(7, seed=9)


def sublayer(h: Any, number: int) -> Any:
    """Return what a sublayer writes into a stream."""
    return (of_layer_norm(h) @ tensors(BLOCKS[number])[0]).tanh()


def after(h: Any, number: int) -> Any:
    """Return the stream after the first sublayers."""
    for i in range(number):
        h = h + sublayer(h, i)
    return h


def written(h: Any, number: int) -> Any:
    """Return what a sublayer writes, from what entered the stream."""
    return sublayer(after(h, number), number)


def F163(it: Evidence) -> None:
    """Anthropic researchers call this the residual stream.

    The name is in “A Mathematical Framework for Transformer Circuits” (2021)."""


def F164(it: Evidence) -> None:
    r"""$h_L = h_0 + \sum_{l=1}^{L} f_l(\text{Norm}(h_{l-1}))$.

    This holds if l counts sublayers, of which 80 layers have 160. In the rest of the
    text L counts layers, and the second sublayer of a layer does not read $h_{l-1}$."""
    h = tensors(H_0)[0]
    by_layer = [sublayer(after(h, i - i % 2), i) for i in range(4)]
    each = [written(h, i) for i in range(4)]
    it.as_printed(same((h + sum(each)).numpy(), after(h, 4).numpy()))
    it.elsewhere(same((h + sum(by_layer)).numpy(), after(h, 4).numpy()))
    it.right(2 * 80 == 160)


def F165(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial h_0} = \frac{\partial L}{\partial h_L} + \sum_l
    \frac{\partial L}{\partial h_L} \cdot \frac{\partial
    f_l(\text{Norm}(h_{l-1}))}{\partial h_0}$.

    Each derivative goes through all the sublayers before the l-th."""
    whole = vjp(lambda h: after(h, 4), H_0, G)
    terms = [G @ jacobian(partial(written, number=i), H_0) for i in range(4)]
    it.as_printed(same(G + sum(terms), whole))
    stream = [after(tensors(H_0)[0], i).numpy() for i in range(4)]
    alone = [G @ jacobian(partial(sublayer, number=i), h) for i, h in enumerate(stream)]
    it.right(not same(G + sum(alone), whole))


def F166(it: Evidence) -> None:
    """The first term goes from the output of the stream to its input without
    attenuation or transformation.

    It starts below the last norm and the output head, which transform the gradient."""
    whole = vjp(lambda h: after(h, 4), H_0, G)
    rest = jacobian(lambda h: sum(written(h, i) for i in range(4)), H_0)
    it.as_printed(same(whole - G @ rest, G))
    it.right(not same(vjp(of_layer_norm, after(tensors(H_0)[0], 4).numpy(), G), G))


def F167(it: Evidence) -> None:
    """The sum holds the useful information of each layer's transformation.

    “Useful” is not defined. The first term is information too: if all sublayers return
    0, it is the whole gradient of the token table."""


def F168(it: Evidence) -> None:
    """The direct path always gives early layers a useful gradient, whatever the other
    layers' gradients are like.

    One sublayer whose Jacobian is −I makes every gradient before it 0. And a sublayer's
    weights get their gradient through its own Jacobian, which is 0 for a dead ReLU."""
    start = numbers(7, seed=10)
    cancelled = vjp(lambda h: after(h + (tensors(start)[0] - h), 4), H_0, G)
    dh, dw = vjp(lambda h, w: h + (h @ w - 100).relu() @ w, [H_0, BLOCKS[0]], G)
    it.as_printed(np.any(cancelled) or np.any(dw))
    it.right(same(dh, G) and not np.any(dw) and not np.any(cancelled))


def F169(it: Evidence) -> None:
    """At some learning rates, pre-norm models train stably and post-norm models
    diverge.

    A check of this length cannot train. In the chapter, pre-norm learns at more rates,
    and post-norm gets stuck rather than diverges. A report of it, with warm-up as a
    remedy: {cite:t}`xiong2020layer`."""


def F170(it: Evidence) -> None:
    """The direct path is the reason for that.

    {cite:t}`xiong2020layer` give another: at the start, gradients near the output are
    large in post-norm. Only training can show which of the two is the cause."""


def F171(it: Evidence) -> None:
    """The gradient varies much less from layer to layer in pre-norm than in post-norm.

    The sentence gives no measurement but the table that follows it. Random stacks
    before the first step do not decide it: which order varies more depends on the depth
    and on the draw."""


def F172(it: Evidence) -> None:
    """The column has the ratio of the gradient's norms at the first and at the last
    layer.

    In the rows of pre-norm it is first over last, in those of post-norm the inverse."""
    over = [abs(a / b / ratio - 1) < 0.02 for a, b, ratio in TABLE.values()]
    under = [abs(b / a / ratio - 1) < 0.02 for a, b, ratio in TABLE.values()]
    it.clashes(not all(over) and not all(under))
    it.right(over == [row.startswith("pre") for row in TABLE])
    it.right(under == [row.startswith("post") for row in TABLE])


def F173(it: Evidence) -> None:
    """0.0042 over 0.0038 is 1.1.

    The division is right; the two norms cannot be checked."""
    it.as_printed(round(quoted("pre 80", 0.0042, 0.0038), 1) == 1.1)


def F174(it: Evidence) -> None:
    """0.0041 over 0.00003 is 137.

    The division is right, but a norm with one digit supports any ratio from 117 to
    164."""
    it.as_printed(round(1 / quoted("post 80", 0.00003, 0.0041)) == 137)
    ends = [round(0.0041 / first) for first in (0.000035, 0.000025)]
    it.elsewhere(ends == [137, 137])
    it.right(ends == [117, 164])


def F175(it: Evidence) -> None:
    """At initialisation, the stream's gradient in a post-norm network of 80 layers is
    137 times smaller at the first layer than at the last.

    No variance, mask, loss, or seed is given. Random post-norm stacks without attention
    stay below 20; with attention some draws exceed 100 and most do not."""


def F176(it: Evidence) -> None:
    """0.0039 over 0.0011 is 3.5."""
    it.as_printed(round(1 / quoted("post 32", 0.0011, 0.0039), 1) == 3.5)


def F177(it: Evidence) -> None:
    """0.0040 over 0.0036 is 1.1.

    The division is right. The factor should grow with depth, but both pre-norm rows
    have 1.1."""
    it.as_printed(round(quoted("pre 128", 0.0040, 0.0036), 1) == 1.1)
    it.right(TABLE["pre 80"][2] == TABLE["pre 128"][2] == 1.1)
    it.right(min(at_bottom("pre", 128)) > max(at_bottom("pre", 32)))


def F178(it: Evidence) -> None:
    """Chart and table are about the same attenuation of post-norm.

    The chart has 11 times at 80 layers and 2.6 at 32; the table has 137 and 3.5. One
    factor a layer would be 0.97 in the chart, and 0.940 and 0.961 in the table."""
    table = {deep: np.divide(*TABLE[f"post {deep}"][:2]) for deep in (80, 32)}
    it.right(round(1 / POST[80]) == 11 and round(1 / POST[32], 1) == 2.6)
    it.right(round(1 / table[80]) == 137 and round(1 / table[32], 1) == 3.5)
    it.right(round(table[80] ** (1 / 80), 3) == 0.940)
    it.right(round(table[32] ** (1 / 32), 3) == 0.961)
    it.right(all(round(bar ** (1 / deep), 2) == 0.97 for deep, bar in POST.items()))
    it.clashes(POST[80] > 10 * table[80])


def F179(it: Evidence) -> None:
    """The four networks train stably, diverge at a high rate, train stably but slower,
    and train stably.

    No run, rate, or data is named. A measurement at initialisation, as the note calls
    it, has no such column."""


def F180(it: Evidence) -> None:
    """The norms were measured at initialisation, with Gaussian weights, at width 4096
    and 2048 tokens.

    Neither the weights' variance nor the loss or the code is given, nor whether the
    gradients are of activations or of parameters."""


def F181(it: Evidence) -> None:
    """“Random Gaussian weights at initialisation” says enough to know the ratios.

    Their variance decides. In 128 random pre-norm blocks the gradient grows more than 8
    times with one variance, and less than 1.5 times with another."""
    large, small = at_bottom("pre", 128), at_bottom("pre", 128, 128**-0.5)
    it.as_printed(abs(max(large) / min(small) - 1) < 0.5)
    it.right(min(large) > 8 and 1 < min(small) and max(small) < 1.5)
