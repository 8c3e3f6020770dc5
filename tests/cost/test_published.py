"""Published formulas and mistakes: what they say is what runs on PyTorch's meta device, and what autograd saves."""

import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from backpass.cost.mistakes import MISTAKES, Mistake
from backpass.cost.printed import records
from backpass.cost.published import FORMULAS, LETTERS, named, symbolic, value


def flop_counter():
    """PyTorch's counter. It imports triton, which tests/kernels has to set up before any test runs."""
    from torch.utils import flop_counter

    return flop_counter


def leaf(*shape, device="meta", dtype=torch.float32, trained=True):
    """Return an array of normal numbers, or of none on the meta device."""
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(trained)


def counted(run, *, backward=True):
    """Return the FLOPs of the products that PyTorch's counter sees, 2mnp each."""
    with flop_counter().FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False):
        y = run()
        if backward:
            y.backward(torch.empty_like(y))
    return counter.get_total_flops()


def heads(x, n):
    return x.reshape(*x.shape[:-1], n, -1).transpose(1, 2)


def attend(q, k, v):
    """Attention of grouped heads, without a mask, its weights stored."""
    k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], dim=1) for a in (k, v))
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def attend_by_rows(q, k, v, window):
    """Causal attention that computes no product that the mask would hide."""
    rows = []
    for i in range(q.shape[2]):
        seen = slice(max(0, i + 1 - window), i + 1)
        rows.append(attend(q[:, :, i : i + 1], k[:, :, seen], v[:, :, seen]))
    return torch.cat(rows, dim=2)


def qkv(at):
    b, s, n_h, n_kv, d = (at[letter] for letter in ("b", "s", "n_h", "n_kv", "d"))
    return leaf(b, n_h, s, d), leaf(b, n_kv, s, d), leaf(b, n_kv, s, d)


def attention(at, *, window=None, backward=True):
    """Count attention's own products in all layers."""

    def run():
        q, k, v = qkv(at)
        return attend(q, k, v) if window is None else attend_by_rows(q, k, v, window)

    return at["L"] * counted(run, backward=backward)


def block(at, *, gated, trained=True, again=lambda f, *x: f(*x)):
    """Return a function of the stream: attention, then a feed-forward block if there is an f."""
    h, f, n_h, n_kv, d = (at.get(letter) for letter in ("h", "f", "n_h", "n_kv", "d"))
    w_q, w_k, w_v, w_o = (
        leaf(*shape, trained=trained) for shape in ((h, n_h * d), (h, n_kv * d), (h, n_kv * d), (n_h * d, h))
    )
    matrices = [leaf(h, f), leaf(h, f), leaf(f, h)] if f else []

    def run(x):
        q, k, v = heads(x @ w_q, n_h), heads(x @ w_k, n_kv), heads(x @ w_v, n_kv)
        o = again(attend, q, k, v)
        x = x + o.transpose(1, 2).reshape(*x.shape[:-1], -1) @ w_o
        if not matrices:
            return x
        gate, up, down = matrices
        return x + (F.silu(x @ gate) * (x @ up) if gated else F.gelu(x @ up)) @ down

    return run


def rerun(f, *x):
    return checkpoint(f, *x, use_reentrant=False, preserve_rng_state=False)


def network(at, *, gated=False, again="nothing", backward=True):
    """Count a network: a lookup in the table, layers, and the table as the head."""
    table = leaf(at["V"], at["h"])
    tokens = torch.empty(at["b"], at["s"], device="meta", dtype=torch.int64)
    layers = [
        block(at, gated=gated, **({"again": rerun} if again == "attention" else {})) for _ in range(at["L"])
    ]

    def run():
        x = F.embedding(tokens, table)
        for layer in layers:
            x = rerun(layer, x) if again == "layers" else layer(x)
        return x @ table.T

    return counted(run, backward=backward)


def frozen(at):
    """Count blocks of attention whose matrices are not trained, on a stream that is."""
    layers = [block({**at, "f": None}, gated=False, trained=False) for _ in range(at["L"])]
    x = leaf(at["b"], at["s"], at["h"])

    def run():
        y = x
        for layer in layers:
            y = layer(y)
        return y

    return counted(run)


def projections(at):
    b, s, h, n_h, n_kv, d = (at[letter] for letter in ("b", "s", "h", "n_h", "n_kv", "d"))
    widths = (n_h * d, n_kv * d, n_kv * d)
    inwards = sum(counted(lambda w=w: leaf(b * s, h) @ leaf(h, w)) for w in widths)
    return at["L"] * (inwards + counted(lambda: leaf(b * s, n_h * d) @ leaf(n_h * d, h)))


def gated_block(at, experts=1):
    def run():
        x = leaf(at["b"] * at["s"], at["h"])
        each = []
        for _ in range(experts):
            gate, up = leaf(at["h"], at["f"]), leaf(at["h"], at["f"])
            each.append((F.silu(x @ gate) * (x @ up)) @ leaf(at["f"], at["h"]))
        return torch.stack(each).mean(0)

    return at["L"] * counted(run)


def head(at):
    return counted(lambda: leaf(at["b"] * at["s"], at["h"]) @ leaf(at["h"], at["V"]))


def flash_backward(at):
    q, k, v = ((at["b"], at["n_h"], at["s"], at["d"]) for _ in range(3))
    return at["L"] * flop_counter().sdpa_backward_flop_count(q, q, k, v)


# What autograd saves.


class Saving:
    """Collects what autograd saves, each storage once, without the parameters."""

    def __init__(self, *parameters):
        self.parameters = {p.untyped_storage().data_ptr() for p in parameters}
        self.storages = {}
        self.arrays = []  # alive, so that no address is used twice

    def pack(self, array):
        self.arrays.append(array)
        storage = array.untyped_storage()
        if storage.data_ptr() not in self.parameters:
            self.storages[storage.data_ptr()] = (storage.nbytes(), array.dtype, array.numel())
        return array

    def bytes_of(self, run):
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda array: array):
            run()
        return sum(size for size, _, _ in self.storages.values())


def weighed(at, dtype, *, flash=False, feed=True, norms=True, again=lambda f, *x: f(*x)):
    """Return the bytes that autograd saves of a layer with dropout, and those of its norms' statistics."""
    b, s, n_h, d = at["b"], at["s"], at["n_h"], at["d"]
    h = n_h * d
    make = {"device": "cpu", "dtype": dtype}
    w_qkv = [leaf(h, h, **make) for _ in range(3)]
    w_o, w_up, w_down = leaf(h, h, **make), leaf(4 * h, h, **make), leaf(h, 4 * h, **make)
    gains = [leaf(h, **make) for _ in range(4)]
    saving = Saving(*w_qkv, w_o, w_up, w_down, *gains)
    x = leaf(b, s, h, **make)

    def drop(x):
        return torch.native_dropout(x, 0.25, True)[0]

    def run():
        a = F.layer_norm(x, (h,), *gains[:2]) if norms else x
        q, k, v = (F.linear(a, w).reshape(b, s, n_h, d).transpose(1, 2) for w in w_qkv)
        if flash:
            o = again(F.scaled_dot_product_attention, q, k, v)
        else:
            q, k, v = (y.reshape(b * n_h, s, d) for y in (q, k, v))
            weights = drop(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1))
            o = torch.bmm(weights, v).reshape(b, n_h, s, d)
        y = x + drop(F.linear(o.transpose(1, 2).reshape(b, s, h), w_o))
        if feed:
            a = F.layer_norm(y, (h,), *gains[2:])
            y = y + drop(F.linear(F.gelu(F.linear(a, w_up)), w_down))
        return y

    total = saving.bytes_of(run)
    statistics = sum(
        size
        for size, kind, elements in saving.storages.values()
        if elements == b * s and kind.is_floating_point
    )
    return total, statistics


def float32_layer(at):
    total, statistics = weighed(at, torch.float32)
    assert statistics == 2 * 2 * at["b"] * at["s"] * 4  # of two norms, which the formula leaves out
    return total - statistics


def flash_attention_bytes(at):
    return weighed(at, torch.bfloat16, flash=True, feed=False, norms=False)[0]


def saved_by_rerunning_flash(at):
    options = {"flash": True, "feed": False, "norms": False}
    return weighed(at, torch.bfloat16, **options)[0] - weighed(at, torch.bfloat16, **options, again=rerun)[0]


RUNS = {
    "causal-whole": lambda at: attention(at, window=at["s"]),
    "causal-half": lambda at: attention(at, window=at["s"]),
    "window-ignored": lambda at: attention(at, window=at["w"]),
    "window-half": lambda at: attention(at, window=at["w"]),
    "embedding-as-product": head,
    "positions-and-norms-in-N": network,
    "one-of-two-products": attention,
    "grouped-projections": projections,
    "grouped-scores": lambda at: attention(at, backward=False),
    "head-width": attention,
    "gated-two-matrices": gated_block,
    "gated-coefficient": lambda at: network(at, gated=True, again="layers"),
    "head-without-recomputation": network,
    "selective-recomputation": lambda at: network(at, again="attention"),
    "frozen-matrices": frozen,
    "flash-backward": flash_backward,
    "all-experts": lambda at: gated_block(at, experts=at["n_a"]),
    "fused-attention-unseen": lambda at: attention(at, backward=False),
    "bytes-counted-twice": float32_layer,
    "flash-without-statistics": flash_attention_bytes,
    "selective-with-flash": saved_by_rerunning_flash,
}
# Formulas that are for h = n_h·d, n_kv = n_h, and f = 4h.
PLAIN = (
    "positions-and-norms-in-N",
    "gated-coefficient",
    "head-without-recomputation",
    "selective-recomputation",
    "bytes-counted-twice",
    "flash-without-statistics",
    "selective-with-flash",
)


def lengths(seed, *, plain=False):
    """Draw lengths; with ``plain``, of a network of 2019."""
    rng = np.random.default_rng(seed)

    def draw(low, high):
        return int(rng.integers(low, high))

    at = {"b": draw(2, 4), "s": draw(6, 12), "n_kv": draw(2, 4), "d": draw(3, 8), "L": draw(2, 4)}
    at |= {"n_h": at["n_kv"] * draw(2, 4), "V": draw(20, 40), "f": draw(10, 30)}
    at |= {"h": at["n_h"] * at["d"] + draw(1, 5), "w": draw(2, at["s"]), "n_a": draw(2, 4)}
    at |= {"n_e": at["n_a"] + draw(2, 5)}
    if plain:
        h = at["n_h"] * at["d"]
        at |= {"h": h, "f": 4 * h, "n_kv": at["n_h"]}
    return at


def test_each_mistake_has_a_derivation():
    assert [mistake.name for mistake in MISTAKES] == [*RUNS]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_right_number_is_what_ran_and_the_usual_one_is_not(mistake, seed):
    at = lengths(seed, plain=mistake.name in PLAIN)
    usual, right = mistake.at(**at)
    assert right == RUNS[mistake.name](at)
    assert usual != right
    assert mistake.says.endswith(".") and mistake.truth.endswith(".") and mistake.citation


@pytest.mark.parametrize(
    "mistake", [m for m in MISTAKES if m.name.startswith("window")], ids=lambda m: m.name
)
def test_a_window_has_no_more_keys_than_the_sequence(mistake):
    at = lengths(5)
    with pytest.raises(ValueError, match=f"w: expected at most s = {at['s']}; got {at['s'] + 1}"):
        mistake.at(**at | {"w": at["s"] + 1})
    assert mistake.at(**at | {"w": at["s"]}).right == MISTAKES[0].at(**at).right
    s, w = sympy.symbols("s w", positive=True, integer=True)
    assert mistake.at(**at | {"s": s, "w": w}).right.subs({s: at["s"], w: at["w"]}) == mistake.at(**at).right
    with pytest.raises(ValueError, match="w: expected at most s = s; got 2"):
        mistake.at(**at | {"s": s, "w": 2 * s})


def test_windows_concern_formulas_with_a_window_only():
    at = lengths(5) | {"w": 1000}
    assert MISTAKES[0].name == "causal-whole" and MISTAKES[0].at(**at)


def test_a_counter_of_operators_misses_fused_attention_on_a_cpu():
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if fused in flop_counter().flop_registry:
        pytest.skip("this PyTorch counts fused attention on a CPU")
    at = lengths(3, plain=True)
    q, k, v = (torch.randn(at["b"], at["n_h"], at["s"], at["d"]) for _ in range(3))
    seen = counted(lambda: F.scaled_dot_product_attention(q, k, v), backward=False)
    assert seen == MISTAKES[[*RUNS].index("fused-attention-unseen")].at(**at).usual == 0


def test_pytorchs_checkpoint_stops_before_the_second_product():
    # It stops as soon as it has what the backward needs, which the second product is not:
    # 14bs²h per layer, where the paper's scheme has 16.
    at = lengths(5, plain=True)
    b, s, n_h, d = at["b"], at["s"], at["n_h"], at["d"]
    q, k, v = qkv(at)
    with flop_counter().FlopCounterMode(display=False) as counter:
        y = rerun(attend, q, k, v)
        y.backward(torch.empty_like(y))
    assert counter.get_total_flops() == 14 * b * s**2 * n_h * d
    assert counted(lambda: rerun(attend, q, k, v)) == 16 * b * s**2 * n_h * d


# The published formulas.


def test_formulas_are_sound():
    assert len({formula.name for formula in FORMULAS}) == len(FORMULAS)
    for formula in FORMULAS:
        assert formula.symbolic().free_symbols
        assert formula.says.endswith(".") and formula.citation
        assert formula.counts in ("forward", "backward", "step", "")
        assert (formula.counts == "") == (formula.unit in ("bytes", "parameters"))
        assert formula.per in ("token", "sequence", "layer", "step")
        assert formula.attention in ("whole", "half", "none")
        assert formula.embedding in ("no", "as a product", "in N")
        assert formula.recomputed in ("nothing", "layers", "attention")


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
def test_integers_and_symbols_agree(formula):
    rng = np.random.default_rng(len(formula.name))
    at = {letter: int(rng.integers(10**6, 10**7)) for letter in LETTERS}
    number = formula.at(**at)
    x = sympy.Symbol("x")
    turned = formula.at(**{letter: length * x for letter, length in at.items()})
    assert number == turned.subs(x, 1)
    # Exact beyond 2**53, where floating-point numbers skip integers.
    assert isinstance(number, (int, Fraction))


def test_value_rejects():
    with pytest.raises(TypeError, match=r"6\*N: expected N by name; got none"):
        named("6n").at(b=3)
    with pytest.raises(TypeError, match="q: expected letters of LETTERS"):
        value("2*m", m=3, q=5)
    with pytest.raises(ValueError, match=r"2\*q: expected letters of LETTERS; got q"):
        symbolic("2*q")
    with pytest.raises(LookupError, match="chinchilla: expected one of kaplan-parameters"):
        named("chinchilla")
    assert value("s/3", s=7) == Fraction(7, 3)
    assert value("s/3", s=9) == 3 and isinstance(value("s/3", s=9), int)


def test_totals_of_papers_are_the_sums_of_their_rows():
    total = {formula.name: formula.symbolic() for formula in FORMULAS}
    N, L, b, s, h, V, f = (symbolic(letter) for letter in ("N", "L", "b", "s", "h", "V", "f"))

    def same(a, b):
        return sympy.expand(a - b) == 0

    kaplan = sum(total[f"kaplan-{row}"] for row in ("qkv", "mask", "project", "feed-forward"))
    assert same(kaplan, total["kaplan-forward"].subs(N, total["kaplan-parameters"]))

    rows = ("qkv", "scores", "softmax", "reduction", "project", "dense")
    layer = sum(total[f"hoffmann-{row}"] for row in rows)
    hoffmann = total["hoffmann-embeddings"] + L * layer + total["hoffmann-logits"]
    assert same(hoffmann, total["hoffmann-forward"])

    layer, ends = total["narayanan-layer"], 2 * b * s * h * V
    assert same(total["narayanan"], 4 * L * layer + 3 * ends)
    assert same(total["korthikanti-model"], 3 * L * layer + 3 * ends)
    assert same(total["korthikanti-hardware"] - total["korthikanti-model"], 12 * b * s**2 * h * L)
    assert same(total["korthikanti-hardware-corrected"] - total["korthikanti-model"], 4 * b * s**2 * h * L)

    parts = sum(total[f"korthikanti-{part}-bytes"] for part in ("attention", "mlp", "norm"))
    assert same(parts, total["korthikanti-layer-bytes"])
    # Megatron-LM's code has the paper's 34sbh for f = 4h.
    code = total["megatron-activation-bytes"].subs(f, 4 * h)
    assert same(sympy.expand(code).coeff(L), total["korthikanti-selective-bytes"])
    assert same(sympy.expand(total["megatron-activation-bytes"]).coeff(V), 4 * b * s)
    assert same(total["scaling-book-vocab"], 2 * total["scaling-book-unembed"])
    assert same(total["flash-forward"] + total["flash-backward"], total["flash-step"])


def matrices(at, *, gated=False):
    """Return the number of the elements of all matrices, the shared table among them."""
    width = (2 * at["n_h"] + 2 * at["n_kv"]) * at["d"] + (3 if gated else 2) * at["f"]
    return at["L"] * at["h"] * width + at["V"] * at["h"]


@pytest.mark.parametrize("seed", range(3))
def test_formulas_against_what_ran(seed):
    at = lengths(seed)
    rows = at["b"] * at["s"]
    grouped = {**at, "N": matrices(at)}
    ran = network(at)
    assert rows * named("torchtitan").at(**grouped) == ran
    assert rows * named("palm").at(**grouped) == ran  # if N has matrices only
    half = attention(at) // 2
    assert named("megatron-plain").at(**at) == ran - half
    assert named("megatron-gated").at(**at) == network(at, gated=True) - half
    assert named("scaling-book-mlp").at(**at) * at["L"] == gated_block(at)
    assert named("scaling-book-unembed").at(**at) == head(at)
    assert named("flash-forward").at(**at) * at["L"] == attention(at, backward=False)
    assert named("flash-backward").at(**at) * at["L"] == flash_backward(at)

    at = lengths(seed, plain=True)
    at |= {"N": matrices(at)}
    rows, ran = at["b"] * at["s"], network(at)
    assert rows * named("torchtitan-2024").at(**at) == rows * named("nanogpt-mfu").at(**at) == ran
    assert at["b"] * named("nanogpt-step").at(**at) == named("llm-foundry").at(**at) == ran
    assert at["b"] * named("nanogpt-forward").at(**at) == network(at, backward=False)
    assert named("korthikanti-model").at(**at) == ran
    assert named("narayanan").at(**at) == network(at, again="layers")
    assert named("korthikanti-hardware-corrected").at(**at) == network(at, again="attention")
    assert named("korthikanti-hardware").at(**at) > network(at, again="attention")
    attended = named("scaling-book-attention").at(**at) * at["L"]
    assert attended == projections(at) + attention(at)
    # Chinchilla's forward has a product for the lookup, and softmax.
    more = 2 * at["V"] * at["h"] + 3 * at["L"] * at["n_h"] * at["s"]
    assert named("hoffmann-forward").at(**at) == named("nanogpt-forward").at(**at) + more * at["s"]
    # 6N alone leaves attention out; 8N has each layer's forward, and the head's, twice.
    assert rows * named("6n").at(**at) == ran - attention(at)
    assert rows * named("scaling-book-remat").at(N=matrices(at) - at["V"] * at["h"]) == (
        network(at, again="layers") - head(at) - 4 * attention(at) // 3
    )


@pytest.mark.parametrize("seed", range(3))
def test_activation_bytes_are_what_autograd_saves_in_half_precision(seed):
    at = lengths(seed, plain=True)
    total, statistics = weighed(at, torch.bfloat16)
    # The formula leaves the norms' statistics out.
    assert total - statistics == named("korthikanti-layer-bytes").at(**at)
    assert statistics > 0
    total, _ = weighed(at, torch.bfloat16, feed=False, norms=False)
    assert total == named("korthikanti-attention-bytes").at(**at)


def test_formulas_of_one_term():
    at = {**lengths(7), "m": 5, "n": 7, "p": 3, "F": 11, "N": 13}
    rows = at["b"] * at["s"]
    assert named("deepspeed-linear").at(**at) == counted(lambda: leaf(5, 7) @ leaf(7, 3), backward=False)
    assert rows * named("kaplan-de-embed").at(**at) == head(at) // 3
    for name in ("hoffmann-backward", "deepspeed-backward", "calflops-backward"):
        assert named(name).at(**at) == 2 * 11
    assert named("6n-all").at(**at) == named("6n").at(**at)
    assert 2 * named("flash-forward-causal").at(**at) == named("flash-forward").at(**at)
    # Weights of two bytes; a gradient, a master weight, and two moments of four.
    assert named("megatron-state-bytes").at(**at) == (2 + 4 + 4 + 4 + 4) * 13
    layer = named("korthikanti-selective-bytes").at(**at) * at["L"]
    ends = 2 * rows * (at["V"] + at["h"]) + rows * at["h"] + 8 * rows
    assert named("megatron-activation-bytes-plain").at(**at) == (layer + ends) * Fraction(21, 20)
    stored = leaf(at["b"], at["s"], at["h"], dtype=torch.float16).untyped_storage().nbytes()
    assert named("korthikanti-full-bytes").at(**at) == stored
    # As the tool counts them: so many per element.
    elements = {"deepspeed-layer-norm": (5, at["h"]), "deepspeed-gelu": (1, at["f"])}
    assert all(named(name).at(**at) == each * rows * width for name, (each, width) in elements.items())
    assert named("kaplan-embed").at(**at) == 4 * at["h"]


def test_figures_that_the_scaling_book_prints():
    at = {"b": 1, "s": 4 * 10**6, "L": 64, "h": 8192}  # 4M tokens
    assert round(named("scaling-book-activation-bytes").at(**at) / 10**12) == 84
    assert round(named("korthikanti-full-bytes").at(**at) * 64 / 10**12, 1) == 4.2


def test_figures_that_nanogpt_prints():
    at = {"L": 12, "n_h": 12, "h": 768, "d": 64, "s": 1024, "V": 50257}
    N = 124337664
    assert 12 * at["L"] * at["h"] ** 2 + at["h"] * (at["V"] + at["s"] + 2 * at["L"] + 1) == N
    assert named("nanogpt-forward").at(**at) == 291648307200
    assert named("nanogpt-step").at(**at) == 874944921600
    assert at["s"] * named("palm").at(**at, N=N) == 879894724608
    printed = next(m for m in MISTAKES if m.name == "positions-and-norms-in-N").at(b=1, **at)
    assert printed == (879894724608, 874944921600)


def test_the_data_does_not_need_sympy():
    code = "import sys, backpass.cost.mistakes; assert 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_files_rows_have_the_columns_that_their_block_leaves_to_them():
    contents = {"columns": {"x": ("name", "says", "usual", "right", "truth", "citation")}}
    block = {
        "says": "s",
        "truth": "t",
        "citation": "c",
        "rows": (("a", "b*s", "b", {"unit": "bytes"}), ("d", "b", "s")),
    }
    of_bytes, of_flops = records(Mistake, contents | {"x": (block,)}, "x")
    assert of_bytes == Mistake("a", "s", "t", "c", "b*s", "b", "bytes")
    assert of_flops == Mistake("d", "s", "t", "c", "b", "s")
    for row in (("a", "b"), ("a", "b", "s", "b")):
        with pytest.raises(ValueError, match=r"expected name, usual, right"):
            records(Mistake, contents | {"x": (block | {"rows": (row,)},)}, "x")


@pytest.mark.parametrize(
    ("formula", "fault"),
    {
        "2*b*x": "expected letters of LETTERS; got x",
        "2*b*": "expected arithmetic",
        "max(b, s)": "expected letters of LETTERS; got max",
        "b if s else h": "expected arithmetic; got IfExp",
    }.items(),
)
def test_a_files_formulas_are_arithmetic_of_known_letters(formula, fault):
    contents = {"columns": {"x": ("name", "usual")}, "x": ({"rows": (("a", formula),)},)}
    with pytest.raises(ValueError, match=re.escape(f"{formula}: {fault}")):
        records(dict, contents, "x")
