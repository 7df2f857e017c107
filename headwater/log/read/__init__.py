"""Reading from a partition."""
