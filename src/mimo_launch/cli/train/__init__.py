"""`mimo-launch train`."""
