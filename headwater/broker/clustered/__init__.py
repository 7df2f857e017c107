"""The backend of a broker in a cluster: replicated partitions, and coordinators that all brokers share."""
