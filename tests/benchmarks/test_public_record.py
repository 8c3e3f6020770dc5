"""The record of public kernels: what it says of each program, and that the script has these programs."""

import re
import sys
from pathlib import Path

import pytest

from backpass.recorded import records

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import public

ROWS = records.load("public_kernels").rows
ENDS = (
    "ran",
    "error: ",
    "did not end",
    "Race: ",
    "OutOfBounds: ",
    "Unsupported: ",
    "Order: ",
    "Undefined: ",
    "Barrier: ",
)


def test_every_row_is_of_a_program_of_the_script():
    programs = {
        (project.package, program, dtype): project.functions[program]
        for project in public.projects().values()
        for program in project.programs
        for dtype in project.dtypes[program]
    }
    for row in ROWS:
        assert programs[row["project"], row["program"], row["dtype"]] == row["function"]
    assert len({(row["project"], row["program"], row["dtype"]) for row in ROWS}) == len(ROWS)


def test_every_row_has_a_version_and_an_outcome():
    for row in ROWS:
        assert row["version"] and row["outcome"].startswith(ENDS), row
        if row["outcome"] == "ran":
            assert row["launches"] > 0 and row["kernels"] and row["error"] is not None
        else:
            assert row["error"] is None and not row["findings"]


# The page says why these programs are less accurate.
EXPLAINED = {"linear_cross_entropy_capped", "quantise_to_fp8"}


def test_programs_without_products_in_tf32_are_as_accurate_as_pytorch():
    """Up to a factor: both round, in different orders."""
    for row in (row for row in ROWS if row["program"] not in EXPLAINED):
        if (
            row["outcome"] == "ran"
            and row["pytorch_error"] is not None
            and row["dtype"] == "float32"
            and not row["tf32"]
        ):
            assert row["error"] <= 4 * row["pytorch_error"] + 2e-6, row


def test_no_row_names_a_folder_of_the_machine():
    absolute = re.compile(r"(?<![\w.])/\w[\w.-]*/\w")  # such as one's home folder
    assert absolute.search(f"at {Path.cwd()}") and not any(absolute.search(str(row)) for row in ROWS)
