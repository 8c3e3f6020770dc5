"""A training step, and the advice on debugging (§7)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from backpass import cost
from backpass.models import llama
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.layer_flops import GIGA, layer
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp

CLAIMS = """
F412  true          0  precision   numerics/precision        §7, code, forward
F413  caveat        3  loss        operations/cross_entropy  §7, code, labels
F414  caveat        3  precision   numerics/precision        §7, code, gradients' format
F415  false         7  loss        operations/cross_entropy  §7, code, `grad_logits`
F416  true          0  chain rule  networks/training         §7, code, order of the backward
F417  left-out      3  norms       networks/llama            §7, code, last norm
F418  true          0  clipping    numerics/clipping         §7, code, clipping
F419  inconsistent  4  precision   cost/memory               §7, code, optimiser, against §3.1
F420  true          0  training    networks/training         §7, code, order of the calls
F421  caveat        1  FLOPs       cost/tally                §7, after the code, operations
F422  caveat        1  optimiser   numerics/optimiser        §7, after the code, direction
F423  caveat        1  training    networks/training         §7, after the code, repetitions
F424  false         5  debugging   networks/training         §7, debugging, zeros
F425  caveat        1  debugging   networks/training         §7, debugging, NaN
F426  caveat        1  debugging   networks/training         §7, debugging, equal values
F427  caveat        1  debugging   networks/training         §7, debugging, explosion
"""


V = 7


def run_step(dtype: str = "float32", layers: int = 3) -> dict[str, Any]:
    """Run the step on the CPU, with a small network; return its arrays, and what was
    noted: the layers whose backward ran, in order, the formats and norms of gradients
    before the optimiser's step."""
    torch.manual_seed(2)
    embedding = torch.nn.Embedding(V, 6)
    hidden = [
        torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
        for _ in range(layers)
    ]
    head = torch.nn.Linear(6, V)
    head.weight.data *= 9  # for gradients that are clipped
    model = torch.nn.Sequential(embedding, *hidden, head)
    model = model.to(getattr(torch, dtype))
    noted: dict[str, Any] = {"order": []}
    for i, each in enumerate(model):
        each.register_full_backward_hook(lambda *_, i=i: noted["order"].append(i))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)

    def before(*_: Any) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        noted["formats"] = {g.dtype for g in grads}
        noted["norm"] = float(torch.cat([g.flatten().double() for g in grads]).norm())

    optimiser.register_step_pre_hook(before)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser)
    tokens = torch.tensor([[1, 4, 2], [6, 0, 5]])
    targets = torch.tensor([4, 2, 3, 0, 5, 5])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(tokens).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(scores, targets)
        loss.backward()
        whole = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
    noted |= {"model": model, "optimiser": optimiser, "whole": float(whole)}
    noted |= {"scores": scores.detach(), "targets": targets, "loss": loss.detach()}
    return noted | {"warnings": [str(each.message) for each in found]}


def F412(it: Evidence) -> None:
    """The scores are BF16, and autocast computes the loss in FP32."""
    found = run_step()
    it.as_printed(found["scores"].dtype is torch.bfloat16)
    it.as_printed(found["loss"].dtype is torch.float32)
    scores, targets = found["scores"].float(), found["targets"]
    wide = torch.nn.functional.cross_entropy(scores, targets)
    it.as_printed(abs(float(found["loss"] - wide)) < 1e-6)


def F413(it: Evidence) -> None:
    """The cross-entropy of all scores with all labels is the loss of the next token.

    If the labels are shifted by one already. With labels equal to the tokens, as some
    libraries take them, the network learns to copy its input.
    """
    tokens = torch.tensor([[1, 4, 2, 3], [6, 0, 5, 4]])

    def loss(guess: Any, labels: Any) -> float:
        scores = 30.0 * torch.nn.functional.one_hot(guess, V)
        flat = scores.reshape(-1, V), labels.reshape(-1)
        return float(torch.nn.functional.cross_entropy(*flat))

    now, following = tokens[:, :-1], tokens[:, 1:]
    it.as_printed(loss(following, following) < 1e-9 < 10 < loss(now, following))
    it.elsewhere(loss(following, now) < loss(now, now))  # the tokens as labels


def F414(it: Evidence) -> None:
    """Gradients are computed in BF16 and accumulated in FP32.

    This holds if the parameters are FP32: each `.grad` is FP32 then. With the 16-bit
    working copy that `§3` counts, `.grad` is 16-bit too, and so is what adds up in it.
    """
    it.as_printed(run_step()["formats"] == {torch.float32})
    it.elsewhere(run_step("bfloat16")["formats"] == {torch.float32})
    it.right(run_step("bfloat16")["formats"] == {torch.bfloat16})


def F415(it: Evidence) -> None:
    """`loss.backward()` starts from softmax(logits) − one_hot(labels).

    The loss is a mean, so the difference is divided by the number of labels (of those
    that are not ignored): by 8,192 in the text's example.
    """
    labels = torch.tensor([3, 0, 6, 2, 2, 5])
    loss = torch.nn.functional.cross_entropy
    for count in (6, 4):
        kept = torch.where(torch.arange(6) < count, labels, -100)
        scores = numbers(6, V)
        found = vjp(lambda x, kept=kept: loss(x, kept), scores, np.array(1.0))
        e = np.exp(scores)
        difference = e / e.sum(-1, keepdims=True) - np.eye(V)[labels.numpy()]
        difference[count:] = 0
        it.as_printed(same(found, difference))
        it.right(same(found, difference / count))
    found = torch.zeros(1, 8192, V).view(-1, V).shape[0]
    it.right(found == 8192)


def F416(it: Evidence) -> None:
    """The backward goes through the output head, then the layers from the last to the
    first, then the token table."""
    it.as_printed(run_step(layers=4)["order"] == [5, 4, 3, 2, 1, 0])


def F417(it: Evidence) -> None:
    """Output head, layers 79 to 0, and token table are all parts of the network.

    Between the head and layer 79 there is a norm, with a weight of its own.
    """
    names = llama.part_names(cost.configuration("llama-3-70b"))
    named = {"embed_tokens", "lm_head", *(f"layers.{i}" for i in range(80))}
    missing = [name for name in names if name not in named]
    it.left_out(len(missing))
    it.right(
        missing == ["norm"] and names.index("norm") == names.index("layers.79") + 1
    )


def F418(it: Evidence) -> None:
    """PyTorch's `clip_grad_norm_` with a limit of 1, after the backward and before the
    optimiser's step, clips FP32 gradients; a generator does not matter to it."""
    found = run_step()
    before, after = found["whole"], found["norm"]
    it.as_printed(found["formats"] == {torch.float32})
    it.as_printed(before > 1 and abs(after - 1) < 1e-5)

    p = torch.nn.Parameter(torch.zeros(5))
    p.grad = torch.tensor(9 * numbers(5)).float()
    torch.nn.utils.clip_grad_norm_((q for q in [p]), 1.0)
    it.as_printed(abs(float(p.grad.norm()) - 1) < 1e-5)


def F419(it: Evidence) -> None:
    """The optimiser updates FP32 weights with FP32 gradients; the list of bytes has
    gradients of 2 bytes.

    This step holds no 16-bit copy and no 16-bit gradients: four FP32 arrays, again 16
    bytes a parameter. Its gradients take 280 GB, not 140.
    """
    found = run_step()
    it.right(found["formats"] == {torch.float32} and 4 * 70 == 280 == 2 * 140)
    parameters = {p.dtype for p in found["model"].parameters()}
    states = found["optimiser"].state.values()
    arrays = {v.dtype for s in states for k, v in s.items() if k.startswith("exp_avg")}
    it.right(parameters == arrays == {torch.float32})
    it.clashes({g.itemsize for g in found["formats"]} != {torch.float16.itemsize})


def F420(it: Evidence) -> None:
    """Clip, step, clear the gradients, and then step the schedule, is a right order."""
    found = run_step()
    it.as_printed(not any("lr_scheduler.step" in text for text in found["warnings"]))
    it.as_printed(all(p.grad is None for p in found["model"].parameters()))
    p = torch.nn.Parameter(torch.zeros(2))
    optimiser = torch.optim.SGD([p], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimiser)
    with warnings.catch_warnings(record=True) as other:
        warnings.simplefilter("always")
        scheduler.step()
    it.as_printed(any("lr_scheduler.step" in str(each.message) for each in other))


def F421(it: Evidence) -> None:
    """Gradients pass through billions of multiply-adds.

    In all, 2 · 10¹⁵ a step: millions of billions.
    """
    adds = 80 * sum(layer()) * GIGA / 2
    it.as_printed(adds > 1e9)
    it.elsewhere(adds < 1e12)
    it.right(round(adds / 1e15) == 2)


def F422(it: Evidence) -> None:
    """Each parameter's gradient gives the optimiser the direction in which to move it.

    SGD moves it against the gradient. Adam moves it against the average of gradients,
    which can have the other sign.
    """
    for name in ("SGD", "Adam"):
        p = torch.nn.Parameter(torch.zeros(1))
        optimiser = getattr(torch.optim, name)([p], lr=0.1)
        for gradient in (1.0, 1.0, 1.0, -0.5):
            before = float(p.detach())
            p.grad = torch.tensor([gradient])
            optimiser.step()
        against = (float(p.detach()) - before) * gradient < 0
        (it.as_printed if name == "SGD" else it.elsewhere)(against)


def F423(it: Evidence) -> None:
    """Training repeats this step millions of times.

    With the text's own step of one sequence of 8,192 tokens, LLaMA's 1.4 · 10¹² tokens
    would take 171 million steps. A large model is not trained so: LLaMA takes 4 million
    tokens a step, and 350,000 steps.
    """
    tokens, of_step = 1.4e12, 4e6
    it.as_printed(tokens / 8192 > 1e6)
    it.right(round(tokens / 8192 / 1e6) == 171)
    it.elsewhere(tokens / of_step > 1e6)
    it.right(tokens / of_step == 350_000 and tokens / 1e12 == 1.4)


def F424(it: Evidence) -> None:
    """If all gradients are zero, look for `requires_grad=False` or `.detach()`.

    With PyTorch's defaults these give no gradient at all: `.grad` is None, or the
    backward raises an error. Zeros come from dead units, saturation, masks, weights of
    zero, or underflow.
    """

    def first_gradient(kind: str) -> Any:
        a, b = (torch.nn.Linear(4, 4) for _ in range(2))
        hidden = a(torch.tensor(numbers(3, 4)).float())
        if kind == "detach":
            hidden = hidden.detach()
        if kind == "dead":
            hidden = torch.relu(hidden - 100)
        if kind == "frozen":
            a.requires_grad_(False)
            hidden = a(torch.tensor(numbers(3, 4)).float())
        b(hidden).square().sum().backward()
        return a.weight.grad

    found = {kind: first_gradient(kind) for kind in ("detach", "frozen", "dead")}
    zero = [g is not None and not g.any() for g in (found["detach"], found["frozen"])]
    it.as_printed(all(zero))
    it.right(found["detach"] is None and found["frozen"] is None)
    it.right(found["dead"] is not None and not found["dead"].any())
    y = torch.nn.Linear(4, 4).requires_grad_(False)(torch.ones(4))
    it.right(raises(RuntimeError, lambda: y.sum().backward()))


def F425(it: Evidence) -> None:
    """If gradients are NaN, look for a division by zero in a norm, or the logarithm of
    zero in the loss.

    Both can be the cause. The logarithm's own value is infinite; the NaN arises in the
    backward, from 0 times infinity. A softmax over a row whose keys are all
    masked is a third source.
    """

    def gradient(function: Any, x: list[float]) -> Any:
        leaf = torch.tensor(x, requires_grad=True)
        y = function(leaf)
        y.backward(torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape))
        return leaf.grad

    norm = gradient(lambda x: x / x.square().mean().sqrt(), [0.0, 0.0])
    log = gradient(lambda x: torch.log(x * x), [0.0, 2.0])
    hidden = gradient(lambda x: torch.softmax(x - torch.inf, 0), [1.0, 2.0])
    it.as_printed(bool(norm.isnan().any()) and bool(log.isnan().any()))
    it.elsewhere(not hidden.isnan().any())
    it.right(bool(torch.log(torch.zeros(1)).isinf()))


def F426(it: Evidence) -> None:
    """If all gradients have one value, look for parameters that are aliases through
    weight sharing or broadcasting.

    Two names of one shared weight have one gradient. Its elements differ as ever: it is
    the sum over the weight's uses. If the rows of a gradient are equal, look for equal
    weights at the start.
    """
    x = torch.tensor(numbers(5, 4)).float()

    def gradients(constant: bool, shared: bool) -> tuple[Any, Any]:
        torch.manual_seed(1)
        a, b = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
        if constant:
            torch.nn.init.constant_(a.weight, 0.3)
            torch.nn.init.constant_(b.weight, 0.3)
        if shared:
            b.weight = a.weight
        b(torch.tanh(a(x))).square().mean().backward()
        return a.weight.grad, b.weight.grad

    def equal_rows(g: Any) -> bool:
        return bool((g - g[0]).abs().max() < 1e-6)

    it.as_printed(torch.equal(*gradients(constant=False, shared=True)))
    it.right(not torch.equal(*gradients(constant=False, shared=False)))
    it.elsewhere(equal_rows(gradients(constant=False, shared=True)[0]))
    it.right(equal_rows(gradients(constant=True, shared=False)[0]))


def F427(it: Evidence) -> None:
    """If the gradient's norm explodes, look at the learning rate, the loss scale, and
    the data.

    A loss scale that was not divided out multiplies the norm, and so do large inputs.
    The learning rate acts on later steps only.
    """
    x, y = numbers(40, 5), numbers(40, seed=1)

    def norms(rate: float, scale: float = 1.0, size: float = 1.0) -> list[float]:
        w, found = numbers(5, seed=2), []
        for _ in range(20):
            g = scale * 2 * size * x.T @ (size * x @ w - y) / 40
            found.append(float(np.linalg.norm(g)))
            w = w - rate * g / scale
        return found

    it.as_printed(norms(0.1, scale=1024)[0] > 1000 * norms(0.1)[0])
    it.as_printed(norms(0.1, size=30)[0] > 100 * norms(0.1)[0])
    it.as_printed(norms(3.0)[-1] > 1000 * norms(0.1)[-1])
    it.elsewhere(norms(3.0)[0] > norms(0.1)[0])
