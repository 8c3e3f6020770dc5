"""The kernel's row of a check turns red after any single change in the arithmetic of a backward kernel.

Changed are the expressions made of the kernel's values alone: not addresses, masks and sizes, whose mistakes
the kernel's own tests look for in poisoned memory.
"""

import ast
import importlib.util
import inspect
import textwrap
from dataclasses import dataclass, field

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import cli, kernels  # noqa: E402
from backpass.verify import check, draw  # noqa: E402
from backpass.verify.convert import to_torch  # noqa: E402
from backpass.verify.drawing import options_for  # noqa: E402
from backpass.verify.mutation import mutants  # noqa: E402


@dataclass(frozen=True)
class Changed:
    """A function to be changed: one of Triton's in a kernel's module, with the names of its values."""

    stem: str
    function: str
    values: frozenset[str]
    # Constants of the module under which this is the function that runs.
    settings: dict[str, int] = field(default_factory=dict)
    # Lengths of letters, and of leading axes, at which a check is given inputs.
    lengths: dict[str, int] = field(default_factory=dict)
    leading: tuple[int, ...] = (3,)
    # Changes that compute the same, each with the proof.
    equivalent: dict[str, str] = field(default_factory=dict)


TILES = {"ROW_BYTES": 4, "TILE_BYTES": 128}
TABLE = [
    Changed("softmax", "_backward_rows", frozenset({"dy", "y", "dx"}), lengths={"n": 45}),
    Changed(
        "softmax",
        "_backward_tiles",
        frozenset({"dy", "y", "dot"}),
        TILES,
        lengths={"n": 45},
        equivalent={
            "tl.sum(dy * y, axis=0) → tl.sum(dy * y)": "A tile has one axis, and is summed over all.",
            "axis=0 → axis=-1": "A tile has one axis: its last is its first.",
        },
    ),
]


def arithmetic(values: set[str]):
    """Whether an expression is made of the kernel's values and of nothing else."""

    def chosen(node: ast.AST) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - {"tl"}
        return isinstance(node, (ast.expr, ast.AugAssign)) and bool(names) and names <= values

    return chosen


def triton_functions(module) -> list[str]:
    """Names of the functions that the module itself has Triton compile."""
    return [
        name
        for name, value in vars(module).items()
        if getattr(getattr(value, "fn", None), "__module__", None) == module.__name__
    ]


def changed_module(module, name: str, mutant, folder, number: int):
    """The kernel's module with one function changed, from a file: Triton reads the source of what it compiles."""
    source = inspect.getsource(module)
    before = textwrap.dedent(inspect.getsource(getattr(module, name).fn))
    assert before in source
    path = folder / f"changed_{number}.py"
    path.write_text(source.replace(before, ast.unparse(mutant.tree) + "\n"))
    return loaded(path)


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel_fails(kernel, row: Changed, monkeypatch) -> bool:
    for setting, value in row.settings.items():
        monkeypatch.setattr(kernel, setting, value)
    monkeypatch.setattr(kernels, "load", lambda stem: kernel)
    leading = dict.fromkeys(("*", "*a", "*b"), row.leading)
    inputs = draw(row.stem, np.random.default_rng(0), lengths=row.lengths, leading=leading)
    inputs = [to_torch(value, dtype=torch.float32) for value in inputs]
    options = options_for(row.stem)
    return bool(check(row.stem, *inputs, methods=["kernel"], raises=False, **options).failed)


@pytest.mark.parametrize("name", ["_forward_tiles", "_backward_tiles"])
def test_backpass_verify_reaches_the_kernel_of_long_rows(name, tmp_path, monkeypatch, capsys, device):
    """With nothing set: what `backpass verify` runs has rows that one program does not hold."""
    softmax = kernels.load("softmax")
    result = {"_forward_tiles": "tl.exp(x - subtracted) / divisor", "_backward_tiles": "y * (dy - dot)"}[name]
    source = inspect.getsource(softmax)
    assert source.count(result) == 1
    path = tmp_path / f"wrong{name}.py"
    path.write_text(source.replace(result, f"17 * {result}"))
    wrong = loaded(path)
    monkeypatch.setattr(kernels, "load", lambda stem: wrong)
    assert cli.main(["verify", "softmax"]) == 1
    failed = [line.split() for line in capsys.readouterr().out.splitlines() if "✗ FAILED" in line]
    rows = [line for line in failed if line[:2] == ["Triton", "kernel"]]
    assert rows
    assert all("rows of 16421," in " ".join(line) for line in rows)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # some changes divide by 0
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.stem}{row.function}")
def test_every_change_is_caught(row, tmp_path, monkeypatch, device):
    module = kernels.load(row.stem)
    function = getattr(module, row.function).fn
    made = list(mutants(function, arithmetic(row.values)))
    assert len(made) >= 10
    assert not kernel_fails(module, row, monkeypatch)
    survivors = {
        mutant.change
        for number, mutant in enumerate(made)
        if not kernel_fails(changed_module(module, row.function, mutant, tmp_path, number), row, monkeypatch)
    }
    assert survivors == set(row.equivalent)


@pytest.mark.parametrize("stem", kernels.STEMS)
def test_no_backward_is_left_out(stem, device):
    """Every function of Triton's in a kernel's module that is not the forward's alone."""
    functions = triton_functions(kernels.load(stem))
    assert {name for name in functions if not name.startswith("_forward")} == {
        row.function for row in TABLE if row.stem == stem
    }
