"""What a broker does differently as a member of a cluster."""
