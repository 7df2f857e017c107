"""Servers, clients, disks and clocks that tests share."""
