"""Decide whether lines are equal: exactly, at several sizes, points, and regions."""
