"""``backpass train`` and ``backpass sample``: what they print, save, reject, and return."""

import os
import re
import shlex
import signal
import sys
import threading

import numpy as np
import pytest
import torch

from backpass import cli
from backpass.commands import train as train_command
from backpass.models import gpt2, llama
from backpass.training import sampling, states
from backpass.training.run import Run

TEXT = b"the gradient of a sum is the sum of the gradients; a product has two. " * 12
SMALL = ("--steps", "6", "--every", "3", "--length", "8", "--batch", "2")
SMALL += ("--layers", "1", "--width", "8", "--heads", "2", "--device", "numpy")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture
def train(text, tmp_path):
    """Run the command on the text, saving in ``tmp_path/out``."""

    def run(*arguments):
        return cli.main(["train", str(text), "--out", str(tmp_path / "out"), *arguments])

    return run


@pytest.fixture
def refused(capsys):
    """What is said of a command that is not valid; it must be one line."""

    def say(*arguments):
        with pytest.raises(SystemExit) as caught:
            cli.main([str(argument) for argument in arguments])
        assert caught.value.code == 2
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1
        return err

    return say


def newest(tmp_path):
    return states.newest(tmp_path / "out")[1]


def numbers(out):
    """The lines about steps, without the speed."""
    return [line.rpartition("  ")[0] for line in out.splitlines() if line.startswith("step")]


def test_a_run_reports_and_saves(train, tmp_path, capsys):
    assert train(*SMALL) == 0
    out, err = capsys.readouterr()
    assert out.startswith("gpt2: 3,")
    assert f"{len(TEXT) * 9 // 10:,} bytes to train on, {len(TEXT) // 10:,} held out" in out
    line = r"step +{}   loss \d\.\d{{3}}   held out \d\.\d{{3}}   rate \S+   norm \S+   [\d,]+ tokens/s\n"
    assert re.search(line.format(3) + line.format(6), out)
    assert out.endswith(f"step-000006; to read what the model writes:\n    backpass sample {tmp_path}/out\n")
    assert err == ""  # there is a bar on terminals only
    assert [path.name for path in states.paths(tmp_path / "out")] == ["step-000006", "step-000003"]
    state = newest(tmp_path)
    assert state.config == gpt2.Config(256, 8, 8, 1, 2, 32)
    assert state.options.steps == 6 and state.options.warmup == 0
    assert next(iter(state.parameters.values())).dtype == np.float32


def test_every_option_arrives(train, tmp_path):
    options = {"steps": 2, "batch": 6, "length": 7, "micro_batches": 3, "lr": 0.02, "warmup": 1}
    options |= {"clip": 0.5, "weight_decay": 0.3, "seed": 9}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    sizes = ["--model=llama", "--layers=2", "--width=24", "--heads=6", "--key-heads=2"]
    assert train(*given, *sizes, "--dtype=float64", "--device=cpu") == 0
    state = newest(tmp_path)
    assert {name: getattr(state.options, name) for name in options} == options
    assert state.config == llama.Config(256, 24, 2, 6, 2, 4, 64)
    assert state.arrays == "cpu"
    assert next(iter(state.parameters.values())).dtype == np.float64


def test_dropout(train, tmp_path):
    assert train(*SMALL, "--dropout", "0.2") == 0
    assert newest(tmp_path).config == gpt2.Config(256, 8, 8, 1, 2, 32, 1e-5, True, 0.2, 0.2, 0.2)


def test_the_options_of_a_run_are_those_of_the_command():
    fields = set(train_command.Options.__dataclass_fields__)
    assert fields - set(train_command.TUNED) == {"beta_1", "beta_2"}


def test_kernels_run_on_a_cuda_device_only(monkeypatch):
    monkeypatch.setattr(train_command.kernels, "available", lambda: None)
    for like in (np.zeros(1), torch.zeros(1)):
        assert train_command._kernels(like) is None
    monkeypatch.setattr(train_command, "place", lambda like: "cuda:0")
    assert train_command._kernels(torch.zeros(1)) is train_command.kernels
    monkeypatch.setattr(train_command.kernels, "available", lambda: "triton is not installed")
    assert train_command._kernels(torch.zeros(1)) is None


def test_a_folder_is_a_text(text, tmp_path, capsys):
    assert cli.main(["train", str(text.parent), "--out", str(tmp_path / "out"), *SMALL]) == 0
    assert f"{len(TEXT) // 10:,} held out" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """A process that a shell has put into the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(monkeypatch, steps, number=signal.SIGINT):
    """Send Ctrl-C, or another signal, to this process within a step."""
    right = Run.step

    def step(self):
        if self.made == steps - 1:
            os.kill(os.getpid(), number)
        return right(self)

    monkeypatch.setattr(Run, "step", step)


def test_ctrl_c_saves_and_resume_gives_the_same_numbers(train, text, tmp_path, capsys, monkeypatch):
    assert train(*SMALL) == 0
    expected, whole = numbers(capsys.readouterr().out), newest(tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        assert train(*SMALL) == 130
    out, err = capsys.readouterr()
    assert "stopping after this step" in err
    assert out.endswith(
        "stopped and saved after 4 of 6 steps; to continue:\n"
        f"    backpass train {text} --out {tmp_path}/out --resume --every 3\n"
    )
    assert newest(tmp_path).step == 4
    assert cli.main(shlex.split(out.splitlines()[-1])[1:]) == 0  # the line that was printed
    got = numbers(out)[:1] + numbers(capsys.readouterr().out)
    assert got == expected
    end = newest(tmp_path)
    for name, parameter in whole.parameters.items():
        assert parameter.tobytes() == end.parameters[name].tobytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert train("--resume") == 0
    assert capsys.readouterr().out == "the run is complete: 6 of 6 steps\n"


def test_sigterm_saves_too(train, tmp_path, capsys, monkeypatch):
    """As when a machine in the cloud is taken back."""
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4, signal.SIGTERM)
        assert train(*SMALL) == 143
    out, err = capsys.readouterr()
    assert "stopping after this step; SIGTERM again stops at once" in err
    assert "stopped and saved after 4 of 6 steps; to continue:\n" in out
    assert newest(tmp_path).step == 4 and signal.getsignal(signal.SIGTERM) is before
    assert train("--resume") == 0 and newest(tmp_path).step == 6


@pytest.mark.parametrize(
    ("steps", "left"), [(1, "nothing was saved"), (4, "the newest saved state is {}/out/step-000003")]
)
def test_a_second_ctrl_c_stops_at_once(train, tmp_path, capsys, monkeypatch, steps, left):
    right = Run.step

    def step(self):
        if self.made == steps:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return right(self)

    monkeypatch.setattr(Run, "step", step)
    assert train(*SMALL) == 130
    assert capsys.readouterr().err.endswith(f"\nbackpass train: interrupted; {left.format(tmp_path)}\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_printed_commands_are_quoted(text, tmp_path, capsys, monkeypatch):
    out, spaced = tmp_path / "my run", text.rename(tmp_path / "my text.txt")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        assert cli.main(["train", str(spaced), "--out", str(out), *SMALL]) == 130
    line = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(line)[2:] == [str(spaced), "--out", str(out), "--resume", "--every", "3"]
    assert cli.main(["train", str(spaced), "--out", str(out), "--resume"]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1]) == ["backpass", "sample", str(out)]


@pytest.mark.parametrize("name", ["text.txt", "text.txt/below"])
def test_a_folder_that_cannot_be_made_is_noticed_before_the_first_step(
    text, tmp_path, refused, monkeypatch, name
):
    monkeypatch.setattr(Run, "step", None)
    message = refused("train", text, "--out", tmp_path / name, *SMALL)
    assert message.startswith(f"backpass train: --out {tmp_path}/{name}: cannot be a folder: ")


def test_a_corrupted_state_is_rejected_and_the_one_before_used(train, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        train(*SMALL)
    broken = tmp_path / "out" / "step-000005" / "model.safetensors"
    data = bytearray(broken.read_bytes())
    data[-3] ^= 4
    broken.write_bytes(data)
    capsys.readouterr()
    assert train("--resume", "--every", "1") == 0
    out, err = capsys.readouterr()
    assert err.startswith(
        f"backpass train: rejected {tmp_path}/out/step-000005: model.safetensors is not the file"
    )
    assert err.endswith(f"\nbackpass train: using {tmp_path}/out/step-000003\n")
    assert [line.split()[1] for line in numbers(out)] == ["4", "5", "6"]


def test_a_loss_that_is_not_finite_stops_the_run(train, tmp_path, capsys, monkeypatch):
    right = Run.step

    def step(self):
        if self.made == 4:
            name = "h.0.mlp.c_fc.weight"
            self.parameters[name] = self.parameters[name] * np.float32(np.nan)
        return right(self)

    monkeypatch.setattr(Run, "step", step)
    assert train(*SMALL) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "backpass train: step 5: the loss is nan; in the parameter h.0.mlp.c_fc.weight, 256 of 256"
    )
    assert f"\nthe newest saved state is {tmp_path}/out/step-000003\nthe same command, or --resume" in err
    assert "begin in a new folder" in err and "Warning" not in err
    assert newest(tmp_path).step == 3


def test_a_held_out_loss_that_is_not_finite_stops_the_run(train, tmp_path, capsys, recwarn):
    """The step was made, with finite numbers, and its parameters are of no use."""
    assert train(*SMALL, "--every", "1", "--lr", "1e30") == 1
    err = capsys.readouterr().err
    assert err.startswith("backpass train: after step 1, the held-out loss is ")
    assert "nothing was saved\n" in err and "begin in a new folder" in err
    assert states.paths(tmp_path / "out") == []
    assert not recwarn.list


def test_a_full_disk_stops_the_run(train, tmp_path, capsys, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states, "_write", full)
    assert train(*SMALL) == 1
    assert "No space left on device\nnothing was saved\n" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_a_file_that_becomes_too_large_is_named(train, tmp_path, capsys):
    resource = pytest.importorskip("resource")  # not on Windows
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        assert train(*SMALL) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = rf"backpass train: {re.escape(str(tmp_path))}/out/\S+/model.safetensors: File too large\n"
    assert re.fullmatch(said + "nothing was saved\n", capsys.readouterr().err)
    assert not list((tmp_path / "out").iterdir())


def test_a_terminal_has_a_progress_bar(train, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert train(*SMALL) == 0
    err = capsys.readouterr().err
    assert "6/6" in err and "tokens/s" in err


def test_without_tqdm_there_are_the_lines(train, capsys, monkeypatch):
    monkeypatch.setattr(
        train_command.importlib.util, "find_spec", lambda name: None if name == "tqdm" else object()
    )
    assert train(*SMALL) == 0
    out, err = capsys.readouterr()
    assert len(numbers(out)) == 2 and err == ""


# Sampling


def test_sample_writes(train, tmp_path, capsys):
    train(*SMALL)
    capsys.readouterr()
    texts = []
    for seed in ("1", "1", "2"):
        assert cli.main(["sample", str(tmp_path / "out"), "--tokens", "30", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The ") and texts[0].endswith("\n")
    path = str(tmp_path / "out" / "step-000003")
    assert cli.main(["sample", path, "--prompt", "é", "--tokens", "0"]) == 0
    assert capsys.readouterr().out == "é\n"
    assert cli.main(["sample", path, "--temperature", "0", "--top-k", "3", "--tokens", "4"]) == 0


def test_a_terminal_gets_no_control_characters(train, tmp_path, capsys, monkeypatch):
    train(*SMALL)
    capsys.readouterr()
    drawn = [b"\x1b", b"[2J", b"\x07\r\x7f", b"\xc2\x9b", b"\t\n", "é".encode()]
    monkeypatch.setattr(sampling, "sample", lambda *_, **__: iter(drawn))
    command = ["sample", str(tmp_path / "out"), "--prompt", "x"]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == "x\x1b[2J\x07\r\x7f\x9b\t\né\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(command) == 0
    assert capsys.readouterr().out == "x�[2J����\t\né\n"


def test_a_model_whose_probabilities_are_not_finite(train, tmp_path, capsys):
    train(*SMALL)
    state = newest(tmp_path)
    huge = {name: np.full_like(w, 3e38) for name, w in state.parameters.items()}
    states.save(tmp_path / "out", state._replace(parameters=huge))
    capsys.readouterr()
    assert cli.main(["sample", str(tmp_path / "out")]) == 1
    out, err = capsys.readouterr()
    assert out == "The \n"
    expected = "byte 1: the model's log-probabilities of the next byte are not all finite"
    assert err == f"backpass sample: {expected}\n"


# What is rejected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--steps", "-5"], "--steps: expected an integer of at least 1; got -5"),
        (["--steps", "0"], "--steps: expected an integer of at least 1; got 0"),
        (["--warmup", "9", "--steps", "9"], "--warmup: expected fewer than steps = 9; got 9"),
        (["--micro-batches", "3"], "--micro-batches: expected a divisor of batch = 16; got 3"),
        (["--lr", "-1"], "--lr: expected a finite number ≥ 0; got -1.0"),
        (["--clip", "0"], "--clip: expected a number above 0; got 0.0"),
        (["--layers", "0"], "--layers: expected an integer of at least 1; got 0"),
        (["--heads", "3"], "--heads: expected a divisor of --width = 128; got 3"),
        (["--heads", "0"], "--heads: expected a divisor of --width = 128; got 0"),
        (["--model", "llama", "--width", "12"], "--width: expected an even number for each of 4 heads"),
        (["--model", "llama", "--key-heads", "3"], "--key-heads: expected a divisor of heads = 4; got 3"),
        (["--key-heads", "2"], "--key-heads: a gpt2 has none; expected --model llama"),
        (["--dropout", "1"], "--dropout: expected a probability of at least 0 and below 1; got 1.0"),
        (["--dropout", "0.1", "--model", "llama"], "--dropout: a llama has none; expected --model gpt2"),
        (["--every", "0"], "--every: expected 1 or more; got 0"),
        (["--length", "100"], "TEXT: expected at least 1010 bytes"),
        (["--device", "abacus"], "--device abacus: expected numpy, cpu, or cuda"),
        (["--device", "meta"], "--device meta: expected a device whose tensors hold numbers"),
        (["--device", ""], "--device '': "),
        (["--model", "gpt3"], "argument --model: invalid choice: 'gpt3'"),
        (["--resume", "--lr", "1"], "--lr: cannot be given with --resume"),
        (["--resume"], "out: there is no saved state (see"),
    ],
)
def test_what_does_not_fit(text, tmp_path, refused, given, words):
    message = refused("train", text, "--out", tmp_path / "out", *given)
    assert words in message
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_not_there(tmp_path, refused):
    assert f"TEXT {tmp_path}/none: there is no such file or folder" in refused("train", tmp_path / "none")


def test_a_folder_with_states_needs_resume(train, text, tmp_path, refused, capsys):
    train(*SMALL)
    capsys.readouterr()
    message = refused("train", text, "--out", tmp_path / "out")
    assert "has saved states, such as step-000006; give --resume to continue from them" in message
    text.write_bytes(TEXT + b"another")
    message = refused("train", text, "--out", tmp_path / "out", "--resume")
    assert "TEXT: expected the text that the run began with" in message


@pytest.mark.parametrize("name", ["nope", "lr", "prompt"])
def test_the_name_of_a_folder_is_not_that_of_an_option(text, tmp_path, refused, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert refused("sample", name).startswith(f"backpass sample: FOLDER {name}: there is no saved state")
    message = refused("train", text, "--resume", "--out", name)
    assert message.startswith(f"backpass train: --out {name}: there is no saved state")


def test_without_a_whole_state(train, tmp_path, refused, capsys):
    train(*SMALL)
    capsys.readouterr()
    for path in states.paths(tmp_path / "out"):
        (path / "config.json").unlink()
    message = refused("sample", tmp_path / "out")
    start = (
        f"backpass sample: FOLDER {tmp_path}/out: no saved state is whole: {tmp_path}/out/step-000006: config"
    )
    assert message.startswith(start)
    assert "using" not in message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ["--prompt", "longer than 8"],
            "--prompt: expected from 1 to 8 bytes, which the model reads at once; got 13",
        ),
        (["--prompt", ""], "--prompt: expected from 1 to 8 bytes"),
        (["--temperature", "-1"], "--temperature: expected a finite number ≥ 0"),
        (["--top-k", "0"], "--top-k: expected an integer of at least 1; got 0"),
        (["--tokens", "-1"], "--tokens: expected an integer of at least 0"),
        (["--seed", "-1"], "--seed: expected an integer of at least 0"),
    ],
)
def test_what_sample_rejects(train, tmp_path, refused, capsys, given, words):
    train(*SMALL)
    capsys.readouterr()
    assert words in refused("sample", tmp_path / "out", *given)


def test_without_safetensors(text, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    assert "saved states need safetensors, which comes with backpass[train]" in refused("train", text)


def test_without_pytorch(train, text, tmp_path, refused, monkeypatch):
    monkeypatch.setattr(
        train_command.importlib.util, "find_spec", lambda name: None if name == "torch" else object()
    )
    message = refused("train", text, "--out", tmp_path / "out", "--device", "cuda")
    assert "--device cuda: PyTorch is not installed; it comes with backpass[torch]" in message
    assert train(*SMALL[:-2]) == 0
    assert newest(tmp_path).arrays == "numpy"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda(text, refused):
    assert "--device cuda: " in refused("train", text, "--device", "cuda")


@pytest.mark.parametrize("device", ["mps", "vulkan", "hpu"])
def test_without_a_device_one_short_sentence_says_so(text, refused, device):
    said = refused("train", text, "--device", device)
    assert said.startswith(
        f"backpass train: --device {device}: the installed PyTorch has no such device (see "
    )


def test_the_signal_is_left_alone_outside_the_main_thread(train):
    results = []
    thread = threading.Thread(target=lambda: results.append(train(*SMALL)))
    thread.start()
    thread.join()
    assert results == [0]


def test_the_help_says_that_recompute_takes_a_number(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "--recompute N a number: run N layers at a time" in " ".join(capsys.readouterr().out.split())
