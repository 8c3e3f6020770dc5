"""The shapes of expressions: a module for each group of the grammar's rules."""
