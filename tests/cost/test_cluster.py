"""A step on a mesh of ranks: its parts by their definitions, and one rank as cost.duration has it."""

import math
from dataclasses import replace

import pytest

from backpass import cost
from backpass.cost import Cluster, Mesh, mesh_step
from backpass.cost.cluster import layers_of_stages
from backpass.cost.tally import CONVENTIONS
from backpass.models import encoder, gpt2, llama

CONFIG = llama.Config(96, 32, 6, 8, 4, 4, 48, biases=True)
GPT2 = gpt2.Config(96, 64, 32, 6, 8, 48)
DEVICE = cost.Machine(
    "test", {"float32": 3e9, "bfloat16": 7e9}, element_rate=1e9, bandwidth=2e8, call_seconds=1e-7
)
CLUSTER = Cluster(DEVICE, inside=5e6, between=3e5, node=4, latency=1e-4)


def shares(mesh, batch=16, sequence=64, config=CONFIG, cluster=CLUSTER, **options):
    return dict(mesh_step(config, mesh, cluster, batch, sequence, **options).shares)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["llama", "gpt2"])
def test_one_rank_takes_the_time_of_the_same_calls_on_one_device(config, recompute):
    found = mesh_step(config, Mesh(), CLUSTER, 3, 64, micro_batch=3, dtype="float32", recompute=recompute)
    expected = cost.duration(config, 3, 64, DEVICE, flash=True, recompute=1 if recompute else None)
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-12)
    parts = expected.by(lambda span: span.part)
    times = dict(found.shares)
    assert times["layers"] == pytest.approx(parts["layer"], rel=1e-12)
    assert times["update"] == pytest.approx(parts["optimiser"], rel=1e-12)
    for name in ("tensor collectives", "context collectives", "sends between stages", "bubble"):
        assert times[name] == 0
    assert found.mfu() == pytest.approx(expected.mfu(), rel=1e-12)
    for convention in CONVENTIONS:
        of_one = cost.tally(config, 1, 64, flash=True).model()
        assert found.flops[convention] == 3 * of_one.total(convention)
        assert found.rate(convention) == found.flops[convention] / found.seconds


def test_what_tensor_ranks_exchange_in_a_layer():
    one, two = (shares(Mesh(tensor=t), batch=1)["tensor collectives"] for t in (1, 2))
    assert one == 0
    stream = 64 * 32 * 2  # bytes of the rows in bfloat16
    # Six gathers and four scatters a layer; one of each for the embedding, two gathers and one scatter for the head.
    collectives = 6 * 10 + 2 + 3
    assert two == pytest.approx(collectives * (1e-4 + stream / 2 / 5e6), rel=1e-12)


def test_the_layers_of_a_gpt2_are_divided_as_those_of_a_llama():
    """On tensor ranks: products and bytes of weights by their number, exchanges as in a Llama of the same width."""
    one, two = (shares(Mesh(tensor=t), batch=1, config=GPT2) for t in (1, 2))
    assert 1.5 < one["layers"] / two["layers"] < 2
    assert two["tensor collectives"] == shares(Mesh(tensor=2), batch=1)["tensor collectives"]
    again = shares(Mesh(tensor=2), batch=1, config=GPT2, recompute=True)
    once = 1e-4 + 64 * 32 * 2 / 2 / 5e6  # two scatters more in each of six layers
    assert again["tensor collectives"] - two["tensor collectives"] == pytest.approx(12 * once, rel=1e-9)
    assert 1.3 < again["layers"] / two["layers"] < 1.5


def test_links_between_machines_are_used_where_the_ring_leaves_one():
    within = shares(Mesh(tensor=4), batch=1)["tensor collectives"]
    cluster = replace(CLUSTER, node=2)
    between = shares(Mesh(tensor=4), batch=1, cluster=cluster)["tensor collectives"]
    messages = 3 * (6 * 10 + 2 + 3) * 1e-4
    assert between - messages == pytest.approx((within - messages) * 5e6 / 3e5, rel=1e-12)
    # The data axis is the outermost: on 2 × 2 ranks it stays within a machine of 4.
    inner = shares(Mesh(data=2, tensor=2))["gradients and parameters"]
    outer = shares(Mesh(data=2, tensor=2), cluster=cluster)["gradients and parameters"]
    assert outer - 2e-4 == pytest.approx((inner - 2e-4) * 5e6 / 3e5, rel=1e-12)


def test_data_and_context_share_a_machine_only_if_the_pipeline_between_them_does():
    # Four ranks of the data and the context axis, which lie among 4 or 8 successive ranks.
    near = shares(Mesh(data=2, context=2))["gradients and parameters"]
    far, alone = (shares(Mesh(data=d, context=2, pipeline=2))["gradients and parameters"] for d in (2, 1))
    slower = 5e6 / 3e5
    assert far - 6e-4 == pytest.approx(
        slower * (near - 6e-4) / 2, rel=0.02
    )  # half of the layers and one table
    assert far - 6e-4 == pytest.approx(1.5 * slower * (alone - 2e-4), rel=1e-3)  # 3/4 moved against 1/2


def test_what_context_ranks_exchange():
    found = shares(Mesh(context=2), batch=1)
    own = 32 * (2 * 4 * 4) * 2  # bytes of half the rows' keys and values
    assert found["context collectives"] == pytest.approx(6 * 3 * (1e-4 + own / 5e6), rel=1e-12)
    whole = shares(Mesh(), batch=1)
    per_call = 1e-7 * 6 * len([1 for span in spans() if span.part == "layer"])
    assert found["layers"] - per_call == pytest.approx((whole["layers"] - per_call) / 2, rel=1e-9)


def spans():
    return cost.duration(CONFIG, 1, 64, DEVICE, dtype="bfloat16", flash=True).spans


def test_data_ranks_divide_the_micro_batches_and_sum_the_gradients():
    one, four = shares(Mesh()), shares(Mesh(data=4))
    assert one["layers"] == pytest.approx(4 * four["layers"], rel=1e-12)
    n = math.prod((96, 32)) * 2 + 32  # tables and last norm
    n += 6 * (2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 32 + 2 * 16)
    moved = 3 / 4 * n * (4 + 2)  # float32 gradients scattered, bfloat16 parameters gathered
    assert four["gradients and parameters"] == pytest.approx(6e-4 + moved / 5e6, rel=1e-6)
    assert four["update"] - 1e-7 == pytest.approx((one["update"] - 1e-7) / 4, rel=1e-9)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_pipeline_waits_for_its_busiest_stage(chunks):
    found = shares(Mesh(pipeline=2, chunks=chunks))
    busy = found["layers"] + found["embedding and output head"]
    assert found["bubble"] == pytest.approx(busy / 16 / chunks, rel=1e-12)
    assert found["layers"] == pytest.approx(shares(Mesh())["layers"] / 2, rel=1e-12)
    shard = 64 * 32 * 2
    assert found["sends between stages"] == pytest.approx(16 * 2 * chunks * (1e-4 + shard / 5e6), rel=1e-12)


def test_layers_are_divided_with_the_ends_as_one_layer_each():
    assert layers_of_stages(126, 16) == [7, *[8] * 14, 7]
    assert layers_of_stages(80, 1) == [80]
    assert layers_of_stages(6, 2) == [3, 3]
    assert layers_of_stages(3, 3) == [1, 1, 1]
    assert layers_of_stages(4, 3) == [1, 2, 1]
    assert layers_of_stages(5, 3) == [1, 3, 1]
    for layers in range(1, 30):
        for stages in range(1, layers + 1):
            counts = layers_of_stages(layers, stages)
            assert (sum(counts), len(counts), min(counts) > 0) == (layers, stages, True)
            inner = counts[1:-1] or counts
            assert max(inner) - min(inner) <= 1
    assert layers_of_stages(10, 5, ends=False) == [2] * 5
    assert layers_of_stages(10, 5) == [1, 3, 3, 2, 1]
    with pytest.raises(ValueError, match="stages: expected at most 2, the number of layers; got 3"):
        layers_of_stages(2, 3)


def test_the_published_runs_of_llama_3_keep_one_ratio_to_the_prediction():
    """What is predicted at published peaks is faster by nearly the same factor in all three."""
    published = {
        (Mesh(64, 8, 1, 16, chunks=8), 2048, 8192): 430e12,
        (Mesh(128, 8, 1, 16, chunks=8), 2048, 8192): 400e12,
        (Mesh(8, 8, 16, 16, chunks=8), 128, 131072): 380e12,
    }
    ratios = []
    for (mesh, batch, sequence), rate in published.items():
        found = mesh_step("llama-3.1-405b", mesh, "h100", batch, sequence)
        assert found.tokens == 2**24
        ratios.append(rate / found.rate("products-halved"))
    assert max(ratios) < 1.05 * min(ratios)
    assert 0.6 < min(ratios) < max(ratios) < 0.75


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mesh": Mesh(tensor=3)}, "tensor: expected a divisor of heads = 8; got 3"),
        ({"mesh": Mesh(tensor=8)}, "tensor: expected a divisor of key_heads = 4; got 8"),
        ({"mesh": Mesh(context=3)}, "sequence: expected a multiple of context × tensor = 3; got 64"),
        ({"mesh": Mesh(data=3)}, "batch: expected a multiple of data × micro_batch = 3; got 16"),
        ({"mesh": Mesh(pipeline=7)}, "pipeline: expected at most 6, the number of layers; got 7"),
        ({"mesh": Mesh(chunks=2)}, "chunks: expected 1 without a pipeline; got 2"),
        ({"batch": 0}, "batch: expected an integer of at least 1; got 0"),
    ],
)
def test_a_mesh_that_does_not_fit_is_rejected(change, message):
    given = {"mesh": Mesh(), "batch": 16} | change
    with pytest.raises(ValueError) as caught:
        mesh_step(CONFIG, given["mesh"], CLUSTER, given["batch"], 64)
    assert message in str(caught.value)


def test_other_arguments_are_rejected_by_name():
    with pytest.raises(TypeError, match="config: expected that of a Llama or a GPT-2; got one of encoder"):
        mesh_step(encoder.Config(6, 1, 3, 5), Mesh(), CLUSTER, 1, 64)
    with pytest.raises(TypeError, match="recompute: expected"):
        mesh_step(CONFIG, Mesh(), CLUSTER, 1, 64, recompute=1)
    with pytest.raises(TypeError, match="mesh: expected a Mesh; got dict"):
        mesh_step(CONFIG, {}, CLUSTER, 1, 64)
    with pytest.raises(TypeError, match="cluster: expected a Cluster, or the name of one; got int"):
        mesh_step(CONFIG, Mesh(), 3, 1, 64)
    with pytest.raises(LookupError, match="no cluster is called 'h200'; did you mean 'h100'"):
        mesh_step(CONFIG, Mesh(), "h200", 1, 64)
    with pytest.raises(LookupError, match="convention"):
        mesh_step(CONFIG, Mesh(), CLUSTER, 1, 64).rate("6n")
    with pytest.raises(TypeError, match="device: expected a Machine; got str"):
        Cluster("h100", 1.0, 1.0)
    with pytest.raises(ValueError, match="between"):
        Cluster(DEVICE, 1.0, 0.0)
    with pytest.raises(ValueError, match="data: expected an integer of at least 1; got 0"):
        Mesh(data=0)


def test_the_table_shows_every_share_and_the_total():
    found = mesh_step("llama-3-8b", Mesh(data=2, tensor=4, pipeline=2), "h100", 8, 8192)
    text = repr(found).splitlines()
    assert text[0].startswith("llama-3-8b, batch 8, sequence 8,192 on 16 ranks, bfloat16: ")
    assert [line.split("  ")[0] for line in text[2:-1]] == [name for name, _ in found.shares]
    assert found.seconds == pytest.approx(sum(seconds for _, seconds in found.shares))
    assert "<table" in found._repr_html_()
