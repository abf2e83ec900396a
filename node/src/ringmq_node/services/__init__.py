"""The gRPC services: request to call, result to reply, exception to status. No decisions."""
