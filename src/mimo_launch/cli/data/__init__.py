"""`mimo-launch data`."""
