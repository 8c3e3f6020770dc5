"""``backpass train``: train a small model on a text, without autograd."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from backpass import kernels
from backpass.commands.command import (
    DEVICE,
    Command,
    InvalidCommand,
    Option,
    number,
    switch,
    value,
)
from backpass.commands.devices import unusable
from backpass.commands.output import say
from backpass.commands.saved import argument, errors_of_arguments, newest
from backpass.contract.arrays import size
from backpass.models import gpt2, llama
from backpass.training import batches, states, texts
from backpass.training.run import Options, Record, Run, place

EPILOG = """\
examples:
  backpass train chapters/ --out book
  backpass train notes.txt --model llama --width 256 --heads 8 --steps 5000
  backpass train chapters/ --out book --resume
  backpass sample book --prompt "The gradient of" --temperature 0.8

The text is a file, or a folder whose .md and .txt files are joined; its tokens
are bytes, and its last tenth is held out. Every --every steps the loss of the
held-out text is printed and the run is saved; the two newest states are kept.
Ctrl-C saves too, and so does SIGTERM. A resumed run continues with the same
numbers. Each state is also a folder that transformers' from_pretrained reads.
Exits with 0 if all steps ran, 1 if a loss was not finite or the run could not be
saved, 2 if the command is not valid, 130 after Ctrl-C, and 143 after SIGTERM.
"""
DTYPES = ("float32", "float64")
SIZES = {"layers": 4, "width": 128, "heads": 4}  # and their defaults
TUNED = {  # the options of a run, and what they are
    "steps": "how many steps (default 1000)",
    "batch": "windows of text in a step (default 16)",
    "length": "bytes in a window (default 128)",
    "micro_batches": "divide a step's windows into N parts, to save memory (default 1)",
    "recompute": "a number: run N layers at a time again in the backward, to save memory (default 0)",
    "lr": "the largest learning rate, after the warm-up (default 1e-3)",
    "warmup": "steps in which the rate rises (default: a tenth of all)",
    "clip": "the largest global norm of the gradients (default 1.0)",
    "weight_decay": "of matrices and tables (default 0.1)",
    "seed": "determines the initial parameters and the batches (default 0)",
}
REAL = ("lr", "clip", "weight_decay")
EVERY = 100  # steps between two reports
REPEATS = (  # after a loss that is not finite
    "the same command, or --resume, repeats the same steps: begin in a new folder with "
    "other options, such as a smaller --lr"
)


def train(arguments: argparse.Namespace) -> int:
    """Train; return the exit status."""
    with errors_of_arguments(arguments):
        run = _run(arguments)
    folder, steps = Path(arguments.out), run.options.steps
    if run.made >= steps:
        say(f"the run is complete: {run.made:,} of {steps:,} steps")
        return 0
    with errors_of_arguments(arguments):
        _make(folder)
    say(_description(run))
    try:
        with (
            _interrupted() as interrupts,
            _Bar(run) as bar,
            np.errstate(all="ignore"),  # a loss that is not finite has its own message
        ):
            for record in run:
                bar.show(record)
                last = bool(interrupts) or run.made >= steps
                if last or run.made % arguments.every == 0:
                    bar.say(_line(record, run.held_out_loss()))
                    states.save(folder, run.state())
                if last:
                    break
    except (FloatingPointError, OSError) as error:
        why = str(error)
        if isinstance(error, OSError) and error.filename:
            why = f"{error.filename}: {error.strerror}"
        print(f"backpass train: {why}\n{_left(folder)}", file=sys.stderr)
        if isinstance(error, FloatingPointError):
            print(REPEATS, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the second
        print(f"\nbackpass train: interrupted; {_left(folder)}", file=sys.stderr)
        return 130
    if run.made < steps:
        say(f"stopped and saved after {run.made:,} of {steps:,} steps; to continue:")
        command = ["backpass", "train", arguments.text]
        command += ["--out", str(folder), "--resume"]
        if arguments.every != EVERY:
            command += ["--every", str(arguments.every)]
        say(f"    {shlex.join(command)}")
        return 128 + interrupts[0]
    say(f"saved in {states.paths(folder)[0]}; to read what the model writes:")
    say(f"    {shlex.join(['backpass', 'sample', str(folder)])}")
    return 0


# The run


def _run(arguments: argparse.Namespace) -> Run:
    """Return the run that the arguments describe. Raises InvalidCommand, or what the
    package raises for an option that does not fit."""
    if arguments.every < 1:
        raise InvalidCommand(f"--every: expected 1 or more; got {arguments.every}")
    states.safetensors_numpy()
    try:
        text = texts.read(arguments.text)
    except (OSError, ValueError) as error:
        raise InvalidCommand(f"TEXT {error}") from None
    given = vars(arguments)
    if arguments.resume:
        return _resumed(arguments, text)
    if found := states.paths(arguments.out):
        raise InvalidCommand(
            f"--out {arguments.out}: has saved states, such as {found[0].name}; give "
            "--resume to continue from them, or another folder"
        )
    tuned = {name: given[name] for name in TUNED if given[name] is not None}
    steps = tuned.get("steps", Options.steps)
    options = Options(**{"warmup": max(steps, 0) // 10, **tuned})
    model, config = _model(arguments, options)
    like = _array(arguments.device, arguments.dtype or DTYPES[0])
    return Run.start(model, config, text, options, like=like, kernels=_kernels(like))


def _make(folder: Path) -> None:
    """Make the folder to save in, before anything is computed. Raises InvalidCommand if
    nothing can be saved there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise InvalidCommand(f"--out {folder}: cannot be a folder: {why}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidCommand(f"--out {folder}: cannot be written to")


def _resumed(arguments: argparse.Namespace, text: bytes) -> Run:
    fixed = ("model", *SIZES, "key_heads", "dropout", "dtype", *TUNED)
    for name in fixed:
        if getattr(arguments, name) is not None:
            raise InvalidCommand(
                f"{argument(name)}: cannot be given with --resume; the run "
                "continues with the options that it began with"
            )
    state = newest("--out", arguments.out, arguments.parser.prog)
    dtype = str(next(iter(state.parameters.values())).dtype)
    device = state.arrays if arguments.device is None else arguments.device
    like = _array(device, dtype)
    return Run.resumed(state, text, like=like, kernels=_kernels(like))


def _model(arguments: argparse.Namespace, options: Options) -> tuple[ModuleType, Any]:
    """Return the model and its configuration."""
    layers, width, heads = (
        default if getattr(arguments, name) is None else getattr(arguments, name)
        for name, default in SIZES.items()
    )
    if heads < 1 or width % heads:
        raise InvalidCommand(
            f"--heads: expected a divisor of --width = {width}; got {heads}"
        )
    vocabulary, key_heads = batches.VOCABULARY, arguments.key_heads
    if arguments.model == "llama":
        if arguments.dropout is not None:
            raise InvalidCommand("--dropout: a llama has none; expected --model gpt2")
        if width // heads % 2:
            raise InvalidCommand(
                f"--width: expected an even number for each of {heads} heads, whose "
                f"pairs are rotated; got {width}"
            )
        if key_heads is None:
            key_heads = heads // 2 if heads % 2 == 0 else heads
        # Three matrices of 8/3 of the width have as many numbers as two of 4.
        inner = -(-8 * width // 24) * 8
        of_heads = (heads, key_heads, width // heads)
        return llama, llama.Config(vocabulary, width, layers, *of_heads, inner)
    if key_heads is not None:
        raise InvalidCommand("--key-heads: a gpt2 has none; expected --model llama")
    p = arguments.dropout or 0.0
    if not 0 <= p < 1:
        raise InvalidCommand(
            f"--dropout: expected a probability of at least 0 and below 1; got {p}"
        )
    sizes = (vocabulary, options.length, width, layers, heads, 4 * width)
    rates: dict[str, Any] = dict.fromkeys(gpt2.RATES.values(), p)
    return gpt2, gpt2.Config(*sizes, **rates)


def _array(device: str | None, dtype: str) -> Any:
    """Return an array of the library, the dtype, and the device that are asked for.
    Raises InvalidCommand if it cannot be had."""
    there = importlib.util.find_spec("torch") is not None
    if device == "numpy" or (device is None and not there):
        return np.zeros(1, dtype=dtype)
    if there and device is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    if there and not _is_device(device):
        raise InvalidCommand(
            f"--device {device or repr(device)}: expected numpy, cpu, or cuda"
        )
    if reason := unusable(device, None):
        raise InvalidCommand(
            reason if there else f"{reason}; without it, numpy is available"
        )
    import torch

    return torch.zeros(1, dtype=getattr(torch, dtype), device=device)


def _is_device(name: str | None) -> bool:
    """Return whether PyTorch has devices of this name."""
    import torch

    try:
        torch.device(name)  # type: ignore[arg-type]
    except RuntimeError:
        return False
    return True


def _kernels(like: Any) -> ModuleType | None:
    """Return the kernels for tensors on a CUDA device, if they can run there."""
    on_cuda = place(like).startswith("cuda")
    return kernels if on_cuda and kernels.available() is None else None


# What is said


def _description(run: Run) -> str:
    numbers = sum(size(w.shape) for w in run.parameters.values())
    dtype = str(next(iter(run.parameters.values())).dtype).rpartition(".")[2]
    return (
        f"{run.model.__name__.rpartition('.')[2]}: {numbers:,} parameters, {dtype}, "
        f"{run.arrays}{', kernels' if run.kernels else ''}; "
        f"{len(run.train):,} bytes to train on, "
        f"{len(run.held_out):,} held out"
    )


def _left(folder: Path) -> str:
    """Return in words what a run can continue from in the folder."""
    there = states.paths(folder)
    return f"the newest saved state is {there[0]}" if there else "nothing was saved"


def _line(record: Record, held_out: float) -> str:
    return (
        f"step {record.step + 1:>6,}   loss {record.loss:.3f}   "
        f"held out {held_out:.3f}   rate {record.rate:.1e}   norm {record.norm:.2f}   "
        f"{record.tokens_per_second:,.0f} tokens/s"
    )


class _Bar:
    """A progress bar on standard error, if that is a terminal and tqdm is installed."""

    def __init__(self, run: Run):
        self._bar = None
        if importlib.util.find_spec("tqdm") is not None:
            from tqdm import tqdm

            steps = run.options.steps
            self._bar = tqdm(
                total=steps,
                initial=run.made,
                unit="step",
                disable=None,
                dynamic_ncols=True,
                leave=False,
            )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, record: Record) -> None:
        """Count one step."""
        if self._bar is not None:
            speed = f"{record.tokens_per_second:,.0f} tokens/s"
            what = f"loss {record.loss:.3f}, rate {record.rate:.1e}, {speed}"
            self._bar.set_postfix_str(what, refresh=False)
            self._bar.update()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is None:
            say(line)
        else:
            with self._bar.external_write_mode(file=sys.stdout):
                say(line)


@contextlib.contextmanager
def _interrupted() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM in the list that is yielded, so that a step can end.
    The same signal once more has its usual effect at once."""
    signals: list[int] = []
    names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
    before: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        signals.append(number)
        signal.signal(number, before[number])
        again = f"{names[signal.Signals(number)]} again stops at once, without saving"
        print(f"\nstopping after this step; {again}", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield signals  # only the main thread gets the signals
        return
    before |= {number: signal.signal(number, note) for number in names}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


COMMAND = Command(
    "train",
    help="train a small model on a text, without autograd",
    description="Train a small GPT-2 or Llama on the bytes of a text. The gradients\n"
    "are the book's own, and so are clipping and AdamW.",
    options=(
        value("text", "TEXT", "a file, or a folder of .md and .txt files"),
        value("--out", "FOLDER", "where to save", "backpass-run"),
        switch("--resume", help="continue the run saved in --out"),
        number("--every", "report and save every N steps", EVERY),
        DEVICE.but(
            help="numpy for NumPy's arrays; cpu or cuda for PyTorch's tensors (default: "
            "cuda if there is one, else cpu, or numpy without PyTorch; with --resume, "
            "that of the run)"
        ),
        Option("--model", choices=tuple(states.MODELS), help="default gpt2"),
        *(number(f"--{name}", f"default {default}") for name, default in SIZES.items()),
        number(
            "--key-heads", "key-value heads of a llama (default: half as many as heads)"
        ),
        value(
            "--dropout",
            "P",
            "of a gpt2's embeddings, attention, and blocks (default 0)",
            type=float,
        ),
        Option("--dtype", choices=DTYPES, help="default float32"),
        *(
            value(argument(name), "X", what, type=float)
            if name in REAL
            else number(argument(name), what)
            for name, what in TUNED.items()
        ),
    ),
    run=train,
    epilog=EPILOG,
)
