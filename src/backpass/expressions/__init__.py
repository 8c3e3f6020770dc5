"""Answer questions about SymPy expressions, exactly and much faster than SymPy.

- ``exact``: whether two expressions are equal;
- ``derivatives``: all derivatives of an expression, in one pass.
"""
