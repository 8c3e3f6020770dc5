"""The section on RMSNorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.setting import (
    EPS,
    GIB,
    LLAMA,
    MIB,
    norm,
    of_a_layer,
)
from backpass_ledger.claims.tools import (
    jacobian,
    numbers,
    raises,
    run,
    same,
    torch,
    vjp,
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


def inputs() -> dict[str, Any]:
    """Return the listing's four arguments."""
    x, gamma, dy = map(torch.tensor, (X, GAMMA, G))
    rms = torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)
    return {"x": x, "gamma": gamma, "dy": dy, "rms": rms}


def start(x: Any, gamma: Any, dy: Any, rms: Any) -> tuple[Any, Any]:
    """Return the normalised input without its scale, and its gradient."""
    return x / rms, dy * gamma


def of_scale(dy: Any, unit: Any) -> Any:
    """Return the scale's gradient."""
    return (dy * unit).sum((0, 1))


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
    found = {"unit": unit, "dgamma": of_scale(dy, unit), "dunit": dunit, "drms": drms}
    found |= {"dx": dx, "fused": fused(unit, dunit, rms)}
    return {name: array.numpy() for name, array in found.items()}


def full_size(function: Any) -> list[str]:
    """Call a function; return the operations with results as large as x, and the
    sums."""
    from backpass.torch_internals import TorchDispatchMode

    seen = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore
            found = op(*args, **(kwargs or {}))
            if "sum" in str(op) or found.numel() == X.size:
                seen.append(str(op).split(".")[1])
            return found

    with Operations(), torch.no_grad():
        function()
    return seen


def F18(it: Evidence) -> None:
    r"""RMSNorm is $\hat{x}_i = \frac{x_i}{\text{rms}(x)} \gamma_i$."""
    y = norm(torch.tensor(X), torch.tensor(GAMMA)).numpy()
    rms = [np.sqrt(sum(v * v for v in row) / 7 + EPS) for row in X.reshape(-1, 7)]
    it.as_printed(same(y, X / np.reshape(rms, (2, 5, 1)) * GAMMA))


def F19(it: Evidence) -> None:
    r"""$\epsilon$ stands below the root: $\text{rms}(x) = \sqrt{\frac{1}{d}
    \sum_j x_j^2 + \epsilon}$."""
    rms = X / norm(torch.tensor(X), None).numpy()
    it.as_printed(same(rms, np.sqrt((X**2).mean(-1, keepdims=True) + EPS) + 0 * X))
    it.as_printed(not same(rms, np.sqrt((X**2).mean(-1, keepdims=True)) + EPS + 0 * X))


def F20(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_j} = \frac{\gamma_i}{\text{rms}} \left(
    \delta_{ij} - \frac{x_i x_j}{d\,\text{rms}^2} \right)$.

    It is exact for every $\epsilon$, because $\partial\,\text{rms}/\partial x_j = x_j /
    (d\,\text{rms})$ is.
    """
    import sympy

    x, gamma = sympy.symbols("x:3"), sympy.symbols("g:3")
    rms = sympy.sqrt(sum(v**2 for v in x) / 3 + sympy.Symbol("eps"))
    for i in range(3):
        for j in range(3):
            entry = gamma[i] / rms * (int(i == j) - x[i] * x[j] / (3 * rms**2))
            slope = sympy.diff(x[i] / rms * gamma[i], x[j])
            it.as_printed(sympy.simplify(slope - entry) == 0)


def F21(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}}{\partial x} = \frac{1}{\text{rms}} \text{diag}(\gamma)
    \left( I - \frac{x x^\top}{d\,\text{rms}^2} \right)$.

    The scale stands on the left, so a gradient is multiplied by it before the
    projection.
    """
    x = 3 * numbers(7, seed=4)
    rms = np.sqrt(x @ x / 7 + EPS)
    printed = np.diag(GAMMA) / rms @ (np.eye(7) - np.outer(x, x) / (7 * rms**2))
    J = jacobian(lambda x: norm(x, torch.tensor(GAMMA)), x)
    it.as_printed(same(J, printed))
    it.as_printed(
        same(vjp(lambda x: norm(x, torch.tensor(GAMMA)), x, G[0, 0]), G[0, 0] @ printed)
    )


def F22(it: Evidence) -> None:
    r"""For a vector of Llama 3 70B the Jacobian is $8192 \times 8192$.

    There is one for each position; between positions all entries are 0.
    """
    J = jacobian(lambda x: norm(x, None), X)
    it.as_printed(J[0, 0, :, 0, 0].shape == (7, 7) and LLAMA.width == 8192)
    pairs = np.abs(J).max((2, 5)).reshape(10, 10)
    it.right((pairs[~np.eye(10, dtype=bool)] == 0).all())


def F23(it: Evidence) -> None:
    """The backward never forms the Jacobian: the listing's largest arrays have the
    shape of x."""
    it.as_printed(max(array.size for array in ran().values()) == X.size)


def F24(it: Evidence) -> None:
    """The listing runs.

    `d` is neither an argument nor defined: `NameError`. With `d = x.shape[-1]` it runs.
    """
    given, mean = inputs(), "found = (dy * x).sum(-1) / d"
    it.as_printed(not raises(NameError, lambda: run(mean, **given)))
    it.right("d" not in given and raises(NameError, lambda: run(mean, **given)))
    found = run(mean, **given, d=given["x"].shape[-1])["found"]
    it.right(same(found, (G * X).mean(-1)))


def F25(it: Evidence) -> None:
    """The saved root mean square has the shape [B, S, 1], a number for each row."""
    y = norm(torch.tensor(X), None).numpy()
    ratio = X / y  # the same for all elements of a row
    it.as_printed(same(ratio, inputs()["rms"].numpy() + 0 * X))
    it.as_printed(tuple(inputs()["rms"].shape) == (2, 5, 1))


def F26(it: Evidence) -> None:
    r"""$\hat{x}$ of the formula of the listing are one thing.

    The formula's contains $\gamma$ and the listing's does not. With the formula's,
    the scale's gradient has the factor $\gamma$ twice.
    """
    y = norm(torch.tensor(X), torch.tensor(GAMMA)).numpy()
    it.clashes(not same(ran()["unit"], y))
    expected = vjp(lambda w: norm(torch.tensor(X), w), GAMMA, G)
    it.right(same((G * y).sum((0, 1)), GAMMA * expected))


def F27(it: Evidence) -> None:
    """The quotient of x and rms is the normalised input without its scale."""
    it.as_printed(same(ran()["unit"], norm(torch.tensor(X), None).numpy()))


def F28(it: Evidence) -> None:
    """The gradient times that quotient, summed over batch and positions, is the scale's
    gradient, of shape [d]."""
    expected = vjp(lambda w: norm(torch.tensor(X), w), GAMMA, G)
    it.as_printed(same(ran()["dgamma"], expected))


def F29(it: Evidence) -> None:
    """The gradient times the scale is the gradient of the quotient."""
    expected = vjp(lambda x: x * torch.tensor(GAMMA), ran()["unit"], G)
    it.as_printed(same(ran()["dunit"], expected))


def F30(it: Evidence) -> None:
    """`d_rms`, minus the sum of the quotient times its gradient over a row, is the
    gradient with respect to rms, as its name says.

    It is rms times that gradient. The next line has the missing division, so the
    input's gradient is right.
    """
    rms = inputs()["rms"].numpy()
    expected = vjp(lambda r: torch.tensor(X) / r * torch.tensor(GAMMA), rms, G)
    it.as_printed(same(ran()["drms"], expected))
    it.right(same(ran()["drms"] / rms, expected))


def F31(it: Evidence) -> None:
    """The quotient's gradient over rms, plus `d_rms` times x over d rms², is the
    input's gradient."""
    expected = vjp(lambda x: norm(x, torch.tensor(GAMMA)), X, G)
    it.as_printed(same(ran()["dx"], expected))


def F32(it: Evidence) -> None:
    """That line is simplified; the fused line after it gives what kernels compute.

    Nothing is simplified: both lines are the same exact gradient, and the second
    assignment overwrites the first.
    """
    it.as_printed(not same(ran()["dx"], ran()["fused"]))
    it.right(same(ran()["dx"], ran()["fused"], 1e-14))


def F33(it: Evidence) -> None:
    r"""The fused line, $\frac{1}{\text{rms}} \left( \bar{\hat{x}} - \frac{1}{d} \hat{x}
    \sum_j \bar{\hat{x}}_j \hat{x}_j \right)$, is the input's gradient."""
    expected = vjp(lambda x: norm(x, torch.tensor(GAMMA)), X, G)
    it.as_printed(same(ran()["fused"], expected))
    for size in (1e-30, 1e30):  # ε is all of the mean square, or none of it
        names = inputs()
        x = names["x"] * size
        names |= {"x": x, "rms": torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)}
        found = fused(*start(**names), names["rms"]).numpy()
        dx = vjp(lambda x: norm(x, torch.tensor(GAMMA)), x.numpy(), G)
        it.as_printed(same(found, dx))


def F34(it: Evidence) -> None:
    """The backward needs the input x, saved from the forward.

    It needs x̂ and rms, however they are obtained. If no scale is 0, the output serves
    too, and x itself is not needed.
    """
    expected = vjp(lambda x: norm(x, torch.tensor(GAMMA)), X, G)
    it.as_printed(same(ran()["fused"], expected))
    names = inputs()
    y = norm(names["x"], names["gamma"])
    dunit = names["dy"] * names["gamma"]
    without = fused(y / names["gamma"], dunit, names["rms"]).numpy()
    it.elsewhere(not same(without, expected))


def F35(it: Evidence) -> None:
    """An input takes 128 MB, those of all layers 20,480 MB or 20 GB.

    This holds if the units are MiB and GiB. In powers of ten they are 134 MB, and 21.5
    GB in place of 20.
    """
    one = 8192 * 8192 * 2
    it.as_printed(one == 128 * MIB and 160 * one == 20_480 * MIB == 20 * GIB)
    it.elsewhere(one == 128 * 10**6)
    it.right(round(one / 1e6) == 134 and round(160 * one / 1e9, 1) == 21.5)


def F36(it: Evidence) -> None:
    r"""One RMSNorm's input takes $1 \times 8192 \times 8192 \times 2 = 128$ MiB."""
    x_hat = of_a_layer()["norm_1.x_hat"]
    it.as_printed(1 * 8192 * 8192 * 2 == x_hat == 128 * MIB)


def F37(it: Evidence) -> None:
    r"""Two in each of 80 layers take $128 \times 2 \times 80 = 20{,}480$ MiB, which are
    20 GiB."""
    saved = of_a_layer()
    both = saved["norm_1.x_hat"] + saved["norm_2.x_hat"]
    it.as_printed(80 * both == 128 * 2 * 80 * MIB == 20_480 * MIB == 20 * GIB)


def F38(it: Evidence) -> None:
    """These 20 GB are what the RMSNorms of Llama 3 70B save.

    The norm before the output head is left out: a 161st input of 128 MiB. So are
    the root mean squares, one for each position and norm.
    """
    rows = cost.activations("llama-3-70b", 1, 8192, dtype="bfloat16").rows
    inputs = [
        row for row in rows if "norm" in row.part + row.array and "x_hat" in row.array
    ]
    it.left_out(sum(row.bytes for row in inputs) - 20 * GIB)
    it.right(len(inputs) == 161 and inputs[-1].bytes == 128 * MIB)


def F39(it: Evidence) -> None:
    """The 20 GB are a cost of RMSNorm alone.

    This holds if every layer saves its arrays. The inputs are the residual stream: a
    checkpoint at each layer holds its 80 inputs anyway, 10 GiB, whether the layer has a
    norm or not.
    """

    def normed(x: Any) -> Any:
        return norm(x, torch.tensor(GAMMA))

    def doubled(x: Any) -> Any:
        return 2 * x

    plain = [sum(same(a, X) for a in _kept(f)) for f in (normed, doubled)]
    again = [
        sum(same(a, X) for a in _kept(lambda x, f=f: _checkpoint(f, x)))
        for f in (normed, doubled)
    ]
    it.as_printed(plain[0] > plain[1])
    it.elsewhere(again[0] > again[1])
    it.right(again == [1, 1] and 80 * of_a_layer()["norm_1.x_hat"] == 10 * GIB)


def _checkpoint(function: Any, x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)


def _kept(function: Any) -> list[Any]:
    """Return the different arrays that autograd saves of a function of X."""
    kept: dict[int, Any] = {}
    x = torch.tensor(X, requires_grad=True)

    def pack(t: Any) -> Any:
        kept[t.data_ptr()] = t.detach().numpy()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        function(x)
    return list(kept.values())


def F40(it: Evidence) -> None:
    """RMSNorm's backward is 5 element-wise operations on tensors of x's shape.

    The fused line has five, and a sum. The rest of the listing has three more and a
    sum: ten in all, without the line that is overwritten.
    """
    given = inputs()
    unit, dunit = start(**given)
    line = full_size(lambda: fused(unit, dunit, given["rms"]))
    whole = full_size(
        lambda: (fused(*start(**given), given["rms"]), of_scale(given["dy"], unit))
    )
    it.as_printed(len([op for op in line if op != "sum"]) == 5)
    it.elsewhere(len([op for op in whole if op != "sum"]) == 5)
    it.right(len(whole) == 10 and whole.count("sum") == 2)


def F41(it: Evidence) -> None:
    """The FLOPs of RMSNorm's backward are negligible compared to the matrix products.

    Their time is less negligible: it is that of moving the arrays.
    """
    norms = 2 * 10 * 8192 * 8192
    layer = cost.tally("llama-3-70b", 1, 8192).flops()["backward"] / 80
    it.as_printed(norms < 1e-4 * layer)


def F42(it: Evidence) -> None:
    """The memory for x, 20 GB, is a reason why checkpointing recomputes normalisation
    layers.

    Recomputing a norm does not free its input: it starts from it. A checkpoint around a
    whole layer frees inputs: the second norm's goes and the first's stays, 10 of the 20
    GiB.
    """
    w = [torch.tensor(numbers(7, 7, seed=i), requires_grad=True) for i in (3, 4)]

    def middle(x: Any) -> Any:
        return x + norm(x, None) @ w[0]

    def whole(x: Any) -> Any:
        h = middle(x)
        return h + norm(h, None) @ w[1]

    def has(kept: list[Any], array: Any) -> bool:
        return any(same(k.reshape(-1), array.reshape(-1)) for k in kept)

    h = middle(torch.tensor(X)).detach().numpy()
    plain, again = _kept(whole), _kept(lambda x: _checkpoint(whole, x))
    alone = _kept(lambda x: x + _checkpoint(lambda x: norm(x, None) @ w[0], x))
    it.as_printed(has(plain, X) and not has(alone, X))
    it.right(has(alone, X) and has(again, X))
    it.right(has(plain, h) and not has(again, h))
    it.right(80 * of_a_layer()["norm_1.x_hat"] == 10 * GIB)
    it.right(80 * of_a_layer()["norm_2.x_hat"] == 10 * GIB)
