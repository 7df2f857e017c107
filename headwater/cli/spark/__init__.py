"""The commands for Spark and pipelines."""
