"""A network on a mesh of ranks has the loss, the gradients, and the norms of one process."""

from math import prod

import numpy as np
import pytest

from backpass.cost.networks import storages_in
from backpass.models import gpt2, llama
from backpass.parallel import RankError, on_processes, on_threads, vocabulary
from backpass.parallel import network as networks
from backpass.parallel import tensor as tensors
from backpass.parallel.network import Network
from backpass.parallel.shares import heads_of, shares

from ..models.small import parameters_of

GPT2 = gpt2.Config(11, 8, 8, 2, 4, 7)
NETWORKS = {
    "gpt2": (gpt2, GPT2),
    "gpt2, untied": (gpt2, gpt2.Config(11, 8, 6, 1, 3, 5, tied=False)),
    "llama": (llama, llama.Config(13, 6, 2, 6, 2, 4, 7)),
    "qwen2": (llama, llama.Config(9, 6, 2, 4, 1, 2, 6, biases=True, tied=True)),
    "qwen3": (llama, llama.Config(9, 6, 2, 4, 2, 4, 5, query_key_norm=True)),
}
MESHES = [
    {"data": 2},
    {"data": 4},  # more ranks than sequences: each has all
    {"tensor": 2},
    {"tensor": 3},
    {"tensor": 4, "sequence": True},
    {"context": 2},
    {"context": 4},
    {"data": 2, "tensor": 2, "sequence": True},
    {"data": 3, "tensor": 2},
    {"context": 2, "tensor": 2, "sequence": True},
    {"data": 2, "context": 2, "tensor": 2},
]


def batch(config):
    """Three sequences of 8 tokens; the first has one counted target, one of the others ignores half."""
    tokens, targets = np.random.default_rng(3).integers(0, config.vocabulary, (2, 3, 8))
    targets[0, :7] = -100
    targets[2, ::2] = -100
    return tokens, targets


def ranks_of(sizes):
    return prod(size for size in sizes.values() if not isinstance(size, bool))


def on_mesh(group, name, sizes, options):
    model, config = NETWORKS[name]
    network = Network(group, model, config, **sizes)
    share = network.share(parameters_of(model, config))
    loss, saved = network.forward(share, *batch(config), **options)
    gradients = network.backward(saved, scale=0.7)
    return float(loss), network.whole(gradients), network.norms(gradients)


def on_one(name, **options):
    model, config = NETWORKS[name]
    loss, saved = model.forward(parameters_of(model, config), *batch(config), config=config, **options)
    gradients = model.backward(saved, scale=0.7)
    return float(loss), gradients, {n: np.linalg.norm(g) for n, g in gradients.items()}


def worst(found, expected):
    """The largest difference, relative to the largest element of each array."""
    (loss, gradients, norms), (right, exact, lengths) = found, expected
    assert gradients.keys() == exact.keys() == norms.keys()
    faults = [abs(loss - right) / abs(right)]
    for name, gradient in exact.items():
        faults.append(np.max(np.abs(gradients[name] - gradient)) / np.max(np.abs(gradient)))
        faults.append(abs(norms[name] - lengths[name]) / lengths[name])
    return max(faults)


def fits(name, sizes):
    _, config = NETWORKS[name]
    return sizes.get("tensor", 1) <= config.heads


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_network(name, sizes):
    if not fits(name, sizes):
        pytest.skip("a rank would have no head")
    expected = on_one(name)
    for found in on_threads(on_mesh, ranks_of(sizes), name, sizes, {}):
        assert worst(found, expected) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"flash": False},
        {"chunked": False},
        {"recompute": 1},
        {"recompute": ("attention", "norms", "feed_forward")},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_with_the_models_options(name, options):
    sizes = {"context": 2, "tensor": 2, "sequence": True}
    expected = on_one(name)
    for found in on_threads(on_mesh, 4, name, sizes, options):
        assert worst(found, expected) < 1e-12


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_dropout_drops_what_one_process_drops(sizes, monkeypatch):
    config = gpt2.Config(11, 8, 8, 2, 4, 7, embedding_dropout=0.3, residual_dropout=0.2)
    monkeypatch.setitem(NETWORKS, "drops", (gpt2, config))
    expected = on_one("drops", masks=(5, 6))
    assert abs(expected[0] - on_one("drops", masks=(5, 7))[0]) > 1e-3
    assert abs(expected[0] - on_one("drops")[0]) > 1e-3
    for again in ({}, {"recompute": ("attention",)}, {"recompute": ("feed_forward", "norms")}):
        options = {"masks": (5, 6), **again}
        for found in on_threads(on_mesh, ranks_of(sizes), "drops", sizes, options):
            assert worst(found, expected) < 1e-12


@pytest.mark.parametrize("sizes", [{"data": 2}, {"tensor": 2, "sequence": True}], ids=str)
def test_ranks_with_kernels_drop_what_one_process_drops(sizes):
    """With kernels or without: one process draws the masks in a kernel, a rank its part of them."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from backpass import kernels

    config = gpt2.Config(11, 8, 8, 1, 2, 7, embedding_dropout=0.3, residual_dropout=0.2)
    whole = {n: torch.asarray(w) for n, w in parameters_of(gpt2, config).items()}
    tokens, targets = map(torch.asarray, batch(config))

    def gradients(**options):
        loss, saved = gpt2.forward(whole, tokens, targets, config=config, masks=(5, 6), **options)
        return loss, gpt2.backward(saved)

    def scheme(group):
        network = Network(group, gpt2, config, **sizes, kernels=kernels)
        loss, saved = network.forward(network.share(whole), tokens, targets, masks=(5, 6))
        return loss, network.whole(network.backward(saved))

    exact, right = gradients()
    for loss, found in (gradients(kernels=kernels), *on_threads(scheme, 2)):
        assert abs(loss - exact) < 1e-12 * exact
        for name, gradient in right.items():
            assert (found[name] - gradient).abs().max() < 1e-12 * gradient.abs().max(), name


def test_dropout_does_not_depend_on_what_runs_before_the_backward(monkeypatch):
    """With recomputation the masks are drawn again, after a batch of another size has run."""
    config = gpt2.Config(11, 8, 8, 2, 4, 7, residual_dropout=0.4)
    monkeypatch.setitem(NETWORKS, "drops", (gpt2, config))
    expected = on_one("drops", masks=(5, 6))

    def scheme(group):
        network = Network(group, gpt2, config, data=2)
        share = network.share(parameters_of(gpt2, config))
        tokens, targets = batch(config)
        loss, saved = network.forward(share, tokens, targets, masks=(5, 6), recompute=1)
        network.loss(share, tokens[:2, :4], targets[:2, :4])
        gradients = network.backward(saved, scale=0.7)
        return float(loss), network.whole(gradients), network.norms(gradients)

    for found in on_threads(scheme, 2):
        assert worst(found, expected) < 1e-12


def test_another_seed_on_each_rank_is_noticed(monkeypatch):
    """On one tensor group all ranks have all rows, so that all have to drop the same."""
    config = gpt2.Config(11, 8, 8, 2, 4, 7, residual_dropout=0.2)
    monkeypatch.setitem(NETWORKS, "drops", (gpt2, config))
    right = networks.Dropped.forward

    def own_seed(self, x, *, seed, **options):
        return right(self, x, seed=seed + self.positions.stream.group.rank, **options)

    monkeypatch.setattr(networks.Dropped, "forward", own_seed)
    expected = on_one("drops", masks=(5, 6))
    found = on_threads(on_mesh, 2, "drops", {"tensor": 2}, {"masks": (5, 6)})
    assert all(worst(each, expected) > 1e-3 for each in found)


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "qwen3"])
def test_some_gradients(name):
    model, config = NETWORKS[name]
    names = [*model.parameter_shapes(config)]
    for wanted in (
        names[:1],
        names[-1:],
        [n for n in names if "norm" in n or "ln" in n],
        names[len(names) // 2 :],
    ):
        expected = on_one(name, wanted=wanted)
        for found in on_threads(
            on_mesh, 4, name, {"data": 2, "tensor": 2, "sequence": True}, {"wanted": wanted}
        ):
            assert worst(found, expected) < 1e-12


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("gpt2", {"data": 2, "tensor": 2, "sequence": True}), ("qwen2", {"context": 2, "tensor": 2})],
)
def test_in_processes(name, sizes):
    pytest.importorskip("torch.distributed")
    first, expected = on_processes(on_mesh, 4, name, sizes, {}), on_one(name)
    for found in first:
        assert worst(found, expected) < 1e-12
    for again, found in zip(on_processes(on_mesh, 4, name, sizes, {}), first, strict=True):
        assert again[0] == found[0]
        for key, gradient in found[1].items():
            np.testing.assert_array_equal(again[1][key], gradient)


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    model, config = NETWORKS["llama"]
    whole = {n: torch.asarray(w, dtype=torch.bfloat16) for n, w in parameters_of(model, config).items()}
    tokens, targets = (torch.asarray(x) for x in batch(config))
    loss, saved = model.forward(whole, tokens, targets, config=config)
    exact = model.backward(saved)

    def scheme(group):
        network = Network(group, model, config, data=2, tensor=2, sequence=True)
        loss, saved = network.forward(network.share(whole), tokens, targets)
        return loss, network.whole(network.backward(saved))

    for found, gradients in on_threads(scheme, 4):
        assert found.dtype == torch.float32 and abs(found - loss) < 0.02 * loss
        for name, gradient in gradients.items():
            assert gradient.dtype == torch.float32
            error = torch.linalg.vector_norm(gradient - exact[name].float())
            assert error < 0.1 * torch.linalg.vector_norm(exact[name].float())


def test_no_counted_target_on_a_rank_or_on_any():
    model, config = NETWORKS["llama"]
    tokens, targets = batch(config)
    targets[0] = -100

    def scheme(group, targets):
        network = Network(group, model, config, data=3)
        loss, saved = network.forward(network.share(parameters_of(model, config)), tokens, targets)
        return float(loss), network.backward(saved)

    loss, saved = model.forward(parameters_of(model, config), tokens, targets, config=config)
    exact = model.backward(saved)
    for found, gradients in on_threads(scheme, 3, targets):
        assert abs(found - loss) < 1e-12
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, exact[name], rtol=1e-12, atol=1e-14)
    with np.errstate(invalid="ignore"):
        for found, gradients in on_threads(scheme, 3, np.full_like(targets, -100)):
            assert np.isnan(found)
            assert all(not gradient.any() for gradient in gradients.values())


def unreduced(self, x):
    return x


# What somebody leaves out, and a mesh on which it matters.
MISTAKES = {
    "the partial sums of a block are not added": (tensors.Whole, "leave", unreduced, "gpt2", {"tensor": 2}),
    "the norms' gradients are not added": (
        tensors.Parts,
        "of_rows",
        unreduced,
        "llama",
        {"tensor": 2, "sequence": True},
    ),
    "the gradients of other rows are not added": (networks.Network, "summed", unreduced, "gpt2", {"data": 2}),
    "an average where a sum is right": (
        networks.Network,
        "summed",
        lambda self, g: self.alike.all_reduce(g) / self.alike.size,
        "llama",
        {"data": 2},
    ),
    "gradients that are whole are added": (
        tensors.Whole,
        "of_rows",
        lambda self, dw: self.group.all_reduce(dw),
        "llama",
        {"tensor": 2},
    ),
    "other ranks' tokens take a gradient": (
        vocabulary.Table,
        "_own",
        lambda self, dy, saved: self.stream.enter(dy),
        "gpt2",
        {"tensor": 2},
    ),
    "the softmax is over a rank's own tokens": (
        vocabulary.Head,
        "_log_sum_exp_of_others",
        lambda self, z: np.full(z.shape[:-1], -1e30),
        "gpt2",
        {"tensor": 2},
    ),
    "positions are counted from 0 on every rank": (
        networks.Positions,
        "of",
        lambda self, s: list(range(s)),
        "llama",
        {"context": 2},
    ),
    "positions of a table are counted from 0": (
        networks.Positions,
        "of",
        lambda self, s: list(range(s)),
        "gpt2",
        {"tensor": 2, "sequence": True},
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake, monkeypatch):
    owner, method, wrong, name, sizes = MISTAKES[mistake]
    monkeypatch.setattr(owner, method, wrong)
    found = on_threads(on_mesh, ranks_of(sizes), name, sizes, {})
    assert max(worst(each, on_one(name)) for each in found) > 1e-3


@pytest.mark.parametrize(
    ("option", "name", "sizes"),
    [
        ("once", "gpt2", {"tensor": 2}),  # the output's bias is added on every rank
        ("partial", "qwen2", {"tensor": 2}),  # a shared key head's gradients are not added
        ("partial", "qwen3", {"tensor": 2}),  # nor those of the query norms
    ],
)
def test_a_forgotten_option_is_noticed(option, name, sizes, monkeypatch):
    init = tensors.Block.__init__

    def without(self, *inputs, **options):
        options.pop(option, None)
        init(self, *inputs, **options)

    monkeypatch.setattr(tensors.Block, "__init__", without)
    found = on_threads(on_mesh, 2, name, sizes, {})
    assert max(worst(each, on_one(name)) for each in found) > 1e-3


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_element_is_in_a_share(name, ranks):
    model, config = NETWORKS[name]
    if ranks > config.heads:
        return
    whole = parameters_of(model, config)
    each = [shares(model, config, rank, ranks) for rank in range(ranks)]
    for parameter, x in whole.items():
        own = [share[parameter] for share in each]
        parts = [share.of(x) for share in own]
        assert [part.shape for part in parts] == [share.shape(x.shape) for share in own]
        put = [
            share.put(part, x.shape[share.axis])
            for share, part in zip(own, parts, strict=True)
            if share.first
        ]
        np.testing.assert_array_equal(sum(put), x)


def test_heads_of_ranks():
    assert [tuple(heads_of(6, 2, rank, 4)[:2]) for rank in range(4)] == [
        ((0, 1), (0, 1)),
        ((1, 3), (0, 1)),
        ((3, 4), (1, 2)),
        ((4, 6), (1, 2)),
    ]
    assert [tuple(heads_of(6, 3, rank, 2)[:2]) for rank in range(2)] == [((0, 2), (0, 1)), ((2, 6), (1, 3))]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 2, "data": 3}, "mesh: expected sizes whose product is 2"),
        ({"tensor": 2, "sequence": 1}, "sequence: expected True or False; got int"),
    ],
)
def test_wrong_meshes(sizes, message):
    with pytest.raises(RankError, match=message):
        on_threads(on_mesh, 2, "gpt2", sizes, {})


def test_what_cannot_be_divided():
    def scheme(group, model, config, sizes, shape):
        network = Network(group, model, config, **sizes)
        tokens = np.zeros(shape, dtype=int)
        network.forward(network.share(parameters_of(model, config)), tokens, tokens)

    small = gpt2.Config(11, 8, 8, 1, 8, 2)
    drops = gpt2.Config(11, 8, 8, 1, 8, 2, attention_dropout=0.1)
    cases = [
        (gpt2, GPT2, {"tensor": 5}, (1, 8), "tensor: expected at most 1 ranks for each of the 4 key heads"),
        (gpt2, small, {"tensor": 4}, (1, 8), "tensor: expected at most feed_forward = 2 ranks; got 4"),
        (gpt2, drops, {"tensor": 2}, (1, 8), "config: expected attention_dropout 0 on a mesh; got 0.1"),
        (gpt2, GPT2, {"context": 2}, (1, 6), "tokens: expected sequences of a multiple of 4 tokens"),
        (gpt2, GPT2, {"tensor": 2, "sequence": True}, (1, 7), "sequence: expected a multiple of 2 tokens"),
        (
            gpt2,
            GPT2,
            {"data": 2},
            (8,),
            r"tokens: expected tokens\[b, s\], which has exactly 2 axes; got shape \[8\]",
        ),
        (gpt2, GPT2, {"context": 2}, (1, 12), "tokens: expected at most 8 in a sequence, the number of pos"),
    ]
    for model, config, sizes, shape, message in cases:
        with pytest.raises(RankError, match=message):
            on_threads(scheme, ranks_of(sizes), model, config, sizes, shape)


def test_wrong_configurations_names_and_batches():
    llama_config = NETWORKS["llama"][1]
    with pytest.raises(
        RankError,
        match=r"config: expected a backpass\.models\.gpt2\.Config; got backpass\.models\.llama\.Config",
    ):
        on_threads(lambda group: Network(group, gpt2, llama_config), 1)

    def scheme(group, what):
        network = Network(group, gpt2, GPT2)
        parameters = parameters_of(gpt2, GPT2)
        tokens, targets = batch(GPT2)
        if what == "list":
            network.share([*parameters.values()])
        elif what == "prefix":
            network.share({f"transformer.{name}": x for name, x in parameters.items()})
        elif what == "shares":
            network.whole({"wte.weight": parameters["wte.weight"][1:]})
        elif what == "norms":
            network.norms({"wte": parameters["wte.weight"]})
        elif what == "floats":
            network.forward(parameters, tokens / 1, targets)
        elif what == "scale":
            network.gradients(parameters, tokens, targets, scale="1")
        elif what == "saved":
            network.backward(parameters)
        elif what == "group":
            Network(None, gpt2, GPT2)
        else:
            network.forward(parameters, tokens, targets[1:])

    for what, message in (
        ("list", "parameters: expected a mapping from names to arrays; got list"),
        ("prefix", "transformer.wte.weight: is not a parameter; did you mean 'wte.weight'"),
        ("shares", r"wte.weight: expected shape \[11, 8\]; got shape \[10, 8\]"),
        ("norms", "gradients: they do not fit:\n    wte: is not a parameter"),
        ("floats", "tokens: expected integers; got dtype float64"),
        ("targets", r"targets: .*\[2, 8\]"),
        ("scale", "scale: expected a real number; got str"),
        ("saved", "saved: expected"),
        ("group", "group: expected a Group, such as on_threads passes to a scheme; got NoneType"),
    ):
        with pytest.raises(RankError, match=message):
            on_threads(scheme, 1, what)


def test_tokens_and_targets_outside_the_vocabulary():
    """Every rank checks against the whole vocabulary, not against its own rows."""

    def scheme(group, at, number):
        network = Network(group, gpt2, GPT2, tensor=2)
        both = batch(GPT2)
        both[at][1, 3] = number
        network.loss(network.share(parameters_of(gpt2, GPT2)), *both)

    for at, number in ((0, 11), (0, -1), (1, 11), (1, -7)):
        expected = f"{'tokens' if at == 0 else 'targets'} from 0 to 10.*; got {number}"
        with pytest.raises(RankError, match=f"IndexError: t: expected {expected}"):
            on_threads(scheme, 2, at, number)


def test_batches_of_two_lengths():
    """RoPE's tables of all rows are gathered once for all layers, but again for another length."""
    model, config = NETWORKS["llama"]
    whole = parameters_of(model, config)
    tokens, targets = batch(config)
    pairs = [(tokens[:, :s], targets[:, :s]) for s in (8, 4, 8)]
    expected = [float(model.forward(whole, *pair, config=config)[0]) for pair in pairs]

    def losses(group):
        network = Network(group, model, config, tensor=2, sequence=True)
        share = network.share(whole)
        return [float(network.loss(share, *pair)) for pair in pairs]

    for found in on_threads(losses, 2):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_shares_are_copies():
    whole = parameters_of(gpt2, GPT2)
    before = {name: x.copy() for name, x in whole.items()}

    def scheme(group):
        for x in Network(group, gpt2, GPT2, data=2).share(whole).values():
            x += 1

    on_threads(scheme, 2)
    assert all(np.array_equal(x, before[name]) for name, x in whole.items())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_kernels_are_asked_for_what_no_scheme_replaces(name):
    class Asked:
        def __init__(self):
            self.names = set()

        def scheme_of(self, operation):
            self.names.add(operation.__name__.rpartition(".")[2])
            return operation

        def shapes(self, whole):
            return whole

    model, config = NETWORKS[name]
    alone = Asked()
    model.forward(parameters_of(model, config), *batch(config), config=config, kernels=alone)

    def asked(group):
        kernels = Asked()
        network = Network(group, model, config, tensor=2, kernels=kernels)
        network.loss(network.share(parameters_of(model, config)), *batch(config))
        return kernels.names

    replaced = {"embedding", "output_head", "linear_cross_entropy", "position_embedding", "dropout"}
    for found in on_threads(asked, 2):
        assert found | {"rope"} == alone.names - replaced | {"rope"}


def saved_in_a_layer(group, name, sizes):
    """The bytes that the first layer of a rank saves, apart from parameters and RoPE's tables."""
    model, config = NETWORKS[name]
    network = Network(group, model, config, **sizes)
    share = network.share(parameters_of(model, config))
    _, saved = network.forward(share, *batch(config))
    at = [part.split(".")[0] for part in model.part_names(config)].index("h" if model is gpt2 else "layers")
    layer = saved.own.parts[at]
    known = {*storages_in(tuple(share.values()))}
    if model is llama:
        known |= {*storages_in(layer.attended.own.own.q.rotated)}  # RoPE's tables, of all layers
    held = storages_in(layer)
    return sum(size for key, (size, _) in held.items() if key not in known)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_with_parts_of_the_sequence_all_that_a_layer_saves_is_divided(name, ranks, monkeypatch):
    even = {"gpt2": gpt2.Config(11, 8, 8, 1, 4, 12), "llama": llama.Config(13, 8, 1, 4, 4, 4, 12)}
    monkeypatch.setitem(NETWORKS, name, (NETWORKS[name][0], even[name]))
    (whole,) = on_threads(saved_in_a_layer, 1, name, {})
    sizes = {"tensor": ranks, "sequence": True}
    assert on_threads(saved_in_a_layer, ranks, name, sizes) == [whole / ranks] * ranks
    without = on_threads(saved_in_a_layer, ranks, name, {"tensor": ranks})
    assert all(whole / ranks < each < whole for each in without)
