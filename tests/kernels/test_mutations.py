"""The kernel's row of a check turns red after any single change in the arithmetic of a backward kernel.

Changed are the expressions made of the kernel's values alone: not addresses, masks and sizes, whose mistakes
`test_softmax.py` looks for in poisoned memory.
"""

import ast
import importlib.util
import inspect
import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import cli, kernels  # noqa: E402
from backpass.kernels import softmax  # noqa: E402
from backpass.verify import check  # noqa: E402
from backpass.verify.mutation import mutants  # noqa: E402

# The values of each backward kernel, and the settings of its module under which it is the one that runs.
KERNELS = [
    pytest.param(softmax, "_backward_rows", {"dy", "y", "dx"}, {}, id="softmax, rows"),
    pytest.param(
        softmax,
        "_backward_tiles",
        {"dy", "y", "dot"},
        {"ROW_BYTES": 4, "TILE_BYTES": 128},
        id="softmax, tiles",
    ),
]


# Changes that compute the same, each with the proof.
EQUIVALENT = {
    (
        "_backward_tiles",
        "tl.sum(dy * y, axis=0) → tl.sum(dy * y)",
    ): "A tile has one axis, and is summed over all.",
    ("_backward_tiles", "axis=0 → axis=-1"): "A tile has one axis: its last is its first.",
}


def arithmetic(values: set[str]):
    """Whether an expression is made of the kernel's values and of nothing else."""

    def chosen(node: ast.AST) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - {"tl"}
        return isinstance(node, (ast.expr, ast.AugAssign)) and bool(names) and names <= values

    return chosen


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


def kernel_fails(kernel, settings: dict[str, int], monkeypatch) -> bool:
    for setting, value in settings.items():
        monkeypatch.setattr(kernel, setting, value)
    monkeypatch.setattr(kernels, "load", lambda stem: kernel)
    x = torch.tensor(np.random.default_rng(0).standard_normal((3, 45)), dtype=torch.float32)
    return bool(check("softmax", x, methods=["kernel"], raises=False).failed)


@pytest.mark.parametrize("name", ["_forward_tiles", "_backward_tiles"])
def test_backpass_verify_reaches_the_kernel_of_long_rows(name, tmp_path, monkeypatch, capsys, device):
    """With nothing set: what `backpass verify` runs has rows that one program does not hold."""
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


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # some changes divide 0 by 0
@pytest.mark.parametrize(("module", "name", "values", "settings"), KERNELS)
def test_every_change_is_caught(module, name, values, settings, tmp_path, monkeypatch, device):
    assert not kernel_fails(module, settings, monkeypatch)
    function = getattr(module, name).fn
    made = list(mutants(function, arithmetic(values)))
    assert len(made) >= 10
    survivors = {
        mutant.change
        for number, mutant in enumerate(made)
        if not kernel_fails(changed_module(module, name, mutant, tmp_path, number), settings, monkeypatch)
    }
    assert survivors == {change for where, change in EQUIVALENT if where == name}
