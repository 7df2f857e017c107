"""The protocol between broker and client: the service's methods, its messages and its errors."""
