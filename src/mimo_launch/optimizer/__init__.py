"""Gradient reduction, norms and clipping, learning rates, one optimizer per module."""
