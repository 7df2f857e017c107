"""The commands that write, read and query records."""
