"""Starts workers, or joins those that something else started."""
