"""Every kernel compiles for Ampere and Hopper with no GPU present, and what it keeps in registers fits
there."""

import fcntl
import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

import recorded
from backpass import kernels
from backpass.kernels.resources import RECORDED, Resources, resources, table, undefined
from backpass.kernels.resources import recorded as rows_shown
from backpass.recorded import findings

pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

# What a program may have of shared memory, by compute capability.
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
DTYPES = ("float32", "float16", "bfloat16", "float64")
# Modules with kernels that several stems are built on.
SHARED = ("norm_rows", "rotated_norm", "softmax_rows")


@pytest.fixture(scope="session")
def every_row(tmp_path_factory, testrun_uid, compiling) -> dict[str, list[Resources]]:
    """Each stem's, compiled once a test run by one process for all, which is quicker than one for each."""
    shared = tmp_path_factory.getbasetemp().parent
    done = shared / f"resources-{testrun_uid}.json"
    with open(shared / f"resources-{testrun_uid}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(json.dumps(compiled_rows(compiling)))
    found = json.loads(done.read_text())
    return {stem: [Resources(*row) for row in rows] for stem, rows in found.items()}


def compiled_rows(environment: dict[str, str]) -> dict[str, list]:
    code = (
        "import sys; from backpass.kernels import resources\n"
        "for stem in sys.argv[1:]:\n"
        f"    resources.main([stem, '--json', '--dtypes', *{DTYPES}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *kernels.STEMS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(kernels.STEMS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(params=kernels.STEMS)
def stem(request) -> str:
    return request.param


@pytest.fixture
def rows(stem, every_row) -> list[Resources]:
    return every_row[stem]


def test_a_process_of_its_own_compiles_one_kernel(every_row):
    assert resources("softcap", dtypes=DTYPES) == every_row["softcap"]


def launched(module) -> set[str]:
    """Names of the functions that the module, or one that it is built on, has Triton compile and that are given memory
    to work on, or are formulas for an elementwise kernel."""
    built_on = [
        value
        for value in vars(module).values()
        if isinstance(value, ModuleType)
        and value.__name__ in {f"backpass.kernels.{s}" for s in (*kernels.STEMS, *SHARED)}
    ]
    return set().union(*map(launched, built_on)) | {
        name.lstrip("_")
        for name, value in vars(module).items()
        if getattr(getattr(value, "fn", None), "__module__", None) == module.__name__
        and (
            any(argument.endswith("_ptr") for argument in inspect.signature(value.fn).parameters)
            or name.startswith(("_forward", "_backward"))
        )
    }


def test_every_kernel_compiles_for_every_target(stem, rows):
    compiled = {(row.kernel, row.dtype, row.capability) for row in rows}
    names = launched(kernels.load(stem))
    assert names
    assert compiled == {(name, dtype, sm) for name in names for dtype in DTYPES for sm in (80, 90)}


def test_pages_show_what_is_compiled(stem, rows):
    shown = [row for row in rows if (row.dtype, row.capability) == RECORDED]
    recorded.entry("resources", stem, shown)
    if findings.load("resources").versions["triton"] != version("triton"):
        pytest.skip("the record is of another version of Triton")
    assert rows_shown(stem) == shown, "`make records` writes what is compiled"


def test_every_kernel_is_recorded():
    assert sorted(findings.load("resources").entries) == sorted(kernels.STEMS)


def test_nothing_is_spilled_and_a_program_fits(rows, capsys):
    with capsys.disabled():
        print()
        for sm, name in sorted({(row.capability, row.kernel) for row in rows}):
            of_kernel = [row for row in rows if (row.capability, row.kernel) == (sm, name)]
            registers, shared, spilled = (
                max(getattr(row, field) for row in of_kernel)
                for field in ("registers", "shared_bytes", "spilled_bytes")
            )
            needs = f"at most {registers} registers, {shared} B shared, {spilled} B spilled"
            print(f"  sm_{sm} {name:14} {needs}")
    for row in rows:
        assert row.spilled_bytes == 0, row
        assert row.undefined == 0, row
        assert 0 < row.registers * row.threads <= 65536, row
        assert row.shared_bytes <= SHARED_BYTES[row.capability], row


def test_a_row_too_long_for_the_registers_is_seen_to_spill(compiling):
    code = (
        "from backpass.kernels import resources, softmax_rows\n"
        "softmax_rows.ROW_BYTES *= 4\n"
        "resources.main(['softmax', '--dtypes', 'float32', '--capabilities', '90'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=compiling, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    longest = next(line for line in done.stdout.splitlines() if line.startswith("backward_rows   longest"))
    assert int(longest.split()[-2]) > 0


def test_a_norms_backward_loads_ahead_and_reads_what_a_row_has_once(compiling):
    """While it waits for x, dy, mean, and rstd of one block of rows, and for the gradient of a sum, those of the next are in
    flight. Of x, dy and w in 16 bits a thread holds 16 numbers: two reads each, and one of mean and of rstd."""
    code = """if True:
        import re, torch
        from backpass.kernels import layer_norm, norm_rows, resources, rms_norm
        for kernel in (layer_norm, rms_norm):
            for case, launch in kernel.launches(torch.bfloat16):
                if launch.kernel is norm_rows._backward_rows and (kernel is layer_norm or case == "longest row"):
                    ptx = resources.compile_launch(launch, 90).asm["ptx"]
                    ahead = max(map(int, re.findall("cp.async.wait_group (.+);", ptx)), default=0)
                    print(ahead, ptx.count("ld.global"), case, sep=",")
    """
    done = subprocess.run([sys.executable, "-c", code], env=compiling, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in done.stdout.splitlines()]
    assert [(case, int(ahead)) for ahead, _, case in rows[:-1]] == [
        ("short rows", 4),
        ("longest row", 4),
        ("longest row of a sum", 5),
        ("longest row without sums", 0),
    ]
    assert max(int(reads) for _, reads, case in rows if case == "longest row") <= 8


def test_a_register_that_nothing_writes_is_undefined():
    ptx = """
        .reg .b32 %r<9>;
        mov.u32 %r1, %tid.x; // %r8
        setp.lt.s32 %p1, %r1, %r2;
        ld.global.v2.b32 { %r3, %r4 }, [ %rd1 + 0 ];
        @!%p2 st.shared.b32 [ %r3 ], { %r5, %r4 };
        cp.async.ca.shared.global [ %r6 + 0 ], [ %rd2 + 0 ], 0x8, %r1;
        @%p1 bra $L__BB0_1;
    """
    assert undefined(ptx) == {"%r2", "%rd1", "%p2", "%r5", "%r6", "%rd2"}


def test_the_table_has_a_line_for_each_kernel():
    rows = [Resources(name, "rows", "float32", 90, 128, 32, 0, 0, 0) for name in ("forward", "backward")]
    lines = table(rows).splitlines()
    assert lines[0].split() == [
        "kernel",
        "case",
        "dtype",
        "sm",
        "threads",
        "registers",
        "shared",
        "spilled",
        "undefined",
    ]
    assert lines[2].split() == ["backward", "rows", "float32", "90", "128", "32", "0", "0", "0"]


def test_an_unknown_kernel_is_rejected_with_the_nearest_name():
    with pytest.raises(LookupError, match="no kernel is called 'sofmax'; did you mean 'softmax'"):
        resources("sofmax")
    with pytest.raises(LookupError, match=r"there are: .*softmax"):
        kernels.load("linear")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtypes": ("bf16",)}, "dtypes: expected some of float32, .*; got 'bf16'"),
        ({"capabilities": ("sm_90",)}, "capabilities: expected integers such as 80 and 90; got 'sm_90'"),
    ],
    ids=["dtype", "capability"],
)
def test_what_cannot_be_compiled_for_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        resources("softmax", **wrong)
