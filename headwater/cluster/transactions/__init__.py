"""Transactions in a cluster: the log of decisions, and the stages of what is undecided."""
