"""The kernel's row of a check turns red after any single change in the arithmetic of a backward kernel.

Changed are the expressions made of the kernel's values alone: not addresses, masks and sizes, whose mistakes
the kernel's own tests look for in poisoned memory.
"""

import ast
import importlib.util
import inspect
import textwrap
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass import cli, kernels, ops  # noqa: E402
from backpass.shapes import parse  # noqa: E402
from backpass.verify import METHODS, draw  # noqa: E402
from backpass.verify.case import Case  # noqa: E402
from backpass.verify.convert import to_torch  # noqa: E402
from backpass.verify.drawing import options_for  # noqa: E402
from backpass.verify.mutation import mutants  # noqa: E402
from backpass.verify.report import FAILED  # noqa: E402
from backpass.verify.subject import subject  # noqa: E402


@dataclass(frozen=True)
class Changed:
    """A function to be changed: one of Triton's in a kernel's module, or one that computes by itself, with the names of
    its values."""

    stem: str
    function: str
    values: tuple[str, ...]
    # Constants under which this is the function that runs: the module's own, or "another module's.CONSTANT".
    settings: dict[str, int] = field(default_factory=dict)
    # Lengths of letters, and of leading axes, at which a check is given inputs.
    lengths: dict[str, int] = field(default_factory=dict)
    leading: tuple[int, ...] = (3,)
    options: dict[str, object] = field(default_factory=dict)
    # Changes that compute the same, each with the proof.
    equivalent: dict[str, str] = field(default_factory=dict)


TILES = {"ROW_BYTES": 4, "TILE_BYTES": 128}
# One program for several blocks of rows, so that it has something to add up.
ONE_PROGRAM = {"sums_over_rows.PROGRAMS": 1, "launch.SHORT_ROWS_ELEMENTS": 128}
ALL_FLOAT32 = "In a check in float32 both are float32; the kernel's own tests have 16 bits."
ONE_AXIS = "A tile has one axis, its first and its last."
TURNED = ("a", "b", "cos", "sin", "SIGN", "turned_a", "turned_b", "_rotated")
BY_SIGN = {"sin * SIGN → sin / SIGN": "The sign is 1 or −1."}
# Of each of three tokens 13 or 14: a few blocks of one token, with rows before and after them.
RUNS = {"settings": {"BLOCK": 4}, "lengths": {"V": 3, "h": 5}, "leading": (40,)}
TABLE = [
    Changed("softmax", "_backward_rows", ("dy", "y", "dx"), lengths={"n": 45}),
    Changed(
        "softmax",
        "_backward_tiles",
        ("dy", "y", "dot"),
        TILES,
        lengths={"n": 45},
        equivalent={
            "tl.sum(dy * y, axis=0) → tl.sum(dy * y)": ONE_AXIS,
            "axis=0 → axis=-1": ONE_AXIS,
        },
    ),
    Changed("log_softmax", "_backward_rows", ("dy", "y", "dx"), lengths={"n": 45}),
    Changed(
        "log_softmax",
        "_backward_tiles",
        ("dy", "y", "total"),
        TILES,
        lengths={"n": 45},
        equivalent={"tl.sum(dy, axis=0) → tl.sum(dy)": ONE_AXIS, "axis=0 → axis=-1": ONE_AXIS},
    ),
    Changed(
        "cross_entropy",
        "_backward",
        ("x", "top", "y", "total", "each", "dx", "t", "column"),
        {"ROW_BYTES": 128},
        lengths={"V": 45},
        leading=(5,),
        equivalent={"tl.where(t >= 0, dx, 0.0) → tl.where(t >= 0, dx, -0.0)": "Minus 0 is 0."},
    ),
    Changed(
        "linear_cross_entropy",
        "_add_gradients",
        ("dz", "x", "w", "dx", "dw", "db"),
        equivalent={
            "db.dtype → dz.dtype": ALL_FLOAT32,
            "torch.sum(dz, dim=0, dtype=db.dtype) → torch.sum(dz, dim=0)": ALL_FLOAT32,
        },
    ),
    Changed(
        "linear_cross_entropy",
        "backward",
        ("dy", "factor", "gradient", "dx", "dw", "db"),
        equivalent={"dy.dtype → factor.dtype": ALL_FLOAT32},
    ),
    Changed(
        "layer_norm",
        "_backward_rows",
        (
            "dy",
            "dx_hat",
            "w",
            "x",
            "x_hat",
            "mean",
            "rstd",
            "along_ones",
            "along_x_hat",
            "dw",
            "db",
            "dx",
            "share",
        ),
        ONE_PROGRAM,
        lengths={"n": 45},
    ),
    Changed(
        "layer_norm",
        "_backward_tiles",
        ("dx_hat", "x", "mean", "rstd", "along_ones", "along_x_hat", "dx", "n"),
        TILES,
        lengths={"n": 45},
        leading=(2,),
        equivalent={
            "tl.sum(dx_hat, axis=0) → tl.sum(dx_hat)": ONE_AXIS,
            "tl.sum(dx_hat * ((x - mean) * rstd), axis=0) → tl.sum(dx_hat * ((x - mean) * rstd))": ONE_AXIS,
            "axis=0 → axis=-1": ONE_AXIS,
        },
    ),
    Changed(
        "layer_norm",
        "_backward_sums",
        ("dy", "x", "mean", "rstd", "dw", "db"),
        {**TILES, **ONE_PROGRAM},
        lengths={"n": 45},
        leading=(2,),
    ),
    Changed(
        "rms_norm",
        "_backward_rows",
        ("dy", "dx_hat", "w", "x", "x_hat", "rstd", "along_x_hat", "dw", "dx", "share"),
        ONE_PROGRAM,
        lengths={"n": 45},
    ),
    Changed(
        "rms_norm",
        "_backward_tiles",
        ("dx_hat", "x", "rstd", "along_x_hat", "dx", "n"),
        TILES,
        lengths={"n": 45},
        leading=(2,),
        equivalent={
            "tl.sum(dx_hat * (x * rstd), axis=0) → tl.sum(dx_hat * (x * rstd))": ONE_AXIS,
            "axis=0 → axis=-1": ONE_AXIS,
        },
    ),
    Changed(
        "rms_norm",
        "_backward_sums",
        ("dy", "x", "rstd", "dw"),
        {**TILES, **ONE_PROGRAM},
        lengths={"n": 45},
        leading=(2,),
    ),
    Changed(
        "relu",
        "_backward",
        ("dy", "y"),
        equivalent=dict.fromkeys(
            ("y <= 0.0 → y <= -0.0", "tl.where(y <= 0.0, 0.0, dy) → tl.where(y <= 0.0, -0.0, dy)"),
            "Zeros are equal.",
        ),
    ),
    Changed("gelu", "_backward_erf", ("dy", "x", "below", "density", "ROOT_HALF", "PEAK")),
    Changed(
        "gelu",
        "_backward_tanh",
        ("dy", "x", "square", "sigmoid", "rest", "slope", "SLOPE", "CUBIC"),
        options={"approximate": "tanh"},
    ),
    Changed("silu", "_backward", ("dy", "x", "sigmoid", "rest")),
    Changed(
        "silu",
        "sigmoids",
        ("x", "small", "of_larger", "of_smaller", "positive"),
        equivalent={
            "x >= 0.0 → x > 0.0": "At 0 both values are 1/2.",
            "x >= 0.0 → x >= -0.0": "Zeros are equal.",
        },
    ),
    Changed("swiglu", "_backward", ("dy", "g", "u", "sigmoid", "rest", "silu")),
    Changed("rope", "_rotated", ("a", "b", "cos", "sin")),
    Changed("rope", "_turn_halves", TURNED, equivalent=BY_SIGN),
    Changed(
        "rope", "_turn_neighbours", (*TURNED, "x", "y"), options={"interleaved": True}, equivalent=BY_SIGN
    ),
    Changed("embedding", "_backward_blocks", ("total", "dy"), **RUNS),
    Changed("embedding", "_backward_rows", ("total", "dy", "part"), **RUNS),
]


def arithmetic(values: set[str]):
    """Whether an expression is made of the kernel's values and of nothing else."""

    def chosen(node: ast.AST) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - {"tl", "torch"}
        return isinstance(node, (ast.expr, ast.AugAssign)) and bool(names) and names <= values

    return chosen


def changes(function, values: tuple[str, ...]) -> list:
    """The changes of the function's arithmetic on values. Of those that put one name in another's place, which
    are by far the most, only the value named next."""
    before = names_in(ast.parse(textwrap.dedent(inspect.getsource(function))))
    following = dict(zip(values, (*values[1:], values[0]), strict=True))

    def wanted(tree: ast.AST) -> bool:
        after = names_in(tree)
        lost, gained = before - after, after - before
        return not gained or [following.get(name) for name in lost] == list(gained)

    return [mutant for mutant in mutants(function, arithmetic(set(values))) if wanted(mutant.tree)]


def names_in(tree: ast.AST) -> Counter:
    return Counter(part.id for part in ast.walk(tree) if isinstance(part, ast.Name))


def triton_functions(module) -> list[str]:
    """Names of the functions that the module itself has Triton compile."""
    return [
        name
        for name, value in vars(module).items()
        if getattr(getattr(value, "fn", None), "__module__", None) == module.__name__
    ]


def python_function(module, name: str):
    """A function of the module; what it was written as, where it is Triton's."""
    function = getattr(module, name)
    return getattr(function, "fn", function)


def changed_module(module, name: str, mutant, folder, number: int):
    """The kernel's module with one function changed, from a file: Triton reads the source of what it compiles."""
    source = inspect.getsource(module)
    before = textwrap.dedent(inspect.getsource(python_function(module, name)))
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
    """Whether the kernel's row is red, with every optional input or without one. A crash is a failure."""
    for setting, value in row.settings.items():
        if "." in setting:
            monkeypatch.setattr(f"backpass.kernels.{setting}", value)
        else:
            monkeypatch.setattr(kernel, setting, value)
    monkeypatch.setattr(kernels, "load", lambda stem: kernel)
    optional = [[spec.name] for spec in parse(kernel.SHAPES).inputs if spec.optional]
    try:
        return any(check_fails(row, without) for without in ([], *optional))
    except Exception:
        return True


def check_fails(row: Changed, without: list[str]) -> bool:
    leading = dict.fromkeys(("*", "*a", "*b"), row.leading)
    inputs = draw(row.stem, np.random.default_rng(0), lengths=row.lengths, leading=leading, without=without)
    inputs = tuple(to_torch(value, dtype=torch.float32) for value in inputs)
    under_test = subject(ops.load(row.stem), len(inputs), options_for(row.stem) | row.options)
    case = Case(under_test, inputs, seed=0, explain=False)
    return any(found.verdict == FAILED for found in METHODS["kernel"].run(case))


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
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.filterwarnings("ignore:tl.where with a non-boolean condition:UserWarning")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.stem}{row.function}")
def test_every_change_is_caught(row, tmp_path, monkeypatch, device):
    module = kernels.load(row.stem)
    function = python_function(module, row.function)
    made = changes(function, row.values)
    assert len(made) >= 5
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
    assert {name for name in functions if not name.startswith("_forward")} <= {
        row.function for row in TABLE if row.stem == stem
    }
