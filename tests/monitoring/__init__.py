"""Tests of the values that all packages share."""
