"""Writes the weights of a run as folders that transformers loads."""
