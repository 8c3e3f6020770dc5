"""The backward of a whole layer as printed, and what it takes (§6)."""

from __future__ import annotations

from functools import cache
from typing import Any

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, run, same

CLAIMS = """
F348  false         9  attention  attention/heads             §6, promise
F349  left-out      7  positions  operations/rope             §6, promise, rotation
F350  false         1  notation   networks/llama              §6, arguments, names
F351  inconsistent  4  memory     cost/memory                 §6, arguments, against §4.1
F352  caveat        2  norms      operations/rms_norm         §6, arguments, norms
F353  true          0  attention  attention/heads             §6, arguments, shapes
F354  true          0  residual   operations/residual_stream  §6, arguments, the stream
"""


CODE = """
def transformer_layer_backward(
    grad_output, x, x_norm_attn, rms_attn, gamma_attn, Q, K, V, attn_lse, attn_out,
    h_mid, x_norm_ffn, rms_ffn, gamma_ffn, g1, g3, silu_g1,
    W_Q, W_K, W_V, W_O, W_1, W_2, W_3,
):
    grad_ffn_out = grad_output
    grad_h_mid = grad_output.clone()

    h = silu_g1 * g3
    grad_h = grad_ffn_out @ W_2.T

    grad_W2 = h.reshape(-1, d_ff).T @ grad_ffn_out.reshape(-1, d)

    grad_silu = grad_h * g3
    grad_g3 = grad_h * silu_g1

    sig_g1 = torch.sigmoid(g1)
    silu_deriv = sig_g1 * (1.0 + g1 * (1.0 - sig_g1))
    grad_g1 = grad_silu * silu_deriv

    grad_W1 = x_norm_ffn.reshape(-1, d).T @ grad_g1.reshape(-1, d_ff)
    grad_W3 = x_norm_ffn.reshape(-1, d).T @ grad_g3.reshape(-1, d_ff)

    grad_x_norm_ffn = grad_g1 @ W_1.T + grad_g3 @ W_3.T

    dx_hat = grad_x_norm_ffn * gamma_ffn
    x_hat = h_mid / rms_ffn
    proj = (dx_hat * x_hat).sum(dim=-1, keepdim=True) / d
    grad_h_mid_from_ffn = (dx_hat - x_hat * proj) / rms_ffn

    grad_gamma_ffn = (grad_x_norm_ffn * x_hat).sum(dim=(0, 1))

    grad_h_mid += grad_h_mid_from_ffn

    grad_attn_block = grad_h_mid
    grad_x = grad_h_mid.clone()

    attn_out_flat = attn_out.reshape(B, S, n_h * d_k)
    grad_W_O = attn_out_flat.reshape(-1, n_h * d_k).T @ grad_attn_block.reshape(-1, d)
    grad_attn_out_flat = grad_attn_block @ W_O.T
    grad_attn_out = grad_attn_out_flat.reshape(B, n_h, S, d_k)

    grad_Q, grad_K, grad_V = flash_attn_backward(
        grad_attn_out, Q, K, V, attn_lse
    )

    grad_Q_flat = grad_Q.reshape(B, S, n_h * d_k)
    grad_K_flat = grad_K.reshape(B, S, n_kv * d_k)
    grad_V_flat = grad_V.reshape(B, S, n_kv * d_k)

    grad_W_Q = x_norm_attn.reshape(-1, d).T @ grad_Q_flat.reshape(-1, n_h * d_k)
    grad_W_K = x_norm_attn.reshape(-1, d).T @ grad_K_flat.reshape(-1, n_kv * d_k)
    grad_W_V = x_norm_attn.reshape(-1, d).T @ grad_V_flat.reshape(-1, n_kv * d_k)

    grad_x_norm_attn = (grad_Q_flat @ W_Q.T
                      + grad_K_flat @ W_K.T
                      + grad_V_flat @ W_V.T)

    dx_hat_a = grad_x_norm_attn * gamma_attn
    x_hat_a = x / rms_attn
    proj_a = (dx_hat_a * x_hat_a).sum(dim=-1, keepdim=True) / d
    grad_x_from_attn = (dx_hat_a - x_hat_a * proj_a) / rms_attn

    grad_gamma_attn = (grad_x_norm_attn * x_hat_a).sum(dim=(0, 1))

    grad_x += grad_x_from_attn

    return {
        'grad_x': grad_x,
        'grad_W_Q': grad_W_Q,
        'grad_W_K': grad_W_K,
        'grad_W_V': grad_W_V,
        'grad_W_O': grad_W_O,
        'grad_W_1': grad_W1,
        'grad_W_2': grad_W2,
        'grad_W_3': grad_W3,
        'grad_gamma_attn': grad_gamma_attn,
        'grad_gamma_ffn': grad_gamma_ffn,
    }
"""
# The five lines that need an exchange of axes as well.
MENDED = {
    "attn_out_flat": (
        "attn_out.reshape(B, S, n_h * d_k)",
        "attn_out.transpose(1, 2).reshape(B, S, n_h * d_k)",
    ),
    "grad_attn_out": (
        "grad_attn_out_flat.reshape(B, n_h, S, d_k)",
        "grad_attn_out_flat.reshape(B, S, n_h, d_k).transpose(1, 2)",
    ),
    "grad_Q_flat": ("grad_Q.reshape(", "grad_Q.transpose(1, 2).reshape("),
    "grad_K_flat": ("grad_K.reshape(", "grad_K.transpose(1, 2).reshape("),
    "grad_V_flat": ("grad_V.reshape(", "grad_V.transpose(1, 2).reshape("),
}
SIZES = {"B": 2, "S": 5, "d": 10, "n_h": 4, "n_kv": 2, "d_k": 6, "d_ff": 7}
RETURNED = (
    "x",
    "W_Q",
    "W_K",
    "W_V",
    "W_O",
    "W_1",
    "W_2",
    "W_3",
    "gamma_attn",
    "gamma_ffn",
)
WEIGHTS = RETURNED[1:]
SAVED = (
    "x",
    "x_norm_attn",
    "rms_attn",
    "gamma_attn",
    "Q",
    "K",
    "V",
    "attn_lse",
    "attn_out",
    "h_mid",
    "x_norm_ffn",
    "rms_ffn",
    "gamma_ffn",
    "g1",
    "g3",
    "silu_g1",
)


def rotated(a: Any, backwards: bool = False) -> Any:
    """Rotate queries or keys by their positions."""
    import torch

    half = a.shape[-1] // 2
    angles = torch.outer(
        torch.arange(a.shape[-2]).double(), 0.3 / (1.0 + torch.arange(half))
    )
    cos, sin = torch.cos(angles), torch.sin(angles) * (-1 if backwards else 1)
    first, second = a[..., :half], a[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attended(q: Any, k: Any, v: Any, causal: bool = True, scale: float = 1.0) -> Any:
    """Return the output of grouped attention, and the logarithms of the rows' sums."""
    import torch

    wide = [a.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for a in (k, v)]
    scores = scale * q @ wide[0].mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf
        )
    return torch.softmax(scores, -1) @ wide[1], scores.logsumexp(-1)


def flash(
    dy: Any, q: Any, k: Any, v: Any, _lse: Any, **options: Any
) -> tuple[Any, ...]:
    """Return the gradients of attention, by autograd."""
    import torch

    leaves = [a.detach().requires_grad_() for a in (q, k, v)]
    return torch.autograd.grad(attended(*leaves, **options)[0], leaves, dy)


@cache
def layer(rope: bool = False) -> dict[str, Any]:
    """Run the forward of a layer under autograd with random numbers, and its backward.
    Return every array by the listing's name, and the gradient of each as ``grad_*``."""
    import torch

    at, t = SIZES, {}
    wide, narrow, d, f = (
        at["n_h"] * at["d_k"],
        at["n_kv"] * at["d_k"],
        at["d"],
        at["d_ff"],
    )
    shapes = {
        "x": (at["B"], at["S"], d),
        "W_Q": (d, wide),
        "W_K": (d, narrow),
        "W_V": (d, narrow),
        "W_O": (wide, d),
        "W_1": (d, f),
        "W_2": (f, d),
        "W_3": (d, f),
        "gamma_attn": (d,),
        "gamma_ffn": (d,),
    }
    for i, (name, shape) in enumerate(shapes.items()):
        t[name] = torch.tensor(numbers(*shape, seed=i), requires_grad=True)

    def heads(a: Any) -> Any:
        return a.unflatten(-1, (-1, at["d_k"])).transpose(1, 2)

    def normalised(a: Any, which: str) -> Any:
        t["rms_" + which] = a.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        return a / t["rms_" + which] * t["gamma_" + which]

    t["x_norm_attn"] = normalised(t["x"], "attn")
    for letter in "QKV":
        t[letter] = heads(t["x_norm_attn"] @ t["W_" + letter])
        if rope and letter != "V":
            t[letter] = rotated(t[letter])
    t["attn_out"], t["attn_lse"] = attended(t["Q"], t["K"], t["V"])
    t["attn_final"] = t["attn_out"].transpose(1, 2).flatten(2) @ t["W_O"]
    t["h_mid"] = t["x"] + t["attn_final"]
    t["x_norm_ffn"] = normalised(t["h_mid"], "ffn")
    t["g1"], t["g3"] = t["x_norm_ffn"] @ t["W_1"], t["x_norm_ffn"] @ t["W_3"]
    t["silu_g1"] = torch.nn.functional.silu(t["g1"])
    t["h"] = t["silu_g1"] * t["g3"]
    t["ffn_out"] = t["h"] @ t["W_2"]
    out = t["h_mid"] + t["ffn_out"]
    t["output"] = torch.tensor(numbers(*out.shape, seed=50))  # its gradient
    names = [name for name, a in t.items() if a.requires_grad]
    grads = torch.autograd.grad(
        out, [t[n] for n in names], t["output"], allow_unused=True
    )
    found = {f"grad_{n}": g for n, g in zip(names, grads, strict=True)}
    return {n: a.detach() for n, a in t.items()} | found


def listing(
    mended: tuple[str, ...] = (), *, rope: bool = False, backward: Any = flash
) -> dict[str, Any]:
    """Run the listing, with some lines mended; return all its local arrays."""
    import torch

    code = CODE.replace(
        "    return {", "    everything = locals()\n    return everything | {"
    )
    for name in mended:
        before, after = MENDED[name]
        assert code.count(before) == 1
        code = code.replace(before, after)
    names = run(code, torch=torch, flash_attn_backward=backward, **SIZES)
    given = {name: layer(rope)[name] for name in (*SAVED, *WEIGHTS)}
    return dict(names["transformer_layer_backward"](layer(rope)["output"], **given))


def right(name: str, found: dict[str, Any], *, rope: bool = False) -> bool:
    """Whether an array of the listing is the gradient that autograd gives."""
    return same(found[f"grad_{name}"].numpy(), layer(rope)[f"grad_{name}"].numpy())


def all_right(mended: tuple[str, ...], **options: Any) -> set[str]:
    """Return the returned gradients that are right."""
    found = listing(mended, **options)
    rope = options.get("rope", False)
    return {name for name in RETURNED if right(name, found, rope=rope)}


FEED_FORWARD = {"W_1", "W_2", "W_3", "gamma_ffn"}


def F348(it: Evidence) -> None:
    """The listing is the complete backward of a layer with grouped attention and
    SwiGLU.

    With its seven sizes defined it runs, and six of its ten gradients are wrong: those
    of x, $W_Q$, $W_K$, $W_V$, $W_O$, and the first norm's weight. Five reshapes lack an
    exchange of axes. With these all ten are right. All shapes are right in both cases,
    so no error shows it.
    """
    it.as_printed(all_right(()) == set(RETURNED))
    it.right(all_right(()) == FEED_FORWARD and len(RETURNED) - len(FEED_FORWARD) == 6)
    it.right(all_right(tuple(MENDED)) == set(RETURNED))
    wrong, mended = listing(), listing(tuple(MENDED))
    it.right(
        all(wrong[f"grad_{n}"].shape == mended[f"grad_{n}"].shape for n in RETURNED)
    )


def F349(it: Evidence) -> None:
    """The listing is the backward of a layer of Llama 3.

    Llama rotates queries and keys. The gradients of both have to be rotated back before
    they go to the projections; without it the gradients of $W_Q$, $W_K$, x, and the
    first norm's weight are wrong even after the five reshapes are corrected.
    """

    def turned_back(*given: Any) -> tuple[Any, ...]:
        dq, dk, dv = flash(*given)
        return rotated(dq, backwards=True), rotated(dk, backwards=True), dv

    every = tuple(MENDED)
    found = all_right(every, rope=True)
    it.left_out(len(set(RETURNED) - found))
    it.right(set(RETURNED) - found == {"W_Q", "W_K", "x", "gamma_attn"})
    it.right(all_right(every, rope=True, backward=turned_back) == set(RETURNED))


def F350(it: Evidence) -> None:
    """The function is given all it needs.

    `B`, `S`, `d`, `d_ff`, `n_h`, `n_kv`, and `d_k` are used and nowhere defined. The
    text calls the listing pseudocode.
    """
    import torch

    names = run(CODE, torch=torch, flash_attn_backward=flash)
    given = {name: layer()[name] for name in (*SAVED, *WEIGHTS)}
    call = names["transformer_layer_backward"]
    fails = raises(NameError, lambda: call(layer()["output"], **given))
    it.as_printed(not fails)
    free = {n for n in call.__code__.co_names if n in SIZES}
    it.right(fails and free == set(SIZES))


def F351(it: Evidence) -> None:
    """The saved arguments are those of the table in `§4.1`.

    Besides them the function takes the second norm's output, the logarithms of the
    rows' sums, and the norms' two statistics.
    """
    table = {
        "x",
        "x_norm_attn",
        "Q",
        "K",
        "V",
        "attn_out",
        "h_mid",
        "g1",
        "g3",
        "silu_g1",
    }
    more = {name for name in SAVED if not name.startswith("gamma")} - table
    it.right(more == {"x_norm_ffn", "attn_lse", "rms_attn", "rms_ffn"})
    body = CODE.split("):\n", 1)[1]
    it.clashes(all(name in body for name in more))


def F352(it: Evidence) -> None:
    """The norms' outputs are saved beside their inputs and statistics.

    The listing takes them so. They need not be saved: each is its input over the
    statistic, times the norm's weight, one step or two an element.
    """
    t = layer()
    it.as_printed({"x_norm_attn", "x_norm_ffn"} <= set(SAVED) and "x_norm_ffn" in CODE)
    made = t["h_mid"] / t["rms_ffn"] * t["gamma_ffn"]
    it.elsewhere(not same(made.numpy(), t["x_norm_ffn"].numpy(), 1e-14))
    first = t["x"] / t["rms_attn"] * t["gamma_attn"]
    it.right(same(first.numpy(), t["x_norm_attn"].numpy(), 1e-14))


def F353(it: Evidence) -> None:
    """Queries and attention's output are [B, n_h, S, d_k], keys and values
    [B, n_kv, S, d_k], the logarithms of sums [B, n_h, S], and the norms' statistics
    [B, S, 1]."""
    t = layer()
    q, kv = (2, 4, 5, 6), (2, 2, 5, 6)
    it.as_printed(tuple(t["Q"].shape) == tuple(t["attn_out"].shape) == q)
    it.as_printed(tuple(t["K"].shape) == tuple(t["V"].shape) == kv)
    it.as_printed(tuple(t["attn_lse"].shape) == (2, 4, 5))
    it.as_printed(tuple(t["rms_attn"].shape) == tuple(t["rms_ffn"].shape) == (2, 5, 1))


def F354(it: Evidence) -> None:
    """The input of the feed-forward block is x plus attention's output, [B, S, d]: what
    the second norm's weight needs."""
    found = listing()
    it.as_printed(right("gamma_ffn", found))
    other = layer()["h_mid"] - layer()["x"]  # attention's output alone
    g = (found["grad_x_norm_ffn"] * other / layer()["rms_ffn"]).sum(dim=(0, 1))
    it.as_printed(not same(g.numpy(), layer()["grad_gamma_ffn"].numpy(), 1e-3))
