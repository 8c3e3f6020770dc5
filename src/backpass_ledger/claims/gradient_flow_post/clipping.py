"""Why gradients are clipped, and how (§5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
F322  false         2  precision  numerics/precision        §5.1, mixed precision
F323  uncheckable   0  clipping   numerics/clipping         §5.1, data
F324  caveat        2  clipping   numerics/clipping         §5.1, warm-up
F325  false         8  softmax    operations/softmax        §5.1, sharp attention
F326  caveat        4  loss       operations/cross_entropy  §5.1, rare sequences
F327  caveat        3  optimiser  numerics/optimiser        §5.1, consequence
F328  true          0  clipping   numerics/clipping         §5.2, norm
F329  true          0  clipping   numerics/clipping         §5.2, rule
F330  caveat        2  clipping   numerics/clipping         §5.2, code, norm
F331  caveat        4  parallel   numerics/clipping         §5.2, code, sharded
F332  true          0  clipping   numerics/clipping         §5.2, code, coefficient
F333  caveat        3  clipping   numerics/clipping         §5.2, code, not finite
F334  caveat        6  clipping   numerics/clipping         §5.2, code, two loops
F335  true          0  clipping   numerics/clipping         §5.2, code, result
F336  uncheckable   0  clipping   numerics/clipping         §5.2, GPT-3 and Llama
F337  uncheckable   0  clipping   numerics/clipping         §5.2, Chinchilla
F338  caveat        1  clipping   numerics/clipping         §5.2, meaning
F339  false         7  optimiser  numerics/optimiser        §5.2, box, Adam
F340  inconsistent  1  clipping   numerics/clipping         §5.2, box, approximation
F341  uncheckable   0  clipping   numerics/clipping         §5.2, box, experience
F342  uncheckable   0  clipping   numerics/clipping         §5.3, early
F343  uncheckable   0  clipping   numerics/clipping         §5.3, after warm-up
F344  true          0  clipping   numerics/clipping         §5.3, spikes
F345  uncheckable   0  clipping   numerics/clipping         §5.3, spikes, size
F346  uncheckable   0  clipping   numerics/clipping         §5.3, late
F347  uncheckable   0  clipping   numerics/clipping         §5.3, diagnosis
"""


def parameters(scale: float = 9.0, dtype: str = "float64") -> list[Any]:
    """Return parameters with gradients, and one without."""
    found = [torch.nn.Parameter(torch.zeros(*shape)) for shape in ((3, 5), (7,), (2,))]
    found = [torch.nn.Parameter(p.to(getattr(torch, dtype))) for p in found]
    for i, p in enumerate(found[:2]):
        p.grad = torch.tensor(scale * numbers(*p.shape, seed=i), dtype=p.dtype)
    return found


def norm(given: list[Any]) -> float:
    """Return the norm of all gradients as one vector."""
    flat = [p.grad.double().numpy().ravel() for p in given if p.grad is not None]
    return float(np.linalg.norm(np.concatenate(flat)))


def printed(given: Iterable[Any], max_norm: float = 1.0) -> float:
    """Clip as the listing does, which reads the parameters twice."""
    squares = (p.grad.float().square().sum() for p in given if p.grad is not None)
    length = sum(map(float, squares)) ** 0.5
    factor = max_norm / (length + 1e-6)
    if factor < 1:
        for p in given:
            p.grad = None if p.grad is None else p.grad.mul_(factor)
    return float(length)


def last_step(
    gradients: list[float], optimiser: str = "Adam", zeros: int = 0, **options: Any
) -> float:
    """Return the size of an optimiser's last step under these gradients of one weight,
    in units of the learning rate. ``zeros`` is the number of gradients of 0 before
    them. Those leave Adam's moments at 0, so only its step count is set."""
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    stepper = getattr(torch.optim, optimiser)([p], lr=1e-3, **options)
    before = 0.0
    if zeros:
        p.grad = torch.zeros_like(p)
        stepper.step()
        moments = stepper.state[p]
        moments["step"].fill_(zeros)
        assert moments["exp_avg"] == moments["exp_avg_sq"] == p.detach() == 0
    for gradient in gradients:
        before = float(p.detach())
        p.grad = torch.full_like(p, gradient)
        stepper.step()
    return abs(float(p.detach()) - before) / 1e-3


def softmax(scores: Any) -> Any:
    """Return the softmax of a vector."""
    e = np.exp(scores - np.max(scores))
    return e / e.sum()


def F322(it: Evidence) -> None:
    """Gradient norms can spike even with mixed precision, so it is a protection.

    FP16 adds a risk, which FP32 does not have: overflow. A gradient of 70,000 is above
    its largest number, 65,504, and the norm becomes infinite.
    """

    def length(dtype: Any) -> float:
        p = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        (700 * p).backward(torch.full((3,), 100.0, dtype=dtype))
        return printed([p])

    it.as_printed(bool(np.isfinite(length(torch.float16))))
    it.right(length(torch.float16) == np.inf)
    it.right(abs(length(torch.float32) / (70_000 * np.sqrt(3)) - 1) < 1e-6)
    it.right(float(np.finfo(np.float16).max) == 65_504)


def F323(it: Evidence) -> None:
    """Batches with unusually long sequences or rare tokens make the norm jump.

    An observation without a run to compare with. Where sequences are packed to one
    length, the first does not occur.
    """


def F324(it: Evidence) -> None:
    """Warm-up of the learning rate is a cause: early in training, random weights give
    gradients of high variance.

    The gradients of single examples vary more at random weights than at fitted ones.
    Warm-up is the remedy and not the cause: the gradient at given weights does not
    depend on the learning rate.
    """
    x, y = numbers(400, 5), numbers(400, 5) @ numbers(5, seed=1)
    y = y + 0.1 * numbers(400, seed=2)

    def variance(w: Any) -> float:
        each = 2 * x * (x @ w - y)[:, None]  # a row for each example
        return float(each.var(0).sum())

    at_random = [variance(3 * numbers(5, seed=seed)) for seed in (3, 4, 5)]
    fitted = variance(np.linalg.lstsq(x, y, rcond=None)[0])
    it.as_printed(min(at_random) > 10 * fitted)

    def first_gradient(rate: float) -> Any:
        p = torch.nn.Parameter(torch.tensor(3 * numbers(5, seed=3)))
        stepper = torch.optim.SGD([p], lr=rate)
        (torch.tensor(x) @ p - torch.tensor(y)).square().mean().backward()
        stepper.step()
        assert p.grad is not None
        return p.grad.numpy()

    it.elsewhere(not same(first_gradient(0.001), first_gradient(0.1)))


def F325(it: Evidence) -> None:
    """When the weights of attention become nearly one-hot, softmax's Jacobian produces
    large gradients.

    The Jacobian tends to 0 there; its norm is never above 1/2, which two equal weights
    have. Saturated softmax makes gradients vanish.
    """

    def size(a: Any) -> float:
        return float(np.linalg.norm(np.diag(a) - np.outer(a, a), 2))

    scores = np.array([2.0, 1.1, 0.3, -0.7, -1.9])
    sizes = [size(softmax(scale * scores)) for scale in (1, 10, 30, 100)]
    it.as_printed(sizes[3] > sizes[0])
    it.right(sizes[1] > sizes[2] > sizes[3] and sizes[3] < 1e-9)
    it.right(abs(size(np.array([0.5, 0.5, 0])) - 1 / 2) < 1e-12)
    it.right(max(size(softmax(9 * numbers(4, seed=i))) for i in range(200)) <= 1 / 2)


def F326(it: Evidence) -> None:
    r"""Sequences that the model finds very improbable have a large $-\log p$, and so a
    large gradient.

    The loss has no bound. Its gradient by the scores has one: the softmax minus
    one-hot, at most $\sqrt 2$ a token. A larger gradient comes from the Jacobians of
    the layers below.
    """

    def loss_and_gradient(gap: float) -> tuple[float, float]:
        scores, target = np.array([[gap, 0.0, 0.0, 0.0]]), torch.tensor([2])
        loss = torch.nn.functional.cross_entropy
        g = vjp(lambda x: loss(x, target), scores, np.array(1.0))
        return float(loss(torch.tensor(scores), target)), float(np.linalg.norm(g))

    it.as_printed(loss_and_gradient(50)[0] > 9 * loss_and_gradient(5)[0])
    it.elsewhere(loss_and_gradient(50)[1] > 1.5 * loss_and_gradient(5)[1])
    it.right(loss_and_gradient(500)[1] <= np.sqrt(2) + 1e-12)

    def of_weights(size: float) -> float:  # of a layer below, whose input has this size
        x, w = torch.tensor(size * numbers(1, 3)), numbers(3, 4, seed=1)
        target = torch.tensor([int((x.numpy() @ w).argmin())])
        loss = torch.nn.functional.cross_entropy
        g = vjp(lambda w: loss(x @ w, target), w, np.array(1.0))
        return float(np.linalg.norm(g))

    it.right(of_weights(1000) > 50 * of_weights(10) > 100 * np.sqrt(2))


def F327(it: Evidence) -> None:
    r"""One large gradient can move the weights so far that the model does not recover.

    Under SGD. Adam bounds the step of a weight: after zeros, by
    $(1 - \beta_1)/\sqrt{1 - \beta_2}$ learning rates, 3.2 with its defaults and 0.45
    with $\beta_2 = 0.95$, however large the gradient is.
    """
    spike = [0.0] * 300 + [1e6]
    it.as_printed(last_step(spike, "SGD") > 100)
    default = last_step([1e6], zeros=9000)
    it.elsewhere(default > 100)
    it.right(round(default, 1) == 3.2)
    it.right(round(last_step(spike, betas=(0.9, 0.95)), 2) == 0.45)


def F328(it: Evidence) -> None:
    """The norm that is clipped is that of one vector with all parameters' gradients,
    the root of the sum of all squares."""
    given = parameters()
    squares = sum(float((p.grad**2).sum()) for p in given if p.grad is not None)
    it.as_printed(abs(squares**0.5 - norm(given)) < 1e-12)
    found = float(torch.nn.utils.clip_grad_norm_(given, 1.0))
    it.as_printed(abs(found / squares**0.5 - 1) < 1e-12)


def F329(it: Evidence) -> None:
    """If the norm exceeds max_norm, all gradients are multiplied by max_norm over the
    norm; otherwise they stay."""
    for scale in (9.0, 0.01):
        before = [p.grad.numpy().copy() for p in parameters(scale)[:2]]
        whole = np.linalg.norm(np.concatenate([g.ravel() for g in before]))
        given = parameters(scale)
        torch.nn.utils.clip_grad_norm_(given, max_norm=1.0)
        factor = 1 / whole if whole > 1 else 1
        for p, g in zip(given, before, strict=False):
            it.as_printed(same(p.grad.numpy(), factor * g, 1e-6))


def F330(it: Evidence) -> None:
    """The sum of the gradients' squares, computed in FP32 for each parameter, is the
    square of the norm.

    Its squares are FP32 and overflow above 1.8e19, though gradients of that size are
    finite: then all become 0.
    """
    given = parameters()
    it.as_printed(abs(printed(given) / norm(parameters()) - 1) < 1e-6)
    large = parameters(2e19)
    it.elsewhere(bool(np.isfinite(printed(large))))
    it.right(norm(parameters(2e19)) < 1e21 and norm(large) == 0)
    it.right(abs(float(np.sqrt(np.finfo(np.float32).max)) / 1e19 - 1.8) < 0.05)


def F331(it: Evidence) -> None:
    """The function clips the norm of all parameters.

    It clips the norm of the parameters that it receives. If each device holds a share
    of them, which the text requires for 70B parameters, the squares have to be added
    over all devices first; otherwise every device clips its own share.
    """
    given = parameters()
    printed(given)
    it.as_printed(abs(norm(given) - 1) < 1e-6)
    first, second, _ = parameters()
    printed([first])
    printed([second])
    it.elsewhere(abs(norm([first, second]) - 1) < 1e-6)
    it.right(abs(norm([first, second]) - 2**0.5) < 1e-6)


def F332(it: Evidence) -> None:
    """The factor, max_norm over the norm plus `1e-6`, applied if it is below 1, is what
    PyTorch does."""
    for max_norm in (0.5, 1.0, 100.0):
        ours, theirs = parameters(), parameters()
        printed(ours, max_norm)
        torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        pairs = zip(ours[:2], theirs[:2], strict=True)
        it.as_printed(all(same(a.grad.numpy(), b.grad.numpy(), 1e-6) for a, b in pairs))


def F333(it: Evidence) -> None:
    """After the call, the norm is at most max_norm.

    Not with a gradient that is not finite. A NaN makes the comparison false, and
    everything is passed on as it is; an infinite one becomes NaN and the others 0.
    """
    usual = parameters()
    printed(usual)
    it.as_printed(norm(usual) <= 1)
    for value in (np.nan, np.inf):
        given = parameters()
        given[1].grad[3] = value
        printed(given)
        it.elsewhere(norm(given) <= 1)
        others = given[0].grad.numpy()
        it.right(
            same(others, parameters()[0].grad.numpy() * (1 if np.isnan(value) else 0))
        )


def F334(it: Evidence) -> None:
    """The listing clips the gradients of the parameters that it is given.

    It does if they come in a list. `model.parameters()` is a generator, which the first
    loop exhausts. The second loop is empty: the norm is returned and nothing is
    clipped, without an error. The text never calls its listing so; its training step
    calls PyTorch's function, which handles a generator.
    """

    def model() -> Any:
        found = torch.nn.Module()
        for i, p in enumerate(parameters()):
            found.register_parameter(f"p{i}", p)
        return found

    as_list, generator, pytorch = (model() for _ in range(3))
    before = norm(list(generator.parameters()))
    printed(list(as_list.parameters()))
    it.as_printed(norm(list(as_list.parameters())) <= 1 < before)
    printed(generator.parameters())
    it.elsewhere(norm(list(generator.parameters())) <= 1)
    it.right(norm(list(generator.parameters())) == before)
    torch.nn.utils.clip_grad_norm_(pytorch.parameters(), max_norm=1.0)
    it.right(norm(list(pytorch.parameters())) <= 1)


def F335(it: Evidence) -> None:
    """The function returns the norm before clipping."""
    it.as_printed(abs(printed(parameters()) / norm(parameters()) - 1) < 1e-6)


def F336(it: Evidence) -> None:
    """GPT-3 and Llama clipped at 1.0.

    Their papers say so: Brown et al. (2020), appendix B; Touvron et al. (2023), section
    2. Nothing can be computed here.
    """


def F337(it: Evidence) -> None:
    """Chinchilla clipped at 1.0.

    Its paper gives no value. It refers to Gopher's, which was 1 for most sizes and a
    quarter for the two largest.
    """


def F338(it: Evidence) -> None:
    """A norm above 1 is scaled down to exactly 1.

    By the formula. The code adds `1e-6` to the norm, so the result is a little less.
    """
    given = parameters()
    whole = norm(given)
    by_formula = [_scaled(p, 1 / whole) for p in parameters()]
    it.as_printed(abs(norm(by_formula) - 1) < 1e-15)
    found = printed(given)
    it.elsewhere(norm(given) == 1)
    it.right(abs(norm(given) - whole / (found + 1e-6)) < 1e-12)


def _scaled(p: Any, factor: float) -> Any:
    if p.grad is not None:
        p.grad = p.grad * factor
    return p


def F339(it: Evidence) -> None:
    """With Adam, a gradient of norm 1 produces updates that are small enough for a
    quadratic loss surface.

    Adam's updates do not depend on the norm: those of gradients of norm 0.01, 1, and
    1000 are equal as long as the elements are large beside ε. The threshold acts only
    through changes of the norm from step to step.
    """
    whole = [0.3, -0.2, 0.5, 0.4]
    sizes = {s: last_step([s * g for g in whole], eps=1e-12) for s in (0.01, 1, 1000)}
    it.as_printed(sizes[1000] > 10 * sizes[0.01])
    it.right(max(sizes.values()) - min(sizes.values()) < 1e-6)


def F340(it: Evidence) -> None:
    """Steps stay where the loss is about quadratic; longer ones leave where the linear
    approximation holds.

    A quadratic region is larger than a linear one. On a quadratic the linear prediction
    of a step can be wrong by as much as it predicts.
    """
    curvature, w, step = 2.0, 1.0, -1.0

    def loss(w: float) -> float:
        return curvature * w * w / 2

    linear = loss(w) + curvature * w * step
    quadratic = linear + curvature * step * step / 2
    it.clashes(quadratic == loss(w + step) != linear)


def F341(it: Evidence) -> None:
    """1.0 is the standard, an empirical value that works from 1B to over 500B
    parameters; some use 0.5 or 2.0.

    Other people's runs, and none is named. Gopher's 280B model used a quarter.
    """


def F342(it: Evidence) -> None:
    """In the first thousand steps of a 70B model, the norm is 5 to 50, and most steps
    are clipped.

    No run is named.
    """


def F343(it: Evidence) -> None:
    """Then the norm is 0.3 to 1.5, and 10 to 30 % of the steps are clipped.

    No run is named.
    """


def F344(it: Evidence) -> None:
    """Norms of 100 to 1000 are divided by 100 to 1000."""
    for size in (100.0, 1000.0):
        given = parameters(1.0)
        given = [_scaled(p, size / norm(parameters(1.0))) for p in given]
        printed(given)
        it.as_printed(abs(size / norm(given) / size - 1) < 1e-6)


def F345(it: Evidence) -> None:
    """During loss spikes the norm can briefly reach 100 to 1000.

    No run is named.
    """


def F346(it: Evidence) -> None:
    """Late in training the norm is 0.1 to 0.5, and clipping at 1.0 is rare.

    The text names no run. With norms of 0.1 to 0.5, clipping at 1.0 never happens.
    """


def F347(it: Evidence) -> None:
    """A norm that keeps rising while the loss does not announces instability.

    A rule of experience, without a run to compare with.
    """
