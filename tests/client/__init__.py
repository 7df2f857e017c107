"""Tests of the client of a broker."""
