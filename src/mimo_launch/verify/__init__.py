"""Proves that a layout trains as one rank does: the oracle, its run, the comparison."""
