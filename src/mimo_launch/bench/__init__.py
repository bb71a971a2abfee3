"""Measures the steps of a spec, and the speed of devices and links."""
