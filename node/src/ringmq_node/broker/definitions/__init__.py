"""Definitions: everything that was declared, as one JSON document; ours, and RabbitMQ's."""
