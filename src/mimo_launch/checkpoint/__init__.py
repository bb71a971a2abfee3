"""Saves and loads the state of a run, from any layout to any other."""
