"""The one API of every door: every request that a client can make, in any protocol.

A door (gRPC; AMQP and HTTP later) translates requests into calls of `Broker` and back. Every rule
is here or below: limits of batches, properties and prefetch, waiting for a full ring, refusing
publishes while a conditional deletion is under way (decision 0016), finding the master and
forwarding to it. A door that called a replica directly would silently break one of them.

    broker      the facade: one method for each request
    gate        whether this node takes calls at all
    catalogue   the registry's queue records, mirrored by a watch
    cluster     the nodes that are up, and their addresses
    locating    which node is a queue's master, and whether a call is served here
    declaring   creating queues and changing their records      arguments, placement: its pure rules
    deleting    with conditions or without                      transient: queues that nobody holds
    publishing  consuming      sessions on a queue whose master is here
    routing     publishing to exchanges: sessions on any node, and ways to masters elsewhere
    listing     queues, nodes and replicas for operators
    peers       the interface to the other nodes' brokers; the gRPC door implements it

Exchanges, bindings, policies and users come as further catalogues beside `catalogue`, watched in
the same way; access rules come as a pure module beside `placement`.
"""
