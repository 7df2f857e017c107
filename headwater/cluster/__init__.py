"""Brokers that replicate each other's partitions, coordinated by etcd.

The protocol is here without its surroundings: `Replica` and the election take what they are told and say what is to be
done, and neither sends, sleeps nor writes. So the very same code runs in brokers and in the simulation that proves it.
"""
