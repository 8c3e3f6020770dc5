"""Saved states of a run: folders from which it goes on, and which Hugging Face's
``from_pretrained`` reads.

A state is a folder ``step-000100`` with

- ``model.safetensors`` and ``config.json``, the parameters and the configuration under
  Hugging Face's names;
- ``training.safetensors``, AdamW's two moments and, in its metadata, the number of
  steps, the options, and the digest of the text;
- ``SHA256SUMS``, the checksums of these three files: ``sha256sum -c SHA256SUMS`` checks
  them too.

A state is written into a folder with another name, which is renamed when everything is
on the disk: so a state is either there as a whole or not at all. Storing needs the
package ``safetensors``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

from backpass.contract.arrays import Array
from backpass.models import gpt2, llama
from backpass.training._finite import fault_in_arrays
from backpass.training.run import Options, State

MODELS = {"gpt2": gpt2, "llama": llama}  # by the names of the commands
MODELS_BY_TYPE = {**MODELS, "qwen2": llama, "qwen3": llama}
KEPT = 2  # states that are whole; the older ones are deleted
CONFIG, MODEL, TRAINING = "config.json", "model.safetensors", "training.safetensors"
SUMS = "SHA256SUMS"
_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL = ".partial-"


class Unusable(ValueError):
    """Raised for a saved state that is torn or corrupted; the message says why."""


def save(folder: str | Path, state: State) -> Path:
    """Store the state in a folder of its own within ``folder``, and return its path.
    The newest two whole states, counted from this one down, are kept; older ones are
    deleted.

    Raises FloatingPointError, and stores nothing, if a parameter or a moment is not
    finite; OSError if a file cannot be written; ImportError without ``safetensors``.
    """
    numpy_files = safetensors_numpy()
    for what in (state.parameters, state.optimiser["mean"], state.optimiser["square"]):
        if where := fault_in_arrays(what):
            raise FloatingPointError(f"after step {state.step}, {where}: not stored")
    folder = Path(folder)
    final = folder / f"step-{state.step:06d}"
    partial = folder / f"{_PARTIAL}{final.name}-{os.getpid()}"
    moments = {
        f"{moment}.{name}": _on_cpu(array)
        for moment in ("mean", "square")
        for name, array in state.optimiser[moment].items()  # type: ignore[literal-required]
    }
    facts = {
        "step": state.step,
        "options": dataclasses.asdict(state.options),
        "text": state.text,
        "arrays": state.arrays,
    }
    config = json.dumps(state.model.to_hugging_face(state.config), indent=2)
    parameters = _with_prefix(state.model, state.parameters)
    partial.mkdir(parents=True)
    try:
        files = {
            CONFIG: config.encode() + b"\n",
            MODEL: numpy_files.save(parameters, {"format": "pt"}),
            TRAINING: numpy_files.save(moments, {"run": json.dumps(facts)}),
        }
        for name, data in {**files, SUMS: _sums(files)}.items():
            _write(partial / name, data)
        _flush(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _flush(folder)
    found = paths(folder)
    kept = 1
    for old in found[found.index(final) + 1 :]:
        if kept == KEPT:
            shutil.rmtree(old)
        else:
            kept += _is_usable(old)
    for torn in folder.glob(f"{_PARTIAL}*"):  # of a process that was killed
        shutil.rmtree(torn, ignore_errors=True)
    return final


def paths(folder: str | Path) -> list[Path]:
    """Return the paths of the states in a folder, the newest first."""
    found = [
        (int(match[1]), path)
        for path in Path(folder).glob("step-*")
        if (match := _NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def newest(
    folder: str | Path, refused: Callable[[Unusable], None] = lambda reason: None
) -> tuple[Path, State]:
    """Return the path of the newest state that is whole, and the state, as NumPy
    arrays. ``refused`` is then called with the reason for each newer one that is not.

    ``folder`` can also be that of one state. Raises FileNotFoundError if there is no
    state; Unusable if none is whole.
    """
    folder = Path(folder)
    found = [folder] if (folder / SUMS).is_file() else paths(folder)
    if not found:
        raise FileNotFoundError(f"{folder}: there is no saved state")
    reasons: list[Unusable] = []
    for path in found:
        try:
            state = load(path)
        except Unusable as error:
            reasons.append(error)
            continue
        for reason in reasons:
            refused(reason)
        return path, state
    why = "\n    ".join(["no saved state is whole:", *map(str, reasons)])
    raise Unusable(f"{folder}: {why}")


def load(path: str | Path) -> State:
    """Return the state in a folder, as NumPy arrays.

    Raises Unusable, which names the folder and the file, if a file is missing or not
    the one that was written.
    """
    numpy_files, path = safetensors_numpy(), Path(path)
    files = _checked_files(path)
    try:
        config = json.loads(files[CONFIG])
        model = MODELS_BY_TYPE[config["model_type"]]
        stored = numpy_files.load(files[TRAINING])
        facts = json.loads(_metadata(files[TRAINING])["run"])
        moments: dict[str, dict[str, np.ndarray]] = {"mean": {}, "square": {}}
        for name, array in stored.items():
            moment, _, parameter = name.partition(".")
            moments[moment][parameter] = array
        parameters = numpy_files.load(files[MODEL])
        own = {name.removeprefix(model.PREFIX): w for name, w in parameters.items()}
        return State(
            model,
            model.Config.from_hugging_face(config),
            {name: own[name] for name in moments["mean"]},
            {"step": facts["step"], **moments},  # type: ignore[typeddict-item]
            Options(**facts["options"]),
            facts["text"],
            facts["arrays"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unusable(
            f"{path}: its files are whole, but of another version of the package: "
            f"{error}"
        ) from None


def _is_usable(path: Path) -> bool:
    """Return whether a run can go on from the state in a folder."""
    try:
        load(path)
    except Unusable:
        return False
    return True


def _checked_files(path: Path) -> dict[str, bytes]:
    """Return the contents of the files that have checksums. Raises Unusable."""
    files = {}
    for name in (CONFIG, MODEL, TRAINING, SUMS):
        try:
            files[name] = (path / name).read_bytes()
        except OSError as error:
            why = f"{path}: {name} cannot be read: {error.strerror}"
            raise Unusable(why) from None
    written = files.pop(SUMS)
    if written == _sums(files):
        return files
    for name, data in files.items():
        if _digest(data).encode() not in written:
            raise Unusable(
                f"{path}: {name} is not the file that was written: its {len(data):,} "
                f"bytes do not have the checksum in {SUMS}"
            )
    raise Unusable(f"{path}: {SUMS} is not the file that was written")


def _sums(files: Mapping[str, bytes]) -> bytes:
    """Return the checksums of the files, in the form of ``sha256sum``."""
    lines = [f"{_digest(data)}  {name}\n" for name, data in files.items()]
    return "".join(lines).encode()


def _with_prefix(
    model: ModuleType, parameters: Mapping[str, Array]
) -> dict[str, np.ndarray]:
    """Return the parameters under the names of Hugging Face's model with a head."""
    return {
        name if name.startswith("lm_head.") else model.PREFIX + name: _on_cpu(w)
        for name, w in parameters.items()
    }


def _on_cpu(x: Array) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x)
    return np.ascontiguousarray(array_api_compat.to_device(x, "cpu"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file: JSON behind its length."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length])["__metadata__"]


def _write(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk. An OSError names the file."""
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # that of write has no name
        raise OSError(error.errno, error.strerror, str(path)) from None


def _flush(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk, where the system can
    say so."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def safetensors_numpy() -> Any:
    """Return the module that writes the files. Raises ImportError."""
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(
            "saved states need safetensors, which comes with backpass[train]"
        ) from None
    return safetensors.numpy
