"""What each sample is, as columns that are mapped into memory."""
