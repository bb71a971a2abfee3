"""Runs a checked spec, for `train`, `bench` and `sample`."""
