"""Code that all servers share: the sources of callers, bounds for each source, and the check of Host and Origin."""
