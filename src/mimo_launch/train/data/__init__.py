"""The samples of a run: real handwritten digits and synthetic ones, and the order they come in."""
