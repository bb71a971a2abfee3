"""Proof that a layout computes the gradients of the one-rank run."""
