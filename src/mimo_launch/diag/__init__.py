"""Diagnostics: values, codes and their plain-text rendering (stdlib only)."""
