"""What ``functional_speed.py`` compares with what."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import functional_speed

SECONDS = {
    "PyTorch": 6.0,
    "ours": 12.0,
    functional_speed.EACH: 3.0,
    "PyTorch, compiled": 2.0,
    "ours, compiled": 1.0,
}


def test_ours_is_compared_with_eager_functions_unless_torch_compile_compiles_it(monkeypatch, capsys):
    """So the column of compiled operations says what an eager model gains."""
    monkeypatch.setattr(functional_speed, "medians", lambda calls, chosen: SECONDS)
    what = {"of": "softmax", "size": "typical", "shape": "2 × 3"}
    rows = functional_speed.timed(
        SimpleNamespace(), what, dict.fromkeys(SECONDS), dict.fromkeys(SECONDS), 1.5
    )
    found = {row["provider"]: (row["over_pytorch"], row["share_of_limit"]) for row in rows}
    assert found == {
        "PyTorch": (1, 0.25),
        "ours": (2, 0.125),
        "ours, each operation compiled": (0.5, 0.5),
        "PyTorch, compiled": (1, 0.75),
        "ours, compiled": (0.5, 1.5),
    }
