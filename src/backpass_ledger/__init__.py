"""The ledger: published claims about backpropagation, each with a verdict and its
check; what the texts print about costs; and wrong gradients of public projects, each
beside its corrected twin."""
