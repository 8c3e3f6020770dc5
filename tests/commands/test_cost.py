"""``backpass cost`` prints the tally's numbers: as a table of 80 columns, as JSON, and as CSV."""

import csv
import io
import json
import math

import pytest

from backpass import cost
from backpass.cli import main
from backpass.cost import published
from backpass.cost.steps import published_steps
from backpass.cost.tally import CONVENTIONS


def run(capsys, *argv):
    assert main(["cost", *argv]) == 0
    return capsys.readouterr().out


def test_json_has_the_totals_under_every_convention(capsys):
    found = json.loads(run(capsys, "gpt2-124m", "--batch", "3", "--sequence", "100", "--recompute", "--json"))
    tally = cost.tally("gpt2", 3, 100, recompute=1)
    assert found["parameters"] == 124_439_808
    assert found["flops"] == {name: tally.flops(name) for name in CONVENTIONS}
    assert found["total"] == {name: tally.total(name) for name in CONVENTIONS}
    assert found["model"] == {name: tally.model().total(name) for name in CONVENTIONS}
    assert found["model"]["counted"] < found["total"]["counted"]
    assert found["published"] == published_steps(cost.configuration("gpt2-124m"), 3, 100)
    assert found["formulas"].keys() == found["published"].keys()
    formula = published.named("korthikanti-hardware")
    assert found["formulas"][formula.name] == {
        "says": formula.says,
        "citation": formula.citation,
        "attention": "whole",
        "embedding": "no",
        "head": True,
        "recomputed": "attention",
    }


@pytest.mark.parametrize(
    "argument, recompute, said",
    [
        ("4", 4, "segments of 4 layers recomputed"),
        ("attention,feed_forward", ["attention", "feed_forward"], "attention and feed_forward recomputed"),
        ("norms", ["norms"], "norms recomputed"),
        (None, 1, "layers recomputed"),
    ],
)
def test_what_is_recomputed_is_chosen(capsys, argument, recompute, said):
    chosen = ["--recompute", *([] if argument is None else [argument])]
    found = json.loads(run(capsys, "gpt2-124m", "--json", *chosen))
    tally = cost.tally("gpt2", 1, 1024, recompute=recompute)
    assert found["flops"] == {name: tally.flops(name) for name in CONVENTIONS}
    assert (found["recompute"], found["recomputed"]) == (True, recompute)
    assert run(capsys, "gpt2-124m", *chosen).splitlines()[0].endswith(f", {said}")
    without = json.loads(run(capsys, "gpt2-124m", "--json"))
    assert (without["recompute"], without["recomputed"]) == (False, None)
    assert without["model"] == without["total"]


def test_model_and_hardware_flops_are_printed_where_work_is_done_twice(capsys):
    def totals(*options):
        lines = run(capsys, "gpt2-124m", *options).split("\n\n")[-2].splitlines()
        rows = (line.rpartition(" ") for line in lines if not line.startswith(("forward", "backward")))
        return {name.strip(): number for name, _, number in rows}

    plain = cost.tally("gpt2", 1, 1024).total()
    assert totals() == {"total": f"{plain:,}"}
    for options, chosen in ((["--flash"], {"flash": True}), (["--recompute"], {"recompute": 1})):
        tally = cost.tally("gpt2", 1, 1024, **chosen)
        found = totals(*options)
        assert int(found.pop("recomputation", "0").replace(",", "")) == tally.flops()["recomputation"]
        assert found == {
            "total": f"{tally.total():,}",
            "model FLOPs": f"{tally.model().total():,}",
            "hardware FLOPs": f"{tally.total():,}",
        }
        assert tally.model().total() < tally.total()


def test_csv_has_every_term(capsys):
    rows = list(csv.DictReader(io.StringIO(run(capsys, "llama-3-8b", "--flash", "--csv"))))
    tally = cost.tally("llama-3-8b", 1, 1024, flash=True)
    assert len(rows) == len(tally.rows)
    for name in CONVENTIONS:
        assert sum(int(row[name]) for row in rows) == tally.total(name)


@pytest.mark.parametrize("name", cost.presets())
@pytest.mark.parametrize("options", [(), ("--flash", "--recompute", "--convention", "products-whole")])
def test_the_tables_fit_80_columns_and_have_the_totals(capsys, monkeypatch, name, options):
    # The bytes of a large network take long where its layers run again.
    monkeypatch.setattr(cost, "memory_budget", lambda *_, **__: BUDGET)
    lines = run(capsys, name, "--sequence", "512", *options).splitlines()
    table = lines[1:]
    assert max(map(len, table)) <= 80
    chosen = {"flash": True, "recompute": 1} if options else {}
    flops = cost.tally(name, 1, 512, **chosen).flops("products-whole" if options else "counted")
    for way, count in flops.items():
        if count:
            assert next(line.split() for line in lines if line.startswith(way)) == [way, f"{count:,}"]


def test_a_config_file(capsys, tmp_path):
    from backpass.models import llama

    file = tmp_path / "config.json"
    described = llama.to_hugging_face(llama.Config.preset("qwen3-0.6b"))
    file.write_text(json.dumps(described | {"rope_scaling": {"rope_type": "llama3"}}))
    found = json.loads(run(capsys, "--config", str(file), "--json"))
    assert found["flops"] == json.loads(run(capsys, "qwen3-0.6b", "--json"))["flops"]


@pytest.mark.parametrize(
    "argv, message",
    [
        (["gpt2-124"], "no preset is called 'gpt2-124'"),
        ([], "expected PRESET or --config FILE, one of the two"),
        (["gpt2", "--config", "x.json"], "one of the two"),
        (["gpt2", "--batch", "0"], "batch: expected at least 1; got 0"),
        (["gpt2", "--convention", "6N"], "no convention is called '6N'"),
        (["--config", "absent.json"], "absent.json"),
        (["gpt2", "--recompute", "gelu"], "--recompute: recompute: expected names among attention, feed_"),
        (["--recompute", "gpt2"], "--recompute: put the preset before --recompute: backpass cost gpt2 --rec"),
        (
            ["gpt2", "--recompute", "0"],
            "--recompute: expected an integer of at least 1, the layers in a segm",
        ),
        (["gpt2", "--recompute", "-1"], "or names of operations; got -1"),
        (["gpt2", "--tokens", "1x"], "--tokens: expected a number above 0, such as 300B or 1.5e13; got '1x'"),
        (["gpt2", "--price", "nan"], "--price: expected a number above 0; got 'nan'"),
        (["gpt2", "--memory", "0"], "--memory: expected a number above 0; got '0'"),
    ],
)
def test_faults_exit_with_2_and_one_line(capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        main(["cost", *argv])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert error.count("\n") == 1


def test_each_fault_of_a_config_is_a_line(capsys, tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "rope_theta": 0, "hidden_size": 8, "hidden_act": "gelu"}')
    with pytest.raises(SystemExit):
        main(["cost", "--config", str(file)])
    heading, *faults, hint = capsys.readouterr().err.splitlines()
    assert heading == "backpass cost: the configuration does not fit:"
    assert [fault.strip().partition(":")[0] for fault in faults] == [
        *(
            "vocab_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "rope_theta",
            "hidden_act",
        )
    ]
    assert hint == "(see backpass cost --help)"


def test_a_config_that_is_not_modelled_is_rejected_by_name(capsys, tmp_path):
    file = tmp_path / "config.json"
    for text, message in (
        (b"{", "expected JSON"),
        (b"\xff{", f"{file}: expected UTF-8; 'utf-8' codec can't decode byte 0xff in position 0"),
        (
            b'{"model_type": "mamba"}',
            "model_type: expected 'gpt2' or 'llama' or 'mistral' or 'qwen2' or 'qwen3'; got 'mamba'",
        ),
        (b"[]", "json: expected the mapping of a config.json; got list"),
        (
            b'{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}',
            "architectures: expected names that end in ForCausalLM or LMHeadModel",
        ),
    ):
        file.write_bytes(text)
        with pytest.raises(SystemExit):
            main(["cost", "--config", str(file)])
        assert message in capsys.readouterr().err


BUDGET = cost.memory_budget("gpt2", 1, 512, dtype="bfloat16")


def four(number):
    """A number with four digits."""
    places = 3 - math.floor(math.log10(number))
    return f"{round(number, places):,.{max(0, places)}f}"


def test_the_plan_comes_first(capsys):
    """Memory, time, and price are those of the package."""
    options = ["--sequence", "8192", "--flash", "--memory", "192"]
    options += ["--cluster", "a100", "--tokens", "1.5B", "--price", "2.5"]
    chosen = {"dtype": "bfloat16", "flash": True}
    step = cost.duration("llama-3-8b", 1, 8192, "a100", **chosen).seconds
    budget = cost.memory_budget("llama-3-8b", 1, 8192, chunked=False, **chosen)
    hours = math.ceil(1.5e9 / 8192) * step / 3600
    lines = run(capsys, "llama-3-8b", *options).splitlines()
    assert lines[1:6] == [
        f"fits: {four(budget.bytes / 2**30)} of 192.0 GiB on one GPU, with AdamW in bfloat16",
        f"a step: {four(step)} s at best (published A100 peaks), {four(1.5 * step)} s as runs reach",
        "1,500,000,000 tokens on one GPU:",
        f"  {four(hours / 24)} days, {four(hours)} GPU-hours, price {four(2.5 * hours)} at best",
        f"  {four(hours / 16)} days, {four(1.5 * hours)} GPU-hours, price {four(3.75 * hours)} as runs reach",
    ]
    assert lines[-1].split() == ["sum", f"{budget.bytes:,}", f"{budget.bytes / 2**30:,.3f}"]
    found = json.loads(run(capsys, "llama-3-8b", *options, "--json"))
    assert (found["seconds"], found["fits"], found["capacity"]) == (step, True, 192 * 2**30)
    assert sum(found["bytes"].values()) == budget.bytes
    expected = {"tokens": 1.5e9, "seconds": 3600 * hours, "gpu_hours": hours, "price": 2.5 * hours}
    assert found["run"] == pytest.approx(expected, rel=1e-12)
    mesh = ["--batch", "8", "--mesh", "data=8", *options[:3]]
    lines = run(capsys, "llama-3-8b", *mesh).splitlines()
    step = cost.mesh_step("llama-3-8b", cost.Mesh(data=8), "h100", 8, 8192).seconds
    held = cost.mesh_memory("llama-3-8b", cost.Mesh(data=8), 8, 8192).bytes
    hours = 1e9 / 8 / 8192 * step / 3600
    assert lines[1] == (
        f"does not fit: {four(held / 2**30)} of 80.00 GiB on the fullest of 8 GPUs, with AdamW in bfloat16"
    )
    assert lines[3:5] == [
        "1,000,000,000 tokens on 8 GPUs:",
        f"  {four(hours)} h, {four(8 * hours)} GPU-hours at best",
    ]


@pytest.mark.parametrize("text", ["300B", "300 G", "3e11", "300,000,000,000", "0.3T", "300e9"])
def test_tokens_are_read_as_the_page_reads_them(capsys, text):
    assert json.loads(run(capsys, "gpt2", "--json", "--tokens", text))["run"]["tokens"] == 3 * 10**11


MESH = ("--batch", "64", "--sequence", "8192", "--flash", "--mesh", "data=4,tensor=8,pipeline=2,chunks=2")


def test_a_step_on_a_mesh(capsys):
    mesh = cost.Mesh(data=4, tensor=8, pipeline=2, chunks=2)
    step = cost.mesh_step("llama-3-70b", mesh, "h100", 64, 8192, flash=True)
    memory = cost.mesh_memory("llama-3-70b", mesh, 64, 8192)
    assert run(capsys, "llama-3-70b", *MESH).endswith(f"\n\n{step!r}\n\n{memory!r}\n")
    assert repr(step).startswith("llama-3-70b, batch 64, ") and "llama-3-70b in" in repr(memory)
    assert " GiB\n" in repr(memory) and " on 64 ranks, " in repr(step)
    assert " on 1 rank, " in repr(cost.mesh_step("gpt2", cost.Mesh(), "h100", 1, 8))
    again = cost.mesh_step("llama-3-70b", mesh, "a100", 64, 8192, flash=True, recompute=True)
    found = json.loads(run(capsys, "llama-3-70b", *MESH, "--cluster", "a100", "--recompute", "--json"))
    assert found["seconds"] == again.seconds > step.seconds
    assert found["shares"] == dict(again.shares) and found["mesh"] == vars(mesh)
    assert found["mfu"] == {name: again.mfu(name) for name in CONVENTIONS}
    less = cost.mesh_memory("llama-3-70b", mesh, 64, 8192, recompute=True)
    assert sum(found["bytes"].values()) == less.bytes < memory.bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mesh", "data=4,rows=2"], "expected sizes of axes among data, tensor, context, pipeline, chunks"),
        (["--mesh", "data=2,data=2"], "got 'data=2'"),
        (["--mesh", "data=0"], "data: expected an integer of at least 1; got 0"),
        (["--mesh", "tensor=7"], "tensor: expected a divisor of heads = 64; got 7"),
        (["--mesh", "data=1", "--csv"], "--mesh: --csv is not available"),
        (["--mesh", "data=1", "--recompute", "norms"], "--mesh: --recompute of less than every layer is not"),
    ],
)
def test_meshes_that_do_not_fit(capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        main(["cost", "llama-3-70b", *options])
    assert caught.value.code == 2 and message in capsys.readouterr().err.replace("\n", " ")
