"""What the servers share: the sources of callers, bounds for each of them, and the check of Host and Origin."""
