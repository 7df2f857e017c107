"""Limits of a broker: how many callers it admits, and how much memory they take."""
