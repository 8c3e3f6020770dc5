"""A record states which code it timed, and a page says when that code has changed since."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from backpass.recorded import code, records

from .test_records import record as record

SOURCE = '''"""Docstring of a module, with “letters” of several bytes."""

import math
from os import (
    path,  # a comment
)


class Scale:
    """Of a class."""

    def twice(self, x):
        """Of a function,
        in two lines – that end here."""
        return 2 * x  # a comment


TEXT = "# not a comment"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Docstring of a module, with “letters” of several bytes.", "Shorter."),
        ("Of a function,\n        in two lines – that end here.", "Of a function."),
        ("  # a comment\n\n", "\n\n"),
        ("        return 2 * x", "\n        return 2 *  x"),
        ("import math", "import math, json"),
        ("    path,  # a comment\n", "    path,\n    sep,\n"),
    ],
)
def test_text_layout_and_imports_do_not_count(old, new):
    assert old in SOURCE
    assert code.hashed(SOURCE.replace(old, new)) == code.hashed(SOURCE)


@pytest.mark.parametrize(("old", "new"), [("2 * x", "3 * x"), ("# not a", "# never a"), ("twice", "double")])
def test_code_and_strings_count(old, new):
    assert code.hashed(SOURCE.replace(old, new)) != code.hashed(SOURCE)


def test_a_file_that_changed_or_is_gone_is_named(tmp_path):
    for folder in ("ops", "contract"):
        (tmp_path / folder).mkdir()
    recorded = {}
    for name in ("contract/values.py", "ops/relu.py", "ops/gelu.py"):
        (tmp_path / name).write_text(SOURCE)
        recorded[name] = code.hashed(SOURCE)
    assert code.changed(recorded, tmp_path) == []
    assert code.changed(recorded | {"ops/gone.py": "0"}, tmp_path) == ["ops/gone.py"]


def test_files_are_named_kernels_and_operations_first():
    unknown = dict.fromkeys(("contract/a.py", "functional.py", "ops/a.py", "kernels/a.py"), "0")
    assert code.changed(unknown) == ["kernels/a.py", "ops/a.py", "contract/a.py", "functional.py"]


def test_what_a_script_has_loaded_is_what_it_timed():
    import backpass.ops.relu

    loaded = code.loaded()
    assert {"ops/relu.py", "contract/arrays.py"} <= loaded.keys()
    assert not [path for path in loaded if path.startswith("recorded/") or path in code.UNTIMED]
    assert code.changed(loaded) == []
    assert all((code.PACKAGE / path).is_file() for path in code.UNTIMED)
    assert backpass.ops.relu.__name__ in sys.modules


def test_a_record_says_what_has_changed_since(record):
    """The page shows this line beside the figures."""
    now = code.loaded()
    assert dataclasses.replace(record, code=now).since == ""
    changed = dataclasses.replace(record, code=now | {"contract/arrays.py": "0"})
    expected = (
        f"; since then the code of 1 of the {len(now)} files that were loaded has changed: contract/arrays.py"
    )
    assert changed.since == expected
    assert changed.provenance.endswith(expected) and expected in repr(changed)
    assert expected in changed._repr_html_()
    many = dict.fromkeys((f"ops/{letter}.py" for letter in "abcdefgh"), "0")
    assert dataclasses.replace(record, code=many).since.endswith("changed: " + ", ".join([*many][:6]) + ", …")


NOT_OF_CODE = {  # experiments of pages, which repeat a part of each; public programs; the tests' own weight
    *("gradient_depth", "gradient_flow", "gradient_noise", "gradient_warmup", "precision_runs"),
    *("public_kernels", "training_run", "two_models", "weight"),
}


def test_every_record_of_times_or_memory_states_its_code():
    for path in Path(records.RESULTS).glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found.get("code") or found["name"] in NOT_OF_CODE, path.name
