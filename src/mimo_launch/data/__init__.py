"""Data sets and the order of their samples: digits, synthetic samples, the user's shards."""
