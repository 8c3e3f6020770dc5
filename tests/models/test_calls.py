"""The operations that a network says it calls have the FLOPs that are counted when it runs, for all gradients and for
random choices of them; and the FLOPs of symbols are those of numbers."""

import numpy as np
import pytest
import sympy

from backpass.interpreters import counting
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.models.layers import blocks, encoder_layer
from backpass.models.layers.calls import quotient

from .small import NETWORKS, batch_of, parameters_of

WHOLE = {"flash": False, "chunked": False}
STACKS = {
    "encoder": (encoder, encoder.Config(6, 2, 3, 5)),
    "encoder, norms first": (encoder, encoder.Config(6, 3, 2, 5, norm_first=True, final_norm=True)),
    "seq2seq": (seq2seq, seq2seq.Config(6, 2, 3, 3, 5)),
    "seq2seq, norms first": (seq2seq, seq2seq.Config(6, 1, 2, 2, 5, norm_first=True)),
}


def flops(parts):
    return tuple(
        sum(part.repeats * sum(getattr(call, way)() for call in part.calls) for part in parts)
        for way in ("forward_flops", "backward_flops")
    )


def counted(module, config, inputs, cotangent=None, **options):
    parameters = {name: counting.array(w) for name, w in parameters_of(module, config).items()}
    with counting.tally() as forward:
        _, saved = module.forward(parameters, *map(counting.array, inputs), config=config, **options)
    given = () if cotangent is None else (counting.array(cotangent),)
    with counting.tally() as backward:
        module.backward(*given, saved)
    return forward.total, backward.total


def choices(names, seed):
    rng = np.random.default_rng(seed)
    few = [rng.choice(names, size, replace=False).tolist() for size in (1, 3, len(names) - 1)]
    return [None, [names[0]], [names[-1]], *few]


@pytest.mark.parametrize("options", [{}, WHOLE], ids=["flash", "whole"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_calls_of_a_model_are_what_is_counted(name, options):
    module, config = NETWORKS[name]
    tokens, targets = batch_of(config)
    (b, s), distinct = tokens.shape, len(np.unique(tokens))
    for wanted in choices(list(module.parameter_shapes(config)), seed=len(name)):
        expected = counted(module, config, (tokens, targets), **options, wanted=wanted)
        calls = module.calls(config, b, s, **options, distinct=distinct, wanted=wanted)
        assert flops(calls) == expected, wanted


@pytest.mark.parametrize("flash", [False, True])
def test_dropout_is_counted(flash):
    rates = {"embedding_dropout": 0.2, "attention_dropout": 0.3, "residual_dropout": 0.4}
    config = gpt2.Config(7, 6, 6, 2, 3, 5, **rates)
    tokens, targets = batch_of(config)
    expected = counted(gpt2, config, (tokens, targets), flash=flash, masks=(3, 1))
    parts = gpt2.calls(config, *tokens.shape, flash=flash, distinct=len(np.unique(tokens)), masks=True)
    assert flops(parts) == expected
    assert expected[0] > flops(gpt2.calls(config, *tokens.shape, flash=flash))[0]
    with pytest.raises(TypeError, match="masks: expected True or False; got tuple"):
        gpt2.calls(config, 2, 5, flash=flash, masks=(3, 1))


@pytest.mark.parametrize("name", STACKS)
def test_the_calls_of_a_stack_are_what_is_counted(name):
    module, config = STACKS[name]
    rng = np.random.default_rng(7)
    b, s, t, h = 2, 5, 3, config.width
    rows = [rng.standard_normal((b, t, h))] * (module is seq2seq)
    rows.append(rng.standard_normal((b, s, h)))
    source = {"source": t} if module is seq2seq else {}
    for wanted in choices(list(module.parameter_shapes(config)), seed=len(name)):
        for flash in (True, False):
            expected = counted(
                module, config, rows, rng.standard_normal((b, s, h)), flash=flash, wanted=wanted
            )
            calls = module.calls(config, b, s, **source, flash=flash, wanted=wanted)
            assert flops(calls) == expected, (wanted, flash)


def test_no_block_of_a_layer_is_left_out():
    of_part = (("x", "w", "b"), ("x",))
    four = [encoder_layer.BLOCKS[0]] * 4
    calls = blocks.calls(four, [of_part] * 4, [()] * 4, 3, 5)
    places = ["first", "second", "third", "4th"]
    assert [call.name for call in calls if call.name.endswith(" norm")] == [
        f"{place} norm" for place in places
    ]
    with pytest.raises(ValueError, match="shorter"):
        blocks.calls(four, [of_part] * 4, [()] * 3, 3, 5)


def test_a_quotient_of_numbers_is_a_number_and_of_symbols_exact():
    h, n = sympy.symbols("h n", positive=True, integer=True)
    assert quotient(12, 3) == 4 and isinstance(quotient(12, 3), int)
    assert quotient(h, n) * n == h


@pytest.mark.parametrize(
    "module, config", [(gpt2, gpt2.Config(8, 6, 6, 2, 3, 5)), (llama, llama.Config(8, 6, 2, 4, 2, 4, 5))]
)
@pytest.mark.parametrize(
    "distinct, fault",
    [
        (9, "distinct: expected at most 8, the size of the vocabulary; got 9"),
        (-5, "distinct: expected an integer of at least 0; got -5"),
        (2.5, "distinct: expected an integer; got float"),
    ],
)
def test_no_more_tokens_are_distinct_than_there_are(module, config, distinct, fault):
    with pytest.raises((TypeError, ValueError), match=fault):
        module.calls(config, 3, 5, distinct=distinct)
    with pytest.raises(ValueError, match="distinct: expected at most 6, the number of tokens; got 7"):
        module.calls(config, 2, 3, distinct=7)
    for possible in (0, 6, np.int64(5), sympy.Symbol("u")):
        module.calls(config, 2, 3, distinct=possible)
    module.calls(config, *sympy.symbols("b s"), flash=False, distinct=8)


def test_unknown_names_are_rejected_as_by_forward():
    config = llama.Config(8, 6, 2, 4, 2, 4, 5)
    with pytest.raises(ValueError, match="wanted: expected names of parameters; got 'nrm"):
        llama.calls(config, 1, 4, wanted=["nrm.weight"])
