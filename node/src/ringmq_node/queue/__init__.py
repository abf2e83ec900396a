"""One queue as pure state: no clock, no chance, no I/O.

Two halves. Every replica has the first; only the master has the second, and it ends with the
mastership:

    block, ops    messages and ops in their encoded form
    state         ReplicatedState: the sum of the ops, the same on every replica
    counts        its part that says how often messages have come back
    marks         its part that says when messages expire
    doomed        its part for dead letters

    master        QueueMaster: joins the parts below; the replica talks to it alone
    confirms      which publishes are safe: their confirms, and which messages are visible
    ready         the messages that nobody has; damaged ones put aside
    priorities    which messages have one, and the line in which ready ones are given out
    consumers     outstanding messages, prefetch, exclusive and active consumers; its parts turns
                  (who is next) and holding (who has had a message for how long)
    deliveries    ready messages to consumers with room
    keeping       ready messages that the queue doesn't keep; joins expiry (whose time is over) and
                  limits (how many there may be)
    leaving       why messages leave the queue
    departures    messages that leave; joins the next two
    removals      messages that are being removed, and when that is safe
    deadletters   messages on their way to a dead-letter target
    effects, run  the commands of the core to its caller, and the bodies that it reads

Imports point from `master` to the parts, and from all of them to `effects`, `run`, `ops` and
`block`. No part imports another, but for `ready`, which keeps its messages in a line of
`priorities` and knows of `limits`, and `departures` and `keeping`: `master` passes the facts on.

Where later features go:

* *Priorities of consumers*: the turn in `consumers`.
* A fact that replicas have to agree on, as the delivery counts, is an op and in `state`.
"""
