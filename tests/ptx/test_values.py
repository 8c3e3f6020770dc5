"""Which bits of a result are defined: those that no undefined bit of an operand can change."""

import numpy as np
import pytest

from backpass import ptx
from backpass.ptx import garbage
from backpass.ptx.arithmetic import compute
from backpass.ptx.values import Value, known
from tests.ptx.test_faults import HEAD, LOAD, STORE, TAIL, run

WIDE = [
    "and.b32",
    "or.b32",
    "xor.b32",
    "not.b32",
    "prmt.b32",
    "shl.b32",
    "shr.u32",
    "shr.s32",
    "bfe.u32",
    "bfe.s32",
]
EXACT = [
    *WIDE,
    "shf.l.wrap.b32",
    "shf.r.clamp.b32",
    "cvt.u16.u32",
    "cvt.s32.s64",
    "cvt.u64.u32",
    "cvt.s64.s32",
    "and.pred",
    "or.pred",
]
CAREFUL = [
    "selp.b32",
    "add.s32",
    "mul.lo.u32",
    "add.f32",
    "fma.rn.f32",
    "add.bf16x2",
    "cvt.rn.bf16x2.f32",
    "cvt.u32.u16",
    "setp.lt.s32",
    "sub.u32",
    "max.s32",
    "min.u32",
]


def operands(name, n, rng):
    """Operands of n threads, with undefined bits in those that an instruction moves."""
    counts = {"not": 1, "shf": 3, "prmt": 3, "bfe": 3, "selp": 3, "cvt": 2 if "x2" in name else 1, "fma": 3}
    operation, type = name.split(".")[0], name.split(".")[-1]
    kind = {"pred": bool, "u16": np.uint16, "s64": np.uint64}.get(type, np.uint32)
    found = []
    for i in range(counts.get(operation, 2)):
        own = bool if (operation, i) == ("selp", 2) else kind
        most = 2 if own is bool else 2 ** (8 * np.dtype(own).itemsize)
        bits, defined = (rng.integers(0, most, n, dtype=np.uint64).astype(own) for _ in range(2))
        some = rng.random(n) < 0.4
        defined = np.where(some, defined, ~np.dtype(own).type(0))
        if (operation in ("shl", "shr", "bfe") and i) or (operation in ("shf", "prmt") and i == 2):
            bits %= 0x10000 if operation == "prmt" else 40
            defined[:] = 2**32 - 1
        found.append(Value(bits, defined))
    return found


@pytest.mark.parametrize("name", EXACT + CAREFUL)
def test_defined_bits_do_not_depend_on_undefined_ones(name):
    rng, n = np.random.default_rng(1), 300
    values = operands(name, n, rng)
    result = compute(name, [v.bits for v in values])[0]
    defined = known(name, values)
    full = ~result.dtype.type(0)
    defined = np.where(defined, full, ~full) if defined.dtype == bool else defined
    changed = np.zeros_like(result)
    for _ in range(60):
        random = (rng.integers(0, 2**31, n) for _ in values)
        drawn = (
            (x % 2 if v.bits.dtype == bool else x * 2654435761).astype(v.bits.dtype)
            for x, v in zip(random, values, strict=True)
        )
        other = [v.bits ^ (x & ~v.defined) for v, x in zip(values, drawn, strict=True)]
        changed |= compute(name, other)[0] ^ result
    assert not (changed & defined).any()
    if name in EXACT:  # and each undefined bit does depend on one
        assert np.array_equal(changed, ~defined)
    assert (defined != full).any() and (defined == full).any()


HALF = np.tile([True, True, False, False], 64)  # the lower 16 bits of each number are defined


@pytest.mark.parametrize(
    ("body", "fine"),
    [
        ("mov.b32 {%rs1, %rs2}, %r5; st.global.b16 [%rd5], %rs1;", True),
        ("mov.b32 {%rs1, %rs2}, %r5; st.global.b16 [%rd5], %rs2;", False),
        ("mov.b32 {%rs1, %rs2}, %r5; mov.b32 %r6, {%rs1, %rs1}; st.global.b32 [%rd5], %r6;", True),
        ("cvt.u16.u32 %rs1, %r5; st.global.b16 [%rd5], %rs1;", True),
        ("and.b32 %r6, %r5, 65535; add.s32 %r6, %r6, 1; st.global.b32 [%rd5], %r6;", True),
        ("and.b32 %r6, %r5, 65536; add.s32 %r6, %r6, 1; st.global.b32 [%rd5], %r6;", False),
        ("shl.b32 %r6, %r5, 16; st.global.b32 [%rd5], %r6;", True),
        ("shr.u32 %r6, %r5, 8; st.global.b32 [%rd5], %r6;", False),
        ("prmt.b32 %r6, %r5, %r5, 0x3210; st.global.b32 [%rd5], %r6;", False),
        ("prmt.b32 %r6, %r5, %r5, 0x1010; st.global.b32 [%rd5], %r6;", True),
        ("prmt.b32 %r6, %r1, %r20, 0x7654; st.global.b32 [%rd5], %r6;", False),
        ("prmt.b32 %r6, %r1, %r20, 0x3210; st.global.b32 [%rd5], %r6;", True),
        ("mov.b32 %r6, {%rs4, %rs5}; st.global.b32 [%rd5], %r6;", False),
        ("add.bf16x2 %r6, %r5, %r5; mov.b32 {%rs1, %rs2}, %r6; st.global.b16 [%rd5], %rs1;", True),
        ("setp.gt.u32 %p2, %r5, 7; setp.gt.u32 %p3, %r1, 99; and.pred %p4, %p2, %p3; @%p4 bra $END; $END:", True),
        ("setp.gt.u32 %p2, %r5, 7; setp.lt.u32 %p3, %r1, 99; or.pred %p4, %p2, %p3; @%p4 bra $END; $END:", True),
        ("setp.gt.u32 %p2, %r5, 7; setp.lt.u32 %p3, %r1, 9; or.pred %p4, %p2, %p3; @%p4 bra $END; $END:", False),
        ("shl.b32 %r6, %r1, 2; st.shared.b32 [%r6], %r5; ld.shared.u16 %r7, [%r6]; st.global.b32 [%rd5], %r7;", True),
        ("shl.b32 %r6, %r1, 2; st.shared.b32 [%r6], %r5; ld.shared.s16 %r7, [%r6+2]; st.global.b32 [%rd5], %r7;", False),
    ],
)  # fmt: skip
def test_halves_of_a_register(body, fine):
    def execute():
        text = (
            HEAD.format(threads=64).replace(".reg .pred", ".reg .b16 %rs<9>;\n.reg .pred")
            + LOAD
            + body
            + TAIL
        )
        x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
        given = {"x": ptx.Tensor(x.view(np.uint8), defined=HALF), "y": ptx.Tensor(y.view(np.uint8)), "n": 64}
        ptx.run(ptx.parse(text), given, blocks=1, shared=1024)

    if fine:
        execute()
    else:
        with pytest.raises(ptx.Undefined):
            execute()


def test_each_half_of_a_pair_needs_one_number():
    one, other = np.array([0x3F800000, 0x40000000], np.uint32), np.zeros(2, np.uint32)
    pair = known("cvt.rn.bf16x2.f32", [Value(one, np.array([2**32 - 1, 7], np.uint32)), Value(other, ~other)])
    assert pair.tolist() == [0xFFFFFFFF, 0x0000FFFF]
    body = "ld.global.b32 %r5, [%rd4]; setp.eq.f16x2 %p2|%p3, %r5, %r5; {} bra $END; $END:"
    run(body.format("@%p2"), defined=HALF)
    with pytest.raises(ptx.Undefined):
        run(body.format("@%p3"), defined=HALF)


def test_the_low_bits_of_a_sum_and_equal_bits_of_a_maximum_are_known():
    x, low = np.array([0x1234], np.uint32), np.array([0xFFFF0FFF], np.uint32)
    all_known = np.array([0xFFFFFFFF], np.uint32)
    for name in ("add.s32", "sub.u32"):
        assert known(name, [Value(x, all_known), Value(x, low)])[0] == 0x0FFF
    assert known("max.s32", [Value(x, low), Value(x ^ np.uint32(5), all_known)])[0] == 0xFFFF0FFA
    assert known("add.s32", [Value(x, all_known)] * 2).all()


def test_a_choice_needs_the_predicate():
    with pytest.raises(ptx.Undefined):
        run("selp.b32 %r5, 1, 0, %p3;" + STORE)


def test_what_is_undefined_is_of_moderate_size_in_all_runs_but_the_first():
    drawn = [garbage.of_register("%r1", 64, np.uint32, seed).view(np.float32) for seed in garbage.SEEDS]
    assert np.ptp(np.log10(np.abs(drawn[0].astype(np.float64)))) > 20
    for numbers in drawn[1:]:
        assert numbers.min() > 1e-5 and numbers.max() < 1
    assert not np.array_equal(*drawn[1:])
