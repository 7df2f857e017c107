"""Tests of the project itself: its documents, examples, exports and style."""
