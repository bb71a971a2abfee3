"""Finds a layout for given models and a number of GPUs."""
