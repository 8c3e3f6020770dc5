"""Blocks that execute together give what blocks give that execute one after another: bytes, faults, and counts."""

import random

import numpy as np
import pytest

from backpass import ptx
from backpass.ptx import bundles, lockstep
from tests.ptx.test_faults import HEAD, TAIL

BLOCKS, THREADS = 5, 64
N = BLOCKS * THREADS


def aligned():
    """N zeros at an address that is the same in every run, up to whole pages."""
    memory = np.zeros(4 * N + 8192, np.uint8)
    start = -memory.__array_interface__["data"][0] % 4096
    return memory[start : start + 4 * N].view(np.float32)


def executed(program, monkeypatch, *, together, known=True, only=None, approximate=None):
    """The bytes and the masks of x and y, what was moved, the fault, and how many instructions were executed."""
    rng = np.random.default_rng(0)
    x, y = aligned(), aligned()
    x[:] = rng.standard_normal(N)
    masks = [True, np.zeros(4 * N, bool)]
    if not known:
        masks[0] = np.repeat(rng.random(N) < 0.7, 4)
    arguments = {
        name: ptx.Tensor(array.view(np.uint8), defined=mask)
        for name, array, mask in zip("xy", (x, y), masks, strict=True)
    }
    alone, found, moved = [], None, ()
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
            settings = {
                "blocks": BLOCKS,
                "shared": 1024,
                "only": only,
                "approximate": approximate,
                "count": True,
            }
            report = ptx.run(program, {**arguments, "n": N - 9}, **settings)
            moved = report.moved
            found = report.instructions, [str(fault) for fault in report.unsettled]
        except ptx.Fault as fault:
            found = type(fault), str(fault)
    kept = [x.tobytes(), y.tobytes(), *(np.asarray(mask).tobytes() for mask in masks)]
    return [*kept, sorted(moved), found], alone


INTEGERS = ["add.s32", "sub.s32", "mul.lo.s32", "xor.b32", "and.b32", "min.s32", "max.u32"]
FLOATS = ["add.f32", "mul.rn.f32", "max.f32", "sub.ftz.f32", "div.full.f32"]
REGISTERS = [f"%r{i}" for i in range(10, 18)]  # two of which are uninitialised at first


def statements(rng, depth=0):
    """Draw statements of a program."""
    any_register = lambda: rng.choice(REGISTERS)  # noqa: E731
    for _ in range(rng.randint(3, 9)):
        a, b, c, d = (any_register() for _ in range(4))
        guard = rng.choice(["", "", "@%p3 ", "@!%p3 "])
        kind = rng.randrange(20 if depth else 23)
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
        elif kind == 15:  # two threads have one place
            yield f"mov.b32 %r18, {rng.randrange(3)}; st.shared.b32 [%r19+512], {rng.choice(['%r18', '%r18', a])};"
        elif kind == 16:
            yield f"{rng.choice(['', 'bar.sync 0;'])} ld.shared.b32 {a}, [%r19+512]; {rng.choice(['', 'bar.sync 0;'])}"
        elif kind == 17:  # copies in flight
            yield f"cp.async.ca.shared.global [%r4+768], [%rd4], 4; {rng.choice(['', 'cp.async.commit_group;'])}"
            yield f"{rng.choice(['cp.async.wait_all;'] * 3 + ['cp.async.wait_group 1;'])} ld.shared.b32 {a}, [%r4+768];"
        elif kind == 18:
            guard = rng.choice([guard, "bar.sync 0;"])
            yield f"{guard}st.shared.v2.b32 [%r19+512], {{{a}, %r18}}; bar.sync 0; ld.shared.b32 {b}, [%r19+512];"
        elif kind == 19:  # memory of the thread
            at = rng.choice(["", "+4"])
            yield f"{guard}st.local.b32 [%rd8{at}], {a}; {guard}st.local.v2.b32 [%rd8], {{{b}, {c}}};"
            yield f"st.local.b32 [%rd8+12], {c}; ld.local.b32 {d}, [%rd8{rng.choice(['', '+4', '+8', '+12'])}];"
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
    lines = ["mov.b32 %r5, 252; sub.s32 %r5, %r5, %r4; and.b32 %r19, %r4, 504; setp.eq.s32 %p3, %r1, 3;"]
    lines += [f"mad.lo.s32 {x}, %r3, {i + 3}, {i};" for i, x in enumerate(REGISTERS[2:])]
    lines += [".local .align 16 .b8 __local_depot0[16]; mov.b64 %rd8, __local_depot0;"]
    lines += ["ld.global.b32 %r17, [%rd4]; ld.global.b32 %r16, [%rd4];", *statements(rng)]
    lines += ["@%p1 bra $end; $end:"]
    stored = rng.choice(REGISTERS[2:])
    return ptx.parse(
        HEAD.format(threads=THREADS) + "\n".join(lines) + f"st.global.b32 [%rd5], {stored};" + TAIL
    )


def both(program, monkeypatch, **settings):
    """What the program does, and why its blocks were not executed together."""
    first, alone = executed(program, monkeypatch, together=True, **settings)
    second, _ = executed(program, monkeypatch, together=False, **settings)
    assert first == second
    return second[-1], alone


def of(body):
    return ptx.parse(HEAD.format(threads=THREADS) + body + TAIL)


def test_random_programs_give_the_same_bytes_faults_and_counts(monkeypatch):
    right, conflicts, together = 0, 0, 0
    for seed in range(150):
        known = seed % 3 > 0
        (count, unsettled), alone = both(drawn(seed), monkeypatch, known=known)
        if isinstance(count, int) and not unsettled and known:
            right += 1
            together += not alone  # unless a value that races is not used
        conflicts += bool(unsettled) and not alone
    assert right > 30 and conflicts > 3
    assert together > 0.9 * right


def test_blocks_are_chosen_and_units_are_approximate_as_alone(monkeypatch):
    program = of("ld.global.b32 %r5, [%rd4]; ex2.approx.f32 %r6, %r5; st.global.b32 [%rd5], %r6;")
    for settings in ({"only": [3, 1]}, {"approximate": 7}, {"known": False}):
        _, alone = both(program, monkeypatch, **settings)
        assert bool(alone) == ("known" in settings)
    _, (why,) = both(program, monkeypatch, only=[3, 3])
    assert why == "a block is listed twice"


@pytest.mark.parametrize(
    "fault, body",
    [
        # Two threads write one number; one of them reads it before the barrier.
        (
            ptx.Race,
            """and.b32 %r5, %r4, 504; mov.b32 %r6, 2; st.shared.b32 [%r5], %r6; ld.shared.b32 %r6, [%r5];
            st.global.b32 [%rd5], %r6;""",
        ),
        # Two instructions write numbers that differ in their last bits to one place.
        (
            ptx.Race,
            """and.b32 %r5, %r4, 504; and.b32 %r6, %r1, 1; add.s32 %r6, %r6, 1065353216; add.s32 %r7, %r6, 1;
            st.shared.b32 [%r5], %r6; st.shared.b32 [%r5], %r7; st.global.b32 [%rd5], %r1;""",
        ),
        (
            ptx.TooEarly,
            """cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.ca.shared.global [%r4], [%rd4], 4;
            cp.async.wait_all;""",
        ),
        (ptx.Order, "ld.global.b32 %r5, [%rd1+1020]; st.global.b32 [%rd4], %r1;"),
        (ptx.OutOfBounds, "st.global.b32 [%rd5], %r1; ld.global.b32 %r5, [%rd4+4];"),
        (ptx.Misaligned, "st.global.b32 [%rd5], %r1; add.s64 %rd4, %rd4, -2; ld.global.b32 %r5, [%rd4];"),
        (ptx.Undefined, "st.global.b32 [%rd5], %r1; st.global.b32 [%rd5], %r7;"),
        (ptx.Barrier, "st.global.b32 [%rd5], %r1; setp.eq.s32 %p2, %r1, 3; @!%p2 bar.sync 0;"),
    ],
)
def test_a_fault_after_stores_is_that_of_one_block_after_another(monkeypatch, fault, body):
    (kind, _), (why,) = both(of(body), monkeypatch)
    assert kind is fault
    assert why == lockstep.UNSURE


def test_a_store_to_the_same_place_by_the_same_thread_is_not_a_race(monkeypatch):
    body = "st.shared.b32 [%r4], %r1; st.shared.b32 [%r4], %r3; ld.shared.b32 %r5, [%r4]; st.global.b32 [%rd5], %r1;"
    _, alone = both(of(body + "st.global.b32 [%rd5], %r5; st.global.b32 [%rd5], %r1;"), monkeypatch)
    assert not alone


# The threads of each pair multiply one number of x by a constant, and subtract the rounded product and the exact one from
# each other: the two differences are the rounding error and its negation, or 0 in float64.
ROUNDED = """and.b64 %rd7, %rd3, -8; add.s64 %rd7, %rd1, %rd7; ld.global.b32 %r10, [%rd7]; bar.sync 0;
    mul.rn.f32 %r11, %r10, 0f3DCCCCCD; neg.f32 %r12, %r11; neg.f32 %r14, %r10; and.b32 %r13, %r1, 1; setp.eq.s32 %p2, %r13, 0;
    @%p2 fma.rn.f32 %r15, %r10, 0f3DCCCCCD, %r12; @!%p2 fma.rn.f32 %r15, %r14, 0f3DCCCCCD, %r11;"""
PAIRED = "and.b32 %r5, %r4, 504; .loc 1 {line} 0\n st.shared.b32 [%r5{at}], %r15; bar.sync 0; ld.shared.b32 %r6, [%r5{at}];"


def test_numbers_that_differ_by_rounding_alone_are_judged_together(monkeypatch):
    """In block 2, some numbers of the second store differ in float64 too. Each block overwrites the x that it has read."""
    other = "setp.eq.s32 %p2, %r2, 2; setp.gt.f32 %p3, %r10, 0f3F800000; and.pred %p2, %p2, %p3;"
    other += "cvt.rn.f32.s32 %r7, %r1; @%p2 mov.b32 %r15, %r7;"
    stores = PAIRED.format(line=11, at="") + other + PAIRED.format(line=12, at="+512")
    program = of(ROUNDED + stores + "mov.b32 %r7, 0; st.global.b32 [%rd4], %r7; st.global.b32 [%rd5], %r6;")
    monkeypatch.setattr(lockstep, "THREADS", 2 * THREADS)
    (_, unsettled), alone = both(program, monkeypatch)
    assert not alone
    by_rounding = ["by rounding alone" in fault for fault in unsettled]
    assert [fault[10:13] for fault in unsettled] == ["11:", "12:"] * BLOCKS
    assert by_rounding == [number != 5 for number in range(2 * BLOCKS)]


def test_the_last_of_a_threads_stores_of_several_widths_remains(monkeypatch):
    for space, at in (("shared", "%r5"), ("local", "%rd8")):
        body = f"""shl.b32 %r5, %r1, 3; .local .align 16 .b8 __local_depot0[16]; mov.b64 %rd8, __local_depot0;
            st.{space}.b32 [{at}], %r1; st.{space}.v2.b32 [{at}], {{%r2, %r2}}; @%p1 st.{space}.b32 [{at}], %r3;
            st.{space}.b32 [{at}], %r4; ld.{space}.b32 %r6, [{at}]; st.global.b32 [%rd5], %r6;"""
        _, alone = both(of(body), monkeypatch)
        assert not alone


@pytest.mark.parametrize(
    "fault, at", [(ptx.OutOfBounds, "%rd8+16"), (ptx.Misaligned, "%rd8+2"), (ptx.Undefined, "%rd8+8")]
)
def test_a_fault_in_local_memory_is_that_of_one_block_after_another(monkeypatch, fault, at):
    body = f"""st.local.b32 [%rd8], %r1; ld.local.b32 %r5, [%rd8]; st.global.b32 [%rd5], %r5;
        ld.local.b32 %r5, [{at}]; @%p1 st.global.b32 [%rd5], %r5;"""
    declared = ".local .align 16 .b8 __local_depot0[16]; mov.b64 %rd8, __local_depot0;"
    (kind, _), (why,) = both(of(declared + body), monkeypatch)
    assert kind is fault and why == lockstep.UNSURE


ATOMICS = ["add.f32", "add.f32", "add.f32", "add.u32", "max.s32", "xor.b32", "exch.b32", "add.noftz.bf16x2"]
PLACES = ["[%rd1]", "[%rd1+8]", "[%rd4]", "[%rd7]", "[%rd7]"]  # one, the thread's, or those of each block


def updating(rng, own, depth=0):
    """Draw statements with atomic instructions whose results are not used. As long as there are some, each has one
    of its ``own`` places."""
    for _ in range(rng.randint(3, 7)):
        a, b = (rng.choice(REGISTERS[2:]) for _ in "ab")
        guard = rng.choice(["", "", "@%p3 ", "@!%p3 ", "@%p1 "])
        kind = rng.randrange(7 if depth else 9)
        if kind < 3:
            order = rng.choice(["relaxed", "acq_rel", "release", "acquire"])
            name, of = rng.choice([("red", ""), ("atom", "%r20, ")]), rng.choice(ATOMICS)
            if name[0] == "red" and order in ("acquire", "acq_rel"):
                order = "relaxed"
            yield f"{guard}{name[0]}.global.gpu.{order}.{of} {name[1]}{own.pop() if own else rng.choice(PLACES)}, {a};"
        elif kind == 3:
            yield f"mul.rn.f32 {a}, {b}, 0f3DCCCCCD; add.f32 {b}, {b}, {a};"
        elif kind == 4:
            yield f"setp.lt.s32 %p3, {a}, {b};"
        elif kind == 5:
            yield "bar.sync 0;" if not depth else f"add.f32 {a}, {a}, {b};"
        elif kind == 6:
            yield f"st.shared.b32 [%r4], {a}; ld.shared.b32 {b}, [%r4];"
        else:
            name, inner = rng.randrange(10**9), " ".join(updating(rng, own, depth=1))
            of = rng.choice(["%r2", "%r1"])
            yield f"and.b32 %r6, {of}, 3; $loop{name}: {inner}"
            yield f"sub.s32 %r6, %r6, 1; setp.gt.s32 %p4, %r6, 0; @%p4 bra $loop{name};"


def test_random_atomic_instructions_give_the_same_bytes_faults_and_counts(monkeypatch):
    together, open_ = 0, 0
    for seed in range(80):
        rng = random.Random(seed)
        lines = ["add.s64 %rd7, %rd1, %rd6; setp.eq.s32 %p3, %r1, 3;"]
        lines += [
            f"mad.lo.s32 {x}, %r3, {i + 3}, {i}; cvt.rn.f32.s32 {x}, {x};" for i, x in enumerate(REGISTERS)
        ]
        own = [f"[%rd7+{256 * i}]" for i in range(5 * (seed % 2))]
        lines += [*updating(rng, own), "@%p1 st.global.b32 [%rd5], %r10;"]
        only = [4, 0, 3] if seed % 4 == 0 else None
        program = of("\n".join(lines))
        monkeypatch.setattr(lockstep, "THREADS", THREADS * rng.choice([1, 2, 8]))
        (count, unsettled), alone = both(program, monkeypatch, only=only)
        assert isinstance(count, int)
        together += not alone
        open_ += bool(unsettled)
    assert together == 80 and open_ > 20


def test_an_atomic_instruction_whose_result_is_used_is_left_to_one_block_after_another(monkeypatch):
    body = "{0} %r5, [%rd1], %r1; st.global.b32 [%rd5], {1};"
    _, alone = both(of(body.format("atom.global.gpu.relaxed.add.u32", "%r1")), monkeypatch)
    assert not alone
    _, (why,) = both(of(body.format("atom.global.gpu.relaxed.add.u32", "%r5")), monkeypatch)
    assert why == "the instruction atom.global.gpu.relaxed.add.u32"


@pytest.mark.parametrize(
    ("fault", "body"),
    [
        (ptx.Order, "red.global.gpu.relaxed.add.u32 [%rd1], %r1; ld.global.b32 %r5, [%rd1+4]; ld.global.b32 %r6, [%rd1];"),
        (ptx.Order, "@%p1 red.global.gpu.relaxed.add.u32 [%rd1], %r1; @!%p1 st.global.b32 [%rd1], %r1;"),
        (ptx.OutOfBounds, "red.global.gpu.relaxed.add.u32 [%rd4+8], %r1;"),
        (ptx.Misaligned, "red.global.gpu.relaxed.add.u32 [%rd1+2], %r1;"),
        (ptx.Undefined, "red.global.gpu.relaxed.add.u32 [%rd2], %r1;"),
        (ptx.Undefined, "red.global.gpu.relaxed.add.u32 [%rd1], %r29;"),
    ],
)  # fmt: skip
def test_a_fault_of_an_atomic_instruction_is_that_of_one_block_after_another(monkeypatch, fault, body):
    (kind, _), (why,) = both(of(body + "st.global.b32 [%rd5], %r1;"), monkeypatch)
    assert kind is fault and why == lockstep.UNSURE


def test_a_program_that_failed_twice_is_not_tried_again(monkeypatch):
    program = of("ld.global.b32 %r5, [%rd4+4]; st.global.b32 [%rd5], %r5;")
    waves = []
    run = lockstep.Wave.run
    monkeypatch.setattr(lockstep.Wave, "run", lambda *args: waves.append(1) or run(*args))
    for _ in range(4):
        executed(program, monkeypatch, together=True)
    assert len(waves) == 2


def test_equal_instructions_form_a_bundle():
    body = "".join(f"mov.b32 %r{i}, {i};" for i in range(10, 18))
    for k in range(6):  # products in chains: one of each chain at a time
        body += "".join(f"fma.rn.f32 %r{i}, %r{i}, %r{3 + k}, %r1;" for i in range(10, 18))
    segment = bundles.plan_of(of(body)).segments[0]
    sizes = [x.size for x in segment.bundles if x.instruction.name == "fma.rn.f32"]
    assert sizes == [8] * 6
    assert [x.size for part in segment.bundles for x in part.divided(3) if x.size > 3] == []


def test_stores_stay_behind_loads_and_barriers():
    body = """ld.shared.b32 %r5, [%r4]; st.shared.b32 [%r4], %r1; ld.shared.b32 %r6, [%r4]; bar.sync 0;
        st.shared.b32 [%r4], %r2; ld.global.b32 %r7, [%rd4]; st.shared.b32 [%r4+4], %r7; bar.sync 0;
        ld.shared.b32 %r8, [%r4];"""
    names = [x.instruction.name for x in bundles.plan_of(of(body)).segments[0].bundles]
    shared = [name for name in names if "shared" in name or "bar" in name]
    load, store = "ld.shared.b32", "st.shared.b32"
    assert shared == [load, store, load, "bar.sync", store, "bar.sync", load]


def test_many_blocks_execute_in_several_waves(monkeypatch):
    program = of("ld.global.b32 %r5, [%rd4]; add.s32 %r5, %r5, %r2; st.global.b32 [%rd5], %r5;")
    monkeypatch.setattr(lockstep, "THREADS", 2 * THREADS)
    _, alone = both(program, monkeypatch)
    assert not alone
    said = []
    x = ptx.Tensor(np.zeros(8 * N, np.uint8))
    ptx.run(program, {"x": x, "y": x._replace(offset=4 * N)}, blocks=BLOCKS, watch=said.append)
    assert said[0].startswith("blocks 1 to 2 of 5, ")
    assert said[-1].startswith("blocks 5 to 5 of 5, ")


def test_a_wave_sees_what_another_wave_has_written(monkeypatch):
    monkeypatch.setattr(lockstep, "THREADS", THREADS)
    body = "mov.b32 %r5, 1; ld.global.b32 %r6, [%rd4]; st.global.b32 [%rd1+1276], %r5; st.global.b32 [%rd5], %r6;"
    (kind, _), _ = both(of(body), monkeypatch)
    assert kind is ptx.Order


SUMS = """atom.global.gpu.acq_rel.add.f32 %r20, [%rd7], %r10; {0} atom.global.gpu.acq_rel.add.f32 %r20, [%rd7+512], %r10;
    st.global.b32 [%rd5], %r10;"""


@pytest.mark.parametrize("between", ["", "bar.sync 0;", "{0} bar.sync 0; {0}"])
def test_what_blocks_acquire_orders_the_same_sums(monkeypatch, between):
    """If each address has one instruction, nothing is acquired before it. Otherwise, a sum may be ordered."""
    again = "atom.global.gpu.acq_rel.add.f32 %r20, [%rd7], %r10;"
    lines = "add.s64 %rd7, %rd1, %rd6; cvt.rn.f32.s32 %r10, %r3; mul.rn.f32 %r10, %r10, 0f3DCCCCCD;"
    (_, unsettled), alone = both(of(lines + SUMS.format(between.format(again))), monkeypatch)
    assert unsettled and not alone
