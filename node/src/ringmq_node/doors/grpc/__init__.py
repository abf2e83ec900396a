"""The gRPC door: `ringmq.v1` for clients, operators and the other nodes."""
