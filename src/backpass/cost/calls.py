"""The calls of a network, at given sizes or in SymPy symbols."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from numbers import Integral
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from backpass.contract.arrays import size
from backpass.contract.stems import no_such
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted
from backpass.cost.letters import LAYERS, check_length, lengths_of
from backpass.cost.sizes import LETTERS, flags_of, model_named, network_of
from backpass.models._parameters import chosen_own
from backpass.models.layers.calls import Part


class Calls(NamedTuple):
    """What a network calls at given sizes."""

    name: str  # of the network, with the sizes
    parts: list[Part]
    parameters: Any  # their number, a tied one once; None in symbols
    trained: Any  # the number whose gradient is wanted; None in symbols


def calls_of(
    config: Any,
    batch: int,
    sequence: int,
    *,
    flash: bool = False,
    chunked: bool = False,
    wanted: Wanted = None,
    **options: Any,
) -> Calls:
    """Return the calls of a network. The arguments and the errors are those of
    ``cost.tally``."""
    network = network_of(config)
    model, config = network
    _check_options(options, model, _options_of(model))
    check_bool(flash=flash, chunked=chunked)
    check_length("sequence", sequence)  # a pair is not one
    if options.get("source") is not None:
        check_length("source", options["source"])
    lengths_of(network, batch, sequence)
    options |= {"flash": flash, "wanted": wanted, **_of_head(model, chunked)}
    parts = model.calls(config, batch, sequence, **options)
    shapes = network.shapes
    tied_to = model.TABLE if getattr(config, "tied", False) else None
    trained = chosen_own(wanted, shapes, tied_to)
    return Calls(
        f"{network.family}, batch {batch}, sequence {sequence}",
        parts,
        network.parameters,
        sum(size(shapes[name]) for name in trained),
    )


def symbolic_calls(family: str, **options: Any) -> Calls:
    """Return the calls of a family of models in SymPy symbols, with plain attention,
    no dropout, and the whole head unless ``chunked``. ``options`` are those of the
    model's ``calls``, and fields of the configuration; ``wanted`` requires numbers of
    layers among them. Raises LookupError for an unknown family, TypeError or ValueError
    for options that symbols do not have."""
    import sympy

    model = model_named(family)
    config = SimpleNamespace(eps=1e-5, **flags_of(family))
    fields = model.Config.__dataclass_fields__
    for name, letter in LETTERS.items():
        if name in fields:
            setattr(config, name, sympy.Symbol(letter, positive=True, integer=True))
    for name in [name for name in options if name in fields]:
        setattr(config, name, options.pop(name))
    for name, why in _NUMBERS_ONLY.items():
        given = options.pop(name, False)
        check_bool(**{name: given})
        if given:
            raise ValueError(f"{name}: expected False in symbols, {why}; got True")
    chunked = options.pop("chunked", False)
    check_bool(chunked=chunked)
    known = [name for name in _options_of(model) if name not in _NUMBERS_ONLY]
    _check_options(options, model, [*known, *fields])
    if options.get("wanted") is not None:
        for name in (name for name in LAYERS if name in fields):
            if not isinstance(getattr(config, name), Integral):
                raise ValueError(
                    "wanted: expected None, for all gradients, where the number of "
                    f"layers is a symbol; give {name} a number"
                )
    if family == "seq2seq":
        layers = {"layers": config.encoder_layers, "final_norm": True}
        config.encoder_config = SimpleNamespace(**vars(config), **layers)
    b, s = sympy.symbols("b s", positive=True, integer=True)
    of_head = _of_head(model, chunked)
    parts = model.calls(config, b, s, flash=False, **of_head, **options)
    return Calls(f"{family}, in symbols", parts, None, None)


def _options_of(model: ModuleType) -> list[str]:
    """Return the names of the options of a model's ``calls``."""
    parameters = inspect.signature(model.calls).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _check_options(
    options: Collection[str], model: ModuleType, known: Collection[str]
) -> None:
    """Raise TypeError for an option that is not among those ``known`` of the model."""
    for name in options:
        if name not in known:
            family = model.__name__.rpartition(".")[2]
            raise TypeError(no_such(f"option of {family}", name, known))


def _of_head(model: Any, chunked: bool) -> dict[str, bool]:
    """Return the option for a model's output head. Raises ValueError for a chunked head
    of a model without one."""
    if hasattr(model, "FAMILY"):
        return {"chunked": chunked}
    if chunked:
        raise ValueError(
            "chunked: expected False for a stack of layers, which has no output head; "
            "got True"
        )
    return {}


_NUMBERS_ONLY = {
    "flash": "because FlashAttention's tiles depend on the numbers",
    "masks": "which have no dropout",
}
