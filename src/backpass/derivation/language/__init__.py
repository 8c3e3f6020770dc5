"""The language of derivations: parse mathematics, analyse it, and evaluate it."""
