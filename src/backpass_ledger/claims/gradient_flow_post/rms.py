"""The section on RMSNorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost

from ..evidence import Evidence
from ..tools import jacobian, numbers, raises, run, same, torch, vjp
from .setting import (
    EPS,
    GIB,
    MIB,
    activations,
    norm,
    of_a_layer,
    operations,
    saved_by,
    tensors,
)

CLAIMS = """
F18  true          0  norms          operations/rms_norm     §1.3, definition
F19  true          0  norms          operations/rms_norm     §1.3, definition
F20  true          0  norms          operations/rms_norm     §1.3, entries of the Jacobian
F21  true          0  norms          operations/rms_norm     §1.3, matrix form
F22  true          0  norms          operations/rms_norm     §1.3, size of the Jacobian
F23  true          0  norms          operations/rms_norm     §1.3, size of the Jacobian
F24  false         2  norms          operations/rms_norm     §1.3, listing
F25  true          0  norms          operations/rms_norm     §1.3, listing, comment
F26  inconsistent  3  notation       operations/rms_norm     §1.3, definition and listing
F27  true          0  norms          operations/rms_norm     §1.3, listing, line 1
F28  true          0  norms          operations/rms_norm     §1.3, listing, line 2
F29  true          0  norms          operations/rms_norm     §1.3, listing, line 3
F30  false         3  norms          operations/rms_norm     §1.3, listing, line 4
F31  true          0  norms          operations/rms_norm     §1.3, listing, line 5
F32  false         1  norms          operations/rms_norm     §1.3, listing, comments
F33  true          0  norms          operations/rms_norm     §1.3, listing, line 6
F34  caveat        1  memory         operations/rms_norm     §1.3, what is saved
F35  caveat        1  memory         cost/memory             §1.3, units
F36  true          0  memory         cost/memory             §1.3, memory of one norm
F37  true          0  memory         cost/memory             §1.3, memory of all norms
F38  left-out      1  memory         cost/memory             §1.3, memory of all norms
F39  caveat        2  memory         cost/memory             §1.3, memory of all norms
F40  caveat        2  norms          operations/rms_norm     §1.3, box, operations
F41  true          0  FLOPs          cost/tally              §1.3, box, FLOPs
F42  false         4  recomputation  numerics/recomputation  §1.3, box, recomputation
"""

X, GAMMA, G = numbers(2, 5, 7), numbers(7, seed=1), numbers(2, 5, 7, seed=2)
RMS = r"""
    given x, \gamma \in \mathbb{R}^d, \epsilon \in \mathbb{R}_{>0}
    let \rho = \sqrt{\frac{1}{d} \sum_{j=1}^d x_j^2 + \epsilon}
    read \text{rms} as \rho; layout numerator; loss L
"""
FORMULA = RMS + r"let \hat{x}_i = \frac{x_i}{\rho} \gamma_i"
LISTING = RMS + r"let \hat{x}_i = \frac{x_i}{\rho}; let y_i = \hat{x}_i \gamma_i"


def scaled(x: Any) -> Any:
    """The norm with its scale."""
    return norm(x, torch.tensor(GAMMA))


def dscale() -> Any:
    """Return the scale's gradient by autograd."""
    return vjp(lambda gamma: norm(torch.tensor(X), gamma), GAMMA, G)


def inputs(x: Any = X) -> dict[str, Any]:
    """Return the listing's four arguments."""
    x, gamma, dy = tensors(x, GAMMA, G)
    rms = torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)
    return {"x": x, "gamma": gamma, "dy": dy, "rms": rms}


def start(x: Any, gamma: Any, dy: Any, rms: Any) -> tuple[Any, Any]:
    """Return the normalised input without its scale, and its gradient."""
    return x / rms, dy * gamma


def fused(unit: Any, dunit: Any, rms: Any) -> Any:
    """Return the input's gradient, step by step as the fused line does."""
    along = (dunit * unit).sum(-1, keepdim=True)
    return (dunit - unit * along / unit.shape[-1]) * (1 / rms)


def ran() -> dict[str, Any]:
    """Return what the listing computes, in its order."""
    x, _, dy, rms = (given := inputs()).values()
    unit, dunit = start(**given)
    drms = -(dunit * unit).sum(-1, keepdim=True)
    dx = dunit / rms + x * drms / (rms**2 * x.shape[-1])
    found = {"unit": unit, "dunit": dunit, "drms": drms, "dx": dx}
    found |= {"dgamma": (dy * unit).sum((0, 1)), "fused": fused(unit, dunit, rms)}
    return {name: array.numpy() for name, array in found.items()}


def checkpointed(function: Any) -> Any:
    """Return a function that saves its input and is computed again in its backward."""
    return lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)


def F18(it: Evidence) -> None:
    r"""RMSNorm is $\hat{x}_i = \frac{x_i}{\text{rms}(x)} \gamma_i$."""
    rms = [np.sqrt(sum(v * v for v in row) / 7 + EPS) for row in X.reshape(-1, 7)]
    y = X / np.reshape(rms, (2, 5, 1)) * GAMMA
    it.as_printed(same(scaled(torch.tensor(X)).numpy(), y))


def F19(it: Evidence) -> None:
    r"""$\epsilon$ stands below the root: $\text{rms}(x) = \sqrt{\frac{1}{d} \sum_j
    x_j^2 + \epsilon}$."""
    rms, squares = X / norm(torch.tensor(X), None).numpy(), (X**2).mean(-1)[..., None]
    it.as_printed(same(rms, np.sqrt(squares + EPS) + 0 * X))
    it.as_printed(not same(rms, np.sqrt(squares) + EPS + 0 * X))


def F20(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_j} = \frac{\gamma_i}{\text{rms}}
    \left(\delta_{ij} - \frac{x_i x_j}{d \cdot \text{rms}^2}\right)$.

    It is exact for every $\epsilon$, as is $\frac{\partial \text{rms}}{\partial x_j} =
    \frac{x_j}{d \cdot \text{rms}}$."""
    it.derives(FORMULA)
    it.derives_right(FORMULA)


def F21(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}}{\partial x} = \frac{1}{\text{rms}} \text{diag}(\gamma)
    \left(I - \frac{x x^\top}{d \cdot \text{rms}^2}\right)$.

    A gradient is multiplied by the scale before the projection."""
    it.derives(FORMULA)


def F22(it: Evidence) -> None:
    r"""For a vector of Llama 3 70B the Jacobian is $8192 \times 8192$.

    There is one for each position; between positions all entries are 0."""
    J = jacobian(lambda x: norm(x, None), X)
    it.as_printed(
        J[0, 0, :, 0, 0].shape == (7, 7) and cost.presets()["llama-3-70b"].width == 8192
    )
    pairs = np.abs(J).max((2, 5)).reshape(10, 10)
    it.right((pairs[~np.eye(10, dtype=bool)] == 0).all())


def F23(it: Evidence) -> None:
    """The backward never forms the Jacobian: the listing's largest arrays have the
    shape of x."""
    it.as_printed(max(size for _, size in operations(ran)) == X.size)


def F24(it: Evidence) -> None:
    """The listing runs.

    `d` is neither an argument nor defined: `NameError`. With `d = x.shape[-1]` it
    runs."""
    given, mean = inputs(), "found = (dy * x).sum(-1) / d"
    it.as_printed(not raises(NameError, lambda: run(mean, **given)))
    found = run(mean, **given, d=given["x"].shape[-1])["found"]
    it.right("d" not in given and same(found, (G * X).mean(-1)))


def F25(it: Evidence) -> None:
    """The saved root mean square has the shape [B, S, 1], a number for each row."""
    rms = inputs()["rms"].numpy()  # the ratio is the same for all elements of a row
    it.as_printed(same(X / norm(torch.tensor(X), None).numpy(), rms + 0 * X))
    it.as_printed(rms.shape == (2, 5, 1))


def F26(it: Evidence) -> None:
    r"""$\hat{x}$ of the formula and of the listing are one thing.

    The formula's contains $\gamma$ and the listing's does not. With the formula's, the
    scale's gradient has the factor $\gamma$ twice."""
    y = scaled(torch.tensor(X)).numpy()
    it.clashes(not same(ran()["unit"], y))
    it.right(same((G * y).sum((0, 1)), GAMMA * dscale()))


def F27(it: Evidence) -> None:
    """The quotient of x and rms is the normalised input without its scale."""
    it.as_printed(same(ran()["unit"], norm(torch.tensor(X), None).numpy()))


def F28(it: Evidence) -> None:
    """That quotient times the gradient, summed over all rows, is the scale's gradient,
    of shape [d]."""
    it.as_printed(same(ran()["dgamma"], dscale()))


def F29(it: Evidence) -> None:
    """The gradient times the scale is the gradient of the quotient."""
    expected = vjp(lambda x: x * torch.tensor(GAMMA), ran()["unit"], G)
    it.as_printed(same(ran()["dunit"], expected))


def F30(it: Evidence) -> None:
    """`d_rms`, minus the sum of the quotient times its gradient over a row, is the
    gradient with respect to rms, as its name says.

    It is rms times that gradient. The next line has the missing division."""
    rms = inputs()["rms"].numpy()
    expected = vjp(lambda r: torch.tensor(X) / r * torch.tensor(GAMMA), rms, G)
    it.as_printed(same(ran()["drms"], expected))
    it.right(same(ran()["drms"] / rms, expected))


def F31(it: Evidence) -> None:
    """The quotient's gradient over rms, plus `d_rms` times x over d rms², is the
    input's gradient."""
    it.as_printed(same(ran()["dx"], vjp(scaled, X, G)))


def F32(it: Evidence) -> None:
    """That line is simplified; the fused line after it gives what kernels compute.

    Nothing is simplified: both lines are the same exact gradient, and the second
    assignment overwrites the first."""
    it.as_printed(not same(ran()["dx"], ran()["fused"]))
    it.right(same(ran()["dx"], ran()["fused"], 1e-14))


def F33(it: Evidence) -> None:
    r"""The fused line is $\frac{\partial L}{\partial x_i} = \frac{1}{\text{rms}} \left(
    \frac{\partial L}{\partial \hat{x}_i} - \frac{1}{d} \hat{x}_i \sum_j \frac{\partial
    L}{\partial \hat{x}_j} \hat{x}_j \right)$, the input's gradient."""
    it.derives(LISTING)
    for size in (1e-30, 1, 1e30):  # ε is all of the mean square, a part, or none of it
        names = inputs(size * X)
        found = fused(*start(**names), names["rms"]).numpy()
        it.as_printed(same(found, vjp(scaled, size * X, G)))


def F34(it: Evidence) -> None:
    """The backward needs the input x, saved from the forward.

    It needs x̂ and rms. If no scale is 0, the output serves in place of x."""
    expected, names = vjp(scaled, X, G), inputs()
    it.as_printed(same(ran()["fused"], expected))
    unit = scaled(names["x"]) / names["gamma"]
    without = fused(unit, names["dy"] * names["gamma"], names["rms"]).numpy()
    it.elsewhere(not same(without, expected))


def F35(it: Evidence) -> None:
    """An input takes 128 MB, those of all layers 20,480 MB or 20 GB.

    The numbers are right in MiB and GiB. In powers of ten they are 134 MB and 21.5
    GB."""
    one = 8192 * 8192 * 2
    it.as_printed(one == 128 * MIB and 160 * one == 20_480 * MIB == 20 * GIB)
    it.elsewhere(one == 128 * 10**6)
    it.right(round(one / 1e6) == 134 and round(160 * one / 1e9, 1) == 21.5)


def F36(it: Evidence) -> None:
    r"""One RMSNorm's input takes $1 \times 8192 \times 8192 \times 2 = 128$ MiB."""
    it.as_printed(1 * 8192 * 8192 * 2 == of_a_layer()["norm_1.x_hat"] == 128 * MIB)


def F37(it: Evidence) -> None:
    r"""Two in each of 80 layers take $128 \times 2 \times 80 = 20{,}480$ MiB, which are
    20 GiB."""
    both = of_a_layer()["norm_1.x_hat"] + of_a_layer()["norm_2.x_hat"]
    it.as_printed(80 * both == 128 * 2 * 80 * MIB == 20_480 * MIB == 20 * GIB)


def F38(it: Evidence) -> None:
    """These 20 GB are what the RMSNorms of Llama 3 70B save.

    They lack the norm before the output head, a 161st input of 128 MiB, and the root
    mean squares, one for each position and norm."""
    rows = activations()
    each = [row.bytes for row in rows if "norm" in row.part + row.array]
    saved = [size for size in each if size == 128 * MIB]
    it.left_out(sum(each) - 20 * GIB)
    it.right(len(saved) == 161 and sum(each) == sum(saved) + 161 * 8192 * 4)


def F39(it: Evidence) -> None:
    """The 20 GB are a cost of RMSNorm alone.

    This holds if every layer saves its arrays. A checkpoint at each layer holds its 80
    inputs anyway, 10 GiB, whether the layer has a norm or not."""
    plain, again = (
        [sum(same(a, X) for a in saved_by(of(f), X)) for f in (scaled, lambda x: 2 * x)]
        for of in (lambda f: f, checkpointed)
    )
    it.as_printed(plain[0] > plain[1])
    it.elsewhere(again[0] > again[1])
    it.right(again == [1, 1] and 80 * of_a_layer()["norm_1.x_hat"] == 10 * GIB)


def F40(it: Evidence) -> None:
    """RMSNorm's backward is 5 element-wise operations on tensors of x's shape.

    The fused line has five, and a sum; the whole listing, without the line that is
    overwritten, eight and two sums."""
    unit, dunit = start(**(given := inputs()))
    line = operations(lambda: fused(unit, dunit, given["rms"]))
    rest = operations(lambda: (start(**given), (given["dy"] * unit).sum((0, 1))))
    large = [sum(size == X.size for _, size in part) for part in (line, rest)]
    sums = [sum(name == "sum" for name, _ in part) for part in (line, rest)]
    it.as_printed(large[0] == 5)
    it.elsewhere(sum(large) == 5)
    it.right(sum(large) == 8 and sums == [1, 1])


def F41(it: Evidence) -> None:
    """The FLOPs of RMSNorm's backward are negligible compared to the matrix products.

    Their time is less negligible: it is that of moving the arrays."""
    layer = cost.tally("llama-3-70b", 1, 8192).flops()["backward"] / 80
    it.as_printed(2 * 10 * 8192 * 8192 < 1e-4 * layer)


def F42(it: Evidence) -> None:
    """The memory for x, 20 GB, is a reason why checkpointing recomputes normalisation
    layers.

    Recomputing a norm starts from its input, and so does not free it. A checkpoint
    around a whole layer frees the second norm's input, 10 of the 20 GiB."""
    w = [torch.tensor(numbers(7, 7, seed=i), requires_grad=True) for i in (3, 4)]

    def block(x: Any) -> Any:
        return norm(x, None) @ w[0]

    def whole(x: Any) -> Any:
        h = x + block(x)
        return h + norm(h, None) @ w[1]

    def has(kept: list[Any], array: Any) -> bool:
        return any(same(k.reshape(-1), array.reshape(-1)) for k in kept)

    h = X + block(torch.tensor(X)).detach().numpy()
    plain, again = saved_by(whole, X), saved_by(checkpointed(whole), X)
    alone = saved_by(lambda x: x + checkpointed(block)(x), X)
    it.as_printed(has(plain, X) and not has(alone, X))
    it.right(has(alone, X) and has(again, X))
    it.right(has(plain, h) and not has(again, h))
    it.right(all(80 * of_a_layer()[f"norm_{n}.x_hat"] == 10 * GIB for n in (1, 2)))
