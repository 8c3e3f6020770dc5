"""What a kernel does wrong is found, with the line and the thread, and what is right is not accused."""

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
    """Run a body on x of n numbers; return y of as many, which nobody has written before."""
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
# Each thread gives its number to the next one.
NEIGHBOUR = """
    add.s32 %r6, %r1, 1; and.b32 %r6, %r6, 63; shl.b32 %r7, %r6, 2;
    st.shared.b32 [%r4], %r5;
    {barrier}
    .loc 1 12 0
    ld.shared.b32 %r5, [%r7];
"""


def test_a_copy_and_its_mask():
    np.testing.assert_array_equal(run(LOAD + STORE)[0], np.arange(64))
    masked = LOAD.replace("ld", "@%p1 ld") + STORE.replace("st", "@%p1 st")
    np.testing.assert_array_equal(run(masked, 50)[0], np.arange(50))
    np.testing.assert_array_equal(run(masked, 100, blocks=2)[0], np.arange(100))


def test_accesses_out_of_bounds():
    with pytest.raises(
        ptx.OutOfBounds, match=r"kernel.py:10: block 0, thread 50 reads 4 bytes at x \+ 200, which has 200 b"
    ):
        run(LOAD + STORE, 50)
    with pytest.raises(ptx.OutOfBounds, match=r"thread 50 writes 4 bytes at y \+ 200"):
        run("mov.b32 %r5, 1;\n" + STORE, 50)
    with pytest.raises(ptx.OutOfBounds, match="before all tensors"):
        run("mov.b64 %rd4, 16;\n" + LOAD)
    with pytest.raises(
        ptx.OutOfBounds, match=r"thread 60 writes 4 bytes at shared memory \+ 240, which has 240"
    ):
        run("mov.b32 %r5, 1; st.shared.b32 [%r4], %r5;", shared=240)


def test_an_offset_that_wraps():
    """In 32 bits, 2³⁰ elements of 4 bytes are 0 bytes further; here 2³¹ − 4 bytes are before the tensor."""
    wraps = "mov.b32 %r6, 0x80000004; cvt.s64.s32 %rd7, %r6; add.s64 %rd4, %rd1, %rd7;\n" + LOAD
    with pytest.raises(ptx.OutOfBounds, match=r"reads 4 bytes at x - 2147483644, which has 256 bytes"):
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


def test_one_place_written_by_all():
    same = "mov.b32 %r5, 7; mov.b32 %r6, 0; st.shared.b32 [%r6], %r5; bar.sync 0; ld.shared.b32 %r5, [%r6];"
    y, report = run(same + STORE)
    assert not report.unsettled and (y.view(np.int32) == 7).all()
    _, report = run(same.replace("7", "%tid.x") + STORE)
    assert "another thread writes a different value" in str(report.unsettled[0])


def test_values_that_nobody_wrote():
    with pytest.raises(ptx.Undefined, match="thread 0 stores an uninitialised value"):
        run("ld.shared.b32 %r5, [%r4];" + STORE)
    with pytest.raises(ptx.Undefined, match="thread 0 stores an uninitialised value"):
        run(STORE)
    with pytest.raises(ptx.Undefined, match=r"uses an uninitialised predicate \(%p2\)"):
        run("@%p2 bra $L; $L:")
    with pytest.raises(ptx.Undefined, match="stores an uninitialised value"):
        run(LOAD + STORE, defined=False)
    # A choice against it does not use it.
    masked = "@%p1 ld.global.b32 %r5, [%rd4]; selp.b32 %r5, %r5, 0, %p1;"
    run(masked + STORE.replace("st", "@%p1 st"), 50)


def test_a_barrier_that_some_do_not_reach():
    with pytest.raises(ptx.Barrier, match="waits for thread 32, which does not arrive"):
        run("setp.lt.s32 %p2, %r1, 32; @!%p2 bra $END; bar.sync 0; $END: bar.warp.sync -1; bar.sync 0;")
    with pytest.raises(ptx.Barrier, match="is at a barrier that thread 32 does not reach"):
        run("setp.lt.s32 %p2, %r1, 32; @%p2 bar.sync 0;")
    with pytest.raises(ptx.Barrier):
        run("setp.lt.s32 %p2, %r1, 5; @!%p2 bra $END; shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1; $END:")
    # Both ways lead to a barrier of their own: each waits for the other.
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
        run("$TOP: bra $TOP;")


def test_asynchronous_copies():
    copy = "cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.commit_group; {} ld.shared.b32 %r5, [{}];"
    y, _ = run(copy.format("cp.async.wait_group 0;", "%r4") + STORE)
    np.testing.assert_array_equal(y, np.arange(64))
    with pytest.raises(ptx.TooEarly, match="before waiting for the copy to it"):
        run(copy.format("", "%r4") + STORE)
    with pytest.raises(ptx.TooEarly):  # one group may still be on its way
        run(copy.format("cp.async.wait_group 1;", "%r4") + STORE)
    other = "xor.b32 %r6, %r1, 40; shl.b32 %r7, %r6, 2;"
    with pytest.raises(ptx.Race):  # awaited by each thread for its own copies only
        run(other + copy.format("cp.async.wait_group 0;", "%r7") + STORE)
    y, _ = run(other + copy.format("cp.async.wait_group 0; bar.sync 0;", "%r7") + STORE)
    np.testing.assert_array_equal(y, np.arange(64) ^ 40)
    ignored = "mov.b32 %r8, 0; cp.async.ca.shared.global [%r4], [%rd4], 4, %r8; cp.async.wait_all; ld.shared.b32 %r5, [%r4];"
    assert not run(ignored + STORE)[0].any()  # nothing is read, zeros are written


def test_the_source_of_an_asynchronous_copy_is_not_written_before_the_wait():
    body = """
        mov.b32 %r5, 7; mov.b32 %r8, 0; setp.eq.s32 %p2, %r1, 0;
        cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r4+256], [%rd4], 4; cp.async.commit_group;
        {} st.global.b32 [%rd4], %r5;"""
    run(body.format("cp.async.wait_group 0;"))
    for wait in ("", "cp.async.wait_group 1;"):  # also by the thread that copies
        with pytest.raises(
            ptx.TooEarly, match=r"writes to x \+ 0 \(4 bytes\) before waiting for the copy from"
        ):
            run(body.format(wait))
    run("cp.async.ca.shared.global [%r4], [%rd4], 4; mov.b32 %r5, 7;" + STORE)


def test_an_equal_write_does_not_hide_the_one_before():
    """Threads write 7 to one place, and then the last of them 5: one of the 7 may come later."""
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
        setp.lt.s32 %p3, %r1, {readers}; @%p3 ld.shared.b32 %r6, [0]; bar.warp.sync -1;
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
        ptx.parse(HEAD.format(threads=64) + first + NEIGHBOUR.format(barrier=barrier) + TAIL)
        for barrier in ("", "bar.sync 0;")
    )
    settings = {"blocks": 2**31 - 1, "shared": 256, "only": [number]}
    ptx.run(right, {"x": x, "y": x, "n": 0}, **settings)
    with pytest.raises(ptx.Race):
        ptx.run(program, {"x": x, "y": x, "n": 0}, **settings)


def test_tensors_that_overlap_are_one_buffer():
    """y is x from the thread number 32 on: thread 0 writes what thread 32 reads."""
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
        match=r"block 1, thread 0 writes y .* which block 0 wrote, and nothing orders the two: the result depends",
    ):
        run(LOAD + first + STORE, 128, blocks=2)
    reads = LOAD + STORE + "add.s64 %rd5, %rd2, %rd6; ld.global.b32 %r5, [%rd5];"
    with pytest.raises(ptx.Order, match=r"block 1, thread 0 reads y .* which block 0 wrote"):
        run(reads, 128, blocks=2)


def test_instructions_that_are_not_known():
    with pytest.raises(ptx.Unsupported, match=r"the instruction dp4a\.u32\.u32 is not supported"):
        run("dp4a.u32.u32 %r5, %r1, %r1, %r1;")
    with pytest.raises(ptx.Unsupported, match=r"expected an .entry"):
        ptx.parse("nothing")


@pytest.mark.parametrize(("how", "expected"), [("any", [1, 0]), ("all", [0, 0])])
def test_a_warp_votes(how, expected):
    """vote.sync: the first 40 numbers are below 3 for three threads of the first warp only."""
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
    """ldmatrix: a lane holds two neighbours of a row of 8 × 8 numbers of 16 bits, or of a column."""
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
    """It packs one number of 16 bits beside one that nobody writes, and then chooses the bytes that it needs."""
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
    """Two in shared memory, before what the launch adds; and tables, which nobody may write to."""
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
    with pytest.raises(ptx.Unsupported, match=r"st\.param\.b32"):
        run("{ .param .b32 param0; st.param.b32 [param0], %r1; call.uni print, (param0); }")
    with pytest.raises(ptx.Unsupported, match=r"call\.uni"):
        run("call.uni print;")


def test_hints_for_the_cache_do_nothing():
    hints = LOAD.replace("global", "global.L1::evict_first.L2::cache_hint").replace("]", "], %rd8")
    hints += STORE.replace("global", "global.L2::cache_hint").replace("%r5", "{ %r5 }, %rd8")
    y, _ = run("createpolicy.fractional.L2::evict_first.b64 %rd8, 1.0;\n" + hints)
    assert np.array_equal(y, np.arange(64))


def test_a_register_is_known_within_its_braces():
    """Inline assembly may call its registers as others are called."""
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
        run("{ again: } { again: }")


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


def test_the_negation_of_a_comparison():
    y, _ = run("setp.lt.u32 %p2|%p3, %r1, 5; selp.b32 %r5, 1, 0, %p3;" + STORE)
    assert y.view(np.int32).tolist() == [int(i >= 5) for i in range(64)]


def test_threads_that_have_returned_are_not_awaited():
    early = "setp.ge.u32 %p2, %r1, 32; {} bar.sync 0; st.shared.b32 [%r4], %r1; bar.sync 0; ld.shared.b32 %r5, [%r4];"
    for returned in ("@%p2 exit;", "@%p2 bra $END;"):
        y, _ = run(early.format(returned) + STORE + "$END:")
        assert y[:32].view(np.int32).tolist() == [*range(32)] and np.isnan(y[32:]).all()
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
