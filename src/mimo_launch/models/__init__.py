"""Encoders and language models as pipeline stages, and how FSDP wraps them."""
