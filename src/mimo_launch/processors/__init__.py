"""What becomes of text, images and videos before a model: the processors of Hugging Face."""
