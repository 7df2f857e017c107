"""Streams in this process: the backends on a directory and in memory."""
