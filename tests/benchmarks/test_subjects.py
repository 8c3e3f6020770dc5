"""The table of what is measured: everyone computes the same, and the bytes are those of the arrays."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

from backpass import ops
from backpass.recorded import records

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import operations
from subjects import LARGE, LOSSES, QUICK, SMALL, SUBJECTS, TYPICAL

subjects = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
NOT_RECORDED = {
    "dropout",
    "rms_norm of a sum",
}  # timed since the records were made; the next run of a device adds it
RECORDS = [records.load("operations", device) for device in records.devices("operations")]


def numbers(arrays) -> int:
    return sum(array.numel() for array in arrays if array.is_floating_point())


@subjects
def test_every_provider_computes_the_same(subject):
    inputs = subject.inputs(*subject.lengths[QUICK], dtype=torch.float64, device="cpu")
    dy = operations.cotangent(subject, inputs)
    exact = operations.exact_results(subject, inputs)
    for step, calls in operations.steps(subject, inputs, dy, compiled=False, absent=[]).items():
        assert {"ours", "PyTorch"} <= set(calls)
        for name, call in calls.items():
            got = call()
            right = operations.expected(subject, name, step, inputs, dy, got, exact)
            assert operations.error(got, right) < 1e-13, (step, name)


@subjects
def test_a_wrong_result_would_be_seen(subject):
    """Each result of each step counts, and none may be missing."""
    inputs = subject.inputs(*subject.lengths[QUICK], dtype=torch.float64, device="cpu")
    exact = operations.exact_results(subject, inputs)["both"]
    for at in range(len(exact)):
        wrong = tuple(result * (1.01 if i == at else 1) for i, result in enumerate(exact))
        assert operations.error(wrong, exact) > 0.009
    with pytest.raises(ValueError):
        operations.error((*exact, exact[0]), exact)


def test_of_what_pytorch_drops_the_share_and_the_values_count():
    subject = next(subject for subject in SUBJECTS if subject.undropped)
    inputs = subject.inputs(*subject.lengths[SMALL], dtype=torch.float64, device="cpu")
    dy, exact = operations.cotangent(subject, inputs), operations.exact_results(subject, inputs)
    y = subject.pytorch(*inputs)

    def error(name, got):
        right = operations.expected(subject, name, "forward", inputs, dy, got, exact)
        return operations.error(got, right)

    assert error("PyTorch", y) < 1e-13 < 0.009 < error("PyTorch", 1.01 * y)
    assert error("ours", y) > 0.5  # the mask of the seed is checked
    for wrong in (torch.zeros_like(y), subject.undropped(*inputs)):
        with pytest.raises(RuntimeError, match=r"PyTorch dropped another share than 0\.1"):
            error("PyTorch", wrong)


@subjects
def test_the_bytes_are_those_of_the_arrays(subject):
    """Inputs and upstream gradient read once, results written once; a norm's parameters may be left out."""
    lengths = subject.lengths[SMALL]
    inputs = subject.inputs(*lengths, dtype=torch.float32, device="cpu")
    exact = operations.exact_results(subject, inputs)
    moved = subject.moved(*lengths)
    gradients, y = numbers(exact["both"]), numbers(exact["forward"])
    if subject.stem in LOSSES:
        assert moved == {"both": numbers(inputs) + gradients}
        return
    read = y if subject.stem == "embedding" else numbers(inputs)  # of the table only the tokens' rows
    assert 0.97 * (read + y) < moved["forward"] <= read + y
    assert 0.97 * (y + gradients) < moved["backward"] <= y + numbers(inputs) + gradients


@subjects
def test_the_lengths_are_as_many_as_the_letters(subject):
    for size in (SMALL, TYPICAL, LARGE, QUICK):
        assert len(subject.lengths[size]) == len(subject.letters.split())
    assert subject.stem in ops.STEMS


def test_a_function_that_writes_over_its_input_is_judged_by_its_first_call(monkeypatch):
    monkeypatch.setattr(operations, "liger_installed", lambda: True)
    monkeypatch.setattr(operations.kernels, "STEMS", ())
    subject = next(subject for subject in SUBJECTS if subject.stem == "cross_entropy")
    inputs = subject.inputs(*subject.lengths[QUICK], dtype=torch.float64, device="cpu")
    dy, exact = operations.cotangent(subject, inputs), operations.exact_results(subject, inputs)

    class Gpu(torch.Tensor):
        is_cuda = True

    def overwriting(x, t):
        loss = torch.nn.functional.cross_entropy(x.clone(), t)
        x.data.zero_()
        return loss

    calls = operations.steps(
        subject._replace(liger=overwriting, stem="cross_entropy"),
        inputs,
        dy.as_subclass(Gpu),
        compiled=False,
        absent=[],
    )
    assert operations.error(calls["both"]["Liger-Kernel"](), exact["both"]) < 1e-13


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.device)
def test_the_record_is_whole(record):
    assert not record.dirty
    found = {(row["operation"], row["size"], row["step"]) for row in record.rows}
    missing = {subject.name for subject in SUBJECTS} - {operation for operation, *_ in found}
    assert missing <= NOT_RECORDED
    assert found == {
        (subject.name, size, step)
        for subject in SUBJECTS
        if subject.name not in missing
        for size in (SMALL, TYPICAL, LARGE)
        for step in (("both",) if subject.stem in LOSSES else ("forward", "backward", "both"))
    }
    for row in record.rows:
        if row["largest_error"] is None:
            assert (row["operation"], row["provider"]) == ("cross_entropy", "Liger-Kernel")
        else:
            assert row["largest_error"] < {"float32": 1e-4, "bfloat16": 0.1}[row["dtype"]]
