"""Shards of the user's own: their index, texts, images and clips."""
