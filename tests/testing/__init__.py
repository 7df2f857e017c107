"""Tests of `headwater.testing`."""
