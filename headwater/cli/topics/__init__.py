"""The commands for topics."""
