"""A kernel's faults are reported with the line and the thread, and correct kernels raise no fault."""

import numpy as np
import pytest

from backpass import ptx
from backpass.ptx import block

HEAD = """
.version 8.0
.target sm_80
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0,
    .param .u64 .ptr .global .align 1 kernel_param_1,
    .param .u32 kernel_param_2
)
.reqntid {threads}
{{
    .reg .pred %p<9>;
    .reg .b32 %r<30>;
    .reg .b64 %rd<30>;
    .loc 1 1 0
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b64 %rd2, [kernel_param_1];
    ld.param.b32 %r9, [kernel_param_2];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.s32 %r3, %r2, {threads}, %r1;
    mul.wide.u32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    mul.wide.u32 %rd6, %r1, 4;
    shl.b32 %r4, %r1, 2;
    setp.lt.s32 %p1, %r3, %r9;
    .loc 1 10 0
"""
TAIL = '\n    ret;\n}\n.file 1 "kernel.py"\n'


def run(body, n=64, *, threads=64, blocks=1, shared=1024, defined=True):
    """Run a body on x of n numbers; return y of as many, which are NaN where they are not written, and the report."""
    program = ptx.parse(HEAD.format(threads=threads) + body + TAIL)
    x = np.arange(n, dtype=np.float32)
    y = np.full(n, np.nan, np.float32)
    arguments = {
        "x": ptx.Tensor(x.view(np.uint8), defined=defined),
        "y": ptx.Tensor(y.view(np.uint8)),
        "n": n,
    }
    report = ptx.run(program, arguments, blocks=blocks, shared=shared)
    return y, report


LOAD, STORE = "ld.global.b32 %r5, [%rd4];\n", "st.global.b32 [%rd5], %r5;\n"
# Each thread stores its number in shared memory and loads the number of the next thread.
NEIGHBOUR = """
    add.s32 %r6, %r1, 1; and.b32 %r6, %r6, 63; shl.b32 %r7, %r6, 2;
    st.shared.b32 [%r4], %r5;
    {barrier}
    .loc 1 12 0
    ld.shared.b32 %r5, [%r7];
"""


# Whether each thread stores its number depends on the number in %r5.
USE = "setp.eq.s32 %p8, %r5, 0; add.s64 %rd9, %rd2, %rd6; @%p8 st.global.b32 [%rd9], %r1;"


def test_a_copy_and_its_mask():
    np.testing.assert_array_equal(run(LOAD + STORE)[0], np.arange(64))
    masked = LOAD.replace("ld", "@%p1 ld") + STORE.replace("st", "@%p1 st")
    np.testing.assert_array_equal(run(masked, 50)[0], np.arange(50))
    np.testing.assert_array_equal(run(masked, 100, blocks=2)[0], np.arange(100))


def test_accesses_out_of_bounds():
    with pytest.raises(
        ptx.OutOfBounds, match=r"kernel.py:10: block 0, thread 50 reads 4 bytes at x \+ 200; x has 200 b"
    ):
        run(LOAD + STORE, 50)
    with pytest.raises(ptx.OutOfBounds, match=r"thread 50 writes 4 bytes at y \+ 200"):
        run("mov.b32 %r5, 1;\n" + STORE, 50)
    with pytest.raises(ptx.OutOfBounds, match=r"beyond all tensors; data_ptr\(\) is the address"):
        run("mov.b64 %rd4, 0x7F0000000000;\n" + LOAD)
    with pytest.raises(ptx.OutOfBounds, match="before all tensors"):
        run("mov.b64 %rd4, 16;\n" + LOAD)
    with pytest.raises(
        ptx.OutOfBounds, match=r"thread 60 writes 4 bytes at shared memory \+ 240; shared memory has 240"
    ):
        run("mov.b32 %r5, 1; st.shared.b32 [%r4], %r5;", shared=240)


def test_an_offset_that_wraps():
    """An offset that overflows 32 bits is negative: the address here is 2³¹ − 4 bytes before the tensor."""
    wraps = "mov.b32 %r6, 0x80000004; cvt.s64.s32 %rd7, %r6; add.s64 %rd4, %rd1, %rd7;\n" + LOAD
    with pytest.raises(ptx.OutOfBounds, match=r"reads 4 bytes at x - 2147483644; x has 256 bytes"):
        run(wraps)


def test_accesses_that_are_not_aligned():
    with pytest.raises(ptx.Misaligned, match="thread 0 accesses 16 bytes of global memory"):
        run("add.s64 %rd4, %rd4, 4; ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%rd4];")


def test_a_missing_barrier():
    right = LOAD + NEIGHBOUR.format(barrier="bar.sync 0;") + STORE
    np.testing.assert_array_equal(run(right)[0], np.roll(np.arange(64), -1))
    with pytest.raises(
        ptx.Race,
        match=r"kernel.py:12: block 0, thread \d+ reads shared memory .* which thread \d+ writes",
    ):
        run(LOAD + NEIGHBOUR.format(barrier="") + STORE)
    overwrites = right + "st.shared.b32 [%r4], %r5;"
    with pytest.raises(ptx.Race, match=r"writes to shared memory .* which thread \d+ reads"):
        run(overwrites)
    run(right + "bar.sync 0; st.shared.b32 [%r4], %r5;")


def test_a_barrier_of_a_warp_is_enough_within_it():
    within = """
        xor.b32 %r6, %r1, 1; shl.b32 %r7, %r6, 2;
        st.shared.b32 [%r4], %r5; {} ld.shared.b32 %r5, [%r7];
    """
    run(LOAD + within.format("bar.warp.sync -1;") + STORE)
    with pytest.raises(ptx.Race):
        run(LOAD + within.format("") + STORE)
    with pytest.raises(ptx.Race):  # thread 63's neighbour is in another warp
        run(LOAD + NEIGHBOUR.format(barrier="bar.warp.sync -1;") + STORE)


@pytest.mark.parametrize(
    ("exchange", "partner", "race"),
    [
        ("shfl.sync.bfly.b32 %r5, %r5, 1, 31, -1;", 1, False),
        ("vote.sync.any.pred %p2, %p2, -1;", 1, False),
        ("", 1, True),
        ("shfl.sync.bfly.b32 %r5, %r5, 1, 31, -1;", 32, True),  # of another warp
    ],
)
def test_a_write_after_an_exchange_does_not_race_with_what_its_warp_has_read(exchange, partner, race):
    """As when the pairs of an array are exchanged in place."""
    turned = f"""
        st.shared.b32 [%r4], %r1; bar.sync 0; ld.shared.b32 %r5, [%r4]; setp.eq.s32 %p2, %r5, 3; {exchange}
        xor.b32 %r6, %r1, {partner}; shl.b32 %r7, %r6, 2; st.shared.b32 [%r7], %r1;
    """
    if race:
        with pytest.raises(ptx.Race, match=r"writes to shared memory .* which .* reads"):
            run(turned + STORE)
        return
    turns = exchange.startswith("shfl")
    np.testing.assert_array_equal(run(turned + STORE)[0].view(np.uint32), np.arange(64) ^ turns)
    with pytest.raises(ptx.Race, match="reads shared memory"):  # for a later read it is not a barrier
        run(turned + exchange + "ld.shared.b32 %r5, [%r4];" + STORE)


def test_a_race_names_the_lines_of_both_accesses():
    stored = ".loc 1 11 0\n st.shared.b32 [%r4], %r5;"
    loaded = "{} .loc 1 12 0\n xor.b32 %r7, %r4, 252; ld.shared.b32 %r5, [%r7];\n.loc 1 13 0\n" + STORE
    with pytest.raises(ptx.Race, match=r"^kernel\.py:12: .*; the other access is at kernel\.py:11$"):
        run(LOAD + stored + loaded.format(""))
    assert not run(LOAD + stored + loaded.format("bar.sync 0;"))[1].unsettled
    one = ".loc 1 14 0\n setp.gt.u32 %p2, %r1, 31; @%p2 bra $L; st.shared.b32 [0], %r1; $L: st.shared.b32 [0], %r1;"
    with pytest.raises(ptx.Race, match="the other access is on the same line"):
        run(one)


def test_one_place_written_by_all():
    same = "mov.b32 %r5, 7; mov.b32 %r6, 0; st.shared.b32 [%r6], %r5; bar.sync 0; ld.shared.b32 %r5, [%r6];"
    y, report = run(same + STORE)
    assert not report.unsettled and (y.view(np.int32) == 7).all()
    _, report = run(same.replace("7", "%tid.x") + STORE)
    assert "another thread writes a different value" in str(report.unsettled[0])


def test_numbers_that_differ_in_float64_too_are_not_taken_for_rounded_ones():
    step = "fma.rn.f32 %r5, %r5, 0f358637BD, 0f3F800000;\n"  # 1 + x / 1,000,000
    _, report = run(LOAD + step + "st.global.b32 [%rd2], %r5;\n")
    (fault,) = report.unsettled
    assert type(fault) is ptx.Race and "rounding" not in str(fault)


def test_copies_of_a_sum_that_differ_in_their_last_bits():
    either = (
        "and.b32 %r5, %tid.x, 1; add.s32 %r5, %r5, {}; mov.b32 %r6, 0; st.shared.b32 [%r6], %r5; bar.sync 0;"
    )
    found = {}
    for name, bits in {"the next float32": 0x3F800000, "an integer": 5, "not a number": 0x7FC00000}.items():
        _, report = run(either.format(bits) + LOAD + STORE)
        found[name] = report.unsettled[0]
    assert {name: type(fault) for name, fault in found.items()} == {
        "the next float32": ptx.LastBits,
        "an integer": ptx.Race,
        "not a number": ptx.Race,
    }
    assert "at most 1 unit in the last place of a float32, 1e-07 of its value" in str(
        found["the next float32"]
    )
    assert "enable_fp_fusion=False" in str(found["the next float32"])
    assert "float32" not in str(found["an integer"]) + str(found["not a number"])


@pytest.mark.parametrize(
    "inlined",
    [
        ".loc 2 263 15 // standard.py:263:15 @[ standard.py:293:36 @[ kernel.py:7:29 ] ]",
        ".loc 2 293 12, function_name $L__info_string0, inlined_at 1 7 29 // standard.py:293:12\n"
        ".loc 2 263 12, function_name $L__info_string0, inlined_at 2 293 12 // standard.py:263:12",
    ],
    ids=["Triton 3.7", "Triton 3.8"],
)
def test_a_fault_in_an_inlined_function_names_the_line_of_its_caller(inlined):
    files = '.file 2 "/site/triton/language/standard.py"\n'
    program = ptx.parse(HEAD.format(threads=64) + f"{inlined}\n{STORE}.loc 2 293 12\n{STORE}" + TAIL + files)
    places = [
        each.place and (each.place.file, each.place.line) for each in program.code if "st" in each.parts
    ]
    assert places == [("kernel.py", 7), ("standard.py", 293)]


def test_values_that_nobody_wrote():
    with pytest.raises(ptx.Undefined, match="thread 0 stores an uninitialised value"):
        run("ld.shared.b32 %r5, [%r4];" + STORE)
    with pytest.raises(ptx.Undefined, match="thread 0 stores an uninitialised value"):
        run(STORE)
    with pytest.raises(ptx.Undefined, match=r"uses an uninitialised predicate \(%p2\)"):
        run("@%p2 bra $L; $L:")
    loaded = (
        r"stores an uninitialised value; bytes of x that nothing has written were loaded at kernel\.py:10"
    )
    with pytest.raises(ptx.Undefined, match=loaded):
        run(LOAD + STORE, defined=False)
    # selp does not use the operand that it does not select.
    masked = "@%p1 ld.global.b32 %r5, [%rd4]; selp.b32 %r5, %r5, 0, %p1;"
    run(masked + STORE.replace("st", "@%p1 st"), 50)


def test_a_barrier_that_some_do_not_reach():
    with pytest.raises(ptx.Barrier, match="waits for thread 32, which does not arrive"):
        run("setp.lt.s32 %p2, %r1, 32; @!%p2 bra $END; bar.sync 0; $END: bar.warp.sync -1; bar.sync 0;")
    with pytest.raises(ptx.Barrier, match="is at a barrier that thread 32 does not reach"):
        run("setp.lt.s32 %p2, %r1, 32; @%p2 bar.sync 0;")
    with pytest.raises(ptx.Barrier):
        run("setp.lt.s32 %p2, %r1, 5; @!%p2 bra $END; shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1; $END:")
    # Each branch has its own barrier, and the threads at each barrier wait for the other threads.
    apart = "setp.lt.s32 %p2, %r1, 32; @%p2 bra $A; bar.sync 0; bra $END; $A: bar.sync 0; $END:"
    with pytest.raises(ptx.Barrier):
        run(apart)


def test_threads_that_part_and_meet_again(monkeypatch):
    loop = """
        mov.b32 %r5, 0; mov.b32 %r6, 0;
        $TOP: setp.ge.s32 %p2, %r6, %r1; @%p2 bra $DONE;
        add.s32 %r5, %r5, %r6; add.s32 %r6, %r6, 1; bra.uni $TOP;
        $DONE: shfl.sync.bfly.b32 %r5, %r5, 0, 31, -1;
    """
    y, _ = run(loop + STORE)
    np.testing.assert_array_equal(y.view(np.int32), [t * (t - 1) // 2 for t in range(64)])
    monkeypatch.setattr(block, "LIMIT", 1000)
    with pytest.raises(ptx.Barrier, match="does not end within 1,000 instructions"):
        run("mov.b32 %r5, 0; $TOP: add.s32 %r5, %r5, 1; bra $TOP;")


@pytest.mark.parametrize(
    "loop",
    [
        "$TOP: bra $TOP;",
        "mov.b32 %r6, 9; $TOP: mov.b32 %r5, 0; $IN: add.s32 %r5, %r5, 1; setp.lt.s32 %p2, %r5, %r6; @%p2 bra $IN; bra $TOP;",
        "mov.b32 %r5, 7; $TOP: st.shared.b32 [%r4], %r5; st.global.b32 [%rd5], %r5; bar.sync 0; bra $TOP;",
        "$TOP: ld.volatile.global.b32 %r5, [%rd1]; setp.eq.s32 %p2, %r5, 0; @%p2 bra $TOP;",
    ],
)
def test_a_loop_in_which_nothing_changes_does_not_end(loop):
    with pytest.raises(ptx.Barrier, match=r"block 0, thread . repeats a loop in which nothing changes"):
        run(loop)


def test_a_loop_in_which_something_changes_may_end():
    """Its registers are the same at each branch, and a counter in memory is not."""
    count = "add.s32 %r6, %r6, 1; st.{0} [{1}], %r6; setp.lt.s32 %p2, %r6, 20; mov.b32 %r6, 0; @%p2 bra $TOP;"
    for space, place in (("shared.b32", "%r4"), ("global.b32", "%rd5")):
        start = f"mov.b32 %r6, 0; mov.pred %p2, %p1; st.{space} [{place}], %r6;"
        run(start + f"$TOP: ld.{space} %r6, [{place}];" + count.format(space, place))


def test_asynchronous_copies():
    copy = "cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.commit_group; {} ld.shared.b32 %r5, [{}];"
    y, _ = run(copy.format("cp.async.wait_group 0;", "%r4") + STORE)
    np.testing.assert_array_equal(y, np.arange(64))
    with pytest.raises(ptx.TooEarly, match="before waiting for the copy that writes there"):
        run(copy.format("", "%r4") + STORE)
    for left in (1, 2, 3):  # this group may still be in flight
        with pytest.raises(ptx.TooEarly):
            run(copy.format(f"cp.async.wait_group {left};", "%r4") + STORE)
    other = "xor.b32 %r6, %r1, 40; shl.b32 %r7, %r6, 2;"
    with pytest.raises(ptx.Race):  # each thread waits for its own copies only
        run(other + copy.format("cp.async.wait_group 0;", "%r7") + STORE)
    y, _ = run(other + copy.format("cp.async.wait_group 0; bar.sync 0;", "%r7") + STORE)
    np.testing.assert_array_equal(y, np.arange(64) ^ 40)
    ignored = "mov.b32 %r8, 0; cp.async.ca.shared.global [%r4], [%rd4], 4, %r8; cp.async.wait_all; ld.shared.b32 %r5, [%r4];"
    assert not run(ignored + STORE)[0].any()  # nothing is read, zeros are written
    with pytest.raises(ptx.Undefined, match="copies an uninitialised number of bytes"):
        run(ignored.replace("mov.b32 %r8, 0;", ""))
    with pytest.raises(ptx.Unsupported, match=r"cp\.async\.ca\.shared\.global with a predicate"):
        run(ignored.replace("4, %r8", "4, %p1"))


def test_an_asynchronous_copy_is_aligned_as_its_destination():
    copy = """
        shl.b32 %r6, %r1, 4; mul.wide.u32 %rd7, %r1, 16; add.s64 %rd7, %rd7, %rd1; mov.b32 %r8, {};
        setp.lt.u32 %p2, %r1, 15; @%p2 cp.async.cg.shared.global [%r6], [%rd7+{}], 16, %r8; cp.async.wait_all;
        @%p2 ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r6]; {} st.global.b32 [%rd5], %r11;"""
    y, _ = run(copy.format(8, 0, "@%p2"))
    assert y[:15].tolist() == [*range(1, 61, 4)]
    y, _ = run(copy.format(12, 0, "mov.b32 %r11, %r13; @%p2"))  # the last four of 16 bytes are zeros
    assert not y[:15].any()
    with pytest.raises(ptx.Misaligned, match="16 bytes of global memory"):
        run(copy.format(4, 4, "@%p2"))


def test_the_source_of_an_asynchronous_copy_is_not_written_before_the_wait():
    body = """
        mov.b32 %r5, 7; mov.b32 %r8, 0; setp.eq.s32 %p2, %r1, 0;
        cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r4+256], [%rd4], 4; cp.async.commit_group;
        {} st.global.b32 [%rd4], %r5;"""
    run(body.format("cp.async.wait_group 0;"))
    for wait in ("", "cp.async.wait_group 1;"):  # also by the thread that copies
        with pytest.raises(
            ptx.TooEarly, match=r"writes to x \+ 0 \(4 bytes\) before waiting for the copy that reads"
        ):
            run(body.format(wait))
    run("cp.async.ca.shared.global [%r4], [%rd4], 4; mov.b32 %r5, 7;" + STORE)


def test_an_equal_write_does_not_hide_the_one_before():
    """All threads write 7 to one address, and then the last one writes 5: another thread's 7 may come later."""
    body = "mov.b32 %r5, 7; mov.b32 %r6, 0; st.{0}.b32 [{1}], %r5; {2} mov.b32 %r5, 5; setp.eq.s32 %p2, %r1, 63; @%p2 st.{0}.b32 [{1}], %r5;"
    for place in (("shared", "%r6"), ("global", "%rd2")):
        run(body.format(*place, "bar.sync 0;"))
        with pytest.raises(ptx.Race, match=r"thread 63 writes to .* which another thread writes"):
            run(body.format(*place, ""))


def test_an_equal_write_of_another_block_does_not_hide_the_first():
    body = "mov.b32 %r5, 7; st.global.b32 [%rd2], %r5; bar.sync 0; setp.eq.s32 %p2, %r3, 64; {} @%p2 st.global.b32 [%rd2], %r5;"
    run(body.format(""), blocks=2)
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 writes y.*which another block wrote"):
        run(body.format("mov.b32 %r5, 5;"), blocks=2)


def test_several_readers_of_one_warp_are_ordered_by_its_barrier():
    body = """
        mov.b32 %r5, 7; setp.eq.s32 %p2, %r1, {writer}; @%p2 st.shared.b32 [0], %r5; bar.sync 0;
        setp.lt.s32 %p3, %r1, {readers}; mov.b32 %r6, 0; @%p3 ld.shared.b32 %r6, [0];
        setp.eq.s32 %p4, %r6, 5; @%p4 bra $USED; $USED: bar.warp.sync -1;
        @%p2 st.shared.b32 [0], %r1;"""
    body = body.replace("[0]", "[%r10]").replace("mov.b32 %r5", "mov.b32 %r10, 0; mov.b32 %r5", 1)
    run(body.format(readers=32, writer=0))
    for writer in (0, 63):
        with pytest.raises(ptx.Race, match="another thread reads"):
            run(body.format(readers=64, writer=writer))


def test_an_equal_write_of_a_later_instruction_does_not_hide_the_one_before():
    one = "setp.eq.s32 %p2, %r1, {}; @%p2 st.shared.b32 [%r10], {};"
    body = "mov.b32 %r10, 0; mov.b32 %r5, 7; mov.b32 %r6, 5;" + one.format(0, "%r5") + one.format(40, "%r5")
    run(body)
    with pytest.raises(ptx.Race, match=r"thread 40 writes to .* which another thread writes"):
        run(body + "@%p2 st.shared.b32 [%r10], %r6;")


def test_a_wrong_stride_does_not_reach_another_tensor():
    far = "add.s64 %rd4, %rd4, 1048576;"
    with pytest.raises(ptx.OutOfBounds, match=r"x \+ 1048576"):
        run(far + LOAD + STORE)
    for beyond in range(0, 2**14, 2**10):
        with pytest.raises(ptx.OutOfBounds):
            run(f"add.s64 %rd4, %rd4, {256 + beyond};" + LOAD + STORE)


@pytest.mark.parametrize("number", [2**23 - 1, 2**23, 2**24, 2**31 - 2])
def test_a_race_is_seen_in_blocks_of_every_number(number):
    x = ptx.Tensor(np.zeros(256, np.uint8))
    first = "add.s64 %rd4, %rd1, %rd6; ld.global.b32 %r5, [%rd4];"
    program, right = (
        ptx.parse(HEAD.format(threads=64) + first + NEIGHBOUR.format(barrier=barrier) + USE + TAIL)
        for barrier in ("", "bar.sync 0;")
    )
    settings = {"blocks": 2**31 - 1, "shared": 256, "only": [number]}
    ptx.run(right, {"x": x, "y": x, "n": 0}, **settings)
    with pytest.raises(ptx.Race):
        ptx.run(program, {"x": x, "y": x, "n": 0}, **settings)


# All threads load the number in place of x[0], and thread 0 doubles it.
IN_PLACE = """
    ld.global.b32 %r5, [%rd1]; add.f32 %r6, %r5, %r5; {between}
    setp.eq.s32 %p2, %r1, 0; @%p2 st.global.b32 [%rd1], %r6; {after}"""


@pytest.mark.parametrize(
    ("between", "after", "race"),
    [
        ("", "", False),
        ("", STORE, True),  # all threads store what they have loaded
        ("bar.sync 0;", STORE, False),
        ("", "bar.sync 0; ld.global.b32 %r5, [%rd1];" + STORE, False),  # a later load is none of the race
        ("", "ld.global.b32 %r5, [%rd1];", False),  # after the store, but not used
        ("", "ld.global.b32 %r5, [%rd1];" + STORE, True),
        ("", "mul.wide.u32 %rd7, %r5, 0; add.s64 %rd7, %rd7, %rd2; ld.global.b32 %r7, [%rd7];", True),
        ("", USE, True),
        ("", "and.b32 %r5, %r5, 0;" + STORE, False),  # no bit of what is stored depends on it
        ("", "shfl.sync.bfly.b32 %r5, %r5, 1, 31, -1; @%p2 st.global.b32 [%rd2], %r5;", True),
        ("", "st.shared.b32 [%r4], %r5;", False),
        ("", "st.shared.b32 [%r4], %r5; xor.b32 %r4, %r4, 4; bar.warp.sync -1; ld.shared.b32 %r5, [%r4];" + STORE, True),
    ],
)  # fmt: skip
def test_a_read_races_if_its_value_is_used(between, after, race):
    program = ptx.parse(HEAD.format(threads=64) + IN_PLACE.format(between=between, after=after) + TAIL)
    x, y = np.full(64, 3, np.float32), np.zeros(64, np.float32)
    given = {"x": ptx.Tensor(x.view(np.uint8)), "y": ptx.Tensor(y.view(np.uint8)), "n": 64}
    if race:
        with pytest.raises(ptx.Race, match=r"block 0, thread \d+ .* x \+ 0 \(4 bytes\), which"):
            ptx.run(program, given, blocks=1, shared=256)
    else:
        ptx.run(program, given, blocks=1, shared=256)
        assert x[0] == 6 and (x[1:] == 3).all()  # also after a second run of the block


# All threads load x[0], and thread 0 doubles it. A later branch of each thread depends on what it has loaded.
GUARDED = (
    IN_PLACE.format(between="", after="")
    + """
    setp.lt.u32 %p5, %r5, 2139095040; mov.b32 %r7, 1; @%p5 bra $L; mov.b32 %r7, 2; {inside} $L: {after}"""
)


@pytest.mark.parametrize(
    ("inside", "after", "race"),
    [
        ("", "@%p2 st.global.b32 [%rd2], %r7;", False),  # of thread 0, whose load is before its own store
        ("@%p2 st.global.b32 [%rd2], %r7;", "", False),
        ("", "@%p5 bra $END; mov.b32 %r7, 3; $END:", False),
        ("", STORE, True),
        (STORE, "", True),
        ("bar.sync 0;", "", True),
        ("", "@%p5 bra $L;", True),
        ("", "@%p5 bra $END; st.global.b32 [%rd2], %r1; $END:", True),
        ("", "@%p5 st.global.b32 [%rd2], %r1;", True),
        ("shfl.sync.bfly.b32 %r5, %r5, 1, 31, -1;", "", True),
    ],
)
def test_a_guard_that_races_is_a_fault_if_other_threads_may_see_it(inside, after, race):
    x, y = np.full(64, 3, np.float32), np.zeros(64, np.float32)
    given = {"x": ptx.Tensor(x.view(np.uint8)), "y": ptx.Tensor(y.view(np.uint8)), "n": 64}
    program = ptx.parse(HEAD.format(threads=64) + GUARDED.format(inside=inside, after=after) + TAIL)
    if race:
        with pytest.raises(ptx.Race, match="which another thread reads"):
            ptx.run(program, given, blocks=1, shared=256)
        return
    assert not ptx.run(program, given, blocks=1, shared=256).unsettled
    assert x[0] == 6 and (x[1:] == 3).all()


def test_the_race_whose_value_is_used_is_named():
    """The value of the first race is not used. That of a second one is, or an unknown register."""
    first = IN_PLACE.format(between="", after="") + "bar.sync 0; .loc 1 20 0\n"
    second = (
        first
        + "ld.global.b32 %r5, [%rd2]; .loc 1 21 0\n @%p2 st.global.b32 [%rd2], %r6; .loc 1 22 0\n"
        + STORE
    )
    unknown = "setp.eq.s32 %p5, %r20, 0; @%p5 bra $END; $END:"
    for body, fault, place in (
        (second, ptx.Race, r"kernel\.py:21: .* writes to y \+ 0"),
        (first, None, ""),
        (first + unknown, ptx.Undefined, "uninitialised predicate"),
        (
            first + "ld.global.b32 %r5, [%rd1]; @%p2 st.global.b32 [%rd1], %r6;" + unknown,
            ptx.Undefined,
            "predicate",
        ),
    ):
        x, y = np.full(64, 3, np.float32), np.zeros(64, np.float32)
        given = {"x": ptx.Tensor(x.view(np.uint8)), "y": ptx.Tensor(y.view(np.uint8)), "n": 64}
        program = ptx.parse(HEAD.format(threads=64) + body + TAIL)
        if fault is None:
            ptx.run(program, given, blocks=1, shared=256)
            assert x[0] == 6
        else:
            with pytest.raises(fault, match=place):
                ptx.run(program, given, blocks=1, shared=256)


def test_a_block_that_runs_again_leaves_no_trace_of_its_first_run():
    """The first run adds to a sum, writes, releases, and copies; the second does the same from the same state."""
    body = (
        IN_PLACE.format(between="", after="")
        + """
        mov.b32 %r10, 0f3F800000; @%p2 red.global.gpu.acq_rel.add.f32 [%rd2+4], %r10;
        @%p2 red.global.gpu.relaxed.add.f32 [%rd2+8], %r10;
        cp.async.ca.shared.global [%r4], [%rd2+128], 4; cp.async.commit_group;"""
    )
    x, y = np.full(64, 3, np.float32), np.zeros(64, np.float32)
    y[1] = 2**24 - 2  # two terms fit, a third one would not
    known = np.zeros(256, bool)
    known[4:12], known[128:132] = True, True
    given = {"x": ptx.Tensor(x.view(np.uint8)), "y": ptx.Tensor(y.view(np.uint8), defined=known), "n": 64}
    report = ptx.run(ptx.parse(HEAD.format(threads=64) + body + TAIL), given, blocks=1, shared=256)
    assert x[0] == 6 and y[1] == 2**24 - 1 and y[2] == 1 and not report.unsettled
    assert known.sum() == 12


def test_tensors_that_overlap_are_one_buffer():
    """y begins at element 32 of x, so thread 0 writes what thread 32 reads."""
    program = ptx.parse(HEAD.format(threads=64) + LOAD + STORE + TAIL)
    memory = np.zeros(512, np.uint8)
    given = {"x": ptx.Tensor(memory[:256]), "y": ptx.Tensor(memory[256:]), "n": 0}
    ptx.run(program, given, blocks=1)
    with pytest.raises(ptx.Race, match=r"thread 0 writes to x \+ 128 .* thread 32 reads"):
        ptx.run(program, given | {"y": ptx.Tensor(memory[128:384])}, blocks=1)


def test_a_tensor_keeps_its_alignment():
    program = ptx.parse(
        HEAD.format(threads=64) + "ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%rd1];".format() + TAIL
    )
    memory = np.zeros(512, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16
    for first in (start, start + 16):
        ptx.run(program, {"x": ptx.Tensor(memory[first : first + 256])}, blocks=1)
        with pytest.raises(ptx.Misaligned):
            ptx.run(program, {"x": ptx.Tensor(memory[first + 8 : first + 256])}, blocks=1)
    ptx.run(program, {"x": ptx.Tensor(memory[start + 8 : start + 264], 8)}, blocks=1)


def test_results_that_depend_on_the_order_of_blocks():
    first = "add.s64 %rd5, %rd2, %rd6;"  # every block writes to the first elements
    with pytest.raises(
        ptx.Order,
        match=r"block 1, thread 0 writes y .* which block 0 wrote, and nothing orders the two accesses: the result",
    ):
        run(LOAD + first + STORE, 128, blocks=2)
    reads = LOAD + STORE + "add.s64 %rd5, %rd2, %rd6; ld.global.b32 %r5, [%rd5];"
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 reads y .* which block 0 wrote"):
        run(reads, 128, blocks=2)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("bar.red.popc.u32 %r5, 0, %p1;", r"bar\.red\.popc\.u32"),
        ("bar.arrive 0, 64;", r"bar\.arrive 0, 64"),
        ("bar.sync 1;", r"bar\.sync 1"),
        ("bar.sync %r1, 32;", r"bar\.sync %r1, 32"),
        ("barrier.cluster.arrive;", r"barrier\.cluster\.arrive"),
        ("redux.sync.add.s32 %r5, %r1, 0xFFFF;", r"redux\.sync\.add\.s32 is supported for whole warps"),
        ("shfl.sync.bfly.b32 %r5, %r1, 1, 31, 0xFFFF;", r"shfl\.sync\.bfly\.b32 is supported for whole warps"),
        ("bar.warp.sync 0xFFFF;", r"bar\.warp\.sync is supported for whole warps"),
        ("ld.acquire.gpu.global.v2.b32 {%r5, %r6}, [%rd4];", r"ld\.acquire\.gpu\.global\.v2\.b32"),
        ("st.release.gpu.global.b32 [%rd4], %r1;", r"st\.release\.gpu\.global\.b32"),
        ("ld.global.frob.b32 %r5, [%rd4];", r"ld\.global\.frob\.b32"),
        ("st.async.shared::cluster.u32 [%r4], %r1, [%r4];", r"st\.async"),
        ("ld.param.v2.b32 {%r5, %r6}, [kernel_param_0];", r"ld\.param\.v2\.b32"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r5}, {%r5}, {%r5}, {%r5}, %r5, 0;", r"mma\.sp"),
        ("max.f32 %r5, %r1, %r1, %r1;", r"max\.f32"),
        ("cp.async.bulk.prefetch.tensor;", r"cp\.async\.bulk\.prefetch"),
        ("cp.async.mbarrier.arrive.shared.b64 [%r4];", r"cp\.async\.mbarrier\.arrive"),
        ("mov.b128 %r5, %r1;", "b128"),
        *((f"{name};", name) for name in ("membar.gl", "fence.sc.gpu", "fence.acq_rel.cta", "trap", "pmevent 1")),
    ],
)  # fmt: skip
def test_what_is_not_executed_is_rejected_by_name(body, named):
    with pytest.raises(ptx.Unsupported, match=rf"ptx: .*{named.removesuffix(' 1')}"):
        run(body)


def test_blocks_of_parts_of_warps_are_rejected():
    with pytest.raises(ptx.Unsupported, match="expected blocks of whole warps; got 48 threads"):
        run("", threads=48)


def test_instructions_that_are_not_known():
    with pytest.raises(ptx.Unsupported, match=r"the instruction dp4a\.u32\.u32 is not supported"):
        run("dp4a.u32.u32 %r5, %r1, %r1, %r1;")
    with pytest.raises(ptx.Unsupported, match=r"expected an .entry"):
        ptx.parse("nothing")


@pytest.mark.parametrize(("how", "expected"), [("any", [1, 0]), ("all", [0, 0])])
def test_a_warp_votes(how, expected):
    """vote.sync: the numbers of three threads are below 3, all of them in the first warp."""
    body = f"""
        ld.global.b32 %r5, [%rd4]; setp.lt.f32 %p2, %r5, 0f40400000;
        vote.sync.{how}.pred %p3, %p2, -1; selp.b32 %r6, 0f3F800000, 0f00000000, %p3; st.global.b32 [%rd5], %r6;"""
    y, _ = run(body)
    assert y[::32].tolist() == expected and (y.reshape(2, 32) == y[::32, None]).all()
    ballot = """
        ld.global.b32 %r5, [%rd4]; setp.lt.f32 %p2, %r5, 0f40400000;
        vote.sync.ballot.b32 %r6, %p2, -1; cvt.rn.f32.u32 %r6, %r6; st.global.b32 [%rd5], %r6;"""
    assert run(ballot)[0][::32].tolist() == [7, 0]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_is_loaded_from_shared_memory(transposed):
    """ldmatrix: a lane receives two neighbours in a row, or in a column, of an 8 × 8 matrix of 16-bit numbers."""
    trans = ".trans" if transposed else ""
    body = f"""
        and.b32 %r6, %r1, 31; shl.b32 %r7, %r6, 2; shl.b32 %r8, %r6, 1; add.s32 %r10, %r8, 1;
        shl.b32 %r10, %r10, 16; or.b32 %r8, %r8, %r10; st.shared.b32 [%r7], %r8; bar.sync 0;
        and.b32 %r11, %r1, 7; shl.b32 %r11, %r11, 4;
        ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%r12}}, [%r11];
        st.global.b32 [%rd5], %r12;"""
    y, _ = run(body)
    numbers = np.arange(64).reshape(8, 8)
    numbers = numbers.T if transposed else numbers
    assert np.array_equal(y[:32].view(np.uint16).reshape(8, 8), numbers)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_stored_to_shared_memory(transposed):
    """stmatrix: the registers of ldmatrix, written back. Lane l holds elements 2 (l mod 4) and the next of row ⌊l/4⌋."""
    trans = ".trans" if transposed else ""
    body = f"""
        and.b32 %r6, %r1, 31; shl.b32 %r8, %r6, 1; add.s32 %r10, %r8, 1;
        shl.b32 %r10, %r10, 16; or.b32 %r8, %r8, %r10; add.s32 %r9, %r8, 0x00400040;
        and.b32 %r11, %r1, 15; shl.b32 %r11, %r11, 4;
        setp.lt.s32 %p2, %r1, 32; @!%p2 bra $L1;
        stmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 [%r11], {{%r8, %r9}};
    $L1:
        bar.sync 0; shl.b32 %r7, %r1, 2; ld.shared.b32 %r12, [%r7];
        st.global.b32 [%rd5], %r12;"""
    y, _ = run(body)
    first, second = y.view(np.uint16).reshape(2, 8, 8)
    numbers = np.arange(64).reshape(8, 8)
    assert np.array_equal(first, numbers.T if transposed else numbers)
    assert np.array_equal(second, first + 64)


def test_half_a_matrix_that_is_not_defined_is_stored_as_undefined():
    body = """
        and.b32 %r11, %r1, 7; shl.b32 %r11, %r11, 4; setp.ge.s32 %p2, %r1, 32; @%p2 bra $L1;
        stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r11], {%r20};
    $L1:
        bar.sync 0; shl.b32 %r7, %r1, 2; and.b32 %r7, %r7, 127; ld.shared.b32 %r12, [%r7];
        st.global.b32 [%rd5], %r12;"""
    with pytest.raises(ptx.Undefined, match="stores an uninitialised value"):
        run(body)


def run_with_local(body):
    program = ptx.parse(
        HEAD.format(threads=64).replace(
            ".reg .pred", ".local .align 4 .b8 __local_depot0[16];\n .reg .b64 %SPL;\n.reg .pred"
        )
        + body
        + TAIL
    )
    y = np.zeros(64, np.float32)
    x = np.arange(64, dtype=np.float32)
    ptx.run(
        program,
        {"x": ptx.Tensor(x.view(np.uint8)), "y": ptx.Tensor(y.view(np.uint8)), "n": 64},
        blocks=1,
        shared=1024,
    )
    return y


def test_each_thread_has_memory_of_its_own():
    at = "mov.b64 %SPL, __local_depot0; cvta.local.u64 %rd8, %SPL; add.u64 %rd7, %rd8, 4;"
    assert np.array_equal(
        run_with_local(f"{at} {LOAD} st.local.b32 [%rd7], %r5; ld.local.b32 %r5, [%SPL+4]; {STORE}"),
        np.arange(64),
    )
    with pytest.raises(ptx.Undefined, match="stores an uninitialised value"):
        run_with_local(f"{at} {LOAD} st.local.b32 [%rd7], %r5; ld.local.b32 %r5, [%SPL+8]; {STORE}")
    with pytest.raises(ptx.OutOfBounds, match="local memory outside its 16 bytes"):
        run_with_local(f"{at} {LOAD} st.local.b32 [%rd7+12], %r5; {STORE}")


def test_parts_that_the_compiler_leaves_open_are_not_needed():
    """The compiler packs a 16-bit number beside one that is never written, and then selects the bytes that it needs."""
    packed = "ld.global.b32 %r5, [%rd4]; mov.b32 {%rs1, %rs2}, %r5; mov.b32 %r6, {%rs2, %rs7}; mov.b32 %r7, {%rs8, %rs9};"
    also = "and.b32 %r8, %r7, 255; prmt.b32 %r10, %r6, %r8, 0x1010; st.global.b32 [%rd5], %r10;"
    body = f"{{ .reg .b16 %rs<10>; {packed} {also} }}"
    y, _ = run(body)
    upper = np.arange(64, dtype=np.float32).view(np.uint32) >> 16
    assert np.array_equal(y.view(np.uint32), upper << 16 | upper)
    for needs in ("add.s32 %r10, %r6, %r8;", "mov.b32 %r10, %r8;"):
        with pytest.raises(ptx.Undefined, match="stores an uninitialised value"):
            run(
                f"{{ .reg .b16 %rs<10>; {packed} and.b32 %r8, %r7, 255; {needs} st.global.b32 [%rd5], %r10; }}"
            )


def test_variables_have_addresses_of_their_own():
    """Two variables in shared memory, in front of what the launch adds, and tables, which must not be written to."""
    two = """
        .shared .align 4 .b8 first[256]; .shared .align 16 .b8 second[256];
        mov.u32 %r6, first; mov.u32 %r7, second; add.s32 %r6, %r6, %r4; add.s32 %r7, %r7, %r4;
        st.shared.b32 [%r6], %r1; st.shared.b32 [%r7], 7; mov.u32 %r8, global_smem; add.s32 %r8, %r8, %r4;
        st.shared.b32 [%r8], 8; ld.shared.b32 %r5, [%r6];
    """
    assert np.array_equal(run(two + STORE, shared=256)[0].view(np.int32), np.arange(64))
    one = two.replace("ld.shared.b32 %r5, [%r6]", "bar.sync 0; ld.shared.b32 %r5, [second+4]")
    assert (run(one + STORE, shared=256)[0].view(np.int32) == 7).all()
    with pytest.raises(ptx.OutOfBounds, match=r"shared memory \+ 764"):
        run(two + STORE, shared=252)

    table = ".global .align 4 .b8 table_$1[8] = {1, 2, 3, 4, 0xFF};\n.const .u16 other[2] = {5, 6};\n"
    body = "mov.b64 %rd7, table_$1; ld.global.nc.b32 %r5, [%rd7{}]; ld.const.b16 %r6, [other+2]; add.s32 %r5, %r5, %r6;"

    def run_with(body):
        program = ptx.parse(table + HEAD.format(threads=32) + body + TAIL)
        y = np.zeros(32, np.int32)
        given = {"x": ptx.Tensor(y.view(np.uint8).copy()), "y": ptx.Tensor(y.view(np.uint8)), "n": 32}
        ptx.run(program, given, blocks=1)
        return y

    assert (run_with(body.format("") + STORE) == 0x04030201 + 6).all()
    assert (run_with(body.format("+4") + STORE) == 0xFF + 6).all()
    with pytest.raises(ptx.OutOfBounds, match=r"table_\$1 \+ 8"):
        run_with(body.format("+8") + STORE)
    with pytest.raises(ptx.OutOfBounds, match=r"writes to the table table_\$1"):
        run_with("st.global.b32 [table_$1], %r1;")
    with pytest.raises(ptx.Unsupported, match="the name elsewhere"):
        run_with("mov.b64 %rd7, elsewhere;")


def test_volatile_accesses_are_in_their_memory():
    volatile = "st.volatile.shared.b32 [%r4], %r1; ld.volatile.shared::cta.b32 %r5, [%r4];"
    assert np.array_equal(run(volatile + STORE)[0].view(np.int32), np.arange(64))
    with pytest.raises(ptx.Unsupported, match=r"ld\.b32 at a generic address"):
        run("ld.b32 %r5, [%rd4];")
    with pytest.raises(ptx.Unsupported, match=r"kernel\.py:10: ptx: calls of functions that are not inlined"):
        run("{ .param .b32 param0; st.param.b32 [param0], %r1; call.uni print, (param0); }")


def test_hints_for_the_cache_do_nothing():
    hints = LOAD.replace("global", "global.L1::evict_first.L2::cache_hint").replace("]", "], %rd8")
    hints += STORE.replace("global", "global.L2::cache_hint").replace("%r5", "{ %r5 }, %rd8")
    y, _ = run("createpolicy.fractional.L2::evict_first.b64 %rd8, 1.0;\n" + hints)
    assert np.array_equal(y, np.arange(64))


def test_a_register_is_known_within_its_braces():
    """Inline assembly may declare registers with names that are already in use."""
    inner = """
        mov.b32 %r5, 70000;
        {{ .reg .b16 {0}; mov.b16 {0}, 3; {{ .reg .b32 {0}; mov.b32 {0}, 70001; @!p add.u32 %r5, %r5, {0};
        }} .reg .pred p; setp.eq.u16 p, {0}, 3; cvt.u32.u16 %r6, {0}; @p add.u32 %r5, %r5, %r6;
        }}
    """
    for name in ("r", "%r7", "rd"):
        y, _ = run(inner.format(name).replace("@!p ", "") + STORE)
        assert (y.view(np.int32) == 70000 + 70001 + 3).all()
    y, _ = run("mov.b32 %r7, 70000; { .reg .b16 %r7; mov.b16 %r7, 3; } mov.b32 %r5, %r7;" + STORE)
    assert (y.view(np.int32) == 70000).all()
    y, _ = run("{ .reg .b64 at; mov.b64 at, %rd4; ld.global.b32 %r5, [at+0]; }" + STORE)
    assert np.array_equal(y, np.arange(64))
    with pytest.raises(ptx.Unsupported, match="the name r "):
        run("{ .reg .b16 r; mov.b16 r, 3; } mov.b32 %r5, r;")
    with pytest.raises(ptx.Unsupported, match="label again is declared twice"):
        run("{ again: again: }")
    again = "{ .reg .pred p; again: add.u32 %r6, %r6, 1; setp.lt.u32 p, %r6, 3; @p bra again; }"
    y, _ = run(
        f"mov.b32 %r6, 0; mov.b32 %r5, 0; {{ {again} again: }}"
        + 2 * f"{again} add.u32 %r5, %r5, %r6;"
        + STORE
    )
    assert (y.view(np.int32) == 4 + 5).all()


def test_registers_that_the_hardware_sets():
    masks = {"eq": lambda i: 1 << i, "lt": lambda i: (1 << i) - 1, "le": lambda i: (2 << i) - 1}
    masks |= {"ge": lambda i: 2**32 - (1 << i), "gt": lambda i: 2**32 - (2 << i)}
    for how, mask in masks.items():
        y, _ = run(f"mov.u32 %r5, %lanemask_{how};" + STORE)
        assert y.view(np.uint32).tolist() == 2 * [mask(i) for i in range(32)]
    for name in ("%clock", "%globaltimer", "%smid"):
        with pytest.raises(ptx.Unsupported, match=name):
            run(f"mov.u32 %r5, {name};")


def test_constants_in_decimal():
    y, _ = run("mov.f32 %r5, -1.5; add.f32 %r5, %r5, 2.5E-1;" + STORE)
    assert (y == -1.25).all()
    with pytest.raises(ptx.Unsupported, match=r"the constant 1\.5"):
        run("mov.b32 %r5, 1.5;")


def test_a_constant_that_begins_with_0_is_octal():
    assert (run("mov.b32 %r5, 010;" + STORE)[0].view(np.int32) == 8).all()


def test_a_short_signed_number_is_extended_with_its_sign():
    y, _ = run("neg.s32 %r6, %r1; cvt.s8.s32 %r5, %r6;" + STORE)
    assert y.view(np.int32).tolist() == [-i for i in range(64)]
    y, _ = run("ld.global.b32 %r6, [%rd4]; neg.f32 %r6, %r6; cvt.rzi.s16.f32 %r5, %r6;" + STORE)
    assert y.view(np.int32).tolist() == [-i for i in range(64)]


def test_a_shuffle_needs_a_known_lane():
    for operands in ("%r20, 31", "1, %r20"):
        with pytest.raises(ptx.Undefined, match="stores an uninitialised value"):
            run(f"shfl.sync.bfly.b32 %r5, %r1, {operands}, -1;" + STORE)


def test_a_store_of_an_unknown_register_has_the_width_of_the_instruction():
    body = "mov.b32 %r5, 1; st.shared.b32 [%r4], %r5; st.shared.b16 [%r4+2], %r20; ld.shared.b16 %r6, [%r4]; mov.b32 %r5, %r6;"
    assert (run(body + STORE)[0].view(np.int32) == 1).all()
    with pytest.raises(ptx.Undefined):
        run(body.replace("[%r4];", "[%r4+2];") + STORE)


def test_the_negation_of_a_comparison():
    y, _ = run("setp.lt.u32 %p2|%p3, %r1, 5; selp.b32 %r5, 1, 0, %p3;" + STORE)
    assert y.view(np.int32).tolist() == [int(i >= 5) for i in range(64)]


def test_threads_that_have_returned_are_not_awaited():
    early = "setp.ge.u32 %p2, %r1, 32; {} bar.sync 0; st.shared.b32 [%r4], %r1; bar.sync 0; ld.shared.b32 %r5, [%r4];"
    for returned in ("@%p2 exit;", "@%p2 bra $END;"):
        y, _ = run(early.format(returned) + STORE + "$END:")
        assert y[:32].view(np.int32).tolist() == [*range(32)] and np.isnan(y[32:]).all()
    lane = "@%p2 exit; st.shared.b32 [%r4], %r1; bar.warp.sync -1; xor.b32 %r6, %r4, 4; ld.shared.b32 %r5, [%r6];"
    y, _ = run("setp.ge.u32 %p2, %r1, 40;" + lane + STORE)
    assert y[:40].view(np.int32).tolist() == [i ^ 1 for i in range(40)] and np.isnan(y[40:]).all()
    later = "setp.ge.u32 %p2, %r1, 32; @%p2 bra $L; bar.sync 0; st.global.b32 [%rd5], %r1; ret; $L: mov.b32 %r5, 0;"
    y, _ = run(later)
    assert y[:32].view(np.int32).tolist() == [*range(32)]


def test_a_warp_reduces():
    y, _ = run("redux.sync.add.s32 %r5, %r1, -1;" + STORE)
    assert y.view(np.int32).tolist() == [31 * 16] * 32 + [31 * 16 + 32 * 32] * 32
    with pytest.raises(ptx.Undefined, match="thread 32 stores"):
        run("@%p1 mov.b32 %r6, %r1; redux.sync.max.u32 %r5, %r6, -1;" + STORE, 50)
    with pytest.raises(ptx.Barrier):
        run("setp.lt.s32 %p2, %r1, 5; @%p2 redux.sync.max.u32 %r5, %r1, -1;")
