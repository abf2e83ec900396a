"""Publishing through exchanges, on whatever node a client is connected to.

    batch       a batch, and those that wait behind one that is looked up (pure)
    core        which queues still have to confirm which sequences (pure)
    targets     what one queue still has to answer, over breaking streams (pure)
    stamp       exchange, routing key and the like, appended to properties (pure)
    finding     the queues of a batch, as far as this node knows
    session     one producer's publishes: joins router, core and ways
    ways        streams to one queue's master, here or elsewhere, one after the other
    unknown     exchanges and queues that the registry is asked for
    routing     what the sessions of a node share; the publisher of dead letters
    internal    its interface

A *routed session* is one producer that publishes to the exchanges of a vhost. Its node routes each
batch, hands every queue its part, and answers a sequence when all of its queues have it.
"""
