"""Every gradient of a transformer, derived, executed and counted.

``backpass.ops`` holds the operations; everything else proves, counts or speeds them up:

- ``backpass.verify.check`` runs every independent check of a backward that applies,
- ``backpass.cost`` counts its arithmetic and the bytes it keeps,
- ``backpass.derivation.derive`` parses and evaluates the lines of a derivation,
- ``backpass.kernels`` holds the same functions in Triton.

Importing the package is cheap: PyTorch, Triton, SymPy and Matplotlib are imported by the parts that
need them, when they need them.
"""

__version__ = "0.1.0"
