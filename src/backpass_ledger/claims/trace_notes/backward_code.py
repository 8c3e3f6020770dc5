"""The backward of the text's program."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp
from backpass_ledger.claims.trace_notes.program import (
    CONDITIONS,
    DY,
    GIVEN,
    MEMBERS,
    SCORES,
    WEIGHTS,
    compiles,
    gradients,
    half,
    outcome,
    outcomes,
    program,
    weights,
)

CLAIMS = """
N33  true          0  matmul     operations/linear      code, gradient of V
N34  true          0  matmul     operations/linear      code, gradient of A
N35  true          0  flash      attention/flash        code, row products
N36  inconsistent  3  notation   attention/multilinear  code, row products
N37  false         2  debugging  attention/multilinear  code, conditions of the backward
N38  true          0  norms      attention/multilinear  code, simplex
N39  false         4  notation   attention/multilinear  code, simplex, divisor
N40  inconsistent  5  attention  attention/multilinear  code, simplex, forward and backward
N41  false         9  norms      attention/multilinear  code, sphere
N42  inconsistent  6  norms      attention/multilinear  code, sphere, beside the derivation
N43  false         4  notation   attention/multilinear  code, sphere, divisor
N44  true          0  softmax    operations/softmax     code, softmax
N45  true          0  matmul     operations/linear      code, gradient of Q, linear
N46  true          0  matmul     operations/linear      code, gradient of K, linear
N47  false         4  debugging  attention/multilinear  code, last condition
N48  false         2  debugging  attention/multilinear  code, `_U`
N49  caveat        6  precision  attention/multilinear  code, `_U`
N50  false         4  attention  attention/multilinear  code, blocks of Q's gradient
N51  false         4  attention  attention/multilinear  code, blocks of K's gradient
N52  false         9  attention  attention/multilinear  code, last reshape of Q's gradient
N53  false         9  attention  attention/multilinear  code, last reshape of K's gradient
N54  false         3  notation   attention/multilinear  sentence after the code
"""


def score_gradient(member: tuple[str, str]) -> Any:
    """The gradient with respect to the scores B, by autograd."""
    v, b = torch.tensor(GIVEN["V"]), program(member)["b"]
    return vjp(lambda x: weights(x, member[1]) @ v, b, DY)


def N33(it: Evidence) -> None:
    r"""For a gradient of Y of shape `[t, d]`, the gradient of V is $A^\top \nabla_Y l$,
    whatever the weights are."""
    for member in MEMBERS:
        it.as_printed(same(program(member)["dv"], gradients(member)[2]))


def N34(it: Evidence) -> None:
    r"""The gradient of A is $\nabla_Y l\,V^\top$."""
    a, v = numbers(5, 5), torch.tensor(GIVEN["V"])
    it.as_printed(same(program(MEMBERS[0])["da"], vjp(lambda x: x @ v, a, DY)))


def N35(it: Evidence) -> None:
    r"""A dot product mapped by `vmap` over the rows of Y and of its gradient holds one
    number per query, $d_i = Y_i \cdot \nabla_{Y_i} l$.

    It is equal to $\sum_j A_{ij} (\nabla_A l)_{ij}$."""
    for member in MEMBERS:
        found = program(member)
        pair = torch.tensor(found["y"]), torch.tensor(DY)
        rows = [y @ g for y, g in zip(found["y"], DY, strict=True)]
        it.as_printed(same(torch.func.vmap(torch.dot)(*pair), rows))
        it.as_printed(same(found["along"], rows))
        it.right(same(found["along"], (found["a"] * found["da"]).sum(1)))


def N36(it: Evidence) -> None:
    """The row products are named `d`.

    Before that line `d` is the width of Q, K and V, and the last two reshapes need the
    width again. There the multilinear members raise a TypeError. The text's formulas
    use d in both meanings too."""
    row_products, width = (half(MEMBERS[0], *name)["d"] for name in (["d"], []))
    it.clashes(np.shape(row_products) != np.shape(width))
    it.right(outcomes("d") == {("Multilinear", w): "TypeError" for w in WEIGHTS})


def N37(it: Evidence) -> None:
    """The five conditions of the backward are comparisons.

    `=` has to be `==` here as well. This mistake occurs in eight of the program's ten
    conditions."""
    of_backward = [row for row in CONDITIONS if row[0] == "backward"]
    it.as_printed(all(compiles(*row) for row in of_backward))
    it.right(len(of_backward) == 5 and not any(compiles(*row) for row in of_backward))
    it.right(sum(not compiles(*row) for row in CONDITIONS) == 8)
    mended = [compiles(name, at, "==", value) for name, at, _, value in CONDITIONS]
    it.right(mended == [True] * 10)


def N38(it: Evidence) -> None:
    r"""On the simplex the gradient of B is $\nabla_A l - d\,u^\top$, each row divided
    by the row's sum."""
    for scores in SCORES:
        found = program((scores, "Simplex"))
        rows = zip(found["da"], found["along"], found["b"], strict=True)
        printed = [(da - d) / b.sum() for da, d, b in rows]
        it.as_printed(same(printed, score_gradient((scores, "Simplex"))))


def with_one_more_axis(it: Evidence, kind: str) -> None:
    """Judge the shape of the scores' gradient with the divisor `s[:, None]`."""
    for scores in SCORES:
        member = (scores, kind)
        shapes = [half(member, *m)["db"].shape for m in (["s", "rows"], ["s"])]
        it.as_printed((5, 5) in shapes)
        it.right(shapes == [(1, 5, 5), (5, 5, 5)])
        it.right(same(program(member)["db"], score_gradient(member)))


def N39(it: Evidence) -> None:
    """The divisor `s[:, None]` divides each row by its sum.

    `s` already has that axis, from `keepdims=True`. With one more axis, `B_grad` has
    three. `/ s` is right."""
    with_one_more_axis(it, "Simplex")


def N40(it: Evidence) -> None:
    """The simplex's backward matches its forward.

    The forward divides columns by their sums. The gradient of that division needs one
    number per key, but the backward has one per query."""
    b, v = GIVEN["Q"] @ GIVEN["K"].T, torch.tensor(GIVEN["V"])
    of_columns = vjp(lambda x: (x / x.sum(0)) @ v, b, DY)
    a, da = b / b.sum(0), DY @ GIVEN["V"].T
    printed = (da - (DY * (a @ GIVEN["V"])).sum(1)[:, None]) / b.sum(0)
    it.clashes(not same(printed, of_columns))
    it.right(same((da - (a * da).sum(0)) / b.sum(0), of_columns))


def N41(it: Evidence) -> None:
    r"""On the sphere the gradient of B has the same formula as on the simplex.

    The factor A is missing: row i is $(\nabla_{A_i} l - d_i A_i)/s_i$. The shape is
    right, and no error is raised. The true gradient of a row is orthogonal to the row,
    since the row's length does not matter; the printed one is not."""
    for scores in SCORES:
        printed, right = (program((scores, "Sphere"), *w) for w in (["weight"], []))
        expected = score_gradient((scores, "Sphere"))
        it.as_printed(same(printed["db"], expected))
        it.right(same(right["db"], expected))
        it.right(same((right["b"] * expected).sum(1) + 1, np.ones(5)))
        it.right((abs((right["b"] * printed["db"]).sum(1)) > 0.01).all())


def N42(it: Evidence) -> None:
    r"""The sphere's line of the program is the one that the text derives.

    The text derives $D_{\beta(B)}(\nabla_A l - D_d A)$, and the program has $d\,u^\top$
    for $D_d A$."""
    found = program(("Linear", "Sphere"), "weight")
    beta = np.diag(1 / np.linalg.norm(found["b"], axis=1))
    derived = beta @ (found["da"] - np.diag(found["along"]) @ found["a"])
    it.clashes(not same(found["db"], derived))
    it.right(same(derived, score_gradient(("Linear", "Sphere"))))


def N43(it: Evidence) -> None:
    """On the sphere the divisor `s[:, None]` divides each row by its length.

    As on the simplex, the result has three axes. `/ s` is right."""
    with_one_more_axis(it, "Sphere")


def N44(it: Evidence) -> None:
    r"""For softmax the gradient of B is $(\nabla_A l - d\,u^\top) \odot A$."""
    for scores in SCORES:
        member = (scores, "Softmax")
        it.as_printed(same(program(member)["db"], score_gradient(member)))


def N45(it: Evidence) -> None:
    r"""For linear scores the gradient of Q is $\nabla_B l\,K$."""
    for kind in WEIGHTS:
        member = ("Linear", kind)
        it.as_printed(same(score_gradient(member) @ GIVEN["K"], gradients(member)[0]))


def N46(it: Evidence) -> None:
    r"""For linear scores the gradient of K is $\nabla_B l^\top Q$."""
    for kind in WEIGHTS:
        member = ("Linear", kind)
        it.as_printed(same(score_gradient(member).T @ GIVEN["Q"], gradients(member)[1]))


def N47(it: Evidence) -> None:
    """The branch for multilinear scores is taken for `Multilinear`.

    Its condition compares with `Multiinear`, which is not the name of any member. For
    multilinear members `Q_grad` and `K_grad` are therefore never assigned. The program
    itself does not raise an error."""
    found = outcomes("branch")
    it.as_printed(found == {})
    it.right(found == {("Multilinear", w): "missing" for w in WEIGHTS})
    it.right("dv" in program(("Multilinear", "Softmax"), "branch"))


def N48(it: Evidence) -> None:
    """`_U` is divided by `_KQT`.

    No line assigns `_KQT`; the forward calls the array `_QKT`."""
    found = outcomes("_QKT")
    it.as_printed(found == {})
    it.right(found == {("Multilinear", w): "NameError" for w in WEIGHTS})
    it.right(outcomes() == {})


def N49(it: Evidence) -> None:
    r"""With the name corrected, $\nabla_B l \odot B$ divided by each factor is
    $\nabla_B l$ times the product of the other factors.

    Where a factor is 0, because its blocks of a query and a key are orthogonal, the
    quotient is 0/0, and the gradients of that query and that key become NaN. The
    product of the other factors is finite. Small factors underflow too: in float16 the
    product of four factors of 0.01 is 0."""
    member = ("Multilinear", "Sphere")
    found = program(member)
    others = found["factors"][[1, 0, 0]] * found["factors"][[2, 2, 1]]
    it.as_printed(same(found["u"], found["db"] * others))
    q, k = GIVEN["Q"].copy(), GIVEN["K"].copy()
    q[0, :2], k[1, :2] = [1, 0], [0, 1]
    with np.errstate(invalid="ignore"):
        zero = program(member, q=q, k=k)
    it.right(zero["factors"][0, 0, 1] == 0)
    it.elsewhere(np.isfinite(zero["dq"][0]).all())
    it.elsewhere(np.isfinite(zero["dk"][1]).all())
    it.right(np.isfinite(zero["dq"][1:]).all())
    small = np.full(4, 0.01, np.float16)
    it.elsewhere(small.prod() / small[0] > 0)
    it.right(small[1:].prod() > 0)


def N50(it: Evidence) -> None:
    """The product of `_U` with `K` holds the gradients of the blocks of Q.

    K has to be `_K`, the blocks. With the whole K the product has p times as many
    numbers as Q, so it cannot be reshaped."""
    it.as_printed(outcomes("_K") == {})
    it.right(outcomes("_K") == {("Multilinear", w): "ValueError" for w in WEIGHTS})
    found = program(("Multilinear", "Softmax"))
    it.right((found["u"] @ GIVEN["K"]).size == 3 * GIVEN["Q"].size)
    it.right(found["dq_blocks"].shape == (3, 5, 2))


def N51(it: Evidence) -> None:
    """The product of `_U.T` with `Q` holds the gradients of the blocks of K.

    `.T` reverses all three axes, where only the last two have to be exchanged, and Q
    has to be `_Q`. As printed the product is not defined unless p equals t, and then
    the reshape on the last line fails."""
    it.as_printed(outcomes("_Q") == {})
    it.right(outcomes("_Q") == {("Multilinear", w): "ValueError" for w in WEIGHTS})
    member = ("Multilinear", "Softmax")
    u = program(member)["u"]
    it.right(u.T.shape == (5, 5, 3) and u.swapaxes(1, 2).shape == (3, 5, 5))
    q, k, v = (x[:3] for x in GIVEN.values())
    three = partial(program, member, q=q, k=k, v=v, dy=DY[:3], t=3)  # p = 3 too
    product = three()["u"].T @ q
    it.right(product.shape == (3, 3, 6))
    it.right(raises(ValueError, lambda: product.reshape(3, 6)))
    it.right(raises(ValueError, partial(three, "_Q")))


def N52(it: Evidence) -> None:
    """A `reshape` to `[t, d]` puts the gradients of Q's blocks back into their columns.

    The forward exchanged the first two axes, so they have to be exchanged back first.
    As printed the shape is right and no error is raised, but positions and blocks are
    mixed, unless p or t is 1."""
    it.as_printed(outcomes("Q order") == {})
    it.right(outcomes("Q order") == {("Multilinear", w): "wrong" for w in WEIGHTS})
    member = ("Multilinear", "Sphere")
    it.right(outcome(member) == "right")
    first = {name.lower(): x[:1] for name, x in GIVEN.items()} | {"dy": DY[:1], "t": 1}
    for one in (partial(program, member, p=1), partial(program, member, **first)):
        it.right(same(one("Q order")["dq"], one()["dq"]))


def N53(it: Evidence) -> None:
    """A `reshape` to `[t, d]` puts the gradients of K's blocks back into their columns.

    The axes have to be exchanged first, as for Q. As printed the gradient has the right
    shape, but its numbers are in the wrong places, unless p or t is 1."""
    it.as_printed(outcomes("K order") == {})
    it.right(outcomes("K order") == {("Multilinear", w): "wrong" for w in WEIGHTS})
    member = ("Multilinear", "Softmax")
    blocks = program(member)["dk_blocks"]
    it.right(same(np.concatenate(blocks, axis=1), gradients(member)[1]))
    printed = program(member, "K order")["dk"]
    it.right(same(np.sort(printed.ravel()), np.sort(blocks.ravel())))


def N54(it: Evidence) -> None:
    r"""The rest of the text derives every equation that the program uses.

    The derivation gives a different line for the sphere and normalises rows, not
    columns. With the program's lines the simplex and the sphere are wrong; with the
    derived lines they are right. The derivation of A's gradient is skipped on purpose;
    the text derives only its rows, $V \nabla_{Y_i} l$."""
    found = outcomes("weight", "rows")
    it.as_printed(found == {})
    it.right({kind for _, kind in found} == {"Simplex", "Sphere"} and len(found) == 4)
    rows = [GIVEN["V"] @ DY[i] for i in range(5)]
    it.right(same(rows, program(MEMBERS[0])["da"]))
    it.right(outcomes() == {})
