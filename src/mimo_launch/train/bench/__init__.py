"""Measuring steps of a spec, and what a device achieves."""
