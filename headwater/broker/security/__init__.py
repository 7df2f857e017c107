"""Security of a broker: tokens, access rules, TLS, and the audit log."""
