"""What stands between the operations and PyTorch: the operators that
``backpass.functional`` calls, and the table of PyTorch's own calls beside them."""
