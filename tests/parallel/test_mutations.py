"""Any single change of a scheme changes a loss, a gradient, or a norm, or stops a rank.

The changed scheme runs on threads, and is compared with one process.
"""

import ctypes
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from backpass.ops import attention
from backpass.parallel import (
    head_exchange,
    on_threads,
    pieces,
    pipeline,
    ring_attention,
    sharded,
    vocabulary,
    zero,
)
from backpass.parallel import network as networks
from backpass.parallel import tensor as tensors
from backpass.parallel.pipeline import Pipeline
from backpass.parallel.schedules import one_f_one_b, zero_bubble
from backpass.parallel.sharded import Sharded
from backpass.verify.mutation import mutants

from . import test_network, test_pipeline, test_sharded
from .test_network import ranks_of, worst

TOLERANCE = 1e-10
RNG = np.random.default_rng(7)
Q, K, V = (RNG.normal(size=shape) for shape in ((2, 4, 8, 3), (2, 2, 8, 3), (2, 2, 8, 5)))
DY = RNG.normal(size=(2, 4, 8, 5))


def late(number, frame):
    """End the run and its ranks, one of which may compute without end."""
    for thread in threading.enumerate():
        if thread.name.endswith("(run)"):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
    raise TimeoutError


@pytest.fixture(autouse=True)
def deadline():
    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.signal(signal.SIGALRM, before)


HANGS = 600  # seconds


@contextmanager
def limited(seconds):
    """Call ``late`` if the body takes more than the given seconds of CPU time, or waits without end."""
    end, hangs, done = time.process_time() + seconds, time.monotonic() + HANGS, threading.Event()

    def watch():
        while not done.wait(0.05):
            if time.process_time() > end or time.monotonic() > hangs:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


def expected(tests, name, known={}):  # noqa: B006
    """What one process computes, once for each network of a module of tests."""
    if (tests, name) not in known:
        known[tests, name] = tests.on_one(name)
    return known[tests, name]


def on_a_mesh(name, wanted=None, **sizes):
    found = on_threads(test_network.on_mesh, ranks_of(sizes), name, sizes, {"wanted": wanted})
    right = expected(test_network, name) if wanted is None else test_network.on_one(name, wanted=wanted)
    return [worst(each, right) for each in found]


def in_a_pipeline(name, schedule, **sizes):
    ranks = len(schedule.ranks) * ranks_of(sizes)
    found = on_threads(test_pipeline.in_pipeline, ranks, name, schedule, sizes)
    right = expected(test_pipeline, name)
    faults = [worst(each, right) for each, _, _ in found]
    for rank, (_, alone, held) in enumerate(found):
        faults += [abs(alone - right[0]), abs(held - schedule.in_flight(rank * len(schedule.ranks) // ranks))]
    return faults


def on_shards(name, **sizes):
    found = on_threads(test_sharded.by_pieces, ranks_of(sizes), name, sizes)
    right = expected(test_pipeline, name)
    return [worst(each, right) for each, _ in found] + [abs(alone - right[0]) for _, alone in found]


def of_attention(scheme, ranks, causal, **options):
    """Compare a scheme of attention with ``attention`` on the whole sequence."""
    y, saved = attention.forward(Q, K, V, causal=causal)
    right = (y, *attention.backward(DY, saved)[:3])

    def held(rank):
        if scheme is ring_attention:
            return ring_attention.positions(rank, ranks, 8 // ranks, zigzag=options.get("zigzag", False))
        return range(rank * 8 // ranks, (rank + 1) * 8 // ranks)

    def of_rank(group):
        at = list(held(group.rank))
        y, saved = scheme.forward(group, Q[:, :, at], K[:, :, at], V[:, :, at], causal=causal, **options)
        return y, *scheme.backward(group, DY[:, :, at], saved)

    return [
        np.max(np.abs(found - exact[:, :, list(held(rank))]))
        for rank, parts in enumerate(on_threads(of_rank, ranks))
        for found, exact in zip(parts, right, strict=True)
    ]


RINGS = [
    partial(of_attention, ring_attention, 2, True, zigzag=True),
    partial(of_attention, ring_attention, 4, True),
    partial(of_attention, ring_attention, 4, False),
    partial(of_attention, ring_attention, 2, False, zigzag=True),
]
EXCHANGES = [partial(of_attention, head_exchange, 2, causal) for causal in (True, False)]
TENSOR = [
    partial(on_a_mesh, "gpt2", tensor=2),
    partial(on_a_mesh, "qwen2", tensor=2, sequence=True),
    partial(on_a_mesh, "qwen3", tensor=3),
    partial(on_a_mesh, "gpt2", tensor=2, sequence=True),
    partial(on_a_mesh, "gpt2, untied", ["wte.weight"], tensor=2),
]
DATA = [partial(on_a_mesh, "llama", data=3), partial(on_a_mesh, "gpt2", data=2, context=2)]
PIPELINES = [
    partial(in_a_pipeline, "gpt2", one_f_one_b(3, 4)),
    partial(in_a_pipeline, "qwen3", zero_bubble(2, 3)),
    partial(in_a_pipeline, "gpt2, untied", one_f_one_b(2, 2, chunks=2), tensor=2),
    partial(in_a_pipeline, "llama", zero_bubble(2, 3), data=2),
]
SHARDED = [partial(on_shards, "gpt2", data=2), partial(on_shards, "qwen3", data=2, tensor=2)]

CHANGED = [
    (ring_attention, "backward", RINGS),
    (head_exchange, "backward", EXCHANGES),
    *((tensors.Whole, name, TENSOR) for name in ("enter", "leave", "of_rows")),
    *((tensors.Parts, name, TENSOR) for name in ("enter", "leave", "of_rows")),
    (tensors.Block, "backward", TENSOR),
    (tensors.Norm, "backward", TENSOR),
    *((vocabulary.Table, name, TENSOR) for name in ("backward", "backward_onto", "_own")),
    (vocabulary.Head, "backward", TENSOR),
    (networks.Positions, "backward", [*DATA, *TENSOR]),
    *((networks.Network, name, [*DATA, *TENSOR]) for name in ("backward", "partial", "summed", "norms")),
    *((zero, name, SHARDED) for name in ("gathered", "reduced", "norms")),
    (Sharded, "gradients", SHARDED),
    (pieces.Piece, "backward", [*PIPELINES, *SHARDED]),
    (pieces, "add", [*PIPELINES, *SHARDED]),
    *((Pipeline, name, PIPELINES) for name in ("gradients", "norms", "_run")),
    (pipeline._Step, "_backward", PIPELINES),
]
# Other names under which a function is called.
ALSO = {
    (vocabulary.Head, "backward"): [(vocabulary.Head, "backward_once")],
    (pieces, "add"): [(pipeline, "add"), (sharded, "add")],
}


def seconds(run):
    """Return the CPU time of the unchanged scheme, which is right."""
    began = time.process_time()
    assert max(run()) < TOLERANCE
    return time.process_time() - began


LONGER = 20  # a change may take so many times the CPU time of the unchanged scheme, or of a tenth of a second


def is_noticed(runs, longest):
    """Whether a number differs, a rank raises, or the ranks compute for too long. ``longest`` has the CPU seconds of
    the unchanged scheme, for each run."""
    for at, run in enumerate(runs):
        try:
            with limited(LONGER * max(longest[at], 0.1)):
                if not max(run()) < TOLERANCE:
                    return True
        except Exception:
            return True
    return False


def survivors_of(owner, name, runs, longest, monkeypatch, tried):
    module = sys.modules[getattr(owner, "__module__", owner.__name__)]
    survivors = set()
    for mutant in tried:
        scope = dict(vars(module))
        with monkeypatch.context() as patched:
            try:
                exec(compile(mutant.tree, f"<{module.__name__}>", "exec"), scope)
            except SyntaxError:  # a starred expression by itself
                continue
            for place in [(owner, name), *ALSO.get((owner, name), [])]:
                patched.setattr(*place, scope[name])
            if not is_noticed(runs, longest):
                survivors.add(shown(mutant))
    return survivors


OTHERS = "Others have tests of their own."
AS_MANY = "There are as many gradients as names."
ANY_SHAPE = "What is added to it has the right shape."
SAME_ROWS = "These have as many columns, and the same dtype."
NO_COUNT = "A rank that counts no target has gradients of 0, whatever their scale."
# Changes that compute the same: the statement's beginning, a part of the change, and why.
EQUIVALENT = {
    "ring_attention.backward": [
        ("tiling = ", "", "Any tiling gives the same gradients."),
        ("dq = [xp.zeros_like", "", ANY_SHAPE),
        ("dq[i], dk[j], dv[j] = ", "strict=True", AS_MANY),
        ("dq[i], dk[j], dv[j] = ", "zip(parts, (dq", "A sum has no order."),
        ("gradients = (xp.concat(dk", "-2 → 2", "There are four axes."),
        ("return (as_type_of(", "-2 → 2", "There are four axes."),
        ("gradients = tuple(", "", "The shifts are the same."),
        ("sums = ", "(..., 0) → (..., -1)", "This axis has one element."),
        ("sums = ", "2 * [part", "The first of them are read."),
    ],
    "Block.backward": [
        ("d = dict(zip", "strict=True", AS_MANY),
        ("return tuple(", "", "The result is unpacked."),
    ],
    "Norm.backward": [("return (dx", "", "All runs that reach a norm want its weights.")],
    "Head.backward": [
        ("return (None, None)", "", "Nobody reads a gradient that is not wanted."),
        ("wanted = ", "", "The models pass no other choice; twice the same names are the same choice."),
        ("dx, dw, _ = linear.backward", "", "The forward has saved for this choice only."),
        ("return (dx if dx is None", "dx if dx is None", "Nobody reads a gradient that is not wanted."),
        ("return (dx if dx is None", "dx is None → ", "All runs that reach it want it."),
    ],
    "Positions.backward": [
        ("table = ", "dy.dtype", SAME_ROWS),
        ("table = ", "dy.shape", SAME_ROWS),
        ("table = ", "dtype=dy.dtype", "NumPy's default is float64."),
        ("table = ", "device", "NumPy has one device."),
        ("return (dx, None)", "(dx, None) → (dy, None)", "A sum passes the gradient on."),
        ("return (dx, None)", "return (dx, dx)", "Nobody reads a gradient that is not wanted."),
        ("return (dx, self.stream", "(dy, self.stream", "A sum passes the gradient on."),
    ],
    "Network.partial": [
        ("return ", "share or ", NO_COUNT),
        ("check_loss_scale(", "", OTHERS),
    ],
    "Network.summed": [("return ", "asarray(total, copy=True)", OTHERS), ("return ", "copy=False", OTHERS)],
    "zero.gathered": [
        ("raise ", "", OTHERS),
        ("if tuple(x.shape)", "", "A shape is a tuple in NumPy."),
        ("flat = ", "-1 → -2", "NumPy takes any negative length."),
    ],
    "zero.norms": [
        ("raise ", "", OTHERS),
        ("if not all(", "", OTHERS),
        ("own = dict.fromkeys(parts, math.nan)", "", OTHERS),
        ("own = {name: own[name]", "-0.0", "A norm of −0 is 0."),
        ("if counted is not None", "", OTHERS),
        ("every = ", "every = -", "The sign is lost in the square."),
        ("every = ", "→ group.all_gather", "NumPy stays NumPy."),
        ("found = ", "enumerate(", "The names are the same, in the same order."),
    ],
    "Network.norms": [("check_arrays(", "", OTHERS)],
    "Pipeline.norms": [("self._check_own(", "", OTHERS)],
    "Sharded.gradients": [
        ("self._check(", "", OTHERS),
        ("check_loss_scale(", "", OTHERS),
        ("dy = backward(head", "share or ", NO_COUNT),
        ("dy = backward(head", "full_like(", "Loss and share are scalars too."),
        ("inputs = []", "2 * []", "Twice nothing is nothing."),
    ],
    "Piece.backward": [
        ("found = dict(zip", "strict=True", AS_MANY),
        ("found = {} if wanted == 'I'", "", "A gradient more is computed, and not read."),
        ("names = ", "", "A gradient more is computed, and not read."),
    ],
    "Pipeline.gradients": [
        ("check_loss_scale(", "", OTHERS),
        ("if self.config.tied", "self.ends.size > 1", "A sum over one rank changes nothing."),
        ("if self.config.tied", "table in partial", "A rank that has no table is alone in its group."),
    ],
    "Pipeline._run": [
        ("self._check_own(", "", OTHERS),
        ("if senders and", "", "An exchange more, of zeros that nobody takes."),
    ],
    "_Step._backward": [
        ("if kind != 'W' and last", "", "W takes the gradients that I has kept."),
        ("kept = []", "2 * []", "Twice nothing is nothing."),
        ("last = ", "", "The truth of it stays."),
        ("self.saved[j, k] = ", "-1 → 1", "The order in which W runs is free."),
        ("self.saved[j, k] = ", "(j, k) → (j, last)", "The runs with W have two stages, 0 and 1."),
        ("share = ", "self.scale or 0.0", "With W or B there is a scale."),
    ],
}


def shown(mutant):
    return f"{mutant.line}: {mutant.change}"


def excused(place, survivors):
    """The entries of ``EQUIVALENT`` that match each survivor."""
    entries = EQUIVALENT.get(place, [])
    return {s: [e for e in entries if s.startswith(e[0]) and e[1] in s] for s in survivors}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("owner", "name", "runs"),
    CHANGED,
    ids=[f"{owner.__name__.rpartition('.')[2]}.{n}" for owner, n, _ in CHANGED],
)
def test_every_change_of_a_scheme_is_noticed(owner, name, runs, monkeypatch, proof):
    longest = [seconds(run) for run in runs]
    place = f"{owner.__name__.rpartition('.')[2]}.{name}"
    made = list(mutants(getattr(owner, name)))
    entries = excused(place, [shown(mutant) for mutant in made])
    assert {*EQUIVALENT.get(place, [])} == {entry for found in entries.values() for entry in found}
    tried = proof.part(f"parallel.{place}", made, of=[getattr(owner, name), owner])
    if not proof.whole:
        tried = [mutant for mutant in tried if not entries[shown(mutant)]]
    found = excused(place, survivors_of(owner, name, runs, longest, monkeypatch, tried))
    assert [survivor for survivor, reasons in found.items() if not reasons] == []
    if proof.whole:
        assert {*EQUIVALENT.get(place, [])} == {entry for reasons in found.values() for entry in reasons}
