"""Many queues on three nodes: what they cost, and how long a node's death and return take.

`course` measures a `System`; ours and RabbitMQ's mirrored queues are two of them.
"""
