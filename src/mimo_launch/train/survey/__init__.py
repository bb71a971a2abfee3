"""What a data set is like, as training would read it."""
