"""Compiled kernels, executed on the CPU."""
