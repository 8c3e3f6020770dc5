"""Why gradients are clipped, and how (§5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch

CLAIMS = """
F322  true          0  precision  numerics/precision        §5.1, mixed precision
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
F338  false         1  clipping   numerics/clipping         §5.2, meaning
F339  false         7  optimiser  numerics/optimiser        §5.2, box, Adam
F340  caveat        1  clipping   numerics/clipping         §5.2, box, approximation
F341  uncheckable   0  clipping   numerics/clipping         §5.2, box, experience
F342  uncheckable   0  clipping   numerics/clipping         §5.3, early
F343  uncheckable   0  clipping   numerics/clipping         §5.3, after warm-up
F344  true          0  clipping   numerics/clipping         §5.3, spikes
F345  uncheckable   0  clipping   numerics/clipping         §5.3, spikes, size
F346  uncheckable   0  clipping   numerics/clipping         §5.3, late
F347  uncheckable   0  clipping   numerics/clipping         §5.3, diagnosis
"""

SPIKES = (100, 1000)  # the norms of loss spikes, as printed in §5.3


def parameters(scale: float = 9.0) -> list[Any]:
    """Return parameters with gradients, and one without."""
    shapes = ((3, 5), (7,), (2,))
    found = [torch.nn.Parameter(torch.zeros(*s, dtype=torch.float64)) for s in shapes]
    for i, p in enumerate(found[:2]):
        p.grad = torch.tensor(scale * numbers(*p.shape, seed=i))
    return found


def flat(given: Iterable[Any]) -> Any:
    """Return all gradients as one vector."""
    return torch.cat([p.grad.double().flatten() for p in given if p.grad is not None])


def norm(given: Iterable[Any]) -> float:
    """Return the norm of this vector."""
    return float(flat(given).norm())


def printed(given: Iterable[Any], max_norm: float = 1.0) -> float:
    """Clip as the listing does, which reads the parameters twice."""
    squares = (p.grad.float().square().sum() for p in given if p.grad is not None)
    length = sum(map(float, squares)) ** 0.5
    factor = max_norm / (length + 1e-6)
    if factor < 1:
        for p in given:
            p.grad = None if p.grad is None else p.grad.mul_(factor)
    return float(length)


def last_step(gradients: list[float], optimiser: str = "Adam", **options: Any) -> float:
    """Return an optimiser's last step under these gradients of one weight, against the
    last gradient, in units of the learning rate."""
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    stepper = getattr(torch.optim, optimiser)([p], lr=1e-3, **options)
    before = 0.0
    for gradient in gradients:
        before = float(p.detach())
        p.grad = torch.full_like(p, gradient)
        stepper.step()
    return (before - float(p.detach())) * np.sign(gradients[-1]) / 1e-3


def F322(it: Evidence) -> None:
    """Gradient norms can spike even with mixed precision.

    They can, but it does not protect from them: FP16 adds a risk. A gradient of 70,000
    is above its largest number, 65,504, and the norm becomes infinite."""

    def length(dtype: Any) -> float:
        p = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        (700 * p).backward(torch.full((3,), 100.0, dtype=dtype))
        return printed([p])

    it.as_printed(length(torch.bfloat16) > 10**5 and length(torch.float16) > 10**5)
    it.right(torch.finfo(torch.float16).max == 65_504)
    it.right(length(torch.float16) == np.inf)
    it.right(abs(length(torch.float32) / (70_000 * 3**0.5) - 1) < 1e-6)


def F323(it: Evidence) -> None:
    """Batches with unusually long sequences or rare tokens make the norm jump.

    The text names no run that would test this. If sequences are packed to one length,
    no batch has unusually long ones."""


def F324(it: Evidence) -> None:
    """Warm-up of the learning rate is a cause: early in training, random weights give
    gradients of high variance.

    The gradients of single examples vary more at random weights than at fitted ones,
    warm-up or not. Warm-up is the remedy and not the cause."""
    x = numbers(400, 5)
    y = x @ numbers(5, seed=1) + 0.1 * numbers(400, seed=2)

    def each(w: Any) -> Any:  # a row for each example
        return 2 * x * (x @ w - y)[:, None]

    fitted = np.linalg.lstsq(x, y, rcond=None)[0]
    random = min(each(3 * numbers(5, seed=i)).var(0).sum() for i in (3, 4, 5))
    it.as_printed(random > 10 * each(fitted).var(0).sum())
    after = fitted - 0.001 * each(fitted).mean(0)  # one step of a warm-up
    it.elsewhere(each(after).var(0).sum() > random / 10)


def F325(it: Evidence) -> None:
    """When the weights of attention become nearly one-hot, softmax's Jacobian produces
    large gradients.

    It tends to 0 there. Its norm is at most 1/2, which two equal weights have."""

    def size(scores: Any) -> float:
        a = torch.softmax(torch.tensor(scores), 0)
        return float(torch.linalg.matrix_norm(a.diag() - a.outer(a), 2))

    sizes = [size(scale * np.linspace(2, -2, 5)) for scale in (1, 10, 30, 100)]
    it.as_printed(sizes[3] > sizes[0])
    it.right(sizes[1] > sizes[2] > sizes[3] and sizes[3] < 1e-9)
    it.right(abs(size([0.0, 0.0, -99.0]) - 1 / 2) < 1e-12)
    it.right(max(size(9 * numbers(4, seed=i)) for i in range(200)) <= 1 / 2)


def F326(it: Evidence) -> None:
    r"""Sequences that the model finds very improbable have a large $-\log p$, and so a
    large gradient.

    The loss has no bound. Its gradient by the scores is at most $\sqrt 2$ a token; a
    larger one comes from the Jacobians of the layers below."""

    def of(size: float, w: Any) -> tuple[float, float]:  # with the worst label
        x = size * torch.ones(1, len(w)).double()
        w = torch.tensor(w).double().requires_grad_()
        loss = torch.nn.functional.cross_entropy(x @ w, (x @ w).argmin(1))
        loss.backward()
        return loss.item(), float(w.grad.norm())

    # For an input of 1, the weights' gradient is that of the scores.
    small, large, huge = (of(1, [[gap, 0.0, 0.0, 0.0]]) for gap in (5.0, 50.0, 500.0))
    it.as_printed(large[0] > 9 * small[0])
    it.elsewhere(large[1] > 1.5 * small[1])
    it.right(huge[1] <= 2**0.5 + 1e-6)
    w = numbers(3, 4, seed=1)
    it.right(of(1000, w)[1] > 50 * of(10, w)[1] > 100 * 2**0.5)


def F327(it: Evidence) -> None:
    r"""One large gradient can move the weights so far that the model does not recover.

    This holds under SGD. Adam bounds the step of each weight, however large the
    gradient is. After zero gradients the bound is $(1 - \beta_1)/\sqrt{1 - \beta_2}$
    learning rates: 3.2 with Adam's defaults, 0.45 with $\beta_2 = 0.95$."""
    spike = [0.0] * 5000 + [1e6]
    it.as_printed(last_step(spike[-2:], "SGD") > 100)
    default = last_step(spike)
    it.elsewhere(default > 100)
    it.right(round(default, 1) == round((1 - 0.9) / (1 - 0.999) ** 0.5, 1) == 3.2)
    it.right(round(last_step(spike[-300:], betas=(0.9, 0.95)), 2) == 0.45)


def F328(it: Evidence) -> None:
    """The norm that is clipped is that of one vector with all parameters' gradients,
    the root of the sum of all squares."""
    given = parameters()
    squares = sum(float((p.grad**2).sum()) for p in given if p.grad is not None)
    found = float(torch.nn.utils.clip_grad_norm_(given, 1.0))
    it.as_printed(abs(found - squares**0.5) < 1e-9 > abs(found - norm(parameters())))


def F329(it: Evidence) -> None:
    """If the norm exceeds max_norm, all gradients are multiplied by max_norm over the
    norm; otherwise they stay."""
    for scale, max_norm in ((9.0, 1.0), (9.0, 2.5), (0.01, 1.0)):
        given, whole = parameters(scale), norm(parameters(scale))
        torch.nn.utils.clip_grad_norm_(given, max_norm)
        by_rule = parameters(scale * (max_norm / whole if whole > max_norm else 1))
        it.as_printed(same(flat(given), flat(by_rule), 1e-6))


def F330(it: Evidence) -> None:
    """The sum of the gradients' squares, in FP32, is the square of the norm.

    Finite elements above 1.8e19 have squares that overflow. The norm is then infinite,
    and clipping sets every gradient to 0."""
    it.as_printed(abs(printed(parameters()) / norm(parameters()) - 1) < 1e-6)
    large = parameters(2e19)
    it.elsewhere(bool(np.isfinite(printed(large))))
    it.right(norm(parameters(2e19)) < 1e21 and norm(large) == 0)
    it.right(round(float(np.sqrt(np.finfo(np.float32).max)) / 1e19, 1) == 1.8)


def F331(it: Evidence) -> None:
    """The function clips the norm of all parameters.

    It clips that of the parameters that it receives. If each device holds a share, as
    70B parameters require, the squares have to be added over all devices first."""
    given = parameters()
    printed(given)
    it.as_printed(abs(norm(given) - 1) < 1e-6)
    shares = parameters()[:2]
    for share in shares:
        printed([share])
    it.elsewhere(abs(norm(shares) - 1) < 1e-6)
    it.right(abs(norm(shares) - 2**0.5) < 1e-6)


def F332(it: Evidence) -> None:
    """PyTorch too applies max_norm over the norm plus `1e-6`, if it is below 1."""
    for max_norm in (0.5, 1.0, 100.0):
        ours, theirs = parameters(), parameters()
        printed(ours, max_norm)
        torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        it.as_printed(same(flat(ours), flat(theirs), 1e-6))


def F333(it: Evidence) -> None:
    """After the call, the norm is at most max_norm.

    This fails if a gradient is not finite. If an element is NaN, nothing is clipped. If
    one is infinite, it becomes NaN and all other gradients become 0."""
    usual = parameters()
    printed(usual)
    it.as_printed(norm(usual) <= 1)
    for value, factor in ((np.nan, 1), (np.inf, 0)):
        given = parameters()
        given[1].grad[3] = value
        printed(given)
        it.elsewhere(norm(given) <= 1)
        it.right(same(given[0].grad, factor * parameters()[0].grad))


def F334(it: Evidence) -> None:
    """The listing clips the gradients of the parameters that it is given.

    This holds if they are given as a list. `model.parameters()` is a generator, which
    the first loop exhausts; nothing is then clipped, and no error is raised. PyTorch's
    function handles a generator."""
    as_list, generator, pytorch = (parameters() for _ in range(3))
    printed(as_list)
    it.as_printed(norm(as_list) <= 1)
    printed(torch.nn.ParameterList(generator).parameters())
    it.elsewhere(norm(generator) <= 1)
    it.right(norm(generator) == norm(parameters()))
    torch.nn.utils.clip_grad_norm_(torch.nn.ParameterList(pytorch).parameters(), 1.0)
    it.right(norm(pytorch) <= 1)


def F335(it: Evidence) -> None:
    """The function returns the norm before clipping."""
    it.as_printed(abs(printed(parameters()) / norm(parameters()) - 1) < 1e-6)


def F336(it: Evidence) -> None:
    """GPT-3 and Llama clipped at 1.0.

    Their papers say so: Brown et al. (2020), appendix B; Touvron et al. (2023), section
    2. Nothing can be computed here."""


def F337(it: Evidence) -> None:
    """Chinchilla clipped at 1.0.

    Its paper gives no value. It refers to Gopher's, which was 1 for most sizes and a
    quarter for the two largest."""


def F338(it: Evidence) -> None:
    """A norm above 1 is scaled down to exactly 1.

    This is right by the formula. The listing divides by the norm plus `1e-6`, so the
    new norm is a little less than 1."""
    given, whole = parameters(), norm(parameters())
    found = printed(given)
    it.as_printed(norm(given) == 1)
    it.right(abs(norm(parameters(9 / whole)) - 1) < 1e-15)
    it.right(abs(norm(given) - whole / (found + 1e-6)) < 1e-12 and norm(given) < 1)


def F339(it: Evidence) -> None:
    """With Adam, a gradient of norm 1 produces updates that are small enough for a
    quadratic loss surface.

    Adam's updates do not depend on the norm: gradients a hundredth or a thousand times
    as long give the same updates, as long as their elements are large compared with
    ε."""
    shape = np.array([0.3, -0.2, 0.5, 0.4])
    sizes = [last_step(list(by * shape), eps=1e-12) for by in (1 / 100, 1, 1000)]
    it.as_printed(sizes[2] > 10 * sizes[0])
    it.right(max(sizes) - min(sizes) < 1e-6)


def F340(it: Evidence) -> None:
    """Norms above 1 risk steps to where the loss's linear approximation fails.

    The longer the step, the larger the approximation's error. But the linear
    approximation fails long before the quadratic one: on a quadratic loss, the step to
    the minimum lowers the loss by half of what the linear approximation predicts."""
    # The fall of w² from 1.5, over the fall that the slope there predicts.
    falls = [(1.5**2 - (1.5 - s) ** 2) / (2 * 1.5 * s) for s in (0.01, 0.1, 1.0, 1.5)]
    it.as_printed(falls == sorted(falls, reverse=True) and falls[0] > 0.99)
    it.elsewhere(falls[-1] > 0.99)
    it.right(falls[-1] == 1 / 2)


def F341(it: Evidence) -> None:
    """1.0 is the standard, an empirical value that works from 1B to over 500B
    parameters; some use 0.5 or 2.0.

    These are other people's runs, and the text names none. Gopher's 280B model used a
    quarter."""


def F342(it: Evidence) -> None:
    """In a 70B model's first thousand steps, the norm is 5 to 50; most are clipped.

    No run is named."""


def F343(it: Evidence) -> None:
    """Then the norm is 0.3 to 1.5, and 10 to 30 % of the steps are clipped.

    No run is named."""


def F344(it: Evidence) -> None:
    """Norms of 100 to 1000 are divided by 100 to 1000."""
    whole = norm(parameters())
    it.as_printed(SPIKES == (100, 1000))
    for size in SPIKES:
        given = parameters(9 * size / whole)
        it.as_printed(abs(printed(given) - size) < 1e-3)
        it.as_printed(abs(norm(given) - 1) < 1e-6)


def F345(it: Evidence) -> None:
    """During loss spikes the norm can briefly reach 100 to 1000.

    No run is named."""


def F346(it: Evidence) -> None:
    """Late in training the norm is 0.1 to 0.5, and clipping at 1.0 is rare.

    The text names no run. With norms of 0.1 to 0.5, clipping at 1.0 never happens."""


def F347(it: Evidence) -> None:
    """A norm that keeps rising while the loss does not announces instability.

    This is a rule of thumb; the text names no run that would test it."""
