"""Claims of texts on backpropagation, each checked by running it."""
