"""What tests share: servers, clients, disks and clocks."""
