"""Folders of Hugging Face models: which module is in them, its sizes by our keys, its tensors."""
