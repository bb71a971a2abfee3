"""Other places that metrics go to, as the spec's `log` section says."""
