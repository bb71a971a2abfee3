"""Executes a rank's action list."""
