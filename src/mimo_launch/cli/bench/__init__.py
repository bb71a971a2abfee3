"""`mimo-launch bench`."""
