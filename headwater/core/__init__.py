"""Values that every package shares: records, schemas, errors, options, addresses and configuration."""
