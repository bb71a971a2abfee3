"""Arithmetic of ranks: grids, pipeline stages, and who owns which sample and row."""
