"""The messages of the broker's protocol, generated from `proto/headwater/v1/broker.proto` by `make proto`."""
