"""Control of a cluster: membership, elections, assignments and moves of replicas."""
