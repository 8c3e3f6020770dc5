"""``backpass cost`` prints the tally's numbers: as a table of 80 columns, as JSON, and as CSV."""

import csv
import io
import json

import pytest

from backpass import cost
from backpass.cli import main


def run(capsys, *argv):
    assert main(["cost", *argv]) == 0
    return capsys.readouterr().out


def test_json_has_the_totals_under_every_convention(capsys):
    found = json.loads(run(capsys, "gpt2-124m", "--batch", "3", "--sequence", "100", "--recompute", "--json"))
    tally = cost.tally("gpt2", 3, 100, recompute="layers")
    assert found["parameters"] == 124_439_808
    assert found["flops"] == {name: tally.flops(name) for name in cost.CONVENTIONS}
    assert found["published"] == cost.published_steps(cost.configuration("gpt2-124m"), 3, 100)


def test_csv_has_every_term(capsys):
    rows = list(csv.DictReader(io.StringIO(run(capsys, "llama-3-8b", "--flash", "--csv"))))
    tally = cost.tally("llama-3-8b", 1, 1024, flash=True)
    assert len(rows) == len(tally.rows)
    for name in cost.CONVENTIONS:
        assert sum(int(row[name]) for row in rows) == tally.total(name)


@pytest.mark.parametrize("name", cost.presets())
@pytest.mark.parametrize("options", [(), ("--flash", "--recompute", "--convention", "products-whole")])
def test_the_table_fits_80_columns_and_ends_in_the_totals(capsys, name, options):
    lines = run(capsys, name, "--sequence", "512", *options).splitlines()
    table = lines[3:]
    assert max(map(len, table)) <= 80
    chosen = {"flash": True, "recompute": "layers"} if options else {}
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
    ],
)
def test_faults_exit_with_2_and_one_line(capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        main(["cost", *argv])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_config_that_is_not_modelled_is_refused_by_name(capsys, tmp_path):
    file = tmp_path / "config.json"
    for text, message in (
        (b"{", "expected JSON"),
        (b"\xff{", f"{file}: expected UTF-8; 'utf-8' codec can't decode byte 0xff in position 0"),
        (
            b'{"model_type": "mamba"}',
            "model_type: expected 'gpt2' or 'llama' or 'qwen2' or 'qwen3'; got 'mamba'",
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
