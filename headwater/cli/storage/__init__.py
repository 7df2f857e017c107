"""The commands that look after the files of a store."""
