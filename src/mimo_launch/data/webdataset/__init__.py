"""Tar shards: their index, conversations as tokens, images and clips."""
