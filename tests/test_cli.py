"""The command line: what it prints, what it returns, and that a mistake in a command is answered with the right one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backpass import __version__, cli, ops
from backpass.ops import softmax


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
        assert "finite differences" in table[0]

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

    @pytest.mark.parametrize("dtype", cli.DTYPES)
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

    def test_kernels_run_where_there_is_no_gpu(self):
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", "backpass", "verify", "relu"],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        table = [line for line in done.stdout.splitlines() if line.startswith(("operation ", "relu "))]
        assert table[0].split("  ")[-1] == "Triton kernel"
        assert table[1].split("  ")[-1].strip().startswith("✓")

    def test_what_makes_no_sense(self, capsys):
        assert "--seed: expected 0 or more; got -1" in refused(capsys, "verify", "--seed", "-1")
        assert "--dtype: invalid choice: 'int8'" in refused(capsys, "verify", "--dtype", "int8")
        assert "--device nonsense: " in refused(capsys, "verify", "--device", "nonsense")

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


class TestBench:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        """A folder of benchmarks: two scripts, one that fails, and a module they share."""
        (tmp_path / "alpha.py").write_text(
            "import sys\n\ndef main():\n    print('ran', *sys.argv[1:], flush=True)\n\nmain()\n"
        )
        (tmp_path / "beta.py").write_text("\n\ndef main():\n    raise SystemExit(3)\n\nmain()\n")
        (tmp_path / "shared.py").write_text("RATE = 1\n")
        monkeypatch.setattr(cli, "BENCHMARKS", tmp_path)
        return tmp_path

    def test_it_runs_the_script_named(self, capfd, folder):
        assert cli.main(["bench", "alpha", "--device", "cpu", "--quick"]) == 0
        assert "ran --device=cpu --quick --results=" in capfd.readouterr().out

    def test_a_failure_is_told(self, capfd, folder):
        assert cli.main(["bench"]) == 1
        assert "✗ failed: beta" in capfd.readouterr().out

    def test_a_wrong_name_suggests_the_right_one(self, capsys, folder):
        assert "no benchmark is called 'alpa'; did you mean 'alpha'?" in refused(capsys, "bench", "alpa")
        assert "there are: alpha, beta" in refused(capsys, "bench", "shared")

    def test_an_installed_package_has_no_benchmarks(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr(cli, "BENCHMARKS", tmp_path / "nowhere")
        assert cli.main(["bench"]) == 2
        assert "not installed with the package" in capsys.readouterr().err

    def test_a_quick_run_does_not_say_that_it_wrote_anything(self, capfd):
        results = cli.BENCHMARKS / "results"
        before = {path: path.read_bytes() for path in results.glob("roofline-*")}
        assert cli.main(["bench", "roofline", "--quick", "--device", "cpu"]) == 0
        out = capfd.readouterr().out
        assert "tried out: no figures to keep" in out and "written" not in out
        assert {path: path.read_bytes() for path in results.glob("roofline-*")} == before

    def test_the_projects_own_are_found(self):
        assert cli.OPERATIONS in cli._benchmarks()

    def test_the_name_of_an_operation_times_it_alone(self, capfd, folder):
        (folder / "operations.py").write_text((folder / "alpha.py").read_text())
        assert cli.main(["bench", "relu", "alpha", "--device", "cpu"]) == 0
        out = capfd.readouterr().out
        assert "ran relu --device=cpu" in out and "ran --device=cpu" in out


class TestHelp:
    def test_no_command_prints_the_help(self, capsys):
        assert cli.main([]) == 2
        assert "check every backward by every independent method" in capsys.readouterr().out

    @pytest.mark.parametrize("command", [[], ["verify"], ["bench"]])
    def test_help_names_what_there_is(self, capsys, command):
        with pytest.raises(SystemExit) as caught:
            cli.main([*command, "--help"])
        assert caught.value.code == 0
        assert {"": "verify", "verify": "softmax", "bench": "roofline"}[command[0] if command else ""] in (
            capsys.readouterr().out
        )

    def test_a_mistyped_command_suggests_the_nearest(self, capsys):
        assert "no command is called 'verfy'; did you mean 'verify'?" in refused(capsys, "verfy", "softmax")
        assert "no command is called 'qqq'; there are: verify, bench" in refused(capsys, "qqq")

    def test_version(self, capsys):
        with pytest.raises(SystemExit):
            cli.main(["--version"])
        assert capsys.readouterr().out == f"backpass {__version__}\n"

    def test_as_a_module_and_into_a_closed_pipe(self):
        done = run("verify", "scale")
        assert done.returncode == 0
        assert done.stderr == ""
        assert "✓ passed: 1 operation" in done.stdout
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
    assert cli.BENCHMARKS == Path(cli.__file__).parents[2] / "benchmarks"
