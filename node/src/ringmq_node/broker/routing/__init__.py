"""Publishing through exchanges, on whatever node a client is connected to.

    core        which queues still have to confirm which sequences (pure)
    internal    the interface for publishers inside the node: dead letters

A *routed session* is one producer that publishes to exchanges. Its node routes each batch, hands
every queue its part, and answers a sequence when all of its queues have it.
"""
