"""Data sets and the order of their samples: digits, synthetic ones, shards of your own."""
