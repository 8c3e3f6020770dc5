"""The ledger: published claims about backpropagation, each with a verdict and its
check; and wrong gradients of public projects, each beside its corrected twin."""
