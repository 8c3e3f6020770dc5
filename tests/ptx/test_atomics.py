"""Atomic instructions: what they compute, what they order, and what their order leaves open."""

import numpy as np
import pytest

from backpass import ptx
from backpass.ptx.atomics import atomic

HEAD = """
.version 8.0
.target sm_80
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(.param .u64 .ptr .global .align 1 kernel_param_0, .param .u64 .ptr .global .align 1 kernel_param_1)
.reqntid 64
{
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<30>;
    .reg .b64 %rd<30>;
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b64 %rd2, [kernel_param_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    setp.eq.s32 %p1, %r1, 0;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    .loc 1 10 0
"""
TAIL = '\n    ret;\n}\n.file 1 "kernel.py"\n'


def run(body, lock=0, *, blocks=1, x=None, only=None, defined=True):
    """Run a body on x and one word; return both and the report."""
    program = ptx.parse(HEAD + body + TAIL)
    x = np.arange(64, dtype=np.float32) if x is None else x
    word = np.array([lock, 0], np.int32 if not isinstance(lock, np.generic) else lock.dtype)
    given = {"x": ptx.Tensor(x.view(np.uint8)), "word": ptx.Tensor(word.view(np.uint8), defined=defined)}
    report = ptx.run(program, given, blocks=blocks, shared=64, only=only)
    return x, word, report


@pytest.mark.parametrize(
    ("operation", "start", "expected"),
    [
        ("add.u32", 5, 5 + 2 * sum(range(64))),
        ("max.s32", -7, 63), ("min.s32", 7, 0), ("max.u32", -7, -7),
        ("and.b32", -1, 0), ("or.b32", 64, 127), ("xor.b32", 9, 9), ("exch.b32", 1, 63),
    ],
)  # fmt: skip
def test_threads_and_blocks_apply_it_one_after_the_other(operation, start, expected):
    for name in ("atom", "red"):
        target = "%r5, " if name == "atom" else ""
        _, word, report = run(f"{name}.global.gpu.relaxed.{operation} {target}[%rd2], %r1;", start, blocks=2)
        assert word[0] == expected and not report.unsettled


def test_each_thread_gets_what_it_has_found():
    body = (
        "atom.global.gpu.relaxed.add.u32 %r5, [%rd2], 3; cvt.rn.f32.s32 %r6, %r5; st.global.b32 [%rd4], %r6;"
    )
    x, word, _ = run(body, 10)
    assert np.array_equal(x, 10 + 3 * np.arange(64)) and word[0] == 10 + 3 * 64


def test_compare_and_swap_swaps_only_what_is_equal():
    _, word, _ = run("atom.global.acq_rel.gpu.cas.b32 %r5, [%rd2], %r1, 40;", 7)
    assert word[0] == 40  # thread 7 found 7, and thread 40 found 40
    _, word, _ = run("atom.global.acq_rel.gpu.cas.b32 %r5, [%rd2], %r1, 99;", 70)
    assert word[0] == 70


def test_a_sum_in_shared_memory():
    body = """
        mov.b32 %r3, global_smem; @%p1 st.shared.b32 [%r3], 0; bar.sync 0;
        atom.shared.relaxed.cta.add.u32 %r5, [%r3], %r1; bar.sync 0;
        ld.shared.b32 %r6, [%r3]; cvt.rn.f32.s32 %r6, %r6; st.global.b32 [%rd4], %r6;"""
    x, _, _ = run(body)
    assert np.array_equal(x, np.full(64, 63 * 32))
    without = body.replace("bar.sync 0;", "", 1)
    with pytest.raises(ptx.Race, match="updates shared memory"):
        run(without)


FLOATS = "ld.global.b32 %r5, [%rd4]; red.global.gpu.relaxed.add.f32 [%rd2], %r5;"


def test_a_rounded_sum_of_more_than_two_is_unsettled():
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    _, word, report = run(FLOATS, np.float32(0), x=x)
    assert abs(word[0] - x.sum(dtype=np.float64)) < 1e-5
    (fault,) = report.unsettled
    assert (
        isinstance(fault, ptx.Order) and "depends on the order" in str(fault) and "kernel.py:10" in str(fault)
    )
    backwards, other = x[::-1].copy(), run(FLOATS, np.float32(0), x=x[::-1].copy())[1]
    assert other[0] != word[0], backwards


def test_exact_sums_and_sums_of_two_are_settled():
    assert not run(FLOATS, np.float32(0))[2].unsettled
    two = np.zeros(64, np.float32)
    two[:2] = 0.1, 0.7
    only_two = (
        "setp.lt.s32 %p2, %r1, 2; ld.global.b32 %r5, [%rd4]; @%p2 red.global.gpu.relaxed.add.f32 [%rd2], %r5;"
    )
    assert not run(only_two, np.float32(0), x=two)[2].unsettled
    assert run(only_two, np.float32(0.3), x=two)[2].unsettled


def test_a_sum_of_float32_in_global_memory_loses_subnormal_numbers():
    x = np.full(64, 1e-40, np.float32)
    assert run(FLOATS, np.float32(0), x=x)[1][0] == 0
    shared = atomic("atom.shared.add.f32").compute(x.view(np.uint32), [x.view(np.uint32)])
    assert np.array_equal(shared.view(np.float32), 2 * x)


def test_an_update_of_what_nobody_wrote_is_a_fault():
    with pytest.raises(ptx.Undefined, match="updates uninitialised bytes of word"):
        run("red.global.gpu.relaxed.add.u32 [%rd2], 1;", defined=False)


def test_a_plain_write_beside_an_atomic_one_is_a_race():
    with pytest.raises(ptx.Race, match="writes"):
        run("red.global.gpu.relaxed.add.u32 [%rd2], 1; st.global.b32 [%rd2], %r1;")
    with pytest.raises(ptx.Race, match="updates word"):
        run("@%p1 st.global.b32 [%rd2], 7; red.global.gpu.relaxed.add.u32 [%rd2], 1;")


@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_plain_read_beside_an_atomic_update_is_a_race(space):
    word = "%rd2" if space == "global" else "%r3"
    start = "mov.b32 %r3, global_smem; @%p1 st.shared.b32 [%r3], 0; bar.sync 0;"
    update = f"red.{space}.relaxed.add.u32 [{word}], 1;"
    unused = f"ld.{space}.b32 %r5, [{word}];"
    read = unused + "setp.eq.s32 %p3, %r5, 0; @%p3 st.global.b32 [%rd4], %r1;"
    run(start + update + "bar.sync 0;" + read + "bar.sync 0;" + update)
    run(start + update + unused + update)
    with pytest.raises(ptx.Race, match=r"reads .* which another thread updates, without a barrier"):
        run(start + update + read)
    with pytest.raises(ptx.Race, match=r"updates .* which another thread reads, without a barrier"):
        run(start + read + update)


def test_a_plain_read_beside_another_block_s_update_depends_on_the_order():
    update, read = "@%p1 red.global.gpu.relaxed.add.u32 [%rd2], 1;", "@%p1 ld.global.b32 %r5, [%rd2];"
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 updates word .* which block 0 read"):
        run(update + read, blocks=2)
    one, other = "and.pred %p3, %p1, %p2; @%p3", "not.pred %p2, %p2; and.pred %p3, %p1, %p2; @%p3"
    first = "setp.eq.s32 %p2, %r2, 0;"
    for a, b, what in ((update, read, "reads word .* updated"), (read, update, "updates word .* read")):
        body = f"{first} {one} {a.removeprefix('@%p1')} {other} {b.removeprefix('@%p1')}"
        with pytest.raises(ptx.Order, match=rf"block 1, thread 0 {what}"):
            run(body, blocks=2)


def test_the_read_that_begins_an_atomic_loop_is_not_a_race():
    """The compiler makes a loop of an update that PTX lacks: it reads the word, and swaps until nobody has changed it."""
    loop = """
        ld.global.b32 %r5, [{}];
    $again:
        add.s32 %r6, %r5, 3; atom.global.acq_rel.gpu.cas.b32 %r7, [%rd2], %r5, %r6;
        setp.ne.s32 %p2, %r7, %r5; mov.b32 %r5, %r7; @%p2 bra $again;"""
    _, word, _ = run(loop.format("%rd2"), blocks=3)
    assert word[0] == 3 * 64 * 3
    with pytest.raises(ptx.Race, match=r"updates word .* which another thread reads"):
        run("mov.b64 %rd7, %rd2;" + loop.format("%rd7"))


def test_a_write_of_the_same_value_does_not_hide_what_was_read_before():
    """Block 0 reads 3 and writes 5. Block 1 writes 5, and may do so before block 0 reads."""
    body = """
        setp.eq.s32 %p2, %r2, 0; and.pred %p2, %p1, %p2;
        @%p2 ld.global.b32 %r5, [%rd2]; {} mov.b32 %r6, 5; @%p1 st.global.b32 [%rd2], %r6;"""
    for only in ([0, 1], [1, 0]):
        with pytest.raises(ptx.Order, match="word"):
            run(body.format(""), 3, blocks=2, only=only)
    _, word, _ = run(body.format(""), 5, blocks=2)  # 5 is read in any order
    assert word[0] == 5


def test_a_block_s_own_update_does_not_hide_those_of_others():
    body = """
        @%p1 red.global.gpu.relaxed.add.u32 [%rd2], 1;
        setp.eq.s32 %p2, %r2, {}; and.pred %p2, %p1, %p2; @%p2 st.global.b32 [%rd2], 7;"""
    run(body.format(5), blocks=2)
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 writes word .* which another block updated"):
        run(body.format(1), blocks=2)


# Each block adds 1 to x under a lock, which thread 0 acquires and releases.
LOCKED = """
$spin:
    bar.sync 0;
    @%p1 atom.global.{acquire}.gpu.cas.b32 %r5, [%rd2], 0, 1;
    mov.b32 %r3, global_smem;
    @%p1 st.shared.b32 [%r3], %r5;
    bar.sync 0;
    ld.shared.b32 %r6, [%r3];
    setp.eq.s32 %p2, %r6, 1;
    @%p2 bra $spin;
    .loc 1 20 0
    ld.global.b32 %r7, [%rd4]; add.f32 %r7, %r7, 0f3F800000; st.global.b32 [%rd4], %r7;
    {barrier}
    @%p1 atom.global.{release}.gpu.exch.b32 %r8, [%rd2], 0;
"""
RIGHT = {"acquire": "acq_rel", "release": "acq_rel", "barrier": "bar.sync 0;"}


@pytest.mark.parametrize("acquire", ["acquire", "acq_rel"])
@pytest.mark.parametrize("release", ["release", "acq_rel"])
def test_what_is_released_and_acquired_is_ordered(acquire, release):
    x, _, report = run(LOCKED.format(**RIGHT | {"acquire": acquire, "release": release}), blocks=4)
    assert np.array_equal(x, np.arange(64) + 4) and not report.unsettled
    run(LOCKED.format(**RIGHT), blocks=4, only=[2, 0, 3, 1])


@pytest.mark.parametrize(
    "changed",
    [
        {"barrier": ""},  # thread 0 releases the lock before the other threads have written
        {"acquire": "relaxed"},
        {"acquire": "release"},
        {"release": "relaxed"},
        {"release": "acquire"},
    ],
)
def test_what_is_not_is_a_fault(changed):
    with pytest.raises(
        ptx.Order, match=r"kernel\.py:20: block 1, thread . reads x.*nothing orders the two accesses"
    ):
        run(LOCKED.format(**RIGHT | changed), blocks=2)


def test_a_lock_that_nobody_gives_back_does_not_end():
    with pytest.raises(ptx.Barrier, match="repeats a loop in which nothing changes"):
        run(LOCKED.format(**RIGHT), 1)


FIRST = "setp.eq.s32 %p2, %r2, 0;"  # for block 0
# Block 0 writes x and raises the flag; block 1 waits for the flag and reads x.
FLAG = """
    setp.eq.s32 %p2, %r2, 0; @!%p2 bra $reader;
    {before}
    @%p1 atom.global.acq_rel.gpu.{raise_} %r8, [%rd2], {operands};
    {after}
    bra $end;
$reader:
    @%p1 atom.global.acq_rel.gpu.add.u32 %r8, [%rd2], 0;
    bar.sync 0;
    .loc 1 30 0
    ld.global.b32 %r9, [%rd4];
$end:
"""
WRITES = "st.global.b32 [%rd4], %r1; bar.sync 0;"


def test_a_release_covers_what_is_before_it():
    given = {"raise_": "exch.b32", "operands": "1"}
    run(FLAG.format(before=WRITES, after="", **given), blocks=2)
    with pytest.raises(ptx.Order, match=r"kernel\.py:30: block 1, thread 0 reads x"):
        run(FLAG.format(before="", after="@%p1 st.global.b32 [%rd4], %r1;", **given), blocks=2)
    own = FLAG.format(before="@%p1 st.global.b32 [%rd4], %r1;", after="", **given)
    run(own, blocks=2)  # without a barrier, thread 0 releases its own writes


def test_each_thread_may_release_its_own_writes():
    waits = """
        setp.eq.s32 %p2, %r2, 0; @!%p2 bra $reader;
        st.global.b32 [%rd4], %r1; atom.global.release.gpu.add.u32 %r5, [%rd2], 1; bra $end;
    $reader:
        {} atom.global.acquire.gpu.add.u32 %r5, [%rd2], 0;
        {} .loc 1 30 0
        ld.global.b32 %r9, [%rd4];
    $end:"""
    run(waits.format("@%p1", "bar.sync 0;"), blocks=2)
    run(waits.format("", ""), blocks=2)  # each thread acquires by itself
    with pytest.raises(ptx.Order, match=r"kernel\.py:30: block 1, thread 1 reads x .* which block 0 wrote"):
        run(waits.format("@%p1", ""), blocks=2)  # thread 0 acquires, and no barrier shares it
    with pytest.raises(ptx.Order, match="block 1, thread 32 reads x"):
        run(waits.format("@%p1", "bar.warp.sync -1;"), blocks=2)  # the second warp has not acquired


def test_the_last_block_may_read_what_all_have_added():
    """Thread 0 adds to a sum and raises a counter. The last block, which has seen all others, reads the sum."""
    body = """
        mov.b32 %r6, 0f3F800000; {} red.global.gpu.relaxed.add.f32 [%rd1], %r6;
        @%p1 atom.global.acq_rel.gpu.add.u32 %r5, [%rd2], 1;
        setp.eq.s32 %p2, %r5, 3; and.pred %p2, %p1, %p2; @%p2 ld.global.b32 %r7, [%rd1];"""
    x, _, report = run(body.format("@%p1"), blocks=4, x=np.zeros(64, np.float32))
    assert x[0] == 4 and not report.unsettled
    with pytest.raises(ptx.Order, match=r"block 3, thread 0 reads x .* which another block updated"):
        run(body.format(""), blocks=4, x=np.zeros(64, np.float32))  # of which thread 0 releases its own


def test_a_swap_that_fails_releases_nothing():
    given = {"before": WRITES, "after": "", "raise_": "cas.b32"}
    run(FLAG.format(operands="0, 1", **given), blocks=2)
    with pytest.raises(ptx.Order, match="block 1, thread 0 reads x"):
        run(FLAG.format(operands="7, 1", **given), blocks=2)


def test_a_block_s_own_atomics_order_no_other_block():
    lock = LOCKED.format(**RIGHT)
    run(lock, blocks=2)
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 updates word.*which block 0 updated"):
        run(lock.replace(".gpu.", ".cta."), blocks=2)
    with pytest.raises(ptx.Order, match="block 1, thread 0 reads x"):
        run(lock.replace(".gpu.exch", ".cta.exch"), blocks=2)


def test_an_atomic_instruction_does_not_hide_a_plain_write():
    """Block 0 sets the sum to 0, and other blocks may already have added to it."""
    add = "@%p1 red.global.gpu.relaxed.add.u32 [%rd2], 1;"
    run(add, blocks=2)
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 updates word.*which block 0 wrote"):
        run(f"{FIRST} and.pred %p3, %p1, %p2; @%p3 st.global.b32 [%rd2], 0; {add}", blocks=2)


# All blocks read x. The last block, which a counter identifies, sets x to 0.
LAST = """
    ld.global.b32 %r7, [%rd4];
    {barrier}
    mov.b32 %r3, global_smem;
    @%p1 atom.global.{order}.gpu.add.u32 %r5, [%rd2], 1;
    @%p1 st.shared.b32 [%r3], %r5;
    bar.sync 0;
    ld.shared.b32 %r6, [%r3]; setp.eq.s32 %p2, %r6, 3;
    @%p2 st.global.b32 [%rd4], 0;
"""


def test_the_last_of_several_readers_may_write():
    x, _, _ = run(LAST.format(order="acq_rel", barrier="bar.sync 0;"), blocks=4)
    assert not x.any()
    for changed in ({"order": "relaxed"}, {"barrier": ""}):
        with pytest.raises(ptx.Order, match=r"block 3, thread .* writes x.*, which another block read"):
            run(LAST.format(**{"order": "acq_rel", "barrier": "bar.sync 0;"} | changed), blocks=4)


def test_a_sum_that_is_exact_in_this_order_only_is_unsettled():
    x = np.zeros(64, np.float32)
    x[:3] = 2.0**30, -(2.0**30), 1
    _, word, report = run(FLOATS, np.float32(0), x=x)
    assert word[0] == 1 and "depends on the order" in str(report.unsettled[0])
    x[:3] = 2.0**20, -(2.0**20), 1
    assert not run(FLOATS, np.float32(0), x=x)[2].unsettled


def test_a_sum_in_a_fixed_order_is_settled():
    add = "@%p1 red.global.gpu.relaxed.add.f32 [%rd2], %r6;"
    body = "mov.b32 %r6, 0f3DCCCCCD;" + 4 * add
    assert not run(body, np.float32(0))[2].unsettled
    assert run(body, np.float32(0), blocks=2)[2].unsettled
    turns = "mov.b32 %r6, 0f3DCCCCCD;" + "".join(
        f"setp.eq.s32 %p3, %r1, {thread}; {add.replace('%p1', '%p3')} {{}}" for thread in range(4)
    )
    assert not run(turns.replace("{}", "bar.sync 0;"), np.float32(0))[2].unsettled
    assert run(turns.replace("{}", ""), np.float32(0))[2].unsettled


def test_a_sum_that_overflows_in_one_order_only_is_unsettled():
    body = """
        mul.wide.u32 %rd5, %r1, 8; add.s64 %rd6, %rd1, %rd5; setp.lt.u32 %p2, %r1, 3;
        @%p2 ld.global.b64 %rd7, [%rd6]; @%p2 red.global.gpu.relaxed.add.f64 [%rd2], %rd7;"""
    x = np.array([1.7e308, 1.7e308, -1.7e308])
    assert run(body, np.float64(0), x=x)[2].unsettled
    infinite = np.array([np.inf, 1.0, 2.0])
    assert not run(body, np.float64(0), x=infinite)[2].unsettled


def test_the_halves_of_a_pair_are_two_sums():
    pairs = "ld.global.b32 %r5, [%rd4]; red.global.gpu.relaxed.add.noftz.f16x2 [%rd2], %r5;"
    x = np.zeros((64, 2), np.float16)
    x[:4, 0], x[:4, 1] = 2.0**-10, 1024
    _, word, report = run(pairs, x=x.view(np.float32)[:, 0])
    assert word.view(np.float16)[:2].tolist() == [2.0**-8, 4096] and not report.unsettled
    x[4, 1] = 2.0**-10
    assert run(pairs, x=x.view(np.float32)[:, 0])[2].unsettled


def test_a_block_that_waits_for_a_later_one_raises_that_blocks_run_in_turn():
    grid_barrier = """
        @%p1 atom.global.acq_rel.gpu.add.u32 %r5, [%rd2], 1;
    $wait:
        atom.global.acq_rel.gpu.add.u32 %r5, [%rd2], 0; setp.lt.s32 %p2, %r5, {};
        @%p2 bra $wait;
    """
    run(grid_barrier.format(1), blocks=2)
    with pytest.raises(ptx.Barrier, match=r"block 0, .* repeats a loop .*one after another"):
        run(grid_barrier.format(2), blocks=2)


@pytest.mark.parametrize(
    "name", ["atom.global.inc.u32", "atom.global.add.v2.f32", "atom.global.cas.b128", "atom.add.u32"]
)
def test_others_are_rejected_by_name(name):
    with pytest.raises(ptx.Unsupported, match=name.split(".")[-1]):
        run(f"{name} %r5, [%rd2], %r1;")


# Block 1 waits until block 0 has set the flag, and then loads what block 0 has stored.
PASSED_ON = """
    setp.ne.u32 %p2, %r2, 0; @%p2 bra $second;
    @%p1 st.global.b32 [%rd1], %r5; {before} @%p1 atom.global.gpu.relaxed.exch.b32 %r6, [%rd2], 1; bra $end;
    $second: @!%p1 bra $end;
    $wait: atom.global.gpu.relaxed.or.b32 %r6, [%rd2], 0; setp.eq.u32 %p3, %r6, 0; @%p3 bra $wait;
    {after} ld.global.b32 %r7, [%rd1]; st.global.b32 [%rd1+4], %r7;
    $end:"""


@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_a_fence_makes_atomic_instructions_release_and_acquire(scope):
    fence = f"fence.acq_rel.{scope};"
    start = "mov.b32 %r5, 0f40E00000;"
    x, _, _ = run(start + PASSED_ON.format(before=fence, after=fence), blocks=2)
    assert x[1] == 7
    for before, after in ((fence, ""), ("", fence), ("", "")):
        with pytest.raises(ptx.Order):
            run(start + PASSED_ON.format(before=before, after=after), blocks=2)
