"""Matrices in the registers of a warp: products against NumPy's, and loads that put elements where mma reads them."""

import numpy as np
import pytest

from backpass.ptx import Unsupported
from backpass.ptx import tensor_cores as cores
from backpass.ptx.formats import bits_of, values_of

KINDS = {
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": ("bf16", cores.A_16, cores.B_16, cores.C),
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": ("f16", cores.A_16, cores.B_16, cores.C),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": ("tf32", cores.A_8, cores.B_8, cores.C),
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": ("f64", cores.A_4, cores.B_4, cores.C_4),
}


def registers(matrix, where, type):
    """The registers of a warp that hold a matrix ``[warps, rows, columns]``: two halves each."""
    own = cores.elements(matrix, where)
    bits = bits_of(own.astype(np.float32 if type != "f64" else np.float64), "f32" if type == "tf32" else type)
    if type in ("bf16", "f16"):
        pairs = bits.reshape(*bits.shape[:2], -1, 2).astype(np.uint32)
        return pairs[..., 0] | pairs[..., 1] << np.uint32(16)
    return bits


@pytest.mark.parametrize("name", KINDS)
def test_products(name):
    type, a_at, b_at, c_at = KINDS[name]
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 9, (3, *where.shape)) / 4.0 for where in (a_at, b_at, c_at))
    wide = "f64" if type == "f64" else "f32"
    found = cores.mma(name, registers(a, a_at, type), registers(b, b_at, type), registers(c, c_at, wide))
    result = cores.matrices(values_of(found, wide), c_at)
    np.testing.assert_array_equal(result, a @ b + c)


@pytest.mark.parametrize(
    "where", [cores.A_16, cores.B_16, cores.C, cores.A_8, cores.B_8, cores.A_4, cores.C_4]
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
    with pytest.raises(Unsupported, match="m16n8k32"):
        cores.mma("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", *[np.zeros((1, 32, 4), np.uint32)] * 3)
