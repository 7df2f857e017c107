"""The version of Headwater."""

__version__ = "0.1.0"
