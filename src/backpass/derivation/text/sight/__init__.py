"""What a text says of its names without a comment: stated shapes, uses, and letters."""
