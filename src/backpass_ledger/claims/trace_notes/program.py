"""What the text announces, and its program as a whole."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp

CLAIMS = """
N1   left-out      4  attention  networks/whole_network        title
N2   true          0  notation   attention/multilinear         opening paragraph
N3   caveat        1  attention  attention/multilinear         opening paragraph
N4   caveat        4  attention  attention/scaled_dot_product  opening paragraph
N5   false         7  debugging  attention/multilinear         opening paragraph
N6   uncheckable   0  attention  attention/multilinear         comments on the members
N7   true          0  positions  attention/multilinear         comment on LinearSphere
N8   inconsistent  2  memory     attention/linear_time         comment on LinearSphere
N9   uncheckable   0  attention  attention/multilinear         comment on MultilinearSphere
N10  true          0  positions  attention/multilinear         comment on MultilinearSphere
N11  caveat        1  attention  attention/linear_time         comment on MultilinearSoftmax
N12  caveat        1  attention  attention/linear_time         comment on MultilinearSoftmax
N13  true          0  notation   foundations/notation          comment on the arrays
N14  left-out      1  debugging  attention/multilinear         code, first lines
"""

# The conditions: in which pass, on which component, and as printed.
CONDITIONS = [
    *(("forward", 0, "==", scores) for scores in ("Linear", "Multilinear")),
    *(("forward", 1, "=", kind) for kind in ("Simplex", "Sphere", "Softmax")),
    *(("backward", 1, "=", kind) for kind in ("Simplex", "Sphere", "Softmax")),
    *(("backward", 0, "=", scores) for scores in ("Linear", "Multiinear")),
]
MISTAKES = {
    "==": "eight conditions have a single =",
    "A": "the norms start from A, which nothing has assigned",
    "rows": "the simplex and the sphere sum over the queries",
    "pow": "the sphere calls a method that NumPy does not have",
    "Y": "nothing assigns the output",
    "weight": "the sphere's gradient lacks the factor A",
    "s": "the divisor gets one more axis",
    "branch": "the last condition misspells its name",
    "_QKT": "the divisor of the factors is misspelt",
    "_K": "the whole K stands for its blocks",
    "_Q": "the whole Q stands for its blocks, after a transpose of all axes",
    "Q order": "the blocks of Q's gradient are not exchanged back",
    "K order": "the blocks of K's gradient are not exchanged back",
    "d": "the row products take the name of the width",
}
SCORES = ("Linear", "Multilinear")
WEIGHTS = ("Simplex", "Sphere", "Softmax")
MEMBERS = [(scores, weights) for scores in SCORES for weights in WEIGHTS]
GIVEN = {name: numbers(5, 6, seed=at) for at, name in enumerate(("Q", "K", "V"))}
DY = numbers(5, 6, seed=3)


def compiles(*condition: Any) -> bool:
    """Whether Python accepts a condition of the table."""
    _, component, sign, value = condition
    line = f"if name[{component}] {sign} {value!r}: pass"
    return not raises(SyntaxError, lambda: compile(line, "", "exec"))


def softmax(x: Any, axis: int | None = -1) -> Any:
    """Over the last axis unless told otherwise, as JAX has it; over all for None."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def program(
    member: tuple[str, str],
    *mistakes: str,
    q: Any = GIVEN["Q"],
    k: Any = GIVEN["K"],
    v: Any = GIVEN["V"],
    dy: Any = DY,
    t: int = 5,
    p: int = 3,
    d: Any = 6,
    softmax: Any = softmax,
    until: str = "",
) -> dict[str, Any]:
    """Run a program of ours that does what the text's program does, with the given
    ones of its mistakes and no others. Return its variables at the end, or where
    ``until`` has been computed."""
    assert set(mistakes) <= set(MISTAKES)
    if "==" in mistakes and not all(compiles(*condition) for condition in CONDITIONS):
        raise SyntaxError
    scores, kind = member
    if scores == "Linear":
        b = q @ k.T
    else:
        q_blocks, k_blocks = (x.reshape(t, p, d // p).swapaxes(0, 1) for x in (q, k))
        factors = q_blocks @ k_blocks.swapaxes(1, 2)
        b = factors.prod(0)
    if "A" not in mistakes:
        a = b
    over = 0 if "rows" in mistakes else 1
    if kind == "Softmax":
        a = softmax(a)
    else:
        if kind == "Simplex":
            s = a.sum(over, keepdims=True)
        else:
            squares = a.pow(2) if "pow" in mistakes else a**2
            s = np.sqrt(squares.sum(over, keepdims=True))
        a = a / s
    if "Y" not in mistakes:
        y = a @ v
    if until == "y":
        return locals()

    dv, da = a.T @ dy, dy @ v.T
    along = np.array(list(map(np.dot, y, dy)))
    if "d" in mistakes:
        d = along
    if kind == "Softmax":
        db = (da - along[:, None]) * a
    else:
        weight = a if kind == "Sphere" and "weight" not in mistakes else 1
        divisor = s[:, None] if "s" in mistakes else s
        db = (da - along[:, None] * weight) / divisor
    if until == "db":
        return locals()

    if scores == "Linear":
        dq, dk = db @ k, db.T @ q
    elif scores == ("Multiinear" if "branch" in mistakes else "Multilinear"):
        if "_QKT" not in mistakes:
            each = factors
        u = (db * b)[None] / each
        dq_blocks = u @ (k if "_K" in mistakes else k_blocks)
        dk_blocks = u.T @ q if "_Q" in mistakes else u.swapaxes(1, 2) @ q_blocks
        dq, dk = (
            (x if order in mistakes else x.swapaxes(0, 1)).reshape(t, d)
            for x, order in ((dq_blocks, "Q order"), (dk_blocks, "K order"))
        )
    return locals()


forward, half = partial(program, until="y"), partial(program, until="db")


def weights(b: Any, kind: str) -> Any:
    """Normalise each row of a torch tensor."""
    if kind == "Softmax":
        return b.softmax(-1)
    return b / (b.sum(-1, True) if kind == "Simplex" else b.norm(dim=-1, keepdim=True))


def attention(member: tuple[str, str], q: Any, k: Any, v: Any) -> Any:
    """The output of a member, of torch tensors."""
    p = 3 if member[0] == "Multilinear" else 1
    b = 1
    for qk, kk in zip(q.chunk(p, 1), k.chunk(p, 1), strict=True):
        b = b * (qk @ kk.T)
    return weights(b, member[1]) @ v


@cache
def gradients(member: tuple[str, str]) -> Any:
    """The gradients with respect to Q, K and V, by autograd."""
    return vjp(lambda *qkv: attention(member, *qkv), list(GIVEN.values()), DY)


def outcome(member: tuple[str, str], *mistakes: str, **others: Any) -> str:
    """Return the result of the program for a member: right, wrong, wrong shape,
    missing, or the name of the exception."""
    try:
        found = program(member, *mistakes, **others)
        ours = [found[gradient] for gradient in ("dq", "dk", "dv")]
    except NameError:  # UnboundLocalError is one
        return "NameError"
    except (SyntaxError, AttributeError, TypeError, ValueError) as error:
        return type(error).__name__
    except KeyError:
        return "missing"
    both = list(zip(ours, gradients(member), strict=True))
    if any(mine.shape != its.shape for mine, its in both):
        return "wrong shape"
    return "right" if all(same(*pair) for pair in both) else "wrong"


def outcomes(*mistakes: str) -> dict[tuple[str, str], str]:
    """Return the results of the program with these mistakes for the members that it
    does not compute correctly."""
    found = {member: outcome(member, *mistakes) for member in MEMBERS}
    return {member: result for member, result in found.items() if result != "right"}


def torch_attention(**options: Any) -> Any:
    """The output of PyTorch's attention."""
    given = (torch.tensor(x) for x in GIVEN.values())
    return torch.nn.functional.scaled_dot_product_attention(*given, **options)


def same_as_torch(**options: Any) -> bool:
    """Whether PyTorch's attention is the text's Linear Softmax."""
    q, k, v = (torch.tensor(x) for x in GIVEN.values())
    ours = attention(("Linear", "Softmax"), q, k, v)
    return same(torch_attention(**options), ours)


def N1(it: Evidence) -> None:
    """The text has the forward and the backward pass of a Transformer.

    It gives only the core of one head, from Q, K and V to Y. It has no gradient for any
    of the 12 parameter arrays of a Transformer layer, which belong to the projections,
    the norms and the feed-forward block. Embeddings, residual connections and the loss
    are missing too."""
    layer = dict(
        torch.nn.TransformerEncoderLayer(6, 2, device="meta").named_parameters()
    )
    it.left_out(len(layer))
    found = {name for name in program(MEMBERS[-1]) if re.match(r"d\w", name)} - {"dy"}
    of_blocks = {"dq_blocks", "dk_blocks"}
    it.right(len(layer) == 12 and found == {"da", "db", "dk", "dq", "dv"} | of_blocks)


def N2(it: Evidence) -> None:
    """A member's name has two components, for the scores (linear or multilinear) and
    for the weights (simplex, sphere or softmax), and every pair of them is a member."""
    conditions = [(at, value) for _, at, _, value in CONDITIONS[:5]]
    it.as_printed(conditions == [*((0, s) for s in SCORES), *((1, w) for w in WEIGHTS)])
    it.as_printed(outcomes() == {})


def N3(it: Evidence) -> None:
    """With p blocks, the preattention is multilinear in the queries.

    It is linear in each block while the other blocks are fixed; that is the meaning of
    the word. In all queries together it has degree p: doubling them multiplies the
    preattention by $2^p$."""
    b = forward(("Multilinear", "Sphere"))["b"]
    for block in range(3):
        twice = np.where(np.arange(6) // 2 == block, 2, 1) * GIVEN["Q"]
        it.as_printed(same(forward(("Multilinear", "Sphere"), q=twice)["b"], 2 * b))
    whole = forward(("Multilinear", "Sphere"), q=2 * GIVEN["Q"])["b"]
    it.elsewhere(same(whole, 2 * b))
    it.right(same(whole, 2**3 * b))


def N4(it: Evidence) -> None:
    r"""The standard transformer is the member LinearSoftmax.

    LinearSoftmax is the attention of one head, without a mask and without the factor
    $1/\sqrt{d}$ that a standard transformer has."""
    it.as_printed(same_as_torch(scale=1.0))
    it.elsewhere(same_as_torch())
    it.elsewhere(same_as_torch(scale=1.0, is_causal=True))


def N5(it: Evidence) -> None:
    """The program computes the forward and the backward pass of every member.

    As printed it runs for no member. With `==` in its conditions, every member raises a
    NameError at A. Run with NumPy, fourteen mistakes have to be corrected; then all six
    members are right."""
    as_printed = outcomes(*MISTAKES)
    it.as_printed(as_printed == {})
    it.right(as_printed == dict.fromkeys(MEMBERS, "SyntaxError"))
    compiled = outcomes(*(MISTAKES.keys() - {"=="}))
    it.right(compiled == dict.fromkeys(MEMBERS, "NameError"))
    it.right(outcomes() == {} and len(MISTAKES) == 14)
    it.right(all(outcomes(mistake) for mistake in MISTAKES))


def N6(it: Evidence) -> None:
    """The first release has LinearSimplex, the next one MultilinearSimplex;
    MultilinearSphere is to be used in the long run, and MultilinearSoftmax is probably
    wanted as a baseline.

    These are the authors' plans. The text does not name a release."""


def N7(it: Evidence) -> None:
    """LinearSphere allows rotary embeddings.

    Softmax allows them too. On the simplex it is unsafe: a rotation can make the sum of
    a row of positive scores negative."""
    q = (1 + 1j) * np.exp(1j * np.arange(11))  # (1, 1), one radian a position
    b = (q[:, None] * q.conj()).real
    a, later = (x / np.linalg.norm(x, axis=1)[:, None] for x in (b[:8, :8], b[3:, 3:]))
    it.as_printed(same(a, later) and (a < 0).any())
    it.right(same(softmax(b[:8, :8]), softmax(b[3:, 3:])))
    it.right((b[:8, :8].sum(1) < 0).any())


def N8(it: Evidence) -> None:
    r"""LinearSphere is hardly worth exploring, because its state is too small.

    LinearSimplex, which is in the first release, has a smaller state. Both need the
    $d\,d_v$ numbers of $K^\top V$. The simplex also needs the sum of the keys, d
    numbers, and the sphere $K^\top K$, which has $d^2$ elements; it is symmetric, so
    $d(d + 1)/2$ are enough."""
    q, k, v = (abs(x) for x in (GIVEN["Q"], numbers(50, 6), numbers(50, 4)))
    kv, sums, squares = k.T @ v, k.sum(0), k.T @ k
    lengths = np.sqrt(np.einsum("id,de,ie->i", q, squares, q))
    for divisor, kind in ((q @ sums, "Simplex"), (lengths, "Sphere")):
        whole = forward(("Linear", kind), q=q, k=k, v=v)
        it.right(same(whole["s"][:, 0], divisor))
        it.right(same(q @ kv / divisor[:, None], whole["y"]))
    half = np.triu(squares)
    it.right(same(half + np.triu(half, 1).T, squares))
    it.right(np.count_nonzero(half) == 6 * 7 / 2)
    it.clashes(kv.size + sums.size < kv.size + np.count_nonzero(half))


def N9(it: Evidence) -> None:
    """MultilinearSphere behaves very nicely with gating.

    The text shows no experiment and does not define “nicely”; its program has no
    gate."""


def N10(it: Evidence) -> None:
    r"""MultilinearSphere also works with rotary encoders.

    If each block has width 2 and is rotated by its own angle per position, each factor
    of $B_{ij}$ depends on the positions only through $i - j$. So do the product and the
    weights."""
    q, k = (numbers(3, 8, seed=at) + 1j * numbers(3, 8, seed=at + 2) for at in range(2))

    def rotated(first: int) -> Any:
        turn = np.exp(1j * np.outer([1.0, 0.3, 0.05], first + np.arange(8)))
        b = ((q * turn)[:, :, None] * (k * turn)[:, None].conj()).real.prod(0)
        return b / np.linalg.norm(b, axis=1, keepdims=True)

    it.as_printed(same(rotated(0), rotated(3)))
    still = (q[:, :, None] * k[:, None].conj()).real.prod(0)
    unturned = still / np.linalg.norm(still, axis=1, keepdims=True)
    it.right(not same(rotated(0), unturned))


def N11(it: Evidence) -> None:
    r"""With softmax, the state space is already infinite.

    No finite number of features of q and k has $e^{q \cdot k}$ as its inner product for
    all q and k. For a given sequence of t tokens, however, a finite state is enough:
    the keys and values of its tokens."""
    x = np.linspace(-2, 2, 9)
    products = np.outer(x, x)
    ranks = [np.linalg.matrix_rank(np.exp(products[:n, :n])) for n in range(1, 10)]
    it.as_printed(ranks == [*range(1, 10)])
    it.right(np.linalg.matrix_rank(products) == 1)
    whole = torch_attention(is_causal=True, scale=1.0)
    state, outputs = np.empty((0, 2, 6)), []
    for query, *both in zip(*GIVEN.values(), strict=True):  # token by token
        state = np.concatenate([state, [both]])
        outputs.append(softmax(state[:, 0] @ query) @ state[:, 1])
    it.right(state.size == 2 * 5 * 6)
    it.elsewhere(not same(outputs, whole))


def N12(it: Evidence) -> None:
    r"""The multilinear trick enlarges a finite state.

    For each column of the values, the state has $(d/p)^p$ numbers instead of d. That is
    not more for $d = 4$ and $p = 2$, and it is 1 number for $p = d$."""

    def state(d: int, p: int) -> int:  # numbers of each key that the scores need
        q, k = numbers(60, d), numbers(60, d, seed=1)
        b = forward(("Multilinear", "Sphere"), q=q, k=k, v=k, t=60, p=p, d=d)["b"]
        return int(np.linalg.matrix_rank(b))

    for d, p in ((6, 2), (6, 3), (8, 2), (8, 4)):
        it.as_printed(state(d, p) == (d // p) ** p > state(d, 1) == d)
    for d, p in ((4, 2), (6, 6)):
        it.elsewhere(state(d, p) > state(d, 1))
    it.right(state(4, 2) == 4 and state(6, 6) == 1)


def N13(it: Evidence) -> None:
    """Q, K and V are assumed to be `[t, d]` arrays.

    The program runs with these shapes. The linear members also run with another number
    of keys and another width of the values; the multilinear ones need t keys."""
    it.as_printed({x.shape for x in GIVEN.values()} == {(5, 6)})
    it.as_printed(outcomes() == {})
    q, k, v, dy = GIVEN["Q"], numbers(7, 6), numbers(7, 4), numbers(5, 4)
    for member in MEMBERS:
        longer = partial(program, member, k=k, v=v, dy=dy)
        if member[0] == "Multilinear":
            it.right(raises(ValueError, longer))
            continue
        found, function = longer(), partial(attention, member)
        expected = vjp(function, [q, k, v], dy)
        it.right(all(map(same, (found["dq"], found["dk"], found["dv"]), expected)))


def N14(it: Evidence) -> None:
    """The program needs no more than Q, K and V, and `Y_grad` for the backward.

    It does not set `t`, `p` and `d`, and p cannot be read off the arrays. It does not
    import `sqrt`, `dot`, `vmap` and `softmax`."""
    pieces = ["q.reshape(t, 3, 2)", "q.reshape(5, p, 2)", "q.reshape(5, d)"]
    pieces += ["sqrt(q)", "dot(q, q)", "vmap(len)(q)", "softmax(q)"]
    missing = []
    for piece in pieces:
        try:
            eval(piece, {"q": GIVEN["Q"]})
        except NameError as error:
            missing.append(error.name)
    it.left_out(len(missing))
    it.right(missing == ["t", "p", "d", "sqrt", "dot", "vmap", "softmax"])
    one, two, three = (forward(("Multilinear", "Sphere"), p=p)["b"] for p in (1, 2, 3))
    it.right(not (same(one, two) or same(two, three) or same(one, three)))
