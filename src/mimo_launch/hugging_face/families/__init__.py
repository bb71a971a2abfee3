"""Families of models as Hugging Face folders hold them, one file each; each is found by itself."""
