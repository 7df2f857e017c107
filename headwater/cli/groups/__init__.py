"""The commands for groups."""
