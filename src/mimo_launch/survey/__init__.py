"""Describes a data set as training would read it: lengths, padding, damage, speed."""
