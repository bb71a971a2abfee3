"""`mimo-launch sample`."""
