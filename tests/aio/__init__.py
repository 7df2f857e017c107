"""Tests of the interface for asyncio."""
