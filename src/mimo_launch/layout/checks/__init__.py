"""Semantic checks of a spec: one file per subject, `entry` runs them all."""
