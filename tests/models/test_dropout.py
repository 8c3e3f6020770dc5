"""Dropout of GPT-2: where Hugging Face has it, with masks that the seed, the step, the layer and the place determine."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backpass.contract.arrays import is_array
from backpass.models import gpt2
from backpass.models.layers import seed_of
from backpass.ops import dropout as dropout_of_ours

from .hugging_face import gpt2_case, loss_and_gradients
from .small import drawn

RATES = {"embedding_dropout": 0.2, "attention_dropout": 0.3, "residual_dropout": 0.4}
MASKS = (5, 17)  # the seed and the step


def with_our_masks(monkeypatch, masks, layers):
    """Give PyTorch's dropout our masks, one for each call, in the order in which Hugging Face calls it.

    Embedding: (…, 0). Layer i: (…, 1 + i), then its weights 0, its attention 1 and its feed-forward block 2.
    """
    of_layers = [seed_of(*masks, 1 + i) for i in range(layers)]
    seeds = iter([seed_of(*masks, 0), *(seed_of(layer, place) for layer in of_layers for place in range(3))])

    def dropout(x, p, training, inplace=False):
        assert training and p in RATES.values()
        kept = dropout_of_ours.drawn(tuple(x.shape), p, next(seeds))
        return x * torch.asarray(kept) / (1 - p)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    return seeds


def test_the_loss_and_the_gradients_are_hugging_faces_with_the_same_masks(monkeypatch):
    rates = {key: RATES[name] for key, name in gpt2.RATES.items()}
    case = gpt2_case("gpt2", 7, ignored=3, n_layer=3, attn_implementation="eager", **rates)
    model = case.model().train()
    seeds = with_our_masks(monkeypatch, MASKS, layers=3)
    tokens, targets = case.batch()
    loss, gradients = loss_and_gradients(model, tokens, targets)
    assert not list(seeds)

    config = case.ours()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    ours, saved = gpt2.forward(parameters, tokens, targets, config=config, flash=False, masks=MASKS)
    assert float(ours) == pytest.approx(float(loss), rel=1e-14, abs=0)
    found = gpt2.backward(saved)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (found[name] - gradient).abs().max() <= 1e-12 * gradient.abs().max(), name


def small(**rates):
    module, config, parameters, batch = drawn("gpt2")
    config = replace(config, **rates)

    def loss(masks, changes=None, **options):
        options = {"config": config, "flash": False, "masks": masks} | options
        return module.forward(parameters | (changes or {}), *batch, **options)

    return parameters, loss


def test_a_seed_and_a_step_give_the_same_masks_again_and_others_give_others():
    _, loss = small(**RATES)
    once, again, next_step, next_seed, micro_batch = (
        float(loss(masks)[0]) for masks in ((5, 17), (5, 17), (5, 18), (6, 17), (5, 17, 1))
    )
    assert once == again
    assert len({once, next_step, next_seed, micro_batch}) == 4


def test_every_place_of_every_layer_has_a_mask_of_its_own():
    _, loss = small(**RATES)
    _, _, of_rows, *layers = loss(MASKS)[1].parts[:5]
    masks = [of_rows.mask]
    for layer in layers:
        masks += [layer.attended.attended.dropped.mask, layer.dropped_1.mask, layer.dropped_2.mask]
    assert len(masks) == 7
    rows = [mask.ravel()[:30].tolist() for mask in masks]
    assert len({tuple(row) for row in rows}) == 7
    shares = [mask.mean() for mask in masks]
    assert all(0.3 < share < 0.95 for share in shares)


def test_nothing_is_dropped_in_evaluation_or_at_a_rate_of_0():
    _, with_rates = small(**RATES)
    _, without = small()
    expected = float(without(None)[0])
    assert expected == float(with_rates(None)[0]) == float(without(MASKS)[0])


def test_flash_attention_drops_the_same_weights():
    _, loss = small(**RATES)
    (plain, saved), (by_tiles, its_saved) = (loss(MASKS, flash=flash) for flash in (False, True))
    assert float(by_tiles) == pytest.approx(float(plain), rel=1e-14, abs=0)
    expected = gpt2.backward(saved)
    for name, gradient in gpt2.backward(its_saved).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("rate", RATES)
def test_complex_step_through_each_kind_of_dropout(rate):
    parameters, loss = small(**{rate: 0.4})
    assert float(loss(MASKS)[0]) != float(loss(None)[0])
    gradients = gpt2.backward(loss(MASKS)[1])
    rng = np.random.default_rng(2)
    as_complex = {name: array.astype(complex) for name, array in parameters.items()}
    for name, array in parameters.items():
        u = rng.standard_normal(array.shape)
        moved, _ = loss(MASKS, as_complex | {name: array + 1e-30j * u}, wanted=())
        size = np.linalg.norm(gradients[name]) * np.linalg.norm(u)
        assert moved.imag / 1e-30 == pytest.approx(np.sum(gradients[name] * u), abs=1e-12 * size), name


def test_what_does_not_fit_is_rejected_by_name():
    _, loss = small(**RATES)
    with pytest.raises(TypeError, match=r"masks: expected integers such as \(seed, step\), or None .* got 3"):
        loss(3)
    with pytest.raises(TypeError, match=r"masks\[1\]: expected an integer; got float"):
        loss((1, 0.5))
    with pytest.raises(ValueError, match=r"masks\[0\]: expected an integer of at least 0; got -1"):
        loss((-1, 0))


def test_a_seed_tells_lists_apart():
    lists = [
        (),
        (1,),
        (1, 0),
        (0, 1),
        (1, 0, 0),
        (2**32,),
        (3 * 2**32, 7, 1),
        (0, 3 + 7 * 2**32, 1),
        (12,),
        (1, 2),
    ]
    assert len({seed_of(*numbers) for numbers in lists}) == len(lists)
    assert seed_of(np.int64(3), 4) == seed_of(3, 4)


def test_no_mask_is_saved():
    _, loss = small(**RATES)
    _, _, of_rows, *layers = loss(MASKS)[1].parts[:5]
    for layer in layers:
        for saved in (of_rows, layer.attended.attended.dropped, layer.dropped_1, layer.dropped_2):
            assert saved.mask is not None and not any(map(is_array, saved))
