"""The YAML of a run as typed, frozen values that know where they were written."""
