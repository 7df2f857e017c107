"""Tests of Headwater through Spark: one session serves them all."""
