"""What broker and client have in common: the service's methods, its messages and its errors."""
