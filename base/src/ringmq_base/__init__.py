"""The vocabulary that every package of RingMQ shares, and nothing that belongs to one of them.

`ranges` holds sets of positions, `limits` the bounds that two sides of a wire or of a disk
must agree on, `timer` the one way in which this project re-arms a deadline, `notifier` the way in
which tasks wait for a state to change, `logs` the format of a node's log and the rule that finds
the faults in it. Nothing here knows the client, the ring or the node; all of them may import it.
"""
