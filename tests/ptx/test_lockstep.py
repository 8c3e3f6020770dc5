"""Blocks that execute together give what blocks give that execute one after another: bytes, faults, and counts."""

import random

import numpy as np

from backpass import ptx
from backpass.ptx import lockstep
from tests.ptx.test_faults import HEAD, TAIL

BLOCKS, THREADS = 5, 64
N = BLOCKS * THREADS


def executed(program, monkeypatch, *, together, known=True, only=None, approximate=None):
    """The bytes and the masks of x and y, the fault, and how many instructions were executed."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(N).astype(np.float32), np.zeros(N, np.float32)
    masks = [True, np.zeros(4 * N, bool)]
    if not known:
        masks[0] = np.repeat(rng.random(N) < 0.7, 4)
    arguments = {
        name: ptx.Tensor(array.view(np.uint8), defined=mask)
        for name, array, mask in zip("xy", (x, y), masks, strict=True)
    }
    alone, found = [], None
    with monkeypatch.context() as patch:
        run = lockstep.run

        def noted(*args, **settings):
            try:
                if together:
                    return run(*args, **settings)
            except lockstep.Alone as reason:
                alone.append(str(reason))
            raise lockstep.Alone

        patch.setattr(lockstep, "run", noted)
        try:
            settings = {"blocks": BLOCKS, "shared": 1024, "only": only, "approximate": approximate}
            report = ptx.run(program, {**arguments, "n": N - 9}, **settings)
            found = report.instructions, [str(fault) for fault in report.unsettled]
        except ptx.Fault as fault:
            found = type(fault), str(fault)
    kept = [x.tobytes(), y.tobytes(), *(np.asarray(mask).tobytes() for mask in masks)]
    return [*kept, found], alone


INTEGERS = ["add.s32", "sub.s32", "mul.lo.s32", "xor.b32", "and.b32", "min.s32", "max.u32"]
FLOATS = ["add.f32", "mul.rn.f32", "max.f32", "sub.ftz.f32", "div.full.f32"]
REGISTERS = [f"%r{i}" for i in range(10, 18)]  # two of which are uninitialised at first


def statements(rng, depth=0):
    """Draw statements of a program."""
    any_register = lambda: rng.choice(REGISTERS)  # noqa: E731
    for _ in range(rng.randint(3, 9)):
        a, b, c, d = (any_register() for _ in range(4))
        guard = rng.choice(["", "", "@%p3 ", "@!%p3 "])
        kind = rng.randrange(15 if depth else 18)
        if kind < 3:
            yield f"{guard}{rng.choice(INTEGERS)} {a}, {b}, {c};"
        elif kind < 5:
            yield f"{guard}{rng.choice(FLOATS)} {a}, {b}, {c};"
        elif kind == 5:
            yield f"{guard}fma.rn.f32 {a}, {b}, {c}, {d};"
        elif kind == 6:
            yield f"setp.lt.s32 %p3, {a}, {b};"
        elif kind == 7:
            yield f"selp.b32 {a}, {b}, {c}, %p3; bfe.u32 {d}, {a}, 3, 7;"
        elif kind == 8:
            yield f"{guard}ld.global.b32 {a}, [%rd4];"
        elif kind == 9:
            yield f"{guard}st.global.b32 [%rd5], {a}; {guard}ld.global.b32 {b}, [%rd5];"
        elif kind == 10:
            yield f"{guard}st.shared.b32 [%r4], {a};"
        elif kind == 11:
            yield f"{guard}ld.shared.b32 {a}, [%r4];"
        elif kind == 12:
            yield f"bar.sync 0; st.shared.b32 [%r4], {a}; bar.sync 0; ld.shared.b32 {b}, [%r5]; bar.sync 0;"
        elif kind == 13:
            yield f"shfl.sync.bfly.b32 {a}, {b}, {rng.choice([1, 2, 16])}, 31, -1;"
        elif kind == 14:
            yield f"ex2.approx.f32 {a}, {b}; cvt.rni.s32.f32 {c}, {a}; mov.b32 {d}, {rng.randint(-3, 99)};"
        else:
            yield from branch(rng, f"{depth}_{rng.randrange(10**9)}")


def branch(rng, name):
    """Draw a loop or a condition: for each block, or for each thread."""
    inner = " ".join(statements(rng, depth=1))
    of = rng.choice(["%r2", "%r2", "%r1"])
    if "sync" in inner:
        of = "%r2"  # all threads of a block meet at barriers
    if rng.random() < 0.5:
        yield f"and.b32 %r6, {of}, 3; setp.lt.u32 %p4, %r6, 2; @%p4 bra $skip{name}; {inner} $skip{name}:"
    else:
        yield f"and.b32 %r6, {of}, 3; $loop{name}: {inner}"
        yield f"sub.s32 %r6, %r6, 1; setp.gt.s32 %p4, %r6, 0; @%p4 bra $loop{name};"


def drawn(seed):
    rng = random.Random(seed)
    lines = ["mov.b32 %r5, 252; sub.s32 %r5, %r5, %r4; setp.eq.s32 %p3, %r1, 3;"]
    lines += [f"mad.lo.s32 {x}, %r3, {i + 3}, {i};" for i, x in enumerate(REGISTERS[2:])]
    lines += ["ld.global.b32 %r17, [%rd4]; ld.global.b32 %r16, [%rd4];", *statements(rng)]
    lines += ["@%p1 bra $end; $end:"]
    stored = rng.choice(REGISTERS[2:])
    return ptx.parse(
        HEAD.format(threads=THREADS) + "\n".join(lines) + f"st.global.b32 [%rd5], {stored};" + TAIL
    )


def test_random_programs_give_the_same_bytes_faults_and_counts(monkeypatch):
    alone = []
    for seed in range(150):
        program, known = drawn(seed), seed % 3 > 0
        first, fallen = executed(program, monkeypatch, together=True, known=known)
        second, _ = executed(program, monkeypatch, together=False, known=known)
        assert first == second, seed
        alone.append(fallen)
        if isinstance(second[-1][0], int) and not second[-1][1] and known:
            assert not fallen, seed  # nothing is wrong, so nothing needs a judgement
    assert 30 < sum(map(bool, alone)) < 120
