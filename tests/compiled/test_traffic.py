"""The bytes that kernels move, as the executor counts them: what counts as moved, and the kernels against their limits."""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl

import recorded
from backpass import kernels
from backpass.kernels import compiled, sums_over_rows
from backpass.ops import rope
from backpass.ptx import lockstep
from backpass.recorded import findings
from backpass.verify.drawing import options_for
from tests.kernels.support import draw, sources

PER_NUMBER = 2  # bytes, in bfloat16
LIMIT = 1.1  # of the fewest bytes
ROWS_OF_PROGRAM = 32  # as 264 programs have of 8,448 rows; each writes its sums once


def drawn(*shape):
    return draw(*shape, dtype=torch.bfloat16, device="cpu", seed=len(shape))


def tokens(*shape, below):
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


class Counted(NamedTuple):
    """A call of a kernel, and the fewest numbers that its forward and its backward must load and store. If they load some
    twice, ``passes`` is what they load and store over what they must."""

    stem: str
    given: Callable[[], tuple]
    forward: int
    backward: int
    rows: str = ""  # of what kind, if there are several
    passes: tuple[float, float] = (1, 1)


def of_rows(stem, m, n, forward, backward, parameters=0, inputs=1, **others):
    """``forward`` and ``backward`` count arrays of the input's size."""

    def given():
        return tuple(drawn(m, n) for _ in range(inputs)) + tuple(drawn(n) for _ in range(parameters))

    return Counted(stem, given, forward * m * n, backward * m * n, **others)


def heads():
    x = drawn(2, 8, 64, 128)
    return x, *rope.tables(64, 128, like=x)


def heads_of_a_projection():
    x = drawn(2, 64, 8, 128).transpose(1, 2)
    return x, drawn(128), *rope.tables(64, 128, like=x)


M, N = 4 * ROWS_OF_PROGRAM, 1024
WIDE, LONG = "rows of 16,384", "rows of 32,768"
SUM = "of a sum"  # of a residual connection, which the kernel computes, and adds the other gradient of
ROTATED = "rotated"  # by RoPE, in the norm's kernel
TOKENS = tokens(256, below=200)
DISTINCT = len(TOKENS.unique())
CASES = [
    of_rows("softmax", M, N, 2, 3),
    of_rows("log_softmax", M, N, 2, 3),
    of_rows("layer_norm", M, N, 2, 3, parameters=2),
    of_rows("rms_norm", M, N, 2, 3, parameters=1),
    of_rows("layer_norm", M, N, 4, 4, parameters=2, inputs=2, rows=SUM),
    of_rows("rms_norm", M, N, 4, 4, parameters=1, inputs=2, rows=SUM),
    Counted(
        "rms_norm",
        heads_of_a_projection,
        *(each * prod((2, 8, 64, 128)) for each in (2, 3)),
        rows=ROTATED,
    ),
    Counted("cross_entropy", lambda: (drawn(8, 20_000), tokens(8, below=20_000)), 8 * 20_000, 2 * 8 * 20_000),
    of_rows("relu", M, N, 2, 3),
    of_rows("gelu", M, N, 2, 3),
    of_rows("silu", M, N, 2, 3),
    of_rows("softcap", M, N, 2, 3),
    of_rows("swiglu", M, N, 3, 5, inputs=2),
    of_rows("dropout", M, N, 2, 2),
    Counted("rope", heads, *[2 * prod((2, 8, 64, 128))] * 2),
    # A row of w is read once, however often its token occurs; every row of dw is written.
    Counted("embedding", lambda: (TOKENS, drawn(200, 768)), (256 + DISTINCT) * 768, (256 + 200) * 768),
    # A norm's backward that cannot hold the sums beside the row loads both rows once more for them.
    of_rows("layer_norm", ROWS_OF_PROGRAM, 16_384, 2, 3, parameters=2, rows=WIDE, passes=(1, 5 / 3)),
    of_rows("rms_norm", ROWS_OF_PROGRAM, 16_384, 2, 3, parameters=1, rows=WIDE, passes=(1, 5 / 3)),
    # A row that a program cannot hold is loaded twice: once for its sums, and once for its result. The sum of
    # log-softmax's backward is of dy alone.
    of_rows("softmax", 4, 32_768, 2, 3, rows=LONG, passes=(3 / 2, 5 / 3)),
    of_rows("log_softmax", 4, 32_768, 2, 3, rows=LONG, passes=(3 / 2, 4 / 3)),
    of_rows("layer_norm", ROWS_OF_PROGRAM, 32_768, 2, 3, parameters=2, rows=LONG, passes=(3 / 2, 7 / 3)),
    of_rows("rms_norm", ROWS_OF_PROGRAM, 32_768, 2, 3, parameters=1, rows=LONG, passes=(3 / 2, 7 / 3)),
]


def named(case):
    return ", ".join(filter(None, (case.stem, case.rows)))


def counted(call):
    """Return a call's result, and the bytes that it moves, those that its programs ask for, and the number of its
    launches."""
    with compiled.executing(count_bytes=True) as verdict:
        result = call()
    moved = [x for run in verdict.runs for x in run.report.moved]
    loaded_and_stored = sum(x.loaded + x.stored for x in moved)
    return result, (loaded_and_stored, sum(x.asked for x in moved), len(verdict.runs))


@pytest.mark.rotates(of=lambda case, **_: sources(case.stem))
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_kernel_moves_few_more_bytes_than_it_must(case, monkeypatch):
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", M // ROWS_OF_PROGRAM)
    kernel, inputs, options = kernels.load(case.stem), case.given(), options_for(case.stem)
    forward = {SUM: "forward_of_sum", ROTATED: "forward_rotated"}.get(case.rows, "forward")
    backward = "backward_of_sum" if case.rows == SUM else "backward"
    (*results, saved), in_forward = counted(lambda: getattr(kernel, forward)(*inputs, **options))
    given = [torch.ones_like(each) for each in results]
    _, in_backward = counted(lambda: getattr(kernel, backward)(*given, saved))
    steps = {"forward": (in_forward, case.forward), "backward": (in_backward, case.backward)}
    for (step, (moved, fewest)), passes in zip(steps.items(), case.passes, strict=True):
        assert moved[0] <= LIMIT * passes * PER_NUMBER * fewest, step
    found = {step: [PER_NUMBER * fewest, *moved] for step, (moved, fewest) in steps.items()}
    shown = recorded.entry("traffic", named(case), found)
    if findings.load("traffic").versions["triton"] == triton.__version__:
        assert shown == found, "`make records` writes the counts"


def test_the_page_shows_every_case():
    assert set(findings.load("traffic").entries) == {*map(named, CASES)}


@triton.jit
def passes_kernel(x_ptr, w_ptr, y_ptr, n, passes, BLOCK: tl.constexpr):
    """Each program loads its row of x so many times, each time shifted, and w, which all programs share."""
    row, column = tl.program_id(0) * n, tl.arange(0, BLOCK)
    y = tl.load(w_ptr + column, mask=column < n)
    for i in range(passes):
        y += tl.load(x_ptr + row + (column + i) % n, mask=column < n)
    tl.store(y_ptr + row + column, y, mask=column < n)


@triton.jit
def sums_kernel(x_ptr, y_ptr):
    """Every thread loads the same number; one sum is atomic."""
    tl.atomic_add(y_ptr, tl.load(x_ptr))


def moved_of(kernel, grid, *arguments, **constants):
    with compiled.executing(count_bytes=True, atomic_sums=True) as verdict:
        kernel[grid](*arguments, **constants)
    (run,) = verdict.runs
    return {x.tensor: x[1:] for x in run.report.moved}, verdict


@pytest.mark.parametrize("together", [True, False], ids=["together", "one after another"])
def test_a_second_pass_counts_again_and_shared_parameters_once(together, monkeypatch):
    if not together:

        def alone(*_, **__):
            raise lockstep.Alone("a test")

        monkeypatch.setattr(lockstep, "run", alone)
    x, w, y = torch.ones(3, 300), torch.ones(300), torch.empty(3, 300)
    row, all_rows = 300 * 4, 3 * 300 * 4
    for passes in (1, 2):
        moved, verdict = moved_of(passes_kernel, (3,), x, w, y, 300, passes, BLOCK=512)
        assert moved == {
            "x_ptr": (passes * all_rows, 0, passes * all_rows),
            "w_ptr": (row, 0, all_rows),
            "y_ptr": (0, all_rows, all_rows),
        }
        assert f"{row:,}" in verdict.moved and "asked for" in verdict.moved


def test_threads_of_a_program_share_a_load_and_an_atomic_sum_loads_and_stores():
    moved, _ = moved_of(sums_kernel, (3,), torch.ones(1), torch.zeros(1))
    assert moved == {"x_ptr": (4, 0, 12), "y_ptr": (4, 4, 24)}


def test_nothing_is_counted_unless_it_is_asked_for():
    with compiled.executing() as verdict:
        sums_kernel[(1,)](torch.ones(1), torch.zeros(1))
    assert verdict.runs[0].report.moved == ()
