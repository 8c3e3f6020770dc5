"""The backward of a whole layer in the steps of §6, and what it takes."""

from __future__ import annotations

from functools import cache
from typing import Any

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.setting import rotated
from backpass_ledger.claims.tools import numbers, raises, run, same, torch

CLAIMS = """
F348  false         9  attention  attention/heads             §6, promise
F349  left-out      7  positions  operations/rope             §6, promise, rotation
F350  left-out      1  notation   networks/llama              §6, arguments, names
F351  inconsistent  4  memory     cost/memory                 §6, arguments, against §4.1
F352  caveat        2  norms      operations/rms_norm         §6, arguments, norms
F353  true          0  attention  attention/heads             §6, arguments, shapes
F354  true          0  residual   operations/residual_stream  §6, arguments, the stream
"""

# The reshapes of the second phase that need an exchange of axes as well: of attention's
# output, of its gradient, and of the gradients of queries, keys, and values.
RESHAPES = ("y", "dy", "dq", "dk", "dv")
SIZES = {"B": 2, "S": 5, "d": 10, "n_h": 4, "n_kv": 2, "d_k": 6, "d_ff": 7}
SHAPES = {
    "x": (2, 5, 10),
    "w_q": (10, 24),
    "w_k": (10, 12),
    "w_v": (10, 12),
    "w_o": (24, 10),
    "gamma_1": (10,),
    "w_gate": (10, 7),
    "w_up": (10, 7),
    "w_down": (7, 10),
    "gamma_2": (10,),
}  # of the arrays whose gradients are returned
RETURNED = tuple(SHAPES)
FEED_FORWARD = RETURNED[6:]
# Of each half the input, the norm's statistic and output, and what follows.
SAVED = ("x", "r1", "n1", *"qkvy", "lse", "mid", "r2", "n2", "gate", "up", "act")

Arrays = dict[str, Any]


def attended(q: Any, k: Any, v: Any, causal: bool = True, scale: float = 1.0) -> Any:
    """Return the output of grouped attention, and the logarithms of the rows' sums."""
    k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], dim=1) for a in (k, v))
    scores = scale * q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:]).triu(1).bool() & causal
    scores = scores.masked_fill(later, -torch.inf)
    return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)


def flash(dy: Any, q: Any, k: Any, v: Any, _lse: Any, **options: Any) -> Any:
    """Return the gradients of attention, by autograd."""
    leaves = [a.detach().requires_grad_() for a in (q, k, v)]
    return torch.autograd.grad(attended(*leaves, **options)[0], leaves, dy)


@cache
def layer(rope: bool = False) -> tuple[Arrays, Arrays]:
    """Run a layer under autograd on random numbers. Return its arrays, and the
    gradients of those that have one; ``dout`` is the output's gradient."""
    t = {
        name: torch.tensor(numbers(*shape, seed=i), requires_grad=True)
        for i, (name, shape) in enumerate(SHAPES.items())
    }

    def normalised(a: Any, i: int) -> Any:
        t[f"r{i}"] = a.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        return a / t[f"r{i}"] * t[f"gamma_{i}"]

    t["n1"] = normalised(t["x"], 1)
    for n in "qkv":
        split = (t["n1"] @ t["w_" + n]).unflatten(-1, (-1, 6)).transpose(1, 2)
        t[n] = rotated(split) if rope and n != "v" else split
    t["y"], t["lse"] = attended(t["q"], t["k"], t["v"])
    t["attended"] = t["y"].transpose(1, 2).flatten(2) @ t["w_o"]
    t["mid"] = t["x"] + t["attended"]
    t["n2"] = normalised(t["mid"], 2)
    t["gate"], t["up"] = t["n2"] @ t["w_gate"], t["n2"] @ t["w_up"]
    t["act"] = torch.nn.functional.silu(t["gate"])
    t["h"] = t["act"] * t["up"]
    t["fed"] = t["h"] @ t["w_down"]
    out, dout = t["mid"] + t["fed"], torch.tensor(numbers(2, 5, 10, seed=50))
    found = torch.autograd.grad(out, list(t.values()), dout, allow_unused=True)
    grads = dict(zip(t, found, strict=True))
    return {n: a.detach() for n, a in t.items()} | {"dout": dout}, grads


def given(rope: bool = False) -> Arrays:
    """Return the listing's arguments."""
    return {n: layer(rope)[0][n] for n in ("dout", *SAVED, *RETURNED[1:])}


def backward(
    mended: tuple[str, ...] = (), t: Arrays | None = None, attention: Any = flash
) -> Arrays:
    """Return the gradient of each array, as the listing computes it from its arguments
    ``t``, with some reshapes ``mended``. ``branch_1`` and ``branch_2`` are what the
    halves add to the residual connection; ``joined`` and ``flat_*`` have the heads of a
    token beside each other."""
    t, g = t or given(), {}
    batch, heads, rows, width = t["y"].shape

    def through(x: Any, name: str, dy: Any) -> Any:  # a product with a weight
        g["w_" + name] = x.flatten(0, 1).T @ dy.flatten(0, 1)
        return dy @ t["w_" + name].T

    def norm(name: str, i: int) -> None:
        unit, dn = t[name] / t[f"r{i}"], g[f"n{i}"]
        g[f"gamma_{i}"] = (dn * unit).sum((0, 1))
        inner = dn * t[f"gamma_{i}"]
        along = (inner * unit).mean(-1, keepdim=True)
        g[f"branch_{i}"] = (inner - along * unit) / t[f"r{i}"]

    def join(name: str, a: Any) -> Any:
        return (a.transpose(1, 2) if name in mended else a).reshape(batch, rows, -1)

    g["fed"] = t["dout"]
    g["h"] = through(t["act"] * t["up"], "down", g["fed"])
    g["act"], g["up"] = g["h"] * t["up"], t["act"] * g["h"]
    s = t["gate"].sigmoid()
    g["gate"] = g["act"] * s * (1 + t["gate"] * (1 - s))
    g["n2"] = sum(through(t["n2"], n, g[n]) for n in ("gate", "up"))
    norm("mid", 2)
    g["mid"] = t["dout"] + g["branch_2"]

    g["attended"] = g["mid"]
    g["joined"] = through(join("y", t["y"]), "o", g["attended"])
    if "dy" in mended:
        g["y"] = g["joined"].reshape(batch, rows, heads, width).transpose(1, 2)
    else:
        g["y"] = g["joined"].reshape(batch, heads, rows, width)
    g["q"], g["k"], g["v"] = attention(g["y"], *(t[n] for n in (*"qkv", "lse")))
    for n in "qkv":
        g["flat_" + n] = join("d" + n, g[n])
    g["n1"] = sum(through(t["n1"], n, g["flat_" + n]) for n in "qkv")
    norm("x", 1)
    g["x"] = g["mid"] + g["branch_1"]
    return g


def right(*names: str, mended: tuple[str, ...] = ()) -> bool:
    """Whether the listing's gradients of some arrays are those of autograd."""
    found = backward(mended)
    return all(same(found[name], layer()[1][name]) for name in names)


def all_right(
    mended: tuple[str, ...] = (), rope: bool = False, attention: Any = flash
) -> set[str]:
    """Return the returned gradients that are right."""
    found = backward(mended, given(rope), attention)
    return {name for name in RETURNED if same(found[name], layer(rope)[1][name])}


def needed(name: str) -> bool:
    """Whether the listing fails without this argument."""
    others = {n: a for n, a in given().items() if n != name}
    return raises(KeyError, lambda: backward(t=others))


def F348(it: Evidence) -> None:
    """The listing is the complete backward of a layer with grouped attention and
    SwiGLU.

    With its seven sizes defined it runs, and six of its ten gradients are wrong: those
    of x, $W_Q$, $W_K$, $W_V$, $W_O$, and the first norm's weight. Five reshapes lack an
    exchange of axes. All shapes are right, so no error shows it."""
    it.as_printed(all_right() == set(RETURNED))
    it.right(all_right() == set(FEED_FORWARD))
    it.right(len(RETURNED) == 10 and len(FEED_FORWARD) == 4 and len(SIZES) == 7)
    it.right(all_right(RESHAPES) == set(RETURNED) and len(RESHAPES) == 5)
    for found in (backward(), backward(RESHAPES)):
        it.right(all(found[name].shape == SHAPES[name] for name in RETURNED))


def F349(it: Evidence) -> None:
    """The listing is the backward of a layer of Llama 3.

    Llama rotates queries and keys, so their gradients have to be rotated back, or those
    of $W_Q$, $W_K$, x, and the first norm's weight are wrong with all reshapes
    mended."""

    def turned_back(*arrays: Any) -> tuple[Any, ...]:
        *dqk, dv = flash(*arrays)
        # Exchanging the halves before and after turns a rotation round.
        return *(rotated(a.roll(3, -1)).roll(3, -1) for a in dqk), dv

    wrong = set(RETURNED) - all_right(RESHAPES, rope=True)
    it.left_out(len(wrong))
    it.right(wrong == {"w_q", "w_k", "x", "gamma_1"})
    it.right(all_right(RESHAPES, rope=True, attention=turned_back) == set(RETURNED))


def F350(it: Evidence) -> None:
    """The function's arguments are all that it needs.

    `B`, `S`, `d`, `d_ff`, `n_h`, `n_kv`, and `d_k` are used and nowhere defined. The
    text calls the listing pseudocode."""
    shapes = "(B, n_h, S, d_k), (-1, d, d_ff), n_kv * d_k"  # of its reshapes
    missing = set(compile(shapes, "", "eval").co_names) - set(given())
    it.left_out(len(missing))
    it.right(
        missing == set(SIZES) and raises(NameError, lambda: run(shapes, **given()))
    )


def F351(it: Evidence) -> None:
    """The saved arguments are those of the table in `§4.1`.

    Besides them the function takes the second norm's output, the logarithms of the
    rows' sums, and the norms' two statistics."""
    more = set(SAVED) - {"x", "n1", *"qkvy", "mid", "gate", "up", "act"}
    it.right(more == {"n2", "lse", "r1", "r2"})
    it.clashes(all(map(needed, more)))


def F352(it: Evidence) -> None:
    """The norms' outputs are saved beside their inputs and statistics.

    The listing takes them so. They need not be saved: each is its input over the
    statistic, times the norm's weight."""
    t, _ = layer()
    it.as_printed(needed("n1") and needed("n2"))
    for i, name in enumerate(("x", "mid"), start=1):
        again = t[name] / t[f"r{i}"] * t[f"gamma_{i}"]
        it.elsewhere(not same(again, t[f"n{i}"], 1e-14))


def F353(it: Evidence) -> None:
    """Queries and attention's output are [B, n_h, S, d_k], keys and values [B, n_kv, S,
    d_k], the logarithms of sums [B, n_h, S], and the norms' statistics [B, S, 1]."""
    shapes = {name: tuple(array.shape) for name, array in given().items()}
    it.as_printed(shapes["q"] == shapes["y"] == (2, 4, 5, 6))
    it.as_printed(shapes["k"] == shapes["v"] == (2, 2, 5, 6))
    it.as_printed(shapes["lse"] == (2, 4, 5))
    it.as_printed(shapes["r1"] == shapes["r2"] == (2, 5, 1))


def F354(it: Evidence) -> None:
    """The input of the feed-forward block is x plus attention's output, [B, S, d]: what
    the second norm's weight needs."""
    (t, expected), found = layer(), backward()
    it.as_printed(right("gamma_2"))
    without_x = (found["n2"] * t["attended"] / t["r2"]).sum((0, 1))
    it.as_printed(not same(without_x, expected["gamma_2"], 1e-3))
