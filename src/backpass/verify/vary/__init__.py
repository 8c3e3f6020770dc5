"""Repeat a check at other inputs and with other calls."""
