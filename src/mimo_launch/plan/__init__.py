"""What `plan` shows, as plain rows (torch-free)."""
