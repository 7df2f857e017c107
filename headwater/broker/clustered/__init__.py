"""The parts of a broker that differ when it is a member of a cluster."""
