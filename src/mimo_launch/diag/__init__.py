"""Findings: codes, places in the YAML, and their text for people and programs."""
