"""Show every backward on one card: formulas, saved arrays, FLOPs and bytes.

The formulas come from the docstrings and can be checked against ``forward`` and
``backward``. The saved arrays are those that a forward saves when it runs. The FLOP
formulas come from the modules.
"""

from __future__ import annotations

import html
import itertools
import math
from dataclasses import dataclass

import numpy as np

from backpass import cost, ops
from backpass.book.network_map import STATIONS, page_of
from backpass.contract.shapes import parse
from backpass.contract.spec import is_product, letters_of
from backpass.cost.formulas import Flops, dimensions
from backpass.cost.shorter import shorter, to_latex
from backpass.derivation.book.docstring import formulas
from backpass.verify.drawing import draw, options_for

# The lengths of the leading axis and of the letters in the forward that is run.
LEADING = 2
PRIMES = (3, 5, 7, 11, 13, 17, 19)
FLOAT32 = 4
BYTES = r"\;\text{bytes}"
_HEADINGS = ("operation", "computes", "saves, and FLOPs")
# The stations of the map, in the order of the network, and what follows them.
_LABELS = [*dict.fromkeys(station.label for station in STATIONS), "between ranks"]
# The operations of the sheet: those of a language model of today.
SHEET = (
    *("embedding", "rms_norm", "layer_norm", "linear", "rope", "matmul"),
    *("softmax", "attention", "residual", "silu", "swiglu", "cross_entropy"),
)


@dataclass(frozen=True)
class Entry:
    """The lines of one operation on the card, with mathematics in LaTeX."""

    stem: str
    formulas: tuple[str, ...]
    saved: tuple[str, ...]
    bytes: str
    flops: Flops


@dataclass(frozen=True)
class Card:
    """The entries, shown as a table in a notebook and as text in a terminal.

    ``root`` is the path to the site's root.
    """

    entries: tuple[Entry, ...]
    root: str

    def __repr__(self) -> str:
        return "\n".join(
            f"{e.stem}\n  {'   '.join(e.formulas)}\n"
            f"  saves {', '.join(e.saved) or 'nothing'} ({e.bytes} bytes)"
            f"   FLOPs {e.flops.forward} forward, {e.flops.backward} backward"
            for e in self.entries
        )

    def _repr_html_(self) -> str:
        headings = "".join(f'<th scope="col">{name}</th>' for name in _HEADINGS)
        body = "".join(self._row(entry) for entry in self.entries)
        return (
            f'{self._index()}<table class="backpass-card"'
            ' aria-label="Every backward on one card">'
            f"<thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _index(self) -> str:
        """Return links to the rows, by their place on the map."""
        groups = itertools.groupby(self.entries, key=lambda entry: _place(entry.stem))
        linked = " · ".join(
            f"{_LABELS[at]}: "
            + ", ".join(f'<a href="#card-{e.stem}">{e.stem}</a>' for e in entries)
            for at, entries in groups
        )
        return f'<p class="backpass-card-index">{linked}</p>'

    def _row(self, entry: Entry) -> str:
        """Return the operation's name, and what it computes, saves and costs. Each
        formula scrolls by itself."""
        page, stem = page_of(entry.stem), entry.stem
        heading = f'<a href="{self.root}/{page}"><code>{stem}</code></a>'
        arrays = [f"<code>{html.escape(array)}</code>" for array in entry.saved]
        saved = ", ".join(arrays) or "nothing"
        flops = "".join(
            f'<span class="pass">FLOPs, {name}</span>{_mathematics(formula)}'
            for name, formula in zip(Flops._fields, entry.flops, strict=True)
        )
        cells = (
            "".join(map(_mathematics, entry.formulas)),
            f"{saved}{_mathematics(entry.bytes + BYTES)}{flops}",
        )
        shown = "".join(
            f'<td data-heading="{of}">{cell}</td>'
            for of, cell in zip(_HEADINGS[1:], cells, strict=True)
        )
        return f'<tr id="card-{stem}"><th scope="row">{heading}</th>{shown}</tr>'


@dataclass(frozen=True)
class Sheet:
    """The formulas of a few operations, for one sheet of paper."""

    entries: tuple[Entry, ...]

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row"><code>{entry.stem}</code></th>'
            f"<td>{''.join(map(_mathematics, entry.formulas))}</td></tr>"
            for entry in self.entries
        )
        return (
            '<table class="backpass-sheet" aria-label="Backwards on one sheet">'
            f"<tbody>{rows}</tbody></table>"
        )


def _place(stem: str) -> int:
    """Return the first station of the map at which an operation appears, as an index
    of ``_LABELS``. Collectives appear at none, and come last."""
    places = getattr(ops.load(stem), "PLACES", ())
    return min(map(_LABELS.index, places), default=len(_LABELS) - 1)


def card(*stems: str, root: str = ".", evaluate: bool = True) -> Card:
    """Return the card of the named operations, or of all in the order of the map.

    ``root`` is the path to the site's root. Without ``evaluate`` the formulas are only
    parsed; the tests evaluate them. Raises DerivationError if a formula is not what
    the code computes, and LookupError for an unknown operation.
    """
    stems = stems or tuple(sorted(ops.STEMS, key=_place))
    return Card(tuple(_entry(stem, evaluate) for stem in stems), root)


def sheet(of: Card) -> Sheet:
    """Return the sheet of the operations in ``SHEET``, with the card's formulas."""
    entries = {entry.stem: entry for entry in of.entries}
    return Sheet(tuple(entries[stem] for stem in SHEET))


def _entry(stem: str, evaluate: bool) -> Entry:
    module = ops.load(stem)
    lines = [line for line in formulas(stem, evaluate=evaluate).lines if line.numbered]
    leading = dict.fromkeys(("*", "*a", "*b"), (LEADING,))
    lengths = dict(zip(parse(module.SHAPES).letters, PRIMES, strict=False))
    inputs = draw(module, np.random.default_rng(0), leading=leading, lengths=lengths)
    options = options_for(module)
    memory = cost.memory(module, *inputs, **options)
    kept = [array for array in memory.arrays if not array.is_parameter]
    axes = {array.name: _axes(module, inputs, array) for array in kept}
    words = {
        name: option for name, option in options.items() if isinstance(option, str)
    }
    flops = cost.symbolic_formula(module, **words)
    return Entry(
        stem=stem,
        formulas=tuple(line.latex for line in lines),
        saved=tuple(f"{name}[{', '.join(names)}]" for name, names in axes.items()),
        bytes=_bytes([*axes.values()], [array.dtype for array in kept]),
        flops=Flops(*(to_latex(shorter(formula)) for formula in flops)),
    )


def _axes(module, inputs, array) -> tuple[str, ...]:
    """Return the axes of a saved array.

    An input or the output has its declared axes. Those of another array are recognised
    by their lengths: all lengths differ, and so do the products of two or three of
    them.
    """
    shapes = parse(module.SHAPES)
    for spec in (*shapes.inputs, *shapes.outputs):
        if spec.name == array.name:
            return spec.axes
    lengths = dimensions(module, *inputs, **options_for(module))
    names = [letter for letter in shapes.letters if letter in lengths]
    letters = {
        math.prod(lengths[letter] for letter in several): "*".join(several)
        for count in (3, 2, 1)
        for several in itertools.combinations(names, count)
    }
    letters |= {LEADING: "*", 1: "1"}
    return tuple(letters[length] for length in array.shape)


def _bytes(axes: list[tuple[str, ...]], dtypes: list[str]) -> str:
    """Return the saved bytes in LaTeX, with a term for each array.

    Floating-point numbers count as float32, and integers as the dtype that is saved.
    """
    import sympy

    def length(axis: str) -> sympy.Expr:
        if axis == "1":
            return sympy.Integer(1)
        names = letters_of(axis) if is_product(axis) else [axis]
        if axis.startswith("*"):
            names = ["m" if axis == "*" else f"m_{axis[1:]}"]
        return sympy.prod(sympy.Symbol(name, positive=True) for name in names)

    total = 0
    for names, dtype in zip(axes, dtypes, strict=True):
        floating = dtype.startswith("float")
        width = FLOAT32 if floating else np.dtype(dtype).itemsize
        total += width * math.prod(map(length, names))
    return sympy.latex(total)


def _mathematics(latex: str) -> str:
    return (
        '<div class="formula"><span class="math notranslate nohighlight '
        rf'tex2jax_process">\({html.escape(latex)}\)</span></div>'
    )
