"""The kernels' own tests at an odd size, in bfloat16, run with the compiled kernels.

They have the bounds of ``tests/kernels``. Uninitialised memory needs no poison: using it is a fault.
"""

import pytest
import torch

from backpass.kernels import launch, sums_over_rows
from tests.kernels import (
    test_cross_entropy,
    test_elementwise,
    test_embedding,
    test_flash_attention,
    test_layer_norm,
    test_log_softmax,
    test_norm_of_sum,
    test_rms_norm,
    test_rope,
    test_rotated_norm,
    test_softmax,
)
from tests.kernels.support import in_tiles, sources

GIVEN = {"dtype": torch.bfloat16, "device": "cpu", "poisoned": None}
LENGTHS = pytest.mark.parametrize("lengths", [(20, 37), (37, 20)], ids=str)


@pytest.mark.parametrize("path", ["rows", "tiles"])
@pytest.mark.parametrize(
    "module",
    [test_layer_norm, test_rms_norm, test_softmax, test_log_softmax],
    ids=lambda m: m.op.__name__.rpartition(".")[2],
)
def test_rows(module, path, monkeypatch):
    if path == "tiles":
        in_tiles(module.kernel, monkeypatch)
    tests = module.TestRows() if hasattr(module, "TestRows") else module
    tests.test_odd_sizes((7, 63), path=path, **GIVEN)


@pytest.mark.parametrize("module", [test_layer_norm, test_rms_norm], ids=["layer_norm", "rms_norm"])
def test_a_norms_sums_apart_from_rows_and_in_pieces(module, monkeypatch):
    given = {"dtype": GIVEN["dtype"], "device": "cpu", "poisoned": None, "monkeypatch": monkeypatch}
    module.test_totals_of_several_pieces(**given)
    module.test_sums_apart_from_rows(**given)


@pytest.mark.parametrize("module", [test_layer_norm, test_rms_norm], ids=["layer_norm", "rms_norm"])
def test_a_norms_backward_that_loads_ahead(module, monkeypatch):
    """Rows of a multiple of 16 bytes are copied to shared memory: here eleven blocks of rows, for two programs."""
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 2)
    monkeypatch.setattr(launch, "SHORT_ROWS_ELEMENTS", 256)
    module.test_odd_sizes((21, 128), path=None, **GIVEN)


@pytest.mark.parametrize("stem", test_norm_of_sum.NORMS)
def test_a_norm_of_a_sum(stem, monkeypatch):
    """A backward that loads ahead, as above: of three arrays."""
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 2)
    monkeypatch.setattr(launch, "SHORT_ROWS_ELEMENTS", 256)
    test_norm_of_sum.test_of_whole_rows((21, 128), stem=stem, **GIVEN)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_a_rotated_norm(interleaved, monkeypatch):
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 2)
    monkeypatch.setattr(launch, "SHORT_ROWS_ELEMENTS", 256)
    for shape in ((3, 7, 66), (3, 7, 128)):
        test_rotated_norm.test_odd_sizes(shape, interleaved=interleaved, **GIVEN)


@pytest.mark.parametrize("row_bytes", [None, 128], ids=["whole rows", "pieces"])
def test_cross_entropys_rows(row_bytes, monkeypatch):
    if row_bytes:
        monkeypatch.setattr(test_cross_entropy.kernel, "ROW_BYTES", row_bytes)
    test_cross_entropy.test_odd_sizes((7, 63), path=None, **GIVEN)


@pytest.mark.parametrize("kernel", test_elementwise.KERNELS, ids=str)
def test_elements(kernel):
    test_elementwise.test_odd_sizes((7, 63), kernel=kernel, **GIVEN)


def test_embedding_of_tokens():
    test_embedding.test_odd_sizes((3, 40), **GIVEN)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_rope_of_pairs(interleaved):
    test_rope.test_odd_sizes((3, 5, 66), interleaved=interleaved, **GIVEN)


@LENGTHS
def test_flash_attention_of_several_tiles(lengths):
    test_flash_attention.test_several_tiles(
        lengths, options=test_flash_attention.SEEN["from the last"], **GIVEN
    )


@pytest.mark.rotates(of=lambda **_: sources("flash_attention"))
@pytest.mark.parametrize("given", ["all", "bias", "mask", "sink"])
@LENGTHS
def test_flash_attention_of_more_inputs(lengths, given):
    """Each case takes some seconds, so one of them runs at each push."""
    test_flash_attention.test_several_tiles_of_every_input(lengths, option="a softcap", given=given, **GIVEN)


def test_flash_attention_beside_a_window():
    test_flash_attention.test_every_input_beside_a_window(**GIVEN)
