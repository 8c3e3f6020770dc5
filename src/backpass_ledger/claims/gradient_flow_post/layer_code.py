"""The backward of a whole layer in the steps of §6, and what it takes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, run, same, torch

CLAIMS = """
F348  false         9  attention  attention/heads             §6, promise
F349  left-out      7  positions  operations/rope             §6, promise, rotation
F350  false         1  notation   networks/llama              §6, arguments, names
F351  inconsistent  4  memory     cost/memory                 §6, arguments, against §4.1
F352  caveat        2  norms      operations/rms_norm         §6, arguments, norms
F353  true          0  attention  attention/heads             §6, arguments, shapes
F354  true          0  residual   operations/residual_stream  §6, arguments, the stream
"""


# The reshapes of the second phase that need an exchange of axes as well: of attention's
# output, of its gradient, and of the gradients of queries, keys, and values.
RESHAPES = ("y", "dy", "dq", "dk", "dv")
SIZES = {"B": 2, "S": 5, "d": 10, "n_h": 4, "n_kv": 2, "d_k": 6, "d_ff": 7}
ATTENTION = ("w_q", "w_k", "w_v", "w_o", "gamma_1")
FEED_FORWARD = ("w_gate", "w_up", "w_down", "gamma_2")
WEIGHTS = ATTENTION + FEED_FORWARD
RETURNED = ("x", *WEIGHTS)
# Of each half the input, the norm's statistic and output, and what follows.
SAVED = ("x", "r1", "n1", *"qkvy", "lse", "mid", "r2", "n2", "gate", "up", "act")


def rotated(a: Any, backwards: bool = False) -> Any:
    """Rotate queries or keys by their positions."""
    half = a.shape[-1] // 2
    angles = torch.outer(
        torch.arange(a.shape[-2]).double(), 0.3 / (1.0 + torch.arange(half))
    )
    cos, sin = torch.cos(angles), torch.sin(angles) * (-1 if backwards else 1)
    first, second = a[..., :half], a[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attended(q: Any, k: Any, v: Any, causal: bool = True, scale: float = 1.0) -> Any:
    """Return the output of grouped attention, and the logarithms of the rows' sums."""
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
    leaves = [a.detach().requires_grad_() for a in (q, k, v)]
    return torch.autograd.grad(attended(*leaves, **options)[0], leaves, dy)


Arrays = dict[str, Any]


@cache
def layer(rope: bool = False) -> tuple[Arrays, Arrays]:
    """Run a layer under autograd on random numbers. Return its arrays, and the
    gradients of those that have one; ``dout`` is the output's gradient."""
    at = SIZES
    wide, narrow = at["n_h"] * at["d_k"], at["n_kv"] * at["d_k"]
    d, f = at["d"], at["d_ff"]
    shapes = {
        "x": (at["B"], at["S"], d),
        **{"w_q": (d, wide), "w_k": (d, narrow), "w_v": (d, narrow), "w_o": (wide, d)},
        **{"w_gate": (d, f), "w_up": (d, f), "w_down": (f, d)},
        **{"gamma_1": (d,), "gamma_2": (d,)},
    }
    t = {
        name: torch.tensor(numbers(*shape, seed=i), requires_grad=True)
        for i, (name, shape) in enumerate(shapes.items())
    }

    def normalised(a: Any, i: int) -> Any:
        t[f"r{i}"] = a.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        return a / t[f"r{i}"] * t[f"gamma_{i}"]

    t["n1"] = normalised(t["x"], 1)
    for n in "qkv":
        split = (t["n1"] @ t["w_" + n]).unflatten(-1, (-1, at["d_k"])).transpose(1, 2)
        t[n] = rotated(split) if rope and n != "v" else split
    t["y"], t["lse"] = attended(t["q"], t["k"], t["v"])
    t["attended"] = t["y"].transpose(1, 2).flatten(2) @ t["w_o"]
    t["mid"] = t["x"] + t["attended"]
    t["n2"] = normalised(t["mid"], 2)
    t["gate"], t["up"] = t["n2"] @ t["w_gate"], t["n2"] @ t["w_up"]
    t["act"] = torch.nn.functional.silu(t["gate"])
    t["h"] = t["act"] * t["up"]
    t["fed"] = t["h"] @ t["w_down"]
    out, dout = t["mid"] + t["fed"], torch.tensor(numbers(2, 5, d, seed=50))
    found = torch.autograd.grad(out, list(t.values()), dout, allow_unused=True)
    grads = dict(zip(t, found, strict=True))
    return {n: a.detach() for n, a in t.items()} | {"dout": dout}, grads


def given(rope: bool = False) -> Arrays:
    """Return the listing's arguments."""
    return {n: layer(rope)[0][n] for n in ("dout", *SAVED, *WEIGHTS)}


def backward(
    mended: tuple[str, ...] = (), t: Arrays | None = None, attention: Any = flash
) -> Arrays:
    """Return the gradient of each array, as the listing computes it from its arguments
    ``t``, with some reshapes ``mended``. ``branch_1`` and ``branch_2`` are what the
    halves add to the residual connection; ``joined`` and ``flat_*`` have the heads of a
    token beside each other."""
    t, g = t or given(), {}
    batch, heads, rows, width = t["y"].shape

    def weight(x: Any, dy: Any) -> Any:
        return x.flatten(0, 1).T @ dy.flatten(0, 1)

    def norm(name: str, i: int) -> None:
        unit, dn = t[name] / t[f"r{i}"], g[f"n{i}"]
        g[f"gamma_{i}"] = (dn * unit).sum((0, 1))
        inner = dn * t[f"gamma_{i}"]
        along = (inner * unit).mean(-1, keepdim=True)
        g[f"branch_{i}"] = (inner - along * unit) / t[f"r{i}"]

    def join(name: str, a: Any) -> Any:
        return (a.transpose(1, 2) if name in mended else a).reshape(batch, rows, -1)

    g["fed"] = t["dout"]
    g["w_down"] = weight(t["act"] * t["up"], g["fed"])
    g["h"] = g["fed"] @ t["w_down"].T
    g["act"], g["up"] = g["h"] * t["up"], t["act"] * g["h"]
    s = t["gate"].sigmoid()
    g["gate"] = g["act"] * s * (1 + t["gate"] * (1 - s))
    g["w_gate"], g["w_up"] = (weight(t["n2"], g[n]) for n in ("gate", "up"))
    g["n2"] = sum(g[n] @ t["w_" + n].T for n in ("gate", "up"))
    norm("mid", 2)
    g["mid"] = t["dout"] + g["branch_2"]

    g["attended"] = g["mid"]
    g["w_o"] = weight(join("y", t["y"]), g["attended"])
    g["joined"] = g["attended"] @ t["w_o"].T
    if "dy" in mended:
        g["y"] = g["joined"].reshape(batch, rows, heads, width).transpose(1, 2)
    else:
        g["y"] = g["joined"].reshape(batch, heads, rows, width)
    g["q"], g["k"], g["v"] = attention(g["y"], *(t[n] for n in (*"qkv", "lse")))
    for n in "qkv":
        g["flat_" + n] = join("d" + n, g[n])
        g["w_" + n] = weight(t["n1"], g["flat_" + n])
    g["n1"] = sum(g["flat_" + n] @ t["w_" + n].T for n in "qkv")
    norm("x", 1)
    g["x"] = g["mid"] + g["branch_1"]
    return g


def right(name: str, found: Arrays, rope: bool = False) -> bool:
    """Whether a gradient is the one that autograd gives."""
    return same(found[name].numpy(), layer(rope)[1][name].numpy())


def all_right(
    mended: tuple[str, ...], rope: bool = False, attention: Any = flash
) -> set[str]:
    """Return the returned gradients that are right."""
    found = backward(mended, given(rope), attention)
    return {name for name in RETURNED if right(name, found, rope)}


def F348(it: Evidence) -> None:
    """The listing is the complete backward of a layer with grouped attention and
    SwiGLU.

    With its seven sizes defined it runs, and six of its ten gradients are wrong: those
    of x, $W_Q$, $W_K$, $W_V$, $W_O$, and the first norm's weight. Five reshapes lack an
    exchange of axes. With these all ten are right. All shapes are right in both cases,
    so no error shows it.
    """
    it.as_printed(all_right(()) == set(RETURNED))
    it.right(
        all_right(()) == set(FEED_FORWARD) and len(RETURNED) - len(FEED_FORWARD) == 6
    )
    it.right(all_right(RESHAPES) == set(RETURNED))
    wrong, mended = backward(), backward(RESHAPES)
    it.right(all(wrong[n].shape == mended[n].shape for n in RETURNED))


def F349(it: Evidence) -> None:
    """The listing is the backward of a layer of Llama 3.

    Llama rotates queries and keys. The gradients of both have to be rotated back before
    they go to the projections; without it the gradients of $W_Q$, $W_K$, x, and the
    first norm's weight are wrong even after the five reshapes are corrected.
    """

    def turned_back(*arrays: Any) -> tuple[Any, ...]:
        dq, dk, dv = flash(*arrays)
        return rotated(dq, backwards=True), rotated(dk, backwards=True), dv

    found = all_right(RESHAPES, rope=True)
    it.left_out(len(set(RETURNED) - found))
    it.right(set(RETURNED) - found == {"w_q", "w_k", "x", "gamma_1"})
    it.right(all_right(RESHAPES, rope=True, attention=turned_back) == set(RETURNED))


def F350(it: Evidence) -> None:
    """The function is given all it needs.

    `B`, `S`, `d`, `d_ff`, `n_h`, `n_kv`, and `d_k` are used and nowhere defined. The
    text calls the listing pseudocode.
    """
    shapes = "(B, n_h, S, d_k), (-1, d, d_ff), n_kv * d_k"  # of its reshapes
    fails = raises(NameError, lambda: run(shapes, **given()))
    it.as_printed(not fails)
    it.right(fails and not set(SIZES) & set(given()))
    it.right(set(compile(shapes, "", "eval").co_names) == set(SIZES))
    for name in SIZES:
        others = {n: size for n, size in SIZES.items() if n != name}
        it.right(raises(NameError, partial(run, shapes, **given(), **others)))


def F351(it: Evidence) -> None:
    """The saved arguments are those of the table in `§4.1`.

    Besides them the function takes the second norm's output, the logarithms of the
    rows' sums, and the norms' two statistics.
    """
    table = {"x", "n1", *"qkvy", "mid", "gate", "up", "act"}
    more = set(SAVED) - table
    it.right(more == {"n2", "lse", "r1", "r2"} and table < set(SAVED))
    it.clashes(all(needed(name) for name in more))


def needed(name: str) -> bool:
    """Whether the listing fails without this argument."""
    others = {n: a for n, a in given().items() if n != name}
    return raises(KeyError, lambda: backward(t=others))


def F352(it: Evidence) -> None:
    """The norms' outputs are saved beside their inputs and statistics.

    The listing takes them so. They need not be saved: each is its input over the
    statistic, times the norm's weight, one step or two an element.
    """
    t, _ = layer()
    it.as_printed(needed("n1") and needed("n2"))
    again = [t["x"] / t["r1"] * t["gamma_1"], t["mid"] / t["r2"] * t["gamma_2"]]
    it.elsewhere(not same(again[1].numpy(), t["n2"].numpy(), 1e-14))
    it.right(same(again[0].numpy(), t["n1"].numpy(), 1e-14))


def F353(it: Evidence) -> None:
    """Queries and attention's output are [B, n_h, S, d_k], keys and values
    [B, n_kv, S, d_k], the logarithms of sums [B, n_h, S], and the norms' statistics
    [B, S, 1]."""
    t, _ = layer()
    shapes = {name: tuple(array.shape) for name, array in t.items()}
    it.as_printed(shapes["q"] == shapes["y"] == (2, 4, 5, 6))
    it.as_printed(shapes["k"] == shapes["v"] == (2, 2, 5, 6))
    it.as_printed(shapes["lse"] == (2, 4, 5))
    it.as_printed(shapes["r1"] == shapes["r2"] == (2, 5, 1))


def F354(it: Evidence) -> None:
    """The input of the feed-forward block is x plus attention's output, [B, S, d]: what
    the second norm's weight needs."""
    (t, expected), found = layer(), backward()
    it.as_printed(right("gamma_2", found))
    g = (found["n2"] * t["attended"] / t["r2"]).sum((0, 1))  # without x
    it.as_printed(not same(g.numpy(), expected["gamma_2"].numpy(), 1e-3))
