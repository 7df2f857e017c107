"""Logs as this version of the format has them, kept so that every later version can prove that it still reads them."""
