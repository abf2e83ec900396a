"""Plain types that cross rooms: reasons, records, what a queue looks like. No protobuf, no I/O."""
