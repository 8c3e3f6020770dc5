"""wgmma: where matrices are in shared memory and in registers, and faults of its asynchronous products.

The layouts are stated a second time here, in lines of 16 bytes rather than in addresses. The products are NumPy's.
"""

import numpy as np
import pytest

from backpass import ptx

HEAD = """
.version 8.7
.target sm_90a
.extern .shared .align 1024 .b8 global_smem[];
.visible .entry kernel(.param .u64 .ptr .global .align 1 kernel_param_0, .param .u64 .ptr .global .align 1 kernel_param_1)
.reqntid {threads}
{{
    .reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %rd<30>;
    .loc 1 1 0
    ld.param.b64 %rd1, [kernel_param_0]; ld.param.b64 %rd2, [kernel_param_1];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; and.b32 %r2, %r2, 2047; mul.wide.u32 %rd3, %r2, 1; add.s64 %rd4, %rd1, %rd3;
    mul.wide.u32 %rd5, %r1, {bytes}; add.s64 %rd6, %rd2, %rd5;
    .loc 1 5 0
"""
SHARED = 48 * 1024
A, B = 0, 32 * 1024  # where the matrices begin in shared memory
SPANS = {0: 16, 1: 128, 2: 64, 3: 32}
COPY = "".join(
    f"ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd4+{i}]; st.shared.v4.b32 [%r2+{i}], {{%r3, %r4, %r5, %r6}};\n"
    for i in range(0, SHARED, 2048)
)
FENCE, MEET = "fence.proxy.async.shared::cta;\n", "bar.sync 0;\n"
ORDER = "wgmma.fence.sync.aligned;\n"
DONE = "wgmma.commit_group.sync.aligned;\n.loc 1 8 0\nwgmma.wait_group.sync.aligned 0;\n"


def descriptor(start, mode, leading=0, stride=0):
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def put(memory, start, matrix, mode, turned, leading, stride):
    """Write a matrix ``[rows, K]`` to shared memory as a descriptor of this mode says. ``turned`` is M- or N-major."""
    words, each = memory.view(matrix.dtype), 16 // matrix.itemsize
    lines = SPANS[mode] // 16  # of 16 bytes in a row of an atom
    for (r, k), value in np.ndenumerate(matrix):
        along, across = (r, k) if turned else (k, r)
        line, inside = divmod(along, each)
        if lines == 1 and turned:
            at = line * stride + across // 8 * leading + across % 8 * 16
        elif lines == 1:
            at = across // 8 * stride + line * leading + across % 8 * 16
        else:
            atom, line = divmod(line, lines)
            line ^= across % 8 // (8 // lines)  # swizzled
            at = atom * leading + across // 8 * stride + across % 8 * 16 * lines + 16 * line
        words[(start + at) // matrix.itemsize + inside] = value


def accumulator(registers):
    """Return the matrix ``[64, n]`` whose elements the 128 threads hold in these registers ``[128, n / 2]``."""
    found = np.zeros((64, registers.shape[1] * 2), registers.dtype)
    for warp in range(4):
        for lane in range(32):
            for pair in range(registers.shape[1] // 2):
                row, column = 16 * warp + lane // 4 + 8 * (pair % 2), 8 * (pair // 2) + lane % 4 * 2
                found[row, column : column + 2] = registers[32 * warp + lane, 2 * pair : 2 * pair + 2]
    return found


def run(body, memory, registers, *, threads=128, shared=SHARED):
    """Run a body, and return the registers ``[threads, n]`` that it stores."""
    y = np.zeros((threads, registers), np.uint32)
    program = ptx.parse(
        HEAD.format(bytes=4 * registers, threads=threads) + body + '\nret;\n}\n.file 1 "kernel.py"\n'
    )
    arguments = {"x": ptx.Tensor(memory), "y": ptx.Tensor(y.reshape(-1).view(np.uint8))}
    ptx.run(program, arguments, blocks=1, shared=shared)
    return y


def names(n, first=20):
    return "{" + ", ".join(f"%r{first + i}" for i in range(n)) + "}"


def stored(n):
    return "".join(f"st.global.b32 [%rd6+{4 * i}], %r{20 + i};\n" for i in range(n))


def product(kind, a, b, n, more=", 1, 1, 0, 0", scale="0"):
    own = f"mov.b64 %rd8, {b};\n" + ("" if isinstance(a, str) else f"mov.b64 %rd7, {a};\n")
    of = a if isinstance(a, str) else "%rd7"
    return f"{own}wgmma.mma_async.sync.aligned.{kind} {names(n)}, {of}, %rd8, {scale}{more};\n"


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape)


LAYOUTS = [
    # the mode, whether A and B are turned, and the distances
    *((mode, turned, turned, leading, stride) for mode, leading, stride in
      ((0, 1024, 128), (0, 128, 2048), (1, 8192, 1024), (2, 4096, 512), (3, 2048, 256), (1, 2048, 4096))
      for turned in (False, True)),
    (1, True, False, 8192, 1024), (1, False, True, 8192, 2048),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "turned", "b_turned", "leading", "stride"), LAYOUTS)
def test_matrices_in_shared_memory(mode, turned, b_turned, leading, stride):
    a, b = integers(64, 16).astype(np.float16), integers(16, 16, seed=1).astype(np.float16)
    memory = np.zeros(SHARED, np.uint8)
    if mode and turned and 64 * 2 // SPANS[mode] * leading > B:
        leading //= 2
    put(memory, A, a, mode, turned, leading, stride)
    put(memory, B, b, mode, b_turned, leading, stride)
    own = [descriptor(x, mode, leading, stride) for x in (A, B)]
    step = product("m64n16k16.f32.f16.f16", *own, 8, f", 1, 1, {int(turned)}, {int(b_turned)}")
    y = run(COPY + FENCE + MEET + ORDER + step + DONE + stored(8), memory, 8)
    assert np.array_equal(accumulator(y.view(np.float32)), a.astype(float) @ b.T.astype(float))


def test_steps_along_k_within_an_atom_and_signs():
    """Four products add up to one with K = 64; the start of the matrices moves within the rows of the atom."""
    a, b = integers(64, 64).astype(np.float16), integers(24, 64, seed=1).astype(np.float16)
    memory = np.zeros(SHARED, np.uint8)
    put(memory, A, a, 1, False, 0, 1024)
    put(memory, B, b, 1, False, 0, 1024)
    body, expected = COPY + FENCE + MEET + ORDER, 0
    for i, (first, second) in enumerate(((1, 1), (-1, 1), (1, -1), (-1, -1))):
        own = [descriptor(x + 32 * i, 1, 0, 1024) for x in (A, B)]
        body += product("m64n24k16.f32.f16.f16", *own, 12, f", {first}, {second}, 0, 0", str(min(i, 1)))
        part = slice(16 * i, 16 * i + 16)
        expected = expected + first * second * (a[:, part].astype(float) @ b[:, part].T.astype(float))
    y = run(body + DONE + stored(12), memory, 12)
    assert np.array_equal(accumulator(y.view(np.float32)), expected)


TYPES = {
    "f16": (np.float16, 16, lambda x: x.astype(np.float16)),
    "bf16": (np.uint16, 16, lambda x: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)),
    "tf32": (np.float32, 8, lambda x: x.astype(np.float32)),
    "s8": (np.int8, 32, lambda x: x.astype(np.int8)),
    "u8": (np.uint8, 32, lambda x: np.abs(x).astype(np.uint8)),
    # small integers in numbers of eight bits: a sign, exponents of bias 7 or 15, and three or two digits
    "e4m3": (np.uint8, 32, lambda x: small(x, 7, 3)),
    "e5m2": (np.uint8, 32, lambda x: small(x, 15, 2)),
}


def small(x, bias, digits):
    """Return the bits of integers from -4 to 4."""
    fraction, exponent = np.frexp(np.abs(x))
    bits = (exponent - 1 + bias << digits) + ((2 * fraction - 1) * 2**digits).astype(int)
    return (np.where(x == 0, 0, bits) | np.where(x < 0, 128, 0)).astype(np.uint8)


@pytest.mark.parametrize("from_registers", [False, True])
@pytest.mark.parametrize("type", TYPES)
def test_types(type, from_registers):
    kind, k, bits = TYPES[type]
    x, y = integers(64, k), integers(8, k, seed=1)
    if type == "u8":
        x, y = np.abs(x), np.abs(y)
    a, b = bits(x).astype(kind), bits(y).astype(kind)
    memory = np.zeros(SHARED, np.uint8)
    put(memory, B, b, 1, False, 0, 1024)
    d = "s32" if type in ("s8", "u8") else "f32"
    more = "" if d == "s32" else ", 1, 1, 0" if k == 16 else ", 1, 1"
    if from_registers:
        words = memory[: A + 2048].view(kind)
        width = 4 // a.itemsize  # elements of a register
        for thread in range(128):  # four registers a thread: two rows, and two halves of K
            for i in range(4):
                row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i % 2)
                column = k // 2 * (i // 2) + thread % 4 * width
                words[(16 * thread + 4 * i) // a.itemsize :][:width] = a[row, column : column + width]
        load = "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];\n"
        of, ready = "{%r3, %r4, %r5, %r6}", load
    else:
        put(memory, A, a, 1, False, 0, 1024)
        of, ready, more = descriptor(A, 1, 0, 1024), "", more + (", 0" if k == 16 else "")
    step = product(f"m64n8k{k}.{d}.{type}.{type}", of, descriptor(B, 1, 0, 1024), 4, more)
    found = run(COPY + FENCE + MEET + ready + ORDER + step + DONE + stored(4), memory, 4)
    found = found.view(np.int32 if d == "s32" else np.float32)
    assert np.array_equal(accumulator(found), x @ y.T)


def test_half_precision_accumulators_and_two_warpgroups():
    """Each warpgroup multiplies its own rows, and each register holds two elements."""
    a, b = integers(128, 16).astype(np.float16), integers(8, 16, seed=1).astype(np.float16)
    memory = np.zeros(SHARED, np.uint8)
    put(memory, A, a[:64], 3, False, 0, 256)
    put(memory, A + 4096, a[64:], 3, False, 0, 256)
    put(memory, B, b, 3, False, 0, 256)
    first, second, of_b = (descriptor(x, 3, 0, 256) for x in (A, A + 4096, B))
    body = f"""setp.lt.u32 %p1, %r1, 128; mov.b64 %rd7, {second}; @%p1 mov.b64 %rd7, {first};
        mov.b64 %rd8, {of_b};
        wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {{%r20, %r21}}, %rd7, %rd8, 0, 1, 1, 0, 0;\n"""
    y = run(COPY + FENCE + MEET + ORDER + body + DONE + stored(2), memory, 2, threads=256).view(np.float16)
    expected = a.astype(float) @ b.T.astype(float)
    for group in (0, 1):
        assert np.array_equal(accumulator(y[128 * group :][:128]), expected[64 * group :][:64])


def planted(change):
    a, b = integers(64, 16).astype(np.float16), integers(8, 16, seed=1).astype(np.float16)
    memory = np.zeros(SHARED, np.uint8)
    put(memory, A, a, 1, False, 0, 1024)
    put(memory, B, b, 1, False, 0, 1024)
    own = [descriptor(x, 1, 0, 1024) for x in (A, B)]
    first = ".loc 1 6 0\n" + product("m64n8k16.f32.f16.f16", *own, 4)
    second = ".loc 1 7 0\n" + product("m64n8k16.f32.f16.f16", *own, 4, scale="1")
    body = COPY + FENCE + MEET + ORDER + first + second + DONE + stored(4)
    y = run(change(body), memory, 4).view(np.float32)
    return accumulator(y), 2 * (a.astype(float) @ b.T.astype(float))


def replaced(old, new, count=1):
    def change(body):
        assert old in body
        return new.join(body.rsplit(old, count))

    return change


def before_the_wait(what):
    return replaced("wgmma.commit_group", f"{what}\nwgmma.commit_group")


def test_a_right_program_passes():
    found, expected = planted(lambda body: body)
    assert np.array_equal(found, expected)
    # A second fence between the products, and a fence of the proxy after the barrier, are allowed.
    found, expected = planted(replaced(".loc 1 7 0\n", ".loc 1 7 0\n" + ORDER))
    assert np.array_equal(found, expected)
    # Nothing was written since the fence, or the compiler has moved the write behind the fence.
    for change in (DONE + ".loc 1 7 0\n", DONE + ORDER + "add.f32 %r22, %r22, 0f00000000;\n"):
        found, expected = planted(replaced(".loc 1 7 0\n", change))
        assert np.array_equal(found, expected)
    # The compiler moves a register of the product before the wait, and uses it after the wait.
    moved = before_the_wait("mov.b32 %r7, %r21;")
    found, expected = planted(lambda body: moved(body).replace("], %r21;", "], %r7;"))
    assert np.array_equal(found, expected)
    found, expected = planted(replaced(FENCE + MEET, MEET + FENCE))
    assert np.array_equal(found, expected)


UNWAITED = "before waiting for the product that writes it"


@pytest.mark.parametrize(
    ("change", "fault", "what"),
    [
        (replaced("wgmma.wait_group.sync.aligned 0;\n", ""), ptx.TooEarly, UNWAITED),
        (replaced("wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;"), ptx.TooEarly, UNWAITED),
        (replaced("wgmma.commit_group.sync.aligned;\n", ""), ptx.TooEarly, UNWAITED),
        (before_the_wait("add.f32 %r7, %r21, %r21;"), ptx.TooEarly, f"uses the register %r21 {UNWAITED}"),
        (before_the_wait("mov.b32 %r7, %r21; add.f32 %r7, %r7, %r7;"), ptx.TooEarly, f"uses the register %r7 {UNWAITED}"),
        (before_the_wait("mov.b32 %r20, 0;"), ptx.TooEarly, f"uses the register %r20 {UNWAITED}"),
        (before_the_wait("st.shared.b32 [%r2], %r1;"), ptx.TooEarly, "before waiting for the asynchronous operation"),
        (replaced(FENCE, ""), ptx.Race, "without fence.proxy.async between"),
        (replaced(FENCE + MEET, FENCE), ptx.Race, "without a barrier between"),
        (replaced(MEET, MEET + "st.shared.b32 [%r2], %r1;\n" + MEET), ptx.Race, "without fence.proxy.async"),
        (replaced(ORDER, ""), ptx.Fault, "without wgmma.fence since it was last written"),
        (replaced(".loc 1 7 0\n", DONE + ".loc 1 7 0\nmov.b32 %r22, %r1;\n"), ptx.Fault, "the register %r22 without wgmma.fence"),
        (replaced(".loc 1 6 0\n", ".loc 1 6 0\nsetp.lt.u32 %p1, %r1, 96; @%p1 bra $L;\nret;\n$L:\n"),
         ptx.Barrier, "wgmma without all threads of its warpgroup"),
        (replaced(f"mov.b64 %rd7, {descriptor(A, 1, 0, 1024)};", "cvt.u64.u32 %rd7, %r1;"), ptx.Fault,
         "has another matrix descriptor than its warpgroup"),
        (replaced(f"mov.b64 %rd7, {descriptor(A, 1, 0, 1024)};", f"mov.b64 %rd7, {descriptor(SHARED, 1, 0, 1024)};"),
         ptx.OutOfBounds, r"wgmma reads shared memory \+ 49152; shared memory has 49152 bytes"),
        (replaced(", 1, 1, 1, 0, 0;", ", %p7, 1, 1, 0, 0;"), ptx.Undefined, "uninitialised predicate"),
        (replaced("mov.b64 %rd8,", "mov.b64 %rd9,", 2), ptx.Undefined,
         "uninitialised matrix descriptor"),
    ],
)  # fmt: skip
def test_planted_faults(change, fault, what):
    with pytest.raises(fault, match=what) as found:
        planted(change)
    assert found.value.place.file == "kernel.py" and found.value.place.line in (5, 6, 7, 8)


@pytest.mark.parametrize(
    "change",
    [
        replaced(f"mov.b64 %rd7, {descriptor(A, 1, 0, 1024)};", f"mov.b64 %rd7, {descriptor(A, 1, 0, x)};")
        for x in (512, 2048)
    ]
    + [
        replaced(
            f"mov.b64 %rd7, {descriptor(A, 1, 0, 1024)};", f"mov.b64 %rd7, {descriptor(A, mode, 0, 1024)};"
        )
        for mode in (0, 2, 3)
    ]
    + [replaced(", 1, 1, 1, 0, 0;", ", 1, 1, 1, 1, 0;"), replaced(", 1, 1, 1, 0, 0;", ", 1, 1, -1, 0, 0;")],
)
def test_a_wrong_descriptor_gives_a_wrong_product(change):
    found, expected = planted(change)
    assert not np.array_equal(found, expected)


@pytest.mark.parametrize("own", [descriptor(A, 1, 0, 1024) | 1 << 49, descriptor(A, 1, 0, 1024) | 1 << 15])
def test_other_descriptors_are_rejected(own):
    with pytest.raises(ptx.Unsupported, match="a matrix descriptor with"):
        planted(replaced(f"mov.b64 %rd7, {descriptor(A, 1, 0, 1024)};", f"mov.b64 %rd7, {own};"))


@pytest.mark.parametrize("kind", ["m64n8k16.f32.f16.bf16", "m64n8k8.f32.f16.f16", "m64n16k16.f32.f16.f16"])
def test_other_products_are_rejected(kind):
    with pytest.raises(ptx.Unsupported, match=r"wgmma\.mma_async"):
        planted(replaced("m64n8k16.f32.f16.f16", kind))


def test_undefined_elements_make_their_rows_undefined():
    """A row of A that was never written makes a row of D undefined, and no other."""
    store = "st.shared.v4.b32 [%r2+0], {%r3, %r4, %r5, %r6};"

    def body(line):
        return replaced(
            "ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd4+0]; " + store,
            f"ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd4+0]; setp.ne.u32 %p2, %r1, {line}; @%p2 {store}",
        )

    with pytest.raises(ptx.Undefined, match="stores an uninitialised value") as found:
        planted(body(8))  # the first 16 bytes of row 1
    assert found.value.thread == 4
    found, expected = planted(
        body(10)
    )  # of row 1, but not of its first 32 bytes: row 1 is swizzled by 16 bytes
    assert np.array_equal(found, expected)
