"""`mimo-launch init`."""
