"""What each rank does in a step and in which order, and a simulator that proves it ends."""
