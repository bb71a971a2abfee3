"""Where the bytes of samples lie."""
