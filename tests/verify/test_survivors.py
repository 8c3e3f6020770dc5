"""`mutate` shows which single changes of a backward a test does not notice."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass import cli
from backpass.ops import softmax
from backpass.verify import VerificationError, check, mutate
from backpass.verify.survivors import by_check, changes

X, W = np.random.default_rng(0).normal(size=(4, 6)), np.random.default_rng(1).normal(size=6)
FAST = ("contract", "complex_step")
FACTOR = 3.0


def over_rows(a):
    return np.sum(a, axis=0)


def forward(x, w):
    return w * x * FACTOR, (x, w)


def backward(dy, saved):
    x, w = saved
    dx = FACTOR * dy * w
    return dx, FACTOR * over_rows(dy * x)


product = SimpleNamespace(forward=forward, backward=backward, __name__="product")


class Square:
    """An object with a state."""

    def __init__(self, factor=2.0):
        self.factor = factor

    def forward(self, x):
        return self.factor * x * x, x

    def backward(self, dy, x):
        return 2 * self.factor * x * dy


class Product(torch.autograd.Function):
    """Of tensors, with a decorator that hides the function."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w, (dy * x).sum(0)


def survivors(op, test):
    return [(change.function, change.change) for change in mutate(op, test).survivors]


def test_a_test_at_telling_inputs_notices_every_change():
    survey = mutate(product, by_check([((X, W), {})], FAST))
    assert survey.passed and survey.made > 20
    assert repr(survey) == f"✓ product: {survey.made} of {survey.made} changes noticed"


def test_two_functions_are_an_object_with_both():
    survey = mutate((forward, backward), lambda op: check(op, X, W, methods=FAST, explain=False))
    assert survey.name == "backward" and not survey.survivors


def test_inputs_of_ones_leave_operands_unseen():
    found = survivors(product, by_check([((np.ones((4, 6)), np.ones(6)), {})], FAST))
    assert ("product.backward", "FACTOR * dy * w → FACTOR * dy") in found
    assert ("product.backward", "dy * x → dy") in found


def test_helpers_are_changed_too():
    def only_dx(op):
        y, saved = op.forward(X, W)
        np.testing.assert_allclose(op.backward(y, saved)[0], FACTOR * y * W)

    found = survivors(product, only_dx)
    assert ("product.over_rows", "np.sum(a, axis=0) → np.mean(a, axis=0)") in found
    assert not any(change.startswith("FACTOR * dy * w") for _, change in found)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [(Square(), (W,)), (Product, (torch.tensor(X), torch.tensor(W))), (softmax, (X.reshape(2, 2, 6),))],
    ids=["object", "autograd.Function", "module"],
)
def test_every_kind_of_object(op, inputs):
    methods = ("autograd", *FAST)
    survey = mutate(op, by_check([(inputs, {})], methods))
    assert survey.passed and survey.made >= 10
    check(op, *inputs)  # which is unchanged


def test_names_of_an_enclosing_function_are_seen():
    factor = 2.0

    def backward(dy, saved):
        return factor * dy

    op = SimpleNamespace(forward=lambda x: (factor * x, None), backward=backward)
    assert mutate(op, by_check([((W,), {})], FAST)).passed


def test_a_survivor_that_is_listed_is_not_a_failure():
    inputs = [((np.ones((4, 6)), W), {})]
    first = mutate(product, by_check(inputs, FAST))
    listed = [json.loads(first.to_json())["survivors"][0]]
    second = mutate(product, by_check(inputs, FAST), equivalent=listed)
    assert second.equivalent == first.survivors[:1] and second.survivors == first.survivors[1:]
    assert "1 listed as equivalent" in repr(second)


def test_a_line_is_shown_where_it_stands():
    change, changed = next(changes(product))
    lines = open(__file__, encoding="utf-8").read().splitlines()
    assert change.file.endswith("test_survivors.py") and lines[change.number - 1].strip() == change.line
    assert changed.forward is forward and changed.backward is not backward


def test_a_backward_that_does_not_pass_as_it_is_raises():
    wrong = SimpleNamespace(forward=forward, backward=lambda dy, saved: (dy, dy))
    with pytest.raises(TypeError, match="a function written with def"):
        mutate(wrong, by_check([((X, W), {})]))

    def doubled(dy, saved):
        return [2 * gradient for gradient in backward(dy, saved)]

    wrong.backward = doubled
    with pytest.raises(VerificationError):
        mutate(wrong, by_check([((X, W), {})], FAST))


OWN = """
def forward(x):
    return x * x, x

def backward(dy, x):
    return 2 * dy * x
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    yield tmp_path / "own.py"
    sys.modules.pop("own", None)


def test_the_command_exits_with_0_when_nothing_survives(own, capsys):
    assert cli.main(["mutate", "own.py", "--input", "3x4", "--method", "complex_step"]) == 0
    assert "changes noticed" in capsys.readouterr().out


def test_the_command_lists_what_survives_and_exits_with_1(own, capsys):
    own.write_text(OWN.replace("2 * dy * x", "2 * dy * x + 0.0 * dy"))
    arguments = ["mutate", "own.py", "--input", "3x4", "--method", "complex_step"]
    assert cli.main(arguments) == 1
    out = capsys.readouterr().out
    assert "✗ own.py:6, in own.backward: return 2 * dy * x + 0.0 * dy" in out

    assert cli.main([*arguments, "--json"]) == 1
    entries = json.loads(capsys.readouterr().out)["survivors"]
    keys = ("function", "line", "change")
    text = "".join(
        "[[mutant]]\n" + "".join(f"{key} = {json.dumps(entry[key], ensure_ascii=False)}\n" for key in keys)
        for entry in entries
    )
    own.with_name("same.toml").write_text(text, encoding="utf-8")
    assert cli.main([*arguments, "--equivalent", "same.toml"]) == 0


def test_the_command_shows_the_report_of_a_wrong_backward(own, capsys):
    own.write_text(OWN.replace("2 * dy * x", "3 * dy * x"))
    assert cli.main(["mutate", "own.py", "--input", "3x4", "--method", "complex_step"]) == 1
    assert "✗ FAILED" in capsys.readouterr().out


def test_the_command_rejects_a_list_that_cannot_be_read(own, capsys):
    own.with_name("same.toml").write_text("[[mutant]]\nline = 'x'\n")
    for file, message in (("none.toml", "No such file"), ("same.toml", "has no change, function")):
        with pytest.raises(SystemExit) as caught:
            cli.main(["mutate", "own.py", "--input", "3", "--equivalent", file])
        assert caught.value.code == 2 and message in capsys.readouterr().err


def test_the_command_takes_an_operation_of_the_book(capsys):
    assert cli.main(["mutate", "relu", "--method", "complex_step", "--method", "contract"]) == 0
    assert "relu: " in capsys.readouterr().out
