"""`mimo-launch report`."""
