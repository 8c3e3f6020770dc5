"""Arrays that run an operation's own lines on something other than floating-point numbers.

- ``counting``: numbers that count every operation done to them;
- ``symbolic``: SymPy expressions;
- ``closed_world``: the mechanism both share;
- ``exact``: whether two expressions are equal, decided exactly;
- ``derivatives``: all derivatives of an expression in one pass.
"""
