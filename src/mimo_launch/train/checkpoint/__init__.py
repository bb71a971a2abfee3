"""Saves and loads the state of a run, independent of its layout."""
