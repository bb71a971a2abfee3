"""`mimo-launch plan`."""
