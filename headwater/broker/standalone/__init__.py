"""The backend of a broker that is in no cluster: its store."""
