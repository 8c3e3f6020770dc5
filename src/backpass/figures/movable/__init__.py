"""Figures whose numbers a reader changes: by a handle, from the keyboard, or in a box.

A figure is a drawing with holes, such as ``y2="[y.0*-60+100]"``, and a model that
computes what fills them. The package's own functions compute the frame that a notebook,
the paper and a page without JavaScript show. On a page, ``_static/figures.js`` fills
the holes anew at each change, from the same formulas in JavaScript. A test compares the
two at random settings.
"""

from backpass.figures.movable.movable import Movable, Number, fill

__all__ = ["Movable", "Number", "fill"]
