"""``backpass parallel`` runs a scheme on ranks that are threads, processes, or what torchrun started."""

import os
import re
import subprocess
import sys

import pytest

from backpass.cli import main
from backpass.parallel import joined

SCHEMES = """
import numpy as np

SIZE = 3

def total(group):
    return group.all_reduce(np.full((2, 2), group.rank + 1.0))

def fails(group):
    if group.rank == 1:
        raise ArithmeticError("no memory left")
    return group.all_reduce(np.ones(3))

def total_then_fails(group):
    print(f"rank {group.rank}:", total(group), flush=True)
    return fails(group)

def hangs(group):
    if group.rank:
        return group.all_reduce(np.ones(3))
    import time
    time.sleep(60)

def silent(group):
    return ""
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / f"schemes_of_{tmp_path.name}.py"
    path.write_text(SCHEMES)
    return str(path)


def printed(*values):
    """What is printed for each rank's number, which all elements of its result have."""
    return "".join(f"rank {rank}: [[{v}. {v}.]\n         [{v}. {v}.]]\n" for rank, v in enumerate(values))


@pytest.mark.parametrize("how", [[], ["--threads"]])
def test_each_rank_prints_its_result(file, capsys, how):
    if not how:
        pytest.importorskip("torch.distributed")
    assert main(["parallel", f"{file}:total", "--ranks", "3", *how]) == 0
    assert capsys.readouterr().out == printed(6, 6, 6)
    assert main(["parallel", f"{file}:total", *how]) == 0
    assert capsys.readouterr().out == printed(3, 3)
    assert main(["parallel", f"{file}:silent", *how]) == 0
    assert capsys.readouterr().out == "rank 0: \nrank 1: \n"


@pytest.mark.parametrize("how", [[], ["--threads"]])
def test_a_rank_that_fails_is_named(file, capsys, how):
    if not how:
        pytest.importorskip("torch.distributed")
    assert main(["parallel", f"{file}:fails", *how]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rank 1: ")
    assert said.err.endswith("ArithmeticError: no memory left\n")


def test_a_rank_that_hangs_is_ended(file, capsys):
    pytest.importorskip("torch.distributed")
    assert main(["parallel", f"{file}:hangs", "--timeout", "8"]) == 1
    assert "rank 0: no answer within 8.0 s; ranks without an answer: 0, 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["total", "--ranks", "0"], "--ranks: expected an integer of at least 1; got 0"),
        (["total", "--timeout", "0"], "--timeout: expected a number above 0; got 0"),
        (["total", "--timeout", "nan"], "--timeout: expected a number above 0; got nan"),
        (["total", "--threads", "--timeout", "3"], "--timeout: threads cannot be ended"),
        (["totals"], "has nothing called 'totals'; did you mean 'total'?"),
        (["SIZE"], "expected a function of the group; got int"),
    ],
)
def test_a_command_that_is_not_valid_is_rejected(file, capsys, arguments, message):
    name, *options = arguments
    with pytest.raises(SystemExit) as caught:
        main(["parallel", f"{file}:{name}", *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_module_that_cannot_be_imported_shows_its_own_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "broken_scheme.py"
    path.write_text("1 / 0")
    assert main(["parallel", f"{path}:scheme"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_torchrun_starts_the_ranks_and_one_that_fails_ends_them(file):
    pytest.importorskip("torch.distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--no-python", sys.executable, "-m", "backpass", "parallel", f"{file}:total_then_fails"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 1
    # The ranks write at the same time, so their lines may be mixed.
    pieces = re.compile(r"[a-z]+|\d+:|\[|\]|\d+\.\d*")
    assert sorted(pieces.findall(done.stdout)) == sorted(pieces.findall(printed(3, 3)))
    assert "ArithmeticError: no memory left" in done.stderr


@pytest.mark.parametrize("option", ["--threads", "--ranks=2"])
def test_torchrun_says_how_many_ranks_there_are(file, capsys, monkeypatch, option):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a run")
    with pytest.raises(SystemExit):
        main(["parallel", f"{file}:total", option])
    assert f"{option.split('=')[0]}: torchrun " in capsys.readouterr().err


def test_without_torchrun_there_is_nothing_to_join():
    pytest.importorskip("torch.distributed")
    with pytest.raises(ValueError, match="RANK expected"), joined():
        pass
