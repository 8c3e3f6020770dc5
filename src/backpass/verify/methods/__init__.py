"""The methods that check a backward.

Each is a module with ``NAME``, as a table shows it, and ``run(case)``, which returns
rows.
"""
