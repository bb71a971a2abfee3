"""Executes the program of a rank: forwards, backwards and transfers."""
