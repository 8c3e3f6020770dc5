"""The row "compiled kernel" of ``check``."""

from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

import recorded
from backpass import cli, kernels
from backpass.kernels import proofs
from backpass.recorded import findings
from backpass.verify import check
from backpass.verify.checking import STRIDES
from backpass.verify.methods import compiled
from tests.compiled import own
from tests.kernels.support import sources, verifying

DTYPES = ("float32", "float16", "bfloat16")
X = torch.randn(5, 37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def assert_right_as_compiled(stem, dtypes, monkeypatch):
    """Lengths are odd, and some rows are longer than one program holds."""
    monkeypatch.setattr(compiled, "LOW", dtypes)
    report = check(stem, methods=["compiled"])
    assert {row.method for row in report.rows} == {f"compiled kernel, {dtype}" for dtype in dtypes}
    assert {row.quantity for row in report.rows} == {"y", *report.gradients}
    assert all(
        "as compiled for compute capability 8.0" in row.how and "not checked" in row.note
        for row in report.rows
    )
    for dtype in dtypes:
        compare_with_the_page(stem, dtype, report)


def compare_with_the_page(stem, dtype, report):
    """The page shows the largest error as a share of the tolerance."""
    rows = [row for row in report.rows if row.method == f"compiled kernel, {dtype}"]
    share = round(max(row.error / row.tolerance if row.error else 0.0 for row in rows), 3)
    recorded.entry("compiled", f"{stem}, {dtype}", share)
    record = findings.load("compiled")
    if record.versions["triton"] == triton.__version__:
        assert abs(record.entries[f"{stem}, {dtype}"] - share) < 0.05, "`make records` writes the results"


def test_the_page_shows_every_kernel():
    shown = {f"{stem}, {dtype}" for stem in kernels.STEMS for dtype in DTYPES}
    assert set(findings.load("compiled").entries) == shown


@pytest.mark.parametrize("stem", kernels.STEMS)
def test_every_kernel_is_right_as_compiled(stem, monkeypatch):
    assert_right_as_compiled(stem, ("bfloat16",), monkeypatch)


@pytest.mark.rotates(of=sources, checks=verifying)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("stem", kernels.STEMS)
def test_every_kernel_is_right_in_other_dtypes(stem, dtype, monkeypatch):
    assert_right_as_compiled(stem, (dtype,), monkeypatch)


def test_the_command_for_all_operations_has_a_column_for_it(capsys):
    assert cli.main(["verify", "relu", "scale", "--compiled"]) == 0
    printed = capsys.readouterr().out
    assert "compiled" in printed and "✓" in printed


def test_a_dtype_that_is_given_is_the_one_that_is_compiled():
    report = check("softmax", X.bfloat16(), methods=["compiled"])
    assert {row.method for row in report.rows} == {"compiled kernel, bfloat16"}


def test_a_changed_kernel_fails(monkeypatch):
    kernel = kernels.load("relu")
    right = kernel.backward
    monkeypatch.setattr(kernel, "backward", lambda dy, saved: 1.02 * right(dy, saved))
    report = check("relu", methods=["compiled"], raises=False)
    assert len(report.failed) == 3 and {row.quantity for row in report.failed} == {"dx"}


def of_own(x=X, **changed):
    return check(own.Softmax(**changed), x, operator=own.reference, compiled=True, raises=False)


def test_a_users_own_kernels_are_checked_in_all_dtypes_by_values_the_contract_and_variations():
    report = of_own(X[:3, :7])
    assert report.passed, report
    values = {f"compiled kernel, {dtype}" for dtype in DTYPES}
    assert {row.method for row in report.rows} == values | {"contract", "varied inputs"}
    varied = [row.variation for row in report.rows if row.variation]
    lengths = (37, 3), (37, 7), (131, 7), (48, 3), (48, 7)
    assert varied == [
        *(f"length {of} in place of {given}" for of, given in lengths),
        "length 64 in place of 7",
        "lengths 24 and 40 in place of 3 and 7",
        "other values",
    ]


def test_the_command_draws_tensors_for_kernels(capsys):
    target, operator = (f"tests/compiled/own.py:{name}" for name in ("Softmax", "reference"))
    command = ["check", target, "--input", "3x7", "--operator", operator, "--compiled", "--atomic-sums"]
    assert cli.main([*command, "--no-vary"]) == 0
    assert "PyTorch on cpu" in capsys.readouterr().out


def test_without_an_operator_differences_along_few_directions_judge_a_kernel():
    report = check(own.Softmax(), X[:3, :7], compiled=True, vary=False)
    reasons = {row.reason for row in report.of("compiled kernel")}
    assert len(reasons) == 1 and "an operator= would give the reference" in reasons.pop()
    (row,) = report.of("finite differences")
    assert row.verdict == "passed" and row.how.startswith("2 random directions")


def test_a_sum_in_half_precision_is_found_and_one_in_float32_is_not_accused():
    g = torch.Generator().manual_seed(1)
    inputs = (
        torch.randn(100, 30, generator=g, dtype=torch.float64),
        torch.randn(30, generator=g, dtype=torch.float64),
    )
    for in_float32 in (True, False):
        report = check(
            own.Scaled(in_float32), *inputs, methods=["compiled"], operator=torch.mul, raises=False
        )
        short = {"compiled kernel, float16", "compiled kernel, bfloat16"}
        assert {(row.method, row.quantity) for row in report.failed} == (
            set() if in_float32 else {(method, "dw") for method in short}
        )


def test_a_mask_of_the_wrong_length_is_found_and_its_line():
    @triton.jit
    def one_too_many(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
        row, column = tl.program_id(0), tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + column, mask=column <= n, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * n + column, e / tl.sum(e, axis=0), mask=column < n)

    (what, *_) = [
        row.reason for row in of_own(forward_kernel=one_too_many).failed if "OutOfBounds" in row.reason
    ]
    assert "test_row.py" in what and "column <= n" in what and "block 4" in what


def test_an_object_that_launches_no_kernel_has_no_such_row():
    plain = SimpleNamespace(forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * x * dy)
    assert not check(plain, X, compiled=True).of("compiled kernel")


def test_an_operation_without_a_kernel_says_so():
    (row,) = check("linear", methods=["compiled"], raises=False).rows
    assert row.verdict == "not run" and row.reason == "this operation has no kernel"


def test_without_a_gpu_a_check_says_how_kernels_are_executed():
    report = check(own.Softmax(), X, raises=False)
    (reason,) = {row.reason for row in report.having("could not run")}
    assert "with compiled=True (--compiled), check executes the kernels on the CPU" in reason


def test_an_operator_that_draws_random_numbers_is_named():
    report = check(
        own.Softmax(),
        X[:3, :7].float(),
        operator=lambda x: torch.nn.functional.dropout(x, 0.5),
        methods=["compiled"],
        raises=False,
    )
    assert {row.reason for row in report.having("vacuous")} == {compiled.RANDOM}


def test_strides_that_a_kernel_ignores_have_a_cure():
    strided = type(
        "Softmax", (own.Softmax,), {"forward": lambda self, x: super(strided, self).forward(Flat(x))}
    )
    report = check(strided(), X[:3, :8], operator=own.reference, compiled=True, raises=False, vary=False)
    (row,) = report.of("contract")
    assert "not contiguous" in row.reason and row.reason.endswith(STRIDES)


class Flat:
    """A tensor whose strides are ignored."""

    def __new__(cls, x):
        return torch.as_strided(x, x.shape, (x.shape[1], 1))


ANSWERS = {
    "race_free": ("passed", "no race in any schedule of 3 programs, at these sizes"),
    "potential_race": ("not run", "potential race: two accesses"),
    "timeout": ("not run", "timeout: two accesses"),
}


@pytest.mark.parametrize("result", ANSWERS)
def test_a_prover_adds_a_row_for_each_launch_and_never_fails_one(result, monkeypatch):
    asked = []

    def answer(text, description):
        asked.append((text, description))
        return {"result": result, "diagnostics": [{"message": "two accesses"}]}

    monkeypatch.setattr(proofs, "missing", lambda: False)
    monkeypatch.setattr(proofs, "prover", lambda: "SentryWard 0")
    monkeypatch.setattr(proofs, "_asked", answer)
    settings = {"operator": own.reference, "methods": ["compiled"], "vary": False, "raises": False}
    report = check(own.Softmax(), X[:3, :7].float(), prove=True, **settings)
    rows = report.of("proof")
    assert report.passed and [row.quantity for row in rows] == ["forward_kernel", "backward_kernel"]
    verdict, said = ANSWERS[result]
    assert all(row.verdict == verdict and said in row.note + row.reason for row in rows)
    text, given = asked[0]
    (entry,) = {x["parameter"].rpartition("_param")[0] for x in given["arguments"]}
    assert f".entry {entry}(" in text and given["launch"]["grid_dim"] == [3, 1, 1]
    assert sorted(x["value"] for x in given["arguments"]) == [7, 7]


def test_without_a_prover_the_row_says_what_to_install(monkeypatch):
    monkeypatch.setattr(proofs, "missing", lambda: True)
    settings = {"operator": own.reference, "methods": ["compiled"], "vary": False}
    (row,) = check(own.Softmax(), X[:3, :7].float(), prove=True, **settings).of("proof")
    assert row.verdict == "not run" and "pip install sentryward" in row.reason
    with pytest.raises(ValueError, match="compiled=True"):
        check(own.Softmax(), X[:3, :7].float(), prove=True)


if not proofs.missing():

    def test_the_prover_proves_a_right_kernel():
        settings = {"operator": own.reference, "methods": ["compiled"], "vary": False}
        report = check(own.Softmax(), X[:3, :7].float(), prove=True, **settings)
        assert [row.verdict for row in report.of("proof")] == ["passed", "passed"]
