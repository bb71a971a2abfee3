"""Folders of Hugging Face models: weights, tokenizers and processors, without torch."""
