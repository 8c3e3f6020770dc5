"""The backward of the text's program."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, run, same, vjp
from backpass_ledger.claims.trace_notes.program import (
    DY,
    GIVEN,
    MEMBERS,
    PRINTED,
    SCORES,
    WEIGHTS,
    but,
    gradients,
    mended,
    names,
    outcome,
    outcomes,
    weights,
)

CLAIMS = """
N33  true          0  matmul     operations/linear      code, `V_grad`
N34  true          0  matmul     operations/linear      code, `A_grad`
N35  true          0  flash      attention/flash        code, row products
N36  inconsistent  3  notation   attention/multilinear  code, row products
N37  false         2  debugging  attention/multilinear  code, conditions of the backward
N38  true          0  norms      attention/multilinear  code, simplex
N39  false         4  notation   attention/multilinear  code, simplex, `/ s[:, None]`
N40  inconsistent  5  attention  attention/multilinear  code, simplex, forward and backward
N41  false         9  norms      attention/multilinear  code, sphere
N42  inconsistent  6  norms      attention/multilinear  code, sphere, beside the derivation
N43  false         4  notation   attention/multilinear  code, sphere, `/ s[:, None]`
N44  true          0  softmax    operations/softmax     code, softmax
N45  true          0  matmul     operations/linear      code, `Q_grad`, linear
N46  true          0  matmul     operations/linear      code, `K_grad`, linear
N47  false         4  debugging  attention/multilinear  code, last condition
N48  false         2  debugging  attention/multilinear  code, `_U`
N49  caveat        6  precision  attention/multilinear  code, `_U`
N50  false         4  attention  attention/multilinear  code, `_Q_grad`
N51  false         4  attention  attention/multilinear  code, `_K_grad`
N52  false         9  attention  attention/multilinear  code, `Q_grad`, multilinear
N53  false         9  attention  attention/multilinear  code, `K_grad`, multilinear
N54  false         3  notation   attention/multilinear  sentence after the code
"""


def ran(member: tuple[str, str], *defects: str, **others: Any) -> dict[str, Any]:
    """Run the program with all defects mended but the given ones; return its names."""
    return run(but(*defects), **names(member, **others))


def half(member: tuple[str, str], *defects: str) -> dict[str, Any]:
    """Run it up to `B_grad`; return its names."""
    return run(but(*defects).rpartition("\nif name[0]")[0], **names(member))


def score_gradient(member: tuple[str, str]) -> Any:
    """The gradient with respect to the scores B, by autograd."""
    import torch

    v, b = torch.tensor(GIVEN["V"]), ran(member)["B"]
    return vjp(lambda x: weights(x, member[1]) @ v, b, DY)


def N33(it: Evidence) -> None:
    """For `Y_grad` of shape `[t, d]`, `V_grad = A.T @ Y_grad`, whatever the weights
    are.
    """
    for member in MEMBERS:
        it.as_printed(same(ran(member)["V_grad"], gradients(member)[2]))


def N34(it: Evidence) -> None:
    """`A_grad = Y_grad @ V.T`."""
    import torch

    a, v = numbers(5, 5), torch.tensor(GIVEN["V"])
    it.as_printed(same(ran(MEMBERS[0])["A_grad"], vjp(lambda x: x @ v, a, DY)))


def N35(it: Evidence) -> None:
    r"""`vmap(lambda y, y_grad: dot(y, y_grad))(Y, Y_grad)` holds one number per query,
    $d_i = Y_i \cdot \nabla_{Y_i} l$.

    It is equal to $\sum_j A_{ij} (\nabla_A l)_{ij}$.
    """
    for member in MEMBERS:
        found = ran(member)
        it.as_printed(
            same(found["delta"], [y @ g for y, g in zip(found["Y"], DY, strict=True)])
        )
        it.right(same(found["delta"], (found["A"] * found["A_grad"]).sum(1)))


def N36(it: Evidence) -> None:
    """The row products are named `d`.

    Before that line `d` is the width of Q, K and V, and `reshape([t, d])` needs the
    width again at the end. There the multilinear members raise a TypeError. The text's
    formulas use d in both meanings too.
    """
    found = run(mended("==", "A", "pow", "Y", "s"), **names(("Linear", "Softmax")))
    it.clashes(np.shape(found["d"]) != np.shape(names(MEMBERS[0])["d"]))
    it.right(outcomes(but("d")) == {("Multilinear", w): "TypeError" for w in WEIGHTS})


def N37(it: Evidence) -> None:
    """The five conditions `if name[…] = '…':` of the backward are comparisons.

    `=` has to be `==` here as well. This mistake occurs in eight of the program's ten
    conditions.
    """
    backward = PRINTED[PRINTED.index("V_grad") :]
    it.as_printed(not raises(SyntaxError, lambda: compile(backward, "", "exec")))
    it.right(backward.count(" = '") == 5 and PRINTED.count(" = '") == 8)
    it.right(mended("==").count(" == '") == 10)
    it.right(not raises(SyntaxError, lambda: compile(mended("=="), "", "exec")))


def N38(it: Evidence) -> None:
    """On the simplex `B_grad` is `A_grad - d[:, None]`, each row divided by the
    row's sum.
    """
    for scores in SCORES:
        found = ran((scores, "Simplex"))
        rows = zip(found["A_grad"], found["delta"], found["B"], strict=True)
        printed = [(da - d) / b.sum() for da, d, b in rows]
        it.as_printed(same(printed, score_gradient((scores, "Simplex"))))


def N39(it: Evidence) -> None:
    """`(A_grad - d[:, None]) / s[:, None]` divides each row by its sum.

    `s` already has that axis, from `keepdims=True`. With one more axis, `B_grad` has
    three. `/ s` is right.
    """
    member = ("Linear", "Simplex")
    it.as_printed(half(member, "s", "rows")["B_grad"].shape == (5, 5))
    it.right(half(member, "s", "rows")["B_grad"].shape == (1, 5, 5))
    it.right(half(member, "s")["B_grad"].shape == (5, 5, 5))
    it.right(same(ran(member)["B_grad"], score_gradient(member)))


def N40(it: Evidence) -> None:
    """The simplex's backward matches its forward.

    The forward divides columns by their sums. The gradient of that division needs one
    number per key, but the backward has one per query.
    """
    import torch

    b, v = GIVEN["Q"] @ GIVEN["K"].T, torch.tensor(GIVEN["V"])
    of_columns = vjp(lambda x: (x / x.sum(0)) @ v, b, DY)
    a, da = b / b.sum(0), DY @ GIVEN["V"].T
    printed = (da - (DY * (a @ GIVEN["V"])).sum(1)[:, None]) / b.sum(0)
    it.clashes(not same(printed, of_columns))
    it.right(same((da - (a * da).sum(0)) / b.sum(0), of_columns))


def N41(it: Evidence) -> None:
    """On the sphere `B_grad = (A_grad - d[:, None]) / s[:, None]`, as on the simplex.

    The factor A is missing: `(A_grad - d[:, None] * A) / s` is right. The shape is
    right, and no error is raised. The true gradient of a row is orthogonal to the row,
    since the row's length does not matter; the printed one is not.
    """
    for scores in SCORES:
        printed, right = (ran((scores, "Sphere"), *w) for w in (["weight"], []))
        expected = score_gradient((scores, "Sphere"))
        it.as_printed(same(printed["B_grad"], expected))
        it.right(same(right["B_grad"], expected))
        it.right(same((right["B"] * expected).sum(1) + 1, np.ones(5)))
        it.right((abs((right["B"] * printed["B_grad"]).sum(1)) > 0.01).all())


def N42(it: Evidence) -> None:
    r"""The sphere's line of the program is the one that the text derives.

    The text derives $D_{\beta(B)}(\nabla_A l - D_d A)$, and the program has $d\,u^\top$
    for $D_d A$.
    """
    found = ran(("Linear", "Sphere"), "weight")
    beta = np.diag(1 / np.linalg.norm(found["B"], axis=1))
    derived = beta @ (found["A_grad"] - np.diag(found["delta"]) @ found["A"])
    it.clashes(not same(found["B_grad"], derived))
    it.right(same(derived, score_gradient(("Linear", "Sphere"))))


def N43(it: Evidence) -> None:
    """On the sphere `/ s[:, None]` divides each row by its length.

    As on the simplex, the result has three axes. `/ s` is right.
    """
    member = ("Multilinear", "Sphere")
    it.as_printed(half(("Linear", "Sphere"), "s")["B_grad"].shape == (5, 5))
    it.right(half(("Linear", "Sphere"), "s")["B_grad"].shape == (5, 5, 5))
    it.right(same(ran(member)["B_grad"], score_gradient(member)))


def N44(it: Evidence) -> None:
    """For softmax `B_grad = (A_grad - d[:, None]) * A`."""
    for scores in SCORES:
        member = (scores, "Softmax")
        it.as_printed(same(ran(member)["B_grad"], score_gradient(member)))


def N45(it: Evidence) -> None:
    """For linear scores `Q_grad = B_grad @ K`."""
    for kind in WEIGHTS:
        member = ("Linear", kind)
        it.as_printed(same(score_gradient(member) @ GIVEN["K"], gradients(member)[0]))


def N46(it: Evidence) -> None:
    """For linear scores `K_grad = B_grad.T @ Q`."""
    for kind in WEIGHTS:
        member = ("Linear", kind)
        it.as_printed(same(score_gradient(member).T @ GIVEN["Q"], gradients(member)[1]))


def N47(it: Evidence) -> None:
    """The branch for multilinear scores is taken for `Multilinear`.

    Its condition compares with `Multiinear`, which is not the name of any member. For
    multilinear members `Q_grad` and `K_grad` are therefore never assigned. The program
    itself raises no error.
    """
    it.as_printed(outcomes(but("branch")) == {})
    it.right(
        outcomes(but("branch")) == {("Multilinear", w): "missing" for w in WEIGHTS}
    )
    it.right("V_grad" in ran(("Multilinear", "Softmax"), "branch"))


def N48(it: Evidence) -> None:
    """`_U` is divided by `_KQT`.

    No line assigns `_KQT`; the forward calls the array `_QKT`.
    """
    it.as_printed(outcomes(but("_QKT")) == {})
    it.right(
        outcomes(but("_QKT")) == {("Multilinear", w): "NameError" for w in WEIGHTS}
    )
    it.right(outcomes(but()) == {})


def N49(it: Evidence) -> None:
    r"""`(B_grad * B)[None, :] / _QKT` (with the name corrected) is $\nabla_B l$ times
    the product of the other factors.

    Where a factor is 0, because its blocks of a query and a key are orthogonal, the
    quotient is 0/0, and the gradients of that query and that key become NaN. The
    product of the other factors is finite. Small factors underflow too: in float16 the
    product of four factors of 0.01 is 0.
    """
    member = ("Multilinear", "Sphere")
    found = ran(member)
    others = found["_QKT"][[1, 0, 0]] * found["_QKT"][[2, 2, 1]]
    it.as_printed(same(found["_U"], found["B_grad"] * others))
    q, k = GIVEN["Q"].copy(), GIVEN["K"].copy()
    q[0, :2], k[1, :2] = [1, 0], [0, 1]
    with np.errstate(invalid="ignore"):
        zero = ran(member, Q=q, K=k)
    it.right(zero["_QKT"][0, 0, 1] == 0)
    it.elsewhere(np.isfinite(zero["Q_grad"][0]).all())
    it.elsewhere(np.isfinite(zero["K_grad"][1]).all())
    it.right(np.isfinite(zero["Q_grad"][1:]).all())
    small = np.full(4, 0.01, np.float16)
    it.elsewhere(small.prod() / small[0] > 0)
    it.right(small[1:].prod() > 0)


def N50(it: Evidence) -> None:
    """`_Q_grad = _U @ K` holds the gradients of the blocks of Q.

    K has to be `_K`, the blocks. With the whole K the product has p times as many
    numbers as Q, so it cannot be reshaped.
    """
    it.as_printed(outcomes(but("_K")) == {})
    it.right(outcomes(but("_K")) == {("Multilinear", w): "ValueError" for w in WEIGHTS})
    found = ran(("Multilinear", "Softmax"))
    it.right((found["_U"] @ GIVEN["K"]).size == 3 * GIVEN["Q"].size)
    it.right(found["_Q_grad"].shape == (3, 5, 2))


def N51(it: Evidence) -> None:
    """`_K_grad = _U.T @ Q` holds the gradients of the blocks of K.

    `.T` reverses all three axes, and Q has to be `_Q`: `_U.transpose(0, 2, 1) @ _Q` is
    right. As printed the product is not defined unless p equals t, and then the reshape
    on the last line fails.
    """
    it.as_printed(outcomes(but("_Q")) == {})
    it.right(outcomes(but("_Q")) == {("Multilinear", w): "ValueError" for w in WEIGHTS})
    u = ran(("Multilinear", "Softmax"))["_U"]
    it.right(u.T.shape == (5, 5, 3) and u.transpose(0, 2, 1).shape == (3, 5, 5))
    three = {"t": 3, "Y_grad": DY[:3]} | {key: x[:3] for key, x in GIVEN.items()}
    given = names(("Multilinear", "Softmax"), **three)  # p = 3 too
    product, _, reshape = but("_Q").rpartition("    K_grad")
    square = run(product, **given)
    it.right(square["_K_grad"].shape == (3, 3, 6))
    it.right(raises(ValueError, lambda: run("K_grad" + reshape, **square)))


def N52(it: Evidence) -> None:
    """`_Q_grad.reshape([t, d])` puts the blocks' gradients back into their columns.

    The forward exchanged the first two axes, so they have to be exchanged back first:
    `_Q_grad.transpose(1, 0, 2).reshape([t, d])`. As printed the shape is right and no
    error is raised, but positions and blocks are mixed, unless p or t is 1.
    """
    it.as_printed(outcomes(but("Q order")) == {})
    it.right(outcomes(but("Q order")) == {("Multilinear", w): "wrong" for w in WEIGHTS})
    it.right(outcome(but(), ("Multilinear", "Softmax")) == "right")
    one = {
        d: ran(("Multilinear", "Sphere"), *d, p=1)["Q_grad"] for d in ((), ("Q order",))
    }
    it.right(same(*one.values()))
    row = {"t": 1, "Y_grad": DY[:1], "Q": GIVEN["Q"][:1]}
    row |= {"K": GIVEN["K"][:1], "V": GIVEN["V"][:1]}
    one = {
        d: ran(("Multilinear", "Sphere"), *d, **row)["Q_grad"]
        for d in ((), ("Q order",))
    }
    it.right(same(*one.values()))


def N53(it: Evidence) -> None:
    """`_K_grad.reshape([t, d])` puts the blocks' gradients back into their columns.

    The axes have to be exchanged first, as for Q. As printed the gradient has the right
    shape, but its numbers are in the wrong places, unless p or t is 1.
    """
    it.as_printed(outcomes(but("K order")) == {})
    it.right(outcomes(but("K order")) == {("Multilinear", w): "wrong" for w in WEIGHTS})
    member = ("Multilinear", "Softmax")
    blocks = ran(member)["_K_grad"]
    it.right(same(np.concatenate(blocks, axis=1), gradients(member)[1]))
    printed = ran(member, "K order")["K_grad"]
    it.right(same(np.sort(printed.ravel()), np.sort(blocks.ravel())))


def N54(it: Evidence) -> None:
    r"""The rest of the text derives every equation that the program uses.

    The derivation gives a different line for the sphere and normalises rows, not
    columns. With the program's lines the simplex and the sphere are wrong; with the
    derived lines they are right. The derivation of `A_grad` is skipped on purpose; the
    text derives only its rows, $V \nabla_{Y_i} l$.
    """
    found = outcomes(but("weight", "rows"))
    it.as_printed(found == {})
    it.right({kind for _, kind in found} == {"Simplex", "Sphere"} and len(found) == 4)
    rows = [GIVEN["V"] @ DY[i] for i in range(5)]
    it.right(same(rows, ran(MEMBERS[0])["A_grad"]))
    it.right(outcomes(but()) == {})
