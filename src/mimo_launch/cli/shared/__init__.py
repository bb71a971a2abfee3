"""Code that several commands share: console, options, progress bars, findings."""
