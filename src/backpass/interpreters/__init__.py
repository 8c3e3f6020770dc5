"""Arrays that run an operation's own lines on something other than plain numbers.

- ``counting``: numbers that count the arithmetic done with them;
- ``symbolic``: SymPy expressions;
- ``rounding``: numbers with a bound on their rounding error;
- ``closed_world``: what the three share.
"""
