"""Derivations whose printed LaTeX is the text that is checked.

    from backpass.derivation import derive

    derive(r'''
        given  x, \\bar{y} \\in \\mathbb{R}^n
        let    y_i = \\frac{e^{x_i}}{\\sum_j e^{x_j}}

        \\bar{x}_i = \\sum_j \\bar{y}_j \\frac{\\partial y_j}{\\partial x_i}   | …
                  = y_i \\left( \\bar{y}_i - \\sum_j \\bar{y}_j y_j \\right)  | …
    ''', name="softmax", operation="softmax")

Each line is parsed and evaluated. It must equal the line above it exactly, at several
sizes and for every free index. The left side is evaluated too: `\\bar{x}_i` is the
derivative of 𝓛 = Σ ȳ·y, computed from the definitions. With `operation`, the definition
of the output must be that operation's `forward`, and the last line for each input its
`backward`.
"""

from backpass.derivation.book.derivation import Derivation, derive
from backpass.derivation.book.flips import Flip, Survivor
from backpass.derivation.language.parse import DerivationError, Unreadable

__all__ = ["Derivation", "DerivationError", "Flip", "Survivor", "Unreadable", "derive"]
