"""gRPC over HTTP/2 without a poller thread: for streams on which every microsecond counts.

What goes over the wire is gRPC as any stock peer speaks it. What it isn't: a framework. It knows
neither protobuf nor services' definitions, neither proxies nor load balancing; messages are bytes.

`connection` is one end of a connection as a pure state machine; the modules that call themselves
pure are its parts. This package knows nothing of RingMQ.
"""
