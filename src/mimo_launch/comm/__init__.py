"""Process groups, collectives with their adjoints, and the transfers of a bridge."""
