"""Doors: each translates between one protocol and `broker.Broker`, and holds no rule.

A door parses requests, calls the broker, and maps answers and `BrokerError`s to its protocol.
Whatever two doors would both have to do belongs to the broker. `grpc/` is the only door so far;
an AMQP door would be `amqp/` beside it, with a session class for its publishers and consumers
(`replica.sessions`) and its own table from `Reason` to reply codes.
"""
