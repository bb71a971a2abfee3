"""What several commands share: console, options, progress bars, findings."""
