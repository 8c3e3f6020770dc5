"""README's code runs: its Python as it is printed, and its commands with small sizes."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from backpass import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = [textwrap.dedent(block).strip() for block in re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", README)]
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in [*BLOCKS, *re.findall(r"`([^`\n]+)`", README)]
    for line in block.splitlines()
    if re.match(r"(backpass|make|torchrun) ", line)
]
PYTHON = [block for block in BLOCKS if re.search(r"^(import|from) ", block, re.MULTILINE)]
# What makes a command quick, by its first word.
QUICK = {
    "train": "--steps 2 --layers 1 --width 8 --heads 2 --batch 1 --length 32",
    "sample": "--tokens 4",
    "parallel": "--threads",
}
OWN = """
import numpy as np


class RMSNorm:
    def forward(self, x, w):
        r = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True))
        return x * r * w, (x * r, r, w)

    def backward(self, dy, saved):
        x_hat, r, w = saved
        dx_hat = dy * w
        return r * (dx_hat - x_hat * (dx_hat * x_hat).mean(axis=-1, keepdims=True)), (dy * x_hat).sum(axis=0)


def scheme(group):
    return group.rank
"""
CONFIGURATION = """{"model_type": "gpt2", "vocab_size": 64, "n_positions": 1024, "n_embd": 8, "n_layer": 1, "n_head": 2}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the commands name."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "own.py").write_text(OWN)
    (folder / "notes.md").write_text("$$\n2 + 2 = 4\n$$\n")
    (folder / "config.json").write_text(CONFIGURATION)
    (folder / "chapters").mkdir()
    (folder / "chapters" / "a.md").write_text("The gradient of a sum is one for each term. " * 20)
    return folder


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[-1].strip())
def test_python(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize(
    "command", [each for each in dict.fromkeys(COMMANDS) if each.startswith("backpass ")]
)
def test_commands(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    name, *arguments = shlex.split(command)[1:]
    status = cli.main([name, *arguments, *QUICK.get(name, "").split()])
    assert status in ((0, 1) if name == "mutate" else (0,)), capsys.readouterr()


def test_targets_of_make_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [word for each in COMMANDS for word in re.findall(r"make ([a-z-]+)", each)]
    assert len(named) > 5 and not set(named) - set(targets)


def test_what_is_read_is_what_there_is():
    assert len(PYTHON) == 4 and len([each for each in COMMANDS if each.startswith("backpass ")]) >= 10


@pytest.mark.parametrize("page", ["README.md", "intro.md"])
def test_somebody_who_asks_whether_a_sentence_is_true_finds_the_ledger(page):
    text = (ROOT / page).read_text()
    where = {"README.md": "`chapters/claims/ledger.html`", "intro.md": "(#claims-index)"}
    assert "backpass claims" in text and where[page] in text
    assert "(claims-index)=" in (ROOT / "chapters/claims/ledger.md").read_text()
