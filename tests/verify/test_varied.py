"""Inputs are varied only as far as the object is made for them: its declaration, its tables, the dtypes of its library."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

RNG = np.random.default_rng(3)
BATCH, GAMMA, BETA = RNG.normal(size=(6, 4)), RNG.normal(size=4), RNG.normal(size=4)


def tried(report):
    """What the rows of varied inputs tried."""
    return {row.note or row.how or row.reason for row in report.rows if row.method == "varied inputs"}


def batch_norm(x, gamma, beta):
    centred = x - x.mean(0)
    rstd = 1 / np.sqrt((centred**2).mean(0) + 1e-5)
    return centred * rstd * gamma + beta, (centred * rstd, rstd, gamma)


def batch_norm_back(dy, saved):
    x_hat, rstd, gamma = saved
    d = dy * gamma
    return rstd * (d - d.mean(0) - x_hat * (d * x_hat).mean(0)), (dy * x_hat).sum(0), dy.sum(0)


def normed(backward=batch_norm_back, **facts):
    return SimpleNamespace(forward=batch_norm, backward=backward, **facts)


def test_a_function_of_matrices_is_given_no_third_axis_that_it_does_not_declare():
    declared = normed(SHAPES="x[b, n], gamma[n], beta[n] -> y[b, n]")
    report = check(declared, BATCH, GAMMA, BETA, vary=True)
    assert {"length 293 in place of 6", "length 1061 in place of 4"} < tried(report)
    assert "one more leading axis" not in tried(report)


def test_letters_of_equal_length_vary_apart():
    square = RNG.normal(size=(4, 4))

    def wrong(dy, saved):  # a mean over the columns in the place of one over the rows
        dx, dgamma, dbeta = batch_norm_back(dy, saved)
        return dx * saved[0].shape[0] / saved[0].shape[1], dgamma, dbeta

    declared = normed(wrong, SHAPES="x[b, n], gamma[n], beta[n] -> y[b, n]")
    assert check(declared, square, GAMMA, BETA).passed
    report = check(declared, square, GAMMA, BETA, vary=True, raises=False)
    lengths = {row.how for row in report.failed}
    assert lengths == {f"length {n} in place of 4" for n in (1, 293, 1061)}


def test_numpy_code_is_judged_in_float16_only_if_it_was_given_it():
    assert not any(
        "float16" in what for what in tried(check(normed(), BATCH, GAMMA, BETA, vary=True, raises=False))
    )
    tanh = SimpleNamespace(forward=lambda x: (np.tanh(x), np.tanh(x)), backward=lambda dy, y: dy * (1 - y**2))
    assert any("rows of float16" in what for what in tried(check(tanh, BATCH.astype(np.float16), vary=True)))


def test_a_table_keeps_what_its_columns_have_in_common():
    torch = pytest.importorskip("torch")
    angles = torch.outer(
        torch.arange(5.0, dtype=torch.float64), torch.tensor([1.0, 0.3], dtype=torch.float64)
    )
    table = torch.cat([angles, angles], -1)

    def rotated(x):
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    rope = SimpleNamespace(
        forward=lambda q, cos, sin: (q * cos + rotated(q) * sin, (cos, sin)),
        backward=lambda dy, saved: dy * saved[0] - rotated(dy * saved[1]),
    )
    q = torch.tensor(RNG.normal(size=(5, 4)))
    report = check(rope, q, table.cos(), table.sin(), constants=["cos", "sin"], vary=True)
    assert "length 293 in place of 5" in tried(report)


def test_a_declaration_on_code_for_tensors():
    torch = pytest.importorskip("torch")
    softmax = SimpleNamespace(
        forward=lambda x: (torch.softmax(x, -1),) * 2,
        backward=lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)),
        SHAPES="x[*, n>0] -> y[*, n]",
    )
    report = check(softmax, torch.tensor(BATCH), vary=True)
    assert "one more leading axis" in tried(report)
    assert "an empty batch too" in report.rows[0].how
