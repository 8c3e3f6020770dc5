"""How many queries and keys a program of ``flash_attention`` works on at once, by the
width of a head, the dtype, and the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from backpass.kernels.launch import capability, power_of_2


class Tiles(NamedTuple):
    """How many queries and keys a program works on at once, with how many warps, and in
    how many stages of the loop loads are under way together."""

    queries: int
    keys: int
    warps: int
    stages: int


# For heads of up to 64, 128 and 256 numbers. The tile that a program keeps, of queries
# or of keys, is long: the longer it is, the fewer bytes are read per product. The tile
# that it loops over is as long as registers (255 per thread) and shared memory allow.
WIDTHS = (64, 128, 256)
# 227 KiB of shared memory per program; in a product, each 4 warps take 64 rows of the
# first factor.
HOPPER = {
    "forward": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2)),
    "keys": (Tiles(64, 128, 8, 3), Tiles(64, 128, 8, 2), Tiles(16, 64, 8, 2)),
    "queries": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3), Tiles(64, 64, 8, 2)),
}
OTHERS = {  # 99 KiB, the least that a GPU which multiplies bfloat16 has
    "forward": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3), Tiles(64, 32, 8, 2)),
    "keys": (Tiles(32, 128, 8, 3), Tiles(64, 64, 8, 2), Tiles(32, 32, 4, 2)),
    "queries": (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 3), Tiles(32, 32, 8, 2)),
}
# A bias, a mask, a softcap and dropout take registers, and shared memory for each
# stage. A bias beside a mask may still spill some bytes per thread.
HOPPER_MORE = {
    "forward": HOPPER["forward"],
    "keys": (Tiles(64, 128, 8, 3), Tiles(64, 64, 8, 2), Tiles(32, 32, 4, 2)),
    "queries": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 32, 8, 2)),
}
OTHERS_MORE = {
    "forward": (Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(64, 32, 8, 2)),
    "keys": OTHERS["keys"],
    "queries": (Tiles(128, 32, 8, 3), Tiles(64, 64, 8, 2), Tiles(32, 32, 8, 2)),
}
FLOAT32 = {  # multiplied without tensor cores, from registers
    "forward": (Tiles(32, 32, 4, 2), Tiles(16, 16, 4, 2), Tiles(16, 16, 4, 2)),
    "keys": (Tiles(16, 32, 4, 2), Tiles(16, 16, 4, 2), Tiles(16, 16, 8, 2)),
    "queries": (Tiles(32, 32, 4, 2), Tiles(16, 16, 4, 2), Tiles(16, 16, 4, 2)),
}
FLOAT32_MORE = {  # with two stages a few bytes would be spilled
    part: tuple(tiles._replace(stages=1) for tiles in table)
    for part, table in FLOAT32.items()
}
# Heads of 256 numbers take 160 KiB in float64, and the program of dk and dv spills 64
# bytes per thread.
FLOAT64 = dict.fromkeys(
    ("forward", "keys", "queries"),
    (Tiles(16, 16, 4, 2), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
)


def tiles_for(
    part: str,
    like: torch.Tensor,
    width: int,
    tile: int | None,
    more: bool = False,
    drops: bool = False,
) -> Tiles:
    """The tiles of one loop, "forward", "keys" or "queries", for heads of that width,
    in the dtype and on the device of ``like``. With ``more``, scores are more than
    products: there is a bias, a mask, a softcap, or dropout. With ``drops``, there is
    dropout."""
    table: Mapping[str, tuple[Tiles, ...]]
    if like.dtype == torch.float64:
        table = FLOAT64
    elif like.dtype == torch.float32:
        table = FLOAT32_MORE if more else FLOAT32
    elif capability(like) in (90, 100, 103):
        table = HOPPER_MORE if more else HOPPER
    else:
        table = OTHERS_MORE if more else OTHERS
    chosen = next(
        tiles
        for limit, tiles in zip(WIDTHS, table[part], strict=True)
        if width <= limit
    )
    if drops and like.dtype.itemsize == 2:
        chosen = _half_as_long(part, chosen)
    if tile is None:
        return chosen
    most = max(16, 2 ** (int(tile).bit_length() - 1))
    return chosen._replace(
        queries=min(chosen.queries, most), keys=min(chosen.keys, most)
    )


def _half_as_long(part: str, tiles: Tiles) -> Tiles:
    """The tiles with dropout, whose 64-bit counters take registers: half of the
    tile that a program loops over, but not less than a product needs."""
    if part == "keys":
        return tiles._replace(queries=max(16, tiles.queries // 2))
    return tiles._replace(keys=max(16, tiles.keys // 2))


def padded(width: int) -> int:
    """The width of a tile that holds heads of that width: a power of 2, as every
    tile's, and at least 16, which a product needs."""
    return max(16, power_of_2(width))
