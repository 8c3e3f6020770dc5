"""Arrays that run an operation's own lines on something other than plain numbers.

- ``counting``: numbers that count the arithmetic done with them;
- ``symbolic``: SymPy expressions;
- ``rounding``: numbers with a bound on their rounding error, by the rules of
  ``bounds`` and in the ``formats`` of floating-point numbers;
- ``closed_world``: the functions that the three share, on an ``array`` whose elements
  are created and moved by ``moving``.
"""
