"""Saved states: written whole or not at all, rejected when corrupted, and read by Hugging Face's models."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from backpass.models import gpt2
from backpass.training import states
from backpass.training.run import Run

sys.path.insert(0, str(Path(__file__).parent))
from small_runs import LENGTH, LIKE, MODELS, TEXT, assert_same_bits, curve, started

FILES = ("config.json", "model.safetensors", "training.safetensors", "SHA256SUMS")
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the states of step 5 and 10 of a run of 20, and the whole run."""
    folder = tmp_path_factory.mktemp("saved")
    run = started(like="numpy32", steps=20)
    records = []
    for _ in range(2):
        records += curve(run, 5)
        states.save(folder, run.state())
    records += curve(run)
    return folder, records, run


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to damage."""
    return shutil.copytree(saved[0], tmp_path / "copy")


@EVERY_MODEL
@pytest.mark.parametrize("like", LIKE)
def test_what_is_saved_is_loaded(tmp_path, model, like):
    run = started(model, like)
    curve(run, 2)
    path = states.save(tmp_path, run.state())
    state = states.load(path)
    assert path.name == "step-000002" and state.step == 2
    assert (state.model, state.config) == MODELS[model]
    assert (state.options, state.text, state.arrays) == (run.options, run.text, run.arrays)
    assert_same_bits(Run.resumed(state, TEXT, like=LIKE[like]), run)


@EVERY_MODEL
def test_a_run_resumed_from_the_disk_has_the_same_bits(tmp_path, model):
    whole = started(model, "numpy32", steps=20)
    expected = curve(whole)
    first = started(model, "numpy32", steps=20)
    got = curve(first, 10)
    states.save(tmp_path, first.state())
    second = Run.resumed(states.newest(tmp_path)[1], TEXT, like=LIKE["numpy32"])
    assert got + curve(second) == expected
    assert_same_bits(second, whole)


def test_the_two_newest_are_kept(tmp_path):
    run = started(like="numpy32")
    for expected in (["step-000001"], ["step-000002", "step-000001"], ["step-000003", "step-000002"]):
        curve(run, 1)
        states.save(tmp_path, run.state())
        assert [path.name for path in states.paths(tmp_path)] == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(expected)


def test_a_state_can_be_saved_again(saved, folder):
    _, state = states.newest(folder)
    states.save(folder, state)
    assert_same_bits(*(Run(states.newest(there)[1], TEXT) for there in (folder, saved[0])))


# Damage


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "truncated":
        data = data[: len(data) // 2]
    elif how == "empty":
        data = data[:0]
    else:
        data[len(data) // 3] ^= 1 << (len(data) % 8)
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "missing"])
def test_a_damaged_state_is_rejected_and_the_one_before_is_used(folder, name, how):
    broken = folder / "step-000010" / name
    if how == "missing":
        broken.unlink()
    else:
        damage(broken, how)
    refused = []
    path, state = states.newest(folder, refused.append)
    assert path.name == "step-000005" and state.step == 5
    assert len(refused) == 1
    assert str(refused[0]).startswith(f"{folder / 'step-000010'}: ")
    if name != "SHA256SUMS":
        assert name in str(refused[0])


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_the_run_goes_on_from_the_state_before_with_the_same_bits(saved, folder, how):
    _, expected, whole = saved
    damage(folder / "step-000010" / "model.safetensors", how)
    run = Run.resumed(states.newest(folder)[1], TEXT, like=LIKE["numpy32"])
    assert curve(run) == expected[5:]
    assert_same_bits(run, whole)


def test_a_damaged_state_is_not_counted_among_those_that_are_kept(folder):
    """The one before it must not be deleted, or a second damage would end the run."""
    damage(folder / "step-000010" / "model.safetensors", "flipped")
    run = Run.resumed(states.newest(folder)[1], TEXT, like=LIKE["numpy32"])
    for step, expected in ((12, [5, 10, 12]), (14, [12, 14])):
        curve(run, step - run.made)
        states.save(folder, run.state())
        assert sorted(int(path.name[5:]) for path in states.paths(folder)) == expected
    for path in states.paths(folder):
        assert states.load(path).step == int(path.name[5:])


def test_every_byte_counts(folder):
    """One flipped bit in any of 60 places of each file is found."""
    path = folder / "step-000010"
    for name in FILES:
        data = (path / name).read_bytes()
        for at in np.linspace(0, len(data) - 1, 60).astype(int):
            flipped = bytearray(data)
            flipped[at] ^= 1 << int(at) % 8
            (path / name).write_bytes(flipped)
            with pytest.raises(states.Unusable, match="step-000010"):
                states.load(path)
        (path / name).write_bytes(data)
    states.load(path)


def test_without_a_whole_state(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no saved state"):
        states.newest(tmp_path / "none")
    for path in states.paths(folder):
        damage(path / "model.safetensors", "flipped")
    with pytest.raises(states.Unusable) as caught:
        states.newest(folder)
    assert str(caught.value).count("model.safetensors is not the file that was written") == 2


def test_the_path_of_one_state_is_enough(folder):
    assert states.newest(folder / "step-000005")[1].step == 5


def test_a_failed_write_leaves_nothing(saved, folder, monkeypatch):
    before = sorted(path.name for path in folder.iterdir())
    run = Run(states.newest(folder)[1], TEXT)
    run.step()

    def full(path, data):
        path.write_bytes(data[:10])
        if path.name == "training.safetensors":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(states, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        states.save(folder, run.state())
    assert sorted(path.name for path in folder.iterdir()) == before
    assert states.newest(folder)[1].step == 10


def test_a_killed_process_leaves_the_states_before(saved, folder):
    """A process that is killed within a write leaves a folder with another name, which the next save deletes."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from small_runs import TEXT
from backpass.training import states
from backpass.training.run import Run
run = Run(states.newest({str(folder)!r})[1], TEXT)
run.step()
def killed(path, data):
    path.write_bytes(data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
states._write = killed
states.save({str(folder)!r}, run.state())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, env=dict(os.environ))
    assert done.returncode == -9
    assert any(path.name.startswith(".partial-") for path in folder.iterdir())
    assert states.newest(folder)[1].step == 10
    run = Run(states.newest(folder)[1], TEXT)
    run.step()
    states.save(folder, run.state())
    assert sorted(path.name for path in folder.iterdir()) == ["step-000010", "step-000011"]


def test_nothing_is_written_that_is_not_finite(tmp_path):
    run = started(like="numpy32")
    run.step()
    state = run.state()
    broken = {**state.parameters, "wte.weight": state.parameters["wte.weight"] * np.float32(np.inf)}
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match=r"after step 1, .* wte\.weight"):
        states.save(tmp_path, state._replace(parameters=broken))
    assert not list(tmp_path.iterdir())


def test_another_version_is_told_from_damage(folder):
    path = folder / "step-000010"
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "rwkv"}))
    files = {name: (path / name).read_bytes() for name in FILES[:3]}
    (path / "SHA256SUMS").write_bytes(states._sums(files))
    with pytest.raises(states.Unusable, match="its files are whole, but of another version"):
        states.load(path)


# Others read it


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum")
def test_sha256sum_reads_the_checksums(saved):
    path = saved[0] / "step-000010"
    subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=path, check=True, capture_output=True)


@pytest.mark.parametrize(("model", "name"), [("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM")])
def test_hugging_face_reads_it(tmp_path, model, name):
    run = started(model, "numpy64")
    curve(run, 2)
    path = states.save(tmp_path, run.state())
    theirs = getattr(transformers, name).from_pretrained(path, dtype=torch.float64)
    for key, parameter in theirs.named_parameters():
        own = key.removeprefix(run.model.PREFIX)
        np.testing.assert_array_equal(parameter.detach().numpy(), run.parameters[own])
    tokens = np.frombuffer(TEXT[: LENGTH + 1], np.uint8).astype(np.int64)[None]
    loss, _ = run.model.forward(run.parameters, tokens[:, :-1], tokens[:, 1:], config=run.config)
    given = torch.from_numpy(tokens)
    scores = theirs(given[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(scores[0], given[0, 1:]).item()
    # Hugging Face's Llama rounds its norms and rotations to float32.
    assert float(loss) == pytest.approx(expected, rel=1e-13 if model == "gpt2" else 1e-6)


def test_the_file_of_a_state_is_that_of_a_model(saved):
    from safetensors.numpy import load_file

    parameters = load_file(saved[0] / "step-000010" / "model.safetensors")
    assert all(name.startswith("transformer.") for name in parameters)
    config = gpt2.Config.from_hugging_face(json.loads((saved[0] / "step-000010/config.json").read_text()))
    tokens = np.arange(6)[None]
    loss, back = gpt2.forward(parameters, tokens, tokens, config=config)
    assert np.isfinite(loss) and gpt2.backward(back).keys() == parameters.keys()
