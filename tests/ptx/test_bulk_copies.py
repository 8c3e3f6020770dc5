"""Bulk copies of tiles, mbarriers, and tensor maps: what they copy, and faults."""

import numpy as np
import pytest

from backpass import ptx

HEAD = """
.version 8.7
.target sm_90a
.extern .shared .align 1024 .b8 global_smem[];
.visible .entry kernel(.param .align 64 .b8 kernel_param_0[128], .param .align 64 .b8 kernel_param_1[128],
    .param .u64 .ptr .global .align 1 kernel_param_2, .param .u64 .ptr .global .align 1 kernel_param_3)
.reqntid 64
{
    .reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %rd<30>;
    .loc 1 1 0
    mov.b64 %rd1, kernel_param_0; cvta.param.u64 %rd1, %rd1;
    mov.b64 %rd2, kernel_param_1; cvta.param.u64 %rd2, %rd2;
    ld.param.b64 %rd3, [kernel_param_2]; ld.param.b64 %rd4, [kernel_param_3];
    mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; shl.b32 %r2, %r1, 4;
    mul.wide.u32 %rd5, %r2, 1; add.s64 %rd6, %rd3, %rd5;
    mov.b32 %r10, 2; mov.b32 %r11, 3;
    .loc 1 2 0
"""
SHARED, BARRIER = 4096, 4088
INIT = f"@%p1 mbarrier.init.shared::cta.b64 [global_smem+{BARRIER}], 1;\nbar.sync 0;\n"
EXPECT = f".loc 1 3 0\n@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [global_smem+{BARRIER}], 1024;\n"
COORDINATES = "{%r10, %r11}"
LOAD = (
    "elect.sync %r5|%p2, -1; and.pred %p2, %p2, %p1;\n@%p2 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::"
    f"complete_tx::bytes [global_smem], [%rd1, {COORDINATES}], [global_smem+{BARRIER}];\n"
)
WAIT = (
    ".loc 1 4 0\nmov.b32 %r6, 0;\n{ .reg .pred complete; waitLoop: mbarrier.try_wait.parity.shared::cta.b64 complete, "
    f"[global_smem+{BARRIER}], %r6; @!complete bra.uni waitLoop; }}\n"
)
READ = ".loc 1 5 0\nld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r2];\nst.global.v4.b32 [%rd6], {%r20, %r21, %r22, %r23};\n"
INVAL = f"bar.sync 0;\n@%p1 mbarrier.inval.shared::cta.b64 [global_smem+{BARRIER}];\n"
IN = INIT + EXPECT + LOAD + WAIT + READ + INVAL
FILL = ".loc 1 6 0\nst.shared.v4.b32 [%r2], {%r1, %r2, %r10, %r11};\n"
FENCE = "fence.proxy.async.shared::cta;\n"
STORE = (
    ".loc 1 7 0\n@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r10, %r11}], [global_smem];\n"
    "cp.async.bulk.commit_group;\n"
)
DRAIN = ".loc 1 8 0\ncp.async.bulk.wait_group.read 0;\nbar.sync 0;\nst.shared.b32 [%r2], %r1;\n"
OUT = FILL + FENCE + "bar.sync 0;\n" + STORE + DRAIN
ROWS, COLUMNS, PITCH = 13, 41, 48  # of the tensor; a row takes more bytes than it has


def tensor(kind=np.float32, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(1, 100, (ROWS, PITCH)).astype(kind)


def map_of(x, type, box, span, *, columns=COLUMNS, **more):
    strides = (PITCH * x.itemsize,)
    return ptx.TensorMap(0, type, (columns, ROWS), strides, box, span, **more)


def run(
    body, *, x=None, y=None, box=(8, 32), span=32, type="f32", at=(2, 3), shared=SHARED, out=None, **more
):
    """Run a body with maps of x and y. Return y, and what the threads have stored at the third parameter."""
    x = tensor() if x is None else x
    y = np.zeros_like(x) if y is None else y
    z = np.zeros(1024, np.uint8) if out is None else out
    head = HEAD.replace("%r10, 2", f"%r10, {at[0]}").replace("%r11, 3", f"%r11, {at[1]}")
    program = ptx.parse(head + body + '\nret;\n}\n.file 1 "kernel.py"\n')
    both = {
        name: ptx.Mapped(ptx.Tensor(of.reshape(-1).view(np.uint8)), map_of(of, type, box, span, **more))
        for name, of in (("x", x), ("y", y))
    }
    scratch = np.zeros(256, np.uint8)
    start = -scratch.ctypes.data % 128
    arguments = {**both, "z": ptx.Tensor(z), "maps": ptx.Tensor(scratch[start : start + 128], defined=False)}
    ptx.run(program, arguments, blocks=1, shared=shared)
    return y, z


def unswizzled(z, box, width, span):
    """Return the tile in these bytes: within 128 bytes, the parts of 16 bytes are exchanged."""
    row = box[0] * width
    found = np.zeros((box[1], row), np.uint8)
    lines = max(1, 128 // row) if span else 1
    for i in range(box[1]):
        for part in range(row // 16):
            moved = part ^ (i // lines % (span // 16)) if span else part
            found[i, 16 * part : 16 * part + 16] = z[i * row + 16 * moved :][:16]
    return found


@pytest.mark.parametrize("at", [(0, 0), (2, 3), (-3, -5), (36, 8), (50, 2), (4, 13)])
@pytest.mark.parametrize(
    ("box", "span", "type", "kind"),
    [
        ((8, 32), 32, "f32", np.float32), ((16, 16), 64, "f32", np.float32), ((32, 8), 128, "f32", np.float32),
        ((64, 8), 128, "f16", np.float16), ((16, 64), 0, "u8", np.uint8),
        ((128, 8), 128, "u8", np.uint8), ((4, 64), 0, "s32", np.int32), ((2, 64), 0, "f64", np.float64),
    ],
)  # fmt: skip
def test_tiles_are_copied_and_elements_outside_are_zero(box, span, type, kind, at):
    x = tensor(kind)
    _, z = run(IN, x=x, box=box, span=span, type=type, at=at)
    padded = np.zeros((ROWS + 200, PITCH + 300), kind)
    padded[100 : 100 + ROWS, 150 : 150 + COLUMNS] = x[:, :COLUMNS]
    expected = padded[100 + at[1] :][: box[1], 150 + at[0] :][:, : box[0]]
    found = unswizzled(z, box, x.itemsize, span).view(kind)
    assert np.array_equal(found, expected)


def test_elements_outside_may_be_nan():
    _, z = run(IN, at=(36, 3), fill_nan=True)
    found = unswizzled(z, (8, 32), 4, 32).view(np.float32)
    assert (
        np.array_equal(np.isnan(found[:10]), np.tile(np.arange(8) >= 5, (10, 1)))
        and np.isnan(found[10:]).all()
    )


def test_a_tile_is_written_and_nothing_outside():
    for at in ((2, 3), (-3, -5), (38, 8)):
        y, _ = run(OUT, at=at)
        tile = np.zeros((32, 8), np.uint32)
        for thread in range(64):
            row, part = thread // 2, thread % 2 ^ thread // 2 // 4 % 2
            tile[row, 4 * part : 4 * part + 4] = thread, 16 * thread, at[0] % 2**32, at[1] % 2**32
        expected = np.zeros((ROWS + 100, PITCH + 100), np.uint32)
        expected[50 + at[1] :][:32, 50 + at[0] :][:, :8] = tile
        inside = expected[50 : 50 + ROWS, 50 : 50 + COLUMNS]
        assert np.array_equal(y.view(np.uint32)[:, :COLUMNS], inside) and not y[:, COLUMNS:].any()


@pytest.mark.parametrize(
    ("how", "numpy"), [("add", np.add), ("max", np.maximum), ("min", np.minimum), ("xor", np.bitwise_xor)]
)
def test_reductions(how, numpy):
    body = OUT.replace(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group",
        f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{how}.bulk_group",
    )
    x, y = tensor(np.int32), tensor(np.int32, seed=1)
    plain, _ = run(OUT, x=x, y=np.zeros_like(y), type="s32")
    before = y.copy()
    found, _ = run(body, x=x, y=y, type="s32")
    part = slice(3, ROWS), slice(2, 10)
    assert np.array_equal(found[part], numpy(before[part], plain[part]))
    found[part] = before[part]
    assert np.array_equal(found, before)


def test_maps_that_a_kernel_writes():
    """A map is written to shared memory, field by field, and copied to global memory."""

    def field(name, value, index="", width=32):
        place = f"{index}, " if index != "" else ""
        return (
            f"@%p1 tensormap.replace.tile.{name}.shared::cta.b1024.b{width} [global_smem], {place}{value};\n"
        )

    fields = "cvta.to.global.u64 %rd9, %rd3;\n" + field("global_address", "%rd9", width=64) + field("rank", 1)
    fields += "mov.b64 %rd10, 64;\n" + field("global_stride", "%rd10", 0, 64)
    for i, (box, size) in enumerate(((8, 13), (32, 16))):
        fields += f"mov.b32 %r30, {box}; mov.b32 %r31, {size}; mov.b32 %r32, 1;\n"
        fields += (
            field("box_dim", "%r30", i) + field("global_dim", "%r31", i) + field("element_stride", "%r32", i)
        )
    for name, value in (("elemtype", 7), ("interleave_layout", 0), ("swizzle_mode", 1), ("fill_mode", 0)):
        fields += field(name, value)
    zero = "mov.b32 %r7, 0; shl.b32 %r8, %r1, 2; setp.lt.u32 %p3, %r1, 32; @%p3 st.shared.b32 [%r8], %r7; bar.sync 0;\n"
    copy = (
        "@%p3 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd4], [global_smem], 0x80;\n"
        "@%p3 fence.proxy.tensormap::generic.acquire.gpu [%rd4], 0x80;\nbar.sync 0;\n"
    )
    z = np.arange(256, dtype=np.float32).view(np.uint8)
    load = LOAD.replace("%rd1,", "%rd4,")
    program = zero + fields + copy + INIT + EXPECT + load + WAIT + "bar.sync 0;\n" + READ + INVAL
    _, found = run(program, out=z, at=(8, 2))
    tile = unswizzled(found, (8, 32), 4, 32).view(np.float32)
    whole = np.zeros((40, 16), np.float32)
    whole[:16, :13] = np.arange(256).reshape(16, 16)[:, :13]
    assert np.array_equal(tile, whole[2:34, 8:])
    assert field("elemtype", 7) in program
    with pytest.raises(ptx.Undefined, match="a tensor map of which elemtype is not initialised"):
        run(program.replace("@%p3 st.shared.b32 [%r8], %r7;", "").replace(field("elemtype", 7), ""), out=z)


def changed(old, new, body=IN):
    assert old in body
    return body.replace(old, new)


WRONG_LOADS = [
    (changed(WAIT, ""), ptx.TooEarly, "before waiting for the bulk copy", 5),
    (changed("mov.b32 %r6, 0;", "mov.b32 %r6, 1;"), ptx.Barrier, "waits for the phase of parity 1", 4),
    (changed(WAIT, "@%p1 bra $L;\nbra $M;\n$L:\n" + WAIT + "$M:\n"), ptx.TooEarly, "before waiting for the bulk copy", 5),
    (changed(", 1024;", ", 2048;"), ptx.Barrier, r"mbarrier at shared memory \+ 4088, which lacks 1024 bytes of copies", 4),
    (changed(", 1024;", ", 512;"), ptx.Fault, "copies 512 bytes more than its mbarrier expects", 3),
    (changed(EXPECT, ""), ptx.Barrier, "lacks 1 arrival and 1024 bytes", 4),
    (changed("mbarrier.init.shared::cta.b64 [global_smem+4088], 1;", "mbarrier.init.shared::cta.b64 [global_smem+4088], 2;"),
     ptx.Barrier, "lacks 1 arrival", 4),
    (changed("@!complete bra.uni waitLoop;", ""), ptx.TooEarly, "before waiting for the bulk copy", 5),
    (changed(LOAD, ""), ptx.Barrier, "lacks 1024 bytes of copies", 4),
    (changed(INIT, ""), ptx.Fault, "as an mbarrier, which is not initialised", 3),
    (changed(INIT, INIT + INIT), ptx.Fault, "accesses an mbarrier", 2),
    (changed(INIT, INIT.replace("bar.sync 0;\n", "")), ptx.Race, "without a barrier between", 4),
    (changed(INVAL, INVAL.replace("bar.sync 0;\n", "")), ptx.Race, "invalidates", 5),
    (changed(INVAL, f"ld.shared.b64 %rd9, [global_smem+{BARRIER}];\n"), ptx.Fault, "accesses an mbarrier", 5),
    (changed(INVAL, INVAL + EXPECT), ptx.Fault, "is not initialised", 3),
    (changed("bytes [global_smem]", "bytes [global_smem+64]"), ptx.Misaligned, "not a multiple of 128", 3),
    (changed("bytes [global_smem]", "bytes [global_smem+3200]"), ptx.OutOfBounds, r"copies to shared memory \+ 4096", 3),
    (changed(LOAD, "st.shared.b32 [%r2], %r1;\n" + LOAD), ptx.Race, "without a barrier between", 3),
    (changed(LOAD, LOAD + "st.shared.b32 [%r2], %r1;\n"), ptx.TooEarly, "before waiting for the bulk copy", 3),
    (changed("{%r10, %r11}", "{%r10, %r9}"), ptx.Undefined, "copies from undefined coordinates", 3),
    (changed("[%rd1, ", "[%rd3, "), (ptx.Fault, ptx.Unsupported), "tensor map", 3),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fault", "what", "line"), WRONG_LOADS, ids=range(len(WRONG_LOADS)))
def test_planted_faults_of_copies_to_shared_memory(body, fault, what, line):
    with pytest.raises(fault, match=what) as found:
        run(body)
    if isinstance(found.value, ptx.Fault):
        assert found.value.place.line == line


WRONG_STORES = [
    (changed(FENCE, "", OUT), ptx.Race, "without fence.proxy.async between", 7),
    (changed(FENCE + "bar.sync 0;\n", FENCE, OUT), ptx.Race, "without a barrier between", 7),
    (changed(FENCE + "bar.sync 0;\n", "bar.sync 0;\n@%p1 " + FENCE, OUT), None, "", 0),
    (changed(FENCE, "@%p1 " + FENCE, OUT), ptx.Race, "without fence.proxy.async between", 7),
    (changed("cp.async.bulk.wait_group.read 0;\n", "", OUT), ptx.TooEarly, "the asynchronous operation that reads there", 8),
    (changed("wait_group.read 0;", "wait_group.read 1;", OUT), ptx.TooEarly, "the asynchronous operation that reads there", 8),
    (changed("cp.async.bulk.commit_group;\n", "", OUT), ptx.TooEarly, "the asynchronous operation that reads there", 8),
    (changed("@%p1 cp.async.bulk.tensor", "cp.async.bulk.tensor", OUT), None, "", 0),
    (changed(FILL, "", OUT), ptx.Undefined, "stores an uninitialised value", 7),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fault", "what", "line"), WRONG_STORES, ids=range(len(WRONG_STORES)))
def test_planted_faults_of_copies_to_global_memory(body, fault, what, line):
    if fault is None:
        run(body)
        return
    with pytest.raises(fault, match=what) as found:
        run(body)
    assert found.value.place.line == line


def test_a_source_is_written_before_the_copy_is_awaited():
    """Block 0 overwrites what its own copy reads."""
    write = "st.global.b32 [%rd9], %r1;\n"
    body = changed(WAIT, f"@%p1 {write}" + WAIT).replace("mov.u32 %r1", "mov.u32 %r1", 1)
    x = tensor()
    with pytest.raises(ptx.TooEarly, match="before waiting for the copy that reads there"):
        run(f"ld.global.b64 %rd9, [%rd1];\nadd.s64 %rd9, %rd9, {4 * (3 * PITCH + 2)};\n" + body, x=x)


@pytest.mark.parametrize(
    ("more", "error", "what"),
    [
        ({"box": (6, 32), "span": 0}, ptx.Fault, "multiples of 16 bytes"),
        ({"box": (512, 2), "span": 0}, ptx.Fault, "too large"),
        ({"box": (16, 32), "span": 32}, ptx.Fault, "too large"),
        ({"box": (4, 32), "span": 32}, ptx.Unsupported, "rows of 16 bytes, swizzled over 32"),
        ({"type": "tf32"}, ptx.Unsupported, "tensor map of tf32"),
    ],
)
def test_maps_that_are_rejected(more, error, what):
    with pytest.raises(error, match=what):
        run(IN, **more)


@pytest.mark.parametrize(
    "body",
    [
        f"mbarrier.arrive.shared::cta.b64 %rd9, [global_smem+{BARRIER}];",
        f"mbarrier.try_wait.shared::cta.b64 %p3, [global_smem+{BARRIER}], %rd9;",
        "setmaxnreg.inc.sync.aligned.u32 240;",
        "cp.async.bulk.tensor.2d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [global_smem], [%rd1, {%r10, %r11}], [global_smem];",
        "fence.proxy.alias;",
        "tensormap.replace.tile.frob.shared::cta.b1024.b32 [global_smem], 0;",
        "bar.sync 1, 32;",
    ],
)  # fmt: skip
def test_what_is_not_executed_is_named(body):
    with pytest.raises(ptx.Unsupported, match=body.split()[0].split("[")[0].rstrip(";")):
        run(INIT + body)
