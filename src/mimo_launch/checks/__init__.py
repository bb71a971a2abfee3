"""Rules that a spec must keep beyond its types: one file per subject."""
