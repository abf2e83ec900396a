"""Plain types that cross rooms, so that no room needs another one's internals to talk to it.

`reasons` says why a call is refused, `records` is the registry's entry for a queue, `info` is how
queues, replicas and nodes are described to users, `settings` holds the limits that every door
enforces through the broker. Nothing here does I/O, and nothing knows protobuf: each door maps
these types to its own protocol.
"""
