r"""The operations: each a forward, its hand-derived backward, what is saved between
them, and what both cost.

Every module of this folder keeps one contract:

- ``SHAPES`` declares inputs and output, for example ``"x[*, n], w[n, p], b[p]? -> y[*,
  p]"``;
- ``forward(*arrays, **options)`` returns ``(y, saved)``, ``saved`` being the module's
  ``Saved``;
- ``backward(dy, saved)`` returns one gradient for each differentiable input, in
  ``forward``'s order;
- every operation with more than one differentiable input takes ``wanted``, a collection
  of their names, in ``forward``, in ``backward`` and in the FLOP formulas; ``None`` is
  all. An unwanted gradient is ``None`` and is not computed, and what only it needs is
  not saved. ``backward`` computes the gradients that ``forward`` was told to keep, or
  some of them;
- ``forward_flops`` and ``backward_flops`` are plain arithmetic on the dimension letters
  of ``SHAPES``; what they take besides, because it depends on the data,
  ``data_lengths(*arrays)`` finds.

The module also holds every other fact about the operation; no list elsewhere names it.
Its docstring gives the formulas and the page that derives them. Below SHAPES stands
what refines that declaration:

- ``PARAMETERS``: the inputs that are parameters of a network; saved bytes leave them
  out;
- ``CONSTANTS``: the floating-point inputs that have no gradient;
- ``POSITIVE``: the inputs that must be positive;
- ``ZERO_GRADIENTS``: the inputs whose gradient is 0 for every input.

At the end of the module stand the facts that checks, pages and ``backpass.functional``
read. ``AUTOCAST`` is in every module, the others where they apply:

- ``EXAMPLES``: the options to check it with, ``({"cap": 1.5}, {"cap": 0.25})``. The
  first example is the default; it has every option that ``forward`` requires. Each
  further one is one more case, and changes some options of the first. A letter of
  SHAPES among them is the length to draw;
- ``FLOAT32_DEFAULTS``: what the defaults of options are in float32, if they depend on
  the dtype;
- ``MULTIPLES``: the lengths that must be multiples of a number, ``{"d": 6}``;
- ``LEFT_OUT``: the optional inputs that cannot be left out alone, each with the inputs
  to leave out with it and the options that change;
- ``FAN_IN``: the weights to draw as a network starts with them, divided by the root of
  their length;
- ``ZERO_PRODUCTS``: the options of one more case, in which some products of a query and
  a key are exactly 0;
- ``LETTERS``: the letters in the docstring's formulas that SHAPES does not declare, by
  the name of an option, of an array whose letter is not its name, or of what
  ``forward`` draws and saves. ``{"eps": r"\epsilon"}`` is a real number; ``r"c \in
  \mathbb{R}_{>0}"`` states its space;
- ``FORMULA_OPTIONS``: the options for which the formulas hold, if these are not the
  defaults;
- ``FORMULA_SIZES``: the lengths at which the formulas are checked, if the usual ones
  would take long;
- ``PLACES``: the stations of the network map at which it stands, by their labels;
- ``AUTOCAST``: the dtype in which autocast runs the operation. ``"matmul"`` is
  autocast's own dtype, for an operation that multiplies matrices; ``"float32"`` is for
  one that adds or exponentiates many numbers, as in PyTorch's lists for CUDA;
  ``"widest"``, for all others, is the widest dtype of the inputs.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

from backpass.stems import modules_in, no_such

STEMS = modules_in("ops")


def load(stem: str) -> ModuleType:
    """The operation's module. Raises LookupError, naming the nearest stem, when there
    is none."""
    if stem not in STEMS:
        raise LookupError(no_such("operation", stem, STEMS))
    return import_module(f"{__name__}.{stem}")


def page(stem: str) -> str:
    """The page that derives the operation, ``operations/softmax``: the first that the
    module's docstring names.

    Raises LookupError when it names none.
    """
    found = re.search(r"on the page\s+``([\w/]+)``", load(stem).__doc__ or "")
    if found is None:
        raise LookupError(
            f"{stem}: src/backpass/ops/{stem}.py names no page; write 'Derived on the page ``…``.' in its docstring"
        )
    return found[1]


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return load(name)
    except LookupError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *STEMS])
