"""Every gradient of a transformer, derived, executed and counted.

``backpass.ops`` holds the operations. Everything else checks them, counts their cost,
or makes them faster:

- ``backpass.verify.check`` runs every independent check that applies to a backward,
- ``backpass.cost`` counts its arithmetic and the bytes it saves,
- ``backpass.derivation.derive`` parses and evaluates the lines of a derivation,
- ``backpass.kernels`` holds the same functions in Triton.

Importing the package is cheap: PyTorch, Triton, SymPy and Matplotlib are imported only
when they are needed.
"""

__version__ = "0.1.0"
