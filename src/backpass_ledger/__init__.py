"""The ledger: claims of texts on backpropagation, each with a verdict and its check;
and wrong gradients of public projects, each beside its corrected twin."""
