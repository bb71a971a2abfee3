"""The YAML spec as typed, frozen values that remember where they were written."""
