"""The forward of the text's program."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp
from backpass_ledger.claims.trace_notes.derivatives import constant
from backpass_ledger.claims.trace_notes.program import (
    CONDITIONS,
    DY,
    GIVEN,
    MEMBERS,
    MISTAKES,
    SCORES,
    WEIGHTS,
    attention,
    compiles,
    forward,
    outcome,
    outcomes,
    program,
    same_as_torch,
    softmax,
    weights,
)

CLAIMS = """
N15  true          0  attention  attention/multilinear         code, linear preattention
N16  left-out      4  attention  attention/scaled_dot_product  code, comment “normal” and linear preattention
N17  left-out      4  attention  attention/multilinear         code, forward
N18  caveat        2  notation   attention/multilinear         code, blocks
N19  true          0  attention  attention/multilinear         code, scores of each factor
N20  false         3  notation   attention/multilinear         code, comment beside the scores of the factors
N21  true          0  attention  attention/multilinear         code, multilinear preattention
N22  false         2  debugging  attention/multilinear         code, conditions of the forward
N23  false         4  debugging  attention/multilinear         code, first line of each norm
N24  false         8  attention  attention/multilinear         code, simplex, axis
N25  left-out      6  attention  attention/multilinear         code, simplex
N26  true          0  attention  attention/multilinear         code, division by s
N27  false         8  attention  attention/multilinear         code, sphere, axis
N28  false         2  debugging  attention/multilinear         code, sphere, `pow`
N29  caveat        1  norms      attention/multilinear         code, sphere, division
N30  caveat        4  softmax    attention/multilinear         code, softmax
N31  inconsistent  4  attention  attention/multilinear         code, norms
N32  left-out      3  debugging  attention/multilinear         code, end of the forward
"""


def N15(it: Evidence) -> None:
    r"""$B = QK^\top$ has one row per query and one column per key: $B_{ij} = Q_i \cdot
    K_j$."""
    products = [[q @ k for k in GIVEN["K"]] for q in GIVEN["Q"]]
    it.as_printed(same(forward(("Linear", "Softmax"))["b"], products))


def N16(it: Evidence) -> None:
    r"""The scores of a normal transformer are $QK^\top$.

    They are $QK^\top/\sqrt{d}$. The gradients of Q and K therefore have the factor
    $1/\sqrt{d}$ too."""
    root, (q, k, v) = np.sqrt(6), GIVEN.values()
    dq, dk, _ = vjp(
        lambda q, k, v: attention(("Linear", "Softmax"), q / root, k, v), [q, k, v], DY
    )
    found = program(("Linear", "Softmax"), q=q / root)  # the same weights
    it.left_out((found["dq"] / dq).mean() - 1)
    it.right(same(found["dq"], root * dq) and same(found["db"].T @ q, root * dk))
    it.right(same_as_torch(scale=1.0) and not same_as_torch())


def N17(it: Evidence) -> None:
    """The forward computes B and then A from it. The text, which speaks of a state and
    so of reading from left to right, leaves the causal mask out.

    The mask sets the scores of later keys, to $-\\infty$ for softmax and to 0 for the
    simplex and the sphere. Their weights are then 0."""
    tri = np.tri(5)
    for kind in WEIGHTS:
        found = forward(("Linear", kind))
        it.left_out(np.count_nonzero(np.triu(found["a"], 1)))
        b = found["b"]
        masked = np.where(tri > 0, b, -np.inf) if kind == "Softmax" else tri * b
        a = weights(constant(masked), kind).numpy()
        it.right(np.count_nonzero(a) == 15 and not np.triu(a, 1).any())


def N18(it: Evidence) -> None:
    """A `reshape` with `d//p` and a `transpose` cut the columns of Q into p blocks,
    `[p, t, d/p]`.

    They do so only if p divides d, since `d//p` rounds down, and not for PyTorch, whose
    `transpose` takes two axes."""
    q = GIVEN["Q"]
    blocks = q.reshape([5, 3, 2]).transpose(1, 0, 2)
    it.as_printed(all(same(blocks[k], q[:, 2 * k : 2 * k + 2]) for k in range(3)))
    it.elsewhere(not raises(ValueError, lambda: numbers(5, 7).reshape([5, 3, 7 // 3])))
    tensor: Any = torch.ones(5, 3, 2)
    it.elsewhere(not raises(TypeError, lambda: tensor.transpose(1, 0, 2)))


def N19(it: Evidence) -> None:
    r"""$Q_k K_k^\top$, stacked, are the scores of each factor, `[p, t, t]`."""
    found = forward(("Multilinear", "Softmax"))
    expected = np.einsum("kia,kja->kij", found["q_blocks"], found["k_blocks"])
    it.as_printed(same(found["factors"], expected))


def N20(it: Evidence) -> None:
    r"""`_B` is the sum of `_QKT` along axis 0, with broadcasting.

    The line assigns `_QKT` itself, a second name for the same array, and the next line
    takes the product along axis 0. A sum would give $QK^\top$ again, the linear
    scores."""
    found = forward(("Multilinear", "Softmax"))
    factors = found["factors"]
    it.as_printed(same(found["b"], factors.sum(0).prod(0)))
    it.right(same(found["b"], factors.prod(0)))
    it.right(same(factors.sum(0), GIVEN["Q"] @ GIVEN["K"].T))


def N21(it: Evidence) -> None:
    r"""The product along axis 0 is $\bigodot_k Q_k K_k^\top$, and the linear scores if
    p is 1."""
    q, k = GIVEN["Q"], GIVEN["K"]
    factors = [q[:, at : at + 2] @ k[:, at : at + 2].T for at in (0, 2, 4)]
    member = ("Multilinear", "Softmax")
    it.as_printed(same(forward(member)["b"], factors[0] * factors[1] * factors[2]))
    it.as_printed(same(forward(member, p=1)["b"], q @ k.T))


def N22(it: Evidence) -> None:
    """The three conditions on the kind of the weights are comparisons.

    A single `=` in a condition is a SyntaxError; `==` compares. As printed, therefore,
    no line of the program runs."""
    of_weights = [row for row in CONDITIONS if row[:2] == ("forward", 1)]
    it.as_printed(all(compiles(*row) for row in of_weights))
    it.right([row[2] for row in of_weights] == ["="] * 3)
    it.right(all(compiles("forward", at, "==", kind) for _, at, _, kind in of_weights))


def N23(it: Evidence) -> None:
    """All three norms start from A.

    A does not exist yet, and the scores B are not used. `A = B` before the norms
    corrects all three."""
    compiled = outcomes(*(MISTAKES.keys() - {"=="}))
    it.as_printed(compiled == {})
    it.right(compiled == outcomes("A") == dict.fromkeys(MEMBERS, "NameError"))
    it.right(outcomes() == {})


def over_queries(it: Evidence, kind: str, power: int) -> None:
    """Judge that the printed norm gives each query's weights, to a power, the sum 1.
    The scores are positive, so that only the axis is judged."""
    positive = {"q": abs(GIVEN["Q"]), "k": abs(GIVEN["K"])}
    member = ("Linear", kind)
    printed, right = (
        forward(member, *rows, **positive)["a"] ** power for rows in (["rows"], [])
    )
    it.as_printed(same(printed.sum(1), np.ones(5)))
    it.right(same(printed.sum(0), np.ones(5)) and same(right.sum(1), np.ones(5)))
    it.right(outcome(member, "rows") == "wrong")


def N24(it: Evidence) -> None:
    """The simplex divides by the sum along `axis=0`, so each query's weights sum to 1.

    A sum along that axis runs over the queries, so the weights of each key sum to 1. A
    row of B belongs to a query, so the axis has to be 1. No error is raised."""
    over_queries(it, "Simplex", 1)


def N25(it: Evidence) -> None:
    """Dividing B by its sums puts the weights on the simplex.

    It does so only if the scores of a row have one sign and are not all 0, which the
    program does not ensure. About half of all rows of random scores, drawn with either
    sign, have a negative sum. A sum near 0 makes the weights large: $(1, 2, -2.99)$
    gives $(100, 200, -299)$."""
    sums = (numbers(4000, 6) * numbers(4000, 6, seed=1)).sum(1)
    it.left_out(np.count_nonzero(sums < 0))
    it.right(abs(np.mean(sums < 0) - 0.5) < 0.05)
    row = np.array([1, 2, -2.99])
    it.right(same(row / row.sum(), np.array([100.0, 200.0, -299.0])))


def N26(it: Evidence) -> None:
    """With `keepdims=True`, A is divided by s along the axis that was summed.

    Without it, the sums of the rows of a square A would divide its columns, and no
    error would be raised."""
    a = abs(GIVEN["Q"] @ GIVEN["K"].T)
    for axis in (0, 1):
        it.as_printed(same((a / a.sum(axis, keepdims=True)).sum(axis), np.ones(5)))
    it.right(not same((a / a.sum(1)).sum(1), np.ones(5)))


def N27(it: Evidence) -> None:
    """The sphere divides by the root of the sum of squares along `axis=0`, so each
    query's weights have length 1.

    The columns have length 1. For rows of length 1 the axis has to be 1. No error is
    raised."""
    over_queries(it, "Sphere", 2)


def N28(it: Evidence) -> None:
    """NumPy or PyTorch runs both the method `pow` and `transpose(1, 0, 2)`.

    NumPy's arrays do not have the method `pow`, and PyTorch's `transpose` takes two
    axes. `A**2` runs in both."""
    it.as_printed(outcome(("Multilinear", "Sphere"), "pow") == "right")
    it.right(outcomes("pow") == {(s, "Sphere"): "AttributeError" for s in SCORES})
    tensor: Any = torch.tensor(numbers(5, 3, 2))
    it.right(raises(TypeError, lambda: tensor.transpose(1, 0, 2)))
    it.right(same(tensor**2, tensor.pow(2)) and same(tensor**2, tensor.numpy() ** 2))


def N29(it: Evidence) -> None:
    """Dividing a row by its length puts it on the sphere.

    A row of zeros, such as that of a query that is orthogonal to all keys, cannot be
    put there: the division gives NaN."""
    member = ("Linear", "Sphere")
    it.as_printed(same(np.linalg.norm(forward(member)["a"], axis=1), np.ones(5)))
    with np.errstate(invalid="ignore"):
        zeros = forward(member, q=np.zeros((5, 6)))["a"]
    it.elsewhere(np.isfinite(zeros).all())


def N30(it: Evidence) -> None:
    """`softmax` without an axis normalises each row.

    It does if the axis defaults to the last one, as in JAX. SciPy's default is the
    whole matrix, and no error is raised. Without `dim`, PyTorch's `functional.softmax`
    warns and takes axis 1 of a matrix, and the method `Tensor.softmax` raises an error.
    `softmax(A, axis=-1)` is safe."""

    def over(axis: int | None) -> set[str]:
        normed = partial(softmax, axis=axis)
        return {outcome((scores, "Softmax"), softmax=normed) for scores in SCORES}

    it.as_printed(over(-1) == over(1) == {"right"})
    it.elsewhere("right" in over(0) | over(None))
    tensor: Any = torch.tensor(numbers(5, 5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        it.right(same(torch.nn.functional.softmax(tensor), tensor.softmax(1)))
    it.right(any("dim" in str(warning.message) for warning in caught))
    it.right(raises(TypeError, lambda: tensor.softmax()))


def N31(it: Evidence) -> None:
    """The three norms normalise along the same axis.

    The simplex and the sphere sum along `axis=0`, over the queries. Softmax's own
    backward line is the gradient of a softmax over the keys, not over the queries."""
    b, v = GIVEN["Q"] @ GIVEN["K"].T, constant(GIVEN["V"])
    for kind, power in (("Simplex", 1), ("Sphere", 2)):
        a = forward(("Linear", kind), "rows")["a"]
        it.clashes(same((a**power).sum(0), np.ones(5)))  # over the queries
    for axis in (0, 1):
        a = softmax(b, axis=axis)
        printed = (DY @ GIVEN["V"].T - (DY * (a @ GIVEN["V"])).sum(1)[:, None]) * a
        agrees = same(printed, vjp(lambda x, at=axis: x.softmax(at) @ v, b, DY))
        it.right(agrees == (axis == 1))  # over the keys


def N32(it: Evidence) -> None:
    """The forward pass ends with A. The text leaves out the line for the output.

    The output is $Y = AV$. The program does not compute it, but its backward uses
    it."""
    for scores, kind in MEMBERS:
        stored = forward((scores, kind), "Y").keys()
        needed = {"a", "b", "y"} | ({"s"} if kind != "Softmax" else set())
        it.left_out(len(needed - stored))
        it.right(needed - stored == {"y"})
    it.right(outcomes("Y") == dict.fromkeys(MEMBERS, "NameError"))
    it.right(outcomes() == {})
