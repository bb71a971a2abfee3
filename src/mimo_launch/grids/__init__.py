"""Live process groups of a layout."""
