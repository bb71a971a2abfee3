"""Encoders and the language model as stages."""
