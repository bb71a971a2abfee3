"""What each rank does and in which order, and a simulator that proves it ends."""
