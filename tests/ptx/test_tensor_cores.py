"""Matrices in the registers of a warp: products against NumPy's, and loads that put elements where mma reads them."""

from functools import reduce

import numpy as np
import pytest

from backpass.ptx import Unsupported
from backpass.ptx import tensor_cores as cores
from backpass.ptx.eight_bits import NUMBERS, saturated
from backpass.ptx.formats import bits_of, values_of

KINDS = {
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": ("bf16", cores.A_16, cores.B_16, cores.C),
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": ("f16", cores.A_16, cores.B_16, cores.C),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": ("tf32", cores.A_8, cores.B_8, cores.C),
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16": ("f16", cores.A_16, cores.B_16, cores.C),
    "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32": ("s8", cores.A_32, cores.B_32, cores.C),
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32": ("u8", cores.A_32, cores.B_32, cores.C),
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32": ("e4m3", cores.A_32, cores.B_32, cores.C),
    "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32": ("e5m2", cores.A_32, cores.B_32, cores.C),
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": ("f64", cores.A_4, cores.B_4, cores.C_4),
    **{
        f"mma.sync.aligned.m16n8k{k}.row.col.f64.f64.f64.f64": (
            "f64",
            cores.left_of_float64(k),
            cores.right_of_float64(k),
            cores.C,
        )
        for k in (4, 8, 16)
    },
}


def registers(matrix, where, type):
    """The registers ``[warps, 32, n]`` that hold matrices ``[warps, rows, columns]``."""
    own = cores.elements(matrix, where)
    if type in NUMBERS:
        return np.ascontiguousarray(saturated(own, type)).view(np.uint32)
    wide = {"f64": np.float64, "s8": np.int64, "u8": np.int64, "s32": np.int64}.get(type, np.float32)
    bits = np.ascontiguousarray(bits_of(own.astype(wide), "f32" if type == "tf32" else type))
    return bits if bits.itemsize >= 4 else bits.view(np.uint32)


@pytest.mark.parametrize("name", KINDS)
def test_products(name):
    type, a_at, b_at, c_at = KINDS[name]
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 9, (3, *where.shape)) / 4.0 for where in (a_at, b_at, c_at))
    if type in ("s8", "u8"):
        edges = (-128, 128) if type == "s8" else (0, 256)
        a, b = (rng.integers(*edges, (3, *where.shape)) for where in (a_at, b_at))
        c = rng.integers(-(2**20), 2**20, (3, *c_at.shape))
    wide = name.split(".")[-1]
    found = cores.mma(name, registers(a, a_at, type), registers(b, b_at, type), registers(c, c_at, wide))
    own = found.view({"f64": np.uint64, "f16": np.uint16}.get(wide, np.uint32))
    result = cores.matrices(values_of(np.ascontiguousarray(own), wide), c_at)
    np.testing.assert_array_equal(result, a @ b + c)


@pytest.mark.parametrize(
    "where",
    [cores.A_16, cores.B_16, cores.C, cores.A_32, cores.B_32, cores.A_8, cores.B_8, cores.A_4, cores.C_4],
)
def test_every_element_is_in_one_lane(where):
    places = {*zip(where.rows.ravel().tolist(), where.columns.ravel().tolist(), strict=True)}
    assert len(places) == where.rows.size == np.prod(where.shape)


def test_the_layout_is_that_of_the_manual():
    """PTX ISA 9.7.14.5.8: row and column of a lane's elements, written out for some lanes."""
    for lane in (0, 5, 17, 31):
        group, place = lane // 4, lane % 4
        a = [(group, 2 * place), (group, 2 * place + 1), (group + 8, 2 * place), (group + 8, 2 * place + 1)]
        a += [(row, column + 8) for row, column in a]
        assert [*zip(cores.A_16.rows[:, lane], cores.A_16.columns[:, lane], strict=True)] == a
        b = [(2 * place, group), (2 * place + 1, group), (2 * place + 8, group), (2 * place + 9, group)]
        assert [*zip(cores.B_16.rows[:, lane], cores.B_16.columns[:, lane], strict=True)] == b
        c = [(group, 2 * place), (group, 2 * place + 1), (group + 8, 2 * place), (group + 8, 2 * place + 1)]
        assert [*zip(cores.C.rows[:, lane], cores.C.columns[:, lane], strict=True)] == c


def test_loaded_matrices_are_what_mma_reads():
    """Four matrices of eight rows are the quarters of A; two of them, transposed, are B."""
    rng = np.random.default_rng(1)
    a, b = (
        rng.integers(0, 2**16, (2, 16, 16)).astype(np.uint16),
        rng.integers(0, 2**16, (2, 16, 8)).astype(np.uint16),
    )
    quarters = np.stack([a[:, :8, :8], a[:, 8:, :8], a[:, :8, 8:], a[:, 8:, 8:]], axis=1)
    own = cores.elements(a, cores.A_16).reshape(2, 32, 4, 2).astype(np.uint32)
    np.testing.assert_array_equal(
        cores.loaded_matrices(quarters, False), own[..., 0] | own[..., 1] << np.uint32(16)
    )
    halves = np.stack([b[:, :8], b[:, 8:]], axis=1)
    own = cores.elements(b, cores.B_16).reshape(2, 32, 2, 2).astype(np.uint32)
    np.testing.assert_array_equal(
        cores.loaded_matrices(halves, True), own[..., 0] | own[..., 1] << np.uint32(16)
    )


@pytest.mark.parametrize("how", ["bfly", "up", "down", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles_within_segments(how, width):
    by, lanes = np.arange(32) % 7, np.arange(32)
    bound = 0 if how == "up" else 31
    clamp = np.full(32, (32 - width) << 8 | bound)
    source, inside = cores.shuffled_from(how, by, clamp)
    start = lanes // width * width
    wanted = {"bfly": lanes ^ by, "up": lanes - by, "down": lanes + by, "idx": start + by % width}[how]
    within = (wanted >= start) & (wanted < start + width)
    np.testing.assert_array_equal(inside, within)
    np.testing.assert_array_equal(source, np.where(within, wanted, lanes))


def test_other_shapes_are_named():
    for name in (
        "m16n8k64.row.col.s32.s4.s4.s32",
        "m16n8k32.row.col.other.s32.s8.s8.s32",
        "m16n8k8.row.row.f32.tf32.tf32.f32",
    ):
        with pytest.raises(Unsupported, match=name):
            cores.mma(f"mma.sync.aligned.{name}", *[np.zeros((1, 32, 4), np.uint32)] * 3)


def test_bytes_are_where_the_manual_says():
    """PTX ISA, mma.m16n8k32: bytes 0 to 3 of a lane's first register, and those of its last."""
    for lane in (0, 6, 31):
        group, place = lane // 4, lane % 4
        a = [*zip(cores.A_32.rows[:, lane], cores.A_32.columns[:, lane], strict=True)]
        assert a[:5] == [*[(group, 4 * place + i) for i in range(4)], (group + 8, 4 * place)]
        assert a[8] == (group, 4 * place + 16) and a[15] == (group + 8, 4 * place + 19)
        b = [*zip(cores.B_32.rows[:, lane], cores.B_32.columns[:, lane], strict=True)]
        assert b[3] == (4 * place + 3, group) and b[4] == (4 * place + 16, group)


def test_sums_of_bytes_saturate_if_they_should():
    a, b = (np.full((1, *where.shape), 127) for where in (cores.A_32, cores.B_32))
    c = np.full((1, *cores.C.shape), 2**31 - 5)
    own = registers(a, cores.A_32, "s8"), registers(b, cores.B_32, "s8"), registers(c, cores.C, "s32")
    name = "mma.sync.aligned.m16n8k32.row.col{}.s32.s8.s8.s32"
    assert (cores.mma(name.format(".satfinite"), *own) == 2**31 - 1).all()
    assert (cores.mma(name.format(""), *own) == 2**31 - 5 + 32 * 127**2).all()


@pytest.mark.parametrize("name", KINDS)
def test_an_element_needs_its_row_and_its_column(name):
    """Lane 5 has an undefined element of A, of B, or of C in its first register."""
    _, a_at, b_at, c_at = KINDS[name]
    counts = [
        registers(np.zeros((1, *at.shape)), at, type).shape
        for at, type in zip((a_at, b_at, c_at), name.split(".")[-3:], strict=True)
    ]
    for which, at in enumerate((a_at, b_at, c_at)):
        known = [np.ones(shape, bool) for shape in counts]
        known[which][0, 5, 0] = False
        each = len(at.rows) // counts[which][2]
        touched = np.zeros((1, *at.shape), bool)
        touched[0, at.rows[:each, 5], at.columns[:each, 5]] = True
        result = np.zeros((1, *c_at.shape), bool)
        result |= (
            touched.any(axis=2)[:, :, None]
            if which == 0
            else touched.any(axis=1)[:, None]
            if which == 1
            else touched
        )
        own = cores.elements(result, c_at)
        expected = ~own.reshape(1, 32, counts[2][2], -1).any(axis=3)
        assert np.array_equal(cores.mma_needs(name, *known), expected) and expected.any()


@pytest.mark.parametrize(
    "name", ["add.s32", "add.u32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32"]
)
def test_reductions_of_a_warp(name):
    """redux.sync: every lane receives the reduction of the 32 numbers."""
    x = np.random.default_rng(2).integers(0, 2**32, (3, 32), dtype=np.uint32)
    numbers = x.view(np.int32) if "s32" in name else x
    function = {"add": sum, "min": min, "max": max}
    bitwise = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}
    operation, found = name[: name.index(".")], cores.redux(f"redux.sync.{name}", x)
    for row, got in zip(numbers.tolist(), found, strict=True):
        exact = function[operation](row) if operation in function else reduce(bitwise[operation], row)
        assert (got == exact % 2**32).all()
    with pytest.raises(Unsupported, match=r"redux\.sync\.add\.f32"):
        cores.redux("redux.sync.add.f32", x)
