"""How a record becomes tokens and rows."""
