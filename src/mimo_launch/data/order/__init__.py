"""Which records training takes when."""
