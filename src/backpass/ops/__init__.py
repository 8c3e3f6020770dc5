r"""The operations. Each has a forward, a hand-derived backward, a record of what is
saved between them, and the FLOPs of both.

Every module of this folder keeps one contract:

- ``SHAPES`` declares the inputs and the output, for example
  ``"x[*, n], w[n, p], b[p]? -> y[*, p]"``;
- ``forward(*arrays, **options)`` returns ``(y, saved)``, where ``saved`` is the
  module's ``Saved``;
- ``backward(dy, saved)`` returns one gradient for each differentiable input, in
  ``forward``'s order;
- every operation with more than one differentiable input accepts ``wanted``, a
  collection of their names, as the last argument of ``forward``, ``backward`` and
  ``backward_flops``, and of ``forward_flops`` if the forward computes gradients;
  ``None`` means all. An unwanted gradient is ``None`` and is not computed, and an array
  that only it needs is not saved: a table ``NEEDS`` beside ``Saved`` says which
  gradients need an array, unless that depends on the call. ``backward`` can compute
  only gradients that were wanted in ``forward``: all of them, or some;
- ``forward_flops`` and ``backward_flops`` are plain arithmetic on the dimension letters
  of ``SHAPES``. A count that depends on the data is a further argument;
  ``data_lengths(*arrays)`` returns it.

The module also holds every other fact about the operation; no list elsewhere names it.
Its docstring gives the formulas and the page that derives them. Constants below SHAPES
refine the declaration:

- ``PARAMETERS``: the inputs that are parameters of a network; saved bytes leave them
  out;
- ``CONSTANTS``: the floating-point inputs that have no gradient, beside those that
  SHAPES marks as tables;
- ``WIDE``: the inputs that may be float32 where the first input has half precision.
  The output has the first input's dtype, and each gradient that of its input;
- ``POSITIVE``: the inputs that must be positive;
- ``UNREDUCED``: the options with which an output that is declared ``y[]`` is ``y[*]``,
  one number for each row, ``{"reduction": "none"}``;
- ``ZERO_GRADIENTS``: the inputs whose gradient is 0 whatever the values of the inputs.

The facts that checks, pages and ``backpass.functional`` read are at the end of the
module. ``AUTOCAST`` is in every module, the others where they apply:

- ``EXAMPLES``: the options to check it with, ``({"cap": 1.5}, {"cap": 0.25})``. The
  first example is the default; it has every option that ``forward`` requires. Each
  further example is one more case and changes some options of the first. An example may
  also give a letter of SHAPES, with the length to draw, or an optional input, with
  ``None`` to leave it out;
- ``CONVENTIONS``: the options with which the gradient of an input is not the derivative
  of the forward, each with these inputs and the reason,
  ``{"padding_idx": {"w": "the row padding_idx is not trained"}}``. PyTorch's operator
  alone judges such a gradient;
- ``FLOAT32_DEFAULTS``: the values of defaults in float32, if they depend on the dtype;
- ``MULTIPLES``: the lengths that must be multiples of a number, ``{"d": 6}``;
- ``LEFT_OUT``: the optional inputs that cannot be left out alone, each with the inputs
  to leave out with it and the options that change;
- ``FAN_IN``: the weights to draw as a network initialises them, divided by the root of
  their number of rows;
- ``ZERO_PRODUCTS``: the options of one more case, in which some products of a query and
  a key are exactly 0;
- ``LETTERS``: the letters in the docstring's formulas that SHAPES does not declare. A
  key is the name of an option, of an array whose letter differs from its name, or of
  something that ``forward`` draws and saves. ``{"eps": r"\epsilon"}`` is a real number;
  ``r"c \in \mathbb{R}_{>0}"`` states its space;
- ``FORMULA_OPTIONS``: the options for which the formulas hold, if they differ from the
  defaults;
- ``FORMULA_SIZES``: the lengths at which the formulas are checked, if the usual ones
  would take long;
- ``PLACES``: the stations of the network map at which the operation appears, by their
  labels in ``backpass.book.network_map.STATIONS``;
- ``AUTOCAST``: the dtype in which autocast runs the operation. ``"matmul"`` is
  autocast's own dtype, for an operation that multiplies matrices. ``"float32"`` is for
  an operation that sums or exponentiates many numbers, as in PyTorch's lists for CUDA.
  ``"widest"``, for all others, is the widest dtype of the inputs.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

from backpass.contract.stems import modules_in, no_such

STEMS = modules_in("ops")


def load(stem: str) -> ModuleType:
    """Return the operation's module. Raises LookupError, which names the nearest stem,
    if there is no such operation."""
    if stem not in STEMS:
        raise LookupError(no_such("operation", stem, STEMS))
    return import_module(f"{__name__}.{stem}")


def page(stem: str) -> str:
    """Return the page that derives the operation, such as ``operations/softmax``: the
    first page that the module's docstring names.

    Raises LookupError if it names none.
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
