"""What only the book shows: the card, the map of the network, and source code."""
