"""Collectives with the right adjoints, and the transfers that carry out a bridge."""
