"""The forward of the text's program."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.claims.evidence import (
    CAVEAT,
    FALSE,
    INCONSISTENT,
    LEFT_OUT,
    TRUE,
    Evidence,
)
from backpass.claims.record import claim
from backpass.claims.tools import numbers, raises, same, vjp
from backpass.claims.trace_notes.program import (
    DY,
    GIVEN,
    MEMBERS,
    PRINTED,
    SCORES,
    WEIGHTS,
    attention,
    but,
    forward,
    mended,
    outcome,
    outcomes,
    same_as_torch,
    softmax,
)


@claim(
    "code, linear preattention", TRUE, topic="attention", page="attention/multilinear"
)
def N13(it: Evidence) -> None:
    """`B = Q @ K.T` has one row per query and one column per key: $B_{ij} = Q_i
    \\cdot K_j$.
    """
    b = forward(("Linear", "Softmax"))["B"]
    q, k = GIVEN["Q"], GIVEN["K"]
    it.as_printed(
        all(np.isclose(b[i, j], q[i] @ k[j]) for i in range(5) for j in range(5))
    )


@claim(
    "code, comment “normal” and linear preattention",
    LEFT_OUT,
    topic="attention",
    page="attention/scaled_dot_product",
    harm=4,
)
def N14(it: Evidence) -> None:
    r"""The scores of a normal transformer are $QK^\top$.

    They are $QK^\top/\sqrt{d}$. Then the gradients of Q and K have the factor
    $1/\sqrt{d}$ too.
    """
    member, root = ("Linear", "Softmax"), np.sqrt(6)
    q, k, v = GIVEN.values()
    scaled = vjp(lambda *qkv: attention(member, qkv[0] / root, *qkv[1:]), [q, k, v], DY)
    a = softmax(q @ k.T / root)
    da = DY @ v.T
    printed = ((da - (DY * (a @ v)).sum(1)[:, None]) * a) @ k
    ratio = printed / scaled[0]
    it.left_out(ratio.mean() - 1)
    it.right(same(ratio, np.full((5, 6), root)))
    it.right(same_as_torch(scale=1.0) and not same_as_torch())


@claim(
    "code, forward", LEFT_OUT, topic="attention", page="attention/multilinear", harm=4
)
def N15(it: Evidence) -> None:
    """The forward is that of a transformer with a state, which reads from left to
    right.

    No line hides the later keys from a query. Softmax needs scores of $-\\infty$ there,
    the simplex and the sphere scores of 0.
    """
    found = forward(("Linear", "Softmax"))
    it.left_out(np.count_nonzero(np.triu(found["A"], 1)))
    masked = np.where(np.tri(5) > 0, found["B"], -np.inf)
    it.right(not np.triu(softmax(masked), 1).any())
    zeros = np.tri(5) * abs(found["B"])
    it.right(not np.triu(zeros / zeros.sum(1, keepdims=True), 1).any())


@claim("code, blocks", CAVEAT, topic="notation", page="attention/multilinear", harm=2)
def N16(it: Evidence) -> None:
    """`Q.reshape([t, p, d//p]).transpose(1, 0, 2)` cuts the columns of Q into p blocks,
    `[p, t, d/p]`.

    Only if p divides d, since `d//p` rounds down, and for arrays of NumPy: a tensor of
    PyTorch takes two axes in `transpose`.
    """
    import torch

    q = GIVEN["Q"]
    blocks = q.reshape([5, 3, 2]).transpose(1, 0, 2)
    it.as_printed(all(same(blocks[k], q[:, 2 * k : 2 * k + 2]) for k in range(3)))
    it.elsewhere(not raises(ValueError, lambda: numbers(5, 7).reshape([5, 3, 7 // 3])))
    tensor: Any = torch.ones(5, 3, 2)
    it.elsewhere(not raises(TypeError, lambda: tensor.transpose(1, 0, 2)))


@claim(
    "code, scores of each factor", TRUE, topic="attention", page="attention/multilinear"
)
def N17(it: Evidence) -> None:
    """`_QKT = _Q @ _K.transpose(0, 2, 1)` holds the scores of each factor, `[p, t,
    t]`.
    """
    found = forward(("Multilinear", "Softmax"))
    it.as_printed(
        same(found["_QKT"], np.einsum("kia,kja->kij", found["_Q"], found["_K"]))
    )


@claim(
    "code, comment beside `_B`",
    FALSE,
    topic="notation",
    page="attention/multilinear",
    harm=3,
)
def N18(it: Evidence) -> None:
    r"""`_B = _QKT` is a sum along axis 0, with broadcasting.

    It is another name for the same array, and the next line takes the product along
    axis 0. The sum would be $QK^\top$ once more, the linear scores.
    """
    found = forward(("Multilinear", "Softmax"))
    it.as_printed(found["_B"].shape == (5, 5))
    it.right(found["_B"] is found["_QKT"])
    it.right(same(found["_QKT"].sum(0), GIVEN["Q"] @ GIVEN["K"].T))


@claim(
    "code, multilinear preattention",
    TRUE,
    topic="attention",
    page="attention/multilinear",
)
def N19(it: Evidence) -> None:
    r"""`B = _B.prod(axis=0)` is $\bigodot_k Q_k K_k^\top$, and the linear scores if
    p is 1.
    """
    q, k = GIVEN["Q"], GIVEN["K"]
    factors = [q[:, at : at + 2] @ k[:, at : at + 2].T for at in (0, 2, 4)]
    it.as_printed(
        same(
            forward(("Multilinear", "Softmax"))["B"],
            factors[0] * factors[1] * factors[2],
        )
    )
    it.as_printed(same(forward(("Multilinear", "Softmax"), p=1)["B"], q @ k.T))


@claim(
    "code, conditions of the forward",
    FALSE,
    topic="debugging",
    page="attention/multilinear",
    harm=2,
)
def N20(it: Evidence) -> None:
    """`if name[1] = 'Simplex':` and its two alternatives are comparisons.

    A single `=` in a condition is a SyntaxError; `==` compares. So no line of the
    program runs as printed, for any member.
    """
    lines = PRINTED.split("V_grad")[0]
    it.as_printed(not raises(SyntaxError, lambda: compile(lines, "", "exec")))
    it.right(lines.count(" = '") == 3)
    it.right(
        not raises(
            SyntaxError, lambda: compile(lines.replace(" = '", " == '"), "", "exec")
        )
    )


@claim(
    "code, first line of each norm",
    FALSE,
    topic="debugging",
    page="attention/multilinear",
    harm=4,
)
def N21(it: Evidence) -> None:
    """The norms start from A: `s = A.sum(…)`, `s = sqrt(A.pow(2).sum(…))`,
    `softmax(A)`.

    A does not exist yet, and B, which does, is not used. `A = B` before the norms
    corrects all three.
    """
    it.as_printed(outcomes(mended("==")) == {})
    it.right(outcomes(mended("==")) == dict.fromkeys(MEMBERS, "NameError"))
    it.right(outcomes(but("A")) == dict.fromkeys(MEMBERS, "NameError"))
    it.right(outcomes(but()) == {})


@claim(
    "code, simplex, axis",
    FALSE,
    topic="attention",
    page="attention/multilinear",
    harm=8,
)
def N22(it: Evidence) -> None:
    """The simplex divides by `s = A.sum(axis=0, keepdims=True)`, so each query's
    weights sum to 1.

    That axis sums over the queries: the weights of each key sum to 1. A row of B
    belongs to a query, so the axis is 1. Nothing raises an error.
    """
    member = ("Linear", "Simplex")
    a = forward(member, "rows", Q=abs(GIVEN["Q"]), K=abs(GIVEN["K"]))["A"]
    it.as_printed(same(a.sum(1), np.ones(5)))
    it.right(same(a.sum(0), np.ones(5)))
    it.right(same(forward(member)["A"].sum(1), np.ones(5)))
    it.right(outcome(but("rows"), member) == "wrong")


@claim(
    "code, simplex, axis",
    FALSE,
    topic="attention",
    page="attention/multilinear",
    harm=6,
)
def N23(it: Evidence) -> None:
    """In the simplex as the code has it, a query's output does not depend on other
    queries.

    With `axis=0` it does, in every position; in a causal model a query would see later
    ones. With `axis=1` it does not.
    """
    moved = (
        GIVEN["Q"] + np.eye(5, 6)[[4] * 5] * np.eye(5)[:, [4]]
    )  # the last query only
    for defects, report in ((["rows"], it.as_printed), ([], it.right)):
        here, there = (
            forward(("Linear", "Simplex"), *defects, Q=q)["A"]
            for q in (GIVEN["Q"], moved)
        )
        report(same(here[:4], there[:4]))


@claim(
    "code, simplex", LEFT_OUT, topic="attention", page="attention/multilinear", harm=6
)
def N24(it: Evidence) -> None:
    """Dividing B by its sums puts the weights on the simplex.

    Only if the scores of a row have one sign and are not all 0, and no line of the
    program ensures that. Of rows of random scores of either sign, about half have a
    negative sum; a sum near 0 makes the weights large: $(1, 2, -2.99)$ gives $(100,
    200, -299)$.
    """
    sums = (numbers(4000, 6) * numbers(4000, 6, seed=1)).sum(1)
    it.left_out(np.count_nonzero(sums < 0))
    it.right(abs(np.mean(sums < 0) - 0.5) < 0.05)
    row = np.array([1, 2, -2.99])
    it.right(same(row / row.sum(), np.array([100.0, 200.0, -299.0])))


@claim("code, `A = A/s`", TRUE, topic="attention", page="attention/multilinear")
def N25(it: Evidence) -> None:
    """With `keepdims=True`, `A / s` divides along the axis that was summed.

    Without it, a square A with sums of its rows would be divided column by column, and
    no error would be raised.
    """
    a = abs(GIVEN["Q"] @ GIVEN["K"].T)
    for axis in (0, 1):
        it.as_printed(same((a / a.sum(axis, keepdims=True)).sum(axis), np.ones(5)))
    it.right(not same((a / a.sum(1)).sum(1), np.ones(5)))


@claim(
    "code, sphere, axis", FALSE, topic="attention", page="attention/multilinear", harm=8
)
def N26(it: Evidence) -> None:
    """The sphere divides by `s = sqrt((A.pow(2)).sum(axis=0, keepdims=True))`, so each
    query's weights have length 1.

    The columns have length 1; rows need `axis=1`. Nothing raises an error.
    """
    member = ("Linear", "Sphere")
    a = forward(member, "rows")["A"]
    it.as_printed(same((a**2).sum(1), np.ones(5)))
    it.right(same((a**2).sum(0), np.ones(5)))
    it.right(same((forward(member)["A"] ** 2).sum(1), np.ones(5)))
    it.right(outcome(but("rows"), member) == "wrong")


@claim(
    "code, sphere, `pow`",
    FALSE,
    topic="debugging",
    page="attention/multilinear",
    harm=2,
)
def N27(it: Evidence) -> None:
    """One library runs `A.pow(2)`, `transpose(1, 0, 2)` and `softmax(A)`.

    NumPy's arrays have no `pow`. PyTorch's tensors have it, but their `transpose` takes
    two axes and their `softmax` wants an axis. `A**2` runs in both.
    """
    import torch

    it.as_printed(outcome(but("pow"), ("Multilinear", "Sphere")) == "right")
    it.right(outcomes(but("pow")) == {(s, "Sphere"): "AttributeError" for s in SCORES})
    tensor: Any = torch.ones(5, 3, 2)
    it.right(raises(TypeError, lambda: tensor.transpose(1, 0, 2)))
    it.right(raises(TypeError, lambda: tensor.softmax()))


@claim(
    "code, sphere, `A = A/s`",
    CAVEAT,
    topic="norms",
    page="attention/multilinear",
    harm=1,
)
def N28(it: Evidence) -> None:
    """Dividing a row by its length puts it on the sphere.

    Not a row of zeros, such as that of a query that is orthogonal to all keys.
    """
    it.as_printed(
        same(np.linalg.norm(forward(("Linear", "Sphere"))["A"], axis=1), np.ones(5))
    )
    with np.errstate(invalid="ignore"):
        zeros = forward(("Linear", "Sphere"), Q=np.zeros((5, 6)))["A"]
    it.elsewhere(np.isfinite(zeros).all())


@claim("code, softmax", CAVEAT, topic="softmax", page="attention/multilinear", harm=4)
def N29(it: Evidence) -> None:
    """`A = softmax(A)` normalises each row.

    It does if the last axis is the default, as in JAX. SciPy's default is the whole
    matrix, and nothing raises an error; PyTorch demands an axis. `softmax(A, axis=-1)`
    is safe.
    """
    import torch

    it.as_printed(outcomes(but()) == {})
    overall = {"softmax": lambda x: softmax(x, axis=None)}
    for scores in SCORES:
        it.elsewhere(outcome(but(), (scores, "Softmax"), **overall) == "right")
    tensor: Any = torch.ones(5, 5)
    it.elsewhere(not raises(TypeError, lambda: tensor.softmax()))


@claim(
    "code, norms", INCONSISTENT, topic="attention", page="attention/multilinear", harm=4
)
def N30(it: Evidence) -> None:
    """The three norms normalise along the same axis.

    The simplex and the sphere take `axis=0`, the queries; the softmax of the text is
    taken of each row, over the keys.
    """
    found = {kind: forward(("Linear", kind), "rows")["A"] for kind in WEIGHTS}
    it.clashes(
        same(found["Simplex"].sum(0), np.ones(5))
        and same(found["Softmax"].sum(1), np.ones(5))
    )
    it.right(not same(found["Softmax"].sum(0), np.ones(5)))


@claim(
    "code, end of the forward",
    LEFT_OUT,
    topic="debugging",
    page="attention/multilinear",
    harm=3,
)
def N31(it: Evidence) -> None:
    """The forward pass ends with A.

    It ends with the output, $Y = AV$, which no line computes, and which the backward
    uses.
    """
    it.right("Y" not in forward(("Linear", "Softmax"), "Y"))
    it.left_out("Y = A @ V")
    it.right(outcomes(but("Y")) == dict.fromkeys(MEMBERS, "NameError"))
    it.right(outcomes(but()) == {})
