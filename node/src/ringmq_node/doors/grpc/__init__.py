"""The gRPC door: `ringmq.v1` for clients, operators and the other nodes.

service    bytes in and out, errors as `google.rpc.Status`
status     `Reason` and gRPC's codes
wire       the model's types and protobuf
broker     `ringmq.v1.Broker`
streams    its publish and consume streams
writer     the writing half of a stream
admin      `ringmq.v1.Admin`
ring       `ringmq.v1.Ring`: state and bodies for other replicas
peers      calls of other nodes
channels   one connection to each of them
relay      a client's stream, passed on to the master's node
"""
