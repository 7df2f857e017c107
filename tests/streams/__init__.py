"""Tests of stores, producers, consumers, groups and transactions, on every backend."""
