"""Tests of what every package shares."""
