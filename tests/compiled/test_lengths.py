"""A check of compiled kernels tries lengths at which a kernel runs other code, without being asked."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import triton
import triton.language as tl

from backpass import ptx
from backpass.kernels import compiled
from backpass.verify import check
from backpass.verify.vary import executed, growth


@triton.jit
def doubled_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    if WRONG:
        if n % 16 == 0:
            inside = at < n // BLOCK * BLOCK
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=inside, other=0.0), mask=at < n)


@triton.jit
def total_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + column
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        if WRONG:
            total = tl.where(start > BLOCK, total, total + x)
        else:
            total += x
    tl.store(y_ptr + row, tl.sum(total))


@triton.jit
def weighted_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    own = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK + own
    if WRONG:
        weight = 1 + own % 7
    else:
        weight = 1 + at % 7
    tl.store(y_ptr + at, weight * tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


def weighted(x, wrong=False):
    y = torch.empty(x.shape, dtype=x.dtype)
    weighted_kernel[(triton.cdiv(x.numel(), 64),)](x.contiguous(), y, x.numel(), wrong, BLOCK=64)
    return y


class Doubled:
    def __init__(self, wrong=False):
        self.wrong = wrong

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        doubled_kernel[(triton.cdiv(len(x), 64),)](x.contiguous(), y, len(x), self.wrong, BLOCK=64)
        return y, None

    def backward(self, dy, saved):
        return 2 * dy


class Total(Doubled):
    def forward(self, x):
        y = torch.empty(len(x), dtype=x.dtype)
        total_kernel[(len(x),)](x.contiguous(), y, x.shape[1], self.wrong, BLOCK=64)
        return y, x.shape

    def backward(self, dy, saved):
        return dy[:, None].expand(saved)


class Weighted(Doubled):
    """It has no operator as a reference."""

    def forward(self, x):
        return weighted(x), None

    def backward(self, dy, saved):
        return weighted(dy, self.wrong)


CASES = {
    Weighted: ((5, 9), None, "length 37 in place of 5"),
    Doubled: ((64,), lambda x: 2 * x, "length 80 in place of 64"),
    Total: ((5, 60), lambda x: x.sum(1), "length 131 in place of 60"),
}


@pytest.mark.parametrize("build", CASES)
def test_a_fault_at_such_a_length_is_found_and_a_right_kernel_passes(build):
    shape, operator, says = CASES[build]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    settings = {"operator": operator, "compiled": True, "raises": False}
    report = check(build(), x, **settings)
    assert report.passed and says in {row.variation for row in report.rows}
    report = check(build(wrong=True), x, **settings)
    assert [says in what for _, what in report.findings()] == [True]


@triton.jit
def off_in_eights_kernel(x_ptr, y_ptr, n, OFF: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    if n % 16 == 8:
        x *= 1 + OFF
    tl.store(y_ptr + at, 2 * x, mask=at < n)


class OffInEights(Doubled):
    def __init__(self, off):
        self.off = off

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        off_in_eights_kernel[(triton.cdiv(len(x), 64),)](x.contiguous(), y, len(x), self.off, BLOCK=64)
        return y, None


def test_a_small_error_at_odd_multiples_of_8_does_not_accuse_and_is_reported():
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    settings = {"operator": lambda x: 2 * x, "compiled": True, "raises": False}
    for off in (2e-4, 2e-2):
        report = check(OffInEights(off), x, **settings)
        (row,) = (row for row in report.rows if row.variation == "length 72 in place of 64")
        assert report.passed is (off == 2e-4)
        assert row.verdict == ("not run" if report.passed else "FAILED")
        if report.passed:
            said = "its error (2.0e-04 in y) is below 0.001 and may be one of rounding"
            assert said in row.reason and said in str(report)


@triton.jit
def scatter_kernel(dy_ptr, t_ptr, dw_ptr, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    to = (tl.load(t_ptr + row) + SHIFT * (row == 3)) % 9
    dy = tl.load(dy_ptr + row * n + column, mask=column < n, other=0.0)
    tl.atomic_add(dw_ptr + to * n + column, dy, mask=column < n)


class Embedding:
    """Adds up gradients of rows in bfloat16."""

    ATOMIC_SUMS = True
    CONSTANTS = ("t",)

    def __init__(self, shift=0):
        self.shift = shift

    def forward(self, w, t):
        return w[t], (w, t)

    def backward(self, dy, saved):
        w, t = saved
        dw = torch.zeros_like(w)
        n = w.shape[1]
        scatter_kernel[(len(t),)](dy.contiguous(), t, dw, n, self.shift, BLOCK=triton.next_power_of_2(n))
        return dw, None


def rows(n):
    rng = torch.Generator().manual_seed(0)
    t = torch.tensor([0, 3, 8, 3, 5, 1])
    settings = {"operator": lambda w, t: w[t], "methods": ["compiled"], "compiled": True, "raises": False}
    return (torch.randn(9, n, generator=rng).bfloat16(), t), settings


def test_an_atomic_sum_in_bfloat16_of_an_odd_number_of_elements_is_not_tried():
    """Triton updates words of two elements, of which the last one is half in the tensor."""
    inputs, settings = rows(22)
    report = check(Embedding(), *inputs, **settings, vary=None)
    assert report.passed, str(report)
    tried = [row.variation for row in report.rows if row.variation and row.verdict != "not run"]
    assert any("in place of 22" in of for of in tried) and not any(
        "length 37 in place of 22" in of for of in tried
    )
    assert not check(Embedding(shift=1), *inputs, **settings, vary=None).passed


def test_an_atomic_sum_in_bfloat16_of_an_odd_number_of_elements_says_why_it_fails():
    inputs, settings = rows(23)
    (row,) = check(Embedding(), *inputs, **settings, vary=False).failed
    assert row.reason.startswith("HalfWord: ") and "give the tensor an even number of elements" in row.reason


@triton.jit
def positions_kernel(x_ptr, p_ptr, y_ptr, s, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    if WRONG:
        position = row
    else:
        position = row % s
    x = tl.load(x_ptr + row * n + column, mask=column < n)
    p = tl.load(p_ptr + position * n + column, mask=column < n)
    tl.store(y_ptr + row * n + column, x * p, mask=column < n)


class Positions(Doubled):
    """``x[batch, s, n] * p[s, n]``; the wrong kernel assumes a batch of 1."""

    def run(self, x, p):
        batch, s, n = x.shape
        y, x, p = torch.empty(x.shape, dtype=x.dtype), x.contiguous(), p.contiguous()
        block = triton.next_power_of_2(n)
        positions_kernel[(batch * s,)](x, p, y, s, n, self.wrong, BLOCK=block)
        return y

    def forward(self, x, p):
        return self.run(x, p), (x, p)

    def backward(self, dy, saved):
        x, p = saved
        return self.run(dy, p), (dy * x).sum(0)


@triton.jit
def added_kernel(x_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n)
    b = tl.load(b_ptr + column, mask=column < n)
    tl.store(y_ptr + row * n + column, x + b, mask=column < n)


class Added:
    """``x[m, n] + b[1, n]``. PyTorch would also accept ``b[m, n]``."""

    def forward(self, x, b):
        y, (m, n) = torch.empty(x.shape, dtype=x.dtype), x.shape
        block = triton.next_power_of_2(n)
        added_kernel[(m,)](x.contiguous(), b.contiguous(), y, n, BLOCK=block)
        return y, b.shape

    def backward(self, dy, shape):
        return dy, dy.sum(0, keepdim=True)


ONE = "length 3 in place of 1 along axis 0"


def of_one(op, *shapes, operator=torch.mul, dtype=torch.float32, **settings):
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=rng, dtype=dtype) for shape in shapes]
    return check(op, *inputs, operator=operator, methods=["compiled"], raises=False, **settings)


def test_a_kernel_that_assumes_a_batch_of_one_is_found():
    report = of_one(Positions(), (1, 5, 7), (5, 7))
    assert report.passed and ONE in {row.variation for row in report.rows}
    report = of_one(Positions(wrong=True), (1, 5, 7), (5, 7))
    (row,) = report.failed
    assert row.variation == ONE and "OutOfBounds" in row.reason and executed.TO_EXCLUDE in row.reason
    assert of_one(Positions(wrong=True), (1, 5, 7), (5, 7), vary=False).passed


def test_axes_of_length_one_are_lengthened_as_far_as_they_belong_together():
    report = of_one(Added(), (1, 7), (1, 7), operator=torch.add)
    assert report.passed and ONE in {row.variation for row in report.rows}
    report = of_one(Added(), (1, 1, 7), (1, 7), operator=torch.add)  # forward rejects three axes
    assert not report.failed


@triton.jit
def picked_kernel(x_ptr, t_ptr, y_ptr, n, WRONG: tl.constexpr):
    row = tl.program_id(0)
    if WRONG:
        t = tl.load(t_ptr)
    else:
        t = tl.load(t_ptr + row)
    tl.store(y_ptr + row, tl.load(x_ptr + row * n + t))


class Picked(Doubled):
    """The element of each row that ``t`` says, as in a loss."""

    def forward(self, x, t):
        if len(x) != len(t):
            raise ValueError("expected a target for each row")
        y = torch.empty(len(x), dtype=x.dtype)
        picked_kernel[(len(x),)](x.contiguous(), t.contiguous(), y, x.shape[1], self.wrong)
        return y, (x, t)

    def backward(self, dy, saved):
        x, t = saved
        return torch.zeros_like(x).scatter_(1, t[:, None], dy[:, None]), None


def test_targets_are_lengthened_with_a_batch_of_one():
    x, t = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([3])
    settings = {
        "operator": lambda x, t: x.gather(1, t[:, None])[:, 0],
        "methods": ["compiled"],
        "raises": False,
    }
    report = check(Picked(), x, t, **settings)
    assert report.passed and ONE in {row.variation for row in report.having("passed")}


def test_with_vary_each_dtype_has_variations_before_one_uses_up_the_budget(monkeypatch):
    monkeypatch.setattr(executed, "IF_ASKED", 12_000)
    report = of_one(Positions(), (1, 5, 7), (5, 7), dtype=torch.float64, vary=True)
    assert report.passed
    ran = [row.variation for row in report.rows if row.variation and row.verdict != "not run"]
    for dtype in ("float32", "float16", "bfloat16"):
        assert {f"{dtype}, {ONE}", f"{dtype}, other values"} <= {*ran}
    (reason, *_) = [row.reason for row in report.rows if "length 1061 in place of 5" in row.variation]
    assert "it would execute about" in reason and "; of 12,000, it may execute" in reason


@triton.jit
def turned_kernel(x_ptr, y_ptr, n, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0)
    tl.store(y_ptr + row * n + column, x, mask=column < n)
    if BARRIER:
        tl.debug_barrier()
    y = tl.load(y_ptr + row * n + n - 1 - column, mask=column < n, other=0.0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(y_ptr + row * n + column, y, mask=column < n)


class Turned(Doubled):
    """The columns in reverse order. With few columns, each thread has its own or a copy."""

    def run(self, x):
        y, (m, n) = torch.empty(x.shape, dtype=x.dtype), x.shape
        block = triton.next_power_of_2(n)
        turned_kernel[(m,)](x.contiguous(), y, n, not self.wrong, BLOCK=block, num_warps=1)
        return y

    def forward(self, x):
        return self.run(x), None

    def backward(self, dy, saved):
        return self.run(dy)


def test_a_race_does_not_ask_whether_the_kernel_is_made_for_certain_lengths():
    settings = {"operator": lambda x: x.flip(1)}
    assert of_one(Turned(), (3, 1), **settings).passed
    report = of_one(Turned(wrong=True), (3, 1), **settings)
    reasons = {row.reason for row in report.failed}
    assert reasons and all("Race: " in reason for reason in reasons)
    assert not any(executed.TO_EXCLUDE in reason for reason in reasons)


@triton.jit
def offset_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    column, start = tl.arange(0, BLOCK), tl.program_id(0) * n
    if WRONG:
        start = start.to(tl.int16).to(tl.int32)
    at = start + column
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=column < n), mask=column < n)


class Offset(Doubled):
    def forward(self, x):
        y, (m, n) = torch.empty(x.shape, dtype=x.dtype), x.shape
        block = triton.next_power_of_2(n)
        offset_kernel[(m,)](x.contiguous(), y, n, self.wrong, BLOCK=block, num_warps=1)
        return y, None


def test_an_offset_of_sixteen_bits_is_found_with_many_rows(monkeypatch):
    """Programs that execute together are fast, so an eighth of their instructions counts."""
    monkeypatch.setattr(executed, "IF_ASKED", 24_000)
    settings = {"operator": lambda x: 2 * x, "vary": True}
    report = of_one(Offset(), (5, 40), **settings)
    assert report.passed and "length 1061 in place of 5" in {row.variation for row in report.having("passed")}
    (row,) = of_one(Offset(wrong=True), (5, 40), **settings).failed
    assert row.variation == "length 1061 in place of 5" and "OutOfBounds" in row.reason


@triton.jit
def twice_kernel(y_ptr, x):
    tl.store(y_ptr, x.to(tl.bfloat16))
    tl.debug_barrier()
    tl.atomic_add(y_ptr, x.to(tl.bfloat16))


def test_an_atomic_sum_in_bfloat16_beside_an_unwritten_element_says_why_it_fails():
    with compiled.executing():
        y = torch.zeros(2, dtype=torch.bfloat16)
        twice_kernel[(1,)](y, 1.5)
    assert y.tolist() == [3.0, 0.0]
    with pytest.raises(ptx.Undefined, match="initialise both elements, or add in float32"):
        with compiled.executing():
            twice_kernel[(1,)](torch.empty(2, dtype=torch.bfloat16), 1.5)


@triton.heuristics({"WHOLE": lambda given: given["n"] % given["OF"] == 0})
@triton.jit
def whole_kernel(x_ptr, y_ptr, n, OF: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WHOLE:
        tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))
    else:
        tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


class Whole(Doubled):
    """Blocks of 16 without a mask, if the length is a multiple of ``of``."""

    def __init__(self, of):
        self.of = of

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        whole_kernel[(triton.cdiv(len(x), 16),)](x.contiguous(), y, len(x), self.of, BLOCK=16)
        return y, None


def test_an_odd_multiple_of_eight_is_not_a_multiple_of_a_block():
    settings = {"operator": lambda x: 2 * x}
    report = of_one(Whole(16), (32,), **settings)
    assert report.passed and "length 40 in place of 32" in {row.variation for row in report.having("passed")}
    (row,) = of_one(Whole(8), (32,), **settings).failed
    assert row.variation == "length 40 in place of 32" and "OutOfBounds" in row.reason


def test_a_length_at_which_the_code_would_be_too_long_is_left_out(monkeypatch):
    """The block is the whole row, so the code grows with it."""
    monkeypatch.setattr(executed, "LINES", 600)
    shown = []
    monkeypatch.setattr(executed, "Progress", lambda what: shown.append(what) or nullcontext())
    report = of_one(Turned(), (3, 5), operator=lambda x: x.flip(1), vary=True)
    assert report.passed and "compiling for length 37 in place of 5" in shown
    (row,) = (row for row in report.having("not run") if "lines of PTX" in row.reason)
    assert row.variation == "length 1061 in place of 5" and "at most 600" in row.reason
    assert not any("1061 in place of 5" in what for what in shown)


def test_expected_lines_follow_the_growth_that_was_seen():
    assert growth.expected_lines([(32, 500), (64, 500)], 2048) == 500
    assert growth.expected_lines([(64, 500), (64, 500)], 256) == 2000
    assert growth.expected_lines([(16, 1119), (64, 4628)], 256) == 16 * 4628
    assert growth.expected_lines([(32, 500), (64, 1000), (256, 4000)], 2048) == 32000


@triton.jit
def bent_kernel(x_ptr, y_ptr, n, slope, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, tl.where(x < 0, slope * x, x * x), mask=at < n)


class Bent(Doubled):
    def forward(self, x, slope=1.0):
        y = torch.empty(x.shape, dtype=x.dtype)
        bent_kernel[(1,)](x.contiguous(), y, len(x), slope, BLOCK=triton.next_power_of_2(len(x)))
        return y, (x, slope)

    def backward(self, dy, saved):
        x, slope = saved
        return dy * torch.where(x < 0, 1.0 if self.wrong else slope, 2 * x)


def bent(x, slope=1.0):
    return torch.where(x < 0, slope * x, x * x)


def test_an_option_that_the_operator_has_too_is_changed():
    report = of_one(Bent(), (9,), operator=bent, slope=1.0)
    assert report.passed and "slope=0.75" in {row.variation for row in report.having("passed")}
    (row,) = of_one(Bent(wrong=True), (9,), operator=bent, slope=1.0).failed
    assert (row.quantity, row.variation) == ("dx", "slope=0.75")


@triton.jit
def pooled_kernel(x_ptr, y_ptr, n, scale):
    total = 0.0
    for at in range(n):
        total += tl.load(x_ptr + at)
    tl.store(y_ptr + tl.program_id(0), scale * total)


class Pooled(Bent):
    """Its instructions rise with the square of the length."""

    def forward(self, x, scale=1.0):
        y = torch.empty(x.shape, dtype=x.dtype)
        pooled_kernel[(len(x),)](x.contiguous(), y, len(x), scale)
        return y, scale

    def backward(self, dy, saved):
        return (1.0 if self.wrong else saved) * dy.sum().expand(dy.shape)


def test_lengths_that_take_more_than_expected_leave_what_an_option_takes(monkeypatch):
    monkeypatch.setattr(executed, "INSTRUCTIONS", 5_000)
    settings = {"operator": lambda x, scale=1.0: scale * x.sum().expand(x.shape), "scale": 1.0}
    report = of_one(Pooled(), (9,), **settings)
    assert report.passed and {"scale=0.75", "other values"} <= {
        row.variation for row in report.having("passed")
    }
    (row,) = of_one(Pooled(wrong=True), (9,), **settings).failed
    assert (row.quantity, row.variation) == ("dx", "scale=0.75")


def test_a_dtype_in_which_the_operator_rounds_too_coarsely_is_not_judged():
    settings = {"operator": lambda x: (x + 1e4 - 1e4) * 2, "dtype": torch.float64, "vary": False}
    report = of_one(Doubled(), (9,), **settings)
    dtypes = {row.method.split()[-1]: row.verdict for row in report.rows if row.quantity == "y"}
    assert report.passed
    assert dtypes == {"float32": "passed", "float16": "not run", "bfloat16": "not run"}
    assert of_one(Doubled(), (9,), **settings | {"dtype": torch.bfloat16}).having("vacuous")


def test_the_operator_is_given_the_options_that_it_names():
    for kind in ("positional", "keyword"):
        operator = bent if kind == "positional" else lambda x, *, slope=0.1: bent(x, slope)
        assert of_one(Bent(), (9,), operator=operator, slope=0.5).passed
        report = of_one(Bent(wrong=True), (9,), operator=operator, slope=0.5)
        assert {row.quantity for row in report.failed} == {"dx"}
    assert of_one(Bent(), (9,), operator=lambda slope: bent(slope, 0.5), slope=0.5).passed


def test_a_gradient_of_another_operator_is_named():
    x = torch.randn(9, generator=torch.Generator().manual_seed(0))
    settings = {"slope": 0.5, "methods": ["compiled"], "vary": False, "raises": False}
    report = check(Bent(wrong=True), x, operator=partial(bent, slope=0.5), **settings)
    assert [what for _, what in report.findings()] == [
        "got is the operator's gradient with slope=1.0 in place of 0.5"
    ]
    report = check(Bent(wrong=True), x, operator=lambda x: torch.where(x < 0, 0.5 * x, x * x), **settings)
    ((_, what),) = report.findings()
    assert what.startswith("got is the operator's gradient with 1 in place of 0.5; its line: ")


def test_an_option_that_means_another_thing_to_the_operator_accuses_nobody():
    report = of_one(Bent(wrong=True), (9,), operator=lambda x, slope=1.0: bent(x), slope=1.0)
    assert report.passed
    (row,) = (row for row in report.rows if row.variation == "slope=0.75")
    assert row.reason.endswith("the option may mean another thing to the operator")


def test_forward_is_judged_at_each_value_of_an_option_that_is_declared():
    op = Bent()
    op.SHAPES = "x[n] -> y[n]; options slope=1.0|0.5"
    assert of_one(op, (9,), operator=bent, slope=1.0).passed
    report = of_one(op, (9,), operator=lambda x, slope=1.0: bent(x), slope=1.0)
    assert {(row.quantity, row.variation) for row in report.failed} == {
        (quantity, "slope=0.5") for quantity in ("y", "dx")
    }


def test_an_option_that_the_operator_lacks_stays_and_is_named():
    report = of_one(Bent(), (9,), operator=lambda x: bent(x), slope=1.0)
    (row,) = (row for row in report.rows if "slope" in row.variation)
    assert row.verdict == "not run" and "the operator has no parameter slope with this default" in row.reason
    assert not any(
        "slope" in row.variation for row in of_one(Bent(), (9,), operator=bent, slope=1.0).having("not run")
    )


class Constant(Doubled):
    """At length 37, y is 1 and its gradient 0, up to what is ``left`` of two terms that cancel."""

    def __init__(self, left):
        self.left = left

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        doubled_kernel[(triton.cdiv(len(x), 64),)](x.contiguous(), y, len(x), False, BLOCK=64)
        return torch.ones_like(y) if len(x) == 37 else y, None

    def backward(self, dy, saved):
        return (self.left if len(dy) == 37 else 2) * dy


def test_a_gradient_that_is_zero_up_to_rounding_accuses_nobody():
    settings = {"operator": lambda x: x * 0 + 1 if len(x) == 37 else 2 * x}
    says = "length 37 in place of 9"
    report = of_one(Constant(1e-7), (9,), **settings)
    assert report.passed and "dx is 0 there, up to rounding" in str(report)
    (row,) = of_one(Constant(1e-4), (9,), **settings).failed
    assert (row.quantity, row.variation) == ("dx", says)


@triton.jit
def grown_kernel(x_ptr, dy_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    if WRONG:
        x = tl.where(x > 20, 1.01 * x, x)
    grown = tl.exp((x * x + x) - x * x)  # it loses as many digits as x² has
    tl.store(y_ptr + at, grown * tl.load(dy_ptr + at, mask=at < n, other=0.0), mask=at < n)


class Grown:
    def __init__(self, wrong):
        self.wrong = wrong

    def forward(self, x):
        return self.run(x, torch.ones_like(x), False), x

    def backward(self, dy, x):
        return self.run(x, dy, self.wrong)

    @staticmethod
    def run(x, dy, wrong):
        y = torch.empty_like(x)
        grown_kernel[(triton.cdiv(x.numel(), 64),)](
            x.contiguous(), dy.contiguous(), y, x.numel(), wrong, BLOCK=64
        )
        return y


@pytest.mark.parametrize("wrong", [False, True])
def test_digits_lost_at_large_values_alone_are_not_a_fault_but_a_wrong_value_is(wrong):
    report = of_one(Grown(wrong), (7, 9), operator=torch.exp, vary=True)
    far = [row for row in report.rows if row.variation == "x × 20"]
    assert {row.verdict for row in far} >= {"FAILED" if wrong else "not run"}
    assert wrong or all("left to the values given" in row.reason for row in far)
    assert [row.quantity for row in report.failed] == (["dx"] if wrong else [])


@triton.jit
def whole_row_kernel(x_ptr, y_ptr, n, ACT: tl.constexpr, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    """If wrong, a whole block has no last column."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
    if ACT == "double":
        x = 2 * x
    elif ACT == "square":
        x = x * x
    if WRONG:
        x = tl.where(columns < BLOCK - 1, x, 0.0)
    tl.store(y_ptr + row * n + columns, x, mask=columns < n)


class WholeRow:
    def __init__(self, block=False, act=False):
        self.block, self.act = block, act

    def forward(self, x, act="double"):
        return self.run(x, act, self.block), (x, act)

    def backward(self, dy, saved):
        x, act = saved
        return 2 * dy if act == "double" or self.act else self.run(2 * x * dy, "", False)

    @staticmethod
    def run(x, act, wrong):
        y, (rows, n) = torch.empty_like(x), x.shape
        whole_row_kernel[(rows,)](x, y, n, ACT=act, WRONG=wrong, BLOCK=triton.next_power_of_2(n))
        return y


def doubled_or_squared(x, act="double"):
    return {"double": lambda: 2 * x, "square": lambda: x * x}[act]()


def test_a_block_is_tried_whole_and_a_word_that_the_operator_shows():
    report = of_one(WholeRow(), (3, 5), operator=doubled_or_squared)
    assert report.passed and {"length 64 in place of 5", "act='square'"} <= {
        row.variation for row in report.rows
    }
    (row,) = of_one(WholeRow(block=True), (3, 5), operator=doubled_or_squared).failed
    assert (row.variation, row.quantity) == ("length 64 in place of 5", "y")
    (row,) = of_one(WholeRow(act=True), (3, 5), operator=doubled_or_squared).failed
    assert (row.variation, row.quantity) == ("act='square'", "dx")


@triton.jit
def first_columns_kernel(x_ptr, many_ptr, y_ptr, n, MOST: tl.constexpr, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    many = tl.load(many_ptr + row)
    if MOST:
        many = tl.minimum(many, MOST)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
    tl.store(y_ptr + row * n + columns, tl.where(columns < many, x, 0.0), mask=columns < n)


class FirstColumns:
    """Of each row, the elements before the number ``many``; if wrong, at most 4 have a gradient."""

    SHAPES = "x[3, n], many[3]:int<9 -> y[3, n]"

    def __init__(self, wrong):
        self.most = 4 if wrong else 0

    def forward(self, x, many):
        return self.run(x, many, 0), many

    def backward(self, dy, many):
        return self.run(dy, many, self.most), None

    @staticmethod
    def run(x, many, most):
        y, (rows, n) = torch.empty_like(x), x.shape
        first_columns_kernel[(rows,)](x.contiguous(), many, y, n, MOST=most, BLOCK=triton.next_power_of_2(n))
        return y


@pytest.mark.parametrize("wrong", [False, True])
def test_integers_of_a_declared_range_are_drawn_again(wrong):
    x, many = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 4, 1])

    def operator(x, many):
        return torch.where(torch.arange(x.shape[1]) < many[:, None], x, 0.0)

    report = check(FirstColumns(wrong), x, many, operator=operator, methods=["compiled"], raises=False)
    assert report.passed is not wrong
    assert "other integers in many" in {row.variation for row in (report.failed if wrong else report.rows)}


class Rows:
    """The rows of a table at integers, and zeros where ``of`` says so."""

    def __init__(self, shapes, of=lambda t: t >= 0):
        self.SHAPES, self.of = shapes, of

    def forward(self, x, t):
        y = torch.empty(len(t), x.shape[1], dtype=x.dtype)
        rows_kernel[(len(t),)](
            x.contiguous(), t.long(), y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])
        )
        return y, (t, len(x))

    def backward(self, dy, saved):
        t, count = saved
        dx = torch.zeros(count, dy.shape[1], dtype=dy.dtype).index_add(0, t.long(), dy)
        return torch.where(self.of(torch.arange(count))[:, None], dx, 0.0), None


@triton.jit
def rows_kernel(x_ptr, t_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.load(t_ptr + row) * n + column, mask=column < n, other=0.0)
    tl.store(y_ptr + row * n + column, x, mask=column < n)


def test_other_integers_keep_their_dtype_order_and_distinctness():
    """The numbers of uint8 end at 255; a table may have more rows."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    settings = {"operator": lambda x, t: x[t.long()], "methods": ["compiled"]}
    t = torch.tensor([3, 9, 9, 200], dtype=torch.uint8)
    report = check(Rows("x[300, c], t[4]:int<300 -> y[4, c]"), x, t, **settings)
    assert "other integers in t" in {row.variation for row in report.having("passed")}
    seen = []

    class Noting(Rows):
        def forward(self, x, t):
            seen.append(t)
            return super().forward(x, t)

    check(Noting("x[300, c], t[4]:int<300 -> y[4, c]"), x, torch.tensor([3, 9, 12, 200]), **settings)
    for integers in seen:
        assert (integers.diff() > 0).all()
    assert any(299 in integers for integers in seen)


def test_an_operator_whose_gradient_is_nan_at_other_integers_accuses_nobody():
    """A mean of no rows is 0 by definition, and its gradient by autograd is NaN."""

    def operator(x, t):
        return torch.where(t[:, None] > 0, x[t] * t[:, None] / t[:, None], 0.0)

    x, t = (
        torch.randn(9, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([3, 5, 5, 8, 1, 2, 7, 1]),
    )
    rows = Rows("x[9, c], t[8]:int<9 -> y[8, c]", of=lambda t: t > 0)
    report = check(rows, x, t, operator=operator, methods=["compiled"], raises=False)
    (row,) = (row for row in report.rows if "other integers in t" in row.variation)
    assert row.verdict == "not run" and "NaN" in row.reason


class Saturating:
    """tanh, whose gradient 1 − y² loses its digits where y is near 1."""

    def forward(self, x):
        y = torch.empty_like(x)
        tanh_kernel[(1,)](x.contiguous(), y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
        return y, y

    def backward(self, dy, y):
        return dy * (1 - y * y)


@triton.jit
def tanh_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, 2 / (1 + tl.exp(-2 * x)) - 1, mask=at < n)


def test_a_gradient_that_vanishes_far_from_0_is_measured_by_its_natural_scale():
    report = of_one(Saturating(), (3, 7), operator=lambda x: 2 * torch.sigmoid(2 * x) - 1, vary=True)
    assert {row.verdict for row in report.rows if row.variation == "x × 20"} in ({"passed"}, {"not run"})


class Unbent(Doubled):
    def forward(self, x, k=1):
        return super().forward(x)


def test_an_option_at_which_y_is_wrong_is_not_judged_in_a_coarse_dtype_where_it_seems_right():
    def waved(x, k=1):
        return 2 * x * (1 + 1e-3 * (k - 1) * torch.sin(90 * x))

    report = of_one(Unbent(), (5,), operator=waved, dtype=torch.float64, k=1, vary=True)
    rows = {row.variation: row for row in report.rows if row.variation.endswith("k=2")}
    assert set(rows) == {f"{dtype}, k=2" for dtype in ("float32", "float16", "bfloat16")}
    assert {row.verdict for row in rows.values()} == {"not run"}
    assert report.passed


class Kept(Doubled):
    """Twice each element whose label is not the one to ignore; a wrong one ignores all negative labels."""

    SHAPES = "x[n], t[n]:int<5,ignore_index -> y[n]"

    def forward(self, x, t, ignore_index=-1):
        y, _ = super().forward(x)
        kept = t >= 0 if self.ignores_all else t != ignore_index
        return y * kept, kept

    def backward(self, dy, kept):
        return 2 * dy * kept, None

    def __init__(self, ignores_all=False):
        super().__init__()
        self.ignores_all = ignores_all


@pytest.mark.parametrize("ignores_all", [False, True])
def test_the_labels_change_with_the_option_that_names_one_of_them(ignores_all):
    x, t = (
        torch.randn(9, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 3, -1, 4, -1, 2, 2, -1, 1]),
    )
    report = check(
        Kept(ignores_all),
        x,
        t,
        operator=lambda x, t, ignore_index=-1: 2 * x * (t != ignore_index),
        methods=["compiled"],
        raises=False,
        ignore_index=-1,
    )
    found = {row.variation for row in report.failed}
    assert bool(found) is ignores_all and all("ignore_index" in one for one in found), str(report)
