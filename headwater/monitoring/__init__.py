"""Monitoring: metrics in the text format of Prometheus, and the small HTTP server that shows them to machines."""
