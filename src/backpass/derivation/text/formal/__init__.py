"""Judge formulas whose names have no declared meaning, by rules that hold whatever the
names are."""
