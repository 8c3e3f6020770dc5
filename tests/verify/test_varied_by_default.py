"""By default, `check` tries the variations that suit every function, if their counted work is small."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass import cli
from backpass.ops import softmax as softmax_of_the_package
from backpass.verify import check, checking
from backpass.verify.report import NOT_RUN, PASSED, Report, Row
from backpass.verify.vary import kinds, work

RNG = np.random.default_rng(38)
X = RNG.normal(size=(4, 6))


def own(forward, backward, **facts):
    return SimpleNamespace(forward=forward, backward=backward, **facts)


def tanh_back(dy, y):
    return dy * (1 - y * y)


TANH = own(lambda x: (np.tanh(x), np.tanh(x)), tanh_back)


def tried(report):
    return {row.variation for row in report.rows if row.variation and "SHAPES does not" not in row.reason}


def test_without_a_declaration_the_variations_suit_every_function():
    assert tried(check(TANH, X)) == {
        *("length 300 in place of 4", "length 1062 in place of 6", "no rows", "dy × 65,536"),
        *("x × 20", "a row of zeros in x", "ties in x"),
    }


def test_a_declaration_adds_the_shapes_that_it_allows():
    declared = own(TANH.forward, tanh_back, SHAPES="x[*, n] -> y[*, n]")
    more = {
        "one more leading axis",
        "length 1 in place of 4",
        "length 1061 in place of 6",
        "21,882 rows in place of 4",
    }
    assert more <= tried(check(declared, X))
    matrix = own(TANH.forward, tanh_back, SHAPES="x[m, n] -> y[m, n]")
    assert "one more leading axis" not in tried(check(matrix, X))


def test_all_kinds_run_if_they_are_asked_for_and_none_if_not_wanted():
    def forward(x, double=False):
        return x * (1 + double), double

    twice = own(forward, lambda dy, double: dy * (1 + double))
    assert {"one more leading axis", "length 1 in place of 4", "double=True"} <= tried(
        check(twice, X, vary=True)
    )
    assert "double=True" not in tried(check(twice, X))
    assert not tried(check(twice, X, vary=False))


@pytest.mark.parametrize(
    ("op", "keywords"),
    [
        (TANH, {"methods": ["contract", "finite_difference"]}),
        (TANH, {"dy": np.ones_like(X)}),
        (softmax_of_the_package, {}),
        (own(TANH.forward, lambda dy, y: -tanh_back(dy, y)), {"raises": False}),
    ],
    ids=["methods are named", "dy is given", "an operation of the package", "already wrong"],
)
def test_nothing_is_varied_of_another_call(op, keywords):
    assert not tried(check(op, X, **keywords))


def rows_of_256(dy, saved):  # the rows beyond the first block are lost
    x, w = saved
    return dy @ w.T, x[:256].T @ dy[:256]


def no_gradient_at_zero(dy, x):
    return dy * np.cos(x) * np.where(x == 0, 0, 1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=0.5):
        ctx.scale = scale
        return scale * torch.sin(x)

    @staticmethod
    def backward(ctx, dy):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("forward", "right", "wrong", "inputs", "where"),
    [
        (
            lambda x, w: (x @ w, (x, w)),
            lambda dy, saved: (dy @ saved[1].T, saved[0].T @ dy),
            rows_of_256,
            (X, RNG.normal(size=(6, 3))),
            {"length 300 in place of 4"},
        ),
        (
            lambda x: (np.sin(x), x),
            lambda dy, x: dy * np.cos(x),
            no_gradient_at_zero,
            (X,),
            {"a row of zeros in x", "ties in x"},
        ),
        (
            lambda x, scale=0.5: (scale * np.sin(x), (x, scale)),
            lambda dy, saved: dy * saved[1] * np.cos(saved[0]),
            lambda dy, saved: dy * 0.5 * np.cos(saved[0]),
            (X,),
            {"scale=0.375"},
        ),
    ],
    ids=["beyond a block", "at zero", "an option"],
)
def test_a_gradient_that_is_wrong_elsewhere_is_found(forward, right, wrong, inputs, where):
    assert check(own(forward, right), *inputs).passed
    assert check(own(forward, wrong), *inputs, vary=False).passed
    report = check(own(forward, wrong), *inputs, raises=False, explain=False)
    assert {row.variation for row in report.failed} == where


def halves(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1), None


def halves_back(dy, saved):
    half = dy.shape[-1] // 2
    return np.concatenate([dy[..., half:], -dy[..., :half]], -1)


def cross_entropy(x, t):
    e = np.exp(x - x.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return -np.sum(t * np.log(p)), (p, t)


def clipped(p, t):
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return -np.sum(t * np.log(p) + (1 - t) * np.log(1 - p)), (p, t)


def std(x):
    return x.std(-1), x


def std_back(dy, x):
    s = x.std(-1)  # a row of equal numbers is a kink
    slope = np.where(s > 0, dy / np.where(s > 0, s, 1), 0)
    return slope[..., None] * (x - x.mean(-1, keepdims=True)) / x.shape[-1]


def sums(x, offsets):
    return np.add.reduceat(x, offsets[:-1], 0), offsets


PROBABILITIES = RNG.uniform(0.01, 0.99, size=(4, 6))
RIGHT = {  # object, inputs, keywords; most are wrong outside of their domain
    "an even length": (own(halves, halves_back), (X,), {}),
    "targets that sum to 1": (
        own(cross_entropy, lambda dy, saved: (dy * (saved[0] - saved[1]), None)),
        (X, np.eye(6)[[0, 3, 1, 5]]),
        {"constants": ["t"]},
    ),
    "probabilities": (
        own(clipped, lambda dy, s: (dy * (s[0] - s[1]) / (s[0] * (1 - s[0])), None)),
        (PROBABILITIES, (PROBABILITIES > 0.6).astype(float)),
        {"constants": ["t"]},
    ),
    "rows of several elements": (own(std, std_back), (X,), {}),
    "offsets": (
        own(sums, lambda dy, offsets: np.repeat(dy, np.diff(offsets), 0)),
        (RNG.normal(size=(6, 3)), np.array([0, 2, 3, 6])),
        {},
    ),
    "an operator of this shape": (
        own(
            lambda x: (x.mean(-1), x.shape),
            lambda dy, shape: np.broadcast_to(dy[..., None] / shape[-1], shape).copy(),
        ),
        (X,),
        {"operator": lambda x: x.sum(-1) / 6},
    ),
    "steps": (
        own(lambda x: (np.sign(x), x.shape), lambda dy, shape: np.zeros(shape)),
        (X,),
        {"zero_gradients": ["x"]},
    ),
    "a forward that trains": (
        own(lambda x, train=True: (2 * x if train else x, None), lambda dy, saved: 2 * dy),
        (X,),
        {},
    ),
}
RIGHT_EVERYWHERE = {"rows of several elements", "steps", "targets that sum to 1", "offsets", "probabilities"}


@pytest.mark.parametrize("name", RIGHT)
def test_no_right_gradient_is_accused(name):
    op, inputs, keywords = RIGHT[name]
    report = check(op, *inputs, raises=False, explain=False, **keywords)
    assert report.passed, report
    assert tried(report)
    if name in RIGHT_EVERYWHERE:
        return
    asked = check(op, *inputs, raises=False, explain=False, vary=True, **keywords)
    assert not asked.passed  # the default leaves out what would accuse it


def test_half_precision_is_not_judged_where_rounding_grows():
    assert not any("× 20" in what or "zeros" in what for what in tried(check(TANH, X.astype(np.float16))))


def running(x):
    y = x.copy()
    for at in range(1, len(x)):
        y[at] += y[at - 1]
    return y, None


def running_back(dy, saved):
    return running(dy[::-1])[0][::-1]


RUNNING = own(running, running_back)


def test_long_python_loops_are_not_varied_by_default():
    rows = RNG.normal(size=(20_000, 1))
    report = check(RUNNING, rows)
    (row,) = report.of("variations")
    assert row.verdict == NOT_RUN
    assert row.reason == (
        "variations not run: the check would be slow (more than 40,000 lines of Python); vary=True runs them"
    )


def test_large_inputs_are_not_varied_by_default():
    report = check(TANH, np.broadcast_to(X, (40_000, 4, 6)).copy())
    (row,) = report.of("variations")
    assert "the check would be slow (more than 800,000 elements)" in row.reason


def test_a_variation_that_exceeds_its_bound_is_not_run_and_says_so(monkeypatch):
    monkeypatch.setattr(work, "ASKED_FOR", work.Bound(one=50_000, every=10_000_000))
    reports = [check(RUNNING, X[:, :1], vary=True) for _ in range(2)]
    assert reports[0].rows == reports[1].rows
    left_out = {row.variation for row in reports[0].rows if "work limit" in row.reason}
    assert "length 293 in place of 4" in left_out
    assert "length 1 in place of 4" in tried(reports[0]) - left_out
    (row,) = (row for row in reports[0].shown if row.verdict == NOT_RUN and row.method == "variations")
    assert "length 293 in place of 4" in row.reason and row.reason.endswith(
        "it would exceed the work limit of this check"
    )


def test_the_bound_of_all_variations_is_kept(monkeypatch):
    monkeypatch.setattr(work, "BY_DEFAULT", work.Bound(one=2_000_000, every=30_000))
    calls = []

    def forward(x):
        calls.append(x.size)
        return TANH.forward(x)

    report = check(own(forward, tanh_back), X)
    assert {"work limit" in row.reason for row in report.rows if row.variation} == {True, False}
    cost = sum(max(size // work.ELEMENTS, 1) for size in calls)
    assert cost < 30_000


def test_a_function_of_many_lines_is_stopped():
    def endless():
        while True:
            pass

    with pytest.raises(work.TooMuch):
        work.lines(endless, most=1000)
    assert work.lines(lambda: 7) == (7, work.lines(lambda: 7)[1])


class TestOneRow:
    report = Report(
        "own",
        "x[4, 6]",
        (
            Row("finite differences", "dx", PASSED, 1e-9, 1e-7),
            Row("varied inputs", "all", PASSED, 1e-8, 1e-7, variation="length 1 in place of 4"),
            Row("varied inputs", "all", PASSED, 3e-9, 1e-7, variation="length 1 in place of 6"),
            Row("varied call", "all", PASSED, 1e-13, 1e-12, variation="dy × 65,536"),
            Row(
                *("varied inputs", "", NOT_RUN),
                reason="no rows: forward raises an error (ValueError: zero-size array)",
                variation="no rows",
            ),
        ),
        ("dx",),
    )

    def test_it_names_the_variations_and_the_worst(self):
        _, passed, other = self.report.shown
        assert (passed.error, passed.tolerance) == (1e-8, 1e-7)
        assert passed.note == (
            "3 variations passed: length 1 in place of 4 and 6, dy × 65,536; "
            "the error is that of length 1 in place of 4"
        )
        assert other.reason == "1 variation: no rows: forward raises an error (ValueError)"
        assert self.report.summary == "2 passed, 1 not run"

    def test_json_has_each_variation(self):
        rows = json.loads(self.report.to_json())["rows"]
        assert [row["variation"] for row in rows] == [
            *("", "length 1 in place of 4", "length 1 in place of 6", "dy × 65,536", "no rows"),
        ]
        assert rows[-1]["reason"].endswith("(ValueError: zero-size array)")

    def test_it_is_one_row_everywhere(self):
        assert str(self.report).count("✓ passed") == 2
        assert self.report._repr_html_().count("<tr") == 4  # headings and three methods
        assert max(map(len, self.report.text(80).splitlines())) <= 80

    def test_a_real_report_is_as_narrow(self):
        text = check(TANH, X, vary=True).text(80)
        assert max(map(len, text.splitlines())) <= 80
        assert text.count("variations") == 2  # the row, and its sentence


def test_wrong_variations_without_an_explanation_share_a_row():
    op = own(lambda x: (np.sin(x), x), no_gradient_at_zero)
    report = check(op, X, raises=False, explain=False)
    (row,) = [row for row in report.shown if row.method == "varied inputs"]
    assert row.how == "a row of zeros in x, ties in x"


def test_every_kind_is_tried_by_somebody():
    assert kinds.SAFE - {kinds.MULTIPLE} < kinds.DECLARED < kinds.ASKED_FOR and kinds.SAFE < kinds.ASKED_FOR


SOURCE = """
import numpy as np

def forward(x):
    return np.tanh(x), np.tanh(x)

def backward(dy, y):
    return dy * (1 - y * y)
"""


@pytest.mark.parametrize(("flags", "vary"), [([], None), (["--vary"], True), (["--no-vary"], False)])
def test_the_command_line_has_three_states(tmp_path, monkeypatch, capsys, flags, vary):
    given = {}

    def watched(*arguments, **keywords):
        given.update(keywords)
        return check(*arguments, **keywords)

    (tmp_path / "own_tanh.py").write_text(SOURCE)
    monkeypatch.setattr("backpass.verify.check", watched)
    assert cli.main(["check", str(tmp_path / "own_tanh.py"), "--input", "4x6", *flags]) == 0
    assert given.get("vary") is vary
    assert ("variations passed" in capsys.readouterr().out) is (vary is not False)


def test_mutate_varies_only_if_it_is_asked(tmp_path, monkeypatch, capsys):
    given = []
    of_survivors = "backpass.verify.survivors.check"
    monkeypatch.setattr(
        of_survivors,
        lambda *arguments, vary, **keywords: given.append(vary) or check(*arguments, vary=vary, **keywords),
    )
    (tmp_path / "own_tanh.py").write_text(SOURCE)
    for flags in ([], ["--vary"]):
        cli.main(["mutate", str(tmp_path / "own_tanh.py"), "--input", "4x6", *flags])
        assert {*given} == {bool(flags)}
        given.clear()
    assert checking.check is check


def test_by_default_low_precision_is_judged_at_the_given_inputs_alone():
    """Attention in float32 loses digits of dq where the softmax is close to one-hot, in any order of its operations."""

    def forward(q, k):
        p = torch.softmax(q @ k.mT, -1)
        return p, (q, k, p)

    def backward(dy, saved):
        q, k, p = saved
        ds = p * (dy - (dy * p).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q

    q, k = (torch.tensor(RNG.normal(size=(5, 4)), dtype=torch.float32) for _ in range(2))
    rows = check(own(forward, backward), q, k).rows
    assert any(row.method == "low precision" for row in rows if not row.variation)
    assert not any("low precision" in row.reason + row.how for row in rows if row.variation)


def test_a_declaration_that_does_not_fit_the_outputs_elsewhere_accuses_nobody():
    """Two is the number of values for this k alone, and SHAPES does not say so."""

    def forward(x, k=2):
        at = np.argsort(-x, axis=-1)[..., :k]
        return np.take_along_axis(x, at, -1), (x.shape, at)

    def backward(dy, saved):
        shape, at = saved
        dx = np.zeros(shape)
        np.put_along_axis(dx, at, dy, -1)
        return dx

    report = check(own(forward, backward, SHAPES="x[b, n] -> y[b, 2]"), X)
    (reason,) = {row.reason for row in report.rows if row.variation == "k=3"}
    assert reason == "k=3: forward's outputs have other shapes than SHAPES declares"


@pytest.mark.parametrize("clause", ["", "; options twice=False|True"])
def test_a_declared_option_with_which_backward_raises_is_a_fault(clause):
    def forward(x, twice=False):
        return (2 * x if twice else x), twice

    def backward(dy, twice):
        if twice:
            raise NotImplementedError("twice")
        return dy

    op = own(forward, backward, SHAPES=f"x[*] -> y[*]{clause}")
    assert check(op, X, raises=False).passed is (not clause)


def test_a_constant_without_axes():
    op = own(lambda x, scale: (x * scale, scale), lambda dy, scale: (dy * scale, None), CONSTANTS=("scale",))
    assert "no rows" in tried(check(op, X, np.array(0.5)))


def test_variations_of_the_call_come_before_those_of_shapes():
    """Those of shapes may use up the work that is allowed."""
    first, *_ = (row.variation for row in check(TANH, X).rows if row.variation)
    assert first == "dy × 65,536"


def polar(p):
    return p[:, 0] * np.sin(p[:, 1]), p


@pytest.mark.parametrize("vary", [None, True])
def test_columns_of_fixed_meanings_are_not_held_against_code(vary):
    """forward accepts more columns, which it does not use."""

    def backward(dy, p):
        return np.stack([dy * np.sin(p[:, 1]), dy * p[:, 0] * np.cos(p[:, 1])], 1)

    points = np.random.default_rng(0).normal(size=(7, 2))
    report = check(SimpleNamespace(forward=polar, backward=backward), points, vary=vary)
    assert any("a fixed length can be declared in SHAPES" in row.reason for row in report.rows)
    wrong = SimpleNamespace(forward=polar, backward=lambda dy, p: backward(dy, p)[:, ::-1])
    assert not check(wrong, points, vary=vary, raises=False).passed
