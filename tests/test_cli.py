"""The command line: what it prints, what it returns, and that a mistake in a command is answered with the right one."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backpass import __version__, cli, ops
from backpass.commands import bench
from backpass.commands.devices import DTYPES
from backpass.ops import softmax
from backpass.text import terminal


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "backpass", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def refused(capsys, *arguments: str) -> str:
    """What the command says when it makes no sense; it must exit with 2."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def wrong_softmax(monkeypatch):
    right = softmax.backward
    monkeypatch.setattr(softmax, "backward", lambda dy, saved: 2 * right(dy, saved))


class TestVerify:
    def test_every_operation_has_its_line(self, capsys, monkeypatch):
        monkeypatch.setattr(ops, "STEMS", ("scale", "softmax", "relu"))
        assert cli.main(["verify"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line in ops.STEMS] == list(ops.STEMS)
        assert lines[-1].startswith(f"✓ passed: {len(ops.STEMS)} operations, ")
        table = lines[[line.startswith("operation ") for line in lines].index(True) :]
        assert [line.split()[0] for line in table[1 : 1 + len(ops.STEMS)]] == list(ops.STEMS)
        assert table[0].split()[1:3] == ["contract", "differences"]

    def test_the_operations_named_only(self, capsys):
        assert cli.main(["verify", "scale", "fork", "scale"]) == 0
        out = capsys.readouterr().out
        assert "softmax" not in out
        assert "✓ passed: 2 operations" in out

    def test_a_wrong_backward_exits_with_1_and_is_diagnosed(self, capsys, wrong_softmax):
        assert cli.main(["verify", "scale", "softmax"]) == 1
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == "✗ failed: softmax"
        assert "got = 2 × reference" in out

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtypes(self, capsys, dtype):
        assert cli.main(["verify", "softmax", "--dtype", dtype, "--full"]) == 0
        out = capsys.readouterr().out
        assert f"{dtype}, PyTorch on cpu" in out
        assert ("low precision" in out) == (dtype != "float64")

    def test_a_seed_changes_the_numbers(self, capsys):
        outputs = []
        for seed in ("1", "1", "2"):
            cli.main(["verify", "scale", "--seed", seed])
            outputs.append(capsys.readouterr().out.rpartition("✓ passed")[0])
        assert outputs[0] == outputs[1] != outputs[2]

    def test_a_wrong_name_suggests_the_right_one(self, capsys):
        assert "no operation is called 'sofmax'; did you mean 'softmax'?" in refused(
            capsys, "verify", "sofmax"
        )
        assert f"there are: {', '.join(ops.STEMS)}" in refused(capsys, "verify", "qqq")

    def test_an_operation_without_an_example_says_what_to_add(self, capsys, monkeypatch):
        monkeypatch.delattr(ops.load("scale"), "EXAMPLES")
        assert refused(capsys, "verify", "scale").startswith(
            "backpass verify: scale: forward needs the option factor; "
            "add EXAMPLES = ({'factor': …},) to src/backpass/ops/scale.py"
        )

    def test_kernels_run_where_there_is_no_gpu(self):
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", "backpass", "verify", "relu"],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        table = [line for line in done.stdout.splitlines() if line.startswith(("operation ", "relu "))]
        assert table[-2].split()[-1] == "kernel"
        assert table[-1].split("  ")[-1].strip().startswith("✓")

    def test_what_makes_no_sense(self, capsys):
        assert "--seed: expected 0 or more; got -1" in refused(capsys, "verify", "--seed", "-1")
        assert "--dtype: invalid choice: 'int8'" in refused(capsys, "verify", "--dtype", "int8")
        assert "--device nonsense: " in refused(capsys, "verify", "--device", "nonsense")
        assert "--device meta: expected a device whose tensors hold numbers" in refused(
            capsys, "verify", "--device", "meta"
        )
        said = refused(capsys, "verify", "scale", "--jsn")
        assert said == "backpass verify: there is no argument --jsn (see backpass verify --help)\n"

    def test_the_names_alone(self, capsys):
        assert cli.main(["verify", "--list"]) == 0
        assert capsys.readouterr().out.split() == list(ops.STEMS)

    def test_it_stops_at_the_first_failure_when_asked(self, capsys, wrong_softmax):
        assert cli.main(["verify", "-x", "softmax", "scale"]) == 1
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == "✗ failed: softmax" and "scale" not in out

    def test_quiet(self, capsys, wrong_softmax):
        assert cli.main(["verify", "-q", "scale"]) == 0
        assert capsys.readouterr().out.startswith("✓ passed: 1 operation")
        assert cli.main(["verify", "-q", "softmax"]) == 1
        out = capsys.readouterr().out
        assert "got = 2 × reference" in out and "3 passed" not in out.splitlines()[0]

    def test_json(self, capsys, wrong_softmax):
        assert cli.main(["verify", "scale", "softmax", "--json", "--seed", "4"]) == 1
        data = json.loads(capsys.readouterr().out)
        assert (data["passed"], data["seed"]) == (False, 4)
        assert {report["name"]: report["passed"] for report in data["reports"]} == {
            "scale": True,
            "softmax": False,
        }

    @pytest.mark.parametrize("columns", [60, 80])
    def test_no_line_is_wider_than_the_terminal(self, capsys, monkeypatch, columns, wrong_softmax):
        monkeypatch.setenv("COLUMNS", str(columns))
        cli.main(["verify", "softmax"])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= columns

    def test_no_colour_but_on_a_terminal(self, capsys, monkeypatch):
        cli.main(["verify", "scale"])
        assert "\033[" not in capsys.readouterr().out
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        cli.main(["verify", "scale"])
        assert "\033[32m✓\033[0m" in capsys.readouterr().out
        monkeypatch.setenv("NO_COLOR", "1")
        cli.main(["verify", "scale"])
        assert "\033[" not in capsys.readouterr().out


OWN = """
import numpy as np
import torch

print("imported")


class Weighted:
    def forward(self, x, w, *, power=1):
        return x * w**power, (x, w, power)

    def backward(self, dy, saved):
        x, w, power = saved
        return dy * w**power, (dy * x * power * w ** (power - 1)).sum(axis=0)


class Wrong(Weighted):
    def backward(self, dy, saved):
        x, w, power = saved
        return 2 * dy * w**power, (dy * x * power * w ** (power - 1)).sum(axis=0)


class Raises(Weighted):
    def backward(self, dy, saved):
        raise ZeroDivisionError("division by zero")


class Rows:
    def forward(self, table, rows):
        return table[rows], (table, rows)

    def backward(self, dy, saved):
        table, rows = saved
        gradient = np.zeros_like(table)
        np.add.at(gradient, rows, dy)
        return gradient


class Cube:
    SHAPES = "x[*, n] -> y[*, n]"

    def forward(self, x):
        return x * x * x, x

    def backward(self, dy, x):
        return 3 * dy * x * x


class Ignores:
    def forward(x, w, b, wanted=None):
        return x * w + b, (x, w)

    def backward(dy, saved, wanted=None):
        x, w = saved
        return dy * w, (dy * x).sum(0), dy.sum(0)

class SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, dy):
        s = torch.sigmoid(ctx.saved_tensors[0])
        return dy * s * (1 + ctx.saved_tensors[0] * (1 - s))


weighted, wrong, raises, rows, cube = Weighted(), Wrong(), Raises(), Rows(), Cube()


def inputs():
    return np.ones((2, 3)), np.arange(3.0)


def no_inputs():
    raise RuntimeError("no inputs today")
"""
WEIGHTED = ("--input", "4x6", "--input", "6")


class TestCheck:
    @pytest.fixture(autouse=True)
    def own(self, tmp_path, monkeypatch):
        """A module of the reader's in the current directory."""
        (tmp_path / "own_backward.py").write_text(OWN)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("COLUMNS", "80")
        yield tmp_path
        for name in ("own_backward", "broken_backward"):
            sys.modules.pop(name, None)

    @pytest.fixture
    def checked(self, capsys):
        """The exit status, the report as data, and what else was said."""

        def run(*arguments):
            status = cli.main(["check", *arguments, "--json"])
            said = capsys.readouterr()
            return status, json.loads(said.out), said.err

        return run

    def test_the_table(self, capsys):
        assert cli.main(["check", "own_backward:weighted", *WEIGHTED]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "Weighted: x[4, 6], w[6], float64, NumPy" in lines
        assert max(map(len, lines)) <= 80

    def test_a_class_is_instantiated(self, own, checked):
        lines = [
            "class Twice:",
            "    def forward(self, x):",
            "        return 2 * x * x, x",
            "    def backward(self, dy, x):",
            "        return 4 * dy * x",
        ]
        (own / "own_backward.py").write_text("\n".join(lines))
        status, report, _ = checked("own_backward:Twice", "--input", "4x6")
        assert (status, report["passed"]) == (0, True)

    def test_a_wrong_gradient_is_diagnosed_and_a_print_does_not_spoil_the_json(self, checked):
        status, report, said = checked("own_backward.py:wrong", *WEIGHTED, "--seed", "3")
        assert (status, report["passed"], report["seed"]) == (1, False, 3)
        assert {row["reason"] for row in report["rows"] if row["verdict"] == "FAILED"} == {
            "got = 2 × reference"
        }
        assert "imported" in said

    def test_an_ignored_wanted_is_described_briefly(self, checked):
        status, report, _ = checked("own_backward:Ignores", *WEIGHTED, "--input", "6")
        (found,) = report["findings"]
        assert (status, found["where"]) == (1, "all (contract)")
        faults = found["what"].split("; got an array; ")
        assert faults[0] == "dx: expected None when forward is given wanted=()"
        assert faults[3] == "dx: expected None when backward is given wanted=()"
        assert faults[6:] == ["30 more for other values of wanted"]

    def test_a_file_elsewhere(self, checked, own, monkeypatch):
        monkeypatch.chdir("/")
        assert checked(f"{own}/own_backward.py:weighted", *WEIGHTED)[0] == 0

    def test_options_methods_and_a_function_that_makes_the_inputs(self, checked):
        status, report, _ = checked(
            "own_backward:weighted", "--inputs", "own_backward:inputs", "--option", "power=2",
            "--method", "contract", "--method", "complex_step",
        )  # fmt: skip
        assert status == 0 and "x[2, 3], w[3], power=2" in report["inputs"]
        assert {row["method"] for row in report["rows"]} == {"contract", "complex step"}

    def test_integers_below_a_bound(self, checked):
        status, report, _ = checked("own_backward:rows", "--input", "5x2", "--input", "7:int64<5")
        assert status == 0 and report["inputs"].startswith("table[5, 2], rows[7], float64, int64")

    def test_an_integer_that_is_ignored(self, own, checked):
        """The last label is −100; a backward that scatters it anyway is wrong only with it."""
        program = """
import numpy as np

class Kept:
    @staticmethod
    def forward(x, at):
        return x * (at != -100)[:, None], at

    @staticmethod
    def backward(dy, at):
        return dy, None
"""
        (own / "ignoring.py").write_text(program)
        assert checked("ignoring:Kept", "--input", "5x2", "--input", "5:int64<5")[0] == 0
        assert checked("ignoring:Kept", "--input", "5x2", "--input", "5:int64<5,-100")[0] == 1

    def test_declared_shapes_need_no_inputs(self, checked):
        assert checked("own_backward:cube")[1]["inputs"] == "x[3, 5], float64, NumPy"
        assert checked("own_backward:cube", "--torch")[1]["inputs"] == "x[3, 5], float64, PyTorch on cpu"

    def test_an_autograd_function_in_bfloat16_against_an_operator(self, checked):
        status, report, _ = checked(
            "own_backward:SiLU", "--input", "3x4:bfloat16", "--operator", "torch.nn.functional:silu"
        )
        assert status == 0 and report["inputs"] == "x[3, 4], bfloat16, PyTorch on cpu"
        assert {"PyTorch's operator", "low precision"} <= {row["method"] for row in report["rows"]}

    def test_a_seed_changes_the_numbers(self, checked):
        first, again, other = (
            checked("own_backward:weighted", *WEIGHTED, "--seed", seed)[1] for seed in "112"
        )
        assert first == again and first["rows"] != other["rows"]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["own_backward:wieghted"], "own_backward has nothing called 'wieghted'; did you mean 'weighted'?"),
            (["own_backword:weighted"], "there is no module 'own_backword' in "),
            (["nowhere.py:weighted"], "nowhere.py: there is no such file"),
            (["own-backward:weighted"], "expected module:object or path/to/file.py:object"),
            (["softmax"], "backpass verify softmax checks the book's operation"),
            (["own_backward:weighted"], "--input: expected the shape of each input"),
            (["own_backward:weighted", "--input", "4y"], "--input 4y: expected a shape such as 4x6"),
            (["own_backward:rows", "--input", "4:int64"], "expected a bound for the integers"),
            (["own_backward:rows", "--input", "4:float32<3"], "expected a bound for integers only"),
            (["own_backward:rows", "--input", "4:complex64"], "expected a dtype, one of float64, float32,"),
            (["own_backward:rows", "--input", "4", "--inputs", "own_backward:inputs"], "got both"),
            (["own_backward:weighted", *WEIGHTED, "--option", "power"], "--option power: expected NAME=VALUE"),
            (["own_backward:weighted", *WEIGHTED, "--option", "power=two"], "a string needs quotes"),
            (["own_backward:weighted", *WEIGHTED, "--option", "pwr=2"], "--option of Weighted: expected some of"),
            (["own_backward:weighted", *WEIGHTED, "--method", "guess"], "--method: expected some of contract,"),
            (["own_backward:weighted", *WEIGHTED, "--zero-gradient", "q"], "--zero-gradient: expected some of"),
            (["own_backward:weighted", *WEIGHTED, "--convention", "x"], "--convention x: expected NAME=REASON"),
            (["own_backward:weighted", *WEIGHTED, "--seed", "-1"], "--seed: expected 0 or more; got -1"),
            (["own_backward:weighted", "--input", "4"], "--input: Weighted's forward takes (x, w,"),
            (["own_backward", "--input", "4"], "op: expected the name of an operation, a pair (forward, backward), an object"),
        ],
    )  # fmt: skip
    def test_what_makes_no_sense_is_said_in_one_line(self, capsys, arguments, said):
        line = refused(capsys, "check", *arguments)
        assert said in line and line.startswith("backpass check: ") and line.count("\n") == 1

    def test_a_module_that_cannot_be_imported_shows_its_own_traceback(self, capsys, own):
        (own / "broken_backward.py").write_text("import numpy\nimport a_module_that_is_not_there\n")
        for target in ("broken_backward:x", "broken_backward.py:x"):
            assert cli.main(["check", target]) == 2
            said = capsys.readouterr().err.splitlines()
            assert said[0] == "Traceback (most recent call last):"
            assert "broken_backward.py" in said[1] and "line 2" in said[1]
            assert "No module named 'a_module_that_is_not_there'" in said[-1]

    def test_a_function_of_inputs_that_raises_shows_its_own_traceback(self, capsys):
        assert cli.main(["check", "own_backward:weighted", "--inputs", "own_backward:no_inputs"]) == 2
        said = capsys.readouterr().err.splitlines()
        assert "in no_inputs" in said[1] and said[-1] == "RuntimeError: no inputs today"

    def test_a_keyword_is_passed_on_only_where_it_was_given(self, monkeypatch):
        import backpass.verify

        asked, libraries = [], []

        def check(op, *inputs, **keywords):
            asked.append(keywords)
            libraries.append({type(x).__module__ for x in inputs})
            return backpass.verify.Report("own", "x", (), ())

        monkeypatch.setattr(backpass.verify, "check", check)
        cli.main(["check", "own_backward:weighted", *WEIGHTED])
        assert asked.pop() == {"seed": 0, "raises": False, "options": {}}
        cli.main(
            ["check", "own_backward:weighted", *WEIGHTED, "--constant", "w", "--precision", "float32", "--vary",
             "--no-explain", "--compiled", "--zero-gradient", "x", "--convention", "x=straight through = 1",
             "--tf32-products", "--capability", "9.0", "--configurations", "all"]
        )  # fmt: skip
        assert asked.pop() == {
            "seed": 0, "raises": False, "options": {}, "constants": ["w"], "precision": "float32", "vary": True,
            "explain": False, "compiled": True, "tf32_products": True, "capability": (9, 0),
            "configurations": None, "zero_gradients": ["x"], "conventions": {"x": "straight through = 1"},
        }  # fmt: skip
        assert libraries == [{"numpy"}, {"torch"}]  # a kernel takes tensors


class TestAnyEncoding:
    """What a terminal or a pipe cannot show is written in ASCII; the exit status stays."""

    @staticmethod
    def written(encoding, *arguments):
        """The exit status and the lines on a standard output of that encoding."""
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with contextlib.redirect_stdout(stream):
            status = cli.main(arguments)
        stream.flush()
        return status, stream.buffer.getvalue().decode(encoding).splitlines()

    @pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
    def test_verify(self, encoding):
        status, lines = self.written(encoding, "verify", "scale")
        assert status == 0
        assert lines[1].startswith("  + x[3], factor=-1.75, float64, NumPy: ")
        assert lines[-1].startswith("+ passed: 1 operation")
        assert "?" not in "".join(lines)

    @pytest.mark.parametrize(("encoding", "times"), [("ascii", "*"), ("cp1252", "×")])
    def test_check(self, encoding, times, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("COLUMNS", "80")
        (tmp_path / "own_wrong.py").write_text(OWN)
        status, lines = self.written(encoding, "check", f"{tmp_path}/own_wrong.py:wrong", *WEIGHTED)
        sys.modules.pop("own_wrong")
        assert status == 1
        assert "complex step        dx        X FAILED   1.0e+00    1.0e-12" in lines
        assert (
            lines[-1] == f"X dx (finite differences, complex step, torch autograd): got = 2 {times} reference"
        )

    def test_a_locale_without_utf_8(self):
        done = run("verify", "--help", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 0 and done.stdout.startswith("usage: backpass verify") and not done.stderr

    def test_every_mark_and_any_character_has_something_to_stand_for_it(self):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        terminal.make_readable(stream)
        stream.write("✓ ✗ ○ – ─ x² é 文 \udcff")
        stream.flush()
        assert stream.buffer.getvalue() == rb"+ X o - - x^2 e \u6587 \udcff"


class TestBench:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        """A folder of benchmarks: two scripts, one that fails, and a module they share."""
        (tmp_path / "alpha.py").write_text(
            "import sys\n\ndef main():\n    print('ran', *sys.argv[1:], flush=True)\n\nmain()\n"
        )
        (tmp_path / "beta.py").write_text("\n\ndef main():\n    raise SystemExit(3)\n\nmain()\n")
        (tmp_path / "shared.py").write_text("RATE = 1\n")
        monkeypatch.setattr(bench, "BENCHMARKS", tmp_path)
        return tmp_path

    def test_it_runs_the_script_named(self, capfd, folder):
        assert cli.main(["bench", "alpha", "--device", "cpu", "--quick"]) == 0
        assert "ran --device=cpu --quick" in capfd.readouterr().out

    def test_a_failure_is_reported(self, capfd, folder):
        assert cli.main(["bench"]) == 1
        assert "✗ failed: beta" in capfd.readouterr().out

    def test_a_wrong_name_suggests_the_right_one(self, capsys, folder):
        assert "no benchmark or operation is called 'alpa'; did you mean 'alpha'?" in refused(
            capsys, "bench", "alpa"
        )
        assert "there are: alpha, beta" in refused(capsys, "bench", "shared")

    def test_an_installed_package_has_no_benchmarks(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr(bench, "BENCHMARKS", tmp_path / "nowhere")
        assert cli.main(["bench"]) == 2
        assert "not installed with the package" in capsys.readouterr().err

    def test_a_quick_run_does_not_say_that_it_wrote_anything(self, capfd):
        results = bench.BENCHMARKS / "results"
        before = {path: path.read_bytes() for path in results.glob("roofline-*")}
        assert cli.main(["bench", "roofline", "--quick", "--device", "cpu"]) == 0
        out = capfd.readouterr().out
        assert "tried out: no figures to keep" in out and "written" not in out
        assert {path: path.read_bytes() for path in results.glob("roofline-*")} == before

    def test_the_projects_own_are_found(self):
        assert bench.OPERATIONS in bench.benchmarks()

    def test_the_name_of_an_operation_times_it_alone(self, capfd, folder):
        (folder / "operations.py").write_text((folder / "alpha.py").read_text())
        assert cli.main(["bench", "relu", "alpha", "--device", "cpu"]) == 0
        out = capfd.readouterr().out
        assert "ran relu --device=cpu" in out and "ran --device=cpu" in out


class TestHelp:
    def test_no_command_prints_the_help(self, capsys):
        assert cli.main([]) == 2
        assert "check every backward by every independent method" in capsys.readouterr().out

    @pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)])
    def test_help_names_what_there_is(self, capsys, command):
        with pytest.raises(SystemExit) as caught:
            cli.main([*command, "--help"])
        assert caught.value.code == 0
        named = {"": "verify", "verify": "softmax", "check": "own.py:RMSNorm", "bench": "roofline"}
        named |= {"mutate": "--equivalent", "train": "--resume", "sample": "--temperature", "cost": "--flash"}
        named |= {"parallel": "--ranks", "derive": "--annotate"}
        assert named[command[0] if command else ""] in capsys.readouterr().out

    def test_a_surviving_change_says_what_to_do(self, capsys, tmp_path, monkeypatch):
        lines = [
            "class Doubled:",
            "    def forward(self, x):",
            "        return 2 * x, None",
            "    def backward(self, dy, saved):",
            "        return 2 * dy",
        ]
        (tmp_path / "own_doubled.py").write_text("\n".join(lines))
        monkeypatch.setattr(sys, "path", list(sys.path))
        target = f"{tmp_path}/own_doubled.py:Doubled"
        assert cli.main(["mutate", target, "--input", "4", "--method", "contract"]) == 1
        said = capsys.readouterr().out
        assert " survived\nA change that survives has no effect at these inputs" in said
        assert cli.main(["mutate", target, "--input", "4"]) == 0
        assert "A change that survives" not in capsys.readouterr().out

    def test_a_change_may_show_only_at_varied_inputs(self, capsys, tmp_path, monkeypatch):
        lines = [
            "import numpy as np",
            "class Capped:",
            "    def forward(self, x):",
            "        return np.minimum(x, 20), x",
            "    def backward(self, dy, x):",
            "        return dy * (x < 20)",
        ]
        (tmp_path / "own_capped.py").write_text("\n".join(lines))
        monkeypatch.setattr(sys, "path", list(sys.path))
        target = f"{tmp_path}/own_capped.py:Capped"
        survivors = []
        for vary in ([], ["--vary"]):
            cli.main(["mutate", target, "--input", "5x6", "--json", *vary])
            listed = json.loads(capsys.readouterr().out)["survivors"]
            survivors.append({one["change"] for one in listed})
        given, varied = survivors
        assert "dy * (x < 20) → dy" in given - varied  # found where x × 20 is beyond the bound
        assert varied == {"x < 20 → x <= 20", "x < 20 → x < 21"}

    def test_a_mistyped_command_suggests_the_nearest(self, capsys):
        assert "no command is called 'verfy'; did you mean 'verify'?" in refused(capsys, "verfy", "softmax")
        assert "no command is called 'qqq'; there are: verify, check, mutate, bench" in refused(capsys, "qqq")

    def test_version(self, capsys):
        with pytest.raises(SystemExit):
            cli.main(["--version"])
        assert capsys.readouterr().out == f"backpass {__version__}\n"

    def test_as_a_module_and_into_a_closed_pipe(self):
        done = run("--version")
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"backpass {__version__}\n")
        script = f"{sys.executable} -m backpass verify scale | head -n 1"
        piped = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert piped.stdout == "scale\n"
        assert piped.stderr == ""

    def test_the_help_is_quick(self):
        """It imports none of the heavy packages."""
        code = "import sys; from backpass import cli; cli._parser(); print({'torch', 'sympy', 'triton'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "set()\n"


def test_where_the_benchmarks_are_looked_for():
    assert bench.BENCHMARKS == Path(cli.__file__).parents[2] / "benchmarks"
