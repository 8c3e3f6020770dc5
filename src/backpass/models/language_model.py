"""A language model, from the tokens to the loss and back: a table of tokens, a stack of
layers, and an output head, which may share the table.

A family, such as ``gpt2`` or ``llama``, says only what is its own: its configuration,
the parts of its stack, and what its layers receive and list besides. ``Family`` names
these. The interface is that of ``backpass.models``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.contract.shapes import check_inputs, check_saved
from backpass.contract.values import check_distinct, check_loss_scale
from backpass.contract.wanted import Wanted
from backpass.models import stacks
from backpass.models._parameters import (
    HEAD,
    Shapes,
    check_config,
    check_unused,
    chosen_own,
    read,
)
from backpass.models.layers import output_head
from backpass.models.layers.calls import Call, Part, call
from backpass.models.layers.kernel import scheme_for, shapes_for, unwrapped
from backpass.models.layers.recomputed import Recompute
from backpass.models.stacks import Piece, Stack
from backpass.ops import embedding

SHAPES = "tokens[*, s>0]:int, targets[*, s]:int, table[V>0, h] -> loss[]"


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """What is a family's own.

    Its configuration has ``vocabulary``, ``width``, ``layers``, ``eps``, and ``tied``,
    and ``positions`` if the length of a sequence is limited.
    """

    config: type
    prefix: str  # of the names in Hugging Face's models with a head
    table: str  # the name of the tokens' table
    stack: Callable[..., Stack]  # of a configuration, and options of the family's own
    # What all layers receive, by the configuration, the embedded rows, and kernels.
    shared: Callable[[Any, Array, Any], Mapping[str, Any]] = _nothing

    def parameter_shapes(self, config: Any) -> Shapes:
        """Return the shape of each parameter, by its name without the prefix."""
        c = stacks.complete(config, self.config)
        return self.shapes_in(c, self.stack(c))

    def shapes_in(self, c: Any, stack: Stack) -> Shapes:
        """Return the same where the stack is known."""
        table = (c.vocabulary, c.width)
        shapes = {self.table: table, **stack.shapes}
        return shapes if c.tied else {**shapes, HEAD: table}

    def layer_names(self, config: Any) -> list[dict[str, str]]:
        """Return the name of each parameter of each layer, by the layer's argument."""
        return [layer.names for layer in self.stack(config).layers]

    def part_names(self, config: Any) -> list[str]:
        """Return the name of each part, in the order of the forward and of
        ``Saved.parts``. It is the name of Hugging Face's module, with which the names
        of the part's parameters begin."""
        pieces = self.pieces(config, self.stack(config))
        return [self.table.removesuffix(".weight"), *(piece.name for piece in pieces)]

    def head(self, c: Any) -> str:
        """Return the name of the output head's weight, which may be the table's."""
        return self.table if c.tied else HEAD

    def pieces(self, c: Any, stack: Stack) -> list[Piece]:
        """Return the parts after the embedding: the stack, and the output head."""
        head = Piece("lm_head", output_head, {"w": self.head(c)}, {}, {})
        return [*stack.pieces, head]

    def bound(self, function: Callable[..., Any]) -> Any:
        """Return a function of this module, such as ``forward``, for this family."""

        def of_family(*arguments: Any, **options: Any) -> Any:
            return function(self, *arguments, **options)

        found: Any = wraps(function)(of_family)
        _, *parameters = inspect.signature(function).parameters.values()
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        found.__signature__ = inspect.Signature(named)
        found.__module__ = self.config.__module__
        return found


class Saved(NamedTuple):
    """What each part saved, in the order of the forward. ``backward`` empties the
    list."""

    parts: list[Any]
    loss: Array
    config: Any
    given: dict[str, str]  # the names that the parameters were given under
    wanted: frozenset[str]


def forward(
    family: Family,
    parameters: Mapping[str, Array],
    tokens: Array,
    targets: Array,
    *,
    config: Any,
    flash: bool = True,
    chunked: bool = True,
    kernels: Any = None,
    recompute: Recompute = None,
    wanted: Wanted = None,
    **own: Any,
) -> tuple[Array, Saved]:
    """Return the mean cross-entropy ``loss[]`` of the targets ``[*, s]``, aligned
    with the tokens ``[*, s]``; −100 is ignored. In half precision it is float32.

    ``flash`` and ``chunked`` are options of the family's attention and ``output_head``.
    ``kernels`` is ``backpass.kernels``, to run its kernels where there are any, or the
    ranks of ``backpass.parallel``. ``recompute`` chooses what the backward runs again
    instead of saving it: an integer k, for k layers at a time, or names among
    "attention", "feed_forward", and "norms". ``wanted`` names the parameters to train.
    The family's stack may have options of its ``own``.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them, for shapes that do not fit, and for more tokens than positions; TypeError if
    ``parameters`` is not a mapping, ``tokens`` or ``targets`` is not an integer array,
    or libraries or devices differ; IndexError for a token or a target outside the
    vocabulary.
    """
    check_config(config, family.config)
    c, table = config, family.table
    stack = family.stack(c, flash=flash, **own)
    shapes = shapes_for(kernels, family.shapes_in(c, stack))
    tied_to = table if c.tied else None
    w, given, wanted = read(
        parameters, shapes, wanted, prefix=family.prefix, tied_to=tied_to
    )
    check_inputs(SHAPES, tokens=tokens, targets=targets, table=w[table])
    check_length(c, tokens.shape[-1])
    pieces = family.pieces(c, stack)
    *of_parts, of_head = stacks.wanted_in(pieces, wanted, x=table in wanted)

    x, embedded = scheme_for(embedding, kernels).forward(tokens, w[table])
    shared = {"recompute": recompute, **family.shared(c, x, kernels)}
    x, parts = stacks.forward(stack, x, w, of_parts, kernels=kernels, **shared)
    head, weight = scheme_for(output_head, kernels), w[family.head(c)]
    options = {"chunked": chunked, "wide": True, "kernels": kernels, "wanted": of_head}
    loss, headed = head.forward(x, weight, targets, **options)
    return loss, Saved([embedded, *parts, headed], loss, c, given, wanted)


def backward(family: Family, saved: Saved, *, scale: float = 1) -> dict[str, Array]:
    """Return the gradient of the loss with respect to each parameter that was wanted,
    by the name under which it was given. Frees what forward saved.

    ``scale`` multiplies the loss, and so every gradient: ``backpass.training.scaling``
    says when float16 needs it.

    Raises TypeError unless ``saved`` is what forward returned second and ``scale`` a
    real number; ValueError if backward has already run, or for a ``scale`` that is not
    above 0 and finite.
    """
    parts, loss, c, given, wanted = check_saved(saved, Saved)
    _check_family(c, family)
    check_loss_scale(scale)
    pieces = family.stack(c).pieces
    check_unused(parts, len(pieces) + 2)
    d: dict[str, Any] = {}

    dloss = namespace(loss).full_like(loss, scale)
    head, saved_head = unwrapped(output_head, parts.pop())
    dx, dhead = head.backward_once(dloss, saved_head)
    del saved_head
    for piece in reversed(pieces):
        dx = stacks.backward(piece, dx, parts.pop(), d)
    table, tokens = unwrapped(embedding, parts.pop())

    # In the forward pass a tied table was read twice, by the tokens and by the output
    # head; so now both gradients are added.
    if c.tied and family.table in wanted:
        d[family.table] = table.backward_onto(dhead, dx, tokens)
    elif family.table in wanted:
        d[family.table] = table.backward(dx, tokens)
    if not c.tied:
        d[HEAD] = dhead
    return {name: d[own] for own, name in given.items() if own in wanted}


def calls(
    family: Family,
    config: Any,
    batch: Any,
    sequence: Any,
    *,
    flash: bool = True,
    chunked: bool = True,
    distinct: Any = 0,
    wanted: Wanted = None,
    before: Callable[..., tuple[Call, ...]] = lambda *of_parts: (),
    **own: Any,
) -> list[Part]:
    """Return the operations that ``forward`` and ``backward`` call, with the lengths in
    them, for ``batch`` sequences of ``sequence`` tokens.

    ``distinct`` is the number of distinct tokens: the first gradient of a row of the
    table is not added to anything, unless the table is the head too. 0 counts an
    addition for each token. If all gradients are wanted, sizes may be symbols. The
    other options are those of ``forward``. ``before`` lists the calls of the parts
    before the layers from the wanted gradients of each. Raises TypeError or ValueError
    for a ``distinct`` that is not possible.
    """
    c, repeats = stacks.counted(config, family.config)
    table, m = family.table, batch * sequence
    stack, names = family.stack(c, flash=flash, **own), None
    if wanted is not None:
        tied_to = table if c.tied else None
        names = chosen_own(wanted, family.shapes_in(c, stack), tied_to)
    trained = names is None or table in names
    pieces = family.pieces(c, stack)
    *of_parts, of_head = stacks.wanted_in(pieces, names, x=trained)
    entering = before(*of_parts[: len(stack.before)])
    headed = output_head.calls(m, c.width, c.vocabulary, chunked, of_head)
    return [
        Part("embedding", 1, (_token_embedding(c, m, distinct, trained), *entering)),
        *stacks.calls(stack, of_parts, m, repeats, m=batch, s=sequence),
        Part("output head", 1, headed),
    ]


def _token_embedding(c: Any, tokens: Any, distinct: Any, trained: bool) -> Call:
    """Return the call of the tokens' embedding; ``trained`` says whether the table's
    gradient is wanted. Raises TypeError or ValueError for a ``distinct`` that is not
    possible."""
    V, tied = c.vocabulary, c.tied
    check_distinct(distinct, tokens, V)
    lengths = {"m": tokens, "h": c.width, "V": V, "tied": tied}
    # A tied table's gradient starts from the output head's, so every token adds to it.
    lengths["distinct"] = 0 if tied else distinct
    return call("token embedding", embedding, ("w",) if trained else (), **lengths)


def check_length(c: Any, s: int) -> None:
    """Raise ValueError for a sequence of more tokens than there are positions."""
    longest = getattr(c, "positions", s)
    if s > longest:
        raise ValueError(
            f"tokens: expected at most {longest} in a sequence, the number of "
            f"positions; got {s}"
        )


def _check_family(c: Any, family: Family) -> None:
    """Raise TypeError if the configuration is that of a different family."""
    if not isinstance(c, family.config):
        raise TypeError(
            "saved: expected what forward returned second; got that of "
            f"{type(c).__module__}"
        )
