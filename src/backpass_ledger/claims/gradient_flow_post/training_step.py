"""A training step, and the advice on debugging (§7)."""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import Any

import numpy as np

from backpass import cost
from backpass.models import llama
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.clipping import last_step
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


@cache
def run_step(dtype: str = "float32") -> dict[str, Any]:
    """Run the step on the CPU, with a small network. Return its arrays; the order of
    the parts' backward; the gradients after clipping, and their norm before it."""
    torch.manual_seed(2)
    nn, order = torch.nn, []
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(V, 6), *hidden, nn.Linear(6, V))
    model[-1].weight.data *= 9  # for gradients that are clipped
    for i, each in enumerate(model.to(getattr(torch, dtype))):
        each.register_full_backward_hook(lambda *_, i=i: order.append(i))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser)
    tokens, targets = torch.tensor([[1, 4, 2, 6, 0, 5], [4, 2, 3, 0, 5, 5]])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(tokens)
            loss = nn.functional.cross_entropy(scores, targets)
        loss.backward()
        whole = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
    arrays = {"scores": scores.detach(), "targets": targets, "loss": loss.detach()}
    states = [v for s in optimiser.state.values() for k, v in s.items() if k != "step"]
    noted = {"order": order, "norm": whole, "gradients": gradients, "states": states}
    messages = " ".join(str(each.message) for each in found)
    return arrays | noted | {"parameters": [*model.parameters()], "warnings": messages}


def F412(it: Evidence) -> None:
    """The scores are BF16, and autocast computes the loss in FP32."""
    found = run_step()
    scores, loss = found["scores"], found["loss"]
    it.as_printed((scores.dtype, loss.dtype) == (torch.bfloat16, torch.float32))
    wide = torch.nn.functional.cross_entropy(scores.float(), found["targets"])
    it.as_printed(abs(float(loss - wide)) < 1e-6)


def F413(it: Evidence) -> None:
    """The cross-entropy of all scores with all labels is the loss of the next token.

    This holds if the labels are already shifted by one. With labels equal to the
    tokens, as some libraries take them, the network learns to copy its input."""
    tokens = torch.tensor([[1, 4, 2, 3], [6, 0, 5, 4]])
    now, following = tokens[:, :-1], tokens[:, 1:]

    def loss(guess: Any, labels: Any) -> float:
        scores = 30.0 * torch.nn.functional.one_hot(guess.flatten(), V)
        return float(torch.nn.functional.cross_entropy(scores, labels.flatten()))

    it.as_printed(loss(following, following) < 1e-9 < 10 < loss(now, following))
    it.elsewhere(loss(following, now) < loss(now, now))  # the tokens as labels


def F414(it: Evidence) -> None:
    """Gradients are computed in BF16 and accumulated in FP32.

    This holds if the parameters are FP32: each `.grad` is FP32 then. With the 16-bit
    working copy that `§3` counts, `.grad` is 16-bit too, and so is what adds up in
    it."""
    it.as_printed(run_step()["gradients"].dtype == torch.float32)
    it.elsewhere(run_step("bfloat16")["gradients"].dtype == torch.float32)
    it.right(run_step("bfloat16")["gradients"].dtype == torch.bfloat16)


def F415(it: Evidence) -> None:
    """`loss.backward()` starts from softmax(logits) − one_hot(labels).

    The loss is a mean, so the difference is divided by the number of labels (of those
    that are not ignored): by 8,192 in the text's example."""
    scores, labels = numbers(8192, V), np.arange(8192) % V
    e = np.exp(scores)
    for count in (8192, 5000):
        kept = torch.tensor(np.where(np.arange(8192) < count, labels, -100))
        loss = partial(torch.nn.functional.cross_entropy, target=kept)
        difference = e / e.sum(-1, keepdims=True) - np.eye(V)[labels]
        difference[count:] = 0
        it.as_printed(same(vjp(loss, scores, 1.0), difference))
        it.right(same(vjp(loss, scores, 1.0), difference / count))


def F416(it: Evidence) -> None:
    """The backward goes through the output head, then the layers from the last to the
    first, then the token table."""
    it.as_printed(run_step()["order"] == [5, 4, 3, 2, 1, 0])


def F417(it: Evidence) -> None:
    """Output head, layers 79 to 0, and token table are all parts of the network.

    Between the head and layer 79 there is a norm, with a weight of its own."""
    names = llama.part_names(cost.configuration("llama-3-70b"))
    named = {"embed_tokens", "lm_head", *(f"layers.{i}" for i in range(80))}
    it.left_out(len(set(names) - named))
    it.right(set(names) - named == {"norm"} and len(names) == 83)
    it.right(names.index("layers.79") + 1 == names.index("norm"))


def F418(it: Evidence) -> None:
    """PyTorch's `clip_grad_norm_` with a limit of 1, after the backward and before the
    optimiser's step, clips FP32 gradients; a generator does not matter to it."""
    clipped, before = run_step()["gradients"], run_step()["norm"]
    it.as_printed(clipped.dtype == torch.float32)
    it.as_printed(before > 1 > 1e5 * abs(float(clipped.norm()) - 1))


def F419(it: Evidence) -> None:
    """The optimiser updates FP32 weights with FP32 gradients; the list of bytes has
    gradients of 2 bytes.

    Four FP32 arrays are again 16 bytes per parameter. The gradients take 280 GB, not
    140."""
    found = run_step()
    arrays = [*found["parameters"], *found["states"]]
    it.right({array.dtype for array in arrays} == {torch.float32})
    it.right(len(found["states"]) == 2 * len(found["parameters"]))
    it.clashes(found["gradients"].itemsize != 2)
    it.right(4 * 70 == 280 == 2 * 140)


def F420(it: Evidence) -> None:
    """Clip, step, clear the gradients, and then step the schedule, is a right order."""
    found = run_step()
    it.as_printed("lr_scheduler.step" not in found["warnings"])
    it.as_printed(all(p.grad is None for p in found["parameters"]))
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        it.as_printed(raises(UserWarning, schedule.step))  # before the optimiser


def F421(it: Evidence) -> None:
    """Gradients pass through billions of multiply-adds.

    In all, a step has 2 · 10¹⁵: millions of billions."""
    adds = 80 * sum(layer()) * GIGA / 2
    it.as_printed(adds > 1e9)
    it.elsewhere(adds < 1e12)
    it.right(round(adds / 1e15) == 2)


def F422(it: Evidence) -> None:
    """Each parameter's gradient gives the optimiser the direction in which to move it.

    SGD's does. Adam moves it against an average, which can have the other sign."""
    gradients = [1.0, 1.0, 1.0, -0.5]
    it.as_printed(last_step(gradients, "SGD") > 0)
    it.elsewhere(last_step(gradients, "Adam") > 0)


def F423(it: Evidence) -> None:
    """Training repeats this step millions of times.

    With the text's own step of one sequence of 8,192 tokens, LLaMA's 1.4 · 10¹² tokens
    would take 171 million. But LLaMA took 4 million tokens per step, and 350,000
    steps."""
    tokens, of_step = 1.4e12, 4e6
    it.as_printed(tokens / 8192 > 1e6)
    it.elsewhere(tokens / of_step > 1e6)
    it.right(round(tokens / 8192 / 1e6) == 171)
    it.right(tokens / of_step == 350_000 and tokens == 1.4 * 10**12)


def F424(it: Evidence) -> None:
    """If all gradients are zero, look for `requires_grad=False` or `.detach()`.

    With PyTorch's defaults these give no gradient: `.grad` is None, or the backward
    raises an error. Zeros come from dead units, saturation, masks, or underflow."""

    def gradient(between: Any, frozen: bool = False) -> Any:
        a, b = (torch.nn.Linear(4, 4) for _ in range(2))
        a.requires_grad_(not frozen)
        b(between(a(torch.ones(3, 4)))).square().sum().backward()
        return a.weight.grad

    no_graph = [gradient(lambda h: h.detach()), gradient(lambda h: h, frozen=True)]
    it.as_printed(all(g is not None and not g.any() for g in no_graph))
    it.right(no_graph == [None, None])
    it.right(not gradient(lambda h: torch.relu(h - 100)).any())
    y = torch.nn.Linear(4, 4).requires_grad_(False)(torch.ones(4))
    it.right(raises(RuntimeError, lambda: y.sum().backward()))


def F425(it: Evidence) -> None:
    """If gradients are NaN, look for a norm's division by zero or log 0 in the loss.

    Both can be the cause. The logarithm's own value is infinite; the NaN arises in the
    backward. A softmax over a row whose keys are all masked is a third source."""

    def nan(function: Any, *x: float) -> bool:
        leaf = torch.tensor(x, requires_grad=True)
        function(leaf).backward(torch.linspace(0.5, 1.5, 2))
        return bool(leaf.grad.isnan().any())

    it.as_printed(nan(lambda x: x / x.square().mean().sqrt(), 0.0, 0.0))
    it.as_printed(nan(lambda x: torch.log(x * x), 0.0, 2.0))
    it.elsewhere(not nan(lambda x: torch.softmax(x - torch.inf, 0), 1.0, 2.0))
    it.right(bool(torch.log(torch.zeros(1)).isinf()))


def F426(it: Evidence) -> None:
    """If all gradients have one value, look for parameters that are aliases through
    weight sharing or broadcasting.

    Two names of one shared weight have one gradient, whose elements differ as ever. If
    the rows of a gradient are equal, look for equal weights at the start."""
    x, constant = torch.tensor(numbers(5, 4)), torch.full((4, 4), 0.3).double()
    one, other = (torch.tensor(numbers(4, 4, seed=seed)) for seed in (1, 2))

    def gradients(*weights: Any) -> Any:
        a, b = (w.requires_grad_() for w in weights)
        return torch.autograd.grad((torch.tanh(x @ a.T) @ b.T).square().mean(), (a, b))

    def equal_rows(g: Any) -> bool:
        return same(g, g[:1].expand(4, 4))

    it.as_printed(torch.equal(*gradients(one, one)))
    it.elsewhere(equal_rows(gradients(one, one)[0]))
    it.right(not torch.equal(*gradients(one, other)))
    it.right(equal_rows(gradients(constant, constant.clone())[0]))


def F427(it: Evidence) -> None:
    """If the norm explodes, look at the learning rate, the loss scale, and the data.

    A loss scale that was not divided out multiplies the norm, and so do large inputs.
    The learning rate acts on later steps only."""
    x, y = numbers(40, 5), numbers(40, seed=1)

    def norms(rate: float = 0.1, scale: float = 1.0, size: float = 1.0) -> list[float]:
        w, found = numbers(5, seed=2), []
        for _ in range(20):
            g = scale * 2 * size * x.T @ (size * x @ w - y) / 40
            found.append(float(np.linalg.norm(g)))
            w = w - rate * g / scale
        return found

    it.as_printed(norms(scale=1024)[0] > 1000 * norms()[0])
    it.as_printed(norms(size=30)[0] > 100 * norms()[0])
    it.as_printed(norms(rate=3.0)[-1] > 1000 * norms()[-1])
    it.elsewhere(norms(rate=3.0)[0] > norms()[0])
