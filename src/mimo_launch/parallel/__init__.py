"""Tensor-parallel layers, attention and parameter segments."""
