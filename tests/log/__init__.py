"""Tests of the storage engine."""
