"""etcd: the client, its watches, and the keys and values of a cluster."""
