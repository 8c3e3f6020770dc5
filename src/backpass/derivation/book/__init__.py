"""The derivations of the book: check them, bind them to operations, and show them."""
